package transport

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// The wire format is that of streamraft.raft.v1.ConnectRequest, version
// ProtocolVersion:
//
//	ConnectRequest  1 hello    NodeHello      first message of a stream only
//	                2 lane     enum Lane      first message of a stream only
//	                3 messages GroupMessage   repeated
//	GroupMessage    1 group    uint64
//	                2 message  raftpb.Message as bytes, at most MaxMessageBytes
//
// Unknown fields are skipped. The code below writes and reads it without the
// generated types: those would copy every append once more on each side, and
// would take memory for each message before anybody could count them.
const (
	fieldHello    protowire.Number = 1
	fieldLane     protowire.Number = 2
	fieldMessages protowire.Number = 3
	fieldGroup    protowire.Number = 1
	fieldMessage  protowire.Number = 2
)

// AppendMessages appends the encoding of a batch of messages to dst. It is an
// ErrInvalidMessage or ErrMessageTooLarge if one of them must not travel; dst
// is then returned as it was.
func AppendMessages(dst []byte, messages []GroupMessage) ([]byte, error) {
	if len(messages) > MaxBatchMessages {
		return dst, fmt.Errorf("%w: a batch of %d messages, at most %d", ErrMessageTooLarge, len(messages), MaxBatchMessages)
	}
	var b batch
	for _, m := range messages {
		if err := CheckMessage(m); err != nil {
			return dst, err
		}
		size := proto.Size(m.Message)
		if size > MaxMessageBytes {
			return dst, tooLarge(m, size)
		}
		b.add(m, size)
	}
	out, err := b.encode(dst)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// DecodeMessages decodes what AppendMessages encoded. The messages share no
// memory with data. The error is ErrMalformed, ErrInvalidMessage or
// ErrMessageTooLarge.
func DecodeMessages(data []byte) ([]GroupMessage, error) {
	var b batch
	if err := b.decode(data); err != nil {
		return nil, err
	}
	return b.messages, nil
}

// batch is a ConnectRequest in the form the transport works with. gRPC's
// standard codec takes it as a protobuf message, so the server that carries
// RaftService needs no codec of its own: the protobuf methods of the embedded
// (empty) ConnectRequest are replaced by encode and decode.
//
// A batch is used by one goroutine, again and again; make it with newBatch.
type batch struct {
	protoreflect.Message
	methods protoiface.Methods

	hello    *raftv1.NodeHello
	lane     raftv1.Lane
	messages []GroupMessage

	// sizes are the encoded sizes of messages; payload is the size of the field
	// messages on the wire.
	sizes   []int
	payload int

	// err is why the last bytes did not decode. gRPC would turn an error of its
	// codec into one of its own; so it is kept here for the receiver.
	err error
	// wire is the size of the last encoded or decoded message.
	wire int
}

func newBatch() *batch {
	b := &batch{Message: new(raftv1.ConnectRequest).ProtoReflect()}
	b.methods = protoiface.Methods{
		Size: func(protoiface.SizeInput) (out protoiface.SizeOutput) {
			out.Size = b.size()
			return out
		},
		Marshal: func(in protoiface.MarshalInput) (out protoiface.MarshalOutput, err error) {
			out.Buf, err = b.encode(in.Buf)
			return out, err
		},
		Unmarshal: func(in protoiface.UnmarshalInput) (out protoiface.UnmarshalOutput, err error) {
			b.err = b.decode(in.Buf)
			out.Flags = protoiface.UnmarshalInitialized
			return out, nil
		},
	}
	return b
}

// ProtoReflect makes a batch a proto.Message.
func (b *batch) ProtoReflect() protoreflect.Message { return b }

// Interface is part of protoreflect.Message.
func (b *batch) Interface() protoreflect.ProtoMessage { return b }

// ProtoMethods replaces the encoding of the embedded message.
func (b *batch) ProtoMethods() *protoiface.Methods { return &b.methods }

// Reset empties the batch and keeps its memory, unless a burst made it large.
func (b *batch) Reset() {
	const keep = 4096
	b.hello, b.lane, b.err, b.payload = nil, 0, nil, 0
	if cap(b.messages) > keep {
		b.messages, b.sizes = nil, nil
		return
	}
	clear(b.messages) // the messages belong to others; do not keep them alive
	b.messages, b.sizes = b.messages[:0], b.sizes[:0]
}

// add adds a message whose encoded size is size.
func (b *batch) add(m GroupMessage, size int) {
	b.messages = append(b.messages, m)
	b.sizes = append(b.sizes, size)
	b.payload += 1 + protowire.SizeBytes(innerSize(m.Group, size))
}

func innerSize(group uint64, size int) int {
	return 1 + protowire.SizeVarint(group) + 1 + protowire.SizeBytes(size)
}

func (b *batch) size() int {
	n := b.payload
	if b.hello != nil {
		n += 1 + protowire.SizeBytes(proto.Size(b.hello))
	}
	if b.lane != 0 {
		n += 1 + protowire.SizeVarint(uint64(b.lane))
	}
	return n
}

func (b *batch) encode(dst []byte) ([]byte, error) {
	start := len(dst)
	var err error
	if b.hello != nil {
		dst = protowire.AppendTag(dst, fieldHello, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(proto.Size(b.hello)))
		if dst, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(dst, b.hello); err != nil {
			return nil, fmt.Errorf("transport: encode hello: %w", err)
		}
	}
	if b.lane != 0 {
		dst = protowire.AppendTag(dst, fieldLane, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(b.lane))
	}
	for i, m := range b.messages {
		dst = protowire.AppendTag(dst, fieldMessages, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(innerSize(m.Group, b.sizes[i])))
		dst = protowire.AppendTag(dst, fieldGroup, protowire.VarintType)
		dst = protowire.AppendVarint(dst, m.Group)
		dst = protowire.AppendTag(dst, fieldMessage, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(b.sizes[i]))
		before := len(dst)
		if dst, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(dst, m.Message); err != nil {
			return nil, fmt.Errorf("transport: encode %v of group %d: %w", m.Message.GetType(), m.Group, err)
		}
		if n := len(dst) - before; n != b.sizes[i] {
			// The length is written already: the batch would not decode.
			return nil, fmt.Errorf("%w: %v of group %d was changed after it was sent: %d bytes, then %d",
				ErrInvalidMessage, m.Message.GetType(), m.Group, b.sizes[i], n)
		}
	}
	b.wire = len(dst) - start
	return dst, nil
}

// decode replaces the batch by the one encoded in data, with which it shares no
// memory afterwards.
func (b *batch) decode(data []byte) error {
	b.Reset()
	b.wire = len(data)
	if len(data) > MaxWireBytes {
		return fmt.Errorf("%w: a batch of %d bytes, at most %d", ErrMessageTooLarge, len(data), MaxWireBytes)
	}
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("%w: batch: %v", ErrMalformed, protowire.ParseError(n))
		}
		data = data[n:]
		var err error
		switch {
		case num == fieldHello && typ == protowire.BytesType && b.hello == nil:
			var v []byte
			if v, n = protowire.ConsumeBytes(data); n >= 0 {
				b.hello, err = decodeHello(v)
			}
		case num == fieldLane && typ == protowire.VarintType:
			var v uint64
			if v, n = protowire.ConsumeVarint(data); n >= 0 && v != uint64(raftv1.Lane_LANE_URGENT) && v != uint64(raftv1.Lane_LANE_APPEND) {
				err = fmt.Errorf("%w: there is no lane %d", ErrMalformed, v)
			}
			b.lane = raftv1.Lane(v)
		case num == fieldMessages && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(data); n >= 0 {
				err = b.decodeMessage(v)
			}
		case num == fieldHello, num == fieldLane, num == fieldMessages:
			err = fmt.Errorf("%w: batch: field %d twice or of wire type %d", ErrMalformed, num, typ)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if err == nil && n < 0 {
			err = fmt.Errorf("%w: batch, field %d: %v", ErrMalformed, num, protowire.ParseError(n))
		}
		if err != nil {
			b.Reset() // nothing of a broken batch is used
			return err
		}
		data = data[n:]
	}
	return nil
}

func decodeHello(data []byte) (*raftv1.NodeHello, error) {
	if len(data) > MaxHelloBytes {
		return nil, fmt.Errorf("%w: a hello of %d bytes, at most %d", ErrMessageTooLarge, len(data), MaxHelloBytes)
	}
	hello := new(raftv1.NodeHello)
	if err := proto.Unmarshal(data, hello); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", ErrMalformed, err)
	}
	return hello, nil
}

// decodeMessage decodes a GroupMessage and adds it.
func (b *batch) decodeMessage(data []byte) error {
	if len(b.messages) == MaxBatchMessages {
		return fmt.Errorf("%w: a batch of more than %d messages", ErrMessageTooLarge, MaxBatchMessages)
	}
	var group uint64
	var encoded []byte
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("%w: group message: %v", ErrMalformed, protowire.ParseError(n))
		}
		data = data[n:]
		switch {
		case num == fieldGroup && typ == protowire.VarintType:
			group, n = protowire.ConsumeVarint(data)
		case num == fieldMessage && typ == protowire.BytesType:
			encoded, n = protowire.ConsumeBytes(data)
		case num == fieldGroup, num == fieldMessage:
			return fmt.Errorf("%w: group message: field %d of wire type %d", ErrMalformed, num, typ)
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return fmt.Errorf("%w: group message, field %d: %v", ErrMalformed, num, protowire.ParseError(n))
		}
		data = data[n:]
	}
	if err := checkEncoded(encoded); err != nil {
		return fmt.Errorf("group %d: %w", group, err)
	}
	m := GroupMessage{Group: group, Message: new(raftpb.Message)}
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(encoded, m.Message); err != nil {
		return fmt.Errorf("%w: raft message of group %d: %w", ErrMalformed, group, err)
	}
	if err := CheckMessage(m); err != nil {
		return err
	}
	b.messages = append(b.messages, m)
	return nil
}

func tooLarge(m GroupMessage, size int) error {
	return fmt.Errorf("%w: %v of group %d has %d bytes, at most %d; lower raft's MaxSizePerMsg or the size of commands",
		ErrMessageTooLarge, m.Message.GetType(), m.Group, size, MaxMessageBytes)
}

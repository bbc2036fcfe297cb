package snapshot

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/runtime/protoiface"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// buffers are chunks' data to be used again: at 1 GB/s a new MiB for each chunk
// keeps the collector busy and twice the memory in use. It is a bounded list and
// no sync.Pool, so that what is kept does not depend on the collector.
type buffers struct{ free chan []byte }

func newBuffers(count int) *buffers { return &buffers{free: make(chan []byte, count)} }

func (b *buffers) get(n int) []byte {
	select {
	case data := <-b.free:
		if cap(data) >= n {
			return data[:n]
		}
	default:
	}
	return make([]byte, n)
}

func (b *buffers) put(data []byte) {
	select {
	case b.free <- data:
	default:
	}
}

// Field numbers of streamraft.snapshot.v1 that are read without the generated
// types.
const (
	fieldResponseChunk protowire.Number = 2

	fieldChunkSeq    protowire.Number = 1
	fieldChunkFile   protowire.Number = 2
	fieldChunkOffset protowire.Number = 3
	fieldChunkCodec  protowire.Number = 4
	fieldChunkRawLen protowire.Number = 5
	fieldChunkData   protowire.Number = 6
	fieldChunkSum    protowire.Number = 7
)

// response is a FetchResponse that is received again and again, with the data of
// chunks in buffers. gRPC's standard codec takes it as a protobuf message whose
// decoding is replaced. The chunk is new in each message; its data belongs to
// who takes the chunk.
type response struct {
	protoreflect.Message
	methods protoiface.Methods
	buffers *buffers

	message *snapshotv1.FetchResponse
	// err is why the last bytes did not decode; gRPC would make an error of its
	// own of it.
	err error
}

func newResponse(b *buffers) *response {
	r := &response{Message: new(snapshotv1.FetchResponse).ProtoReflect(), buffers: b}
	r.methods = protoiface.Methods{
		Unmarshal: func(in protoiface.UnmarshalInput) (out protoiface.UnmarshalOutput, err error) {
			r.message, r.err = decodeResponse(in.Buf, b)
			out.Flags = protoiface.UnmarshalInitialized
			return out, nil
		},
	}
	return r
}

// ProtoReflect makes a response a proto.Message.
func (r *response) ProtoReflect() protoreflect.Message { return r }

// Interface is part of protoreflect.Message.
func (r *response) Interface() protoreflect.ProtoMessage { return r }

// ProtoMethods replaces the decoding of the embedded message.
func (r *response) ProtoMethods() *protoiface.Methods { return &r.methods }

// Reset is called before each decoding.
func (r *response) Reset() { r.message, r.err = nil, nil }

// decodeResponse decodes a FetchResponse. What is no chunk goes through the
// generated code.
func decodeResponse(data []byte, b *buffers) (*snapshotv1.FetchResponse, error) {
	if num, typ, n := protowire.ConsumeTag(data); n > 0 && num == fieldResponseChunk && typ == protowire.BytesType {
		if body, m := protowire.ConsumeBytes(data[n:]); m > 0 && n+m == len(data) {
			c, err := decodeChunk(body, b)
			if err != nil {
				return nil, err
			}
			return &snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Chunk{Chunk: c}}, nil
		}
	}
	resp := new(snapshotv1.FetchResponse)
	if err := proto.Unmarshal(data, resp); err != nil {
		return nil, fmt.Errorf("%w: a message that does not decode: %v", ErrProtocol, err)
	}
	return resp, nil
}

// decodeChunk decodes a Chunk. Unknown fields are skipped; the last of a field
// that is there twice counts.
func decodeChunk(data []byte, b *buffers) (*snapshotv1.Chunk, error) {
	c := new(snapshotv1.Chunk)
	var content []byte
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, fmt.Errorf("%w: chunk: %v", ErrProtocol, protowire.ParseError(n))
		}
		data = data[n:]
		switch {
		case num == fieldChunkData && typ == protowire.BytesType:
			content, n = protowire.ConsumeBytes(data)
		case num == fieldChunkSum && typ == protowire.Fixed32Type:
			c.Crc32C, n = protowire.ConsumeFixed32(data)
		case num <= fieldChunkRawLen && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(data)
			switch num {
			case fieldChunkSeq:
				c.Seq = v
			case fieldChunkFile:
				c.File = uint32(v)
			case fieldChunkOffset:
				c.Offset = v
			case fieldChunkCodec:
				c.Codec = snapshotv1.Codec(int32(v))
			case fieldChunkRawLen:
				c.RawLen = uint32(v)
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, data)
		}
		if n < 0 {
			return nil, fmt.Errorf("%w: chunk: %v", ErrProtocol, protowire.ParseError(n))
		}
		data = data[n:]
	}
	if len(content) > MaxChunkBytes {
		return nil, fmt.Errorf("%w: a chunk of %d bytes", ErrProtocol, len(content))
	}
	if len(content) > 0 {
		c.Data = b.get(len(content))
		copy(c.Data, content)
	}
	return c, nil
}

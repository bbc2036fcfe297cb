package transport

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
)

// What both sides agree on: a sender keeps to these, a receiver ends a stream
// that does not.
const (
	// MaxWireBytes bounds one gRPC message. The server that RaftService is
	// registered on must accept as much; see GRPC.ServerOptions.
	MaxWireBytes = 8 << 20

	// MaxMessageBytes bounds one encoded raft message: MaxWireBytes less what
	// wraps it. It must exceed raft's MaxSizePerMsg plus the largest entry.
	MaxMessageBytes = MaxWireBytes - 1024

	// MaxBatchMessages bounds the messages of a batch. A batch of the shortest
	// possible messages would otherwise take a hundred times its size in memory.
	MaxBatchMessages = 1 << 16

	// MaxEntries bounds the entries of a raft message. An entry is at least four
	// bytes of term and index, so a MaxSizePerMsg of 1 MiB stays within it
	// whatever the entries hold, and the receiver's headers within 32 MiB.
	MaxEntries = 1 << 18

	// MaxHelloBytes bounds an encoded hello: about 75,000 groups on a node.
	MaxHelloBytes = 1 << 20

	// maxNodeName bounds the name in a peer's hello; it becomes a map key and a
	// part of log lines.
	maxNodeName = 255
)

// Field numbers of raftpb.Message that are read before it is decoded.
const (
	fieldEntries   protowire.Number = 7
	fieldResponses protowire.Number = 14
)

// CheckMessage tells whether a message may travel: it names a group, it is of a
// type that raft sends to other nodes, and it is within the limits that can be
// seen without encoding it. The error is ErrInvalidMessage or
// ErrMessageTooLarge.
func CheckMessage(m GroupMessage) error {
	if m.Message == nil {
		return fmt.Errorf("%w: no message", ErrInvalidMessage)
	}
	if m.Group == 0 {
		return fmt.Errorf("%w: %v names no group", ErrInvalidMessage, m.Message.GetType())
	}
	// MsgStorageAppend and the like are orders to the local node; a peer that
	// could send one would write this node's log. A type this release does not
	// know must not reach raft, whose tables are indexed by it (a negative one
	// panics); so new types need a new ProtocolVersion.
	t := m.Message.GetType()
	if _, known := raftpb.MessageType_name[int32(t)]; !known || m.Message.Type == nil || raft.IsLocalMsg(t) {
		return fmt.Errorf("%w: type %v does not travel between nodes (group %d)", ErrInvalidMessage, t, m.Group)
	}
	if len(m.Message.Responses) > 0 {
		return fmt.Errorf("%w: %v with responses for local storage (group %d)", ErrInvalidMessage, t, m.Group)
	}
	if n := len(m.Message.Entries); n > MaxEntries {
		return fmt.Errorf("%w: %d entries, at most %d (group %d); lower raft's MaxSizePerMsg", ErrMessageTooLarge, n, MaxEntries, m.Group)
	}
	return nil
}

// checkEncoded looks at an encoded raft message before it is decoded: decoding
// takes memory for every entry and response, many times their encoded size.
func checkEncoded(data []byte) error {
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrMessageTooLarge, len(data), MaxMessageBytes)
	}
	entries := 0
	for len(data) > 0 {
		num, typ, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("%w: raft message: %v", ErrMalformed, protowire.ParseError(n))
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(num, typ, data); n < 0 {
			return fmt.Errorf("%w: raft message, field %d: %v", ErrMalformed, num, protowire.ParseError(n))
		}
		data = data[n:]
		switch num {
		case fieldEntries:
			if entries++; entries > MaxEntries {
				return fmt.Errorf("%w: more than %d entries", ErrMessageTooLarge, MaxEntries)
			}
		case fieldResponses:
			return fmt.Errorf("%w: it carries responses for local storage", ErrInvalidMessage)
		}
	}
	return nil
}

// cost estimates what a message holds in memory and on the wire, for the bound
// of a queue. It must give the same answer each time: the sender subtracts what
// Send added.
func cost(m *raftpb.Message) int64 {
	const message, entry = 96, 32
	n := int64(message + len(m.Context))
	for _, e := range m.Entries {
		n += int64(entry + len(e.GetData()))
	}
	if s := m.Snapshot; s != nil {
		n += int64(len(s.Data))
	}
	return n
}

package transport

import (
	"context"

	"go.etcd.io/raft/v3/raftpb"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// ProtocolVersion is the version of the message format. Nodes with another
// version do not talk to each other.
const ProtocolVersion = 1

// GroupMessage is one raft message of one group. The message and everything
// it points to are immutable once sent or delivered: a sender may encode it
// long after Send returned.
type GroupMessage struct {
	Group   uint64
	Message *raftpb.Message
}

// Transport moves raft messages between nodes. It may lose, delay, duplicate
// and reorder them (raft allows that), never alter them or deliver them to
// another node. All methods may be called from any goroutine.
type Transport interface {
	// Start begins to deliver to h. It is called once, before any other method;
	// until then nothing is accepted from peers. It returns ErrStarted when
	// called again and ErrClosed after Close.
	Start(h Handler) error

	// SetPeer makes a node known under an address, or changes its address. It
	// returns at once; connections are made in the background and kept. Where the
	// node is known there already, an attempt to connect is due at once.
	SetPeer(node, address string)

	// RemovePeer forgets a node and closes the connections to it.
	RemovePeer(node string)

	// Send queues a message for a node. It never blocks: when the peer's queue
	// is full, or the peer is unknown or not connected, the message is dropped
	// and Handler.Unreachable is called soon after, at most once per
	// disconnection or overflow burst.
	Send(node string, m GroupMessage)

	// Hello asks the node at an address who it is. It blocks until the answer,
	// the end of ctx or Close. It needs no known peer, and neither side checks
	// the other: a node that would be refused still answers.
	Hello(ctx context.Context, address string) (*raftv1.NodeHello, error)

	// ResetConnections closes all connections in both directions; they are made
	// anew with fresh hellos. Used when the node's own hello changed (it was
	// founded). It returns at once: a Receive that is running then still ends,
	// and no other follows on the old connections.
	ResetConnections()

	// Close closes all connections and waits for the transport's goroutines, so
	// it must not be called from a Handler method. Nothing is delivered after it
	// returned. It may be called again.
	Close() error
}

// Handler is the node as its transport sees it. Methods are called from the
// transport's goroutines, many at a time, and must not block for long. They may
// call the transport, except Close.
type Handler interface {
	// Hello returns who this node is, now, with ProtocolVersion and Node set.
	// The result is the transport's; it is taken anew for each connection.
	Hello() *raftv1.NodeHello

	// CheckHello decides whether a peer may exchange raft messages with this
	// node. The error is told to the peer and names what differs; it wraps
	// ErrNotReady where trying again soon will help. The transport has compared
	// the protocol version and the name it dialled already.
	CheckHello(peer *raftv1.NodeHello) error

	// Receive takes messages from a peer whose hello was accepted, in the
	// order they were sent on one lane. The slice is the transport's again
	// when Receive returns; the messages are the handler's.
	Receive(from string, messages []GroupMessage)

	// Unreachable tells that messages to a node were dropped.
	Unreachable(node string)
}

// RemovalListener is a Handler that wants to hear that a peer refused this node
// with ErrRemoved.
type RemovalListener interface {
	// Removed tells which of this node's replicas the node by says were removed.
	// It is called like the methods of Handler, and repeated.
	Removed(by string, replicas []*raftv1.ReplicaId)
}

// LaneOf returns the lane a message travels on: entries on the append lane,
// everything else (votes, heartbeats, responses) on the urgent one, so that
// bulk never delays an election or an acknowledgement.
func LaneOf(m *raftpb.Message) raftv1.Lane {
	if m.GetType() == raftpb.MsgApp && len(m.GetEntries()) > 0 {
		return raftv1.Lane_LANE_APPEND
	}
	return raftv1.Lane_LANE_URGENT
}

package transport

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// laneCounts counts one direction of a lane.
type laneCounts struct {
	messages, batches, bytes atomic.Uint64
}

func (c *laneCounts) add(messages, bytes int) {
	c.messages.Add(uint64(messages))
	c.batches.Add(1)
	c.bytes.Add(uint64(bytes))
}

// Metrics are figures of a GRPC transport at one moment, counted since it was
// made.
type Metrics struct {
	// Lanes are sorted by node, the urgent lane first. Nodes that only sent to
	// this one are there too.
	Lanes []LaneMetrics
	// DroppedUnknown are messages for nodes without an address, since they were
	// first sent to.
	DroppedUnknown uint64
}

// LaneMetrics are the figures of one lane of one peer.
type LaneMetrics struct {
	Node string
	Lane raftv1.Lane

	// Connected: the connection this node sends on is up and both sides
	// accepted each other.
	Connected bool
	// Connects is how often it was made; all but the first are reconnects.
	Connects uint64
	// Queued are the messages waiting to be sent.
	Queued int
	// SentMessages, SentBatches and SentBytes went to gRPC; they may be lost
	// still. Bytes are encoded batches, without gRPC's framing.
	SentMessages, SentBatches, SentBytes uint64
	// Dropped messages found the queue full or no connection, waited on one that
	// was lost, or could not be sent at all.
	Dropped uint64

	// Accepted: the peer has a stream open on which this node receives.
	Accepted bool
	// ReceivedMessages, ReceivedBatches and ReceivedBytes were handed to the
	// handler.
	ReceivedMessages, ReceivedBatches, ReceivedBytes uint64
}

// Metrics returns the figures of now. It does not block on the network.
func (t *GRPC) Metrics() Metrics {
	t.mu.Lock()
	defer t.mu.Unlock()
	var m Metrics
	for _, n := range t.unknown {
		m.DroppedUnknown += n
	}
	lanes := make(map[inboundKey]LaneMetrics)
	for node, p := range *t.peers.Load() {
		for _, l := range p.lanes {
			lm := LaneMetrics{
				Node: node, Lane: l.id, Connects: l.connects.Load(),
				SentMessages: l.sent.messages.Load(), SentBatches: l.sent.batches.Load(), SentBytes: l.sent.bytes.Load(),
			}
			lm.Connected, lm.Queued, lm.Dropped = l.queue.state()
			lanes[inboundKey{node, l.id}] = lm
		}
	}
	for key, c := range t.received {
		lm := lanes[key]
		lm.Node, lm.Lane = key.node, key.lane
		lm.ReceivedMessages, lm.ReceivedBatches, lm.ReceivedBytes = c.messages.Load(), c.batches.Load(), c.bytes.Load()
		lanes[key] = lm
	}
	for key, in := range t.accepted {
		lm := lanes[key]
		lm.Node, lm.Lane = key.node, key.lane // forgotten by RemovePeer, still delivering its last
		lm.Accepted = !in.isHalted()
		lanes[key] = lm
	}
	for _, lm := range lanes {
		m.Lanes = append(m.Lanes, lm)
	}
	slices.SortFunc(m.Lanes, func(a, b LaneMetrics) int {
		if c := strings.Compare(a.Node, b.Node); c != 0 {
			return c
		}
		return int(a.Lane) - int(b.Lane)
	})
	return m
}

// String returns the figures as a table for people.
func (m Metrics) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%-16s %-7s %-4s %-4s %8s %7s %10s %10s %12s %8s %10s %10s %12s\n",
		"peer", "lane", "out", "in", "connects", "queued", "sent", "batches", "bytes", "dropped", "received", "batches", "bytes")
	for _, l := range m.Lanes {
		fmt.Fprintf(&s, "%-16s %-7s %-4s %-4s %8d %7d %10d %10d %12d %8d %10d %10d %12d\n",
			l.Node, laneName(l.Lane), upDown(l.Connected), upDown(l.Accepted), l.Connects, l.Queued,
			l.SentMessages, l.SentBatches, l.SentBytes, l.Dropped, l.ReceivedMessages, l.ReceivedBatches, l.ReceivedBytes)
	}
	if m.DroppedUnknown > 0 {
		fmt.Fprintf(&s, "%d messages dropped for nodes without an address\n", m.DroppedUnknown)
	}
	return s.String()
}

func laneName(l raftv1.Lane) string {
	if l == raftv1.Lane_LANE_APPEND {
		return "append"
	}
	return "urgent"
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

package raftnode

import (
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Control messages about transfers travel on the raft transport, as the context
// of a MsgSnap. A real MsgSnap never leaves a node: raft's own is turned into an
// Offer, and a receiver steps one of its making once an image is staged. So the
// type is free, and control messages get the addressing, the urgent lane and the
// faults of every other raft message. They are repeated until answered, and none
// of them is ever stepped: an offer changes no term and touches no election
// timer, else nobody would elect while a follower streams under a dead leader.

// maxControlBytes bounds a control message.
const maxControlBytes = 64 << 10

// sendControl sends a control message to a replica of the group.
func (g *Group) sendControl(to uint64, c *snapshotv1.Control) {
	data, err := proto.Marshal(c)
	if err != nil {
		g.log.Error("a control message does not encode", "error", err)
		return
	}
	g.send(&raftpb.Message{
		Type: raftpb.MsgSnap.Enum(), To: new(to), From: new(g.raftID),
		Term: new(g.raw.BasicStatus().HardState.GetTerm()), Context: data,
	})
}

// receiveControl takes a control message from a peer, on the step goroutine.
func (g *Group) receiveControl(m *raftpb.Message) {
	c, err := decodeControl(m.GetContext())
	if err != nil {
		g.metrics.stepErrors.Add(1)
		g.log.Warn("a control message from a peer does not decode", "from", g.nodeOf(m.GetFrom()), "error", err)
		return
	}
	switch v := c.GetMessage().(type) {
	case *snapshotv1.Control_Offer:
		g.receiving.offered(m.GetFrom(), v.Offer)
	case *snapshotv1.Control_OfferReply:
		g.offers.replied(m.GetFrom(), v.OfferReply)
	case *snapshotv1.Control_Status:
		g.offers.reported(m.GetFrom(), v.Status)
	case *snapshotv1.Control_NeedImage:
		g.offers.needed(m.GetFrom(), v.NeedImage)
	case *snapshotv1.Control_DigestReport:
		g.digestReported(m.GetFrom(), v.DigestReport)
	case *snapshotv1.Control_DigestVerdict:
		if m.GetTerm() == g.raw.BasicStatus().HardState.GetTerm() && m.GetFrom() == g.raw.BasicStatus().Lead {
			g.digestJudged(v.DigestVerdict)
		}
	}
}

func decodeControl(data []byte) (*snapshotv1.Control, error) {
	if len(data) == 0 || len(data) > maxControlBytes {
		return nil, fmt.Errorf("%d bytes, must be 1 to %d", len(data), maxControlBytes)
	}
	c := &snapshotv1.Control{}
	if err := proto.Unmarshal(data, c); err != nil {
		return nil, err
	}
	if c.GetMessage() == nil {
		return nil, fmt.Errorf("kind unknown to this version")
	}
	return c, nil
}

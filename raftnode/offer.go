package raftnode

import (
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

const (
	// controlRepeat is the pause between two sendings of the same offer or
	// status.
	controlRepeat = time.Second
	// leaseTime is how long a transfer without a status counts as running.
	leaseTime = 10 * time.Second
	// declinedRetry is the pause after a refusal that names none.
	declinedRetry = 5 * time.Second
)

// offers are the transfers that this leader has offered, by the replica that
// needs them. They belong to the step goroutine. A leader keeps no other state
// of a transfer than this: the receiver drives it, and tells a new leader where
// it is.
type offers struct {
	g         *Group
	byReplica map[uint64]*offer
}

// offer is what a leader knows of one transfer.
type offer struct {
	transfer []byte
	// pin is the index whose successors the replica will want from the log; 0
	// until the image is known.
	pin    uint64
	min    uint64 // the replica asked for an image, at least at this index
	ticks  int    // since something was sent
	silent int    // ticks since the replica answered
	status *snapshotv1.Status
	// retry counts the ticks of a back-off down; the replica stays in raft's
	// snapshot state meanwhile, which is what keeps raft from asking again.
	retry int
}

func newOffers(g *Group) *offers { return &offers{g: g, byReplica: make(map[uint64]*offer)} }

// start offers an image to a replica that the log no longer reaches: raft wants
// to send it a snapshot. Repeated while one is under way, it does nothing.
func (o *offers) start(replica uint64) {
	if o.byReplica[replica] != nil {
		return
	}
	f := &offer{transfer: snapshot.NewID()}
	o.byReplica[replica] = f
	o.send(replica, f)
	o.g.log.Info("a replica is behind the log; offering an image", "replica", o.g.nodeOf(replica), "log_first", o.g.logs.FirstIndex())
}

// needed offers an image to a replica that asks for one: its log may be level,
// so that raft knows nothing of it.
func (o *offers) needed(from uint64, need *snapshotv1.NeedImage) {
	if need.GetReplica() != from || o.byReplica[from] != nil || o.g.soft.Load().role != RoleLeader || o.g.nodeOf(from) == "" {
		return
	}
	f := &offer{transfer: snapshot.NewID(), min: need.GetMinIndex()}
	o.byReplica[from] = f
	o.send(from, f)
	o.g.log.Warn("a replica asks for an image", "replica", o.g.nodeOf(from), "reason", need.GetReason())
}

// send sends the offer.
func (o *offers) send(replica uint64, f *offer) {
	g := o.g
	f.ticks = 0
	g.sendControl(replica, &snapshotv1.Control{Message: &snapshotv1.Control_Offer{Offer: &snapshotv1.Offer{
		Transfer: f.transfer, ClusterId: g.members.Load().GetClusterId(), HistoryEpoch: g.members.Load().GetHistoryEpoch(),
		Group: g.id, Leader: g.raftID, LeaderTerm: g.raw.BasicStatus().HardState.GetTerm(),
		MinIndex: max(o.minIndex(replica), f.min), LogFirst: g.logs.FirstIndex(),
		Sources: o.sources(replica), Replica: replica, Class: o.class(replica),
	}}})
}

// minIndex is the lowest image that helps: an older one would leave a gap to the
// log, or be from before the replica belonged to the group, and raft would
// ignore it for ever.
func (o *offers) minIndex(replica uint64) uint64 {
	index := o.g.logs.FirstIndex() - 1
	for _, r := range o.g.members.Load().GetReplicas() {
		if r.GetRaftId() == replica {
			index = max(index, r.GetAddedIndex())
		}
	}
	return index
}

// class tells how much hangs on a replica: without a voter that is missing, the
// loss of one more may be the loss of the quorum.
func (o *offers) class(replica uint64) snapshotv1.Class {
	voters := o.g.members.Load().GetVoters()
	answering := 0
	for _, voter := range voters {
		if voter != replica && o.g.answers(voter) {
			answering++
		}
	}
	if slices.Contains(voters, replica) && answering <= len(voters)/2+1 {
		return snapshotv1.Class_CLASS_MISSING_VOTER
	}
	return snapshotv1.Class_CLASS_NORMAL
}

// sources lists who can serve the image: fresh followers first, since a
// follower's image costs the leader nothing and survives its death.
func (o *offers) sources(replica uint64) []*snapshotv1.OfferSource {
	g := o.g
	var list []*snapshotv1.OfferSource
	add := func(id, applied uint64) {
		for _, r := range g.members.Load().GetReplicas() {
			if r.GetRaftId() == id {
				list = append(list, &snapshotv1.OfferSource{Node: r.GetNode(), Address: r.GetAddress(), Applied: applied})
			}
		}
	}
	first := g.logs.FirstIndex()
	g.raw.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id != g.raftID && id != replica && g.answers(id) && o.byReplica[id] == nil && pr.State == tracker.StateReplicate && pr.Match >= first {
			add(id, pr.Match)
		}
	})
	add(g.raftID, g.Applied())
	return list
}

// replied takes the answer to an offer.
func (o *offers) replied(from uint64, reply *snapshotv1.OfferReply) {
	f := o.byReplica[from]
	if f == nil || string(f.transfer) != string(reply.GetTransfer()) {
		return
	}
	f.silent = 0
	switch reply.GetAnswer() {
	case snapshotv1.OfferReply_ANSWER_DECLINE:
		if reply.GetCode() == snapshotv1.Code_CODE_NOT_NEEDED {
			o.finish(from, f, reply.GetIndex())
			return
		}
		wait := time.Duration(reply.GetRetryAfterMs()) * time.Millisecond
		if wait <= 0 {
			wait = declinedRetry
		}
		f.retry = o.ticksOf(wait)
		o.g.log.Info("a replica declined the image for now", "replica", o.g.nodeOf(from), "code", reply.GetCode(), "retry", wait)
	case snapshotv1.OfferReply_ANSWER_HAVE:
		f.pin = reply.GetIndex()
	}
}

// reported takes the status of a transfer.
func (o *offers) reported(from uint64, status *snapshotv1.Status) {
	f := o.byReplica[from]
	if f == nil {
		if status.GetOutcome() != snapshotv1.Outcome_OUTCOME_RUNNING || o.g.soft.Load().role != RoleLeader {
			return
		}
		// A transfer that another leader offered; it goes on under this one.
		f = &offer{transfer: status.GetTransfer()}
		o.byReplica[from] = f
	}
	if string(f.transfer) != string(status.GetTransfer()) {
		return
	}
	f.silent, f.status = 0, status
	if status.GetIndex() > 0 {
		f.pin = status.GetIndex()
	}
	switch status.GetOutcome() {
	case snapshotv1.Outcome_OUTCOME_INSTALLED, snapshotv1.Outcome_OUTCOME_NOT_NEEDED:
		o.g.log.Info("a replica has its image", "replica", o.g.nodeOf(from), "outcome", status.GetOutcome(), "index", status.GetIndex())
		o.finish(from, f, status.GetCommitted())
	case snapshotv1.Outcome_OUTCOME_FAILED:
		o.g.log.Warn("a transfer ended without an image", "replica", o.g.nodeOf(from), "reason", status.GetMessage())
		f.retry = o.ticksOf(declinedRetry)
	}
}

// finish lets replication go on. The replica vouches that everything up to
// applied is durable there; stepping that as an append response goes on even if
// the ordinary response to the snapshot was lost.
func (o *offers) finish(replica uint64, _ *offer, applied uint64) {
	g := o.g
	delete(o.byReplica, replica)
	g.raw.ReportSnapshot(replica, raft.SnapshotFinish)
	if applied > 0 {
		_ = g.raw.Step(&raftpb.Message{
			Type: raftpb.MsgAppResp.Enum(), From: new(replica), To: new(g.raftID),
			Term: new(g.raw.BasicStatus().HardState.GetTerm()), Index: new(applied),
		})
	}
}

// tick repeats offers and gives up those that nobody answers.
func (o *offers) tick(ticks int) {
	if len(o.byReplica) == 0 {
		return
	}
	if o.g.soft.Load().role != RoleLeader {
		clear(o.byReplica) // the next leader offers anew; the receiver goes on
		return
	}
	for replica, f := range o.byReplica {
		f.ticks += ticks
		f.silent += ticks
		switch {
		case o.g.nodeOf(replica) == "":
			delete(o.byReplica, replica) // removed from the group
		case f.retry > 0:
			if f.retry -= ticks; f.retry <= 0 {
				o.fail(replica)
			}
		case f.silent > o.ticksOf(leaseTime):
			o.fail(replica)
		case f.ticks > o.ticksOf(controlRepeat) && (f.status == nil || f.silent > o.ticksOf(2*controlRepeat)):
			// Silence after a status: the receiver may have started again, and
			// goes on with what it has staged when it is offered again.
			o.send(replica, f)
		}
	}
}

// fail tells raft that the snapshot did not arrive; raft probes, and asks for
// one again if it is still needed.
func (o *offers) fail(replica uint64) {
	delete(o.byReplica, replica)
	o.g.raw.ReportSnapshot(replica, raft.SnapshotFailure)
}

// pin returns the index from which on the log must be kept for a replica that is
// getting an image.
func (o *offers) pin(replica uint64) (uint64, bool) {
	f := o.byReplica[replica]
	if f == nil {
		return 0, false
	}
	return f.pin, true
}

func (o *offers) ticksOf(d time.Duration) int {
	return max(1, int(d/o.g.node.opts.TickInterval))
}

package raftnode

import (
	"context"
	"errors"

	"go.etcd.io/raft/v3"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// receiving is the image that this replica is getting, if any. It belongs to the
// step goroutine; the transfer itself runs on a goroutine of its own.
type receiving struct {
	g       *Group
	current *incoming
	// catching is the transfer whose image is installed while the log follows.
	catching *snapshot.Transfer
	recovery recovery
}

// incoming is one transfer, from the first offer to the last word on it. It goes
// on under whatever leader there is: leaders only offer, and are told.
type incoming struct {
	// transfer is the id under which the leader of the moment knows it.
	transfer []byte
	run      *snapshot.Transfer
	// installing: READY and on its way into the group.
	installing bool
	ticks      int
	cancel     context.CancelFunc
	machine    *machineRef // that stages it
}

func newReceiving(g *Group) *receiving { return &receiving{g: g} }

// again returns what goes on when the replica is opened anew: all of it, since a
// transfer is between the receiver and the sources.
func (r *receiving) again(g *Group) *receiving {
	if r == nil {
		return newReceiving(g)
	}
	return r
}

// abandon ends the transfer: it may be a delta to what turned out to be unsound.
func (r *receiving) abandon() {
	if in := r.current; in != nil && !in.installing {
		in.cancel()
		r.end(in, snapshotv1.Outcome_OUTCOME_FAILED, errAbandoned)
	}
}

var errAbandoned = errors.New("raftnode: abandoned, the state it was for is unsound")

// offered takes an offer. The same one comes again until it is answered, and
// other leaders offer too. It never changes the term.
func (r *receiving) offered(from uint64, offer *snapshotv1.Offer) {
	g := r.g
	members := g.members.Load()
	switch {
	case offer.GetReplica() != g.raftID || offer.GetGroup() != g.id:
		return
	case offer.GetLeaderTerm() < g.raw.BasicStatus().HardState.GetTerm():
		return // an old leader's; the new one offers itself
	case len(members.GetReplicas()) > 0 && (string(offer.GetClusterId()) != string(members.GetClusterId()) ||
		offer.GetHistoryEpoch() != members.GetHistoryEpoch()):
		r.decline(from, offer, snapshotv1.Code_CODE_REFUSED, 0)
		return
	}
	if g.reopening {
		return // it comes again
	}
	stager, able := g.sm().(snapshot.Stager)
	if !able || g.inboxes == nil {
		r.decline(from, offer, snapshotv1.Code_CODE_REFUSED, 0)
		return
	}
	if applied := g.Applied(); applied >= offer.GetMinIndex() && applied > 0 && !g.quarantined() {
		r.decline(from, offer, snapshotv1.Code_CODE_NOT_NEEDED, applied)
		return
	}
	answer := &snapshotv1.OfferReply{Answer: snapshotv1.OfferReply_ANSWER_ACCEPT}
	if in := r.current; in != nil {
		in.transfer = offer.GetTransfer()
		in.run.SetSources(sourceRefs(offer, g.node.opts.Node))
		g.transfers.aim(in.run, targetOf(offer))
		if p := in.run.Progress(); p.Index > 0 {
			answer = &snapshotv1.OfferReply{Answer: snapshotv1.OfferReply_ANSWER_HAVE, Index: p.Index, Term: p.Term}
		}
	} else if err := r.start(offer, stager); err != nil {
		g.log.Error("an offered image cannot be fetched", "error", err)
		r.decline(from, offer, snapshotv1.Code_CODE_INTERNAL, 0)
		return
	}
	r.reply(from, offer, answer)
}

func (r *receiving) reply(to uint64, offer *snapshotv1.Offer, reply *snapshotv1.OfferReply) {
	reply.Transfer, reply.Group, reply.Replica = offer.GetTransfer(), r.g.id, r.g.raftID
	r.g.sendControl(to, &snapshotv1.Control{Message: &snapshotv1.Control_OfferReply{OfferReply: reply}})
}

func (r *receiving) decline(to uint64, offer *snapshotv1.Offer, code snapshotv1.Code, applied uint64) {
	r.reply(to, offer, &snapshotv1.OfferReply{Answer: snapshotv1.OfferReply_ANSWER_DECLINE, Code: code, Index: applied})
}

// start begins a transfer.
func (r *receiving) start(offer *snapshotv1.Offer, stager snapshot.Stager) error {
	g := r.g
	run, err := g.newTransfer(offer, stager)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(g.ctx)
	in := &incoming{transfer: offer.GetTransfer(), run: run, cancel: cancel, machine: g.machine.Load()}
	r.current = in
	r.recovery.begin(g.node.age())
	r.endCatchUp() // the log has gone again
	g.transfers.begin(run, targetOf(offer))
	g.log.Info("behind the log; getting an image", "applied", g.Applied(), "min_index", offer.GetMinIndex())
	g.goroutine.Go(func() {
		defer cancel()
		staged, err := g.fetchImage(ctx, in, stager)
		if g.mailbox.putCall(func() { r.fetched(in, staged, err) }) != nil && err == nil {
			_ = staged.inbox.Close() // the group stopped; the image stays staged
		}
	})
	return nil
}

// fetched takes the outcome of the transfer: a READY image, or why there is none.
func (r *receiving) fetched(in *incoming, staged *installation, err error) {
	if r.current != in {
		if err == nil {
			r.g.goroutine.Go(func() { _ = staged.inbox.Close() })
		}
		return
	}
	if err != nil {
		r.end(in, snapshotv1.Outcome_OUTCOME_FAILED, err)
		return
	}
	in.installing = true
	r.gotImage(staged.manifest)
	in.run.Advance(snapshotv1.Phase_PHASE_INSTALL, "")
	staged.machine = in.machine
	staged.done = func(outcome snapshotv1.Outcome, err error) { r.end(in, outcome, err) }
	r.g.install(staged)
}

// end tells the leader the outcome. Should that be lost, its next offer is
// answered with NOT_NEEDED, which says the same.
func (r *receiving) end(in *incoming, outcome snapshotv1.Outcome, err error) {
	if r.current != in {
		return
	}
	status := in.status(r.g)
	status.Outcome, status.Phase = outcome, snapshotv1.Phase_PHASE_DONE
	if err != nil {
		status.Message = err.Error()
		r.g.log.Warn("no image could be got; the leader will offer again", "error", err)
	}
	if outcome != snapshotv1.Outcome_OUTCOME_FAILED {
		status.Committed = r.g.Applied()
	}
	r.current = nil
	r.tell(status)
	if outcome == snapshotv1.Outcome_OUTCOME_INSTALLED {
		r.catchUp(in.run)
		return
	}
	if outcome == snapshotv1.Outcome_OUTCOME_NOT_NEEDED {
		r.recovered() // by the log
	}
	r.ended(in.run, outcome, err)
}

// tick reports to the leader.
func (r *receiving) tick(ticks int) {
	r.checkCatchUp()
	in := r.current
	if in == nil {
		return
	}
	if in.ticks += ticks; in.ticks >= max(1, int(controlRepeat/r.g.node.opts.TickInterval)) {
		in.ticks = 0
		r.tell(in.status(r.g))
	}
}

func (r *receiving) tell(status *snapshotv1.Status) {
	if lead := r.g.raw.BasicStatus().Lead; lead != raft.None && lead != r.g.raftID {
		r.g.sendControl(lead, &snapshotv1.Control{Message: &snapshotv1.Control_Status{Status: status}})
	}
}

// status is what the leader hears.
func (in *incoming) status(g *Group) *snapshotv1.Status {
	p := in.run.Progress()
	s := &snapshotv1.Status{
		Transfer: in.transfer, Attempt: p.Attempt, Group: g.id, Replica: g.raftID, Phase: p.Phase,
		Source: p.Source, Image: p.Image, Index: p.Index, Term: p.Term, BytesDone: p.BytesDone, BytesTotal: p.BytesTotal,
		Outcome: snapshotv1.Outcome_OUTCOME_RUNNING, TermNow: g.raw.BasicStatus().HardState.GetTerm(),
	}
	if in.installing {
		s.Phase = snapshotv1.Phase_PHASE_INSTALL
	}
	if p.Err != nil {
		s.Message = p.Err.Error()
	}
	return s
}

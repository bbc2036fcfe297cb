package raftnode

import (
	"context"
	"errors"
	"fmt"

	"github.com/streamraft/streamraft/internal/durable"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// openedMachine is a state machine as it was opened.
type openedMachine struct {
	machine StateMachine
	applied Applied
	// unsound is why its state cannot be used; nil if it can.
	unsound error
}

func (n *Node) openGroup(id, raftID uint64) (g *Group, err error) {
	g = &Group{
		node: n, id: id, raftID: raftID, log: n.log.With("group", id), logs: n.logStore.Group(id),
		mailbox: newMailbox(n.opts.MaxInboxBytes), origin: randomRaftID(),
		reads: newReadIndexBatcher(), stopped: make(chan struct{}), silent: make(map[uint64]int),
	}
	opening := g // a return of an error makes g nil
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.soft.Store(&softState{role: RoleFollower})
	if err := durable.MkdirAll(n.opts.FS, n.dir.state(id)); err != nil {
		return nil, fmt.Errorf("raftnode: group %d: make the state directory: %w", id, err)
	}
	if err := g.openImages(); err != nil {
		return nil, err
	}
	g.applier = newApplier(g)
	opened, err := g.openMachine()
	if err != nil {
		return nil, err
	}
	g.served.Store(g.machine.Load())
	defer func() {
		if err != nil {
			err = errors.Join(err, opening.closeMachine())
		}
	}()
	applied, members, err := g.begin(opened)
	if err != nil {
		return nil, err
	}
	g.applier.reset(0, applied, members)
	g.sweepInboxes()
	return g, nil
}

// openMachine makes the state machine and opens it. A state that is unsound is
// no error where another one can be fetched.
func (g *Group) openMachine() (*openedMachine, error) {
	machine := g.node.opts.NewStateMachine(g.id)
	// A state machine that moves staged files out of the inbox must not sweep
	// what is READY and not installed yet.
	if k, ok := machine.(interface{ KeepStaged(func() [][]byte) }); ok && g.inboxes != nil {
		k.KeepStaged(g.stagedImages)
	}
	ref := &machineRef{machine}
	if r, ok := machine.(interface{ ReportDamage(func(error)) }); ok && g.inboxes != nil {
		r.ReportDamage(func(err error) {
			_ = g.mailbox.putCall(func() { // fails only once the group has stopped
				if g.machine.Load() == ref {
					g.enterQuarantine(err)
				}
			})
		})
	}
	if r, ok := machine.(interface{ ReportDigests(func(uint64, []byte)) }); ok {
		r.ReportDigests(func(index uint64, digest []byte) {
			_ = g.mailbox.putCall(func() {
				if g.machine.Load() == ref && !g.quarantined() {
					g.digestTaken(index, digest)
				}
			})
		})
	}
	reason, err := g.quarantineReason()
	if err != nil {
		return nil, err
	}
	applied, err := machine.Open(g.node.dir.state(g.id))
	switch {
	case err == nil:
	case errors.Is(err, ErrUnsound) && g.canFetch(machine):
		reason = err
	default:
		return nil, fmt.Errorf("raftnode: group %d: open the state machine: %w", g.id, err)
	}
	g.machine.Store(ref)
	g.machineOpen.Store(true)
	return &openedMachine{machine: machine, applied: applied, unsound: reason}, nil
}

// closeMachine closes the state machine unless that is done.
func (g *Group) closeMachine() error {
	if !g.machineOpen.Swap(false) {
		return nil
	}
	if err := g.sm().Close(); err != nil {
		return fmt.Errorf("raftnode: group %d: close the state machine: %w", g.id, err)
	}
	return nil
}

// canFetch tells that the state of machine can be replaced by an image.
func (g *Group) canFetch(machine StateMachine) bool {
	_, able := machine.(snapshot.Stager)
	return able && g.inboxes != nil
}

// begin makes raft from the log and an opened state machine, and tells from
// where on entries are to be applied. It changes nothing on disk but to finish an
// installation. Where the state is unsound the replica begins quarantined.
func (g *Group) begin(o *openedMachine) (applied Applied, members *raftv1.Membership, err error) {
	n := g.node
	fresh := n.emptyMembership(g.id)
	applied, members = o.applied, fresh
	if o.unsound == nil && applied.Index > 0 {
		if members, err = DecodeMembership(applied.Membership); err != nil {
			o.unsound = fmt.Errorf("%w: %w", ErrUnsound, err)
		}
	}
	if o.unsound == nil {
		err := n.checkState(g, applied, members, fresh.GetClusterId())
		switch {
		case errors.Is(err, ErrUnsound) && g.canFetch(o.machine):
			o.unsound = err
		case err != nil:
			return Applied{}, nil, err
		}
	}
	if o.unsound != nil {
		// The only other copy of the configuration is in the unsound state: raft
		// runs without one, so it never campaigns, and answers whoever asks.
		marker := g.logs.Marker()
		applied, members = Applied{Index: marker.Index, Term: marker.Term}, fresh
		g.log.Error("quarantined: the replica votes and keeps its log, and serves nothing until it got another state from the leader", "reason", o.unsound)
		g.unsound.Store(&o.unsound)
	} else {
		g.unsound.Store(nil)
	}
	g.members.Store(members)
	g.offers, g.receiving = newOffers(g), g.receiving.again(g)
	return applied, members, g.newRaft(applied, members)
}

// emptyMembership is what a replica knows of its group before its state tells
// more. A replica may be opened anew while others change the identity.
func (n *Node) emptyMembership(group uint64) *raftv1.Membership {
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	return &raftv1.Membership{ClusterId: n.identity.node.GetClusterId(), HistoryEpoch: n.identity.node.GetHistoryEpoch(), Group: group}
}

// logHas tells whether the log has the entry that was applied last, or cannot
// tell.
func (g *Group) logHas(applied Applied) bool {
	term, err := g.logs.Term(applied.Index)
	return err != nil || applied.Index == 0 || term == applied.Term
}

// checkState refuses a state that does not go with the log: either of them came
// from somewhere else or lost something. marker <= applied <= last with equal
// terms is what every crash leaves.
func (n *Node) checkState(g *Group, applied Applied, members *raftv1.Membership, cluster []byte) error {
	if string(members.GetClusterId()) != string(cluster) || members.GetGroup() != g.id {
		return fmt.Errorf("%w: group %d: the state in %s is of cluster %x, group %d, but the node belongs to cluster %x",
			ErrRefused, g.id, n.dir.state(g.id), members.GetClusterId(), members.GetGroup(), cluster)
	}
	marker, last := g.logs.Marker(), g.logs.LastIndex()
	where := fmt.Sprintf("group %d: state in %s at index %d term %d, log in %s from %d to %d",
		g.id, n.dir.state(g.id), applied.Index, applied.Term, n.dir.log(), marker.Index, last)
	if applied.Index < marker.Index {
		return fmt.Errorf("%w: %w: %s: the state is older than the log begins; it lost data, or is an old copy. Bring the right state back, or replace the node", ErrDataLoss, ErrUnsound, where)
	}
	if applied.Index > last || !g.logHas(applied) {
		if done, err := g.finishInstall(applied); done || err != nil {
			return err
		}
	}
	if applied.Index > last {
		return fmt.Errorf("%w: %s: the log ends before the state; it lost acknowledged entries. Bring the right log back, or replace the node", ErrDataLoss, where)
	}
	if applied.Index == 0 {
		return nil
	}
	term, err := g.logs.Term(applied.Index)
	if err != nil {
		return fmt.Errorf("raftnode: %s: %w", where, err)
	}
	if term != applied.Term {
		return fmt.Errorf("%w: %s: the log has term %d there; state and log are of different nodes or times. Bring the right ones back, or replace the node", ErrDataLoss, where, term)
	}
	return nil
}

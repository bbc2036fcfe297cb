package raftnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// An applier feeds committed entries to a group's state machine, on one
// goroutine beside the step goroutine.
type applier struct {
	group *Group
	wake  chan struct{}

	mu      sync.Mutex
	waiting []applyWork    // raft bounds what is in flight
	calls   []func() error // to run between two Applies
	// position is the applied record as others may see it.
	position atomic.Pointer[Applied]

	// The rest belongs to the apply goroutine.
	// generation of the state; work for another one is dropped. parked: the state
	// turned out to be unsound.
	generation int
	parked     bool
	applied    Applied
	membership *raftv1.Membership
	entries    []Entry
	open       []openEntry
}

// openEntry is a log entry of this replica's own proposals among the entries
// of one Apply: results[first:] are theirs.
type openEntry struct {
	entry *proposedEntry
	first int
}

// applyWork is a MsgStorageApply, for a generation of the state.
type applyWork struct {
	m          *raftpb.Message
	generation int
}

func newApplier(g *Group) *applier { return &applier{group: g, wake: make(chan struct{}, 1)} }

// reset begins with another state; on the apply goroutine, or before that runs.
func (a *applier) reset(generation int, applied Applied, membership *raftv1.Membership) {
	a.generation, a.parked = generation, false
	a.applied, a.membership = applied, membership
	clear(a.entries)
	a.entries = a.entries[:0]
	a.position.Store(&applied)
	if !a.group.quarantined() {
		a.serve(applied.Index)
		a.group.waiters.advance(applied.Index)
	}
}

// serve lets readers have the state once it is at index, unless they were told of
// a later one before it was opened.
func (a *applier) serve(index uint64) {
	g := a.group
	if m := g.machine.Load(); g.served.Load() != m && index >= g.Applied() {
		g.served.Store(m)
	}
}

// call runs f on the apply goroutine, between two Applies. An error of f fails
// the replica.
func (a *applier) call(f func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, f)
	a.wakeLocked()
}

func (a *applier) put(m *raftpb.Message, generation int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting = append(a.waiting, applyWork{m, generation})
	a.wakeLocked()
}

func (a *applier) wakeLocked() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// putInstall has the state machine switch to a staged image. The step goroutine
// has seen to it that nothing waits to be applied.
func (a *applier) putInstall(in *installation, m *raftpb.Message) {
	a.call(func() error {
		err := in.stager.Install(in.sink)
		if err != nil {
			err = fmt.Errorf("install the image at index %d: %w", in.manifest.GetIndex(), err)
			_ = a.group.mailbox.putCall(func() { a.group.installFailed(err) })
			return nil
		}
		members, err := DecodeMembership(in.manifest.GetMembership())
		if err != nil {
			return err
		}
		a.membership = members
		a.applied = Applied{
			Index: in.manifest.GetIndex(), Term: in.manifest.GetTerm(),
			Clock: in.manifest.GetClock(), Membership: in.manifest.GetMembership(),
		}
		applied := a.applied
		_ = a.group.mailbox.putCall(func() { a.group.switched(in, applied, m) })
		return nil
	})
}

// publish makes an installed position visible, once state and log have it.
func (a *applier) publish(applied Applied) {
	g := a.group
	a.position.Store(&applied)
	if members, err := DecodeMembership(applied.Membership); err == nil {
		g.setMembers(members)
	}
	a.serve(applied.Index)
	g.waiters.advance(applied.Index)
	// The entries that would tell what became of them are dropped.
	for _, e := range g.pending.takeAll() {
		g.finish(e, nil, fmt.Errorf("%w: the replica went on with an image of a later state", ErrUncertain))
	}
	_ = g.mailbox.putCall(g.publish) // fails only once the group has stopped
	g.node.opts.Listener.Applied(g.id, applied.Index)
}

// run applies until the group stops. A state machine that panics, or ends the
// goroutine with runtime.Goexit (as a storage engine does that must not go on
// after an error), has failed: its state is not trusted any more.
func (a *applier) run() {
	ended := false
	defer func() {
		if p := recover(); p != nil {
			a.group.fail(fmt.Errorf("the state machine panicked: %v", p))
		} else if !ended {
			a.group.fail(errors.New("the state machine ended its goroutine"))
		}
		for _, o := range a.open {
			a.group.finish(o.entry, nil, fmt.Errorf("%w: %v", ErrUncertain, a.group.closedError()))
		}
	}()
	for {
		select {
		case <-a.group.stopped:
			ended = true
			return
		case <-a.wake:
		}
		a.mu.Lock()
		waiting, calls := a.waiting, a.calls
		a.waiting, a.calls = nil, nil
		a.mu.Unlock()
		for _, call := range calls {
			if err := call(); err != nil {
				a.group.fail(err)
				ended = true
				return
			}
		}
		for _, w := range waiting {
			if w.generation != a.generation || a.parked {
				continue
			}
			switch err := a.apply(w.m); {
			case err == nil:
			case errors.Is(err, ErrUnsound) && a.group.canFetch(a.group.sm()):
				a.park(err)
			default:
				if !errors.Is(err, errStopped) {
					a.group.fail(err)
				}
				ended = true
				return
			}
		}
	}
}

// park ends applying to a state that turned out to be unsound.
func (a *applier) park(reason error) {
	a.parked = true
	for _, o := range a.open {
		a.group.finish(o.entry, nil, fmt.Errorf("%w: %v", ErrUncertain, reason))
	}
	clear(a.open)
	a.open = a.open[:0]
	a.group.Quarantine(reason)
}

// apply applies one MsgStorageApply and tells raft.
func (a *applier) apply(m *raftpb.Message) error {
	for _, e := range m.GetEntries() {
		if got, want := e.GetIndex(), a.nextIndex(); got != want {
			return fmt.Errorf("raft handed out index %d to apply, expected %d", got, want)
		}
		var err error
		if e.GetType() == raftpb.EntryNormal {
			err = a.unpack(e)
		} else {
			err = a.applyChange(e)
		}
		if err != nil {
			return fmt.Errorf("apply index %d: %w", e.GetIndex(), err)
		}
	}
	if err := a.flush(); err != nil {
		return err
	}
	a.group.mailbox.putLocal(m.GetResponses(), 0)
	return nil
}

// nextIndex is the index after those applied and collected.
func (a *applier) nextIndex() uint64 {
	if n := len(a.entries); n > 0 {
		return a.entries[n-1].Index + 1
	}
	return a.applied.Index + 1
}

// clock returns the clock of the entry before the next.
func (a *applier) clock() int64 {
	if n := len(a.entries); n > 0 {
		return a.entries[n-1].Clock
	}
	return a.applied.Clock
}

// unpack collects the commands of a normal entry.
func (a *applier) unpack(e *raftpb.Entry) error {
	index, term, data := e.GetIndex(), e.GetTerm(), e.GetData()
	if len(data) == 0 {
		a.entries = append(a.entries, Entry{Index: index, Term: term, Last: true, Clock: a.clock()})
		return nil
	}
	h, commands, err := decodePayloadHeader(data)
	if err != nil {
		return err
	}
	// The leaders' clocks may differ; the log's clock never goes back.
	clock := max(h.clock, a.clock())
	if h.origin == a.group.origin {
		if own := a.group.pending.take(h.sequence); own != nil {
			a.open = append(a.open, openEntry{own, len(a.entries)})
		}
	}
	for ordinal := range h.commands {
		var command []byte
		if command, commands, err = nextPayloadCommand(commands); err != nil {
			return err
		}
		a.entries = append(a.entries, Entry{
			Index: index, Term: term, Ordinal: uint16(ordinal), Last: ordinal == h.commands-1,
			Clock: clock, Data: command,
		})
	}
	if h.floor > a.group.floor.Load() {
		a.group.floor.Store(h.floor)
	}
	return nil
}

// applyChange applies a configuration change. The order is: everything before
// it is applied; raft switches; the state machine stores the membership after
// it with its index; only then does raft hear that the index is applied.
// Otherwise a crash could keep the old voters for ever, or a guard on the
// applied membership could pass under the old configuration.
func (a *applier) applyChange(e *raftpb.Entry) error {
	if err := a.flush(); err != nil {
		return err
	}
	change, err := decodeConfChange(e)
	if err != nil {
		return err
	}
	var conf *raftpb.ConfState
	g := a.group
	// Its proposer is answered last, when Status shows the new membership.
	own, done := g.ownChange(change), false
	defer func() { g.finishChange(own, e.GetIndex(), done) }()
	if err := g.call(context.Background(), func() { conf = g.raw.ApplyConfChange(change) }); err != nil {
		return errStopped
	}
	members, err := membershipAfter(a.membership, conf, change.GetContext(), e.GetIndex())
	if err != nil {
		return err
	}
	data, err := encodeMembership(members)
	if err != nil {
		return err
	}
	a.membership = members
	a.entries = append(a.entries, Entry{
		Index: e.GetIndex(), Term: e.GetTerm(), Last: true, Clock: a.clock(), Membership: data,
	})
	if err := a.flush(); err != nil {
		return err
	}
	g.setMembers(proto.CloneOf(members))
	_ = g.mailbox.putCall(g.publish) // fails only once the group has stopped
	g.node.opts.Listener.MembershipApplied(MembershipInfo{
		Group: g.id, Index: e.GetIndex(), Voters: members.GetVoters(), Learners: members.GetLearners(),
	})
	done = true
	return nil
}

// flush hands the collected entries to the state machine, publishes the applied
// index and answers the proposers.
func (a *applier) flush() error {
	if len(a.entries) == 0 {
		return nil
	}
	g := a.group
	results, err := g.sm().Apply(a.entries)
	if err == nil && len(results) != len(a.entries) {
		err = fmt.Errorf("the state machine returned %d results for %d entries", len(results), len(a.entries))
	}
	if err != nil {
		return fmt.Errorf("apply entries %d to %d: %w", a.entries[0].Index, a.entries[len(a.entries)-1].Index, err)
	}
	last := &a.entries[len(a.entries)-1]
	a.applied = last.Applied(a.applied.Membership)
	position := a.applied
	a.position.Store(&position)
	a.serve(last.Index)
	g.waiters.advance(last.Index)
	g.node.opts.Listener.Applied(g.id, last.Index)

	for _, o := range a.open {
		own := results[o.first : o.first+len(o.entry.proposals)]
		for i := range own {
			own[i].Revision = a.entries[o.first+i].Revision()
		}
		g.node.opts.Listener.Committed(g.id, g.node.age()-o.entry.taken)
		g.finish(o.entry, own, nil)
	}
	for _, lost := range g.pending.takeOverwritten(last.Index, last.Term) {
		g.finish(lost, nil, fmt.Errorf("%w: the entry of another leader took its place", ErrDropped))
	}
	g.metrics.applied.Add(uint64(len(a.entries)))
	clear(a.entries)
	clear(a.open)
	a.entries, a.open = a.entries[:0], a.open[:0]
	return nil
}

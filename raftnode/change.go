package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// Errors of ChangeMembership beside the outcome errors. Both mean that nothing
// was changed.
var (
	// ErrChangeRefused: the change breaks a rule, which the error tells. It is
	// refused again until the cause is gone.
	ErrChangeRefused = errors.New("raftnode: membership change refused")

	// ErrChangePending: another change of the group is under way, or the leader
	// is new and has applied nothing yet. Try again.
	ErrChangePending = errors.New("raftnode: another membership change is under way")
)

// maxPromotionLag is how many entries behind the commit index a learner may be
// when it becomes a voter: as many as a follower under load is behind for the
// time of a message, and few enough that it catches up within an election.
const maxPromotionLag = 512

// Change is a change of a group's membership. All parts of it happen at one
// index of the log; if there are several, by joint consensus (raft thesis,
// section 4.3), so that at no moment two majorities exist that do not overlap.
type Change struct {
	// AddLearners are new replicas. A raft id that was ever a member is refused.
	AddLearners []NewReplica
	// Promote are raft ids of learners that become voters. They must be caught
	// up and answer.
	Promote []uint64
	// Remove are raft ids of voters or learners that leave for good.
	Remove []uint64
}

// NewReplica is a replica that joins a group.
type NewReplica struct {
	// RaftID is that of the replica, from its node's hello.
	RaftID uint64
	// Node and Address are its node's name and host:port.
	Node    string
	Address string
	// Incarnation is the node's random id of its directory.
	Incarnation []byte
}

// ChangeMembership proposes a change and returns its index once it is applied
// here and, where it was a joint change, the group has left the joint
// configuration or ctx ended. It must be called on the leader. A leader that is
// to be removed hands its leadership over instead, as long as another voter
// answers: the error then is ErrNotLeader with the new leader, who can be asked.
//
// It refuses what would leave fewer voters that answer than a majority, and the
// promotion of a learner that is behind. It waits up to an election timeout for
// the members to answer before it refuses for that reason.
//
// Errors: ErrChangeRefused, ErrChangePending, ErrNotLeader, ErrDropped,
// ErrUncertain (when ctx ended after the proposal, among others), ErrNoSpace,
// ErrFailed, ErrClosed. After ErrUncertain look at Status, or call it again: a
// change that happened is refused.
func (g *Group) ChangeMembership(ctx context.Context, change Change) (index uint64, err error) {
	h := newHearing()
	defer g.endHearing(h)
	if err := g.judgeChange(ctx, &change, h); err != nil {
		return 0, err
	}
	if slices.Contains(change.Remove, g.raftID) {
		if done, err := g.leaveLeadership(ctx, &change); done {
			return 0, err
		}
	}
	result, err := g.proposeChange(ctx, &change, h)
	if err != nil {
		return 0, err
	}
	g.awaitSimpleConfiguration(ctx)
	_ = g.call(ctx, g.publish) // so that Status shows what the caller did
	return result.Revision >> 16, nil
}

// CheckChange tells whether ChangeMembership would refuse a change now; nil if
// it would propose it. Errors as there.
func (g *Group) CheckChange(ctx context.Context, change Change) error {
	h := newHearing()
	defer g.endHearing(h)
	return g.judgeChange(ctx, &change, h)
}

// judgeChange holds a change against the rules, and waits up to an election
// timeout for members to answer where that decides.
func (g *Group) judgeChange(ctx context.Context, change *Change, h *hearing) error {
	if g.node.noSpace() && g.soft.Load().role == RoleLeader {
		return fmt.Errorf("%w: node %s keeps %d bytes free; free some space and it goes on", ErrNoSpace, g.node.opts.Node, g.node.opts.DiskReserveBytes)
	}
	o := &g.node.opts
	poll := time.NewTicker(o.TickInterval)
	defer poll.Stop()
	for tries := o.ElectionTicks; ; tries-- {
		var verdict error
		if err := g.call(ctx, func() { verdict = g.checkChange(change, h) }); err != nil {
			return err
		}
		if !errors.Is(verdict, errSilent) || tries == 0 {
			return verdict
		}
		select {
		case <-poll.C:
		case <-g.stopped:
			return g.closedError()
		case <-ctx.Done():
			return errors.Join(verdict, context.Cause(ctx))
		}
	}
}

// proposeChange puts a change into the log and waits until it is applied.
//
// Raft turns a change that it does not take into an empty entry and says
// nothing; so the change carries the id of its proposal, as commands do, and
// counts as dropped when raft's log has it not.
func (g *Group) proposeChange(ctx context.Context, change *Change, h *hearing) (Result, error) {
	type outcome struct {
		result Result
		err    error
	}
	answer := make(chan outcome, 1)
	p := &proposal{done: func(r Result, err error) { answer <- outcome{r, err} }}
	err := g.call(ctx, func() { g.stepChange(p, change, h) })
	if err != nil && p.state.CompareAndSwap(proposalQueued, proposalCancelled) {
		return Result{}, fmt.Errorf("%w: %w", ErrDropped, err)
	}
	select {
	case o := <-answer:
		return o.result, o.err
	case <-ctx.Done():
		return Result{}, fmt.Errorf("%w: gave up waiting for the membership change: %w", ErrUncertain, context.Cause(ctx))
	}
}

// stepChange proposes a change, on the step goroutine.
func (g *Group) stepChange(p *proposal, change *Change, h *hearing) {
	if !p.state.CompareAndSwap(proposalQueued, proposalPacked) {
		return // nobody waits any more
	}
	// Once more: another change may have been applied since it passed.
	if err := g.checkChange(change, h); err != nil {
		p.done(Result{}, err)
		return
	}
	if !g.pending.admit(0, g.node.opts.MaxPendingBytes) {
		p.done(Result{}, fmt.Errorf("%w: group %d has %d bytes waiting", ErrOverloaded, g.id, g.node.opts.MaxPendingBytes))
		return
	}
	g.sequence++
	e := &proposedEntry{sequence: g.sequence, proposals: []*proposal{p}}
	g.pending.add(e)
	c, err := g.confChange(change, e.sequence)
	if err == nil {
		if err = g.raw.ProposeConfChange(c); err != nil {
			err = g.proposeError(err)
		} else if g.handleReady(); e.index == 0 { // locateChange did not find it among the new entries
			err = fmt.Errorf("%w: group %d; raft takes one at a time, and none from a leader that has applied nothing yet", ErrChangePending, g.id)
		}
	}
	if err != nil {
		g.pending.drop(e)
		g.finish(e, nil, err)
	}
}

// confChange returns raft's form of a change.
func (g *Group) confChange(change *Change, sequence uint64) (*raftpb.ConfChangeV2, error) {
	c := &raftpb.ConfChangeV2{}
	add := func(kind raftpb.ConfChangeType, id uint64) {
		c.Changes = append(c.Changes, &raftpb.ConfChangeSingle{Type: kind.Enum(), NodeId: new(id)})
	}
	members := &raftv1.MemberContext{Origin: g.origin, Sequence: sequence}
	for _, r := range change.AddLearners {
		add(raftpb.ConfChangeAddLearnerNode, r.RaftID)
		members.Replicas = append(members.Replicas, &raftv1.Replica{
			RaftId: r.RaftID, Node: r.Node, Address: r.Address, NodeIncarnation: r.Incarnation,
		})
	}
	for _, id := range change.Promote {
		add(raftpb.ConfChangeAddNode, id)
	}
	for _, id := range change.Remove {
		add(raftpb.ConfChangeRemoveNode, id)
	}
	var err error
	if c.Context, err = (proto.MarshalOptions{Deterministic: true}).Marshal(members); err != nil {
		return nil, fmt.Errorf("%w: encode the change: %w", ErrDropped, err)
	}
	return c, nil
}

// changeID returns the proposal that a change in the log came from.
func changeID(c *raftpb.ConfChangeV2) (origin, sequence uint64) {
	members := &raftv1.MemberContext{}
	if len(c.GetContext()) == 0 || proto.Unmarshal(c.GetContext(), members) != nil {
		return 0, 0
	}
	return members.GetOrigin(), members.GetSequence()
}

// locateChange notes the position of a change that raft appended, if it is ours.
func (g *Group) locateChange(e *raftpb.Entry) {
	c, err := decodeConfChange(e)
	if err != nil {
		return // the apply goroutine reports it
	}
	if origin, sequence := changeID(c); origin == g.origin {
		g.pending.located(sequence, e.GetIndex(), e.GetTerm())
	}
}

// ownChange returns the open proposal of a change that is being applied, or nil.
func (g *Group) ownChange(c *raftpb.ConfChangeV2) *proposedEntry {
	origin, sequence := changeID(c)
	if origin != g.origin {
		return nil
	}
	return g.pending.take(sequence)
}

// finishChange answers the proposer of a change, which may be nil, once it is
// applied or failed to be.
func (g *Group) finishChange(own *proposedEntry, index uint64, done bool) {
	switch {
	case own == nil:
	case done:
		g.finish(own, []Result{{Revision: Revision(index, 0)}}, nil)
	default:
		g.finish(own, nil, fmt.Errorf("%w: the change is committed but could not be applied here", ErrUncertain))
	}
}

// leaveLeadership hands the leadership over before this replica is removed. It
// is not done where no other voter could take it: then the change goes on, and
// this replica steps down when it is applied.
func (g *Group) leaveLeadership(ctx context.Context, change *Change) (done bool, err error) {
	to := uint64(raft.None)
	if err := g.call(ctx, func() { to = g.bestFollower(change.Remove...) }); err != nil {
		return true, fmt.Errorf("%w: %w", ErrDropped, err)
	}
	if to == raft.None {
		return false, nil
	}
	if err := g.transferLeader(ctx, func() (uint64, error) { return to, nil }); err != nil {
		return true, fmt.Errorf("%w: the leader is to be removed and could not hand over first: %w", ErrDropped, err)
	}
	return true, g.notLeader()
}

// awaitSimpleConfiguration waits until the group has left the joint
// configuration, which raft does by itself.
func (g *Group) awaitSimpleConfiguration(ctx context.Context) {
	poll := time.NewTicker(g.node.opts.TickInterval)
	defer poll.Stop()
	for len(g.members.Load().GetVotersOutgoing()) > 0 {
		select {
		case <-poll.C:
		case <-g.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

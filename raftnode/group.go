package raftnode

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/snapshot"
)

// Group is a node's replica of one raft group. Its methods may be called from
// any goroutine.
//
// Three goroutines work for it: its step goroutine owns the RawNode, its apply
// goroutine owns the state machine, and the node's append goroutine writes its
// log. They meet in the mailbox (towards step), the applier's queue and the
// appender's queue, none of which blocks the sender.
type Group struct {
	node   *Node
	id     uint64
	raftID uint64
	log    *slog.Logger
	logs   *raftlog.Group

	// machine is the state machine at work; it is another one once the replica was
	// opened anew. served is what others read: an opened one is served only when it
	// has applied what was told to be applied before.
	machine atomic.Pointer[machineRef]
	served  atomic.Pointer[machineRef]
	// unsound is why the replica is quarantined; nil while it is not.
	unsound atomic.Pointer[error]
	// machineOpen: machine is to be closed.
	machineOpen atomic.Bool

	mailbox *mailbox
	applier *applier
	pending pendingProposals
	waiters applyWaiters
	metrics groupMetrics

	// origin marks the entries of this opening of the replica; see payload.go.
	origin uint64

	// soft is what other goroutines see of raft; replaced by the step goroutine.
	soft atomic.Pointer[softState]
	// members is the applied membership; replaced by the step goroutine.
	members atomic.Pointer[raftv1.Membership]
	// routes are the nodes of raft ids that the membership does not name yet.
	routes routes
	// floor: no member needs log entries at or below it, as far as the applied
	// entries tell.
	floor atomic.Uint64
	// images and inboxes are nil where no images travel.
	images  *snapshot.Images
	inboxes *snapshot.Inboxes
	// provided is what is remembered of images that were served.
	provided provided
	// transfers are those of this replica's images.
	transfers transferBook
	// raftApplied is the index raft knows to be applied.
	raftApplied atomic.Uint64
	// cutMu is held from judging where to cut until the cut is queued: no cut that
	// was judged by one state comes after the replica went on with another.
	cutMu sync.Mutex
	// cutting: a cut waits for the append goroutine.
	cutting atomic.Bool

	stopped   chan struct{}   // closed when the replica stopped or failed
	ctx       context.Context // ends then too
	cancel    context.CancelFunc
	stopOnce  sync.Once
	failure   atomic.Pointer[error]
	goroutine sync.WaitGroup

	// The rest belongs to the step goroutine.
	raw        *raft.RawNode
	storage    *logStorage
	queue      []*proposal      // proposals not yet packed
	sequence   uint64           // of the last packed entry
	appending  int              // MsgStorageAppend not yet durable
	reads      readIndexBatcher // reads that wait for a read index
	transferTo uint64           // leader transfer under way
	hearings   []*hearing       // changes that wait to hear from members
	ticks      int              // that passed
	heardAt    map[uint64]int   // ticks when a raft id was heard of last
	applying   int              // MsgStorageApply not yet applied
	offers     *offers          // as leader
	receiving  *receiving       // as follower
	installing *installation    // the staged image on its way in
	// blocked: raft accepted a snapshot that is not yet in state and log;
	// waitingAppends come after it.
	blocked        bool
	waitingAppends []appendRequest
	// reopening: the replica is being opened anew; generation counts that, damage
	// is what was heard of the state meanwhile.
	reopening  bool
	generation int
	damage     error
	digests    digestRounds
	silent     map[uint64]int // as leader: ticks since a member answered
	idleTicks  int            // since the last refresh of the status
	askTicks   int            // since a quarantined replica asked for an image
	handedTo   []uint64       // for want of space, in this round
}

// softState is what the step goroutine publishes.
type softState struct {
	role          Role
	term          uint64
	commit        uint64
	leader        uint64
	leaderNode    string
	leaderAddress string
	replicas      []ReplicaStatus
}

// ID returns the group's id.
func (g *Group) ID() uint64 { return g.id }

// machineRef holds a state machine.
type machineRef struct{ StateMachine }

// StateMachine returns the state machine that Options.NewStateMachine made.
// Reading it beside Apply is between the caller and the state machine; Read
// tells when it is new enough. It is another one after the replica was opened
// anew in place, so take it after Read returned, for each read; the old one is
// closed.
func (g *Group) StateMachine() StateMachine { return g.served.Load().StateMachine }

// sm returns the state machine at work.
func (g *Group) sm() StateMachine { return g.machine.Load().StateMachine }

// newRaft makes the RawNode from the log and the applied record.
func (g *Group) newRaft(applied Applied, membership *raftv1.Membership) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("raftnode: group %d: raft does not start from this log and membership: %v", g.id, p)
		}
	}()
	o := &g.node.opts
	g.storage = &logStorage{log: g.logs, group: g, commit: applied.Index, conf: confStateOf(membership)}
	g.raftApplied.Store(applied.Index)
	raw, err := raft.NewRawNode(&raft.Config{
		ID:            g.raftID,
		ElectionTick:  o.ElectionTicks,
		HeartbeatTick: o.HeartbeatTicks,
		Storage:       g.storage,
		Applied:       applied.Index,

		AsyncStorageWrites:        true,
		MaxSizePerMsg:             o.MaxMessageBytes,
		MaxCommittedSizePerReady:  o.MaxApplyBytes,
		MaxUncommittedEntriesSize: uint64(o.MaxPendingBytes) * 2,
		MaxInflightMsgs:           4096,
		MaxInflightBytes:          max(o.MaxInflightBytes, o.MaxMessageBytes),

		CheckQuorum: true,
		PreVote:     true,
		// Leases would need bounded clock drift; ReadIndex needs no clock.
		ReadOnlyOption: raft.ReadOnlySafe,
		Logger:         raftLogger{g.log},
		// A forwarded proposal that the network duplicates is applied twice.
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	})
	if err != nil {
		return fmt.Errorf("raftnode: group %d: start raft: %w", g.id, err)
	}
	g.raw = raw
	return nil
}

// run is the step goroutine: it takes the mail, steps raft, and hands on what
// raft wants done. Raft panics on messages that break its invariants; such a
// message must cost one replica, not the node.
func (g *Group) run() {
	defer func() {
		if p := recover(); p != nil {
			if err := g.storage.failure(); err != nil {
				g.fail(fmt.Errorf("read the raft log: %w", err)) // raft panics where its storage fails
			} else {
				g.fail(fmt.Errorf("raft stopped on a broken invariant: %v", p))
			}
		}
		g.drain()
	}()
	var spare mail
	g.publish()
	for {
		select {
		case <-g.stopped:
			return
		case <-g.mailbox.wake:
		}
		load := g.mailbox.take(spare)
		select {
		case <-g.stopped: // both were ready; nothing may be sent any more
			g.queue = append(g.queue, load.proposals...)
			g.reads.waiting = append(g.reads.waiting, load.reads...)
			return
		default:
		}
		g.step(&load)
		spare = load
	}
}

// step works through one load of mail.
//
// What has a caller waiting goes into the group's own queues first: a panic
// below must not lose it, drain answers what is in them.
func (g *Group) step(load *mail) {
	g.queue = append(g.queue, load.proposals...)
	g.reads.waiting = append(g.reads.waiting, load.reads...)
	g.appending -= load.appended
	for _, m := range load.local {
		if m.GetType() == raftpb.MsgStorageApplyResp {
			g.applying--
		}
		_ = g.raw.Step(m)
		if m.GetType() == raftpb.MsgStorageApplyResp {
			g.noteApplied(m.GetEntries())
		}
	}
	for _, call := range load.calls {
		call()
	}
	g.tick(load.ticks)
	for _, id := range load.unreachable {
		g.raw.ReportUnreachable(id)
	}
	g.receiveAll(load.received)
	g.propose()
	g.reads.start(g)
	g.handleReady()
	g.tryInstall()
	g.takeDamage()
}

// receiveAll steps messages from peers. Entries stepped since the last Ready all
// become one update of the log, which must fit a batch.
func (g *Group) receiveAll(received []*raftpb.Message) {
	var bytes int64
	for _, m := range received {
		size := logBytes(m.GetEntries())
		if bytes > 0 && bytes+size > g.node.opts.maxStepBytes() {
			g.handleReady()
			bytes = 0
		}
		bytes += size
		g.receive(m)
	}
	if bytes > 0 {
		g.handleReady()
	}
}

// noteApplied publishes how far raft itself knows of the applying: it looks at
// the log above that, so the log must not be cut there, however far the state
// machine is.
func (g *Group) noteApplied(entries []*raftpb.Entry) {
	if n := len(entries); n > 0 {
		g.raftApplied.Store(entries[n-1].GetIndex())
	}
}

// receive steps a message from a peer, unless this replica must not take it.
func (g *Group) receive(m *raftpb.Message) {
	g.hear(m.GetFrom())
	if reason := g.unfit(m); reason != "" {
		g.metrics.stepErrors.Add(1)
		g.log.Warn("a message from a peer is not stepped", "from", g.nodeOf(m.GetFrom()), "type", m.GetType(), "reason", reason)
		return
	}
	switch m.GetType() {
	case raftpb.MsgProp, raftpb.MsgForgetLeader, raftpb.MsgTransferLeader:
		return // never sent by a peer of this version: proposals and transfers are not forwarded
	case raftpb.MsgSnap:
		g.receiveControl(m)
		return
	case raftpb.MsgApp:
		if len(m.GetEntries()) > 0 && g.node.noSpace() {
			return // the leader tries again; nothing was acknowledged
		}
	case raftpb.MsgTimeoutNow:
		if g.node.noSpace() {
			return // a node without space must not become leader
		}
	}
	if err := g.raw.Step(m); err != nil {
		g.metrics.stepErrors.Add(1)
	}
}

// tick lets raft's time pass. Without disk space a replica does not campaign:
// only its election clock runs, and a leader hands over.
func (g *Group) tick(ticks int) {
	if ticks == 0 {
		return
	}
	g.ticks += ticks
	noSpace := g.node.noSpace()
	for range ticks {
		if (noSpace || g.node.removed.Load()) && g.soft.Load().role != RoleLeader {
			g.raw.TickQuiesced()
			continue
		}
		g.raw.Tick()
	}
	if noSpace && g.soft.Load().role == RoleLeader && g.transferTo == 0 {
		if to := g.nextFollower(); to != 0 {
			g.log.Warn("handing leadership over for want of disk space", "to", g.nodeOf(to))
			g.raw.TransferLeader(to)
		}
	}
	g.reads.tick(g, ticks)
	g.noteSilence(ticks)
	g.offers.tick(ticks)
	g.receiving.tick(ticks)
	g.askForImage(ticks)
	g.checkDigests()
	if g.idleTicks += ticks; g.idleTicks >= g.node.opts.HeartbeatTicks {
		g.publish()
	}
}

// handleReady hands on everything raft wants done, until it wants nothing.
func (g *Group) handleReady() {
	for g.raw.HasReady() {
		rd := g.raw.Ready()
		for _, e := range rd.Entries {
			g.locate(e)
		}
		for _, m := range rd.Messages {
			switch m.GetTo() {
			case raft.LocalAppendThread:
				g.startAppend(m, rd.MustSync)
			case raft.LocalApplyThread:
				if g.quarantined() || g.reopening {
					continue // parked: never answered, so raft hands out no more than its bound
				}
				g.applying++
				g.applier.put(m, g.generation)
			default:
				if m.GetType() == raftpb.MsgSnap {
					g.offers.start(m.GetTo())
					continue
				}
				g.send(m)
			}
		}
		g.reads.ready(g, rd.ReadStates)
		if rd.SoftState != nil || rd.HardState != nil {
			g.publish()
		}
	}
}

// startAppend queues a MsgStorageAppend for the append goroutine.
func (g *Group) startAppend(m *raftpb.Message, sync bool) {
	g.appending++
	if m.GetSnapshot().GetMetadata().GetIndex() > 0 {
		g.startInstall(m)
		return
	}
	r := appendRequest{
		group: g,
		update: raftlog.Update{
			Group: g.id, Entries: m.GetEntries(),
			HardState: &raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit},
		},
		sync:      sync,
		responses: m.GetResponses(),
	}
	if g.blocked {
		g.waitingAppends = append(g.waitingAppends, r)
		return
	}
	g.node.appender.put(r)
}

// publish refreshes what others see, and tells of a new leader or term.
func (g *Group) publish() {
	g.idleTicks = 0
	st := g.raw.BasicStatus()
	s := &softState{term: st.HardState.GetTerm(), commit: st.HardState.GetCommit(), leader: st.Lead}
	members := g.members.Load()
	for _, r := range members.GetReplicas() {
		if r.GetRaftId() == st.Lead {
			s.leaderNode, s.leaderAddress = r.GetNode(), r.GetAddress()
		}
	}
	if s.leaderNode == "" && st.Lead != raft.None {
		s.leaderNode, s.leaderAddress = g.whereIs(st.Lead)
	}
	s.role = g.roleOf(st, members)
	s.replicas = g.replicaStatus(members, s.role)

	old := g.soft.Swap(s)
	if old == nil || old.term != s.term || old.leader != s.leader || old.role != s.role {
		g.transferTo = 0
		g.node.opts.Listener.LeaderChanged(LeaderInfo{
			Group: g.id, Term: s.term, Leader: s.leader, Node: s.leaderNode, Self: s.role == RoleLeader,
		})
		g.waiters.leaderChanged()
	}
	if s.role == RoleLeader {
		g.transferTo = st.LeadTransferee
	}
}

// closedError is why the group takes nothing any more.
func (g *Group) closedError() error {
	if err := g.failure.Load(); err != nil {
		return fmt.Errorf("%w: group %d: %w", ErrFailed, g.id, *err)
	}
	if err := g.node.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return ErrClosed
}

// notLeader tells where the leader is.
func (g *Group) notLeader() error {
	s := g.soft.Load()
	if s.role == RoleLeader {
		return &NotLeaderError{Group: g.id}
	}
	return &NotLeaderError{Group: g.id, LeaderNode: s.leaderNode, LeaderAddress: s.leaderAddress}
}

// nodeOf returns the node that holds a replica, or "".
func (g *Group) nodeOf(raftID uint64) string {
	for _, r := range g.members.Load().GetReplicas() {
		if r.GetRaftId() == raftID {
			return r.GetNode()
		}
	}
	return g.routes.node(raftID)
}

// stop ends the replica's goroutines; it does not wait.
func (g *Group) stop() {
	g.stopOnce.Do(func() {
		close(g.stopped)
		g.cancel()
	})
}

// fail stops the replica for good; the node and its other groups go on.
func (g *Group) fail(err error) {
	first := g.failure.CompareAndSwap(nil, &err)
	g.stop() // before anything that could block, like a log on a dead disk
	if first {
		g.log.Error("replica stopped for good; close the node, repair the cause and start it again", "error", err)
		g.node.opts.Listener.GroupFailed(g.id, err)
	}
}

// drain ends everything that waits, once the step goroutine is done.
func (g *Group) drain() {
	g.stop()
	left := g.mailbox.stop()
	err := g.closedError()
	g.refuse(g.queue, err)
	g.refuse(left.proposals, err)
	g.reads.fail(err)
	for _, r := range left.reads {
		r.finish(0, err)
	}
	for _, e := range g.pending.takeAll() {
		g.finish(e, nil, fmt.Errorf("%w: %v", ErrUncertain, err))
	}
	g.waiters.fail(err)
}

// call runs f on the step goroutine and waits for it.
func (g *Group) call(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if err := g.mailbox.putCall(func() { f(); close(done) }); err != nil {
		return g.closedError()
	}
	select {
	case <-done:
		return nil
	case <-g.stopped:
		return g.closedError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

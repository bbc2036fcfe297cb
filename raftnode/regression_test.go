package raftnode_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// Each test here is a sequence that went wrong once.

// heldLeader returns a one-node cluster whose step goroutine stands still, from
// the moment it leads until release is called.
func heldLeader(t *testing.T, adjust func(*raftnode.Options)) (m *member, release func()) {
	t.Helper()
	hold, entered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c := newCluster(t, 1, func(o *raftnode.Options) {
		o.Listener.LeaderChanged = func(l raftnode.LeaderInfo) {
			if l.Group == raftnode.FirstDataGroup && l.Self {
				once.Do(func() { close(entered); <-hold })
			}
		}
		if adjust != nil {
			adjust(o)
		}
	})
	c.openAll()
	<-entered
	release = sync.OnceFunc(func() { close(hold) })
	t.Cleanup(release)
	return c.members[0], release
}

// TestPoisonousMessageLosesNoOutcome: raft panics on a message; what came in the
// same load of mail was in none of the group's queues yet.
func TestPoisonousMessageLosesNoOutcome(t *testing.T) {
	m, release := heldLeader(t, nil)
	g := m.group(t, raftnode.FirstDataGroup)
	outcome, read := make(chan error, 1), make(chan error, 1)
	if err := g.Submit([]byte("x"), func(_ raftnode.Result, err error) { outcome <- err }); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := g.Read(t.Context(), raftnode.ReadOptions{})
		read <- err
	}()
	s := g.Status()
	m.node.Receive("n9", []transport.GroupMessage{{Group: s.Group, Message: &raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(77)), To: new(s.RaftID), Term: new(s.Term + 5), Commit: new(uint64(1 << 40)),
	}}})
	release()
	for name, c := range map[string]<-chan error{"proposal": outcome, "read": read} {
		select {
		case err := <-c:
			if !errors.Is(err, raftnode.ErrFailed) && !errors.Is(err, raftnode.ErrUncertain) {
				t.Errorf("%s: %v, want ErrFailed or ErrUncertain", name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("the %s never heard of its end", name)
		}
	}
	eventually(t, "nothing is pending", func() bool { s := g.Status(); return s.PendingProposals == 0 && s.PendingBytes == 0 })
}

// TestEmptyCommandsAreCounted: commands without bytes take memory too.
func TestEmptyCommandsAreCounted(t *testing.T) {
	m, _ := heldLeader(t, func(o *raftnode.Options) { o.MaxPendingBytes = 4 << 20 })
	g := m.group(t, raftnode.FirstDataGroup)
	for n := range 1 << 20 {
		if err := g.Submit(nil, func(raftnode.Result, error) {}); err != nil {
			if !errors.Is(err, raftnode.ErrOverloaded) || n < 1000 {
				t.Errorf("after %d commands: %v", n, err)
			}
			return
		}
	}
	t.Error("a million empty commands were admitted")
}

// beforeEpoch is a clock that was never set.
type beforeEpoch struct{}

func (beforeEpoch) Now() time.Time { return time.UnixMilli(-5) }
func (beforeEpoch) NewTicker(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// TestClockBeforeEpoch: the leader's clock is in every entry, so a bad one must
// not make entries that nobody can apply.
func TestClockBeforeEpoch(t *testing.T) {
	c := newCluster(t, 1, func(o *raftnode.Options) { o.Clock = beforeEpoch{} })
	c.openAll()
	c.propose(raftnode.FirstDataGroup, "x")
	c.stop(c.members[0])
	c.adjust = nil
	c.openAll()
	c.propose(raftnode.FirstDataGroup, "y")
	c.equalStates(raftnode.FirstDataGroup, 2)
}

// TestPoisonousAppend: entries that do not follow each other are not stepped, and
// cost neither the node nor the replica.
func TestPoisonousAppend(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	m := c.other(leader)
	g := m.group(t, raftnode.FirstDataGroup)
	eventually(t, "the follower is level", func() bool {
		s := g.Status()
		return s.LastIndex == leader.group(t, raftnode.FirstDataGroup).Status().LastIndex && s.Leader != 0
	})
	s := g.Status()
	entry := func(index, term uint64) *raftpb.Entry { return &raftpb.Entry{Index: new(index), Term: new(term)} }
	for _, entries := range [][]*raftpb.Entry{
		{entry(s.LastIndex+1, s.Term), entry(s.LastIndex+2, 1)},
		{entry(s.LastIndex+1, s.Term), entry(s.LastIndex+3, s.Term)},
		{entry(s.LastIndex+1, s.Term+9)},
	} {
		m.node.Receive(leader.name, []transport.GroupMessage{{Group: s.Group, Message: &raftpb.Message{
			Type: raftpb.MsgApp.Enum(), From: new(s.Leader), To: new(s.RaftID), Term: new(s.Term),
			Index: new(s.LastIndex), LogTerm: new(s.Term), Entries: entries,
		}}})
	}
	eventually(t, "all three were refused", func() bool { return m.node.Metrics().Groups[1].StepErrors >= 3 })
	c.propose(raftnode.FirstDataGroup, "x")
	c.equalStates(raftnode.FirstDataGroup, 1)
	if err := m.node.Err(); err != nil || g.Status().Failure != "" {
		t.Errorf("node %v, replica %s", err, g.Status().Failure)
	}
}

// other returns a member that is not m.
func (c *cluster) other(not ...*member) *member {
	for _, o := range c.members {
		if !slices.Contains(not, o) {
			return o
		}
	}
	return nil
}

// TestManySmallEntries: thousands of tiny entries are larger in the log than on
// the wire; catching up with them must not exceed a log batch.
func TestManySmallEntries(t *testing.T) {
	c := newCluster(t, 3, func(o *raftnode.Options) {
		o.LogSegmentBytes, o.MaxCommandBytes, o.MaxEntryBytes, o.MaxMessageBytes = 256<<10, 64<<10, 16<<10, 24<<10
		o.MaxEntryCommands = 1
	})
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	away := c.other(leader)
	c.stop(away)
	g := leader.group(t, raftnode.FirstDataGroup)
	const total = 6000
	var open sync.WaitGroup
	for range total {
		open.Add(1)
		if err := g.Submit([]byte("a"), func(_ raftnode.Result, err error) {
			if err != nil {
				t.Error(err)
			}
			open.Done()
		}); err != nil {
			t.Fatal(err)
		}
	}
	open.Wait()
	c.openAll()
	c.equalStates(raftnode.FirstDataGroup, total)
}

// halfDurable becomes durable in the middle of an Apply, as a store does that
// flushes on its own, and then does not come back.
type halfDurable struct {
	chain
	durable atomic.Uint64
	armed   *atomic.Bool
	block   chan struct{}
}

func (h *halfDurable) DurableApplied() uint64 { return h.durable.Load() }

func (h *halfDurable) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	if h.armed.Load() && len(entries) > 50 {
		h.durable.Store(entries[len(entries)/2].Index)
		<-h.block
	}
	return h.chain.Apply(entries)
}

// TestCutWaitsForRaft: raft scans its log above what it knows to be applied when
// it campaigns, so the log must not be cut there, whatever the state machine has.
func TestCutWaitsForRaft(t *testing.T) {
	armed := map[string]*atomic.Bool{"n1": {}, "n2": {}, "n3": {}}
	block := make(chan struct{})
	unblock := sync.OnceFunc(func() { close(block) })
	c := newCluster(t, 3, func(o *raftnode.Options) {
		a := armed[o.Node]
		o.LogBudgetBytes, o.DiskCheckInterval, o.MaxEntryCommands = 1<<10, 10*time.Millisecond, 1
		o.NewStateMachine = func(uint64) raftnode.StateMachine { return &halfDurable{block: block, armed: a} }
	})
	t.Cleanup(unblock) // before the members are closed
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	victim := c.other(leader)
	g := leader.group(t, raftnode.FirstDataGroup)
	for range 500 {
		if _, err := g.Propose(t.Context(), make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	c.stop(victim)
	armed[victim.name].Store(true)
	if err := openBriefly(c, victim); err != nil {
		t.Fatal(err)
	}
	v := victim.group(t, raftnode.FirstDataGroup)
	eventually(t, "the state is durable above what raft knows", func() bool { s := v.Status(); return s.DurableApplied > s.Applied+20 })
	// On a slow machine another than the first may lead by now.
	current := c.leader(raftnode.FirstDataGroup)
	if current == victim {
		unblock()
		return // it campaigned and lives
	}
	term := current.group(t, raftnode.FirstDataGroup).Status().Term
	c.stop(current)
	eventually(t, "an election passed", func() bool {
		s := v.Status()
		return s.Term > term || s.Failure != ""
	})
	if s := v.Status(); s.Failure != "" {
		t.Errorf("the replica failed: %s", s.Failure)
	}
	unblock()
}

// slowNetwork delays what a node sends.
type slowNetwork struct {
	transport.Transport
	delay time.Duration
	on    *atomic.Bool
}

func (s *slowNetwork) Send(node string, m transport.GroupMessage) {
	if !s.on.Load() {
		s.Transport.Send(node, m)
		return
	}
	time.AfterFunc(s.delay, func() { s.Transport.Send(node, m) })
}

// TestReadsWithLongRoundTrips: a round that takes longer than the time after
// which it is asked for again must still end.
func TestReadsWithLongRoundTrips(t *testing.T) {
	var on atomic.Bool
	c := newCluster(t, 3, func(o *raftnode.Options) {
		o.Transport = &slowNetwork{Transport: o.Transport, delay: 50 * time.Millisecond, on: &on}
	})
	c.openAll()
	c.propose(raftnode.FirstDataGroup, "x")
	on.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, m := range c.members {
		if _, err := m.group(t, raftnode.FirstDataGroup).Read(ctx, raftnode.ReadOptions{}); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	on.Store(false)
}

// TestAbandonedReadsAreForgotten: waiting for an index that never comes leaves
// nothing behind.
func TestAbandonedReadsAreForgotten(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.openAll()
	c.leader(raftnode.FirstDataGroup)
	g := c.members[0].group(t, raftnode.FirstDataGroup)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 1000 {
		if _, err := g.Read(ctx, raftnode.ReadOptions{Level: raftnode.Stale, MinIndex: 1 << 60}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if n := raftnode.WaitingReads(g); n != 0 {
		t.Errorf("%d reads still wait", n)
	}
}

func TestLostGroupDirectoryIsRefused(t *testing.T) {
	c := newCluster(t, 1, nil)
	c.openAll()
	c.propose(raftnode.FirstDataGroup, "x")
	c.stop(c.members[0])
	if err := os.RemoveAll(filepath.Join(c.members[0].dir, "groups", "2")); err != nil {
		t.Fatal(err)
	}
	if err := openBriefly(c, c.members[0]); !errors.Is(err, raftnode.ErrDataLoss) {
		t.Errorf("got %v, want ErrDataLoss", err)
	}
}

// TestGroupsChangedBeforeFounding: ids were drawn for other groups than the node
// is started with now; the founding record must not mix them.
func TestGroupsChangedBeforeFounding(t *testing.T) {
	groups := []uint64{1, 2}
	c := newCluster(t, 2, func(o *raftnode.Options) { o.Groups = groups })
	if err := openBriefly(c, c.members[0]); err == nil {
		t.Fatal("founded alone")
	}
	groups = []uint64{1, 2, 3}
	errs := make(chan error, 2)
	for _, m := range c.members {
		go func() { errs <- openBriefly(c, m) }()
	}
	refused := false
	for range 2 {
		err := <-errs
		if err == nil {
			t.Error("a node was founded")
		}
		refused = refused || errors.Is(err, raftnode.ErrRefused)
	}
	if !refused {
		t.Error("no node refused")
	}
}

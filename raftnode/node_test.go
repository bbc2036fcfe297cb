package raftnode_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
	"github.com/streamraft/streamraft/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chain is a state machine whose state is a checksum over all it applied. It is
// in memory only: DurableApplied is 0, so every start replays the whole log.
type chain struct {
	mu      sync.Mutex
	applied raftnode.Applied
	sum     uint32
	count   int
	clock   int64
	fail    error
	report  atomic.Pointer[func(index uint64, digest []byte)]
}

func (c *chain) ReportDigests(report func(uint64, []byte)) { c.report.Store(&report) }

func (c *chain) Open(string) (raftnode.Applied, error) { return raftnode.Applied{}, nil }
func (c *chain) DurableApplied() uint64                { return 0 }
func (c *chain) Flush() error                          { return nil }
func (c *chain) Close() error                          { return nil }

func (c *chain) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	results := make([]raftnode.Result, len(entries))
	for i, e := range entries {
		if string(e.Data) == "fail" {
			return nil, c.fail
		}
		if string(e.Data) == "panic" {
			panic("told to")
		}
		if e.Clock < c.clock {
			return nil, fmt.Errorf("clock went back from %d to %d", c.clock, e.Clock)
		}
		c.clock = e.Clock
		if e.Data != nil {
			c.sum = crc32.Update(c.sum, crc32.IEEETable, e.Data)
			c.count++
		}
		results[i].Data = binary.BigEndian.AppendUint32(nil, c.sum)
		c.applied = e.Applied(c.applied.Membership)
	}
	return results, nil
}

func (c *chain) state() (applied uint64, sum uint32, count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applied.Index, c.sum, c.count
}

// member is one node of a test cluster on loopback sockets.
type member struct {
	name    string
	address string
	dir     string
	node    *raftnode.Node
	machine map[uint64]*chain
	server  *grpc.Server
	source  *snapshot.Source
	serving sync.WaitGroup
}

type cluster struct {
	t        testing.TB
	founders []raftnode.Founder
	members  []*member
	adjust   func(*raftnode.Options)
	images   bool        // serve images
	hold     atomic.Bool // but not now
}

func newCluster(t testing.TB, size int, adjust func(*raftnode.Options)) *cluster {
	t.Helper()
	c := &cluster{t: t, adjust: adjust}
	for i := range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		m := &member{name: fmt.Sprintf("n%d", i+1), address: l.Addr().String()}
		m.dir = filepath.Join(t.TempDir(), m.name)
		// Not before all have one: the next could be given the same port.
		defer func() { _ = l.Close() }()
		c.members = append(c.members, m)
		c.founders = append(c.founders, raftnode.Founder{Node: m.name, Address: m.address})
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			c.stop(m)
		}
	})
	return c
}

// open starts a member; the error is that of raftnode.Open.
func (c *cluster) open(ctx context.Context, m *member) error {
	c.t.Helper()
	tr, err := transport.NewGRPC(transport.GRPCOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var l net.Listener
	eventually(c.t, "the port is free again", func() bool {
		l, err = net.Listen("tcp", m.address)
		return err == nil
	})
	m.server = grpc.NewServer()
	tr.Register(m.server)
	provider := &lazyProvider{hold: &c.hold}
	if c.images {
		source, err := snapshot.NewSource(snapshot.SourceOptions{Provider: provider})
		if err != nil {
			c.t.Fatal(err)
		}
		source.Register(m.server)
		m.source = source
	}
	m.serving.Go(func() { _ = m.server.Serve(l) })
	m.machine = map[uint64]*chain{}
	o := raftnode.Options{
		Node: m.name, Dir: m.dir, Founders: c.founders, Transport: tr,
		NewStateMachine: func(group uint64) raftnode.StateMachine {
			m.machine[group] = &chain{fail: errors.New("told to fail")}
			return m.machine[group]
		},
		TickInterval: 10 * time.Millisecond, DiskReserveBytes: -1, LogSegmentBytes: 32 << 20,
	}
	if os.Getenv("RAFTNODE_TEST_LOG") != "" {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if c.adjust != nil {
		c.adjust(&o)
	}
	m.node, err = raftnode.Open(ctx, o)
	provider.node.Store(m.node)
	if err != nil {
		m.node = nil
		m.server.Stop()
		m.serving.Wait()
	}
	return err
}

func (c *cluster) openAll() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(c.members))
	for i, m := range c.members {
		if m.node == nil {
			wg.Go(func() { errs[i] = c.open(ctx, m) })
		}
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
}

// stop closes a member; a member that is not open is left alone.
func (c *cluster) stop(m *member) {
	c.t.Helper()
	if m.node == nil {
		return
	}
	node := m.node
	m.node = nil
	m.server.Stop()
	if m.source != nil {
		if err := m.source.Close(); err != nil {
			c.t.Errorf("close the source of %s: %v", m.name, err)
		}
	}
	if err := node.Close(); err != nil {
		c.t.Errorf("close %s: %v", m.name, err)
	}
	m.serving.Wait()
}

// leader waits for a leader of the group among the open members.
func (c *cluster) leader(group uint64) *member {
	c.t.Helper()
	var found *member
	eventually(c.t, "a leader", func() bool {
		for _, m := range c.members {
			if m.node == nil {
				continue
			}
			g, err := m.node.Group(group)
			if err != nil {
				c.t.Fatal(err)
			}
			if g.Status().Role == raftnode.RoleLeader {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func (m *member) group(t testing.TB, id uint64) *raftnode.Group {
	t.Helper()
	g, err := m.node.Group(id)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// propose proposes on whatever member leads, until it is taken.
func (c *cluster) propose(group uint64, command string) raftnode.Result {
	c.t.Helper()
	var result raftnode.Result
	eventually(c.t, "the proposal is taken", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var err error
		result, err = c.leader(group).group(c.t, group).Propose(ctx, []byte(command))
		if err != nil && errors.Is(err, raftnode.ErrUncertain) {
			c.t.Fatalf("propose %q: %v", command, err)
		}
		return err == nil
	})
	return result
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting until %s", what)
		}
		<-tick.C
	}
}

func TestThreeNodesReplicate(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	var last raftnode.Result
	for i := range 100 {
		r := c.propose(raftnode.FirstDataGroup, fmt.Sprint("command ", i))
		if r.Revision <= last.Revision {
			t.Fatalf("revision %d after %d", r.Revision, last.Revision)
		}
		last = r
	}
	c.equalStates(raftnode.FirstDataGroup, 100)

	// A linearizable read on every member sees all of it.
	for _, m := range c.members {
		index, err := m.group(t, raftnode.FirstDataGroup).Read(t.Context(), raftnode.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if index < last.Revision>>16 {
			t.Errorf("%s: read at index %d, the last write was at %d", m.name, index, last.Revision>>16)
		}
	}
}

// equalStates waits until all open members have applied count commands, and
// compares their states.
func (c *cluster) equalStates(group uint64, count int) {
	c.t.Helper()
	var want uint32
	for i, m := range c.members {
		if m.node == nil {
			continue
		}
		eventually(c.t, fmt.Sprintf("%s applied %d commands", m.name, count), func() bool {
			_, _, n := m.machine[group].state()
			return n >= count
		})
		_, sum, n := m.machine[group].state()
		if n != count {
			c.t.Errorf("%s applied %d commands, want %d", m.name, n, count)
		}
		if i == 0 || want == 0 {
			want = sum
		}
		if sum != want {
			c.t.Errorf("%s has checksum %x, others %x", m.name, sum, want)
		}
	}
}

func TestRestartAndFailover(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	total := 0
	for range 3 {
		for range 20 {
			c.propose(raftnode.FirstDataGroup, fmt.Sprint("command ", total))
			total++
		}
		old := c.leader(raftnode.FirstDataGroup)
		c.stop(old)
		for range 20 {
			c.propose(raftnode.FirstDataGroup, fmt.Sprint("command ", total))
			total++
		}
		c.openAll()
	}
	c.equalStates(raftnode.FirstDataGroup, total)
}

func TestNotLeaderNamesTheLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	for _, m := range c.members {
		if m == leader {
			continue
		}
		g := m.group(t, raftnode.FirstDataGroup)
		eventually(t, "the follower knows the leader", func() bool { return g.Status().LeaderNode == leader.name })
		_, err := g.Propose(t.Context(), []byte("x"))
		var not *raftnode.NotLeaderError
		if !errors.As(err, &not) || not.LeaderNode != leader.name || not.LeaderAddress != leader.address {
			t.Errorf("%s: got %v, want a NotLeaderError that names %s", m.name, err, leader.name)
		}
	}
}

func TestTransferLeader(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	for _, m := range c.members {
		if m == leader {
			continue
		}
		eventually(t, "leadership moves", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return c.leader(raftnode.FirstDataGroup).group(t, raftnode.FirstDataGroup).TransferLeader(ctx, m.name) == nil
		})
		leader = m
		break
	}
	if err := leader.group(t, raftnode.FirstDataGroup).TransferLeader(t.Context(), "n9"); err == nil {
		t.Error("transfer to an unknown node succeeded")
	}
	if err := leader.group(t, raftnode.FirstDataGroup).TransferLeader(t.Context(), leader.name); err == nil {
		t.Error("transfer to the leader itself succeeded")
	}
}

func TestMinorityDoesNotAnswer(t *testing.T) {
	c := newCluster(t, 3, nil)
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	g := leader.group(t, raftnode.FirstDataGroup)
	for _, m := range c.members {
		if m != leader {
			c.stop(m)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := g.Propose(ctx, []byte("alone"))
	if !errors.Is(err, raftnode.ErrUncertain) && !errors.Is(err, raftnode.ErrNotLeader) {
		t.Errorf("propose without a quorum: %v, want ErrUncertain or ErrNotLeader", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := g.Read(ctx, raftnode.ReadOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("linearizable read without a quorum: %v, want the deadline", err)
	}
	if _, err := g.Read(t.Context(), raftnode.ReadOptions{Level: raftnode.Stale}); err != nil {
		t.Errorf("stale read without a quorum: %v", err)
	}
}

func TestStateMachineErrorStopsOneReplica(t *testing.T) {
	for _, command := range []string{"fail", "panic"} {
		t.Run(command, func(t *testing.T) {
			c := newCluster(t, 1, nil)
			c.openAll()
			m := c.leader(raftnode.FirstDataGroup)
			g := m.group(t, raftnode.FirstDataGroup)
			_, err := g.Propose(t.Context(), []byte(command))
			if !errors.Is(err, raftnode.ErrUncertain) {
				t.Errorf("propose: %v, want ErrUncertain", err)
			}
			eventually(t, "the replica has failed", func() bool { return g.Status().Failure != "" })
			if _, err := g.Propose(t.Context(), []byte("x")); !errors.Is(err, raftnode.ErrFailed) {
				t.Errorf("propose on a failed replica: %v, want ErrFailed", err)
			}
			if _, err := g.Read(t.Context(), raftnode.ReadOptions{}); !errors.Is(err, raftnode.ErrFailed) {
				t.Errorf("read on a failed replica: %v, want ErrFailed", err)
			}
			// The other group of the node goes on.
			c.leader(raftnode.MetaGroup)
			c.propose(raftnode.MetaGroup, "x")
		})
	}
}

func TestOverload(t *testing.T) {
	c := newCluster(t, 3, func(o *raftnode.Options) {
		o.MaxPendingBytes, o.MaxCommandBytes, o.MaxEntryBytes, o.MaxMessageBytes = 1000, 1000, 1000, 1000
	})
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	for _, m := range c.members {
		if m != leader {
			c.stop(m)
		}
	}
	g := leader.group(t, raftnode.FirstDataGroup)
	if err := g.Submit(make([]byte, 1001), nil); !errors.Is(err, raftnode.ErrTooLarge) {
		t.Errorf("a command over the limit: %v, want ErrTooLarge", err)
	}
	outcomes := make(chan error, 1)
	if err := g.Submit(make([]byte, 900), func(_ raftnode.Result, err error) { outcomes <- err }); err != nil {
		t.Fatal(err)
	}
	if err := g.Submit(make([]byte, 200), func(raftnode.Result, error) {}); !errors.Is(err, raftnode.ErrOverloaded) {
		t.Errorf("over the pending bytes: %v, want ErrOverloaded", err)
	}
	c.stop(leader)
	err := <-outcomes
	if !errors.Is(err, raftnode.ErrUncertain) && !errors.Is(err, raftnode.ErrNotLeader) && !errors.Is(err, raftnode.ErrClosed) {
		t.Errorf("closed while it waited: %v, want ErrUncertain", err)
	}
}

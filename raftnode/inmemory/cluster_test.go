package inmemory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"

	"github.com/streamraft/streamraft/internal/faultnet"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// member is a node of a cluster in virtual time.
type member struct {
	name, address string
	fsys          *vfs.MemFS
	node          atomic.Pointer[raftnode.Node]
	host          *faultnet.Host
	server        *grpc.Server
	source        *snapshot.Source
	serving       sync.WaitGroup
}

// Provide serves images once the node is open.
func (m *member) Provide(ctx context.Context, req *snapshotv1.Open, progress func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	if node := m.node.Load(); node != nil {
		return node.Provide(ctx, req, progress)
	}
	return nil, "", snapshot.ErrBusy
}

func (m *member) group(t *testing.T) *raftnode.Group {
	t.Helper()
	g, err := m.node.Load().Group(raftnode.FirstDataGroup)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (m *member) machine(t *testing.T) *StateMachine[*table] {
	t.Helper()
	return m.group(t).StateMachine().(*StateMachine[*table])
}

// cluster is made of nodes with short logs on memory disks.
type cluster struct {
	t       *testing.T
	network *faultnet.Network
	members []*member
	written int
}

func newCluster(t *testing.T) *cluster {
	network, err := faultnet.NewNetwork(faultnet.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, network: network}
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		c.members = append(c.members, &member{name: name, address: name + ":1", fsys: vfs.NewCrashableMem()})
	}
	c.startAll()
	return c
}

func (c *cluster) options(m *member) (raftnode.Options, error) {
	host, err := c.network.Host(m.name, m.address)
	if err != nil {
		return raftnode.Options{}, err
	}
	m.host = host
	if m.source, err = snapshot.NewSource(snapshot.SourceOptions{Provider: m, ChunkBytes: 8 << 10}); err != nil {
		return raftnode.Options{}, err
	}
	receiver, err := snapshot.NewReceiver(snapshot.ReceiverOptions{Dialer: host.Dial})
	if err != nil {
		return raftnode.Options{}, err
	}
	m.server = grpc.NewServer(grpc.MaxRecvMsgSize(snapshot.MaxWireBytes), grpc.MaxSendMsgSize(snapshot.MaxWireBytes), grpc.WaitForHandlers(true))
	m.source.Register(m.server)
	m.serving.Go(func() { _ = m.server.Serve(host) }) // ends with the host
	return raftnode.Options{
		Node: m.name, Dir: "/node", FS: m.fsys, Address: m.address, Transport: c.network.Transport(m.name, m.address),
		Groups: []uint64{raftnode.FirstDataGroup},
		NewStateMachine: func(uint64) raftnode.StateMachine {
			s, err := New(Options[*table]{New: newTable, FS: m.fsys, FileBytes: 16 << 10})
			if err != nil {
				c.t.Error(err)
			}
			return s
		},
		LogBudgetBytes: 32 << 10, LogSegmentBytes: 256 << 10, MaxCommandBytes: 16 << 10, MaxEntryBytes: 16 << 10, MaxMessageBytes: 16 << 10,
		DiskCheckInterval: 50 * time.Millisecond, DiskReserveBytes: -1,
		Snapshots: &raftnode.SnapshotOptions{Receiver: receiver},
	}, nil
}

// start starts a node; join is nil for a founder.
func (c *cluster) start(m *member, join *raftnode.Join) error {
	o, err := c.options(m)
	if err != nil {
		return err
	}
	if o.Join = join; join == nil {
		for _, m := range c.members {
			o.Founders = append(o.Founders, raftnode.Founder{Node: m.name, Address: m.address})
		}
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	node, err := raftnode.Open(ctx, o)
	if err != nil {
		return err
	}
	m.node.Store(node)
	return nil
}

func (c *cluster) startAll() {
	c.t.Helper()
	errs := make([]error, len(c.members))
	var starts sync.WaitGroup
	for i, m := range c.members {
		if m.node.Load() == nil {
			starts.Go(func() { errs[i] = c.start(m, nil) })
		}
	}
	starts.Wait()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatal(err)
	}
}

// stop ends a node; what was not synced is lost.
func (c *cluster) stop(m *member) {
	c.t.Helper()
	node := m.node.Swap(nil)
	if node == nil {
		return
	}
	left := m.fsys.CrashClone(vfs.CrashCloneCfg{})
	err := m.host.Close()
	m.server.Stop()
	m.serving.Wait()
	if err := errors.Join(err, m.source.Close(), node.Close()); err != nil {
		c.t.Errorf("stop %s: %v", m.name, err)
	}
	m.fsys = left
}

func (c *cluster) stopAll() {
	for _, m := range c.members {
		c.stop(m)
	}
}

// until waits in virtual time.
func (c *cluster) until(what string, condition func() bool) {
	c.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !condition(); <-tick.C {
		if time.Now().After(end) {
			for _, m := range c.members {
				if m.node.Load() != nil {
					c.t.Logf("%s: %+v", m.name, m.group(c.t).Status())
				}
			}
			c.t.Fatalf("gave up waiting until %s", what)
		}
	}
}

func (c *cluster) leader() *member {
	c.t.Helper()
	var leader *member
	c.until("there is a leader", func() bool {
		for _, m := range c.members {
			if m.node.Load() != nil && m.group(c.t).Status().Role == raftnode.RoleLeader {
				leader = m
			}
		}
		return leader != nil
	})
	return leader
}

// write writes rows, some over others.
func (c *cluster) write(rows int) {
	c.t.Helper()
	for range rows {
		c.written++
		command := fmt.Sprintf("key%d=%d %s", c.written%97, c.written, strings.Repeat("x", 500))
		c.until("a row is written", func() bool {
			ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
			defer cancel()
			_, err := c.leader().group(c.t).Propose(ctx, []byte(command))
			if errors.Is(err, raftnode.ErrUncertain) {
				c.t.Fatal(err)
			}
			return err == nil
		})
	}
}

// same waits until all nodes have what was written last, and compares them.
func (c *cluster) same() {
	c.t.Helper()
	leader := c.leader()
	index, err := leader.group(c.t).Read(c.t.Context(), raftnode.ReadOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	want := leader.machine(c.t).Machine().dump()
	for _, m := range c.members {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
		_, err := m.group(c.t).Read(ctx, raftnode.ReadOptions{Level: raftnode.Stale, MinIndex: index})
		cancel()
		if err != nil {
			c.t.Fatalf("%s: %v", m.name, err)
		}
		if got := m.machine(c.t).Machine().dump(); got != want {
			c.t.Errorf("%s differs from %s:\n%.300s\nand\n%.300s", m.name, leader.name, got, want)
		}
	}
}

// leaveBehind stops a follower and writes until no log reaches it.
func (c *cluster) leaveBehind() *member {
	c.t.Helper()
	leader := c.leader()
	away := c.members[0]
	if away == leader {
		away = c.members[1]
	}
	has := away.group(c.t).Status().LastIndex
	c.stop(away)
	c.until("no log reaches "+away.name, func() bool {
		c.write(20)
		for _, m := range c.members {
			if m != away && m.group(c.t).Status().FirstIndex <= has+1 {
				return false
			}
		}
		return true
	})
	return away
}

// TestBehindTheLog: a member that the log no longer reaches comes back with an
// image; then all are restarted, with what was not synced lost.
func TestBehindTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.write(50)
		c.same()
		away := c.leaveBehind()
		c.startAll()
		c.write(30)
		c.same()
		if n := away.node.Load().Metrics().Groups[0].Installs; n != 1 {
			t.Errorf("%s installed %d images, expected 1", away.name, n)
		}
		for _, m := range c.members {
			if m.machine(t).DurableApplied() == 0 {
				t.Errorf("%s keeps no image", m.name)
			}
		}
		c.stopAll()
		c.startAll()
		c.same()
		c.write(30)
		c.same()
	})
}

// TestLostDisk: a node comes back with an empty disk, takes its own place as
// another replica, and gets the state by an image.
func TestLostDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stopAll()
		c.write(50)
		c.same()
		old := map[string]uint64{}
		for _, m := range c.members {
			old[m.name] = m.node.Load().Hello().GetReplicas()[0].GetRaftId()
		}
		away := c.leaveBehind()
		away.fsys = vfs.NewCrashableMem()
		if err := c.start(away, &raftnode.Join{Addresses: []string{c.leader().address}, Replace: true}); err != nil {
			t.Fatal(err)
		}
		hello := away.node.Load().Hello()
		fresh := raftnode.NewReplica{
			RaftID: hello.GetReplicas()[0].GetRaftId(), Node: away.name, Address: away.address, Incarnation: hello.GetNodeIncarnation(),
		}
		change := func(change raftnode.Change) {
			t.Helper()
			var last error
			c.until(fmt.Sprintf("the change %+v is made", change), func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if _, err := c.leader().group(t).ChangeMembership(ctx, change); err != nil {
					last = err
				} else {
					last = nil
				}
				return last == nil
			})
		}
		change(raftnode.Change{AddLearners: []raftnode.NewReplica{fresh}})
		c.write(30)
		change(raftnode.Change{Promote: []uint64{fresh.RaftID}, Remove: []uint64{old[away.name]}})
		c.same()
		if n := away.node.Load().Metrics().Groups[0].Installs; n != 1 {
			t.Errorf("%s installed %d images, expected 1", away.name, n)
		}
		// It counts as a voter: with it alone beside one other the group goes on.
		for _, m := range c.members {
			if m != away && m != c.leader() {
				c.stop(m)
				break
			}
		}
		c.write(10)
	})
}

package testcluster

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// TestCase11SlowReceiverGivesUpItsSlot: two replicas are behind and the sources
// have one slot each. One of them takes 8 bytes a second: it loses its slot to the
// other, and the log that is kept for it is bounded.
//
// It guards the eviction of slow holders, and the bound of the pin.
func TestCase11SlowReceiverGivesUpItsSlot(t *testing.T) {
	slow := &bucket{}
	var receiver atomic.Pointer[member]
	runCase(t, 5, tuning{
		receiver: patient,
		files: func(m *member, fs vfs.FS) vfs.FS {
			return &slowDisk{fs, slow, func(path string) bool { return m == receiver.Load() && isIncoming(path) }}
		},
		source: func(_ *member, o *snapshot.SourceOptions) {
			slots, err := snapshot.NewSlots(snapshot.SlotsOptions{Slots: 1})
			if err != nil {
				t.Fatal(err)
			}
			o.Slots = slots
		},
		node: func(_ *member, o *raftnode.Options) { o.DiskCheckInterval = 50 * time.Millisecond },
	}, func(c *caseRun) {
		c.fill(100, 2<<10)
		one := c.follower()
		two := c.follower(one)
		c.behind(one, two)
		receiver.Store(one)
		slow.rate.Store(8)
		c.network.Rejoin(one.name)
		c.await("the slow one is served", func() bool {
			return slices.ContainsFunc(transfersOf(one), func(s raftnode.TransferStatus) bool { return s.BytesTotal > 0 })
		})
		c.network.Rejoin(two.name)
		begin, most := time.Now(), int64(0)
		for i := 0; c.installs(two) == 0; i++ {
			c.put(fmt.Sprintf("k/%04d", i%100), 2<<10)
			c.pass(50 * time.Millisecond)
			most = max(most, c.group(c.leader(raftnode.FirstDataGroup)).Status().LogBytes)
			if time.Since(begin) > 5*time.Minute {
				t.Fatalf("it still waits: %+v", transfersOf(two))
			}
		}
		waited := time.Since(begin)
		gaveUp := slices.ContainsFunc(c.members, func(m *member) bool {
			return slices.ContainsFunc(m.last().images.source.EndedSends(), func(s snapshot.SendInfo) bool {
				return s.Node == one.name && errors.Is(s.Err, snapshot.ErrGivenUp)
			})
		})
		t.Logf("the other one has its image after %v; %d bytes of log at most", waited, most)
		if !gaveUp || waited < 30*time.Second || c.installs(one) > 0 {
			t.Errorf("the slow one was not given up: %+v", transfersOf(one))
		}
		if most > 12*c.plan.BudgetBytes {
			t.Errorf("%d bytes of log were kept, the budget is %d", most, c.plan.BudgetBytes)
		}
		slow.rate.Store(0)
		c.level()
	})
}

// transfersOf are the data group's.
func transfersOf(m *member) (list []raftnode.TransferStatus) {
	for _, s := range m.last().node.Transfers() {
		if s.Group == raftnode.FirstDataGroup {
			list = append(list, s)
		}
	}
	return list
}

// TestCase21ChunksSlowerThanTimeouts: a chunk takes longer than every time-out of
// a call. The image arrives, by smaller chunks, without a second one.
//
// It guards that there is no total deadline, that a stall is a byte not written
// and not a message not come, and that chunks are halved after a stall.
func TestCase21ChunksSlowerThanTimeouts(t *testing.T) {
	var rate atomic.Int64
	var receiver atomic.Pointer[member]
	runCase(t, 3, tuning{
		receiver: func(m *member, o *snapshot.ReceiverOptions) {
			patient(m, o)
			o.ChunkBytes, o.WindowBytes, o.BudgetBytes = 1<<20, 16<<20, 64<<20
		},
		source: func(_ *member, o *snapshot.SourceOptions) { o.ChunkBytes = 1 << 20 },
		stream: slowReceiver(&rate, func(m *member) bool { return m == receiver.Load() }),
	}, func(c *caseRun) {
		c.fill(128, 8<<10)
		m := c.follower()
		receiver.Store(m)
		c.behind(m)
		for i := range 128 {
			c.put(fmt.Sprintf("k/%04d", i), 8<<10)
		}
		rate.Store(8 << 10) // a chunk of 1 MiB takes more than two minutes
		c.network.Rejoin(m.name)
		begin := time.Now()
		c.await("the image is installed", func() bool { return c.installs(m) > 0 })
		took := time.Since(begin)
		c.level()
		told := transfersOf(m)
		t.Logf("%d bytes took %v and %d attempts", told[0].BytesTotal, took, told[0].Attempt)
		if took < 60*time.Second || told[len(told)-1].BytesTotal < 1<<20 {
			t.Errorf("the image of %d bytes came within %v: nothing was slow", told[len(told)-1].BytesTotal, took)
		}
		if n := c.installs(m); n > 2 {
			t.Errorf("%d images", n)
		}
	})
}

// TestCase20FlappingFollower: a follower comes and goes every few seconds, for an
// hour, while the others write. Their logs and its inbox stay bounded, and it is
// level in the end.
//
// It guards the bound of the log for a member that is silent or slow, and the
// sweep of what is staged.
func TestCase20FlappingFollower(t *testing.T) {
	runCase(t, 3, tuning{
		node: func(_ *member, o *raftnode.Options) {
			o.TickInterval, o.HeartbeatTicks, o.ElectionTicks = 500*time.Millisecond, 2, 6
			o.DiskCheckInterval = time.Second
		},
	}, func(c *caseRun) {
		c.fill(20, 2<<10)
		m := c.follower()
		var most, staged int64
		away := false
		begin := time.Now()
		for i := 0; time.Since(begin) < time.Hour; i++ {
			if i%5 == 4 {
				if away = !away; away {
					c.network.Isolate(m.name)
				} else {
					c.network.Rejoin(m.name)
				}
			}
			c.put(fmt.Sprintf("k/%04d", i%20), 16<<10)
			c.pass(4 * time.Second)
			if l := c.leader(raftnode.FirstDataGroup); l != nil {
				most = max(most, c.group(l).Status().LogBytes)
			}
			if i%20 == 0 {
				staged = max(staged, usage(t, m, "groups/2/inbox")+usage(t, m, "groups/2/images"))
			}
		}
		c.network.Rejoin(m.name)
		c.level()
		full, delta := c.figures()
		t.Logf("%d full images and %d deltas; %d bytes of log and %d staged at most", full, delta, most, staged)
		if most > 10*c.plan.BudgetBytes {
			t.Errorf("%d bytes of log, the budget is %d", most, c.plan.BudgetBytes)
		}
		if staged > 1<<20 {
			t.Errorf("%d bytes are staged and kept, the state has %d", staged, 20*16<<10)
		}
		if full+delta == 0 {
			t.Error("it never fell behind the log")
		}
	})
}

// usage is what the files below a directory of a node take.
func usage(t *testing.T, m *member, dir string) (total int64) {
	t.Helper()
	fs := m.disk.mem
	path := fs.PathJoin(nodeDir, dir)
	names, err := fs.List(path)
	if err != nil {
		return 0 // it may go at any moment
	}
	for _, name := range names {
		below := fs.PathJoin(dir, name)
		info, err := fs.Stat(fs.PathJoin(nodeDir, below))
		if err != nil {
			continue
		}
		if info.IsDir() {
			total += usage(t, m, below)
		} else {
			total += info.Size()
		}
	}
	return total
}

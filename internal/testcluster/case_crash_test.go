package testcluster

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/kv"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// TestCase04PowerLossAtEveryStep: all nodes lose their power right before an
// operation on the disk of the node that receives, checks, installs and sweeps a
// full image or a delta, with none and with half of what was not synced. The
// cluster that starts from that is sound and takes writes.
//
// It guards the order of every publishing: data, then its record; state, then
// log, with the READY record between them.
func TestCase04PowerLossAtEveryStep(t *testing.T) {
	for _, kind := range []string{"full", "delta"} {
		t.Run(kind, func(t *testing.T) {
			total := 0
			receiveAndCrash(t, kind, 0, &total)
			if total < 40 {
				t.Fatalf("only %d operations; that is no installation", total)
			}
			crashes := receiveAndCrash(t, kind, crashStride(total), &total)
			for _, crash := range crashes {
				synctest.Test(t, func(t *testing.T) { reopen(t, 3, crash) })
				if t.Failed() {
					return
				}
			}
			t.Logf("%d operations, %d crashes", total, len(crashes))
			if len(crashes) < 40 {
				t.Errorf("%d crashes prove too little", len(crashes))
			}
		})
	}
}

// receiveAndCrash has a node get an image and takes a crash of all at every
// stride-th operation on its disk meanwhile; with stride 0 it only counts them.
func receiveAndCrash(t *testing.T, kind string, stride int, total *int) (crashes []wholeCrash) {
	var mu sync.Mutex
	operations, watching := 0, false
	random := newRandom(1, 2)
	runCase(t, 3, tuning{store: func(_ *member, o *kv.Options) {
		if kind == "full" {
			o.JournalBytes = 1
		}
	}}, func(c *caseRun) {
		c.fill(60, 2<<10)
		m := c.follower()
		c.behind(m)
		run := m.current()
		m.disk.watch(func(op errorfs.Op) {
			run.operation(op)
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if !watching {
				return
			}
			if operations++; stride == 0 || operations%stride != 0 {
				return
			}
			for _, percent := range []int{0, 50} {
				crash := wholeCrash{operation: operations, percent: percent}
				for _, o := range c.members {
					crash.disks = append(crash.disks, o.disk.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random}))
				}
				crashes = append(crashes, crash)
			}
		})
		watch := func(on bool) {
			mu.Lock()
			defer mu.Unlock()
			watching = on
		}
		watch(true)
		c.network.Rejoin(m.name)
		c.await("the image is installed and its inbox gone", func() bool {
			return c.installs(m) > 0 && usage(t, m, "groups/2/inbox") == 0
		})
		watch(false)
		if full, delta := c.figures(); (full > 0) != (kind == "full") || (delta > 0) != (kind == "delta") {
			t.Errorf("%d full images and %d deltas", full, delta)
		}
		c.level()
	})
	*total = operations
	return crashes
}

// TestCase02FullDiskLeavesNothing: an image is offered to a node whose disk is
// full, ten times. No byte of it stays; and when there is space it is got,
// without a restart.
//
// It guards that the room is looked at before the first byte, and that an attempt
// which fails cleans up. TestDiskFull of package snapshot fills the disk at
// different moments of one transfer.
func TestCase02FullDiskLeavesNothing(t *testing.T) {
	runCase(t, 3, tuning{
		node: func(_ *member, o *raftnode.Options) { o.DiskReserveBytes = -1 },
		receiver: func(_ *member, o *snapshot.ReceiverOptions) {
			o.GiveUpAfter = time.Second
		},
	}, func(c *caseRun) {
		c.fill(60, 2<<10)
		m := c.follower()
		c.behind(m)
		run := m.runs
		before := usage(t, m, "groups")
		m.disk.setFull(true, false)
		c.network.Rejoin(m.name)
		refused := make(map[string]bool)
		c.await("ten transfers have ended for want of space", func() bool {
			for _, s := range transfersOf(m) {
				if !s.Ended.IsZero() {
					refused[s.Started.String()] = true
				}
			}
			return len(refused) >= 10
		})
		for _, s := range transfersOf(m) {
			if !s.Ended.IsZero() && !errors.Is(s.Err, snapshot.ErrNoSpace) {
				t.Errorf("a transfer ended with %v", s.Err)
			}
		}
		c.await("no byte of it is left", func() bool { return usage(t, m, "groups/2/inbox") < 1<<10 })
		if after := usage(t, m, "groups"); after > before+4<<10 {
			t.Errorf("%d bytes are used, %d were before", after, before)
		}
		m.disk.setFull(false, false)
		c.level()
		if c.installs(m) == 0 || m.runs != run {
			t.Errorf("%d images, %d starts", c.installs(m), m.runs-run)
		}
	})
}

// TestCase15DiskFilledFromOutside: somebody else fills the disk of a node while
// it receives an image and follows another log, and frees it again. The node goes
// on, with the files it had staged, without a restart.
//
// It guards that a full disk ends an attempt and never the process.
func TestCase15DiskFilledFromOutside(t *testing.T) {
	var full atomic.Bool
	var receiver atomic.Pointer[member]
	var rate, refused atomic.Int64
	runCase(t, 3, tuning{
		node:     func(_ *member, o *raftnode.Options) { o.DiskReserveBytes = 64 << 10 },
		receiver: patient,
		stream:   slowReceiver(&rate, func(m *member) bool { return m == receiver.Load() }),
		files: func(m *member, fs vfs.FS) vfs.FS {
			return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
				write := op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpCreate
				if write && m == receiver.Load() && full.Load() && isIncoming(op.Path) {
					refused.Add(1)
					return syscall.ENOSPC
				}
				return nil
			}))
		},
		store: func(_ *member, o *kv.Options) { o.JournalBytes = 1 },
	}, func(c *caseRun) {
		c.fill(100, 2<<10)
		m := c.follower()
		receiver.Store(m)
		c.behind(m)
		runs := m.runs
		rate.Store(64 << 10)
		c.network.Rejoin(m.name)
		c.await("a part has arrived", func() bool {
			return slices.ContainsFunc(transfersOf(m), func(s raftnode.TransferStatus) bool { return s.BytesDone > s.BytesTotal/3 && s.BytesTotal > 0 })
		})
		full.Store(true)
		m.disk.setFull(true, true)
		c.await("a write was refused", func() bool { return refused.Load() > 0 })
		for i := range 20 {
			c.put(fmt.Sprintf("k/%04d", i), 1<<10) // the others go on
			c.pass(100 * time.Millisecond)
		}
		if c.installs(m) > 0 {
			t.Fatal("the image was installed on a full disk")
		}
		m.disk.setFull(false, false)
		full.Store(false)
		rate.Store(0)
		c.await("the image is installed", func() bool { return c.installs(m) > 0 })
		c.level()
		if m.runs != runs || m.current().failure() != nil {
			t.Errorf("%d starts, failure %v", m.runs-runs, m.current().failure())
		}
	})
}

// TestCase16LeaderKilledBetweenReceiveAndApply: the leader that offered an image
// crashes when the receiver has all of it and is about to install. The receiver
// installs under the next leader.
//
// It guards that a transfer is between receiver and source, and that the snapshot
// is stepped as if the leader of the moment had sent it, never as a candidate.
func TestCase16LeaderKilledBetweenReceiveAndApply(t *testing.T) {
	for _, kind := range []string{"before the files are opened", "before the state is switched"} {
		t.Run(kind, func(t *testing.T) {
			var kill func()
			var once sync.Once
			die := func() { once.Do(func() { kill() }) }
			tune := tuning{receiver: patient}
			if kind == "before the state is switched" {
				tune.installs = func(*member) { die() }
			} else {
				tune.received = func(*member, *snapshotv1.Manifest, string) { die() }
			}
			runCase(t, 3, tune, func(c *caseRun) {
				c.fill(60, 2<<10)
				m := c.follower()
				c.behind(m)
				leader := c.leader(raftnode.FirstDataGroup)
				killed := make(chan struct{})
				kill = func() {
					r := leader.current()
					r.mu.Lock()
					r.crashLocked(crashNone, leader.random)
					r.mu.Unlock()
					close(killed)
				}
				c.network.Rejoin(m.name)
				<-killed
				leader.crash(crashNone)
				c.await("another one leads and the image is installed", func() bool {
					l := c.leader(raftnode.FirstDataGroup)
					return l != nil && l != leader && c.installs(m) > 0
				})
				c.put("after", 100)
				c.restart(leader)
				c.level()
				if n := c.installs(m); n > 2 {
					t.Errorf("%d images were installed", n)
				}
			})
		})
	}
}

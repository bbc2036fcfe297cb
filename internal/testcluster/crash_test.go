package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// crashPoints is how many operations of a run are followed by a crash, unless
// STREAMRAFT_LONG is 1: then all are.
const crashPoints = 48

// crashStride is from how many operations one is followed by a crash.
func crashStride(operations int) int {
	if os.Getenv("STREAMRAFT_LONG") == "1" {
		return 1
	}
	return max(1, operations/crashPoints)
}

// TestCrashBeforeEveryOperation writes to a cluster, from its founding on, and
// takes what a power failure of all nodes right before an operation on a disk
// leaves, with none and with half of what was not synced. A cluster opened from
// that has everything that was acknowledged by then, and its replicas agree.
func TestCrashBeforeEveryOperation(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("nodes=%d", nodes), func(t *testing.T) {
			total := 0
			synctest.Test(t, func(t *testing.T) { _, total = writeAndCrash(t, nodes, 0) })
			if total < 200 {
				t.Fatalf("only %d operations; that is not a write path", total)
			}
			var crashes []wholeCrash
			synctest.Test(t, func(t *testing.T) { crashes, _ = writeAndCrash(t, nodes, crashStride(total)) })
			acknowledged := 0
			for _, c := range crashes {
				synctest.Test(t, func(t *testing.T) { reopen(t, nodes, c) })
				acknowledged += len(c.acknowledged)
				if t.Failed() {
					return
				}
			}
			t.Logf("%d operations, %d crashes, %d keys acknowledged before them", total, len(crashes), acknowledged)
			if len(crashes) < crashPoints || acknowledged < crashPoints {
				t.Errorf("%d crashes with %d acknowledged keys prove too little", len(crashes), acknowledged)
			}
		})
	}
}

// wholeCrash is what a power failure left of all nodes.
type wholeCrash struct {
	operation    int
	percent      int
	disks        []*vfs.MemFS
	acknowledged map[string]int // last acknowledged write of each key
	doubtful     bool           // a state may be wrong, and nobody has found that yet
}

func focusedPlan(nodes int) *Plan {
	return &Plan{Nodes: nodes, SegmentBytes: 128 << 10, BudgetBytes: 16 << 10, JournalBytes: 256 << 10, ReserveBytes: -1}
}

// writeAndCrash writes to a new cluster and takes a crash at every stride-th
// operation; with stride 0 it only counts them.
func writeAndCrash(t *testing.T, nodes, stride int) (crashes []wholeCrash, operations int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	trace := newTrace()
	checker := newChecker(trace, cancel)
	c, err := newCluster(focusedPlan(nodes), false, trace, checker)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	acknowledged := make(map[string]int)
	random := newRandom(uint64(nodes), 1)
	c.onOperation = func(*member) {
		mu.Lock()
		defer mu.Unlock()
		if operations++; stride == 0 || operations%stride != 0 {
			return
		}
		for _, percent := range []int{0, 50} {
			crash := wholeCrash{operation: operations, percent: percent, acknowledged: make(map[string]int)}
			for key, n := range acknowledged {
				crash.acknowledged[key] = n
			}
			for _, m := range c.members {
				crash.disks = append(crash.disks, m.disk.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random}))
			}
			crashes = append(crashes, crash)
		}
	}
	if err := c.found(ctx); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			for i := range 40 {
				key := fmt.Sprintf("%d/%d", w, i%7)
				value := strconv.Itoa(i) + "|" + strings.Repeat("x", 100+300*(i%9))
				if err := putAtLeader(ctx, c, key, value); err != nil {
					checker.violation("write %s: %v", key, err)
					return
				}
				mu.Lock()
				acknowledged[key] = i
				mu.Unlock()
				pause(ctx, 15*time.Millisecond)
			}
		})
	}
	writers.Wait()
	c.stop()
	for _, v := range checker.found() {
		t.Error(v)
	}
	return crashes, operations
}

// putAtLeader puts a record, at whichever node leads.
func putAtLeader(ctx context.Context, c *cluster, key, value string) error {
	return proposeAtLeader(ctx, c, kv.EncodePut(nil, []byte(key), []byte(value), nil))
}

func proposeAtLeader(ctx context.Context, c *cluster, command []byte) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	for {
		err := errors.New("no leader")
		if m := c.leader(raftnode.FirstDataGroup); m != nil {
			var g *raftnode.Group
			if g, err = m.current().node.Group(raftnode.FirstDataGroup); err != nil {
				return err
			}
			if _, err = g.Propose(ctx, command); err == nil {
				return nil
			}
		}
		if !pause(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// reopen opens a cluster from what a crash left and compares.
func reopen(t *testing.T, nodes int, crash wholeCrash) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	trace := newTrace()
	checker := newChecker(trace, cancel)
	c, err := newCluster(focusedPlan(nodes), false, trace, checker)
	if err != nil {
		t.Fatal(err)
	}
	c.reopened, c.goesBack = true, true
	for i, m := range c.members {
		m.disk = newDisk(crash.disks[i])
	}
	where := fmt.Sprintf("crash before operation %d, %d %% kept", crash.operation, crash.percent)
	if err := c.found(ctx); err != nil {
		t.Errorf("%s: %v", where, err)
		c.stop()
		return
	}
	defer func() {
		c.stop()
		for _, v := range checker.found() {
			t.Errorf("%s: %s", where, v)
		}
		if t.Failed() {
			t.Log(strings.Join(trace.tail(30), "\n"))
		}
	}()
	// The write after the crash also has everything before it applied.
	if err := putAtLeader(ctx, c, "after", "crash"); err != nil {
		t.Errorf("%s: no write succeeds: %v", where, err)
		return
	}
	if crash.doubtful {
		// A digest finds it.
		if err := proposeAtLeader(ctx, c, mustEncode(t)(kv.EncodeTakeDigest(nil))); err != nil {
			t.Errorf("%s: take a digest: %v", where, err)
			return
		}
		pause(ctx, time.Second)
	}
	// A replica on its way back from behind the log is not asked for a digest: the
	// image it gets may be of a later index.
	healed := time.Now()
	for !c.level(raftnode.FirstDataGroup) {
		if time.Since(healed) > recoveryLimit || !pause(ctx, 20*time.Millisecond) {
			t.Errorf("%s: not all replicas are level", where)
			return
		}
	}
	leader := c.leader(raftnode.FirstDataGroup).current()
	g, err := leader.node.Group(raftnode.FirstDataGroup)
	if err != nil {
		t.Fatal(err)
	}
	result, err := g.Propose(ctx, mustEncode(t)(kv.EncodeTakeDigest(nil)))
	if err != nil {
		t.Errorf("%s: take a digest: %v", where, err)
		return
	}
	c.sameDigest(raftnode.FirstDataGroup, result.Revision>>16, recoveryLimit)
	for key, written := range crash.acknowledged {
		got, err := leader.machine(raftnode.FirstDataGroup).Get([]byte(key))
		n, convErr := strconv.Atoi(identity(got.Record.Value))
		if err != nil || convErr != nil || n < written {
			t.Errorf("%s: key %s has %q (%v), acknowledged was write %d", where, key, identity(got.Record.Value), err, written)
		}
	}
}

func mustEncode(t *testing.T) func([]byte, error) []byte {
	return func(command []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return command
	}
}

// level tells that all replicas have a sound state and applied what is committed.
func (c *cluster) level(group uint64) bool {
	leader := c.leader(group)
	if leader == nil {
		return false
	}
	commit := uint64(0)
	for _, r := range append([]*run{leader.current()}, c.up()...) {
		g, err := r.node.Group(group)
		if err != nil {
			return false
		}
		s := g.Status()
		commit = max(commit, s.Commit)
		if s.Failure != "" || s.Quarantined != "" || s.Applied < commit {
			return false
		}
	}
	return len(c.up()) == len(c.members)
}

package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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

// replacePoints is how many operations of a replacement are followed by a crash;
// with STREAMRAFT_LONG set all are.
const replacePoints = 30

// TestCrashWhileStateIsReplaced has a replica replace its state by an image: one
// whose state is wrong, which a digest finds or which is told, and one that is behind the log and whose installation
// fails, before the switch or after it, so that it is opened anew in place. It
// takes what a power failure of all nodes right before an operation on the disk
// of that replica leaves, with none and with half of what was not synced. A
// cluster opened from that has everything, without help.
func TestCrashWhileStateIsReplaced(t *testing.T) {
	for name, replace := range map[string]func(*replacement) error{
		"quarantined":               (*replacement).quarantine,
		"quarantined, log far away": (*replacement).quarantineAway,
		"install fails before":      func(r *replacement) error { return r.failedInstall(false) },
		"install fails after":       func(r *replacement) error { return r.failedInstall(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			total := 0
			synctest.Test(t, func(t *testing.T) { _, total = replaceAndCrash(t, replace, 0) })
			if t.Failed() {
				return
			}
			if total < replacePoints {
				t.Fatalf("only %d operations; nothing was replaced", total)
			}
			stride := max(1, total/replacePoints)
			if os.Getenv("STREAMRAFT_LONG") != "" {
				stride = 1
			}
			var crashes []wholeCrash
			synctest.Test(t, func(t *testing.T) { crashes, _ = replaceAndCrash(t, replace, stride) })
			for _, c := range crashes {
				synctest.Test(t, func(t *testing.T) { reopen(t, 3, c) })
				if t.Failed() {
					return
				}
			}
			t.Logf("%d operations, %d crashes", total, len(crashes))
		})
	}
}

// replacement is a cluster, one of whose replicas replaces its state.
type replacement struct {
	ctx context.Context
	c   *cluster

	mu      sync.Mutex
	sick    *member
	watched bool // crashes are taken
	spoiled bool // the state of sick is wrong
	refuse  int  // installations to refuse, once the state has switched or before
	after   bool
	written map[string]int
}

// replaceAndCrash takes a crash at every stride-th operation of the replica's disk
// while its state is replaced; with stride 0 it only counts them.
func replaceAndCrash(t *testing.T, replace func(*replacement) error, stride int) (crashes []wholeCrash, operations int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	trace := newTrace()
	checker := newChecker(trace, cancel)
	c, err := newCluster(focusedPlan(3), false, trace, checker)
	if err != nil {
		t.Fatal(err)
	}
	c.goesBack = true
	r := &replacement{ctx: ctx, c: c, written: make(map[string]int)}
	random := newRandom(3, 1)
	c.onOperation = func(m *member) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if m != r.sick || !r.watched {
			return
		}
		if operations++; stride == 0 || operations%stride != 0 {
			return
		}
		for _, percent := range []int{0, 50} {
			crash := wholeCrash{operation: operations, percent: percent, acknowledged: maps.Clone(r.written), doubtful: r.spoiled}
			if s, err := m.current().node.Group(raftnode.FirstDataGroup); err == nil && s.Status().Quarantined != "" {
				crash.doubtful = false
			}
			for _, m := range c.members {
				crash.disks = append(crash.disks, m.disk.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random}))
			}
			crashes = append(crashes, crash)
		}
	}
	c.refuseInstall = func(m *member, after bool) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if m != r.sick || r.refuse == 0 || r.after != after {
			return nil
		}
		r.refuse--
		return errors.New("told to fail")
	}
	c.spoil = r.spoil
	if err := errors.Join(c.found(ctx), r.prepare(), replace(r)); err != nil {
		t.Errorf("%v\n%s", err, strings.Join(trace.tail(30), "\n"))
	}
	r.watch(false)
	c.stop()
	for _, v := range checker.found() {
		t.Error(v)
	}
	return crashes, operations
}

func (r *replacement) watch(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched = on
}

// put writes n keys.
func (r *replacement) put(n int) error {
	for range n {
		r.mu.Lock()
		i := len(r.written)
		r.mu.Unlock()
		key := strconv.Itoa(i)
		if err := putAtLeader(r.ctx, r.c, key, key+"|"+strings.Repeat("x", 100+300*(i%9))); err != nil {
			return err
		}
		r.mu.Lock()
		r.written[key] = i
		r.mu.Unlock()
	}
	return nil
}

// prepare writes some and chooses a follower.
func (r *replacement) prepare() error {
	if err := r.put(30); err != nil {
		return err
	}
	leader := r.c.leader(raftnode.FirstDataGroup)
	r.mu.Lock()
	for _, m := range r.c.members {
		if m != leader {
			r.sick = m
		}
	}
	r.mu.Unlock()
	return r.wait("the follower is level", func() bool {
		return r.status(r.sick).Applied >= r.status(leader).Commit
	})
}

func (r *replacement) group(m *member) *raftnode.Group {
	g, err := m.current().node.Group(raftnode.FirstDataGroup)
	if err != nil {
		r.c.checker.violation("%v", err)
	}
	return g
}

func (r *replacement) status(m *member) raftnode.GroupStatus { return r.group(m).Status() }

func (r *replacement) wait(what string, done func() bool) error {
	ctx, cancel := context.WithTimeout(r.ctx, recoveryLimit)
	defer cancel()
	for !done() {
		if !pause(ctx, 20*time.Millisecond) {
			return fmt.Errorf("not within %v: %s", recoveryLimit, what)
		}
	}
	return nil
}

// leave isolates the replica until the log does not reach it any more.
func (r *replacement) leave() error {
	r.c.network.Isolate(r.sick.name)
	last := r.status(r.sick).LastIndex
	return r.wait("the others cut their logs", func() bool {
		if err := r.put(5); err != nil {
			return false
		}
		for _, m := range r.c.members {
			if m != r.sick && r.status(m).FirstIndex <= last+1 {
				return false
			}
		}
		return true
	})
}

// healed waits until the replica is level, by an image.
func (r *replacement) healed() error {
	if err := r.put(5); err != nil {
		return err
	}
	return r.wait("the replica has an image and is level", func() bool {
		installs := uint64(0)
		for _, g := range r.sick.current().node.Metrics().Groups {
			if g.Group == raftnode.FirstDataGroup {
				installs = g.Installs
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		// An installation that failed after the switch is finished by the reopening.
		return (installs > 0 || r.after) && r.refuse == 0 && r.c.level(raftnode.FirstDataGroup)
	})
}

// goodValue is what one write says, and badValue what it does at the sick replica.
const goodValue, badValue = "as it was written", "as it was spoiled"

// spoil has the sick replica apply something else than was written.
func (r *replacement) spoil(m *member, entries []raftnode.Entry) []raftnode.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m != r.sick {
		return entries
	}
	entries = slices.Clone(entries)
	for i := range entries {
		if bytes.Contains(entries[i].Data, []byte(goodValue)) {
			entries[i].Data = bytes.ReplaceAll(entries[i].Data, []byte(goodValue), []byte(badValue))
			r.spoiled = true
		}
	}
	return entries
}

// makeUnsound makes the state of the replica wrong, durably.
func (r *replacement) makeUnsound() error {
	if err := putAtLeader(r.ctx, r.c, "spoiled", goodValue); err != nil {
		return err
	}
	err := r.wait("the replica has applied it", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.spoiled
	})
	return errors.Join(err, r.sick.current().machine(raftnode.FirstDataGroup).Flush())
}

func (r *replacement) quarantined() bool { return r.status(r.sick).Quarantined != "" }

func (r *replacement) quarantine() error {
	if err := r.makeUnsound(); err != nil {
		return err
	}
	r.watch(true)
	command, err := kv.EncodeTakeDigest(nil)
	if err != nil {
		return err
	}
	if err := proposeAtLeader(r.ctx, r.c, command); err != nil {
		return err
	}
	return errors.Join(r.wait("the digest finds it", r.quarantined), r.healed())
}

func (r *replacement) quarantineAway() error {
	if err := errors.Join(r.makeUnsound(), r.leave()); err != nil {
		return err
	}
	r.watch(true)
	r.group(r.sick).Quarantine(errors.New("told to"))
	if err := r.wait("it is quarantined", r.quarantined); err != nil {
		return err
	}
	r.c.network.Rejoin(r.sick.name)
	return r.healed()
}

func (r *replacement) failedInstall(after bool) error {
	if err := r.leave(); err != nil {
		return err
	}
	r.mu.Lock()
	r.watched, r.refuse, r.after = true, 1, after
	r.mu.Unlock()
	r.c.network.Rejoin(r.sick.name)
	return r.healed()
}

// TestFlippedBit: a bit of a table flips while its node is down. Whoever finds it,
// a reader, a compaction or the scrubber, the replica is quarantined and gets
// another state, and everything is there.
func TestFlippedBit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		trace := newTrace()
		checker := newChecker(trace, cancel)
		c, err := newCluster(focusedPlan(3), false, trace, checker)
		if err != nil {
			t.Fatal(err)
		}
		c.goesBack = true
		r := &replacement{ctx: ctx, c: c, written: make(map[string]int)}
		if err := errors.Join(c.found(ctx), r.prepare(), r.sick.current().machine(raftnode.FirstDataGroup).Flush()); err != nil {
			t.Fatal(err)
		}
		r.sick.crash(crashKill)
		if n := flipTables(t, r.sick.disk.mem, fmt.Sprintf("%s/groups/%d", nodeDir, raftnode.FirstDataGroup)); n == 0 {
			t.Fatal("there is no table")
		}
		c.restart(r.sick)
		if run := r.sick.current(); run != nil {
			for key := range r.written {
				_, _ = run.machine(raftnode.FirstDataGroup).Get([]byte(key)) // some fail
			}
		}
		if err := r.healed(); err != nil {
			t.Errorf("%v\n%s", err, strings.Join(trace.tail(30), "\n"))
		}
		for key, n := range r.written {
			got, err := r.sick.current().machine(raftnode.FirstDataGroup).Get([]byte(key))
			if err != nil || identity(got.Record.Value) != strconv.Itoa(n) {
				t.Errorf("key %s: %q, %v", key, identity(got.Record.Value), err)
			}
		}
		c.stop()
		for _, v := range checker.found() {
			t.Error(v)
		}
	})
}

// flipTables flips a bit in the middle of each table below dir and returns how
// many there were.
func flipTables(t *testing.T, fs *vfs.MemFS, dir string) (tables int) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		if info, err := fs.Stat(path); err == nil && info.IsDir() {
			tables += flipTables(t, fs, path)
			continue
		}
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		data, err := fs.UnsafeGetFileDataBuffer(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{data[len(data)/3] ^ 1}, int64(len(data)/3)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
		tables++
	}
	return tables
}

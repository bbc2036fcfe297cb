package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	"github.com/streamraft/streamraft/raftnode"
)

// crashPoint is the file system as a crash before one operation leaves it, and
// what the store had promised by then.
type crashPoint struct {
	op      string
	durable uint64
	fs      *vfs.MemFS
}

// crashRecorder takes a crash point before each operation that writes.
type crashRecorder struct {
	mem     *vfs.MemFS
	percent int
	store   atomic.Pointer[Store]

	mu     sync.Mutex
	random *rand.Rand
	points []crashPoint
	off    bool
}

func (c *crashRecorder) String() string { return "crash recorder" }

// MaybeError records and never errs.
func (c *crashRecorder) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.store.Load()
	if s == nil || c.off {
		return nil
	}
	// The promise is read first: the crash comes after it.
	point := crashPoint{op: fmt.Sprintf("%d %s", op.Kind, op.Path), durable: s.DurableApplied()}
	point.fs = c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.percent, RNG: c.random})
	c.points = append(c.points, point)
	return nil
}

// TestCrashBeforeEachOperation crashes before each write operation of Open,
// Apply and Flush, and wants a prefix of the log at an index boundary with its
// own applied record, at least what was promised, that converges with the rest.
func TestCrashBeforeEachOperation(t *testing.T) {
	log := newRandomLog(3)
	// Some indexes are larger than a memtable: were one split over two batches,
	// a crash would find half of it.
	log.value, log.wide = 3000, 60
	log.grow(250)
	log.add(must(EncodeTakeDigest(nil)))
	shared := testShared(t)
	opts := Options{Shared: shared, MemTableBytes: 64 << 10, JournalBytes: 1 << 30}

	// What the state is at each index.
	reference := openStore(t, opts)
	states := []string{dump(t, reference)}
	for _, e := range splitIndexes(log.entries) {
		if _, err := reference.Apply(e); err != nil {
			t.Fatal(err)
		}
		states = append(states, dump(t, reference))
	}
	want, err := reference.DigestAt(context.Background(), log.index)
	if err != nil {
		t.Fatal(err)
	}

	for _, percent := range []int{0, 50} {
		t.Run(fmt.Sprintf("unsynced=%d", percent), func(t *testing.T) {
			recorder := &crashRecorder{mem: vfs.NewCrashableMem(), percent: percent, random: rand.New(rand.NewPCG(1, 1))}
			makeDir(t, recorder.mem)
			o := opts
			o.FS = errorfs.Wrap(recorder.mem, recorder)
			s := newStore(t, o)
			s.batchBytes = 8 << 10
			recorder.store.Store(s)
			if _, err := s.Open(testDir); err != nil {
				t.Fatal(err)
			}
			feed := splitIndexes(log.entries)
			for i := 0; i < len(feed); {
				var call []raftnode.Entry
				for range 1 + i%7 {
					if i < len(feed) {
						call = append(call, feed[i]...)
						i++
					}
				}
				if _, err := s.Apply(call); err != nil {
					t.Fatal(err)
				}
				if i%50 < 4 {
					if err := s.Flush(); err != nil {
						t.Fatal(err)
					}
				}
			}
			closeStore(t, s)
			recorder.mu.Lock()
			recorder.off = true
			recorder.mu.Unlock()
			survived := make(map[uint64]bool)
			for _, point := range recorder.points {
				o := opts
				o.FS = point.fs
				// Two crashes that left the same index left the same rows, which
				// is checked; replaying one of them is enough.
				checkCrash(t, o, point, states, log.entries, want, survived)
			}
			t.Logf("%d crash points, %d different survivors", len(recorder.points), len(survived))
			if len(recorder.points) < 100 || len(survived) < 5 {
				t.Error("too few crash points to prove anything")
			}
		})
	}
}

// checkCrash opens what a crash left, and goes on from there where no crash
// before left the same index.
func checkCrash(t *testing.T, o Options, point crashPoint, states []string, entries []raftnode.Entry, want Digest, survived map[uint64]bool) {
	t.Helper()
	s := newStore(t, o)
	applied, err := s.Open(testDir)
	if err != nil {
		t.Fatalf("crash before %s: %v", point.op, err)
	}
	defer closeStore(t, s)
	if applied.Index < point.durable || s.DurableApplied() != applied.Index {
		t.Fatalf("crash before %s: index %d survived, %d was promised, %d is now", point.op, applied.Index, point.durable, s.DurableApplied())
	}
	if diff := cmp.Diff(states[applied.Index], dump(t, s)); diff != "" {
		t.Fatalf("crash before %s: not the state at index %d:\n%s", point.op, applied.Index, diff)
	}
	if survived[applied.Index] {
		return
	}
	survived[applied.Index] = true
	for index := uint64(1); index <= applied.Index; index++ {
		journalAt(t, s, index)
	}
	if rest := from(entries, applied.Index); len(rest) > 0 {
		if _, err := s.Apply(rest); err != nil {
			t.Fatal(err)
		}
		if got, err := s.DigestAt(context.Background(), want.Index); err != nil || got != want {
			t.Fatalf("crash before %s: digest %v, %v after replay, want %v", point.op, got, err, want)
		}
	}
}

// makeDir makes the state directory durable, as its owner does.
func makeDir(tb testing.TB, fs vfs.FS) {
	tb.Helper()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		tb.Fatal(err)
	}
	root, err := fs.OpenDir("/")
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(root.Sync(), root.Close()); err != nil {
		tb.Fatal(err)
	}
}

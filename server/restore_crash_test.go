package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/raftnode"
)

// crashPoints takes a clone before each operation that writes.
type crashPoints struct {
	mem     *vfs.MemFS
	percent int
	mu      sync.Mutex
	random  *rand.Rand
	points  []crashPoint
}

type crashPoint struct {
	op string
	fs *vfs.MemFS
}

func (c *crashPoints) String() string { return "crash points of a restore" }

// MaybeError records and never errs.
func (c *crashPoints) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.points = append(c.points, crashPoint{
		fmt.Sprintf("%d %s", op.Kind, op.Path),
		c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.percent, RNG: c.random}),
	})
	return nil
}

// TestCrashInRestore crashes before each operation of a restore. What it leaves is
// refused or empty, and can be started over; or it is the whole node. Without
// STREAMRAFT_LONG it looks at the first and last of them, where that changes, and
// at some in between.
func TestCrashInRestore(t *testing.T) {
	old := saveCluster(t, 1)
	for _, percent := range []int{0, 50} {
		mem := vfs.NewCrashableMem()
		points := &crashPoints{mem: mem, percent: percent, random: rand.New(rand.NewPCG(1, 2))}
		o := restoreOptions(errorfs.Wrap(mem, points), old.archive, "127.0.0.1:1")
		if _, err := Restore(testContext(t), o); err != nil {
			t.Fatal(err)
		}
		points.points = append(points.points, crashPoint{"the end", mem.CrashClone(vfs.CrashCloneCfg{})})
		kinds := map[string]int{}
		long, last := os.Getenv("STREAMRAFT_LONG") != "", len(points.points)-1
		for i, point := range points.points {
			if !long && i > 12 && i < last-6 && i%12 != 0 {
				continue
			}
			kind := crashedRestore(t, old, point, long || i%24 == 0)
			kinds[kind]++
			if point.op == "the end" && kind != "whole" {
				t.Errorf("a restore that returned is %s after a crash", kind)
			}
		}
		t.Logf("%d %% unsynced: %d crash points: %v", percent, len(points.points), kinds)
		if len(points.points) < 40 || kinds["whole"] < 2 || kinds["refused"] == 0 || kinds["empty"] == 0 {
			t.Errorf("too few of a kind to prove anything: %v", kinds)
		}
	}
}

// crashedRestore looks at what a crash left; with again it is started over and
// opened.
func crashedRestore(t *testing.T, old *savedCluster, point crashPoint, again bool) string {
	t.Helper()
	open := func(fsys vfs.FS) (*Server, error) {
		c := testConfig("n1", "data", nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return Open(ctx, c, Options{Logger: slog.New(slog.DiscardHandler), FS: fsys, Listener: listenLoopback(t), HTTPListener: listenLoopback(t)})
	}
	check := func(s *Server) {
		t.Helper()
		eventually(t, "the node is ready", func() bool { ready, _ := s.Ready(); return ready })
		if got := s.Node().Status(); got.HistoryEpoch != 2 {
			t.Errorf("crash before %s: %+v", point.op, got)
		}
		r, err := s.replicaOf(raftnode.FirstDataGroup)
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.store.Get([]byte("once"))
		if err != nil || string(got.Record.Value) != "in a session" {
			t.Errorf("crash before %s: %+v, %v", point.op, got, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, statErr := point.fs.Stat("data/NODE")
	s, err := open(point.fs.CrashClone(vfs.CrashCloneCfg{}))
	kind := "empty"
	switch {
	case err == nil && statErr == nil:
		check(s)
		return "whole"
	case err == nil:
		t.Fatalf("crash before %s: it opened without NODE", point.op)
	case !errors.Is(err, raftnode.ErrRefused):
		t.Fatalf("crash before %s: %v", point.op, err)
	case strings.Contains(err.Error(), "did not finish"):
		kind = "refused"
	case !strings.Contains(err.Error(), "no founding list was given"):
		t.Fatalf("crash before %s: %v", point.op, err)
	}
	fsys := vfs.FS(point.fs)
	o := restoreOptions(fsys, old.archive, "127.0.0.1:1")
	if kind == "refused" {
		if _, err := Restore(testContext(t), o); !errors.Is(err, raftnode.ErrRefused) || !strings.Contains(err.Error(), "--force") {
			t.Fatalf("crash before %s: %v", point.op, err)
		}
	}
	if again {
		o.Archive, o.StartOver = bytes.NewReader(old.archive), true
		if _, err := Restore(testContext(t), o); err != nil {
			t.Fatalf("crash before %s: start over: %v", point.op, err)
		}
		s, err := open(fsys)
		if err != nil {
			t.Fatal(err)
		}
		check(s)
	}
	return kind
}

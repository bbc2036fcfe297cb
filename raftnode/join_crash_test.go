package raftnode_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/raftnode"
)

// joinCrash is a joining node's disk as a crash before an operation leaves it.
type joinCrash struct {
	what string
	fs   *vfs.MemFS
}

// joinCrashes returns a file system over mem that takes a clone before each
// operation that writes, and what stops it and returns the clones.
func joinCrashes(mem *vfs.MemFS, percent int) (vfs.FS, func() []joinCrash) {
	var mu sync.Mutex
	var points []joinCrash
	stopped := false
	random := rand.New(rand.NewPCG(3, uint64(percent)))
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if stopped || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		points = append(points, joinCrash{
			fmt.Sprintf("%d of %s", op.Kind, op.Path), mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random}),
		})
		return nil
	}))
	return fs, func() []joinCrash {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		return points
	}
}

// TestCrashWhileJoining crashes a joining node before each operation on its
// directory, until Open returns and others hear of it. From each of them it
// joins; an identity that it told is its own for ever, and the replica of any
// gets level.
func TestCrashWhileJoining(t *testing.T) {
	for _, percent := range []int{0, 50} {
		t.Run(fmt.Sprintf("unsynced=%d", percent), func(t *testing.T) {
			inBubble(t, func(t *testing.T, v *virtual) {
				v.write("first")
				writes := 1
				open := func(fs vfs.FS) raftnode.NewReplica {
					v.machines["n4"] = &chain{}
					return v.start("n4", fs, throughN1)
				}
				mem := vfs.NewCrashableMem()
				fs, stop := joinCrashes(mem, percent)
				told := open(fs)
				points := stop()
				// What it told was durable before.
				points = append(points, joinCrash{"the first message", mem.CrashClone(vfs.CrashCloneCfg{})})
				v.close("n4")
				added := map[uint64]bool{}
				kept := 0
				for i, p := range points {
					first := open(p.fs)
					left := p.fs.CrashClone(vfs.CrashCloneCfg{})
					v.close("n4")
					again := open(left)
					if first.RaftID != again.RaftID || string(first.Incarnation) != string(again.Incarnation) {
						t.Fatalf("crash before %s: it was raft id %x and is %x after another crash", p.what, first.RaftID, again.RaftID)
					}
					if first.RaftID == told.RaftID && string(first.Incarnation) == string(told.Incarnation) {
						kept++
					} else if i == len(points)-1 {
						t.Fatalf("it told raft id %x and is %x after a crash", told.RaftID, first.RaftID)
					}
					if !added[again.RaftID] {
						added[again.RaftID] = true
						v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{again}})
						v.write(p.what)
						writes++
						v.converge(writes)
						v.change(raftnode.Change{Remove: []uint64{again.RaftID}})
					}
					v.close("n4")
				}
				t.Logf("%d crashes, %d of them with the identity it told; %d raft ids", len(points), kept, len(added))
				if len(points) < 20 || kept < 2 || len(added) < 2 {
					t.Error("too few crashes to prove anything")
				}
			})
		})
	}
}

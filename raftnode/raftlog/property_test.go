package raftlog

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// TestModel compares the log with a model of it over random updates, with small
// segments and cache, a slow group that pins old ones, a quiet group with
// nothing but an old vote, and reopening in between.
func TestModel(t *testing.T) {
	var moved, recycled, reopened int64
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		rng := rand.New(rand.NewPCG(seed, 1))
		fs := vfs.NewMem()
		o := testOptions(fs)
		o.CacheBytes = []int64{-1, 4 << 10, 1 << 20}[rng.IntN(3)]
		o.moveBytes = []int{1, 3000, defaultMoveBytes}[rng.IntN(3)]
		s := &script{rng: rng, model: model{}, groups: 1 + rng.IntN(12), size: 1 + rng.IntN(2000), slow: uint64(rng.IntN(3))}
		l := mustOpen(t, o)
		quiet := Update{Group: 99, HardState: hard(7, 3, 0)}
		mustAppend(t, l, true, quiet)
		s.model.apply(quiet)
		for range rapid.IntRange(1, 250).Draw(rt, "appends") {
			if err := l.Append(s.next(), rng.IntN(4) > 0); err != nil {
				rt.Fatalf("seed %d: %v", seed, err)
			}
			if rng.IntN(40) == 0 {
				checkState(t, l, s.model)
			}
			if rng.IntN(60) == 0 {
				m := l.Metrics()
				moved, recycled, reopened = moved+m.MovedEntries, recycled+m.Recycled, reopened+1
				mustClose(t, l)
				l = mustOpen(t, o)
				checkState(t, l, s.model)
			}
		}
		checkState(t, l, s.model)
		mustClose(t, l)
		l = mustOpen(t, o)
		checkState(t, l, s.model)
		mustClose(t, l)
	})
	t.Logf("%d entries moved, %d segments recycled, %d reopenings", moved, recycled, reopened)
	if moved == 0 || recycled == 0 || reopened == 0 {
		t.Error("the run did not reach what it is for")
	}
}

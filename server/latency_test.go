package server

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLatencyBuckets(t *testing.T) {
	last := -1
	for d := time.Duration(1); d < time.Hour; d += d/40 + 1 {
		b := latencyBucket(d)
		if b < last || b >= latencyBuckets {
			t.Fatalf("%v is in bucket %d, after %d", d, b, last)
		}
		last = b
		most := latencyOf(b)
		if d > 1<<latencyLowBits && d < 1<<latencyHighBits && (most < d || float64(most) > 1.0626*float64(d)) {
			t.Fatalf("%v is told as %v", d, most)
		}
	}
	if latencyBucket(-1) != 0 || latencyBucket(1<<62) != latencyBuckets-1 {
		t.Error("what is out of range is in no end bucket")
	}
}

// TestLatencyP99 compares with sorting.
func TestLatencyP99(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		w := newLatencyWindows(4, time.Second)
		var all []time.Duration
		for range 1 + r.IntN(1000) {
			d := time.Duration(r.ExpFloat64() * float64(5*time.Millisecond))
			all = append(all, d)
			w.add(time.Duration(r.IntN(1000))*time.Millisecond, d)
		}
		slices.Sort(all)
		above := len(all) / 100
		if len(all) >= 10 {
			above = max(above, 1)
		}
		want := all[len(all)-1-above]
		if got := w.p99(time.Second, 4, 1); got < want && want > 1<<latencyLowBits || float64(got) > 1.07*float64(max(want, 1<<latencyLowBits)) {
			t.Fatalf("p99 of %d is %v, told as %v", len(all), want, got)
		}
	}
}

func TestLatencyTrack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		track := newLatencyTrack()
		run := func(d time.Duration, each time.Duration, transferring bool) {
			for range d / (10 * time.Millisecond) {
				timer := time.NewTimer(10 * time.Millisecond)
				<-timer.C
				track.add(each, transferring)
			}
		}
		near := func(what string, got, want time.Duration) {
			t.Helper()
			if got < want || float64(got) > 1.07*float64(want) {
				t.Errorf("%s: %v, not %v", what, got, want)
			}
		}
		if track.baseP99(false) != 0 || track.recentP99(time.Second) != 0 {
			t.Error("latencies of nothing")
		}
		run(100*time.Millisecond, time.Millisecond, false)
		if track.baseP99(false) != 0 {
			t.Error("ten make a base")
		}
		run(time.Minute, 5*time.Millisecond, false)
		near("base", track.baseP99(false), 5*time.Millisecond)
		near("recent", track.recentP99(time.Second), 5*time.Millisecond)
		// An hour with a transfer does not count, nor does it age the base.
		run(time.Hour, 50*time.Millisecond, true)
		near("base after a transfer", track.baseP99(true), 5*time.Millisecond)
		near("recent in a transfer", track.recentP99(time.Second), 50*time.Millisecond)
		run(2*time.Second, 10*time.Millisecond, false)
		near("recent after it", track.recentP99(time.Second), 10*time.Millisecond)
		near("base", track.baseP99(false), 10*time.Millisecond)
		// Time without a transfer does.
		run(6*time.Minute, time.Millisecond, false)
		near("base of another load", track.baseP99(false), time.Millisecond)
		// And a long rest is no foreground work.
		rest := time.NewTimer(time.Hour)
		<-rest.C
		if got := track.baseP99(false); got != 0 {
			t.Errorf("base %v after an hour of nothing", got)
		}
		if got := track.recentP99(time.Second); got != 0 {
			t.Errorf("recent %v after an hour of nothing", got)
		}
	})
}

// A latency is counted by each log batch and entry: it must cost next to nothing.
func TestLatencyAllocatesNothing(t *testing.T) {
	track := newLatencyTrack()
	if n := testing.AllocsPerRun(1000, func() { track.add(time.Millisecond, false) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLatencyTrack(b *testing.B) {
	track := newLatencyTrack()
	for b.Loop() {
		track.add(time.Millisecond, false)
	}
}

package server

import (
	"math/bits"
	"sync"
	"time"
)

// Latencies are counted in buckets that grow by powers of two, each divided into
// 16: what is told is at most 6.25 % too high. The first bucket takes all below
// 1 microsecond, the last all above 34 seconds.
const (
	latencyLowBits  = 10 // 2^10 ns
	latencyHighBits = 35
	latencyDivided  = 16
	latencyBuckets  = (latencyHighBits - latencyLowBits) * latencyDivided
)

// latencyBucket returns the bucket of a duration.
func latencyBucket(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 1<<latencyLowBits {
		return 0
	}
	high := bits.Len64(n) - 1
	if high >= latencyHighBits {
		return latencyBuckets - 1
	}
	within := int(n>>(high-4)) & (latencyDivided - 1)
	return (high-latencyLowBits)*latencyDivided + within
}

// latencyOf returns the highest duration of a bucket.
func latencyOf(bucket int) time.Duration {
	high, within := bucket/latencyDivided+latencyLowBits, bucket%latencyDivided
	return time.Duration(latencyDivided+within+1)<<(high-4) - 1
}

// latencyWindows counts durations over a time that slides on in steps of width.
// Time is whatever the caller counts; it does not go back.
type latencyWindows struct {
	width time.Duration
	ring  []latencyWindow
	last  int64 // number of the newest window
}

type latencyWindow struct {
	counts [latencyBuckets]uint32
	total  uint64
}

func newLatencyWindows(windows int, width time.Duration) latencyWindows {
	return latencyWindows{width: width, ring: make([]latencyWindow, windows)}
}

// advance empties the windows of the time that has passed.
func (w *latencyWindows) advance(at time.Duration) {
	number := int64(at / w.width)
	w.last = max(w.last, number-int64(len(w.ring)))
	for ; w.last < number; w.last++ {
		w.ring[(w.last+1)%int64(len(w.ring))] = latencyWindow{}
	}
}

func (w *latencyWindows) add(at, d time.Duration) {
	w.advance(at)
	window := &w.ring[w.last%int64(len(w.ring))]
	window.counts[latencyBucket(d)]++
	window.total++
}

// p99 returns the 99th percentile over the newest windows, 0 if there are less
// than least. Of ten to a hundred it is the second highest: one slow moment is no
// latency.
func (w *latencyWindows) p99(at time.Duration, windows int, least uint64) time.Duration {
	w.advance(at)
	newest := func(i int) *latencyWindow {
		n := int64(len(w.ring))
		return &w.ring[((w.last-int64(i))%n+n)%n]
	}
	var total uint64
	for i := range windows {
		total += newest(i).total
	}
	if total == 0 || total < least {
		return 0
	}
	above := total / 100 // how many may be above
	if total >= 10 {
		above = max(above, 1)
	}
	for bucket := latencyBuckets - 1; ; bucket-- {
		var n uint64
		for i := range windows {
			n += uint64(newest(i).counts[bucket])
		}
		if n > above {
			return latencyOf(bucket)
		}
		above -= n
	}
}

const (
	// recentWindows of recentWidth are the last second, and the one that is not over:
	// who looks each second must miss nothing.
	recentWindows = 9
	recentWidth   = 125 * time.Millisecond
	// baseWindows of baseWidth are the last 5 minutes without a transfer.
	baseWindows = 10
	baseWidth   = 30 * time.Second
	// baseLeast is how many make a base: of fewer the 99th percentile says nothing,
	// and there is little to protect.
	baseLeast = 20
)

// latencyTrack follows one latency: over the last second, and over the last 5
// minutes without a transfer, whose clock stands still while one runs. Its
// methods may be called from any goroutine; they allocate nothing.
type latencyTrack struct {
	mu     sync.Mutex
	opened time.Time
	recent latencyWindows
	base   latencyWindows
	// quiet is the time without a transfer; quietAt when it was last counted, zero
	// after a moment with one.
	quiet   time.Duration
	quietAt time.Time
}

func newLatencyTrack() *latencyTrack {
	return &latencyTrack{
		opened: time.Now(), recent: newLatencyWindows(recentWindows, recentWidth), base: newLatencyWindows(baseWindows, baseWidth),
	}
}

// add counts a duration; transferring tells that a transfer runs.
func (t *latencyTrack) add(d time.Duration, transferring bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recent.add(now.Sub(t.opened), d)
	if transferring {
		t.quietAt = time.Time{}
		return
	}
	t.base.add(t.quietTime(now), d)
	t.quietAt = now
}

// quietTime returns the time without a transfer until now.
func (t *latencyTrack) quietTime(now time.Time) time.Duration {
	if !t.quietAt.IsZero() {
		t.quiet += now.Sub(t.quietAt)
		t.quietAt = now
	}
	return t.quiet
}

// recentP99 is over about the last d, at most a second; 0 if nothing happened.
func (t *latencyTrack) recentP99(d time.Duration) time.Duration {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recent.p99(now.Sub(t.opened), min(int(d/recentWidth)+1, recentWindows), 1)
}

// baseP99 is over the last 5 minutes without a transfer; 0 if too little
// happened in them.
func (t *latencyTrack) baseP99(transferring bool) time.Duration {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if transferring {
		return t.base.p99(t.quiet, baseWindows, baseLeast)
	}
	return t.base.p99(t.quietTime(now), baseWindows, baseLeast)
}

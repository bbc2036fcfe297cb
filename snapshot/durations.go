package snapshot

import (
	"slices"
	"time"
)

// Durations is a histogram of times.
type Durations struct {
	// Bounds are the buckets' upper bounds, rising; not to be changed.
	Bounds []time.Duration
	// Counts holds one more than Bounds: Counts[i] times were at most Bounds[i] and
	// above the bound before, the last were above all bounds.
	Counts []uint64
	// Count of all times, and their sum.
	Count uint64
	Total time.Duration
}

// longBounds are for what takes from a moment to hours.
func longBounds() []time.Duration {
	return []time.Duration{
		time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
		time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour,
	}
}

// shortBounds are for an installation, whose budget is 50 ms.
func shortBounds() []time.Duration {
	return []time.Duration{
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	}
}

// newDurations returns an empty histogram.
func newDurations(bounds []time.Duration) Durations {
	return Durations{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

func (d *Durations) observe(t time.Duration) {
	t = max(t, 0)
	i, _ := slices.BinarySearch(d.Bounds, t) // a bound belongs to its bucket
	d.Counts[i]++
	d.Count++
	d.Total += t
}

// clone returns a copy that nobody changes.
func (d *Durations) clone() Durations {
	c := *d
	c.Counts = slices.Clone(d.Counts)
	return c
}

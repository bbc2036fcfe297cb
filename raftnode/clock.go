package raftnode

import "time"

// Clock is the time a node lives by. Tests replace it to skew clocks or to
// run faster; everybody else leaves Options.Clock nil.
//
// Safety never depends on it: terms, votes and reads do not look at a clock.
// A wrong clock costs elections and shifts expiry in the state machine.
type Clock interface {
	// Now returns the current time; used for Entry.Clock and latencies.
	Now() time.Time
	// NewTicker returns a channel that gets a value each d, and a function
	// that ends it.
	NewTicker(d time.Duration) (c <-chan time.Time, stop func())
}

// systemClock is the machine's clock.
type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) NewTicker(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(d)
	return t.C, t.Stop
}

package testcluster

import (
	"sync"
	"time"
)

// skewedClock is a node's clock: it stands off from the bubble's time, and its
// tickers run faster or slower. It implements raftnode.Clock.
type skewedClock struct {
	mu      sync.Mutex
	offset  time.Duration
	rate    float64 // length of a ticker's interval, 1 is right
	tickers map[*time.Ticker]time.Duration
}

func newSkewedClock() *skewedClock {
	return &skewedClock{rate: 1, tickers: make(map[*time.Ticker]time.Duration)}
}

// Now returns the bubble's time plus the offset.
func (c *skewedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

// NewTicker returns a ticker whose interval follows the rate.
func (c *skewedClock) NewTicker(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.NewTicker(c.stretch(d))
	c.tickers[t] = d
	return t.C, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.Stop()
		delete(c.tickers, t)
	}
}

// skew changes the offset and the rate from now on.
func (c *skewedClock) skew(offset time.Duration, rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset, c.rate = offset, rate
	for t, d := range c.tickers {
		t.Reset(c.stretch(d))
	}
}

func (c *skewedClock) stretch(d time.Duration) time.Duration {
	return max(time.Millisecond, time.Duration(float64(d)*c.rate))
}

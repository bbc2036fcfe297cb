package faultnet

import (
	"fmt"
	"time"
)

// Probabilities are the chances, from 0 to 1, that a message meets a fault.
type Probabilities struct {
	// Drop: it never arrives.
	Drop float64
	// Duplicate: it arrives a second time.
	Duplicate float64
	// Reorder: it is held back for up to ten times Options.MaxDelay, and later
	// messages do not wait for it.
	Reorder float64
}

func (p Probabilities) validate() error {
	for _, c := range []struct {
		name  string
		value float64
	}{{"Drop", p.Drop}, {"Duplicate", p.Duplicate}, {"Reorder", p.Reorder}} {
		if !(c.value >= 0 && c.value <= 1) {
			return fmt.Errorf("faultnet: probability %s is %v; it must be 0 to 1", c.name, c.value)
		}
	}
	return nil
}

// Options configures a Network. The zero value of a field means its default.
type Options struct {
	// Seed of all random choices. Zero is a seed like any other.
	Seed uint64

	// MinDelay and MaxDelay bound how long a message, or a hello, takes one way.
	// Defaults 100 µs and 1 ms, a local network.
	MinDelay time.Duration
	MaxDelay time.Duration

	// Probabilities of faults from the start. Default: none.
	Probabilities

	// Redial is the pause before a connection that could not be made is tried
	// again. Default 50 ms.
	Redial time.Duration

	// QueueMessages bounds the messages on the way to one node; more are
	// dropped, and their sender is told as by a full queue. Default 65,536.
	QueueMessages int
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *Options) EnsureDefaults() {
	if o.MinDelay == 0 {
		o.MinDelay = 100 * time.Microsecond
	}
	if o.MaxDelay == 0 {
		o.MaxDelay = max(time.Millisecond, o.MinDelay)
	}
	if o.Redial == 0 {
		o.Redial = 50 * time.Millisecond
	}
	if o.QueueMessages == 0 {
		o.QueueMessages = 1 << 16
	}
}

// Validate tells the first field that is out of range. Call it after
// EnsureDefaults.
func (o *Options) Validate() error {
	switch {
	case o.MinDelay < 0:
		return fmt.Errorf("faultnet: MinDelay is %v; it must be at least 0", o.MinDelay)
	case o.MaxDelay < o.MinDelay:
		return fmt.Errorf("faultnet: MaxDelay is %v; it must be at least MinDelay, %v", o.MaxDelay, o.MinDelay)
	case o.Redial < 0:
		return fmt.Errorf("faultnet: Redial is %v; it must be above 0", o.Redial)
	case o.QueueMessages < 0:
		return fmt.Errorf("faultnet: QueueMessages is %d; it must be at least 1", o.QueueMessages)
	}
	return o.Probabilities.validate()
}

package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff makes growing, jittered pauses.
type backoff struct {
	base, max time.Duration
	next      time.Duration
}

// pause returns how long to wait now: between half and all of a duration that
// doubles with each call. The random half keeps many clients from coming back
// at the same moment.
func (b *backoff) pause() time.Duration {
	if b.next == 0 {
		b.next = b.base
	}
	d := b.next
	b.next = min(2*b.next, b.max)
	return d/2 + rand.N(d/2+1)
}

// reset makes the next pause a short one again.
func (b *backoff) reset() { b.next = 0 }

// wait pauses for d or until ctx ends, and returns ctx's error then.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

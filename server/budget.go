package server

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// budget is a bounded amount that is taken and given back; who finds too little
// waits, first come first served.
type budget struct {
	semaphore *semaphore.Weighted
	used      atomic.Int64
}

func newBudget(amount int64) *budget {
	return &budget{semaphore: semaphore.NewWeighted(amount)}
}

// acquire takes n, which must not exceed the whole, or returns ctx's error.
func (b *budget) acquire(ctx context.Context, n int64) error {
	if err := b.semaphore.Acquire(ctx, n); err != nil {
		return err
	}
	b.used.Add(n)
	return nil
}

func (b *budget) release(n int64) {
	b.used.Add(-n)
	b.semaphore.Release(n)
}

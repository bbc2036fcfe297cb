package snapshot

import (
	"context"
	"fmt"
	"sync"
)

// budget bounds the memory that all transfers a node receives may use for data
// that is sent and not yet written. An attempt takes its window from it at the
// start and gives it back at its end.
type budget struct {
	mu      sync.Mutex
	free    int64
	changed chan struct{} // closed when free grows
}

func newBudget(bytes int64) *budget {
	return &budget{free: bytes, changed: make(chan struct{})}
}

// take takes up to want bytes, at least need, and waits until there are that
// many.
func (b *budget) take(ctx context.Context, want, need int64) (int64, error) {
	for {
		b.mu.Lock()
		if b.free >= need {
			got := min(want, b.free)
			b.free -= got
			b.mu.Unlock()
			return got, nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += bytes
	close(b.changed)
	b.changed = make(chan struct{})
}

// sendCredit is the source's side of the credit of one attempt.
type sendCredit struct {
	mu      sync.Mutex
	used    uint64
	limit   uint64
	changed chan struct{} // closed when the limit rises
}

func newSendCredit(limit uint64) *sendCredit {
	return &sendCredit{limit: limit, changed: make(chan struct{})}
}

// raise takes an Ack's limit; one that is not higher says nothing new.
func (c *sendCredit) raise(limit uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > c.limit {
		c.limit = limit
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// tryTake takes n bytes if the limit allows. If not it returns a channel that is
// closed when that may have changed.
func (c *sendCredit) tryTake(n int) (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used+uint64(n) > c.limit {
		return false, c.changed
	}
	c.used += uint64(n)
	return true, nil
}

// refund gives back what compression made unnecessary.
func (c *sendCredit) refund(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used -= uint64(n)
	close(c.changed)
	c.changed = make(chan struct{})
}

// recvCredit is the receiver's side: it grants window bytes beyond what is
// written, and window and lag bytes beyond what is durable. The first bounds
// memory, the second what has to be sent again after a crash, even where syncing
// is slower than writing.
type recvCredit struct {
	mu                                 sync.Mutex
	window, lag                        uint64
	received, written, durable, handed uint64
}

// receive counts a chunk's data; more than was granted is ErrProtocol.
func (c *recvCredit) receive(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// What is granted may not have reached the source yet, so this allows a
	// little more than it may send, and never more memory than the window.
	if c.received+uint64(n) > c.written+c.window {
		return fmt.Errorf("%w: %d bytes sent with a credit of %d", ErrProtocol, c.received+uint64(n), c.written+c.window)
	}
	c.received += uint64(n)
	return nil
}

func (c *recvCredit) wrote(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written += uint64(n)
}

// handOn returns what is written so far, for a sync of all of it that is asked
// for; synced is told when that is done.
func (c *recvCredit) handOn() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed = c.written
	return c.written
}

// synced tells that the first bytes, so many of them, are durable and recorded.
func (c *recvCredit) synced(bytes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.durable = max(c.durable, bytes)
}

// limit is what the source may have sent in all.
func (c *recvCredit) limit() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.written, c.durable+c.lag) + c.window
}

// syncing tells that a sync was asked for and is not done.
func (c *recvCredit) syncing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handed > c.durable
}

// backlog is what was received and is not yet written.
func (c *recvCredit) backlog() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received - c.written
}

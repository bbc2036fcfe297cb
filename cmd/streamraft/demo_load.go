package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamraft/streamraft/client"
)

const (
	demoWriters = 4
	demoReaders = 2
	// demoPace is the pause between two operations of one client: a steady load
	// that a laptop carries with ease, close enough to time a gap by.
	demoPace = 2 * time.Millisecond
	// demoLoadPrefix keeps the keys of the load apart from those of the data.
	demoLoadPrefix = "streamraft-demo/load/"
)

// demoLoad is a load of steady writers and readers that knows what was
// acknowledged.
type demoLoad struct {
	client  *client.Client
	session *client.ClientSession
	writers []*demoWriter

	stopping chan struct{}
	stopOnce sync.Once
	running  sync.WaitGroup

	reads, failedReads atomic.Uint64

	mu sync.Mutex
	// problem is the first thing that must not happen.
	problem error
	acks    uint64
	lastAck time.Time
	killed  time.Time
	// The longest times between two acknowledged writes before the kill, and
	// from it on.
	steadyGap, killGap time.Duration
	acked              chan struct{} // closed and replaced at each acknowledgement
}

// demoWriter is one writer: write i is of the key and the value that its number
// says.
type demoWriter struct {
	number int
	mu     sync.Mutex
	acked  []bool
	failed uint64
}

func demoLoadKey(writer, i int) []byte {
	return fmt.Appendf(nil, "%s%d/%08d", demoLoadPrefix, writer, i)
}

func demoLoadValue(writer, i int) []byte {
	return fmt.Appendf(nil, "write %d of writer %d: %s", i, writer, strings.Repeat(strconv.Itoa(i%10), 64))
}

// startDemoLoad starts the load. Its writes carry a client session, so that one
// whose answer was lost with the leader is repeated and yet applied once.
func startDemoLoad(ctx context.Context, c *client.Client) (*demoLoad, error) {
	session, err := c.OpenClientSession(ctx, 0)
	if err != nil {
		return nil, err
	}
	l := &demoLoad{client: c, session: session, stopping: make(chan struct{}), acked: make(chan struct{})}
	for i := range demoWriters {
		w := &demoWriter{number: i}
		l.writers = append(l.writers, w)
		l.running.Go(func() { l.paced(ctx, func() { l.write(ctx, w) }) })
	}
	for range demoReaders {
		l.running.Go(func() { l.paced(ctx, func() { l.read(ctx) }) })
	}
	return l, nil
}

// paced repeats an operation until the load stops.
func (l *demoLoad) paced(ctx context.Context, operation func()) {
	ticker := time.NewTicker(demoPace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.stopping:
			return
		case <-ticker.C:
			operation()
		}
	}
}

func (l *demoLoad) write(ctx context.Context, w *demoWriter) {
	i := len(w.acked)
	_, err := l.session.Put(ctx, demoLoadKey(w.number, i), demoLoadValue(w.number, i))
	w.mu.Lock()
	w.acked = append(w.acked, err == nil)
	if err != nil {
		w.failed++
	}
	w.mu.Unlock()
	if err == nil {
		l.acknowledge(time.Now())
	}
}

func (l *demoLoad) acknowledge(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gap := now.Sub(l.lastAck); !l.lastAck.IsZero() {
		if l.killed.IsZero() {
			l.steadyGap = max(l.steadyGap, gap)
		} else {
			l.killGap = max(l.killGap, gap)
		}
	}
	l.acks++
	l.lastAck = now
	close(l.acked)
	l.acked = make(chan struct{})
}

// read reads a write that was acknowledged before: it must be there.
func (l *demoLoad) read(ctx context.Context) {
	w := l.writers[rand.IntN(len(l.writers))]
	w.mu.Lock()
	i := -1
	if len(w.acked) > 0 {
		if i = rand.IntN(len(w.acked)); !w.acked[i] {
			i = -1
		}
	}
	w.mu.Unlock()
	if i < 0 {
		return
	}
	key := demoLoadKey(w.number, i)
	record, err := l.client.Get(ctx, key, client.ReadOptions{})
	switch {
	case errors.Is(err, client.ErrNotFound):
		l.fail(fmt.Errorf("a read did not find %s, whose write was acknowledged before", key))
	case err != nil:
		l.failedReads.Add(1)
	case string(record.Value) != string(demoLoadValue(w.number, i)):
		l.fail(fmt.Errorf("a read of %s found another value than was written", key))
	default:
		l.reads.Add(1)
	}
}

func (l *demoLoad) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.problem == nil {
		l.problem = err
	}
}

// markKill begins the measuring of the gap around the kill.
func (l *demoLoad) markKill() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = time.Now()
	return l.killed
}

func (l *demoLoad) acknowledged() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acks
}

// waitWrites waits until a number of writes are acknowledged.
func (l *demoLoad) waitWrites(ctx context.Context, count uint64) error {
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	for {
		l.mu.Lock()
		acks, acked := l.acks, l.acked
		l.mu.Unlock()
		if acks >= count {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no write was acknowledged: %w", context.Cause(ctx))
		case <-acked:
		}
	}
}

// stop ends the load and waits for the operations under way. It may be called
// more than once.
func (l *demoLoad) stop() {
	l.stopOnce.Do(func() { close(l.stopping) })
	l.running.Wait()
}

// demoLoadTotals is what a load did.
type demoLoadTotals struct {
	acknowledged, failed, reads, failedReads uint64
	steadyGap, killGap                       time.Duration
	problem                                  error
}

// totals tells what the load did; it must be stopped.
func (l *demoLoad) totals() demoLoadTotals {
	t := demoLoadTotals{
		acknowledged: l.acks, reads: l.reads.Load(), failedReads: l.failedReads.Load(),
		steadyGap: l.steadyGap, killGap: l.killGap, problem: l.problem,
	}
	for _, w := range l.writers {
		t.failed += w.failed
	}
	return t
}

package raftnode

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"go.etcd.io/raft/v3"
)

// ReadLevel is how new the state must be that a read sees.
type ReadLevel int

const (
	// Linearizable: the read sees every proposal that was acknowledged, to
	// anyone, before the read began. It works on followers too, and needs a
	// quorum.
	Linearizable ReadLevel = iota
	// Stale: the read sees this replica's state as it is, if wanted at least at
	// an index the caller knows. It needs nobody else.
	Stale
)

// ReadOptions says what a read needs.
type ReadOptions struct {
	// Level is Linearizable unless set.
	Level ReadLevel
	// MinIndex makes the read wait until this index is applied here. 0: no wait
	// beyond what Level asks for.
	MinIndex uint64
}

// Read returns once the state machine of this replica is new enough to be read,
// with the applied index it has at least. The caller then reads the state
// machine directly, taking its view after Read returned.
//
// Reads of one group share their rounds of heartbeats (ReadIndex, raft thesis
// section 6.4); no clock is involved. It blocks until a leader confirmed itself
// or ctx ends; the error wraps ctx's then. Other errors: ErrFailed, ErrClosed.
func (g *Group) Read(ctx context.Context, o ReadOptions) (index uint64, err error) {
	if err := g.failure.Load(); err != nil {
		return 0, g.closedError()
	}
	r := &readRequest{minIndex: o.MinIndex, done: make(chan readResult, 1)}
	switch o.Level {
	case Linearizable:
		if err := g.mailbox.putRead(r); err != nil {
			return 0, g.closedError()
		}
	case Stale:
		g.waiters.await(o.MinIndex, r)
	default:
		return 0, fmt.Errorf("raftnode: unknown read level %d", o.Level)
	}
	select {
	case result := <-r.done:
		return result.index, result.err
	case <-ctx.Done():
		r.abandoned.Store(true)
		s := g.soft.Load()
		if s.leader == raft.None {
			return 0, fmt.Errorf("raftnode: group %d: read gave up; no leader is known, so most of the replicas cannot be reached or are electing: %w", g.id, context.Cause(ctx))
		}
		return 0, fmt.Errorf("raftnode: group %d: read gave up waiting (leader %s, applied %d): %w", g.id, s.leaderNode, g.Applied(), context.Cause(ctx))
	}
}

// Applied returns the index up to which the state machine has applied.
func (g *Group) Applied() uint64 { return g.waiters.applied.Load() }

// readRequest is one Read that waits.
type readRequest struct {
	minIndex  uint64
	done      chan readResult
	abandoned atomic.Bool
}

type readResult struct {
	index uint64
	err   error
}

func (r *readRequest) finish(index uint64, err error) { r.done <- readResult{index, err} }

// readIndexBatcher turns waiting reads into ReadIndex rounds, one at a time:
// what arrives during a round shares the next. It belongs to the step goroutine.
type readIndexBatcher struct {
	waiting []*readRequest
	round   []*readRequest // reads of the round under way
	context uint64         // of the round under way, 0 for none
	next    uint64
	ticks   int
}

// newReadIndexBatcher starts the contexts at random: a context that an earlier
// opening of this replica, or another replica, used could be answered by an
// acknowledgement of that one, and the read would be stale.
func newReadIndexBatcher() readIndexBatcher {
	return readIndexBatcher{next: rand.Uint64() | 1}
}

func (b *readIndexBatcher) add(g *Group, reads []*readRequest) {
	b.waiting = append(b.waiting, reads...)
	b.start(g)
}

// start begins a round if none is under way.
func (b *readIndexBatcher) start(g *Group) {
	if b.context != 0 || len(b.waiting) == 0 {
		return
	}
	b.round, b.waiting = b.waiting, b.round[:0]
	b.context, b.ticks = b.next, 0
	if b.next += 2; b.next == 0 {
		b.next = 1
	}
	// Raft wants contexts of exactly 8 bytes and drops the request if it knows
	// no leader; tick tries again.
	g.raw.ReadIndex(binary.BigEndian.AppendUint64(nil, b.context))
	g.metrics.readRounds.Add(1)
}

// ready takes the answers of raft.
func (b *readIndexBatcher) ready(g *Group, states []raft.ReadState) {
	for _, s := range states {
		if len(s.RequestCtx) != 8 || b.context == 0 || binary.BigEndian.Uint64(s.RequestCtx) != b.context {
			continue // the answer to a round that was given up
		}
		for i, r := range b.round {
			g.waiters.await(max(s.Index, r.minIndex), r)
			b.round[i] = nil
		}
		b.round, b.context = b.round[:0], 0
		b.start(g)
	}
}

// tick starts a round anew, under a new context, when its answer is overdue:
// the request, a heartbeat or the answer was lost, or the leader changed.
func (b *readIndexBatcher) tick(g *Group, ticks int) {
	if b.context == 0 {
		return
	}
	if b.ticks += ticks; b.ticks < 2*g.node.opts.HeartbeatTicks {
		return
	}
	again := append(b.round, b.waiting...)
	b.round, b.waiting, b.context = nil, again[:0], 0
	for _, r := range again {
		if !r.abandoned.Load() {
			b.waiting = append(b.waiting, r)
		}
	}
	b.start(g)
}

func (b *readIndexBatcher) fail(err error) {
	for _, r := range append(b.round, b.waiting...) {
		r.finish(0, err)
	}
	b.round, b.waiting = nil, nil
}

// applyWaiters are reads that wait for an applied index, and the applied index.
type applyWaiters struct {
	applied atomic.Uint64

	mu      sync.Mutex
	waiting []applyWaiter
	changed chan struct{} // closed at a change of leader
	err     error
}

type applyWaiter struct {
	index uint64
	read  *readRequest
}

// await finishes r once index is applied.
func (w *applyWaiters) await(index uint64, r *readRequest) {
	if applied := w.applied.Load(); applied >= index {
		w.mu.Lock()
		err := w.err
		w.mu.Unlock()
		r.finish(applied, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Looked at again under the lock, which advance takes after it moved the
	// index: else r could be put in just after its wake-up.
	if applied := w.applied.Load(); applied >= index || w.err != nil {
		r.finish(applied, w.err)
		return
	}
	w.waiting = append(w.waiting, applyWaiter{index, r})
}

// advance publishes the applied index and finishes who waited for it.
func (w *applyWaiters) advance(applied uint64) {
	w.applied.Store(applied)
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.waiting[:0]
	for _, a := range w.waiting {
		switch {
		case a.index <= applied:
			a.read.finish(applied, nil)
		case !a.read.abandoned.Load():
			kept = append(kept, a)
		}
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
}

// leaderChanged wakes who waits for a change of leader.
func (w *applyWaiters) leaderChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// leaderChange returns a channel that is closed at the next change of leader.
func (w *applyWaiters) leaderChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// fail ends every wait, now and later.
func (w *applyWaiters) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	for _, a := range w.waiting {
		a.read.finish(0, err)
	}
	w.waiting = nil
}

package raftnode

import (
	"container/heap"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
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
	if err := g.quarantineError(); err != nil {
		return 0, err
	}
	r := &readRequest{minIndex: o.MinIndex, done: make(chan readResult, 1), position: -1}
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
		g.waiters.leave(r)
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
	// index it waits for and its position among those who wait, -1 for none;
	// both are applyWaiters'.
	index    uint64
	position int
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
	// contexts of the round under way, oldest first; none if there is none. A
	// round whose answer is overdue is asked for again under a new context, but
	// the answer to any of them will do: all its reads began before the first.
	contexts []uint64
	next     uint64
	ticks    int
}

// maxReadContexts bounds the contexts of a round; the oldest is forgotten.
const maxReadContexts = 64

// newReadIndexBatcher starts the contexts at random: a context that an earlier
// opening of this replica, or another replica, used could be answered by an
// acknowledgement of that one, and the read would be stale.
func newReadIndexBatcher() readIndexBatcher {
	return readIndexBatcher{next: rand.Uint64() | 1}
}

// start begins a round if none is under way.
func (b *readIndexBatcher) start(g *Group) {
	if len(b.contexts) > 0 || len(b.waiting) == 0 {
		return
	}
	b.round, b.waiting = b.waiting, b.round[:0]
	b.ask(g)
}

// ask asks raft for the read index of the round under way.
func (b *readIndexBatcher) ask(g *Group) {
	if len(b.contexts) == maxReadContexts {
		b.contexts = slices.Delete(b.contexts, 0, 1)
	}
	b.contexts = append(b.contexts, b.next)
	b.ticks = 0
	// Raft wants contexts of exactly 8 bytes and drops the request if it knows
	// no leader; tick tries again.
	g.raw.ReadIndex(binary.BigEndian.AppendUint64(nil, b.next))
	if b.next += 2; b.next == 0 {
		b.next = 1
	}
	g.metrics.readRounds.Add(1)
}

// ready takes the answers of raft.
func (b *readIndexBatcher) ready(g *Group, states []raft.ReadState) {
	for _, s := range states {
		if len(s.RequestCtx) != 8 || !slices.Contains(b.contexts, binary.BigEndian.Uint64(s.RequestCtx)) {
			continue // the second answer to a round
		}
		round := b.round
		b.round, b.contexts = nil, b.contexts[:0]
		for _, r := range round {
			g.waiters.await(max(s.Index, r.minIndex), r)
		}
		b.start(g)
	}
}

// tick asks again when the answer is overdue: the request, a heartbeat or the
// answer was lost, or the leader changed. Reads that were given up are dropped.
func (b *readIndexBatcher) tick(g *Group, ticks int) {
	if len(b.contexts) == 0 {
		return
	}
	if b.ticks += ticks; b.ticks < 2*g.node.opts.HeartbeatTicks {
		return
	}
	abandoned := func(r *readRequest) bool { return r.abandoned.Load() }
	b.round = slices.DeleteFunc(b.round, abandoned)
	b.waiting = slices.DeleteFunc(b.waiting, abandoned)
	if len(b.round) == 0 {
		b.contexts = b.contexts[:0]
		b.start(g)
		return
	}
	b.ask(g)
}

func (b *readIndexBatcher) fail(err error) {
	for _, r := range append(b.round, b.waiting...) {
		r.finish(0, err)
	}
	b.round, b.waiting, b.contexts = nil, nil, nil
}

// applyWaiters are reads that wait for an applied index, and the applied index.
type applyWaiters struct {
	applied atomic.Uint64

	mu      sync.Mutex
	waiting waiterHeap
	changed chan struct{} // closed at a change of leader
	err     error
}

// waiterHeap orders reads by the index they wait for.
type waiterHeap []*readRequest

// Len is part of heap.Interface.
func (h waiterHeap) Len() int { return len(h) }

// Less is part of heap.Interface.
func (h waiterHeap) Less(i, j int) bool { return h[i].index < h[j].index }

// Swap is part of heap.Interface.
func (h waiterHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].position, h[j].position = i, j
}

// Push is part of heap.Interface.
func (h *waiterHeap) Push(x any) {
	r := x.(*readRequest)
	r.position = len(*h)
	*h = append(*h, r)
}

// Pop is part of heap.Interface.
func (h *waiterHeap) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	r.position = -1
	return r
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
	if r.abandoned.Load() {
		return // nobody would take it out again
	}
	r.index = index
	heap.Push(&w.waiting, r)
}

// leave takes a read out that nobody waits for any more.
func (w *applyWaiters) leave(r *readRequest) {
	r.abandoned.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.position >= 0 {
		heap.Remove(&w.waiting, r.position)
	}
}

// advance publishes the applied index and finishes who waited for it.
func (w *applyWaiters) advance(applied uint64) {
	// A replica that was opened anew applies again what it had told of before.
	if applied < w.applied.Load() {
		return
	}
	w.applied.Store(applied)
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.waiting) > 0 && w.waiting[0].index <= applied {
		heap.Pop(&w.waiting).(*readRequest).finish(applied, nil)
	}
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
	w.interruptLocked(err)
}

// interrupt ends every wait of now.
func (w *applyWaiters) interrupt(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.interruptLocked(err)
}

func (w *applyWaiters) interruptLocked(err error) {
	for _, r := range w.waiting {
		r.position = -1
		r.finish(0, err)
	}
	w.waiting = nil
}

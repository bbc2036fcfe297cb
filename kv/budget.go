package kv

import "sync"

// pendingMarkBytes is how finely a store remembers which bytes were written up
// to which index.
const pendingMarkBytes = 256 << 10

// pendingBytes counts the bytes of a store that are only in memory. Pebble tells
// the size of its memtables by what they may hold, which is the same for an
// empty one; what counts for a budget is what they do hold.
type pendingBytes struct {
	mu      sync.Mutex
	index   uint64
	written int64
	flushed int64
	marks   []pendingMark
}

// pendingMark says how many bytes were written up to an index.
type pendingMark struct {
	index   uint64
	written int64
}

// bytes returns what is only in memory.
func (p *pendingBytes) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.written - p.flushed
}

// add counts n bytes written up to an index.
func (p *pendingBytes) add(index uint64, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index, p.written = index, p.written+n
	marked := p.flushed
	if len(p.marks) > 0 {
		marked = p.marks[len(p.marks)-1].written
	}
	if p.written-marked >= pendingMarkBytes {
		p.marks = append(p.marks, pendingMark{index, p.written})
	}
}

// last returns the index up to which bytes were counted.
func (p *pendingBytes) last() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index
}

// settle counts off what is durable up to an index and returns how much.
func (p *pendingBytes) settle(durable uint64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.flushed
	drop := 0
	for drop < len(p.marks) && p.marks[drop].index <= durable {
		p.flushed = p.marks[drop].written
		drop++
	}
	p.marks = append(p.marks[:0], p.marks[drop:]...)
	if durable >= p.index {
		p.flushed = p.written
	}
	return p.flushed - before
}

// grew tells that a store wrote n more bytes up to an index. Past the budget
// the store with the most is asked to flush; it does so on its own goroutine.
func (s *Shared) grew(store *Store, index uint64, n int64) {
	store.pending.add(index, n)
	if s.unflushed.Add(n) <= s.opts.MemTableBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var largest *Store
	most := int64(0)
	for candidate := range s.stores {
		if candidate.flushWanted.Load() {
			// One that is under way may be enough; its end counts anew.
			return
		}
		if bytes := candidate.pending.bytes(); bytes > most {
			largest, most = candidate, bytes
		}
	}
	if largest != nil {
		largest.flushWanted.Store(true)
		largest.wake()
	}
}

// settled tells up to which index a store is durable.
func (s *Shared) settled(store *Store, durable uint64) {
	s.unflushed.Add(-store.pending.settle(durable))
}

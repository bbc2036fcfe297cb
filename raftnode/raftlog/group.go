package raftlog

import (
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Marker is the position up to which a group's entries are gone: the first one
// still in the log has Index + 1. Term is the term of the entry at Index.
type Marker struct{ Index, Term uint64 }

// Group is the read side of one group's log. All methods may be called from any
// goroutine. They show what was written, also where it is not synced yet.
type Group struct {
	log *Log
	id  uint64

	// mu guards what follows against readers; only the append goroutine writes.
	mu        sync.RWMutex
	marker    Marker
	hardState hardState
	index     index
	live      int64 // bytes of records of the group's entries

	known bool // a record of it was written, so heads name it; append goroutine
	plan  plan // append goroutine
}

func newGroup(l *Log, id uint64) *Group {
	g := &Group{log: l, id: id}
	g.index.reset(1)
	return g
}

// ID returns the number of the group.
func (g *Group) ID() uint64 { return g.id }

// HardState returns a copy of the group's last hard state; one of zeros if it
// never had one.
func (g *Group) HardState() *raftpb.HardState {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.hardState.message()
}

// Marker returns the group's marker.
func (g *Group) Marker() Marker {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.marker
}

// FirstIndex returns the index of the first entry that is or will be there,
// Marker().Index + 1.
func (g *Group) FirstIndex() uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.index.first
}

// LastIndex returns the index of the last entry; that of the marker if there is
// none.
func (g *Group) LastIndex() uint64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.index.last
}

// LiveBytes returns the bytes the group's entries take in the segments.
func (g *Group) LiveBytes() int64 {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.live
}

// Term returns the term of the entry at i, or of the marker. It returns
// raft.ErrCompacted below the marker and raft.ErrUnavailable behind the last
// entry.
func (g *Group) Term(i uint64) (uint64, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	switch {
	case i < g.marker.Index:
		return 0, raft.ErrCompacted
	case i > g.index.last:
		return 0, raft.ErrUnavailable
	case i == g.marker.Index:
		return g.marker.Term, nil
	}
	return g.index.at(i).term, nil
}

// coldEntry is an entry of a result that must be read from its segment.
type coldEntry struct {
	position int // in the result
	index    uint64
	ref      ref
}

// Entries returns the entries of [lo, hi), cut off before their encoded size
// exceeds maxBytes but never before the first. The caller owns the slice; the
// entries are shared and must not be changed. It returns raft.ErrCompacted if lo
// is not behind the marker, raft.ErrUnavailable if hi-1 is behind the last
// entry, a CorruptError if an entry on disk is damaged, and ErrClosed after Close
// if an entry is not in memory. It blocks for disk reads of entries that are not
// cached.
func (g *Group) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	entries, cold, err := g.collect(lo, hi, maxBytes)
	if err != nil {
		return nil, err
	}
	m := &g.log.metrics
	m.cacheHits.Add(int64(len(entries) - len(cold)))
	if len(cold) == 0 {
		return entries, nil
	}
	m.cacheMisses.Add(int64(len(cold)))
	defer unpin(cold)
	if err := g.log.readCold(g.id, cold, entries); err != nil {
		return nil, err
	}
	return entries, nil
}

// collect takes what is cached and pins the segments of what is not. Sizes are
// known from the index, so nothing is read that will not be returned.
func (g *Group) collect(lo, hi, maxBytes uint64) (entries []*raftpb.Entry, cold []coldEntry, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	switch {
	case lo < g.index.first:
		return nil, nil, raft.ErrCompacted
	case hi > g.index.last+1:
		return nil, nil, raft.ErrUnavailable
	case lo >= hi:
		return nil, nil, nil
	}
	var total uint64
	n := lo
	for ; n < hi; n++ {
		r := g.index.at(n)
		total += encodedBytes(r, n)
		if total > maxBytes && n > lo {
			break
		}
	}
	entries = make([]*raftpb.Entry, n-lo)
	for i := range entries {
		r := g.index.at(lo + uint64(i))
		if r.entry != nil {
			entries[i] = r.entry
			continue
		}
		if len(cold) == 0 || cold[len(cold)-1].ref.segment != r.segment {
			r.segment.pins.Add(1)
		}
		cold = append(cold, coldEntry{position: i, index: lo + uint64(i), ref: *r})
	}
	return entries, cold, nil
}

// unpin takes back one pin per run of cold entries in one segment.
func unpin(cold []coldEntry) {
	for i := range cold {
		if i == 0 || cold[i-1].ref.segment != cold[i].ref.segment {
			cold[i].ref.segment.pins.Add(-1)
		}
	}
}

// encodedBytes is the size of the entry as a protobuf message, which is what
// raft's limits count.
func encodedBytes(r *ref, i uint64) uint64 {
	n := 2 + 1 + varintBytes(r.term) + 1 + varintBytes(i)
	if d := r.dataBytes(); d > 0 {
		n += 1 + varintBytes(uint64(d)) + d
	}
	return uint64(n)
}

func varintBytes(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// Groups returns the numbers of all groups the log holds something of, in
// ascending order.
func (l *Log) Groups() []uint64 {
	l.groupsMu.RLock()
	defer l.groupsMu.RUnlock()
	ids := make([]uint64, 0, len(l.groups))
	for id, g := range l.groups {
		g.mu.RLock()
		known := g.known
		g.mu.RUnlock()
		if known {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Group returns the read side of a group, an empty one if nothing was ever
// appended to it. It returns the same Group each time.
func (l *Log) Group(id uint64) *Group {
	l.groupsMu.RLock()
	g := l.groups[id]
	l.groupsMu.RUnlock()
	if g != nil {
		return g
	}
	l.groupsMu.Lock()
	defer l.groupsMu.Unlock()
	if g = l.groups[id]; g == nil {
		g = newGroup(l, id)
		l.groups[id] = g
	}
	return g
}

// knownGroups returns the groups heads name, in ascending order.
func (l *Log) knownGroups() []*Group {
	l.groupsMu.RLock()
	defer l.groupsMu.RUnlock()
	groups := make([]*Group, 0, len(l.groups))
	for _, g := range l.groups {
		if g.known {
			groups = append(groups, g)
		}
	}
	slices.SortFunc(groups, func(a, b *Group) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return groups
}

// String names the group in messages.
func (g *Group) String() string { return fmt.Sprintf("group %d", g.id) }

package raftlog

import "go.etcd.io/raft/v3/raftpb"

// The functions here are the meaning of each record. Append calls them after a
// batch is written and Open for each batch it replays, so the state in memory is
// always what a replay would make of the segments. They expect the group's lock.

// place is where a record stands.
type place struct {
	segment *segment
	batch   uint64
	offset  uint32
	bytes   uint32
}

// applyMarker moves the marker: the entries up to it are gone; all of them if it
// is a reset or behind the last one.
func (l *Log) applyMarker(g *Group, m Marker, reset bool, batch uint64) {
	x := &g.index
	if reset || m.Index >= x.last {
		l.kill(g, x.first, x.last, batch)
		x.reset(m.Index + 1)
	} else if m.Index >= x.first {
		l.kill(g, x.first, m.Index, batch)
		x.cut(m.Index)
	}
	g.marker = m
}

// applyEntry appends an entry at i. The group's entries from i on are gone: they
// are of an older term, another leader overwrote them.
func (l *Log) applyEntry(g *Group, i, term uint64, at place, entry *raftpb.Entry) {
	x := &g.index
	if i <= x.last {
		l.kill(g, i, x.last, at.batch)
		x.truncate(i)
	}
	r := x.push()
	*r = ref{segment: at.segment, term: term, offset: at.offset, bytes: at.bytes}
	l.born(g, r)
	if entry != nil && l.cache.limit > 0 {
		r.entry = entry
		l.cache.added(g, i, r)
	}
}

// applyMoved points the live entry i to its new place. It deletes nothing: the
// entries behind it are as live as before.
func (l *Log) applyMoved(g *Group, i, term uint64, at place) {
	l.kill(g, i, i, at.batch)
	r := g.index.make(i)
	*r = ref{segment: at.segment, term: term, offset: at.offset, bytes: at.bytes}
	l.born(g, r)
}

// applyHardState replaces the hard state.
func (l *Log) applyHardState(g *Group, hs hardState) { g.hardState = hs }

// born counts the record of r as alive.
func (l *Log) born(g *Group, r *ref) {
	n := int64(r.bytes)
	g.live += n
	r.segment.live += n
	l.metrics.liveBytes.Add(n)
}

// kill counts the records of lo..hi as dead, by the given batch: until that is
// synced a crash brings them back.
func (l *Log) kill(g *Group, lo, hi, batch uint64) {
	var total int64
	g.index.each(lo, hi, func(_ uint64, r *ref) {
		l.cache.drop(r)
		r.segment.live -= int64(r.bytes)
		r.segment.lastDeath = max(r.segment.lastDeath, batch)
		total += int64(r.bytes)
	})
	g.live -= total
	l.metrics.liveBytes.Add(-total)
}

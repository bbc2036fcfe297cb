package raftlog

import "fmt"

// replayBatch applies the records of a whole batch. Records whose checksums match
// but that do not follow from those before are not a torn write: they are
// corruption (or a bug), and Open refuses them.
func (r *recovery) replayBatch(firstOfRun bool, s *segment, h *header, body []byte) error {
	at := place{segment: s, batch: h.batch, offset: uint32(s.offset) + headerSize}
	heads := 0
	for n := 0; len(body) > 0; n++ {
		rec, size, _ := decodeRecord(body)
		body = body[size:]
		at.bytes = uint32(size)
		var reason string
		isHead := rec.kind == kindHead || rec.kind == kindGroup
		switch {
		case isHead != h.isHead() || (rec.kind == kindHead) != (h.isHead() && n == 0):
			reason = "a record stands in a batch of the wrong kind"
		case rec.kind == kindHead:
			// arrange read the newest one.
		case rec.kind == kindGroup && firstOfRun:
			heads++
			reason = r.beginGroup(rec.group, decodeGroupHead(rec.payload))
		case rec.kind == kindGroup:
			heads++
			reason = r.compareGroup(rec.group, decodeGroupHead(rec.payload))
		default:
			reason = r.replayRecord(&rec, at)
		}
		if reason != "" {
			return corrupt(s, int64(at.offset), rec.group, reason)
		}
		at.offset += at.bytes
	}
	if h.isHead() && heads != r.log.known {
		return corrupt(s, s.offset, 0, fmt.Sprintf("the head names %d groups, the segments before hold %d", heads, r.log.known))
	}
	return nil
}

// beginGroup takes a group over from the head of the first segment. Its entries
// are in older segments, which are gone: they must turn up as MOVED ones, or be
// deleted by what follows.
func (r *recovery) beginGroup(id uint64, h groupHead) (reason string) {
	g := r.log.Group(id)
	if g.known {
		return "the head names the group twice"
	}
	if h.last < h.marker.Index || h.last-h.marker.Index > MaxGroupEntries || h.last == ^uint64(0) {
		return fmt.Sprintf("the head says entries %d to %d, which cannot be", h.marker.Index+1, h.last)
	}
	g.marker, g.hardState = h.marker, h.hardState
	g.index.reset(h.marker.Index + 1)
	g.index.expect(h.last)
	r.log.know(g)
	return ""
}

// compareGroup checks that the head of a later segment says what the replay of
// the segments before made of the group.
func (r *recovery) compareGroup(id uint64, want groupHead) (reason string) {
	g := r.log.Group(id)
	have := g.head()
	if have.last >= g.index.first {
		if x := g.index.at(have.last); x == nil || x.segment == nil {
			have.lastTerm = want.lastTerm // not known here
		}
	}
	if !g.known || have != want {
		return fmt.Sprintf("the head says %+v, the segments before %+v", want, have)
	}
	return ""
}

func (r *recovery) replayRecord(rec *record, at place) (reason string) {
	l := r.log
	g := l.Group(rec.group)
	l.know(g)
	x := &g.index
	switch rec.kind {
	case kindMarker:
		m, reset := decodeMarker(rec.payload)
		if m.Index < g.marker.Index || m.Index == ^uint64(0) {
			return fmt.Sprintf("the marker goes from %d back to %d", g.marker.Index, m.Index)
		}
		l.applyMarker(g, m, reset, at.batch)
	case kindEntry:
		e := decodeEntry(rec.payload)
		if e.index < x.first || e.index > x.last+1 || e.index-g.marker.Index > MaxGroupEntries {
			return fmt.Sprintf("entry %d does not follow entries %d to %d", e.index, x.first, x.last)
		}
		l.applyEntry(g, e.index, e.term, at, nil)
	case kindMoved:
		e := decodeEntry(rec.payload)
		if e.index < x.first || e.index > x.last {
			return fmt.Sprintf("moved entry %d is not one of %d to %d", e.index, x.first, x.last)
		}
		if old := x.at(e.index); old != nil && old.segment != nil && old.term != e.term {
			return fmt.Sprintf("moved entry %d has term %d, it had %d", e.index, e.term, old.term)
		}
		l.applyMoved(g, e.index, e.term, at)
	case kindHardState:
		l.applyHardState(g, decodeHardState(rec.payload))
	}
	return ""
}

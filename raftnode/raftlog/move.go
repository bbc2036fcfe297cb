package raftlog

import (
	"errors"
	"fmt"
)

// defaultMoveBytes bounds what is rewritten per Append, so that it adds little to
// the time of one.
const defaultMoveBytes = 512 << 10

// moveJob is the rewriting of what is alive in the oldest segment.
type moveJob struct {
	segment *segment
	items   []moveItem
}

type moveItem struct {
	group *Group
	index uint64
}

// moveSome rewrites some of the entries that pin the oldest segment where less
// than a quarter of it lives. It waits until a segment was filled since that was
// noticed: a log whose groups are all cut regularly frees the segment by itself
// before, and rewriting would only cost.
func (l *Log) moveSome() error {
	s := l.segments[0]
	if len(l.segments) < 2 || s.live == 0 || s.live >= s.size/4 || s.unmovable {
		return nil
	}
	active := l.active().number
	if s.sparseSince == 0 {
		s.sparseSince = active
	}
	if s.sparseSince == active {
		return nil
	}
	if l.move == nil || l.move.segment != s {
		l.move = &moveJob{segment: s, items: l.liveIn(s)}
	}
	records, err := l.readMoves(l.move)
	if err != nil {
		s.unmovable = true
		l.logger.Error("entries of an old segment cannot be rewritten; the segment stays", "segment", s.name, "err", err)
		return nil
	}
	if err := l.writeMoves(s, records); errors.Is(err, ErrNoSpace) {
		return nil // the items are looked for again
	} else if err != nil {
		return err
	}
	l.retire()
	return nil
}

// liveIn lists the entries alive in s.
func (l *Log) liveIn(s *segment) []moveItem {
	var items []moveItem
	left := s.live
	for _, g := range l.knownGroups() {
		g.index.each(g.index.first, g.index.last, func(i uint64, r *ref) {
			if r.segment == s {
				items = append(items, moveItem{g, i})
				left -= int64(r.bytes)
			}
		})
		if left == 0 {
			break
		}
	}
	return items
}

// moved is an entry read to be written again.
type moved struct {
	moveItem
	term    uint64
	payload []byte
}

// readMoves takes the next items off the job, up to Options.moveBytes of them, and reads
// those still alive.
func (l *Log) readMoves(job *moveJob) ([]moved, error) {
	var records []moved
	total := 0
	for len(job.items) > 0 {
		it := job.items[0]
		x := &it.group.index
		// Only what is alive now may be written: a MOVED copy of a cut or
		// overwritten entry would bring it back.
		if it.index < x.first || it.index > x.last || x.at(it.index).segment != job.segment {
			job.items = job.items[1:]
			continue
		}
		r := x.at(it.index)
		if len(records) > 0 && (total+int(r.bytes) > l.opts.moveBytes || int64(align(headerSize+total+int(r.bytes))) > l.opts.MaxBatchBytes) {
			break
		}
		if n := int64(align(headerSize + int(r.bytes))); n > l.opts.MaxBatchBytes {
			return nil, fmt.Errorf("raftlog: an entry of %d bytes was written under a larger MaxBatchBytes than %d", n, l.opts.MaxBatchBytes)
		}
		b := make([]byte, r.bytes)
		if err := readFull(r.segment, b, int64(r.offset)); err != nil {
			return nil, err
		}
		if _, err := checkEntry(b, it.group.id, it.index, r); err != nil {
			return nil, err
		}
		records = append(records, moved{it, r.term, b[recordHeaderSize:]})
		total += len(b)
		job.items = job.items[1:]
	}
	return records, nil
}

// writeMoves writes the records as one batch of kind MOVED and points the groups
// to it. It is not synced here: until it is, lastDeath keeps the old segment.
func (l *Log) writeMoves(from *segment, records []moved) error {
	if len(records) == 0 {
		l.move = nil // items a full disk left over are listed anew
		return nil
	}
	body := 0
	for i := range records {
		body += recordHeaderSize + len(records[i].payload)
	}
	if s := l.active(); !fits(s.offset, headerSize+body, s.size) {
		if err := l.reserve(1); err != nil {
			l.move = nil
			return err
		}
		if err := l.rotate(); err != nil {
			return err
		}
	}
	at, err := l.writeBatch(0, body, func(e *encoder) {
		for i := range records {
			r := &records[i]
			copy(e.record(len(r.payload)), r.payload)
			e.seal(r.group.id, kindMoved, len(r.payload))
		}
	})
	if err != nil {
		return err
	}
	for i := range records {
		r := &records[i]
		at.bytes = uint32(recordHeaderSize + len(r.payload))
		r.group.mu.Lock()
		l.applyMoved(r.group, r.index, r.term, at)
		r.group.mu.Unlock()
		at.offset += at.bytes
		l.metrics.movedEntries.Add(1)
		l.metrics.movedBytes.Add(int64(at.bytes))
	}
	l.logger.Debug("entries that pinned an old segment were rewritten",
		"segment", from.name, "entries", len(records), "bytes", body, "left", from.live)
	return nil
}

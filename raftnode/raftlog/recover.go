package raftlog

import (
	"fmt"
	"slices"
)

// recovery is one Open: first everything is read and checked, then the disk is
// changed. An error in the first part leaves the disk as it was.
type recovery struct {
	log   *Log
	found listing

	files    []*segment // all segment files, ascending
	kept     []*segment // those of the log, without a hole; the last one is the tail
	headless []*segment // behind the tail: named, but no whole head was written
	obsolete []*segment // before the run

	last      uint64 // the last whole batch
	lastEmpty bool
	highest   uint64 // the highest batch number seen anywhere
}

func (r *recovery) run() error {
	l := r.log
	var err error
	if r.found, err = l.list(); err != nil {
		return err
	}
	slices.Sort(r.found.segments)
	for _, n := range r.found.segments {
		s, err := l.openSegment(n)
		if err != nil {
			return err
		}
		r.files = append(r.files, s)
	}
	if err := r.arrange(); err != nil {
		return err
	}
	for i, s := range r.kept {
		if err := r.replaySegment(i, s); err != nil {
			return err
		}
	}
	if err := r.checkTail(); err != nil {
		return err
	}
	if err := r.checkComplete(); err != nil {
		return err
	}
	return r.repair()
}

// arrange finds the segments of the log: back from the newest with a whole head
// to the first one still needed, or to a hole (checkComplete sees whether what
// is missing is missed).
func (r *recovery) arrange() error {
	tail := len(r.files) - 1
	var firstNeeded uint64
	for ; tail >= 0; tail-- {
		s := r.files[tail]
		sc := scanner{segment: s}
		h, body, reason, err := sc.batch(0, 0)
		if err != nil {
			return err
		}
		if reason == "" {
			rec, _, _ := decodeRecord(body)
			if rec.kind != kindHead {
				return corrupt(s, 0, 0, "the head of the segment does not begin with a head record")
			}
			firstNeeded, r.log.salt = uint64At(rec.payload, 0), h.salt
			break
		}
	}
	r.headless = r.files[tail+1:]
	if tail < 0 {
		return nil
	}
	first := tail
	for first > 0 && r.files[first-1].number == r.files[first].number-1 && r.files[first-1].number >= firstNeeded {
		first--
	}
	r.obsolete, r.kept = r.files[:first], r.files[first:tail+1]
	return nil
}

// replaySegment applies the batches of the i-th segment of the run, up to the
// first that is not whole. In all but the tail that must be the end: the head of
// the next segment was written after all of this one was synced.
func (r *recovery) replaySegment(i int, s *segment) error {
	l := r.log
	sc := scanner{segment: s}
	for {
		h, body, reason, err := sc.batch(s.offset, l.salt)
		if err != nil {
			return err
		}
		if reason == "" && h.batch <= r.last {
			reason = fmt.Sprintf("batch %d stands behind batch %d", h.batch, r.last)
		}
		if s.offset == 0 && reason != "" {
			return corrupt(s, 0, 0, "the head of a segment that is still needed is damaged: "+reason)
		}
		if reason != "" {
			return nil
		}
		if !h.isHead() && h.syncedThrough > r.last {
			return corrupt(s, s.offset, 0, fmt.Sprintf("batch %d was synced, batch %d stands in its place behind batch %d", h.syncedThrough, h.batch, r.last))
		}
		if h.isHead() {
			s.head = h.batch
			if i > 0 && h.syncedThrough != r.last {
				prev := r.kept[i-1]
				return corrupt(prev, prev.offset, 0, fmt.Sprintf("batch %d was synced, the last whole one here is %d", h.syncedThrough, r.last))
			}
		}
		if err := r.replayBatch(i == 0, s, &h, body); err != nil {
			return err
		}
		r.last, r.lastEmpty = h.batch, h.records == 0
		r.highest = max(r.highest, h.batch)
		s.offset += h.size()
	}
}

// checkTail decides between a torn tail and corruption: what lies behind the last
// whole batch of the tail, and in files behind it, may only be what was never
// known to be synced.
func (r *recovery) checkTail() error {
	if len(r.kept) > 0 {
		tail := r.kept[len(r.kept)-1]
		if err := r.checkTraces(tail, tail.offset); err != nil {
			return err
		}
	}
	for _, s := range r.headless {
		if err := r.checkTraces(s, 0); err != nil {
			return err
		}
	}
	return nil
}

func (r *recovery) checkTraces(s *segment, offset int64) error {
	sc := scanner{segment: s}
	t, err := sc.traces(offset, r.log.salt)
	if err != nil {
		return err
	}
	r.highest = max(r.highest, t.batch)
	if t.unknown > 0 {
		return &CorruptError{
			File: s.name, Offset: t.unknown - 1, Reason: t.unknownReason,
			Hint: "nothing was changed; open it with the program version that wrote it",
		}
	}
	if t.syncedThrough <= r.last {
		return nil
	}
	// A head only speaks of the segments before it.
	if tail := len(r.kept) - 1; offset == 0 && tail >= 0 && t.headSyncedThrough > r.last {
		s, offset = r.kept[tail], r.kept[tail].offset
		sc = scanner{segment: s}
	}
	_, _, reason, err := sc.batch(offset, r.log.salt)
	if err != nil {
		return err
	}
	return corrupt(s, offset, 0, fmt.Sprintf("batch %d was synced, the last whole one is %d: %s", t.syncedThrough, r.last, reason))
}

// checkComplete finds entries that a head promised and no segment held.
func (r *recovery) checkComplete() error {
	for _, g := range r.log.knownGroups() {
		i, missing := g.index.firstMissing()
		if !missing {
			continue
		}
		first := r.kept[0]
		lost := &segment{name: r.log.fs.PathJoin(r.log.opts.Dir, segmentName(first.number-1))}
		return corrupt(lost, 0, g.id, fmt.Sprintf("entry %d of %d to %d is in none of the segments from %d on: a segment file is missing",
			i, g.index.first, g.index.last, first.number))
	}
	return nil
}

// repair makes the disk what was read: leftovers go, the torn tail becomes zeros,
// and all of it is synced before the first new batch.
func (r *recovery) repair() error {
	l := r.log
	for _, s := range slices.Concat(r.obsolete, r.headless) {
		if err := l.fs.Remove(s.name); err != nil {
			return fmt.Errorf("raftlog: remove the unneeded segment %s: %w", s.name, err)
		}
	}
	for _, name := range r.found.spares {
		if err := l.fs.Remove(l.fs.PathJoin(l.opts.Dir, name)); err != nil {
			return fmt.Errorf("raftlog: remove the spare file %s of %s: %w", name, l.opts.Dir, err)
		}
	}
	if err := l.syncDir(); err != nil {
		return fmt.Errorf("raftlog: sync %s: %w", l.opts.Dir, err)
	}
	if len(r.kept) == 0 {
		return nil
	}
	tail := r.kept[len(r.kept)-1]
	sc := scanner{segment: tail}
	if err := sc.zero(tail.offset); err != nil {
		return err
	}
	// What a killed process left in the page cache was read as whole; from here
	// on others rely on it.
	if err := tail.file.SyncData(); err != nil {
		return fmt.Errorf("raftlog: sync %s: %w; check the disk", tail.name, err)
	}
	l.segments = slices.Clone(r.kept)
	for _, s := range l.segments {
		l.metrics.diskBytes.Add(s.size)
	}
	// The end is proven if the last batch is empty or something said so.
	l.written, l.synced, l.lastEmpty = r.last, r.last, r.lastEmpty
	l.nextID = tail.number + 1
	// Batches of which nothing is left may have had higher numbers: at most as
	// many as fit the one segment that can be torn.
	l.nextBatch = r.highest + uint64(max(tail.size, l.opts.SegmentBytes))/headerSize + 1
	return nil
}

// closeUnused closes the files the log did not take over.
func (r *recovery) closeUnused() {
	for _, s := range r.files {
		if slices.Contains(r.log.segments, s) {
			continue
		}
		if err := s.file.Close(); err != nil {
			r.log.logger.Warn("closing a segment file failed", "segment", s.name, "err", err)
		}
	}
}

func corrupt(s *segment, offset int64, group uint64, reason string) error {
	return &CorruptError{File: s.name, Offset: offset, Group: group, Reason: reason, Hint: hintReplace}
}

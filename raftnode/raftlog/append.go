package raftlog

import (
	"fmt"
	"time"
)

// Append writes updates as one batch and, with sync, makes it and everything
// before it durable with one sync. Updates that together exceed MaxBatchBytes
// become several batches, split between updates: a crash can then leave the
// first of them without the last. Append returns when the updates are visible to
// readers and, with sync, durable. With no updates and sync it only syncs.
//
// ErrInvalidUpdate (a rule of Update broken, an Update over MaxBatchBytes, too
// many groups for a segment's head) and ErrNoSpace (a segment had to be made and
// the disk is full): nothing was written. ErrFailed: the updates may or may not
// survive, the log is failed for good. ErrClosed after Close.
//
// It blocks for the write, the sync and, where none is ready, the making of a
// segment. It is called by one goroutine.
func (l *Log) Append(updates []Update, sync bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	steps, err := l.plan(updates)
	if err != nil {
		return err
	}
	defer forget(steps)
	// Every segment that will be needed is there before the first byte is
	// written, so a full disk refuses the Append as a whole.
	if err := l.reserve(l.layout(steps)); err != nil {
		return err
	}
	for len(steps) > 0 {
		n := 1
		for n < len(steps) && !steps[n].begin {
			n++
		}
		if err := l.writeSteps(steps[:n]); err != nil {
			return err
		}
		steps = steps[n:]
	}
	if sync && l.written > l.synced {
		if err := l.syncActive(); err != nil {
			return err
		}
	}
	l.cache.shrink()
	return l.maintain()
}

// forget lets go of the entries the steps and their plans point to.
func forget(steps []step) {
	for i := range steps {
		clear(steps[i].group.plan.parts)
	}
	clear(steps)
}

// plan checks all updates and returns the steps that write something.
func (l *Log) plan(updates []Update) ([]step, error) {
	l.sequence++
	steps := l.steps[:0]
	known := l.known
	for i := range updates {
		u := &updates[i]
		g := l.Group(u.Group)
		p := g.planFor(l.sequence)
		s, err := p.add(g, u)
		if err != nil {
			return nil, err
		}
		if s.records == 0 {
			continue
		}
		if n := int64(align(headerSize + s.bytes)); n > l.opts.MaxBatchBytes {
			return nil, invalid(g, "an update of %d bytes exceeds MaxBatchBytes, %d: split it", n, l.opts.MaxBatchBytes)
		}
		if !p.known {
			p.known = true
			known++
		}
		steps = append(steps, s)
	}
	if n := int64(headerSize + headBytes(known)); known > l.known && n > l.opts.maxHeadBytes() {
		return nil, fmt.Errorf("%w: %d groups need a segment head of %d bytes, the limit is %d: use larger segments",
			ErrInvalidUpdate, known, n, l.opts.maxHeadBytes())
	}
	l.steps = steps
	return steps, nil
}

// layout marks where batches and segments begin and returns how many new
// segments that takes.
func (l *Log) layout(steps []step) (segments int) {
	if len(steps) == 0 {
		return 0
	}
	// Heads are counted with the groups these steps bring: at most that large.
	groups := l.known
	for i := range steps {
		if !steps[i].group.known {
			groups++
		}
	}
	head := int64(align(headerSize + headBytes(groups)))
	s := l.active()
	offset, size := s.offset, s.size
	for i := 0; i < len(steps); {
		steps[i].begin = true
		batch := headerSize + steps[i].bytes
		n := i + 1
		for n < len(steps) && int64(align(batch+steps[n].bytes)) <= l.opts.MaxBatchBytes {
			batch += steps[n].bytes
			n++
		}
		if !fits(offset, batch, size) {
			steps[i].rotate = true
			segments++
			offset, size = head, l.opts.SegmentBytes
		}
		offset += int64(align(batch))
		i = n
	}
	return segments
}

// fits tells whether a batch can be written at offset. Room for an empty batch is
// always left, so that the end of a full segment can be proven.
func fits(offset int64, batch int, size int64) bool {
	return offset+int64(align(batch))+headerSize <= size
}

// writeSteps writes one batch and makes it visible.
func (l *Log) writeSteps(steps []step) error {
	if steps[0].rotate {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	body := 0
	for i := range steps {
		body += steps[i].bytes
	}
	at, err := l.writeBatch(0, body, func(e *encoder) {
		for i := range steps {
			e.step(&steps[i])
		}
	})
	if err != nil {
		return err
	}
	for i := range steps {
		at.offset = l.applyStep(&steps[i], at)
	}
	return nil
}

// applyStep makes a written step visible. Its records begin at at.offset; it
// returns where they end.
func (l *Log) applyStep(s *step, at place) uint32 {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	l.know(g)
	if s.marker {
		l.applyMarker(g, *s.update.Marker, s.update.Reset, at.batch)
		at.offset += recordHeaderSize + markerPayload
	}
	for _, entry := range s.update.Entries {
		at.bytes = uint32(recordHeaderSize + entryPayload + len(entry.Data))
		l.applyEntry(g, entry.GetIndex(), entry.GetTerm(), at, entry)
		at.offset += at.bytes
	}
	if s.hasHS {
		l.applyHardState(g, s.hs)
		at.offset += recordHeaderSize + hardStatePayload
	}
	return at.offset
}

// know counts g among the groups heads name, from its first record on.
func (l *Log) know(g *Group) {
	if !g.known {
		g.known = true
		l.known++
	}
}

// writeBatch writes one batch of bodyBytes to the active segment, where it fits.
// It returns the place of the first record.
func (l *Log) writeBatch(flags uint16, bodyBytes int, encode func(*encoder)) (place, error) {
	s := l.active()
	at := place{segment: s, batch: l.nextBatch, offset: uint32(s.offset) + headerSize}
	l.encoder.begin(s.number, at.batch, bodyBytes)
	if encode != nil {
		encode(&l.encoder)
	}
	b := l.encoder.finish(flags, l.salt, l.synced)
	n := len(b)
	if _, err := s.file.WriteAt(b, s.offset); err != nil {
		// Also where the disk is full: the space was taken when the segment
		// was made, so this file system does not keep its word.
		return at, l.fail(fmt.Sprintf("write batch %d, %d bytes at offset %d of %s", at.batch, n, s.offset, s.name), err)
	}
	if flags&flagHead != 0 {
		s.head = at.batch
	}
	s.offset += int64(n)
	l.nextBatch++
	l.written = at.batch
	l.unsyncedBytes += n
	l.lastEmpty = bodyBytes == 0
	l.metrics.batches.Add(1)
	l.metrics.bytesWritten.Add(int64(n))
	return at, nil
}

// syncActive makes all that was written durable: older segments were synced
// before this one took a batch.
func (l *Log) syncActive() error {
	s := l.active()
	start := time.Now()
	if err := s.file.SyncData(); err != nil {
		return l.fail(fmt.Sprintf("sync %s through batch %d", s.name, l.written), err)
	}
	d := time.Since(start)
	bytes := l.unsyncedBytes
	l.synced, l.unsyncedBytes = l.written, 0
	l.metrics.syncs.Add(1)
	if l.opts.OnSync != nil {
		l.opts.OnSync(d, bytes)
	}
	return nil
}

// ProveEnd makes everything written durable and writes an empty batch that says
// so. Without a later batch, damage to the last one cannot be told from a write
// that a crash tore, and would be cut at Open. Call it on the append goroutine
// when nothing was appended for a while; it does nothing where there is nothing
// to prove. Its errors are ErrFailed and ErrClosed.
func (l *Log) ProveEnd() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	return l.proveEnd()
}

func (l *Log) proveEnd() error {
	if l.written > l.synced {
		if err := l.syncActive(); err != nil {
			return err
		}
	}
	// The room is left by fits; only a segment of another program lacks it.
	if s := l.active(); l.lastEmpty || s.offset+headerSize > s.size {
		return nil
	}
	if _, err := l.writeBatch(0, 0, nil); err != nil {
		return err
	}
	return l.syncActive()
}

package raftlog

import "fmt"

// reserve sees to it that n segments are named and ready to take batches. A name
// must be durable before the segment's first record: a file that a crash gives
// its old name back, with new content, would be neither.
func (l *Log) reserve(n int) error {
	n -= len(l.reserved)
	if n <= 0 {
		return nil
	}
	spares, waited, err := l.keeper.acquire(n)
	if waited {
		l.metrics.preallocWaits.Add(1)
	}
	if err != nil {
		return l.segmentError("make a segment", err)
	}
	for i, s := range spares {
		if err := l.adopt(s); err != nil {
			l.keeper.giveBack(spares[i:])
			return err
		}
	}
	return nil
}

// adopt gives a spare file the next segment's name, durably.
func (l *Log) adopt(s spare) error {
	name := l.fs.PathJoin(l.opts.Dir, segmentName(l.nextID))
	if err := l.fs.Rename(s.name, name); err != nil {
		return l.segmentError("name "+name, err)
	}
	if err := l.syncDir(); err != nil {
		// A failed sync says nothing about what the directory holds. Back to
		// the old name; the next attempt changes and syncs it once more.
		if e := l.fs.Rename(name, s.name); e != nil {
			return l.fail("take back the name "+name, e)
		}
		return l.segmentError("sync the name "+name, err)
	}
	l.reserved = append(l.reserved, &segment{number: l.nextID, file: s.file, name: name, size: s.size})
	l.nextID++
	return nil
}

// segmentError is how the making of a segment fails: with ErrNoSpace, to be tried
// again, or for good.
func (l *Log) segmentError(doing string, err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("%w in %s: %w; nothing was appended, free space and append again", ErrNoSpace, l.opts.Dir, err)
	}
	return l.fail(doing, err)
}

func (l *Log) syncDir() error {
	d, err := l.fs.OpenDir(l.opts.Dir)
	if err != nil {
		return err
	}
	return firstError(d.Sync(), d.Close())
}

// rotate makes the first reserved segment the active one and writes its head.
// The old segment is synced before: so at most one segment, the last with a
// whole head, can end in a torn tail.
func (l *Log) rotate() error {
	if l.written > l.synced {
		if err := l.syncActive(); err != nil {
			return err
		}
	}
	s := l.reserved[0]
	l.reserved = l.reserved[1:]
	l.segments = append(l.segments, s)
	l.metrics.segments.Store(int64(len(l.segments)))
	// The state of every group goes along: whatever older segment is deleted
	// later, no vote and no marker goes with it.
	groups := l.knownGroups()
	_, err := l.writeBatch(flagHead, headBytes(len(groups)), func(e *encoder) {
		e.head(l.segments[0].number, groups)
	})
	return err
}

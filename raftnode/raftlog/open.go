package raftlog

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Open opens the log in o.Dir or creates it. What it returns is synced: groups
// hold what was synced before and perhaps more, never less. It fails with a
// CorruptError, and changes nothing on disk, where something once synced is not
// whole; with ErrNoSpace where the disk is too full for a new log's first
// segment; with the file system's error otherwise.
//
// It reads all segments, about the bytes DiskBytes will report, and blocks for as
// long. The caller must own the directory alone.
func Open(o Options) (*Log, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l := &Log{opts: o, fs: o.FS, logger: o.Logger, groups: map[uint64]*Group{}, nextBatch: 1, nextID: 1}
	l.cache.limit = o.CacheBytes
	l.keeper = newKeeper(&l.opts, &l.metrics)
	if err := l.open(); err != nil {
		if e := l.release(); e != nil {
			l.logger.Warn("closing a log that did not open failed", "err", e)
		}
		return nil, err
	}
	return l, nil
}

func (l *Log) open() error {
	if err := l.makeDir(); err != nil {
		return err
	}
	r := recovery{log: l}
	err := r.run()
	r.closeUnused()
	if err != nil {
		return err
	}
	if n := int64(headerSize + headBytes(l.known)); n > l.opts.maxHeadBytes() {
		return fmt.Errorf("raftlog: open %s: the log has %d groups, a segment head of %d bytes; SegmentBytes %d allows %d: use a larger value",
			l.opts.Dir, l.known, n, l.opts.SegmentBytes, l.opts.maxHeadBytes())
	}
	if len(l.segments) == 0 {
		l.salt = l.opts.newSalt()
		if err := l.reserve(1); err != nil {
			return err
		}
		if err := l.rotate(); err != nil {
			return err
		}
		if err := l.syncActive(); err != nil {
			return err
		}
	}
	l.metrics.segments.Store(int64(len(l.segments)))
	return l.proveEnd()
}

// makeDir creates the directory and makes its name durable.
func (l *Log) makeDir() error {
	if err := l.fs.MkdirAll(l.opts.Dir, 0o755); err != nil {
		return fmt.Errorf("raftlog: create %s: %w", l.opts.Dir, err)
	}
	parent, err := l.fs.OpenDir(l.fs.PathDir(l.opts.Dir))
	if err == nil {
		err = firstError(parent.Sync(), parent.Close())
	}
	if err != nil {
		return fmt.Errorf("raftlog: sync the directory of %s: %w", l.opts.Dir, err)
	}
	return nil
}

// listing is what the directory holds.
type listing struct {
	segments []uint64 // ascending
	spares   []string // names
}

func (l *Log) list() (listing, error) {
	var found listing
	names, err := l.fs.List(l.opts.Dir)
	if err != nil {
		return found, fmt.Errorf("raftlog: list %s: %w", l.opts.Dir, err)
	}
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			found.segments = append(found.segments, n)
		} else if strings.HasPrefix(name, sparePrefix) {
			found.spares = append(found.spares, name)
		}
	}
	return found, nil
}

// openSegment opens a segment file without changing it.
func (l *Log) openSegment(number uint64) (*segment, error) {
	name := l.fs.PathJoin(l.opts.Dir, segmentName(number))
	f, err := l.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, fmt.Errorf("raftlog: open %s: %w", name, err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() > 4*MaxSegmentBytes-1 {
		err = fmt.Errorf("it has %d bytes, more than a segment can have", info.Size())
	}
	if err != nil {
		return nil, firstError(fmt.Errorf("raftlog: open %s: %w", name, err), f.Close())
	}
	return &segment{number: number, file: f, name: name, size: info.Size()}, nil
}

package kv

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

const (
	// stateMarker names the marker in the state directory that holds the name
	// of the live image directory. Installing an image moves it.
	stateMarker = "state"

	blockBytes     = 32 << 10
	bloomBits      = 10
	l0Compaction   = 8
	l0StopWrites   = 32
	memTablesMax   = 4
	backoffFirst   = 10 * time.Millisecond
	backoffMost    = time.Second
	compactionsMax = 2
)

// pebbleOptions returns the options of a database. What is set here and why is
// in spec/snapshot.md section 9 and DESIGN.md.
func (s *Store) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		FS:                          backoffFS{FS: s.opts.FS, s: s},
		Cache:                       s.shared.cache,
		FileCache:                   s.shared.files,
		FormatMajorVersion:          pebble.FormatNewest,
		DisableWAL:                  true,
		MemTableSize:                uint64(s.opts.MemTableBytes),
		MemTableStopWritesThreshold: memTablesMax,
		L0CompactionThreshold:       l0Compaction,
		L0StopWritesThreshold:       l0StopWrites,
		CompactionConcurrencyRange:  func() (int, int) { return 1, compactionsMax },
		Logger:                      pebbleLogger{s},
		EventListener: &pebble.EventListener{
			BackgroundError: s.backgroundError,
			FlushEnd:        s.flushEnded,
			CompactionEnd:   func(pebble.CompactionInfo) { s.wake() },
		},
	}
	// With the WAL off a delta's tables must be ingested at once: as a
	// flushable they would only be in memory.
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	o.Levels[0].BlockSize = blockBytes
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings {
		switch s.opts.Compression {
		case CompressionNone:
			return pebble.DBCompressionNone
		case CompressionFastest:
			return pebble.DBCompressionFastest
		case CompressionGood:
			return pebble.DBCompressionGood
		}
		return pebble.DBCompressionBalanced
	})
	o.EnsureDefaults()
	return o
}

// openDatabase opens the database that the marker in dir names, or makes the
// first one. A half-made first one has no marker and is made anew.
func (s *Store) openDatabase(dir string) (*pebble.DB, error) {
	filesystem := s.opts.FS
	marker, image, err := atomicfs.LocateMarker(filesystem, dir, stateMarker)
	if err != nil {
		return nil, fmt.Errorf("kv: read the marker in %s: %w", dir, err)
	}
	db, err := s.openImage(dir, marker, image)
	if closeErr := marker.Close(); err == nil && closeErr != nil {
		return nil, errors.Join(closeErr, db.Close())
	}
	return db, err
}

func (s *Store) openImage(dir string, marker *atomicfs.Marker, image string) (*pebble.DB, error) {
	filesystem, opts := s.opts.FS, s.pebbleOptions()
	if image != "" {
		path := filesystem.PathJoin(dir, image)
		opts.ErrorIfNotExists = true
		db, err := pebble.Open(path, opts)
		if errors.Is(err, pebble.ErrDBDoesNotExist) || errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s: replace this replica: %w", ErrStateMissing, path, err)
		}
		if err != nil {
			return nil, fmt.Errorf("kv: open the state in %s: %w", path, err)
		}
		return db, nil
	}
	image = fmt.Sprintf("%06d", marker.NextIter())
	path := filesystem.PathJoin(dir, image)
	if err := filesystem.RemoveAll(path); err != nil {
		return nil, fmt.Errorf("kv: remove the half-made %s: %w", path, err)
	}
	if err := filesystem.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("kv: make %s: %w", path, err)
	}
	opts.ErrorIfExists = true
	db, err := pebble.Open(path, opts)
	if err != nil {
		return nil, fmt.Errorf("kv: make the state in %s: %w", path, err)
	}
	// The marker comes last: it must never name what is not all there. Its
	// move syncs dir and with it the name of the new directory.
	if err := marker.Move(image); err != nil {
		return nil, errors.Join(fmt.Errorf("kv: move the marker in %s: %w", dir, err), db.Close())
	}
	return db, nil
}

// backgroundError counts a failed flush or compaction and has the next table
// wait. It runs with the database's lock held, so it must not wait itself: reads
// that need the lock would wait with it.
func (s *Store) backgroundError(err error) {
	s.counters.backgroundErrors.Add(1)
	if s.failure() != nil {
		return
	}
	wait := min(max(backoffFirst, 2*time.Duration(s.backoff.Load())), backoffMost)
	s.backoff.Store(int64(wait))
	s.log.Warn("writing in the background failed; trying again", "error", err, "after", wait)
}

// flushEnded runs with the database's lock held: it only wakes the goroutine
// that looks.
func (s *Store) flushEnded(info pebble.FlushInfo) {
	s.flushOver.Store(true)
	if info.Err == nil {
		s.backoff.Store(0)
		s.counters.flushes.Add(1)
	}
	s.wake()
}

// backoffFS holds Pebble back after a background error: it repeats a failed
// flush at once, on a full disk 41,000 times a second. Tables are created
// without locks held, so waiting there stops nothing but the writing itself.
type backoffFS struct {
	vfs.FS
	s *Store
}

// Create waits before a table while the back-off is on.
func (f backoffFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if wait := time.Duration(f.s.backoff.Load()); wait > 0 && strings.HasSuffix(name, ".sst") {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.s.closing:
		case <-f.s.failed:
		}
	}
	return f.FS.Create(name, category)
}

// Unwrap returns the file system below.
func (f backoffFS) Unwrap() vfs.FS { return f.FS }

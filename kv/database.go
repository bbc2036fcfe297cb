package kv

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"syscall"
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
	// markerPrefix begins the file names of all markers.
	markerPrefix = "marker."

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
func (d *database) pebbleOptions() *pebble.Options {
	s := d.s
	o := &pebble.Options{
		FS:                          databaseFS{FS: s.opts.FS, d: d},
		Cache:                       s.shared.cache,
		FileCache:                   s.shared.files,
		FormatMajorVersion:          pebble.FormatNewest,
		DisableWAL:                  true,
		MemTableSize:                uint64(s.opts.MemTableBytes),
		MemTableStopWritesThreshold: memTablesMax,
		L0CompactionThreshold:       l0Compaction,
		L0StopWritesThreshold:       l0StopWrites,
		CompactionConcurrencyRange:  func() (int, int) { return 1, compactionsMax },
		Logger:                      pebbleLogger{d},
		EventListener: &pebble.EventListener{
			BackgroundError: d.backgroundError,
			DataCorruption:  d.corrupted,
			FlushEnd:        d.flushEnded,
			CompactionEnd:   func(pebble.CompactionInfo) { s.wake() },
			WriteStallBegin: func(pebble.WriteStallBeginInfo) { d.stalled.Store(true) },
			WriteStallEnd:   func() { d.stalled.Store(false) },
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

// openState opens the database that the marker in dir names, or makes the
// first one. A half-made first one has no marker and is made anew.
func (s *Store) openState(dir string) (*database, error) {
	marker, image, err := atomicfs.LocateMarker(s.opts.FS, dir, stateMarker)
	if err != nil {
		return nil, fmt.Errorf("kv: read the marker in %s: %w", dir, err)
	}
	var d *database
	if image != "" {
		d = s.newDatabase(s.opts.FS.PathJoin(dir, image), image)
		d.live.Store(true)
		err = d.open()
	} else {
		d, err = s.firstState(dir, marker)
	}
	if closeErr := marker.Close(); err == nil && closeErr != nil {
		err = errors.Join(closeErr, d.db.Close())
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// open opens a database that exists.
func (d *database) open() error {
	opts := d.pebbleOptions()
	opts.ErrorIfNotExists = true
	db, err := pebble.Open(d.path, opts)
	if errors.Is(err, pebble.ErrDBDoesNotExist) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s: replace this replica: %w", ErrStateMissing, d.path, err)
	}
	if err != nil && d.refusesItself(err) {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, d.path, err)
	}
	if err != nil {
		return fmt.Errorf("kv: open the state in %s: %w", d.path, err)
	}
	d.db = db
	return nil
}

// refusesItself tells whether Pebble refused what it read, and not the operating
// system to read it: a table whose size is not the one that the manifest tells is
// an error without a kind. A format of a newer release is no damage.
func (d *database) refusesItself(err error) bool {
	var number syscall.Errno
	var path *fs.PathError
	if errors.As(err, &number) || errors.As(err, &path) || errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) {
		return false
	}
	_, unknown := pebble.Peek(d.path, d.s.opts.FS)
	return unknown == nil
}

// create makes a database in a directory of its own that does not exist, or is
// half-made.
func (d *database) create() error {
	filesystem, opts := d.s.opts.FS, d.pebbleOptions()
	if err := filesystem.RemoveAll(d.path); err != nil {
		return fmt.Errorf("kv: remove the half-made %s: %w", d.path, err)
	}
	if err := filesystem.MkdirAll(d.path, 0o755); err != nil {
		return fmt.Errorf("kv: make %s: %w", d.path, err)
	}
	opts.ErrorIfExists = true
	db, err := pebble.Open(d.path, opts)
	if err != nil {
		return fmt.Errorf("kv: make the state in %s: %w", d.path, err)
	}
	d.db = db
	return nil
}

// firstState makes the empty state of a new replica.
func (s *Store) firstState(dir string, marker *atomicfs.Marker) (*database, error) {
	image := fmt.Sprintf("%06d", marker.NextIter())
	d := s.newDatabase(s.opts.FS.PathJoin(dir, image), image)
	d.live.Store(true)
	if err := d.create(); err != nil {
		return nil, err
	}
	// The marker comes last: it must never name what is not all there.
	err := syncDir(s.opts.FS, dir)
	if err == nil {
		err = marker.Move(image)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kv: move the marker in %s: %w", dir, err), d.db.Close())
	}
	return d, nil
}

// backgroundError counts a failed flush or compaction and has the next table
// wait. It runs with the database's lock held, so it must not wait itself: reads
// that need the lock would wait with it.
func (d *database) backgroundError(err error) {
	d.s.counters.backgroundErrors.Add(1)
	if d.failure() != nil {
		return
	}
	wait := min(max(backoffFirst, 2*time.Duration(d.backoff.Load())), backoffMost)
	d.backoff.Store(int64(wait))
	d.s.log.Warn("writing in the background failed; trying again", "error", err, "after", wait)
}

// flushEnded runs with the database's lock held: it only wakes the goroutine
// that looks.
func (d *database) flushEnded(info pebble.FlushInfo) {
	d.flushOver.Store(true)
	if info.Err == nil {
		d.backoff.Store(0)
		d.s.counters.flushes.Add(1)
	}
	d.s.wake()
}

// databaseFS is the file system as a database sees it.
//
// It holds Pebble back after a background error: Pebble repeats a failed flush
// at once, on a full disk 41,000 times a second. Tables are created without
// locks held, so waiting there stops nothing but the writing itself.
//
// It makes what a marker names durable before the marker: Pebble syncs both
// names at once, and where a file system does not keep their order a crash in
// between leaves a marker of nothing.
type databaseFS struct {
	vfs.FS
	d *database
}

// Create waits before a table while the back-off is on, and syncs the directory
// before a marker.
func (f databaseFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(f.FS.PathBase(name), markerPrefix) {
		if err := syncDir(f.FS, f.FS.PathDir(name)); err != nil {
			return nil, err
		}
	}
	if wait := time.Duration(f.d.backoff.Load()); wait > 0 && strings.HasSuffix(name, ".sst") {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-f.d.s.closing:
		case <-f.d.retired:
		case <-f.d.failed:
		}
	}
	return f.FS.Create(name, category)
}

// Lock locks the directory and remembers how to unlock it: a database that hangs
// in a failure never does.
func (f databaseFS) Lock(name string) (io.Closer, error) {
	lock, err := f.FS.Lock(name)
	if err != nil {
		return nil, err
	}
	unlock := sync.OnceValue(lock.Close)
	f.d.unlock.Store(&unlock)
	return closerFunc(unlock), nil
}

// closerFunc is an io.Closer.
type closerFunc func() error

// Close calls the function.
func (f closerFunc) Close() error { return f() }

// Unwrap returns the file system below.
func (f databaseFS) Unwrap() vfs.FS { return f.FS }

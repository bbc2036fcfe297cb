package raftlog

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Log is the log of all groups of a node. See the package comment for which
// goroutine may call what.
type Log struct {
	opts   Options
	fs     vfs.FS
	logger *slog.Logger
	keeper *keeper

	groupsMu sync.RWMutex
	groups   map[uint64]*Group

	// filesMu is held by readers of segment files and by Close while it closes
	// them.
	filesMu     sync.RWMutex
	filesClosed bool

	failure atomic.Pointer[failure]
	metrics counters

	// mu is the append side; all below it belongs to its holder.
	mu       sync.Mutex
	closed   bool
	salt     uint64
	segments []*segment // oldest first; the last one takes batches
	reserved []*segment // named and empty, the next ones to take batches
	nextID   uint64     // of the next segment

	nextBatch     uint64
	written       uint64 // last batch written
	synced        uint64 // last batch that a returned sync covers
	unsyncedBytes int
	lastEmpty     bool // the last batch has no records: nothing is unproven

	sequence uint64 // of the Append, for plans
	known    int    // groups a head names
	encoder  encoder
	cache    cache
	steps    []step
	move     *moveJob
}

// failure is why the log failed.
type failure struct{ err error }

func randomSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:])                      // never fails: crypto/rand ends the process instead
	return binary.LittleEndian.Uint64(b[:]) | 1 // 0 means any
}

// usable tells why nothing can be appended.
func (l *Log) usable() error {
	if l.closed {
		return ErrClosed
	}
	if f := l.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// fail marks the log failed for good and returns the error that says so.
func (l *Log) fail(doing string, cause error) error {
	err := fmt.Errorf("%w: %s: %w; close the log and open it anew once the disk is sound", ErrFailed, doing, cause)
	if l.failure.CompareAndSwap(nil, &failure{err}) {
		l.logger.Error("the raft log failed; nothing more is appended", "doing", doing, "err", cause)
	}
	return l.failure.Load().err
}

func (l *Log) active() *segment { return l.segments[len(l.segments)-1] }

// DiskBytes returns what the log's files take on disk, spare ones included.
func (l *Log) DiskBytes() int64 { return l.metrics.diskBytes.Load() }

// Close syncs what is not synced, proves the end, ends the log's goroutine and
// closes the files. It waits for readers of segment files. Entries that are
// cached can be read afterwards, others not. It returns the first error; after a
// failure it only closes. A second Close returns ErrClosed.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	var err error
	if l.failure.Load() == nil {
		err = l.proveEnd()
	}
	l.closed = true
	return firstError(err, l.release())
}

// release ends the goroutine and closes all files.
func (l *Log) release() error {
	err := l.keeper.close()
	l.filesMu.Lock()
	defer l.filesMu.Unlock()
	l.filesClosed = true
	for _, list := range [][]*segment{l.segments, l.reserved} {
		for _, s := range list {
			if e := s.file.Close(); e != nil {
				err = firstError(err, fmt.Errorf("raftlog: close %s: %w", s.name, e))
			}
		}
	}
	return err
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

package kv

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/streamraft/streamraft/raftnode"
)

// Store is the default state machine: ordered records on one Pebble database
// per group. It implements raftnode.StateMachine, whose rules say who calls
// Open, Apply, DurableApplied, Flush and Close. Get, Range and the other reads
// are for any goroutine, between Open and Close.
type Store struct {
	opts      Options
	log       *slog.Logger
	shared    *Shared
	ownShared bool
	// batchBytes is where a batch is committed; see maxBatchBytes.
	batchBytes int
	bounds     sessionBounds
	records    recordBounds

	// writer is the apply goroutine's; nil before Open and after Close.
	writer *writer

	// dir is the state directory, as Open was told it.
	dir atomic.Pointer[string]
	// current is the database of the state; nil before Open and after Close.
	// Whoever uses it holds a reference: see acquire.
	current atomic.Pointer[database]

	applied  atomic.Uint64
	applying atomic.Uint64
	durable  atomic.Uint64
	// durableMu keeps durable with its term, and with the current database.
	durableMu   sync.Mutex
	durableTerm uint64
	term        atomic.Uint64
	low         atomic.Uint64
	feedMode    atomic.Int32
	counters    counters
	figures     atomic.Pointer[figures]
	digests     digests

	pending pendingBytes
	// flushWanted: the budget asked for a flush that is not over; asking again
	// would only cut memtables short.
	flushWanted atomic.Bool
	kick        chan struct{}
	closing     chan struct{}
	background  sync.WaitGroup

	pins   journalPins
	staged stagedImages
	damage atomic.Pointer[error]

	failOnce  sync.Once
	failed    chan struct{}
	failedErr atomic.Pointer[FailedError]
}

var _ raftnode.StateMachine = (*Store)(nil)

// New returns a store that is not open yet. It touches no file.
func New(opts Options) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.EnsureDefaults()
	s := &Store{
		opts:       opts,
		log:        opts.Logger.With("group", opts.Group),
		shared:     opts.Shared,
		batchBytes: min(maxBatchBytes, opts.MemTableBytes/memTablesMax),
		bounds:     defaultSessionBounds(),
		records:    defaultRecordBounds(),
		kick:       make(chan struct{}, 1),
		closing:    make(chan struct{}),
		failed:     make(chan struct{}),
	}
	s.figures.Store(new(figures))
	s.digests.init(s)
	return s, nil
}

// Limits returns what to check before proposing.
func (s *Store) Limits() Limits { return s.opts.Limits }

// Open opens the state in dir, or makes a new one. See raftnode.StateMachine.
// A state that is missing, damaged or of a newer release is an error, never a
// new state; the first two match raftnode.ErrUnsound. After an error the store is
// good for Stage and Install only.
func (s *Store) Open(dir string) (raftnode.Applied, error) {
	s.dir.Store(&dir)
	if s.shared == nil {
		shared, err := NewShared(SharedOptions{})
		if err != nil {
			return raftnode.Applied{}, err
		}
		s.shared, s.ownShared = shared, true
	}
	if err := s.shared.join(s); err != nil {
		return raftnode.Applied{}, err
	}
	var applied raftnode.Applied
	err := s.guard(func() error {
		w, err := s.load(dir)
		if err != nil {
			return err
		}
		applied = w.applied.Applied
		s.use(w)
		return nil
	})
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrStateMissing) || pebble.IsCorruptionError(err) {
		err = fmt.Errorf("%w: %w", raftnode.ErrUnsound, err)
	}
	if err != nil {
		return raftnode.Applied{}, errors.Join(err, s.leaveShared())
	}
	return applied, nil
}

// load opens the database in dir and reads what the writer holds in memory.
func (s *Store) load(dir string) (*writer, error) {
	d, err := s.openState(dir)
	if err != nil {
		return nil, err
	}
	w, err := s.loadWriter(d)
	if err != nil {
		return nil, errors.Join(err, d.db.Close())
	}
	s.sweep(dir, d.image)
	return w, nil
}

// loadWriter reads what the writer of a database holds in memory.
func (s *Store) loadWriter(d *database) (*writer, error) {
	w := &writer{s: s, d: d, db: d.db}
	if err := w.load(); err != nil {
		return nil, fmt.Errorf("kv: load the state in %s: %w", d.path, err)
	}
	return w, nil
}

// load reads the applied record, the client sessions and the journal's size.
func (w *writer) load() error {
	var err error
	if w.applied, err = loadApplied(w.db, nil); err != nil {
		return err
	}
	w.clock = w.applied.Clock
	w.sessions = newSessionTable(w.s.bounds)
	if err := loadSessions(w.db, w.sessions); err != nil {
		return err
	}
	w.journal, err = loadJournal(w.db, w.applied.journalLow, w.applied.Index)
	return err
}

// use puts a loaded database to use and starts its background goroutines.
func (s *Store) use(w *writer) {
	s.writer = w
	w.d.live.Store(true)
	// A reader that finds the new state must not find it at the old index.
	s.applying.Store(w.applied.Index)
	s.durableMu.Lock()
	s.current.Store(w.d)
	// There is no WAL, so what was found there is what a crash leaves.
	s.durable.Store(w.applied.Index)
	s.durableTerm = w.applied.Term
	s.durableMu.Unlock()
	s.publish(&w.applied)
	s.counters.sessions.Store(int64(len(w.sessions.byID)))
	s.counters.replies.Store(int64(w.sessions.replies))
	s.digests.passed(w.applied.Index)
	s.refreshFigures(w.db)
	for _, work := range []func(*database){s.maintain, s.scrub} {
		// It has the reference of being in use.
		if w.d.retain() {
			s.background.Add(1)
			go work(w.d)
		}
	}
}

// publish makes an applied record visible to other goroutines.
func (s *Store) publish(a *appliedRecord) {
	s.term.Store(a.Term)
	s.low.Store(a.journalLow)
	s.feedMode.Store(int32(a.feedMode))
	s.applied.Store(a.Index)
}

// Close waits for readers and background work and closes the database. It does
// not flush: the raft log has what is not durable. A failed store is left as it
// is, together with goroutines that may hang in it; the error then is its
// *FailedError.
func (s *Store) Close() error {
	if err := s.usable(); err != nil {
		if s.writer != nil {
			s.writer = nil
			close(s.closing)
		}
		return errors.Join(err, s.staged.close(), s.leaveShared())
	}
	s.writer = nil
	close(s.closing)
	stagedErr := s.staged.close()
	err := s.guard(func() error {
		d := s.current.Swap(nil)
		d.release()
		close(d.cut)
		s.background.Wait()
		s.digests.stop()
		<-d.drained
		return d.db.Close()
	})
	if err != nil && s.failure() == nil {
		err = fmt.Errorf("kv: close the state of group %d: %w", s.opts.Group, err)
	}
	return errors.Join(err, stagedErr, s.leaveShared())
}

// leaveShared gives up the shared resources. The caches of a failed database
// are in use for ever: freeing them under a goroutine that hangs in it would
// turn a failed replica into a crashed process.
func (s *Store) leaveShared() error {
	if s.shared == nil {
		return nil
	}
	s.shared.leave(s)
	if s.ownShared && s.failure() == nil {
		s.ownShared = false
		return s.shared.Close()
	}
	return nil
}

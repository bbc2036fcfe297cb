package kv

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// readersEnd is how long readers of a state may go on after another one took
// its place: until then its files cannot go.
const readersEnd = 30 * time.Second

// database is one open Pebble database of a store: the state, one that was it
// and still has readers, or a staged one. Whoever uses db holds a reference, so
// that an install need not wait for readers, nor readers for an install.
type database struct {
	s  *Store
	db *pebble.DB
	// path of the directory, image its name in the state directory.
	path, image string

	// refs counts the users, and one for being in use at all; at 0 drained is
	// closed and nobody comes again.
	refs    atomic.Int64
	drained chan struct{}
	// retired is closed when the database is no longer the state, cut when its
	// readers have to end.
	retired, cut chan struct{}

	// live: a failure is the store's.
	live      atomic.Bool
	failOnce  sync.Once
	failed    chan struct{}
	failedErr error

	// unlock gives up the lock of the directory.
	unlock atomic.Pointer[func() error]

	// backoff after a failed flush; flushOver: one ended, perhaps in an error.
	backoff   atomic.Int64
	flushOver atomic.Bool
	// stalled: Pebble holds writes up until memtables or L0 have room.
	stalled atomic.Bool

	scrubbed scrubbed
}

// newDatabase returns a database that is not open yet, held once.
func (s *Store) newDatabase(path, image string) *database {
	d := &database{
		s: s, path: path, image: image,
		drained: make(chan struct{}), retired: make(chan struct{}), cut: make(chan struct{}),
		failed: make(chan struct{}),
	}
	d.refs.Store(1)
	d.scrubbed.init()
	return d
}

// acquire returns the state's database with a reference, which the caller
// releases.
func (s *Store) acquire() (*database, error) {
	if err := s.failure(); err != nil {
		return nil, err
	}
	for {
		d := s.current.Load()
		if d == nil {
			return nil, ErrNotOpen
		}
		// It fails only for one that was replaced after Load.
		if d.retain() {
			return d, nil
		}
	}
}

// retain adds a reference, unless there is none any more.
func (d *database) retain() bool {
	for {
		n := d.refs.Load()
		if n == 0 {
			return false
		}
		if d.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release gives a reference back.
func (d *database) release() {
	if d.refs.Add(-1) == 0 {
		close(d.drained)
	}
}

// ended tells whether readers of the database have to end.
func (d *database) ended() bool {
	select {
	case <-d.cut:
		return true
	default:
		return false
	}
}

// over tells whether background work on the database has to end.
func (d *database) over() bool {
	select {
	case <-d.retired:
		return true
	case <-d.failed:
		return true
	default:
		return d.s.stopping()
	}
}

// fail marks the database failed, and the store with it if it is the state.
func (d *database) fail(cause error) {
	live := d.live.Load()
	if live {
		d.s.fail(cause)
	}
	d.failOnce.Do(func() {
		d.failedErr = cause
		close(d.failed)
		if !live {
			d.s.log.Error("a database beside the state failed and is touched no more", "directory", d.path, "error", cause)
		}
	})
}

// failure returns why the database failed, nil if it did not.
func (d *database) failure() error {
	select {
	case <-d.failed:
	default:
		return nil
	}
	if failure := d.s.failure(); failure != nil && d.live.Load() {
		return failure
	}
	return fmt.Errorf("kv: the database in %s failed: %w", d.path, d.failedErr)
}

// guard runs f, which uses the database, on a goroutine of its own and waits
// until it returns or the database fails; see Store.guard.
func (d *database) guard(f func() error) error {
	return guarded(f, d.failed, d.failure, d.fail)
}

// retire ends a database that another one replaced, in the background: readers
// may go on for a while, then it is closed and its directory removed. A crash
// before leaves a directory that Open sweeps.
func (s *Store) retire(d *database) {
	d.live.Store(false)
	close(d.retired)
	d.release()
	s.background.Add(1)
	go func() {
		defer s.background.Done()
		timer := time.NewTimer(readersEnd)
		defer timer.Stop()
		select {
		case <-d.drained:
		case <-timer.C:
		case <-s.closing:
		}
		close(d.cut)
		select {
		case <-d.drained:
		case <-d.failed:
			return
		}
		err := d.guard(d.db.Close)
		if err == nil {
			err = s.opts.FS.RemoveAll(d.path)
		}
		if err != nil {
			s.log.Warn("removing the state that was replaced failed; the next Open does it", "directory", d.path, "error", err)
		}
	}()
}

// guard runs f on a goroutine of its own and waits until it returns or the
// store fails. A failing Pebble ends the goroutine it runs on, perhaps with its
// locks held, and others that wait for those locks never return: guard keeps
// both from the caller. A goroutine that hangs so is left behind.
func (s *Store) guard(f func() error) error {
	return guarded(f, s.failed, s.failure, s.fail)
}

// guarded is guard for a store or a database.
func guarded(f func() error, failed <-chan struct{}, failure func() error, fail func(error)) error {
	done := make(chan error, 1)
	go func() {
		err := error(errGoexit)
		defer func() {
			if r := recover(); r != nil {
				// Pebble and its marker panic where going on would lose data.
				err = fmt.Errorf("kv: the database panicked: %v", r)
				if cause, ok := r.(error); ok {
					err = fmt.Errorf("kv: the database panicked: %w", cause)
				}
				fail(err)
			}
			done <- err
		}()
		err = f()
	}()
	select {
	case err := <-done:
		if failure := failure(); failure != nil {
			return failure
		}
		return err
	case <-failed:
		return failure()
	}
}

var errGoexit = errors.New("kv: the database ended the goroutine")

// pebbleLogger passes Pebble's log on and turns its Fatalf into a failed
// database.
type pebbleLogger struct{ d *database }

// Infof logs at debug level: Pebble's events are for its developers.
func (l pebbleLogger) Infof(format string, args ...any) {
	l.d.s.log.Debug("pebble: " + fmt.Sprintf(format, args...))
}

// Errorf logs an error that Pebble deals with itself.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.d.s.log.Warn("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf marks the database failed and ends the goroutine: where a Fatalf
// returns, Pebble goes on and reports a write as done that is not.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := &fatalError{text: fmt.Sprintf("pebble: "+format, args...)}
	for _, arg := range args {
		if cause, ok := arg.(error); ok {
			// So that a full disk is known for one.
			err.cause = cause
		}
	}
	l.d.fail(err)
	runtime.Goexit()
}

// fatalError is what Pebble calls fatal.
type fatalError struct {
	text  string
	cause error
}

func (e *fatalError) Error() string { return e.text }

func (e *fatalError) Unwrap() error { return e.cause }

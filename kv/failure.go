package kv

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/cockroachdb/pebble/v2"
)

// fail marks the store failed, once, and reports it. It is called on whatever
// goroutine found the error, perhaps with locks of the database held.
func (s *Store) fail(cause error) {
	s.failOnce.Do(func() {
		err := &FailedError{Group: s.opts.Group, Cause: cause}
		s.failedErr.Store(err)
		close(s.failed)
		s.log.Error("the store failed and is touched no more; open the node anew", "error", cause)
		s.opts.OnFailure(err)
	})
}

// failure returns the error of a failed store, nil if it did not fail.
func (s *Store) failure() error {
	if err := s.failedErr.Load(); err != nil {
		return err
	}
	return nil
}

// Failed returns a channel that is closed when the store fails. Err says why.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err returns the *FailedError of a failed store, else nil.
func (s *Store) Err() error { return s.failure() }

// usable tells whether the database may be called.
func (s *Store) usable() error {
	if err := s.failure(); err != nil {
		return err
	}
	if s.writer == nil {
		return ErrNotOpen
	}
	return nil
}

// guard runs f on a goroutine of its own and waits until it returns or the
// store fails. A failing Pebble ends the goroutine it runs on, perhaps with its
// locks held, and others that wait for those locks never return: guard keeps
// both from the caller. A goroutine that hangs so is left behind.
func (s *Store) guard(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err := error(errGoexit)
		defer func() {
			if r := recover(); r != nil {
				// Pebble and its marker panic where going on would lose data.
				err = fmt.Errorf("kv: the database panicked: %v", r)
				s.fail(err)
			}
			done <- err
		}()
		err = f()
	}()
	select {
	case err := <-done:
		if failure := s.failure(); failure != nil {
			return failure
		}
		return err
	case <-s.failed:
		return s.failure()
	}
}

var errGoexit = errors.New("kv: the database ended the goroutine")

// pebbleLogger passes Pebble's log on and turns its Fatalf into a failed store.
type pebbleLogger struct{ s *Store }

// Infof logs at debug level: Pebble's events are for its developers.
func (l pebbleLogger) Infof(format string, args ...any) {
	l.s.log.Debug("pebble: " + fmt.Sprintf(format, args...))
}

// Errorf logs an error that Pebble deals with itself.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Warn("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf marks the store failed and ends the goroutine: where a Fatalf returns,
// Pebble goes on and reports a write as done that is not.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	l.s.fail(fmt.Errorf("pebble: "+format, args...))
	runtime.Goexit()
}

// joinClose closes an iterator and returns err, else the error of closing.
func joinClose(err error, iter *pebble.Iterator) error {
	if closeErr := iter.Close(); err == nil {
		return closeErr
	}
	return err
}

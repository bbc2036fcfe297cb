package kv

import (
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

// joinClose closes an iterator and returns err, else the error of closing.
func joinClose(err error, iter *pebble.Iterator) error {
	if closeErr := iter.Close(); err == nil {
		return closeErr
	}
	return err
}

package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"

	"github.com/streamraft/streamraft/snapshot"
)

// Install replaces the state by a full image, or adds a delta, as
// snapshot.Stager says. A full image may lie below the applied index: that is
// how an unsound state is replaced, and then DurableApplied goes back with it.
// snapshot.ErrUnfit tells that a delta no longer starts or ends where the state
// is: nothing was changed, discard it. Where the store has no sound state only
// the marker is moved: close it and open another one.
func (s *Store) Install(staged snapshot.Sink) error {
	sink, ok := staged.(sink)
	if !ok {
		return fmt.Errorf("kv: install: a %T was not staged here", staged)
	}
	if err := sink.install(s); err != nil {
		return fmt.Errorf("kv: install an image in group %d: %w", s.opts.Group, err)
	}
	s.counters.installed.Add(1)
	return nil
}

// errNotPrepared tells that Prepare did not return before Install.
var errNotPrepared = errors.New("the image is not prepared")

// install moves the marker to the image's directory, which is durable, and
// takes the state that Prepare opened.
func (k *fullSink) install(s *Store) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.s != s || !k.ready {
		return errNotPrepared
	}
	next := k.writer
	if next != nil {
		if err := next.d.failure(); err != nil {
			return err
		}
	}
	old := s.current.Load()
	if next == nil && old != nil && s.failure() == nil {
		return fmt.Errorf("%w: it was prepared without an open state", errNotPrepared)
	}
	// A marker that could not be moved may have been: only opening the state
	// anew tells, and until then the directory must stay.
	k.inDoubt = true
	if err := guarded(func() error { return s.moveMarker(k.state, k.name) }, nil, noFailure, func(error) {}); err != nil {
		return err
	}
	s.staged.remove(k.m.GetImage(), k)
	k.writer, k.ready, k.detached = nil, false, true
	if next != nil && s.failure() == nil {
		s.swap(old, next)
	}
	return nil
}

func noFailure() error { return nil }

// moveMarker makes an image's directory the state.
func (s *Store) moveMarker(dir, image string) error {
	marker, _, err := atomicfs.LocateMarker(s.opts.FS, dir, stateMarker)
	if err != nil {
		return err
	}
	return errors.Join(marker.Move(image), marker.Close())
}

// swap puts the state of an image to use in the place of old.
func (s *Store) swap(old *database, next *writer) {
	s.shared.settled(s, s.pending.last())
	s.flushWanted.Store(false)
	// What waits for a digest is of the old state; it ends with it.
	s.use(next)
	s.retire(old)
}

// install ingests the tables: they, and the applied record with the receiver's
// journal_low, become part of the state at once and durably.
func (k *deltaSink) install(s *Store) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if k.s != s || k.paths == nil {
		return errNotPrepared
	}
	w := s.writer
	if from, applied := k.m.GetFromIndex(), w.applied.Index; from > applied || k.m.GetIndex() < applied {
		return unfitf("it leads from index %d to %d, the state is at %d", from, k.m.GetIndex(), applied)
	}
	// The memtables hold rows that the delta's lie over: were they lost in a
	// crash after it, the state would be a mixture.
	if err := s.Flush(); err != nil {
		return err
	}
	err := w.d.guard(func() error {
		if low := w.applied.journalLow; k.record.journalLow != low {
			k.record.journalLow = low
			paths, err := k.ingestPaths(w.d.pebbleOptions(), &k.record)
			if err != nil {
				return err
			}
			k.paths = paths
		}
		// Readers tell by the two numbers that the state changes beside them.
		s.applying.Store(k.m.GetIndex())
		if err := w.db.Ingest(context.Background(), k.paths); err != nil {
			return err
		}
		return w.load()
	})
	if err != nil {
		return err
	}
	s.staged.remove(k.m.GetImage(), k)
	k.detached, k.paths = true, nil
	s.durableMu.Lock()
	s.durable.Store(w.applied.Index)
	s.durableTerm = w.applied.Term
	s.durableMu.Unlock()
	s.publish(&w.applied)
	s.counters.sessions.Store(int64(len(w.sessions.byID)))
	s.counters.replies.Store(int64(w.sessions.replies))
	s.digests.passed(w.applied.Index)
	s.wake()
	return nil
}

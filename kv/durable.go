package kv

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// DurableApplied returns the highest index that a crash would leave. It is a
// cached figure, refreshed after each flush; it never blocks.
func (s *Store) DurableApplied() uint64 { return s.durable.Load() }

// Flush makes everything applied before the call durable. It may run beside
// Apply; on a full disk it waits until there is space.
func (s *Store) Flush() error {
	db, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.mu.RUnlock()
	if s.durable.Load() >= s.applied.Load() {
		return nil
	}
	return s.guard(func() error {
		flushed, err := db.AsyncFlush()
		if err != nil {
			return fmt.Errorf("kv: flush group %d: %w", s.opts.Group, err)
		}
		select {
		case <-flushed:
		case <-s.failed:
			return s.failure()
		}
		return s.refreshDurable(db)
	})
}

// refreshDurable reads the applied record as a crash would leave it.
func (s *Store) refreshDurable(db *pebble.DB) error {
	record, err := loadApplied(db, &pebble.IterOptions{
		LowerBound:                []byte(spaceApplied),
		UpperBound:                []byte(spaceBlobs),
		OnlyReadGuaranteedDurable: true,
	})
	if err != nil {
		return fmt.Errorf("kv: read the durable applied record: %w", err)
	}
	for {
		// Two refreshes may overtake each other; the figure only rises.
		old := s.durable.Load()
		if record.Index <= old || s.durable.CompareAndSwap(old, record.Index) {
			break
		}
	}
	s.shared.settled(s, record.Index)
	return nil
}

// wake has the background goroutine look; it never blocks.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// maintain is the background goroutine: it refreshes cached figures after
// flushes and compactions, and flushes when the node's budget asks. Close and
// failure end it.
func (s *Store) maintain(db *pebble.DB) {
	defer s.background.Done()
	asked := false
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-s.kick:
		}
		if s.failure() != nil {
			return
		}
		over := s.flushOver.Swap(false)
		if err := s.refreshDurable(db); err != nil {
			s.fail(err)
			return
		}
		s.refreshFigures(db)
		// A flush that failed is not over: Pebble repeats it. Asking for another
		// on a full disk would wait for space, and Close for that.
		failing := s.backoff.Load() > 0
		if over && !failing {
			asked = false
			s.flushWanted.Store(false)
		}
		if s.flushWanted.Load() && !asked && !failing {
			asked = true
			if _, err := db.AsyncFlush(); err != nil {
				asked = false
				s.flushWanted.Store(false)
				s.log.Warn("flushing for the memtable budget failed", "error", err)
			}
		}
	}
}

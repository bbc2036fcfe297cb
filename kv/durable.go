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
	d, err := s.acquire()
	if err != nil {
		return err
	}
	defer d.release()
	if s.durable.Load() >= s.applied.Load() {
		return nil
	}
	return d.guard(func() error {
		flushed, err := d.db.AsyncFlush()
		if err != nil {
			return fmt.Errorf("kv: flush group %d: %w", s.opts.Group, err)
		}
		select {
		case <-flushed:
		case <-d.failed:
			return d.failure()
		}
		return s.refreshDurable(d)
	})
}

// refreshDurable reads the applied record as a crash would leave it.
func (s *Store) refreshDurable(d *database) error {
	record, err := loadApplied(d.db, &pebble.IterOptions{
		LowerBound:                []byte(spaceApplied),
		UpperBound:                []byte(spaceBlobs),
		OnlyReadGuaranteedDurable: true,
	})
	if err != nil {
		return fmt.Errorf("kv: read the durable applied record: %w", err)
	}
	s.durableMu.Lock()
	defer s.durableMu.Unlock()
	// Two refreshes may overtake each other, and an install both: the figure is
	// that of the state, and only rises.
	if s.current.Load() != d || record.Index < s.durable.Load() {
		return nil
	}
	s.durableTerm = record.Term
	s.durable.Store(record.Index)
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
// failure end it, or another state.
func (s *Store) maintain(d *database) {
	defer s.background.Done()
	defer d.release()
	asked := false
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-d.retired:
			return
		case <-s.kick:
		}
		if d.over() {
			// The signal may have been meant for who comes after.
			s.wake()
			return
		}
		over := d.flushOver.Swap(false)
		if err := s.refreshDurable(d); err != nil {
			d.fail(err)
			return
		}
		s.refreshFigures(d.db)
		d.scrubbed.wake()
		// A flush that failed is not over: Pebble repeats it. Asking for another
		// on a full disk would wait for space, and Close for that.
		failing := d.backoff.Load() > 0
		if over && !failing {
			asked = false
			s.flushWanted.Store(false)
		}
		if s.flushWanted.Load() && !asked && !failing {
			asked = true
			if _, err := d.db.AsyncFlush(); err != nil {
				asked = false
				s.flushWanted.Store(false)
				s.log.Warn("flushing for the memtable budget failed", "error", err)
			}
		}
	}
}

package kv

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/streamraft/streamraft/raftnode"
)

// Rebase makes the state the beginning of another history: as if all of it had
// been applied at a.Index; see raftnode.Rebaser. Records, registry, checkpoint
// state and client sessions stay, with the revisions they have, all of which lie
// below those that are still to come. The journal and the rows of terms go, since
// what they say of indexes is of the old history: journal_low is a.Index, so no
// delta starts and no watch resumes below it. So do the registry records under
// Options.ClusterBound.
//
// Client sessions stay so that a write that was sent before the state was saved
// and is sent again after it was restored is not applied twice. One that was
// applied after the state was saved is gone, with the reply to it, and is applied
// like any that never arrived.
//
// All of it is one batch: a crash leaves all of the old or all of the new. It is
// durable on return.
func (s *Store) Rebase(a raftnode.Applied) error {
	if err := s.usable(); err != nil {
		return err
	}
	w := s.writer
	if a.Index <= w.applied.Index || a.Term < w.applied.Term || a.Clock < w.applied.Clock {
		return fmt.Errorf("%w: rebase group %d from index %d term %d clock %d to %d, %d, %d: histories only go on",
			ErrInvalid, s.opts.Group, w.applied.Index, w.applied.Term, w.applied.Clock, a.Index, a.Term, a.Clock)
	}
	record := w.applied
	record.Applied, record.journalLow = a, a.Index
	err := w.d.guard(func() error {
		batch := w.db.NewBatch()
		err := s.writeRebase(batch, &record)
		if err == nil {
			err = batch.Commit(pebble.NoSync)
		}
		if closeErr := batch.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
		return w.load()
	})
	if err != nil {
		return fmt.Errorf("kv: rebase group %d: %w", s.opts.Group, err)
	}
	s.applying.Store(a.Index)
	s.publish(&w.applied)
	s.digests.passed(a.Index)
	return s.Flush()
}

// writeRebase puts the rows of another history into a batch.
func (s *Store) writeRebase(batch *pebble.Batch, record *appliedRecord) error {
	spans := [][2][]byte{
		{[]byte(spaceJournal), spaceEnd(spaceJournal)},
		{[]byte(spaceTerms), spaceEnd(spaceTerms)},
	}
	for _, prefix := range s.opts.ClusterBound {
		start := spaceKey(nil, spaceRegistry, []byte(prefix))
		spans = append(spans, [2][]byte{start, prefixEnd(start)})
	}
	for _, span := range spans {
		if err := batch.DeleteRange(span[0], span[1], nil); err != nil {
			return err
		}
	}
	// After the range deletes: within a batch what is later wins.
	if err := batch.Set(termKey(nil, record.Term), appendTermRow(nil, record.Index), nil); err != nil {
		return err
	}
	return batch.Set([]byte(spaceApplied), appendApplied(nil, record), nil)
}

// prefixEnd returns the first key behind those that begin with prefix, which is
// not empty and not all 0xff.
func prefixEnd(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; ; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
}

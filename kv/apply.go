package kv

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// maxBatchBytes is where a batch is committed at the next index boundary. It
// bounds the memory of one Apply call whatever the caller packs into it.
const maxBatchBytes = 4 << 20

// Apply applies entries as raftnode.StateMachine says. A command that does not
// decode, breaks a bound of the format or is refused by the state is a Failure
// in its Result; an error means that the store failed. Indexes of one call share
// a batch up to 4 MiB; an index is never split over two.
func (s *Store) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := s.writer.inOrder(entries); err != nil {
		return nil, err
	}
	if err := s.writer.broken; err != nil {
		return nil, err
	}
	returned := false
	defer func() {
		// A panic or Goexit leaves memory and database apart.
		if !returned {
			s.fail(errors.New("apply did not return"))
		}
	}()
	results, err := s.writer.apply(entries)
	returned = true
	if pebble.IsCorruptionError(err) {
		// The database is as before these entries; what is in memory may not be.
		s.writer.broken = fmt.Errorf("%w: kv: apply in group %d: %w", raftnode.ErrUnsound, s.opts.Group, err)
		return nil, s.writer.broken
	}
	if err != nil {
		s.fail(err)
		return nil, s.failure()
	}
	return results, nil
}

// writer turns entries into batches. The apply goroutine owns it.
type writer struct {
	s  *Store
	d  *database
	db *pebble.DB
	// applied is the record as of the last finished index.
	applied  appliedRecord
	sessions *sessionTable
	journal  journalSpans
	// broken is a read of damaged blocks: nothing is applied any more.
	broken error

	batch   *pebble.Batch
	indexed bool

	// Of the current index and command.
	clock    int64
	ordinal  uint16
	revision uint64
	values   bool
	digest   bool
	ops      []byte
	touched  []*clientSession

	// Reused between calls.
	commands []command
	row      []byte
	scratch  []byte
}

// inOrder checks that entries continue the log with whole indexes.
func (w *writer) inOrder(entries []raftnode.Entry) error {
	index, ordinal := w.applied.Index, uint16(0)
	ended := true
	for i := range entries {
		e := &entries[i]
		if ended {
			index, ordinal = index+1, 0
		}
		if e.Index != index || e.Ordinal != ordinal {
			return fmt.Errorf("%w: got index %d ordinal %d, want index %d ordinal %d", ErrOutOfOrder, e.Index, e.Ordinal, index, ordinal)
		}
		ordinal, ended = ordinal+1, e.Last
	}
	if !ended {
		return fmt.Errorf("%w: the last command of index %d is missing", ErrOutOfOrder, index)
	}
	return nil
}

// apply applies entries that are in order.
func (w *writer) apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	results := make([]raftnode.Result, len(entries))
	for begin := 0; begin < len(entries); {
		end := begin + 1
		for !entries[end-1].Last {
			end++
		}
		if err := w.index(entries[begin:end], results[begin:end]); err != nil {
			return nil, err
		}
		if w.digest || w.batch.Len() >= w.s.batchBytes {
			if err := w.commit(); err != nil {
				return nil, err
			}
		}
		begin = end
	}
	if err := w.commit(); err != nil {
		return nil, err
	}
	return results, nil
}

// index applies the entries of one index into the batch.
func (w *writer) index(entries []raftnode.Entry, results []raftnode.Result) error {
	w.commands = w.commands[:0]
	w.values = w.applied.feedMode == kvv1.FeedMode_FEED_MODE_VALUES
	mode, reads := w.applied.feedMode, false
	for i := range entries {
		var c command
		if entries[i].Data != nil {
			c = decodeCommand(entries[i].Data)
		}
		reads = reads || entries[i].Data != nil && c.reads()
		if c.invalid == nil && c.message.GetSetFeedMode() != nil {
			// The mode holds for the whole row of its index, so that a values
			// feed begins at that index and not somewhere inside.
			mode = c.message.GetSetFeedMode().GetMode()
			w.values = mode == kvv1.FeedMode_FEED_MODE_VALUES
		}
		w.commands = append(w.commands, c)
	}
	if err := w.begin(reads); err != nil {
		return err
	}
	w.ops, w.touched = w.ops[:0], w.touched[:0]
	next := w.applied
	next.feedMode = mode
	for i := range entries {
		e := &entries[i]
		w.ordinal, w.revision = e.Ordinal, e.Revision()
		w.clock = max(w.clock, e.Clock)
		results[i].Revision = w.revision
		if e.Membership != nil {
			next.Membership = append([]byte(nil), e.Membership...)
		}
		if err := w.expireSessions(); err != nil {
			return err
		}
		if e.Data == nil {
			continue
		}
		data, err := w.command(&w.commands[i])
		if err != nil {
			return err
		}
		results[i].Data = data
		w.s.counters.commands.Add(1)
		if failed(data) {
			w.s.counters.refused.Add(1)
		}
	}
	last := &entries[len(entries)-1]
	next.Index, next.Term, next.Clock = last.Index, last.Term, w.clock
	return w.finish(&next)
}

// finish writes what goes with the end of an index: client session rows, the
// journal row, the term row, and what retention drops.
func (w *writer) finish(next *appliedRecord) error {
	if err := w.writeTouched(); err != nil {
		return err
	}
	w.row = appendJournalRow(w.row[:0], w.ops, w.s.shared.encoder)
	w.scratch = journalKey(w.scratch[:0], next.Index)
	if err := w.batch.Set(w.scratch, w.row, nil); err != nil {
		return err
	}
	w.journal.add(next.Index, int64(len(w.scratch)+len(w.row)), w.s.journalLimit())
	if next.Term != w.applied.Term {
		w.scratch = termKey(w.scratch[:0], next.Term)
		w.row = appendTermRow(w.row[:0], next.Index)
		if err := w.batch.Set(w.scratch, w.row, nil); err != nil {
			return err
		}
	}
	w.applied = *next
	return w.cutJournal()
}

// begin makes sure there is a batch, one that can be read where reads is set.
// An indexed batch costs several times more per write, so it is used only for
// the indexes that need it.
func (w *writer) begin(reads bool) error {
	if w.batch != nil && w.indexed != reads {
		if err := w.commit(); err != nil {
			return err
		}
	}
	if w.batch == nil {
		w.indexed, w.digest = reads, false
		if reads {
			w.batch = w.db.NewIndexedBatch()
		} else {
			w.batch = w.db.NewBatch()
		}
	}
	return nil
}

// commit commits the batch with its applied record and publishes the index.
func (w *writer) commit() error {
	if w.batch == nil {
		return nil
	}
	batch := w.batch
	w.batch = nil
	w.scratch = appendApplied(w.scratch[:0], &w.applied)
	if err := batch.Set([]byte(spaceApplied), w.scratch, nil); err != nil {
		return err
	}
	size := int64(batch.Len())
	// Readers tell by the two numbers whether a commit ran beside them.
	w.s.applying.Store(w.applied.Index)
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("kv: commit index %d: %w", w.applied.Index, err)
	}
	w.s.publish(&w.applied)
	if err := batch.Close(); err != nil {
		return fmt.Errorf("kv: close the batch of index %d: %w", w.applied.Index, err)
	}
	w.s.counters.batches.Add(1)
	w.s.counters.sessions.Store(int64(len(w.sessions.byID)))
	w.s.counters.replies.Store(int64(w.sessions.replies))
	w.s.shared.grew(w.s, w.applied.Index, size)
	if w.digest {
		w.digest = false
		w.s.digests.take(w.d, w.applied.Index)
	}
	w.s.digests.passed(w.applied.Index)
	return nil
}

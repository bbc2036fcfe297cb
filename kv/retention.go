package kv

import (
	"fmt"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// journalPieces is into how many spans the journal's budget is divided: one is
// dropped at a time, by one range delete, since range deletes are cheap to
// write but cost every later read of the space.
const journalPieces = 16

// journalPinShare is the part of the state, 1/journalPinShare, to which a pinned
// journal may grow.
const journalPinShare = 4

// journalPins are the indexes that transfers want the journal kept from.
type journalPins struct {
	mu   sync.Mutex
	held map[*journalPin]struct{}
}

type journalPin struct{ from uint64 }

// lowest returns the lowest index that is pinned, the highest there is if none.
func (p *journalPins) lowest() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	low := uint64(math.MaxUint64)
	for pin := range p.held {
		low = min(low, pin.from)
	}
	return low
}

// journalSpan is a run of journal rows.
type journalSpan struct {
	first uint64
	bytes int64
}

// journalSpans says how many bytes of journal rows there are, and where. It is
// this replica's own: what the journal keeps is not part of the replicated
// state.
type journalSpans struct {
	spans []journalSpan
	total int64
}

// add counts the row of an index.
func (j *journalSpans) add(index uint64, bytes, limit int64) {
	last := len(j.spans) - 1
	if last < 0 || j.spans[last].bytes > limit/journalPieces {
		j.spans = append(j.spans, journalSpan{first: index})
		last++
	}
	j.spans[last].bytes += bytes
	j.total += bytes
}

// cut forgets the oldest spans until limit holds and returns the new
// journal_low. The newest span always stays, and rows above pinned stay until
// there is more than bound.
func (j *journalSpans) cut(limit int64, pinned uint64, bound int64) (low uint64, ok bool) {
	drop := 0
	for drop < len(j.spans)-1 && j.total > limit {
		if j.spans[drop+1].first-1 > pinned && j.total <= bound {
			break
		}
		j.total -= j.spans[drop].bytes
		drop++
	}
	if drop == 0 {
		return 0, false
	}
	j.spans = append(j.spans[:0], j.spans[drop:]...)
	return j.spans[0].first - 1, true
}

// loadJournal estimates the spans of a journal that is on disk: reading all
// rows could take longer than everything else at Open.
func loadJournal(db *pebble.DB, low, applied uint64) (journalSpans, error) {
	var j journalSpans
	if applied <= low {
		return j, nil
	}
	step := max(1, (applied-low)/journalPieces)
	for first := low + 1; first <= applied; first += step {
		end := min(first+step, applied+1)
		bytes, err := db.EstimateDiskUsage(journalKey(nil, first), journalKey(nil, end))
		if err != nil {
			return j, fmt.Errorf("kv: estimate the journal's size: %w", err)
		}
		j.spans = append(j.spans, journalSpan{first: first, bytes: int64(bytes)})
		j.total += int64(bytes)
	}
	return j, nil
}

// journalLimit returns how many bytes of rows the journal may hold.
func (s *Store) journalLimit() int64 {
	if s.opts.JournalBytes > 0 {
		return s.opts.JournalBytes
	}
	return max(MinJournalBytes, s.StateBytes()/journalShare)
}

// cutJournal drops the oldest rows if the journal is over its limit, and the
// term rows that nothing above journal_low needs.
func (w *writer) cutJournal() error {
	limit := w.s.journalLimit()
	if w.journal.total <= limit {
		return nil
	}
	low, ok := w.journal.cut(limit, w.s.pins.lowest(), max(limit, w.s.StateBytes()/journalPinShare))
	if !ok {
		return nil
	}
	from := journalKey(nil, w.applied.journalLow)
	if err := w.batch.DeleteRange(from, journalKey(nil, low+1), nil); err != nil {
		return err
	}
	w.applied.journalLow = low
	return w.cutTerms(low)
}

// cutTerms deletes the row of each term that ended at or below low: a term is
// looked up only for an index from low on. Rows of the current batch are not
// seen; a later cut takes them.
func (w *writer) cutTerms(low uint64) error {
	iter, err := w.db.NewIter(&pebble.IterOptions{LowerBound: []byte(spaceTerms), UpperBound: spaceEnd(spaceTerms)})
	if err != nil {
		return fmt.Errorf("kv: read the term rows: %w", err)
	}
	var before []byte
	for valid := iter.First(); valid; valid = iter.Next() {
		first, err := decodeTermRow(iter.Value())
		if err != nil {
			return joinClose(fmt.Errorf("kv: term row %x: %w", iter.Key(), err), iter)
		}
		if first > low {
			break
		}
		if before != nil {
			if err := w.batch.Delete(before, nil); err != nil {
				return joinClose(err, iter)
			}
		}
		before = append([]byte(nil), iter.Key()...)
	}
	return joinClose(iter.Error(), iter)
}

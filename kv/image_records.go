package kv

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// An image of kind RECORDS holds tables, whose keys do not overlap, and one file
// named applied: the applied record of the source in its stored form. It is no
// row of a table because the receiver writes it with its own journal_low; the
// source's would claim journal rows that the receiver does not have.
const appliedFile = "applied"

const (
	// lookUpCost is what looking up one key costs, in bytes of a full image
	// that travel in the same time.
	lookUpCost = 512
	// leastImage is what a full image is taken to cost at least: below that
	// both are a matter of one message.
	leastImage = 1 << 20
	// maxRangeBytes bounds the range deletes of a delta, which are in memory.
	maxRangeBytes = 16 << 20
	// recordsCheckEvery is how many rows are written between looks at ctx.
	recordsCheckEvery = 1024
)

// recordBounds are how images of records are built, so that tests reach them.
type recordBounds struct {
	// spillBytes of keys are sorted in memory, tableBytes of rows go in a table,
	// workers build tables at once.
	spillBytes, tableBytes, workers int
	// omitRangeDeletes and omitSessions make wrong images, for controls.
	omitRangeDeletes, omitSessions bool
}

func defaultRecordBounds() recordBounds {
	return recordBounds{spillBytes: 64 << 20, tableBytes: 32 << 20, workers: 2}
}

// deltaFits tells whether a delta may start from what a receiver has, as far as
// that can be told without reading the journal.
func (s *Store) deltaFits(have snapshot.Have) (bool, error) {
	applied := &s.writer.applied
	if have.Index == 0 || uint64(have.Schema) != applied.schema ||
		have.Index < applied.journalLow || have.Index > applied.Index {
		return false, nil
	}
	term, err := termAt(s.writer.db, have.Index)
	if err != nil {
		return false, fmt.Errorf("kv: find the term of index %d: %w", have.Index, err)
	}
	return term == have.Term, nil
}

// reader is a database or a snapshot of one.
type reader interface {
	NewIter(o *pebble.IterOptions) (*pebble.Iterator, error)
}

// eachTerm calls f with each term row in order.
func eachTerm(r reader, f func(key []byte, first uint64) error) error {
	iter, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte(spaceTerms), UpperBound: spaceEnd(spaceTerms)})
	if err != nil {
		return err
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		value, err := iter.ValueAndErr()
		if err != nil {
			return joinClose(err, iter)
		}
		first, err := decodeTermRow(value)
		if err == nil {
			err = f(iter.Key(), first)
		}
		if err != nil {
			return joinClose(fmt.Errorf("term row %x: %w", iter.Key(), err), iter)
		}
	}
	return joinClose(iter.Error(), iter)
}

// termAt returns the term of an index at or above journal_low, 0 if no row
// tells.
func termAt(r reader, index uint64) (term uint64, err error) {
	err = eachTerm(r, func(key []byte, first uint64) error {
		if first <= index && len(key) == prefixLen+8 {
			term = binary.BigEndian.Uint64(key[prefixLen:])
		}
		return nil
	})
	return term, err
}

// recordsCapture makes an image of records: those that changed above from, or
// all if that is 0.
type recordsCapture struct {
	capture
	snapshot       *pebble.Snapshot
	applied        appliedRecord
	from, fromTerm uint64
	format         uint32
}

// Close gives the state free.
func (c *recordsCapture) Close() error {
	defer c.d.release()
	if c.d.failure() != nil {
		return nil
	}
	return c.snapshot.Close()
}

// Write builds the tables in dir.
func (c *recordsCapture) Write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	m, err := c.run(ctx, func(ctx context.Context) (*snapshotv1.Manifest, error) { return c.write(ctx, dir) })
	if err == nil && c.from > 0 {
		c.s.counters.deltas.Add(1)
	}
	return m, err
}

func (c *recordsCapture) write(ctx context.Context, dir string) (*snapshotv1.Manifest, error) {
	fs := c.s.opts.FS
	plan, err := c.plan(ctx, dir)
	if err != nil {
		return nil, err
	}
	writers, err := c.build(ctx, dir, plan)
	if err = errors.Join(err, plan.keys.remove()); err != nil {
		return nil, err
	}
	m := manifestOf(snapshotv1.Kind_KIND_RECORDS, &c.applied, c.format)
	m.FromIndex, m.FromTerm = c.from, c.fromTerm
	for _, t := range writers {
		for _, file := range t.files {
			addFile(m, file)
		}
		m.Records += t.records
		m.RawBytes += t.raw
	}
	record := c.applied
	if c.from == 0 {
		// No journal travels.
		record.journalLow = record.Index
	}
	path := fs.PathJoin(dir, appliedFile)
	if err := writeFile(fs, path, appendApplied(nil, &record)); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	digest, size, err := digestFile(fs, path, contextPacer(ctx))
	if err != nil {
		return nil, err
	}
	addFile(m, &snapshotv1.File{Name: appliedFile, Size: size, Digest: digest, Verified: true})
	m.RawBytes += size
	return m, syncDir(fs, dir)
}

// writeFile writes and syncs a file; its name is not durable yet.
func writeFile(fs vfs.FS, path string, content []byte) error {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := file.Write(content); err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(file.Sync(), file.Close())
}

// recordsPlan says what an image of records holds: the rows of keys, and all
// rows of spans, which are in order and do not overlap.
type recordsPlan struct {
	keys   *sortedKeys
	spans  []recordsSpan
	budget deltaBudget
	// cuts are where the work is divided.
	cuts [][]byte
}

// recordsSpan is [start, end); with deleted, rows that the receiver has there
// and the source has not go.
type recordsSpan struct {
	start, end []byte
	deleted    bool
}

// plan reads the journal above from.
func (c *recordsCapture) plan(ctx context.Context, dir string) (*recordsPlan, error) {
	bounds := c.s.records
	keys := &keySorter{fs: c.s.opts.FS, dir: dir, limit: bounds.spillBytes}
	plan := new(recordsPlan)
	var err error
	if c.from == 0 {
		for _, space := range replicatedSpaces() {
			plan.spans = append(plan.spans, recordsSpan{start: []byte(space), end: spaceEnd(space)})
		}
		plan.cuts, err = c.middle()
	} else {
		plan.budget.limit = max(c.s.StateBytes(), leastImage) / 2
		plan.spans, err = c.readJournal(ctx, keys)
	}
	if err == nil {
		err = c.addTerms(keys)
	}
	if err != nil {
		return nil, err
	}
	if plan.keys, err = keys.finish(); err != nil {
		return nil, err
	}
	if err := plan.budget.spend(plan.keys.count * lookUpCost); err != nil {
		return nil, errors.Join(err, plan.keys.remove())
	}
	for i := 1; c.from > 0 && i < bounds.workers; i++ {
		if cut := plan.keys.quantile(i, bounds.workers); cut != nil {
			plan.cuts = append(plan.cuts, cut)
		}
	}
	return plan, nil
}

// readJournal adds the keys that changed in (from, applied] and returns the
// spans: those where ranges were deleted, and the journal rows themselves. A
// gap, a barrier or a row that does not decode is snapshot.ErrNoDelta.
func (c *recordsCapture) readJournal(ctx context.Context, keys *keySorter) ([]recordsSpan, error) {
	lower, upper := journalKey(nil, c.from+1), journalKey(nil, c.applied.Index+1)
	iter, err := c.snapshot.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return nil, err
	}
	var ranges []recordsSpan
	next, rangeBytes := c.from+1, 0
	for valid := iter.First(); valid; valid = iter.Next() {
		if next%recordsCheckEvery == 0 && ctx.Err() != nil {
			return nil, joinClose(ctx.Err(), iter)
		}
		row, err := iter.ValueAndErr()
		if err != nil {
			return nil, joinClose(err, iter)
		}
		if !bytes.Equal(iter.Key(), journalKey(nil, next)) {
			break
		}
		ops, err := decodeJournalRow(row, c.s.shared.decoder)
		if err != nil {
			return nil, joinClose(fmt.Errorf("%w: journal row %d: %w", snapshot.ErrNoDelta, next, err), iter)
		}
		for i := range ops {
			op := &ops[i]
			if c.s.records.omitSessions && bytes.HasPrefix(op.key, []byte(spaceSessions)) {
				continue
			}
			switch op.kind {
			case opBarrier:
				err = fmt.Errorf("%w: index %d is a barrier", snapshot.ErrNoDelta, next)
			case opRange:
				if rangeBytes += len(op.key) + len(op.end); rangeBytes > maxRangeBytes {
					err = fmt.Errorf("%w: too many range deletes", snapshot.ErrNoDelta)
				}
				ranges = append(ranges, recordsSpan{bytes.Clone(op.key), bytes.Clone(op.end), true})
			default:
				err = keys.add(op.key)
			}
			if err != nil {
				return nil, joinClose(err, iter)
			}
		}
		next++
	}
	if err := joinClose(iter.Error(), iter); err != nil {
		return nil, err
	}
	if next != c.applied.Index+1 {
		return nil, fmt.Errorf("%w: the journal has no row of index %d", snapshot.ErrNoDelta, next)
	}
	spans := mergeSpans(ranges)
	if next > c.from+1 {
		spans = append(spans, recordsSpan{start: lower, end: upper})
	}
	slices.SortFunc(spans, func(a, b recordsSpan) int { return bytes.Compare(a.start, b.start) })
	return spans, nil
}

// mergeSpans joins spans that overlap or touch.
func mergeSpans(spans []recordsSpan) []recordsSpan {
	slices.SortFunc(spans, func(a, b recordsSpan) int { return bytes.Compare(a.start, b.start) })
	merged := spans[:0]
	for _, span := range spans {
		if n := len(merged); n > 0 && bytes.Compare(span.start, merged[n-1].end) <= 0 {
			if bytes.Compare(span.end, merged[n-1].end) > 0 {
				merged[n-1].end = span.end
			}
			continue
		}
		merged = append(merged, span)
	}
	return merged
}

// addTerms adds the rows of the terms that began in (from, applied], and for a
// whole state that of the last one, which alone its journal_low needs.
func (c *recordsCapture) addTerms(keys *keySorter) error {
	var last []byte
	err := eachTerm(c.snapshot, func(key []byte, first uint64) error {
		last = append(last[:0], key...)
		if c.from > 0 && first > c.from {
			return keys.add(key)
		}
		return nil
	})
	if err != nil || c.from > 0 || last == nil {
		return err
	}
	return keys.add(last)
}

// middle returns a key in the middle of the database, by the size of tables.
func (c *recordsCapture) middle() ([][]byte, error) {
	levels, err := c.d.db.SSTables()
	if err != nil || c.s.records.workers < 2 {
		return nil, err
	}
	var tables []pebble.SSTableInfo
	total := uint64(0)
	for _, level := range levels {
		for i := range level {
			tables = append(tables, level[i])
			total += level[i].Size
		}
	}
	slices.SortFunc(tables, func(a, b pebble.SSTableInfo) int {
		return bytes.Compare(a.Smallest.UserKey, b.Smallest.UserKey)
	})
	before := uint64(0)
	for i := range tables {
		if before >= total/2 && i > 0 {
			return [][]byte{bytes.Clone(tables[i].Smallest.UserKey)}, nil
		}
		before += tables[i].Size
	}
	return nil, nil
}

// build writes the tables, several parts of the keys at once.
func (c *recordsCapture) build(ctx context.Context, dir string, plan *recordsPlan) ([]*tableWriter, error) {
	pebbleOpts, format := c.d.pebbleOptions(), pebble.FormatMajorVersion(c.format).MaxTableFormat()
	opts := pebbleOpts.MakeWriterOptions(0, format)
	// The tables travel, so they are compressed as those at the bottom are.
	opts.Compression = pebbleOpts.MakeWriterOptions(len(pebbleOpts.Levels)-1, format).Compression
	group, ctx := errgroup.WithContext(ctx)
	var writers []*tableWriter
	var lower []byte
	for i := range len(plan.cuts) + 1 {
		part := recordsPart{c: c, plan: plan, lower: lower}
		if i < len(plan.cuts) {
			part.upper = plan.cuts[i]
		}
		lower = part.upper
		part.out = &tableWriter{
			fs: c.s.opts.FS, dir: dir, prefix: fmt.Sprintf("%02d", i), opts: opts,
			target: c.s.records.tableBytes, budget: &plan.budget,
		}
		writers = append(writers, part.out)
		group.Go(func() error {
			err := part.write(ctx)
			if err == nil {
				err = part.out.finish()
			}
			return errors.Join(err, part.out.abandon())
		})
	}
	return writers, group.Wait()
}

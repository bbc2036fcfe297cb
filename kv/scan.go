package kv

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Defaults and bounds of a page.
const (
	// DefaultRangeLimit is the number of records of a page if none is given,
	// MaxRangeLimit the most there are.
	DefaultRangeLimit = 1000
	MaxRangeLimit     = 100_000
	// DefaultRangeBytes bounds keys and values of a page if nothing else is
	// given: half of a gRPC message of 8 MiB, so that the record that crosses
	// the bound still fits.
	DefaultRangeBytes = 4 << 20

	// rangeCheckEvery is how many records are read between looks at ctx.
	rangeCheckEvery = 256
)

// RangeOptions choose what Range reads.
type RangeOptions struct {
	// Start and End are the bounds: Start <= key < End. An empty End is none.
	Start, End []byte
	// Limit is the most records of the page: 0 means DefaultRangeLimit, more
	// than MaxRangeLimit means that.
	Limit int
	// MaxBytes ends a page before keys and values exceed it; one record is
	// always there. 0 means DefaultRangeBytes.
	MaxBytes int
	// Reverse reads from the end down.
	Reverse bool
	// KeysOnly leaves the values out.
	KeysOnly bool
	// CountOnly counts all records between the bounds; Limit, MaxBytes and Page
	// do not apply. It reads them all: end ctx to stop it.
	CountOnly bool
	// Page continues behind an earlier answer's Next with the same bounds and
	// direction. The pages of one range are not one snapshot.
	Page []byte
}

// RangeResult is one page.
type RangeResult struct {
	// Records in the order that was asked for.
	Records []Record
	// Count of Records, or of all with CountOnly.
	Count uint64
	// Next is the Page to read on with; empty at the end.
	Next []byte
	// Index is the applied index of exactly the state that was read.
	Index uint64
}

// Range reads one page of records. Any goroutine may call it beside Apply; a
// page sees one state at an index boundary. Errors: ErrPageToken, ctx's,
// ErrNotOpen, a *FailedError.
func (s *Store) Range(ctx context.Context, o RangeOptions) (RangeResult, error) {
	return s.scan(ctx, spaceRecords, o)
}

// SpaceRange reads one page of the registry space; see Range.
func (s *Store) SpaceRange(ctx context.Context, o RangeOptions) (RangeResult, error) {
	return s.scan(ctx, spaceRegistry, o)
}

// scan reads one page of a space.
func (s *Store) scan(ctx context.Context, space string, o RangeOptions) (RangeResult, error) {
	d, err := s.acquire()
	if err != nil {
		return RangeResult{}, err
	}
	defer d.release()
	lower, upper, _ := spaceSpan(space, o.Start, o.End)
	if len(o.Page) > 0 && !o.CountOnly {
		after, err := decodePageToken(o.Page, space, o.Reverse)
		if err != nil {
			return RangeResult{}, err
		}
		key := spaceKey(nil, space, after)
		if bytes.Compare(key, lower) < 0 || bytes.Compare(key, upper) >= 0 {
			return RangeResult{}, fmt.Errorf("%w: it lies outside of the bounds", ErrPageToken)
		}
		if o.Reverse {
			upper = key
		} else {
			lower = append(key, 0)
		}
	}
	iter, err := d.db.NewIter(nil)
	if err != nil {
		return RangeResult{}, fmt.Errorf("kv: range: %w", err)
	}
	result, err := page(ctx, d, iter, space, lower, upper, o)
	if err = joinClose(err, iter); err != nil {
		return RangeResult{}, fmt.Errorf("kv: range: %w", err)
	}
	return result, nil
}

// page reads the page of [lower, upper). The applied record is read through the
// same iterator, so both are of one state.
func page(ctx context.Context, d *database, iter *pebble.Iterator, space string, lower, upper []byte, o RangeOptions) (RangeResult, error) {
	var result RangeResult
	applied, err := readApplied(iter)
	if err != nil {
		return result, err
	}
	result.Index = applied.Index
	if bytes.Compare(lower, upper) >= 0 {
		return result, nil
	}
	limit, maxBytes := o.limits()
	iter.SetBounds(lower, upper)
	first, next := iter.First, iter.Next
	if o.Reverse {
		first, next = iter.Last, iter.Prev
	}
	size, read := 0, 0
	for valid := first(); valid; valid = next() {
		if read%rangeCheckEvery == 0 {
			if ctx.Err() != nil {
				return RangeResult{}, ctx.Err()
			}
			if d.ended() {
				return RangeResult{}, ErrReplaced
			}
		}
		read++
		if o.CountOnly {
			result.Count++
			continue
		}
		key := iter.Key()[prefixLen:]
		// The revision is in the value, so keys only saves the copy, not the
		// read.
		raw, err := iter.ValueAndErr()
		if err != nil {
			return RangeResult{}, err
		}
		size += len(key)
		if !o.KeysOnly {
			size += len(raw)
		}
		if len(result.Records) == limit || len(result.Records) > 0 && size > maxBytes {
			last := result.Records[len(result.Records)-1].Key
			result.Next = appendPageToken(nil, space, o.Reverse, last)
			break
		}
		record := Record{Key: append([]byte(nil), key...)}
		if err := record.decode(raw, !o.KeysOnly); err != nil {
			return RangeResult{}, fmt.Errorf("record %q: %w", key, err)
		}
		result.Records = append(result.Records, record)
	}
	if !o.CountOnly {
		result.Count = uint64(len(result.Records))
	}
	return result, iter.Error()
}

// limits returns the bounds of a page.
func (o *RangeOptions) limits() (records, size int) {
	records, size = o.Limit, o.MaxBytes
	if records <= 0 {
		records = DefaultRangeLimit
	}
	if size <= 0 {
		size = DefaultRangeBytes
	}
	return min(records, MaxRangeLimit), size
}

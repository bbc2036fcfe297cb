package kv

import (
	"bytes"
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// recordsPart is the part [lower, upper) of an image of records; nil bounds are
// none.
type recordsPart struct {
	c            *recordsCapture
	plan         *recordsPlan
	lower, upper []byte
	out          *tableWriter
	rows         int
}

// write writes the rows of keys and spans in key order.
func (p *recordsPart) write(ctx context.Context) (err error) {
	iter, err := p.c.snapshot.NewIter(&pebble.IterOptions{LowerBound: p.lower, UpperBound: p.upper})
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, iter) }()
	keys, err := p.plan.keys.from(p.lower)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keys.close()) }()

	key, err := p.nextKey(keys)
	if err != nil {
		return err
	}
	for _, span := range p.plan.spans {
		span, ok := p.clip(span)
		if !ok {
			continue
		}
		for key != nil && bytes.Compare(key, span.start) < 0 {
			if err := p.lookUp(ctx, iter, key); err != nil {
				return err
			}
			if key, err = p.nextKey(keys); err != nil {
				return err
			}
		}
		if err := p.copySpan(ctx, iter, span); err != nil {
			return err
		}
		// The span gave every row that is there, and deletes the others.
		for key != nil && bytes.Compare(key, span.end) < 0 {
			if key, err = p.nextKey(keys); err != nil {
				return err
			}
		}
	}
	for key != nil {
		if err := p.lookUp(ctx, iter, key); err != nil {
			return err
		}
		if key, err = p.nextKey(keys); err != nil {
			return err
		}
	}
	return nil
}

// nextKey returns the next key of the part, nil at its end.
func (p *recordsPart) nextKey(keys keyReader) ([]byte, error) {
	key, err := keys.next()
	if err != nil || key == nil || p.upper != nil && bytes.Compare(key, p.upper) >= 0 {
		return nil, err
	}
	return key, nil
}

// clip returns what of a span lies in the part.
func (p *recordsPart) clip(span recordsSpan) (recordsSpan, bool) {
	if bytes.Compare(span.start, p.lower) < 0 {
		span.start = p.lower
	}
	if p.upper != nil && bytes.Compare(span.end, p.upper) > 0 {
		span.end = p.upper
	}
	return span, bytes.Compare(span.start, span.end) < 0
}

// lookUp writes the row of a key, or its tombstone: a key that is in the journal
// and not in the state was deleted.
func (p *recordsPart) lookUp(ctx context.Context, iter *pebble.Iterator, key []byte) error {
	if err := p.check(ctx); err != nil {
		return err
	}
	// With the prefix Pebble asks the bloom filters.
	if !iter.SeekPrefixGE(key) {
		if err := iter.Error(); err != nil {
			return err
		}
		return p.out.delete(key)
	}
	value, err := iter.ValueAndErr()
	if err != nil {
		return err
	}
	return p.out.set(key, value)
}

// copySpan writes all rows of a span.
func (p *recordsPart) copySpan(ctx context.Context, iter *pebble.Iterator, span recordsSpan) error {
	deleted := span.deleted && !p.c.s.records.omitRangeDeletes
	if deleted {
		if err := p.out.beginDelete(span.start); err != nil {
			return err
		}
	}
	for valid := iter.SeekGE(span.start); valid && bytes.Compare(iter.Key(), span.end) < 0; valid = iter.Next() {
		if err := p.check(ctx); err != nil {
			return err
		}
		value, err := iter.ValueAndErr()
		if err != nil {
			return err
		}
		if err := p.out.set(iter.Key(), value); err != nil {
			return err
		}
	}
	if err := iter.Error(); err != nil {
		return err
	}
	if deleted {
		return p.out.endDelete(span.end)
	}
	return nil
}

// check looks at ctx now and then.
func (p *recordsPart) check(ctx context.Context) error {
	p.rows++
	if p.rows%recordsCheckEvery != 0 {
		return nil
	}
	return ctx.Err()
}

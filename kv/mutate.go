package kv

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// The functions here are the only ones that change replicated spaces: each
// writes the batch and the journal together.

// put sets a record.
func (w *writer) put(space string, key, value []byte) error {
	op := w.batch.SetDeferred(prefixLen+len(key), recordHeader+len(value))
	copy(op.Key[copy(op.Key, space):], key)
	putRecordHeader(op.Value, w.revision)
	copy(op.Value[recordHeader:], value)
	if err := op.Finish(); err != nil {
		return err
	}
	w.ops = appendJournalPut(w.ops, w.ordinal, space, key, value, w.values && space == spaceRecords)
	return nil
}

// setRaw sets a raw storage key.
func (w *writer) setRaw(key, value []byte) error {
	w.ops = appendJournalOp(w.ops, journalOp{kind: opPut, ordinal: w.ordinal, key: key})
	return w.batch.Set(key, value, nil)
}

// deleteRaw deletes a raw storage key.
func (w *writer) deleteRaw(key []byte) error {
	w.ops = appendJournalOp(w.ops, journalOp{kind: opDelete, ordinal: w.ordinal, key: key})
	return w.batch.Delete(key, nil)
}

// delete deletes a record without looking whether it exists.
func (w *writer) delete(space string, key []byte) error {
	w.scratch = spaceKey(w.scratch[:0], space, key)
	return w.deleteRaw(w.scratch)
}

// deleteExisting deletes a record if it exists, and tells.
func (w *writer) deleteExisting(space string, key []byte) (bool, error) {
	_, existed, err := w.get(space, key)
	if err != nil || !existed {
		return false, err
	}
	return true, w.delete(space, key)
}

// deleteRange deletes the records of [start, end) of a space.
func (w *writer) deleteRange(space string, start, end []byte) error {
	lower, upper, ok := spaceSpan(space, start, end)
	if !ok {
		return nil
	}
	return w.deleteSpan(lower, upper)
}

// deleteSpan deletes a span of raw storage keys.
func (w *writer) deleteSpan(lower, upper []byte) error {
	w.ops = appendJournalOp(w.ops, journalOp{kind: opRange, ordinal: w.ordinal, key: lower, end: upper})
	return w.batch.DeleteRange(lower, upper, nil)
}

// foundRecord is a record that was read; value is a copy.
type foundRecord struct {
	revision uint64
	value    []byte
}

// get reads a record as the batch so far leaves it. The batch is an indexed
// one: command.reads saw to that.
func (w *writer) get(space string, key []byte) (foundRecord, bool, error) {
	w.scratch = spaceKey(w.scratch[:0], space, key)
	raw, closer, err := w.batch.Get(w.scratch)
	if errors.Is(err, pebble.ErrNotFound) {
		return foundRecord{}, false, nil
	}
	if err != nil {
		return foundRecord{}, false, fmt.Errorf("kv: read %q: %w", w.scratch, err)
	}
	revision, value, err := decodeRecord(raw)
	value = append([]byte(nil), value...)
	if closeErr := closer.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return foundRecord{}, false, fmt.Errorf("kv: record %q: %w", w.scratch, err)
	}
	return foundRecord{revision: revision, value: value}, true, nil
}

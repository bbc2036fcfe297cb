package kv

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Record is one record as it was read; its slices are the caller's.
type Record struct {
	// Key as the user knows it.
	Key []byte
	// Value, nil for reads of keys only.
	Value []byte
	// ModRevision is the revision of the write that set the value.
	ModRevision uint64
}

// GetResult is the answer of a read of one record.
type GetResult struct {
	// Found tells whether the record exists; if not, Record holds only the key.
	Found  bool
	Record Record
	// Index is the applied index of exactly the state that was read.
	Index uint64
}

// Get reads one record. Any goroutine may call it beside Apply; it sees whole
// indexes only. It waits for no index: that is for the caller.
func (s *Store) Get(key []byte) (GetResult, error) { return s.get(spaceRecords, key) }

// SpaceGet reads one record of the registry space; see Get.
func (s *Store) SpaceGet(key []byte) (GetResult, error) { return s.get(spaceRegistry, key) }

// AppliedIndex returns the highest index whose effect reads see.
func (s *Store) AppliedIndex() uint64 { return s.applied.Load() }

// getTries is how often get reads again when a commit ran beside it before it
// takes the slower way.
const getTries = 2

// get reads one record of a space.
func (s *Store) get(space string, key []byte) (GetResult, error) {
	d, err := s.acquire()
	if err != nil {
		return GetResult{}, err
	}
	defer d.release()
	storage := spaceKey(make([]byte, 0, prefixLen+len(key)), space, key)
	result := GetResult{Record: Record{Key: storage[prefixLen:]}}
	for range getTries {
		// Apply raises applying before a commit and applied after it. Both
		// equal around the read, of a database that is the state still, mean that
		// no commit touched it.
		result.Index = s.applied.Load()
		raw, closer, err := d.db.Get(storage)
		if err != nil && !errors.Is(err, pebble.ErrNotFound) {
			return GetResult{}, fmt.Errorf("kv: get %q: %w", key, err)
		}
		result.Found = err == nil
		if result.Found {
			err := result.Record.decode(raw, true)
			if closeErr := closer.Close(); err == nil {
				err = closeErr
			}
			if err != nil {
				return GetResult{}, fmt.Errorf("kv: get %q: %w", key, err)
			}
		}
		if s.applying.Load() == result.Index && s.current.Load() == d {
			if !result.Found {
				result.Record.Value, result.Record.ModRevision = nil, 0
			}
			return result, nil
		}
	}
	return s.getWithIterator(d.db, storage)
}

// getWithIterator reads the record and the applied record of one state.
func (s *Store) getWithIterator(db *pebble.DB, storage []byte) (GetResult, error) {
	iter, err := db.NewIter(nil)
	if err != nil {
		return GetResult{}, fmt.Errorf("kv: get: %w", err)
	}
	result := GetResult{Record: Record{Key: storage[prefixLen:]}}
	applied, err := readApplied(iter)
	if err != nil {
		return GetResult{}, joinClose(fmt.Errorf("kv: get: %w", err), iter)
	}
	result.Index = applied.Index
	if iter.SeekGE(storage) && string(iter.Key()) == string(storage) {
		raw, err := iter.ValueAndErr()
		if err == nil {
			err = result.Record.decode(raw, true)
		}
		if err != nil {
			return GetResult{}, joinClose(fmt.Errorf("kv: get %q: %w", storage[prefixLen:], err), iter)
		}
		result.Found = true
	}
	if err := joinClose(iter.Error(), iter); err != nil {
		return GetResult{}, fmt.Errorf("kv: get %q: %w", storage[prefixLen:], err)
	}
	return result, nil
}

// decode sets revision and, if wanted, a copy of the value.
func (r *Record) decode(raw []byte, withValue bool) error {
	revision, value, err := decodeRecord(raw)
	if err != nil {
		return err
	}
	r.ModRevision = revision
	if withValue {
		r.Value = append(make([]byte, 0, len(value)), value...)
	}
	return nil
}

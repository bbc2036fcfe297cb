package kv

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// journalRange returns the lowest and highest index with a journal row and how
// many there are.
func journalRange(t *testing.T, s *Store) (low, high uint64, count int) {
	t.Helper()
	iter, err := s.current.Load().db.NewIter(&pebble.IterOptions{LowerBound: []byte(spaceJournal), UpperBound: spaceEnd(spaceJournal)})
	if err != nil {
		t.Fatal(err)
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		high = binary.BigEndian.Uint64(iter.Key()[prefixLen:])
		if count == 0 {
			low = high
		}
		count++
	}
	if err := joinClose(iter.Error(), iter); err != nil {
		t.Fatal(err)
	}
	return low, high, count
}

// terms returns the first index of each term that has a row.
func terms(t *testing.T, s *Store) map[uint64]uint64 {
	t.Helper()
	iter, err := s.current.Load().db.NewIter(&pebble.IterOptions{LowerBound: []byte(spaceTerms), UpperBound: spaceEnd(spaceTerms)})
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[uint64]uint64)
	for valid := iter.First(); valid; valid = iter.Next() {
		first, err := decodeTermRow(iter.Value())
		if err != nil {
			t.Fatal(err)
		}
		rows[binary.BigEndian.Uint64(iter.Key()[prefixLen:])] = first
	}
	if err := joinClose(iter.Error(), iter); err != nil {
		t.Fatal(err)
	}
	return rows
}

// TestJournalRetention writes many times the journal's budget, with reopens: it
// stays bounded, has no gap above journal_low, and the term of every index from
// there on is known.
func TestJournalRetention(t *testing.T) {
	const budget = 64 << 10
	opts, log := Options{FS: vfs.NewMem(), Shared: testShared(t), JournalBytes: budget}, newTestLog()
	var terms0 []uint64 // term of each index
	s := openStore(t, opts)
	key := make([]byte, 200)
	for round := range 20 {
		for range 50 {
			if log.index%40 == 0 {
				log.term++
			}
			for at := range key {
				key[at] = byte(log.index) * byte(at)
			}
			binary.BigEndian.PutUint64(key, log.index)
			log.add(EncodePut(nil, key, nil, nil), EncodePut(nil, key[1:], nil, nil))
			terms0 = append(terms0, log.term)
		}
		if _, err := s.Apply(log.take()); err != nil {
			t.Fatal(err)
		}
		low, high, count := journalRange(t, s)
		journalLow := s.Metrics().JournalLow
		if low != journalLow+1 || high != log.index || uint64(count) != log.index-journalLow {
			t.Fatalf("round %d: rows %d to %d (%d) with journal_low %d and applied %d", round, low, high, count, journalLow, log.index)
		}
		if total := s.writer.journal.total; total > budget+budget/4 {
			t.Fatalf("round %d: %d bytes of journal", round, total)
		}
		rows := terms(t, s)
		for index := max(1, journalLow); index <= log.index; index++ {
			found := uint64(0)
			for term, first := range rows {
				if first <= index {
					found = max(found, term)
				}
			}
			if found != terms0[index-1] {
				t.Fatalf("round %d: term of index %d is %d, want %d", round, index, found, terms0[index-1])
			}
		}
		if round > 15 && len(rows) > 10 {
			t.Fatalf("round %d: %d term rows are kept", round, len(rows))
		}
		if round%5 == 4 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			closeStore(t, s)
			s = openStore(t, opts)
			if s.Metrics().JournalLow != journalLow {
				t.Fatalf("journal_low %d, was %d", s.Metrics().JournalLow, journalLow)
			}
		}
	}
	if s.Metrics().JournalLow == 0 {
		t.Error("nothing was dropped")
	}
}

// TestMemTableBudget has the store with the most unflushed bytes of a node
// flushed, though its own memtable has room.
func TestMemTableBudget(t *testing.T) {
	shared, err := NewShared(SharedOptions{CacheBytes: 8 << 20, OpenTables: 64, MemTableBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	small := openStore(t, Options{Shared: shared, MemTableBytes: 64 << 20})
	large := openStore(t, Options{Shared: shared, MemTableBytes: 64 << 20})
	if err := shared.Close(); err == nil {
		t.Fatal("the shared resources closed under two stores")
	}
	logSmall, logLarge := newTestLog(), newTestLog()
	logSmall.apply(t, small, put("a", "1"))
	value := make([]byte, 64<<10)
	deadline := time.Now().Add(10 * time.Second)
	for large.DurableApplied() == 0 {
		logLarge.apply(t, large, EncodePut(nil, []byte("k"), value, nil))
		if time.Now().After(deadline) {
			t.Fatal(errors.New("never flushed"), large.Metrics())
		}
	}
	if small.DurableApplied() != 0 {
		t.Error("the small one was flushed")
	}
}

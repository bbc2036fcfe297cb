package kv

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

const testDir = "state"

// testShared returns small shared resources that live as long as the test.
func testShared(tb testing.TB) *Shared {
	tb.Helper()
	shared, err := NewShared(SharedOptions{CacheBytes: 8 << 20, OpenTables: 64})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := shared.Close(); err != nil {
			tb.Error(err)
		}
	})
	return shared
}

// newStore returns a store that is not open, on fs.
func newStore(tb testing.TB, opts Options) *Store {
	tb.Helper()
	if opts.FS == nil {
		opts.FS = vfs.NewMem()
	}
	if opts.Shared == nil {
		opts.Shared = testShared(tb)
	}
	if opts.MemTableBytes == 0 {
		opts.MemTableBytes = 1 << 20
	}
	opts.Group = 2
	if err := opts.FS.MkdirAll(testDir, 0o755); err != nil {
		tb.Fatal(err)
	}
	s, err := New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// openStore opens a store and closes it at the end of the test, if it still is.
func openStore(tb testing.TB, opts Options) *Store {
	tb.Helper()
	s := newStore(tb, opts)
	if _, err := s.Open(testDir); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeStore(tb, s) })
	return s
}

func closeStore(tb testing.TB, s *Store) {
	tb.Helper()
	if s.writer == nil {
		return
	}
	if err := s.Close(); err != nil {
		tb.Error(err)
	}
}

// testLog builds a log, index after index.
type testLog struct {
	index, term uint64
	clock       int64
	entries     []raftnode.Entry
}

func newTestLog() *testLog { return &testLog{term: 1, clock: 1_000_000} }

// add appends one index with the commands, none for an empty entry.
func (l *testLog) add(commands ...[]byte) uint64 {
	l.index++
	if len(commands) == 0 {
		l.entries = append(l.entries, raftnode.Entry{Index: l.index, Term: l.term, Last: true, Clock: l.clock})
	}
	for i, c := range commands {
		l.entries = append(l.entries, raftnode.Entry{
			Index: l.index, Term: l.term, Ordinal: uint16(i), Last: i == len(commands)-1, Clock: l.clock, Data: c,
		})
	}
	return l.index
}

// take returns and forgets the entries so far.
func (l *testLog) take() []raftnode.Entry {
	entries := l.entries
	l.entries = nil
	return entries
}

// apply adds one index and applies it, and all before it that was not applied.
func (l *testLog) apply(tb testing.TB, s *Store, commands ...[]byte) []raftnode.Result {
	tb.Helper()
	l.add(commands...)
	results, err := s.Apply(l.take())
	if err != nil {
		tb.Fatal(err)
	}
	return results
}

// from returns the entries above an index.
func from(entries []raftnode.Entry, index uint64) []raftnode.Entry {
	for i := range entries {
		if entries[i].Index > index {
			return entries[i:]
		}
	}
	return nil
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

func put(key, value string) []byte { return EncodePut(nil, []byte(key), []byte(value), nil) }
func del(key string) []byte        { return EncodeDelete(nil, []byte(key), nil) }

func ref(id, sequence, mark uint64) *kvv1.ClientSessionRef {
	return &kvv1.ClientSessionRef{Id: id, Sequence: sequence, LowWaterMark: mark}
}

func putIn(key, value string, session *kvv1.ClientSessionRef) []byte {
	return EncodePut(nil, []byte(key), []byte(value), session)
}

// result decodes a result that must be a success.
func result(tb testing.TB, r raftnode.Result) *kvv1.OperationResult {
	tb.Helper()
	ok, failure, err := DecodeResult(r)
	if err != nil || failure != nil {
		tb.Fatalf("result: failure %v, error %v", failure, err)
	}
	return ok
}

// reason decodes a result that must be a failure.
func reason(tb testing.TB, r raftnode.Result) kvv1.Reason {
	tb.Helper()
	ok, failure, err := DecodeResult(r)
	if err != nil || failure == nil {
		tb.Fatalf("result: %v, error %v, want a failure", ok, err)
	}
	return failure.GetReason()
}

// dump renders every replicated row and the applied record.
func dump(tb testing.TB, s *Store) string {
	tb.Helper()
	var b strings.Builder
	for _, space := range replicatedSpaces() {
		dumpSpan(tb, s.current.Load().db, &b, []byte(space), spaceEnd(space))
	}
	applied, err := loadApplied(s.current.Load().db, nil)
	if err != nil {
		tb.Fatal(err)
	}
	fmt.Fprintf(&b, "applied %+v\n", applied)
	return b.String()
}

// dumpAll renders every row.
func dumpAll(tb testing.TB, s *Store) string {
	tb.Helper()
	var b strings.Builder
	dumpSpan(tb, s.current.Load().db, &b, nil, nil)
	return b.String()
}

func dumpSpan(tb testing.TB, db *pebble.DB, b *strings.Builder, lower, upper []byte) {
	tb.Helper()
	iter, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		tb.Fatal(err)
	}
	for valid := iter.First(); valid; valid = iter.Next() {
		fmt.Fprintf(b, "%q = %x\n", iter.Key(), iter.Value())
	}
	if err := joinClose(iter.Error(), iter); err != nil {
		tb.Fatal(err)
	}
}

// renderSpan renders the rows of a span.
func renderSpan(tb testing.TB, db *pebble.DB, lower, upper []byte) string {
	tb.Helper()
	var b strings.Builder
	dumpSpan(tb, db, &b, lower, upper)
	return b.String()
}

// journalAt decodes the journal row of an index.
func journalAt(tb testing.TB, s *Store, index uint64) []journalOp {
	tb.Helper()
	raw, closer, err := s.current.Load().db.Get(journalKey(nil, index))
	if err != nil {
		tb.Fatalf("journal row %d: %v", index, err)
	}
	ops, err := decodeJournalRow(append([]byte(nil), raw...), s.shared.decoder)
	if err != nil {
		tb.Fatal(err)
	}
	if err := closer.Close(); err != nil {
		tb.Fatal(err)
	}
	return ops
}

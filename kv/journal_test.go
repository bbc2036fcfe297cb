package kv

import (
	"maps"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// replicated returns every replicated row.
func replicated(tb testing.TB, s *Store) map[string]string {
	tb.Helper()
	rows := make(map[string]string)
	for _, space := range replicatedSpaces() {
		iter, err := s.current.Load().db.NewIter(&pebble.IterOptions{LowerBound: []byte(space), UpperBound: spaceEnd(space)})
		if err != nil {
			tb.Fatal(err)
		}
		for valid := iter.First(); valid; valid = iter.Next() {
			rows[string(iter.Key())] = string(iter.Value())
		}
		if err := joinClose(iter.Error(), iter); err != nil {
			tb.Fatal(err)
		}
	}
	return rows
}

// TestJournalCoversEveryChange takes the state at X, the journal of (X, Y] and
// look-ups in the state at Y, and wants the state at Y: what a delta relies on.
func TestJournalCoversEveryChange(t *testing.T) {
	shared := testShared(t)
	rapid.Check(t, func(rt *rapid.T) {
		log := newRandomLog(rapid.Uint64().Draw(rt, "seed"))
		log.value = rapid.SampledFrom([]int{4, 2000}).Draw(rt, "value")
		feed := splitIndexes(log.grow(rapid.IntRange(2, 80).Draw(rt, "indexes")))
		x := rapid.IntRange(0, len(feed)-1).Draw(rt, "x")
		s := openStore(t, Options{Shared: shared, JournalBytes: 1 << 30})
		defer closeStore(t, s)
		var state map[string]string
		for i, e := range feed {
			if i == x {
				state = replicated(t, s)
			}
			before := dump(t, s)
			if _, err := s.Apply(e); err != nil {
				rt.Fatal(err)
			}
			// An index that changed nothing has an empty row.
			if ops := journalAt(t, s, e[0].Index); len(ops) == 0 {
				if diff := cmp.Diff(rowsOf(before), rowsOf(dump(t, s))); diff != "" {
					rt.Fatalf("index %d changed the state but not the journal:\n%s", e[0].Index, diff)
				}
			}
		}
		final := replicated(t, s)
		lookUp := func(key string) {
			if value, ok := final[key]; ok {
				state[key] = value
			} else {
				delete(state, key)
			}
		}
		for _, e := range feed[x:] {
			for _, op := range journalAt(t, s, e[0].Index) {
				if op.ordinal > e[len(e)-1].Ordinal {
					rt.Fatalf("index %d: ordinal %d of %d", e[0].Index, op.ordinal, len(e))
				}
				if op.kind != opRange {
					lookUp(string(op.key))
					continue
				}
				in := func(key string) bool { return key >= string(op.key) && key < string(op.end) }
				maps.DeleteFunc(state, func(key, _ string) bool { return in(key) })
				for key := range final {
					if in(key) {
						lookUp(key)
					}
				}
			}
		}
		if diff := cmp.Diff(final, state); diff != "" {
			rt.Fatalf("the delta from %d is not the state:\n%s", x, diff)
		}
	})
}

// rowsOf cuts the applied record off a dump.
func rowsOf(dump string) string {
	return dump[:strings.LastIndex(dump, "applied ")]
}

// TestValuesFeedIsComplete builds the records from nothing but a journal in mode
// values: every change, as it was applied.
func TestValuesFeedIsComplete(t *testing.T) {
	s, log := openStore(t, Options{JournalBytes: 1 << 30}), newRandomLog(5)
	log.add(must(EncodeSetFeedMode(nil, kvv1.FeedMode_FEED_MODE_VALUES)))
	log.grow(400)
	entries := log.entries[:0:0]
	for _, e := range log.entries {
		if c := decodeCommand(e.Data); e.Data != nil && e.Index > 1 && c.invalid == nil && c.message.GetSetFeedMode() != nil {
			e.Data = nil
		}
		entries = append(entries, e)
	}
	if _, err := s.Apply(entries); err != nil {
		t.Fatal(err)
	}
	state := make(map[string]string)
	for index := uint64(1); index <= log.index; index++ {
		for _, op := range journalAt(t, s, index) {
			switch op.kind {
			case opPutValue:
				state[string(op.key)] = string(appendRecord(nil, index<<16|uint64(op.ordinal), op.value))
			case opPut:
				if string(op.key[:prefixLen]) == spaceRecords {
					t.Fatalf("index %d: a put of %q without its value", index, op.key)
				}
			case opDelete:
				delete(state, string(op.key))
			case opRange:
				maps.DeleteFunc(state, func(key, _ string) bool { return key >= string(op.key) && key < string(op.end) })
			}
		}
	}
	want := replicated(t, s)
	maps.DeleteFunc(want, func(key, _ string) bool { return key[:prefixLen] != spaceRecords })
	if diff := cmp.Diff(want, state); diff != "" || len(want) == 0 {
		t.Errorf("the feed is not the state (%d records):\n%s", len(want), diff)
	}
}

package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// deltaSeeds returns how many random deltas the tests try.
func deltaSeeds(tb testing.TB) uint64 {
	tb.Helper()
	text := os.Getenv("STREAMRAFT_DELTA_SEEDS")
	if text == "" {
		return 30
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		tb.Fatal("STREAMRAFT_DELTA_SEEDS:", err)
	}
	return n
}

// deltaCase is one random delta: what it should give, and what the receiver is.
type deltaCase struct {
	random                      *rand.Rand
	feed                        [][]raftnode.Entry
	from, at, to                int // X, X', Y
	source, receiver, reference *Store
}

// newDeltaCase makes the stores of a seed.
func newDeltaCase(tb testing.TB, shared *Shared, seed uint64) *deltaCase {
	tb.Helper()
	c := &deltaCase{random: rand.New(rand.NewPCG(seed, 11))}
	log := newRandomLog(seed)
	log.value = []int{4, 40, 1500}[c.random.IntN(3)]
	log.wide = c.random.IntN(2) * 40
	c.feed = splitIndexes(log.grow(4 + c.random.IntN(250)))
	c.to = 2 + c.random.IntN(len(c.feed)-2)
	c.from = 1 + c.random.IntN(c.to)
	c.at = c.from + c.random.IntN(c.to-c.from+1)
	open := func(journal int64) *Store {
		return openStore(tb, Options{
			Shared: shared, JournalBytes: journal, MemTableBytes: []int{64 << 10, 1 << 20}[c.random.IntN(2)], ScrubBytesPerSecond: -1,
		})
	}
	journals := []int64{1 << 30, 1 << 30, 4 << 10, 40 << 10}
	c.source, c.receiver, c.reference = open(journals[c.random.IntN(4)]), open(journals[c.random.IntN(4)]), open(1<<30)
	c.source.records = recordBounds{
		spillBytes: []int{1, 300, 64 << 20}[c.random.IntN(3)],
		tableBytes: []int{1, 700, 32 << 20}[c.random.IntN(3)],
		workers:    1 + c.random.IntN(3),
	}
	c.apply(tb, c.source, 0, c.to)
	c.apply(tb, c.receiver, 0, c.at)
	c.apply(tb, c.reference, 0, c.to)
	return c
}

func (c *deltaCase) close(tb testing.TB) {
	for _, s := range []*Store{c.source, c.receiver, c.reference} {
		closeStore(tb, s)
	}
}

// apply applies (from, to] in random calls, with flushes and compactions.
func (c *deltaCase) apply(tb testing.TB, s *Store, from, to int) {
	tb.Helper()
	for from < to {
		var call []raftnode.Entry
		for range 1 + c.random.IntN(15) {
			if from < to {
				call = append(call, c.feed[from]...)
				from++
			}
		}
		if _, err := s.Apply(call); err != nil {
			tb.Fatal(err)
		}
		if c.random.IntN(6) == 0 {
			if err := s.Flush(); err != nil {
				tb.Fatal(err)
			}
		}
		if c.random.IntN(20) == 0 {
			if err := s.current.Load().db.Compact(tb.Context(), []byte("a"), []byte("z"), false); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

// have is what the receiver says it has at X.
func (c *deltaCase) have() snapshot.Have {
	e := c.feed[c.from-1][0]
	return snapshot.Have{Index: e.Index, Term: e.Term, Schema: schemaVersion, StateFormat: stateFormat()}
}

// difference compares the receiver with the state at Y: every replicated row,
// the applied record with the receiver's own journal_low, the journal from there
// and the terms it needs.
func (c *deltaCase) difference(tb testing.TB, low uint64) string {
	tb.Helper()
	got, err := loadApplied(c.receiver.current.Load().db, nil)
	if err != nil {
		tb.Fatal(err)
	}
	want, err := loadApplied(c.reference.current.Load().db, nil)
	if err != nil {
		tb.Fatal(err)
	}
	want.journalLow = low
	diff := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got))
	diff += cmp.Diff(replicated(tb, c.reference), replicated(tb, c.receiver))
	rows := func(s *Store) string {
		return renderSpan(tb, s.current.Load().db, journalKey(nil, low+1), spaceEnd(spaceJournal))
	}
	diff += cmp.Diff(rows(c.reference), rows(c.receiver))
	for index := max(1, low); index <= got.Index; index++ {
		a, err := termAt(c.reference.current.Load().db, index)
		if err != nil {
			tb.Fatal(err)
		}
		b, err := termAt(c.receiver.current.Load().db, index)
		if err != nil {
			tb.Fatal(err)
		}
		if a != b {
			diff += fmt.Sprintf("index %d has term %d, want %d\n", index, b, a)
		}
	}
	return diff
}

// run moves the delta and returns what differs; ok is false where the source
// has no delta from there.
func (c *deltaCase) run(tb testing.TB) (diff string, ok bool) {
	tb.Helper()
	m, err := writeImage(tb, c.source, c.have(), 0)
	if errors.Is(err, snapshot.ErrNoDelta) {
		return "", false
	}
	if err != nil {
		tb.Fatal(err)
	}
	if m.GetKind() != snapshotv1.Kind_KIND_RECORDS {
		if low := c.source.Metrics().JournalLow; low <= uint64(c.from) {
			tb.Fatalf("no delta from %d, journal_low %d", c.from, low)
		}
		return "", false
	}
	if m.GetFromIndex() != uint64(c.from) || m.GetIndex() != uint64(c.to) {
		tb.Fatalf("a delta from %d to %d, want %d to %d", m.GetFromIndex(), m.GetIndex(), c.from, c.to)
	}
	low := c.receiver.Metrics().JournalLow
	installImage(tb, c.receiver, m, c.source.opts.FS)
	return c.difference(tb, low), true
}

// TestDeltaFuzz wants delta(X, Y] on S(X'), X <= X' <= Y, to be S(Y), and both
// sides to go on alike afterwards.
func TestDeltaFuzz(t *testing.T) {
	shared := testShared(t)
	deltas, trimmed := 0, 0
	for seed := range deltaSeeds(t) {
		c := newDeltaCase(t, shared, seed)
		diff, ok := c.run(t)
		if diff != "" {
			t.Fatalf("seed %d: delta from %d to %d on %d:\n%s", seed, c.from, c.to, c.at, diff)
		}
		if ok {
			deltas++
			low := c.receiver.Metrics().JournalLow
			if low > 0 || c.source.Metrics().JournalLow > 0 {
				trimmed++
			}
			c.apply(t, c.receiver, c.to, len(c.feed))
			c.apply(t, c.reference, c.to, len(c.feed))
			if diff := c.difference(t, max(low, c.receiver.Metrics().JournalLow)); diff != "" {
				t.Fatalf("seed %d: after the delta from %d to %d on %d:\n%s", seed, c.from, c.to, c.at, diff)
			}
			// What the receiver holds in memory follows its rows.
			if got, want := tableOf(c.receiver), tableOf(c.reference); got != want {
				t.Fatalf("seed %d: client sessions\n%s\nwant\n%s", seed, got, want)
			}
		}
		c.close(t)
	}
	t.Logf("%d deltas of %d seeds, %d with a journal that was cut", deltas, deltaSeeds(t), trimmed)
	if deltas < int(deltaSeeds(t)/2) {
		t.Error("too few deltas to prove anything")
	}
}

// tableOf renders the client sessions in memory, in the order they were used.
func tableOf(s *Store) string {
	var b bytes.Buffer
	for e := s.writer.sessions.uses.Front(); e != nil; e = e.Next() {
		c := e.Value.(*clientSession)
		fmt.Fprintf(&b, "%d %+v %d replies %d bytes\n", c.id, c.row, len(c.replies), c.bytes)
	}
	return b.String()
}

// TestDeltaControls leaves something out of deltas and wants the fuzz test's
// comparison to notice.
func TestDeltaControls(t *testing.T) {
	shared := testShared(t)
	for name, omit := range map[string]func(*recordBounds){
		"range deletes":   func(b *recordBounds) { b.omitRangeDeletes = true },
		"client sessions": func(b *recordBounds) { b.omitSessions = true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(100) {
				c := newDeltaCase(t, shared, seed)
				omit(&c.source.records)
				diff, _ := c.run(t)
				c.close(t)
				if diff != "" {
					t.Logf("seed %d noticed", seed)
					return
				}
			}
			t.Error("nothing was noticed")
		})
	}
}

// TestDeltaIllegal wants no delta, but files, wherever a rule forbids one, and
// ErrNoDelta where only building it tells.
func TestDeltaIllegal(t *testing.T) {
	s, _ := grown(t, Options{JournalBytes: 1 << 30}, 1, 100)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	term, err := termAt(s.current.Load().db, 50)
	if err != nil {
		t.Fatal(err)
	}
	legal := snapshot.Have{Index: 50, Term: term, Schema: schemaVersion, StateFormat: stateFormat()}
	kind := func(have snapshot.Have) snapshotv1.Kind {
		t.Helper()
		m, err := writeImage(t, s, have, 0)
		if err != nil {
			t.Fatal(err)
		}
		return m.GetKind()
	}
	if got := kind(legal); got != snapshotv1.Kind_KIND_RECORDS {
		t.Fatalf("a legal delta is %s", got)
	}
	for name, change := range map[string]func(*snapshot.Have){
		"term":   func(h *snapshot.Have) { h.Term++ },
		"schema": func(h *snapshot.Have) { h.Schema++ },
		"ahead":  func(h *snapshot.Have) { h.Index = 101 },
	} {
		have := legal
		change(&have)
		if got := kind(have); got != snapshotv1.Kind_KIND_FILES {
			t.Errorf("%s: %s", name, got)
		}
	}
	s.writer.applied.journalLow = 51
	if got := kind(legal); got != snapshotv1.Kind_KIND_FILES {
		t.Errorf("below journal_low: %s", got)
	}
	s.writer.applied.journalLow = 0
	db := s.current.Load().db
	set := func(index uint64, row []byte) {
		t.Helper()
		if err := db.Set(journalKey(nil, index), row, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	row, closer, err := db.Get(journalKey(nil, 60))
	if err != nil {
		t.Fatal(err)
	}
	sound := bytes.Clone(row)
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(){
		"barrier": func() {
			set(60, appendJournalRow(nil, appendJournalOp(nil, journalOp{kind: opBarrier, reason: barrierBulkLoad}), s.shared.encoder))
		},
		"damaged row": func() { set(60, []byte{9, 9, 9}) },
		"gap": func() {
			if err := db.Delete(journalKey(nil, 60), pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		},
		"too dear": func() {
			set(60, sound)
			var ops []byte
			for i := range 2000 {
				ops = appendJournalOp(ops, journalOp{kind: opPut, key: fmt.Appendf(nil, "s/%d", i)})
			}
			set(61, appendJournalRow(nil, ops, s.shared.encoder))
		},
	} {
		change()
		if _, err := writeImage(t, s, legal, 0); !errors.Is(err, snapshot.ErrNoDelta) {
			t.Errorf("%s: %v", name, err)
		}
		if names, err := s.opts.FS.List(imageDir); err != nil || slices.ContainsFunc(names, func(n string) bool { return n[:4] == "keys" }) {
			t.Errorf("%s: left %v, %v", name, names, err)
		}
	}
}

// TestDeltaTooLate wants a delta refused at Install, untouched, once the state
// is past its end.
func TestDeltaTooLate(t *testing.T) {
	c := newDeltaCase(t, testShared(t), 3)
	m, err := writeImage(t, c.source, c.have(), 0)
	if err != nil || m.GetKind() != snapshotv1.Kind_KIND_RECORDS {
		t.Fatal(m.GetKind(), err)
	}
	copyImage(t, m, c.source.opts.FS, c.receiver.opts.FS)
	sink, err := prepareImage(t, c.receiver, m)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, c.receiver, c.at, c.to+1)
	before := dump(t, c.receiver)
	if err := c.receiver.Install(sink); !errors.Is(err, snapshot.ErrUnfit) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, dump(t, c.receiver)); diff != "" {
		t.Fatal(diff)
	}
	if err := sink.Discard(); err != nil {
		t.Fatal(err)
	}
}

// TestDeltaSpans wants range deletes split where tables are cut, and a delta
// without any change.
func TestDeltaSpans(t *testing.T) {
	shared := testShared(t)
	source, log := openStore(t, Options{Shared: shared}), newTestLog()
	receiver := openStore(t, Options{Shared: shared})
	for i := range 100 {
		log.add(put(fmt.Sprintf("k%03d", i), "old"))
	}
	entries := log.take()
	for _, s := range []*Store{source, receiver} {
		if _, err := s.Apply(entries); err != nil {
			t.Fatal(err)
		}
	}
	have := snapshot.Have{Index: log.index, Term: log.term, Schema: schemaVersion}
	same, err := writeImage(t, source, have, 0)
	if err != nil || len(same.GetFiles()) != 1 {
		t.Fatalf("a delta without a change: %v, %v", same, err)
	}
	installImage(t, receiver, same, source.opts.FS)
	log.add(EncodeDeleteRange(nil, []byte("k010"), []byte("k090"), nil))
	for i := 20; i < 60; i += 2 {
		log.add(put(fmt.Sprintf("k%03d", i), "new"))
	}
	log.add(EncodeDeleteRange(nil, []byte("k085"), []byte("k095"), nil))
	if _, err := source.Apply(log.take()); err != nil {
		t.Fatal(err)
	}
	source.records.tableBytes = 100
	m, err := writeImage(t, source, have, 0)
	if err != nil || len(m.GetFiles()) < 6 {
		t.Fatalf("%v, %v", m, err)
	}
	installImage(t, receiver, m, source.opts.FS)
	if diff := cmp.Diff(dump(t, source), dump(t, receiver)); diff != "" {
		t.Fatal(diff)
	}
}

// TestKeySorter sorts in memory and over spilled files alike.
func TestKeySorter(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 5))
	for _, limit := range []int{1, 1000, 1 << 20} {
		fs := vfs.NewMem()
		sorter := &keySorter{fs: fs, limit: limit}
		want := make(map[string]bool)
		for range min(20_000, 50*limit) {
			key := fmt.Appendf(nil, "%d", random.IntN(9000))
			want[string(key)] = true
			if err := sorter.add(key); err != nil {
				t.Fatal(err)
			}
		}
		keys, err := sorter.finish()
		if err != nil {
			t.Fatal(err)
		}
		middle := keys.quantile(1, 2)
		var got []string
		reader, err := keys.from(nil)
		if err != nil {
			t.Fatal(err)
		}
		for {
			key, err := reader.next()
			if err != nil {
				t.Fatal(err)
			}
			if key == nil {
				break
			}
			got = append(got, string(key))
		}
		if err := reader.close(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, slices.Sorted(maps.Keys(want))) || keys.count != len(got) {
			t.Fatalf("limit %d: %d keys, count %d, want %d", limit, len(got), keys.count, len(want))
		}
		if middle != nil {
			reader, err := keys.from(middle)
			if err != nil {
				t.Fatal(err)
			}
			if key, err := reader.next(); err != nil || !bytes.Equal(key, middle) {
				t.Fatalf("from %q: %q, %v", middle, key, err)
			}
			if err := reader.close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := keys.remove(); err != nil {
			t.Fatal(err)
		}
		if names, err := fs.List("/"); err != nil || len(names) != 0 {
			t.Fatal(names, err)
		}
	}
}

// TestCaptureEnds has a cancelled context and Close end the writing of images.
func TestCaptureEnds(t *testing.T) {
	s, _ := grown(t, Options{JournalBytes: 1 << 30}, 1, 50)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, have := range []snapshot.Have{{}, {StateFormat: uint32(pebble.FormatFlushableIngest)}} {
		capture, err := s.Capture(have, 0)
		if err != nil {
			t.Fatal(err)
		}
		emptyDir(t, s.opts.FS, imageDir)
		if _, err := capture.Write(ctx, imageDir); have.StateFormat == 0 && !errors.Is(err, context.Canceled) {
			t.Errorf("%+v: %v", have, err)
		}
		if err := capture.Close(); err != nil {
			t.Error(err)
		}
	}
}

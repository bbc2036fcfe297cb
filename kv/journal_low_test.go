package kv

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// TestDeltaKeepsJournalLow: a store that came from records has a journal from
// there on only. A delta from a source whose journal begins earlier must leave it
// at that: it would claim changes that it never saw, and its own deltas would lack
// them.
func TestDeltaKeepsJournalLow(t *testing.T) {
	shared := testShared(t)
	source, log := grown(t, Options{Shared: shared}, 7, 100)
	m, err := writeImage(t, source, snapshot.Have{StateFormat: uint32(pebble.FormatFlushableIngest)}, source.AppliedIndex())
	if err != nil {
		t.Fatal(err)
	}
	receiver, _ := grown(t, Options{Shared: shared}, 8, 10)
	installImage(t, receiver, m, source.opts.FS)
	low := receiver.AppliedIndex()

	log.grow(40)
	if _, err := source.Apply(log.take()); err != nil {
		t.Fatal(err)
	}
	have := receiver.Have()
	m, err = writeImage(t, source, have, 0)
	if err != nil {
		t.Fatal(err)
	}
	if m.GetKind() != snapshotv1.Kind_KIND_RECORDS || m.GetFromIndex() != have.Index {
		// All of it is little, so that a delta is not always less than half.
		t.Fatalf("an image of kind %s from %d, want a delta from %d", m.GetKind(), m.GetFromIndex(), have.Index)
	}
	installImage(t, receiver, m, source.opts.FS)
	if got := receiver.Metrics().JournalLow; source.Metrics().JournalLow >= low || got != low {
		t.Fatalf("journal_low is %d, want the receiver's own %d; the source has %d", got, low, source.Metrics().JournalLow)
	}
	fits, err := receiver.deltaFits(snapshot.Have{Index: low - 1, Term: have.Term, Schema: schemaVersion})
	if err != nil || fits {
		t.Fatalf("a delta from below it is legal: %v, %v", fits, err)
	}
	closeStore(t, receiver)
}

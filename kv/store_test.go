package kv

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/streamraft/streamraft/raftnode"
)

// TestAppliedRecord checks what Open returns: the position of the last index and
// the last membership, which Apply copies.
func TestAppliedRecord(t *testing.T) {
	opts := Options{FS: vfs.NewMem(), Shared: testShared(t)}
	s := newStore(t, opts)
	if got, err := s.Open(testDir); err != nil || !cmp.Equal(got, raftnode.Applied{}) {
		t.Fatalf("a new state: %+v, %v", got, err)
	}
	members := []byte("three")
	entries := []raftnode.Entry{
		{Index: 1, Term: 4, Last: true, Clock: 50, Membership: []byte("one")},
		{Index: 2, Term: 4, Last: true, Clock: 70, Membership: members},
		{Index: 3, Term: 6, Clock: 90, Data: put("a", "1")},
		{Index: 3, Term: 6, Ordinal: 1, Last: true, Clock: 90, Data: put("b", "1")},
	}
	if _, err := s.Apply(entries[:2]); err != nil {
		t.Fatal(err)
	}
	copy(members, "xxxxx")
	if _, err := s.Apply(entries[2:]); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if s.DurableApplied() != 3 || s.AppliedIndex() != 3 {
		t.Errorf("durable %d, applied %d", s.DurableApplied(), s.AppliedIndex())
	}
	closeStore(t, s)
	next := newStore(t, opts)
	got, err := next.Open(testDir)
	want := raftnode.Applied{Index: 3, Term: 6, Clock: 90, Membership: []byte("three")}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if next.DurableApplied() != 3 {
		t.Errorf("durable %d after Open", next.DurableApplied())
	}
	if got := terms(t, next); !cmp.Equal(got, map[uint64]uint64{4: 1, 6: 3}) {
		t.Errorf("terms %v", got)
	}
	closeStore(t, next)
}

// TestCloseKeepsOnlyDurable checks that Close does not flush: that is for its
// caller, who has the log.
func TestCloseKeepsOnlyDurable(t *testing.T) {
	opts, log := Options{FS: vfs.NewMem(), Shared: testShared(t)}, newTestLog()
	s := openStore(t, opts)
	log.apply(t, s, put("a", "1"))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	log.apply(t, s, put("a", "2"))
	closeStore(t, s)
	next := openStore(t, opts)
	if next.AppliedIndex() != 1 {
		t.Errorf("applied %d", next.AppliedIndex())
	}
}

// TestOwnShared has a store make its shared resources itself.
func TestOwnShared(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(testDir); err != nil {
		t.Fatal(err)
	}
	newTestLog().apply(t, s, put("a", "1"))
	closeStore(t, s)
}

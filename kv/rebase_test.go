package kv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// rebased is a state with something in every space, and where it is to go on.
func rebased(t *testing.T, o Options) (s *Store, log *testLog, to raftnode.Applied) {
	t.Helper()
	o.ClusterBound = []string{"node/", "plan/"}
	s, log = openStore(t, o), newTestLog()
	log.apply(t, s, must(EncodeOpenClientSession(nil, 0)))
	session := raftnode.Revision(1, 0)
	log.apply(t, s, put("a", "1"), putIn("b", "2", ref(session, 1, 1)))
	log.term = 4
	log.apply(t, s, must(EncodeCommand(nil, registryPut("node/n1", "old"))), must(EncodeCommand(nil, registryPut("plan/n2", "old"))),
		must(EncodeCommand(nil, registryPut("group/2", "kept"))), must(EncodeCommand(nil, registryPut("planet", "kept"))))
	log.apply(t, s, must(EncodeSetFeedMode(nil, kvv1.FeedMode_FEED_MODE_VALUES)))
	log.apply(t, s, putIn("c", "3", ref(session, 2, 1)))
	return s, log, raftnode.Applied{Index: log.index + 1<<32, Term: log.term, Clock: log.clock, Membership: []byte("new members")}
}

// TestRebase: the data stays with its revisions, the history does not.
func TestRebase(t *testing.T) {
	o := Options{FS: vfs.NewMem()}
	s, log, to := rebased(t, o)
	before := renderSpan(t, s.current.Load().db, []byte(spaceRecords), nil) // and the client sessions behind
	wantJournal := s.low.Load()
	if err := s.Rebase(to); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = newStore(t, o)
	got, err := s.Open(testDir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore(t, s)
	if got.Index != to.Index || got.Term != to.Term || got.Clock != to.Clock || string(got.Membership) != "new members" {
		t.Fatalf("applied %+v, want %+v", got, to)
	}
	db := s.current.Load().db
	after := renderSpan(t, db, []byte(spaceRecords), spaceEnd(spaceRecords)) + renderSpan(t, db, []byte(spaceSessions), spaceEnd(spaceSessions))
	for line := range strings.Lines(after) {
		if !strings.Contains(before, line) {
			t.Errorf("this row is new: %s", line)
		}
	}
	if n := strings.Count(after, "\n"); n != 3+1+2 {
		t.Errorf("%d rows of records, client sessions and replies:\n%s", n, after)
	}
	if rows := renderSpan(t, db, []byte(spaceRegistry), spaceEnd(spaceRegistry)); strings.Count(rows, "\n") != 2 || strings.Contains(rows, "node/") || strings.Contains(rows, "plan/") {
		t.Errorf("registry:\n%s", rows)
	}
	if rows := renderSpan(t, db, []byte(spaceJournal), spaceEnd(spaceJournal)); rows != "" || s.low.Load() != to.Index || wantJournal == to.Index {
		t.Errorf("the journal begins at %d:\n%s", s.low.Load(), rows)
	}
	if rows := renderSpan(t, db, []byte(spaceTerms), spaceEnd(spaceTerms)); rows != fmt.Sprintf("%q = %x\n", termKey(nil, 4), appendTermRow(nil, to.Index)) {
		t.Errorf("terms:\n%s", rows)
	}
	if mode := kvv1.FeedMode(s.feedMode.Load()); mode != kvv1.FeedMode_FEED_MODE_VALUES {
		t.Errorf("feed mode %v", mode)
	}
	// No delta from the old history.
	capture, err := s.Capture(snapshot.Have{Index: 5, Term: 4, Schema: schemaVersion}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, files := capture.(*filesCapture); !files {
		t.Errorf("a delta from the old history: %T", capture)
	}
	if err := capture.Close(); err != nil {
		t.Fatal(err)
	}
	// What was answered is answered again, what is new comes later than all else.
	log.index, log.term = to.Index, to.Term+1
	session := raftnode.Revision(1, 0)
	results := log.apply(t, s, putIn("c", "other", ref(session, 2, 1)), putIn("d", "4", ref(session, 3, 1)))
	if again := result(t, results[0]); again.GetRevision() != raftnode.Revision(5, 0) {
		t.Errorf("the repeated write has revision %d", again.GetRevision())
	}
	if fresh := result(t, results[1]); fresh.GetRevision() != raftnode.Revision(to.Index+1, 1) {
		t.Errorf("the new write has revision %d", fresh.GetRevision())
	}
	if c, err := s.Get([]byte("c")); err != nil || string(c.Record.Value) != "3" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestRebaseRefuses(t *testing.T) {
	s, log, to := rebased(t, Options{})
	for name, change := range map[string]func(*raftnode.Applied){
		"same index": func(a *raftnode.Applied) { a.Index = log.index },
		"lower term": func(a *raftnode.Applied) { a.Term-- },
		"older":      func(a *raftnode.Applied) { a.Clock-- },
	} {
		a := to
		change(&a)
		if err := s.Rebase(a); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := newStore(t, Options{}).Rebase(to); !errors.Is(err, ErrNotOpen) {
		t.Errorf("not open: %v", err)
	}
	if _, err := New(Options{ClusterBound: []string{""}}); err == nil {
		t.Error("an empty prefix was taken")
	}
}

// TestCrashInRebase crashes before each write: what opens is all old or all new.
func TestCrashInRebase(t *testing.T) {
	for _, percent := range []int{0, 50} {
		mem := vfs.NewCrashableMem()
		makeDir(t, mem)
		recorder := &imageRecorder{mem: mem, percent: percent, random: rand.New(rand.NewPCG(1, 2))}
		o := Options{FS: errorfs.Wrap(mem, recorder), Shared: testShared(t), ScrubBytesPerSecond: -1}
		s, _, to := rebased(t, o)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		old := dumpAll(t, s)
		first := len(recorder.points)
		if err := s.Rebase(to); err != nil {
			t.Fatal(err)
		}
		fresh := dumpAll(t, s)
		recorder.installed.Store(true)
		closeStore(t, s)
		seen := map[bool]int{}
		for _, point := range recorder.points[first:] {
			o.FS = point.fs
			s := newStore(t, o)
			if _, err := s.Open(testDir); err != nil {
				t.Fatalf("crash before %s: %v", point.op, err)
			}
			got := dumpAll(t, s)
			if got != fresh && (got != old || point.installed) {
				t.Fatalf("crash before %s: neither old nor new:\n%s", point.op, got)
			}
			seen[got == fresh]++
			closeStore(t, s)
		}
		if seen[true] == 0 || seen[false] == 0 {
			t.Errorf("%d %% unsynced: %d old, %d new", percent, seen[false], seen[true])
		}
	}
}

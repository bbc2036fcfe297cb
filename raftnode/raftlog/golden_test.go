package raftlog

import (
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

var update = flag.Bool("update", false, "rewrite golden files")

// goldenUpdates touch every kind of record but MOVED.
func goldenUpdates() []Update {
	conf := entry(3, 6, []byte("conf"))
	conf.Type = raftpb.EntryConfChangeV2.Enum()
	return []Update{
		{Group: 1, Marker: &Marker{4, 2}, Reset: true, Entries: []*raftpb.Entry{entry(3, 5, nil), conf}, HardState: hard(3, 2, 5)},
		{Group: 2, Entries: []*raftpb.Entry{entry(1, 1, []byte("data"))}},
	}
}

// TestGoldenSegment pins the format of a segment with a head and batches. A
// change of these bytes needs a new format version.
func TestGoldenSegment(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	mustAppend(t, l, true, goldenUpdates()...)
	// A MOVED record, as moveSome writes it.
	b := contents(t, mem, l.active().name)
	r := *l.Group(2).index.at(1)
	payload := b[r.offset+recordHeaderSize : r.offset+r.bytes]
	l.mu.Lock()
	err := l.writeMoves(l.active(), []moved{{moveItem{l.Group(2), 1}, 1, payload}})
	l.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, l)
	got := hexDump(contents(t, mem, l.active().name)[:l.active().offset])
	compareGolden(t, "testdata/segment.golden", got)
	compareGolden(t, "testdata/segment.txt", dump(t, mem))
}

// TestGoldenHead pins a head that names groups, and that old bytes open.
func TestGoldenHead(t *testing.T) {
	var s rawSegment
	s.head(1, 9, 8, map[uint64]groupHead{5: {Marker{7, 2}, 8, 3, hardState{4, 1, 7}}})
	s.batch(0, 1, 10, 9, recordHeaderSize+entryPayload+2, func(e *encoder) {
		putEntry(e.record(entryPayload+2), raftpb.EntryNormal, 3, 8, []byte("hi"))
		e.seal(5, kindMoved, entryPayload+2)
	})
	compareGolden(t, "testdata/head.golden", hexDump(s.buf))

	golden, err := os.ReadFile("testdata/head.golden")
	if err != nil {
		t.Fatal(err)
	}
	old, err := hex.DecodeString(strings.Join(strings.Fields(string(golden)), ""))
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&rawSegment{buf: old}).open(t)
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, l)
	if got, want := show(l), "group 5: marker 7/2, hs 4/1/7, entries 8..8/3\n"; got != want {
		t.Fatal(got)
	}
}

func hexDump(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(len(b), 32)
		s.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return s.String()
}

func compareGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update only for a new format version):\n%s", path, got)
	}
}

package raftlog

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
)

// snapshotDir reads all files, to see that nothing was changed.
func snapshotDir(t *testing.T, fs vfs.FS) map[string]string {
	t.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		if strings.HasPrefix(name, sparePrefix) {
			continue // comes and goes with the keeper
		}
		files[name] = string(contents(t, fs, fs.PathJoin(testDir, name)))
	}
	return files
}

func sameFiles(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for name := range a {
		if a[name] != b[name] {
			return false
		}
	}
	return true
}

// TestFlippedByte flips single bytes of a log whose end is proven. Either Open
// says where the damage is and changes nothing, or the byte did not matter and
// all is there.
func TestFlippedByte(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	rng := rand.New(rand.NewPCG(4, 4))
	s := &script{rng: rng, model: model{}, groups: 5, size: 1500}
	for len(l.segments) < 3 || l.segments[0].number == 1 || l.active().offset < 20000 {
		mustAppend(t, l, true, s.next()...)
	}
	mustClose(t, l)
	segments := l.segments

	corrupted, harmless := 0, 0
	for _, seg := range segments {
		var at []int64
		for i := range int64(400) {
			at = append(at, i)
		}
		for i := range int64(200) {
			at = append(at, max(seg.offset-150, 0)+i)
		}
		for range 400 {
			at = append(at, rng.Int64N(seg.size))
		}
		content := contents(t, mem, seg.name)
		for _, offset := range at {
			if offset >= seg.size {
				continue
			}
			fs := cloneFS(t, mem)
			overwrite(t, fs, seg.name, offset, []byte{content[offset] ^ byte(1<<rng.IntN(8))})
			before := snapshotDir(t, fs)
			l, err := Open(testOptions(fs))
			if err == nil {
				if got := state(t, l).String(); got != s.model.String() {
					t.Fatalf("flip at %d of %s: opened with another state:\n%s", offset, seg.name, got)
				}
				mustClose(t, l)
				harmless++
				continue
			}
			c := isCorrupt(err)
			if c == nil {
				t.Fatalf("flip at %d of %s: %v", offset, seg.name, err)
			}
			if c.File != seg.name || c.Offset > offset || !strings.Contains(err.Error(), "replace") {
				t.Fatalf("flip at %d of %s: %v", offset, seg.name, err)
			}
			if !sameFiles(before, snapshotDir(t, fs)) {
				t.Fatalf("flip at %d of %s: a corrupt log was changed", offset, seg.name)
			}
			corrupted++
		}
	}
	t.Logf("%d flips found, %d harmless", corrupted, harmless)
	if corrupted == 0 || harmless == 0 {
		t.Error("the run did not reach what it is for")
	}
}

// TestFlippedByteUnproven flips every byte of the last batch where nothing proves
// it: it goes, and only it. One empty batch later the same is corruption.
func TestFlippedByteUnproven(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	defer mustClose(t, l)
	m := model{}
	first := Update{Group: 1, Entries: entries(1, 1, 3, 50)}
	mustAppend(t, l, true, first)
	m.apply(first)
	from := l.active().offset
	mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 4, 2, 50), HardState: hard(1, 2, 3)})
	through := l.active().offset
	name := l.active().name

	flip := func(offset int64) (*Log, error) {
		fs := cloneFS(t, mem)
		overwrite(t, fs, name, offset, []byte{contents(t, mem, name)[offset] ^ 0x10})
		return Open(testOptions(fs))
	}
	padding := through - 7 // at most
	for offset := from; offset < padding; offset++ {
		l, err := flip(offset)
		if err != nil {
			t.Fatalf("offset %d: %v", offset, err)
		}
		checkState(t, l, m)
		mustClose(t, l)
	}
	if err := l.ProveEnd(); err != nil {
		t.Fatal(err)
	}
	batches := l.Metrics().Batches
	if err := l.ProveEnd(); err != nil {
		t.Fatal(err)
	}
	if n := l.Metrics().Batches; n != batches {
		t.Fatal("a proven end was proven again")
	}
	for offset := from; offset < padding; offset++ {
		if _, err := flip(offset); isCorrupt(err) == nil || isCorrupt(err).Offset != from {
			t.Fatalf("offset %d: %v", offset, err)
		}
	}
}

// TestNewerVersion: what a newer program wrote is not a torn tail.
func TestNewerVersion(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 1, 1, 10)})
	offset, name := l.active().offset, l.active().name
	mustClose(t, l)
	b := contents(t, mem, name)[offset : offset+headerSize]
	b[8]++
	copy(b[4:8], crcOf(b[8:]))
	overwrite(t, mem, name, offset, b)
	before := snapshotDir(t, mem)
	_, err := Open(testOptions(mem))
	c := isCorrupt(err)
	if c == nil || c.Offset != offset || !strings.Contains(err.Error(), "version") {
		t.Fatal(err)
	}
	if !sameFiles(before, snapshotDir(t, mem)) {
		t.Fatal("a log of another version was changed")
	}
}

// TestMissingSegment removes each segment file in turn: what was in it is missed,
// or nothing in it was needed.
func TestMissingSegment(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	var m = model{}
	for i := range uint64(5) {
		u := Update{Group: 1 + i%2, Entries: entries(1, 1+20*(i/2), 20, 2000)}
		mustAppend(t, l, true, u)
		m.apply(u)
	}
	mustClose(t, l)
	if len(l.segments) < 3 {
		t.Fatal("too few segments")
	}
	for i, s := range l.segments {
		fs := cloneFS(t, mem)
		if err := fs.Remove(s.name); err != nil {
			t.Fatal(err)
		}
		before := snapshotDir(t, fs)
		l2, err := Open(testOptions(fs))
		if i == len(l.segments)-1 {
			// Nothing says that there was a newest one; the node compares the
			// log with its applied state.
			if err != nil {
				t.Fatal(err)
			}
			mustClose(t, l2)
			continue
		}
		if c := isCorrupt(err); c == nil || c.File != s.name || c.Group == 0 {
			t.Fatalf("without segment %d: %v", s.number, err)
		}
		if !sameFiles(before, snapshotDir(t, fs)) {
			t.Fatal("the log was changed")
		}
	}
}

// TestTruncatedFile cuts segment files off at any place.
func TestTruncatedFile(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	m := model{}
	for i := range uint64(4) {
		u := Update{Group: 1, Entries: entries(1, 1+20*i, 20, 1500)}
		mustAppend(t, l, true, u)
		m.apply(u)
	}
	mustClose(t, l)
	for i, s := range l.segments {
		b := contents(t, mem, s.name)
		for size := 0; size < len(b); size += 1024 {
			fs := cloneFS(t, mem)
			f, err := fs.Create(s.name, vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = f.Write(bytes.Clone(b[:size]))
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			l2, err := Open(testOptions(fs))
			switch {
			case err == nil && int64(size) >= s.offset-headerSize: // only the proof may be cut
				checkState(t, l2, m)
				mustClose(t, l2)
			case err == nil && i == len(l.segments)-1:
				// The end of the newest file is gone, and with it all proof. That
				// is beyond what the log alone can see.
				mustClose(t, l2)
			case isCorrupt(err) == nil:
				t.Fatalf("%s cut off at %d: %v", s.name, size, err)
			}
		}
	}
}

// TestReadCorrupt damages an entry of an open log: reading it says so, others can
// still be read.
func TestReadCorrupt(t *testing.T) {
	mem := vfs.NewMem()
	o := testOptions(mem)
	o.CacheBytes = -1
	l := mustOpen(t, o)
	defer mustClose(t, l)
	mustAppend(t, l, true, Update{Group: 3, Entries: entries(1, 1, 5, 100)})
	g := l.Group(3)
	r := g.index.at(3)
	overwrite(t, mem, r.segment.name, int64(r.offset)+60, []byte("x"))
	if _, err := g.Entries(1, 6, ^uint64(0)); isCorrupt(err) == nil || isCorrupt(err).Group != 3 || isCorrupt(err).Offset != int64(r.offset) {
		t.Fatal(err)
	}
	es, err := g.Entries(4, 6, ^uint64(0))
	if err != nil || len(es) != 2 || !bytes.Equal(es[0].Data, entries(1, 4, 1, 100)[0].Data) {
		t.Fatal(es, err)
	}
	checkPins(t, l)
}

func checkPins(t *testing.T, l *Log) {
	t.Helper()
	for _, s := range l.segments {
		if s.pins.Load() != 0 {
			t.Fatalf("segment %d is pinned", s.number)
		}
	}
}

// rawSegment builds segments by hand, to write what Append never would.
type rawSegment struct {
	buf []byte
	e   encoder
}

func (s *rawSegment) batch(flags uint16, segment, batch, synced uint64, body int, f func(e *encoder)) {
	s.e.begin(segment, batch, body)
	if f != nil {
		f(&s.e)
	}
	s.buf = append(s.buf, s.e.finish(flags, 7, synced)...)
}

func (s *rawSegment) head(segment, batch, synced uint64, groups map[uint64]groupHead) {
	s.batch(flagHead, segment, batch, synced, headBytes(len(groups)), func(e *encoder) {
		putUint64s(e.record(headPayload), segment)
		e.seal(0, kindHead, headPayload)
		for id, h := range groups {
			putGroupHead(e.record(groupPayload), &h)
			e.seal(id, kindGroup, groupPayload)
		}
	})
}

func (s *rawSegment) open(t testing.TB) (*Log, error) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll(testDir, 0o755); err != nil {
		t.Fatal(err)
	}
	overwrite(t, fs, fs.PathJoin(testDir, segmentName(1)), 0, append(s.buf, make([]byte, 1024)...))
	return Open(testOptions(fs))
}

// TestInconsistent: records whose checksums match but which make no sense are
// refused, not applied.
func TestInconsistent(t *testing.T) {
	one := func(k kind, n int, f func(b []byte)) func(s *rawSegment) {
		return func(s *rawSegment) {
			s.batch(0, 1, 2, 1, recordHeaderSize+n, func(e *encoder) {
				f(e.record(n))
				e.seal(1, k, n)
			})
		}
	}
	ent := func(i uint64) func(b []byte) {
		return func(b []byte) { putEntry(b, raftpb.EntryNormal, 1, i, nil) }
	}
	group := func(h groupHead) map[uint64]groupHead { return map[uint64]groupHead{1: h} }
	for name, tc := range map[string]struct {
		head map[uint64]groupHead
		then func(s *rawSegment)
		want string
	}{
		"gap":                 {nil, one(kindEntry, entryPayload, ent(2)), "does not follow"},
		"below the marker":    {group(groupHead{marker: Marker{5, 1}, last: 5, lastTerm: 1}), one(kindEntry, entryPayload, ent(5)), "does not follow"},
		"moved behind":        {group(groupHead{marker: Marker{5, 1}, last: 5, lastTerm: 1}), one(kindMoved, entryPayload, ent(6)), "not one of"},
		"marker back":         {group(groupHead{marker: Marker{5, 1}, last: 5, lastTerm: 1}), one(kindMarker, markerPayload, func(b []byte) { putMarker(b, Marker{4, 1}, true) }), "back"},
		"endless":             {group(groupHead{last: 1 << 60}), nil, "cannot be"},
		"last before marker":  {group(groupHead{marker: Marker{5, 1}, last: 4}), nil, "cannot be"},
		"entries missing":     {group(groupHead{last: 3, lastTerm: 1}), one(kindEntry, entryPayload, ent(3)), "in none of the segments"},
		"head in the middle":  {nil, one(kindHead, headPayload, func(b []byte) {}), "wrong kind"},
		"sync from the sky":   {nil, func(s *rawSegment) { s.batch(0, 1, 9, 5, 0, nil) }, "stands in its place"},
		"sound":               {nil, one(kindEntry, entryPayload, ent(1)), ""},
		"moved from the head": {group(groupHead{last: 1, lastTerm: 1}), one(kindMoved, entryPayload, ent(1)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var s rawSegment
			s.head(1, 1, 0, tc.head)
			if tc.then != nil {
				tc.then(&s)
			}
			l, err := s.open(t)
			if err == nil {
				defer mustClose(t, l)
			}
			if tc.want == "" && err != nil || tc.want != "" && (isCorrupt(err) == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Fatalf("%v, want %q", err, tc.want)
			}
		})
	}
}

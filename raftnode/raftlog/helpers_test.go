package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "log"

func testOptions(fs vfs.FS) Options {
	return Options{FS: fs, Dir: testDir, SegmentBytes: MinSegmentBytes, newSalt: func() uint64 { return 0x5a17 }}
}

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l
}

func mustAppend(t testing.TB, l *Log, sync bool, updates ...Update) {
	t.Helper()
	if err := l.Append(updates, sync); err != nil {
		t.Fatalf("append: %v", err)
	}
}

func mustClose(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func entry(term, index uint64, data []byte) *raftpb.Entry {
	return &raftpb.Entry{Term: new(term), Index: new(index), Type: raftpb.EntryNormal.Enum(), Data: data}
}

func entries(term, first uint64, n, size int) []*raftpb.Entry {
	var es []*raftpb.Entry
	for i := range n {
		index := first + uint64(i)
		data := []byte(strings.Repeat(string(rune('a'+(term+index)%26)), size))
		es = append(es, entry(term, index, data))
	}
	return es
}

func hard(term, vote, commit uint64) *raftpb.HardState {
	return hardState{term, vote, commit}.message()
}

// modelGroup is what a group should be.
type modelGroup struct {
	marker  Marker
	hs      hardState
	entries []string // entries[i] is the one at marker.Index+1+i
}

func (g *modelGroup) last() uint64 { return g.marker.Index + uint64(len(g.entries)) }

// model is the log as one would write it without a disk.
type model map[uint64]*modelGroup

func (m model) clone() model {
	c := model{}
	for id, g := range m {
		n := *g
		n.entries = slices.Clone(g.entries)
		c[id] = &n
	}
	return c
}

func entryString(e *raftpb.Entry) string {
	return fmt.Sprintf("%d/%d/%d/%d:%.8s", e.GetTerm(), e.GetIndex(), e.GetType(), len(e.Data), e.Data)
}

func (m model) apply(updates ...Update) {
	for _, u := range updates {
		g := m[u.Group]
		if g == nil {
			g = &modelGroup{}
		}
		wrote := false
		if k := u.Marker; k != nil && (u.Reset || k.Index > g.marker.Index) {
			if u.Reset || k.Index >= g.last() {
				g.entries = nil
			} else {
				g.entries = slices.Clone(g.entries[k.Index-g.marker.Index:])
			}
			g.marker = *k
			wrote = true
		}
		for _, e := range u.Entries {
			g.entries = append(g.entries[:e.GetIndex()-g.marker.Index-1:e.GetIndex()-g.marker.Index-1], entryString(e))
			wrote = true
		}
		if hs := hardStateOf(u.HardState); hs != (hardState{}) {
			g.hs = hs
			wrote = true
		}
		if wrote {
			m[u.Group] = g
		}
	}
}

func (m model) String() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(m)) {
		g := m[id]
		fmt.Fprintf(&b, "group %d marker %v hs %v entries %v\n", id, g.marker, g.hs, g.entries)
	}
	return b.String()
}

// state reads all of a log into a model, so that the two can be compared.
func state(t testing.TB, l *Log) model {
	t.Helper()
	m := model{}
	for _, id := range l.Groups() {
		g := l.Group(id)
		n := &modelGroup{marker: g.Marker(), hs: hardStateOf(g.HardState())}
		es, err := g.Entries(g.FirstIndex(), g.LastIndex()+1, ^uint64(0))
		if err != nil {
			t.Fatalf("group %d: %v", id, err)
		}
		for i, e := range es {
			if e.GetIndex() != g.FirstIndex()+uint64(i) {
				t.Fatalf("group %d: entry %d at place %d", id, e.GetIndex(), g.FirstIndex()+uint64(i))
			}
			if term, err := g.Term(e.GetIndex()); err != nil || term != e.GetTerm() {
				t.Fatalf("group %d: Term(%d) = %d, %v; the entry has %d", id, e.GetIndex(), term, err, e.GetTerm())
			}
			n.entries = append(n.entries, entryString(e))
		}
		m[id] = n
	}
	return m
}

func checkState(t testing.TB, l *Log, want model) {
	t.Helper()
	if got := state(t, l); got.String() != want.String() {
		t.Fatalf("log holds\n%swant\n%s", got, want)
	}
	checkAccounts(t, l)
}

// checkAccounts checks the books: live bytes by segment, group and in all.
func checkAccounts(t testing.TB, l *Log) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	bySegment := map[*segment]int64{}
	var total, cachedNow int64
	for _, g := range l.knownGroups() {
		var live int64
		g.index.each(g.index.first, g.index.last, func(i uint64, r *ref) {
			live += int64(r.bytes)
			bySegment[r.segment] += int64(r.bytes)
			if r.entry != nil {
				cachedNow += cachedBytes(r)
			}
		})
		if live != g.LiveBytes() {
			t.Fatalf("group %d: live bytes %d, counted %d", g.id, g.LiveBytes(), live)
		}
		total += live
	}
	for _, s := range l.segments {
		if s.live != bySegment[s] {
			t.Fatalf("segment %d: live bytes %d, counted %d", s.number, s.live, bySegment[s])
		}
		delete(bySegment, s)
		if s.pins.Load() != 0 {
			t.Fatalf("segment %d is pinned", s.number)
		}
	}
	if len(bySegment) != 0 {
		t.Fatalf("entries in segments that are gone: %v", bySegment)
	}
	if m := l.Metrics(); m.LiveBytes != total {
		t.Fatalf("live bytes %d, counted %d", m.LiveBytes, total)
	}
	if l.cache.bytes != cachedNow || l.cache.bytes > max(l.cache.limit, 0) {
		t.Fatalf("cache has %d bytes, counted %d, limit %d", l.cache.bytes, cachedNow, l.cache.limit)
	}
}

// script makes a plausible sequence of updates and keeps the model of it.
type script struct {
	rng    *rand.Rand
	model  model
	groups int
	size   int // of an entry, at most
	slow   uint64
}

// next returns the updates of the next Append, already applied to the model.
func (s *script) next() []Update {
	var us []Update
	for range 1 + s.rng.IntN(3) {
		id := uint64(1 + s.rng.IntN(s.groups))
		g := s.model[id]
		if g == nil {
			g = &modelGroup{}
		}
		u := Update{Group: id}
		term := max(g.hs.term, g.marker.Term, 1)
		switch p := s.rng.IntN(100); {
		case p < 6 && len(g.entries) > 0: // a new term overwrites the end
			term++
			first := g.marker.Index + 1 + uint64(s.rng.IntN(len(g.entries)))
			u.Entries = entries(term, first, 1+s.rng.IntN(3), s.rng.IntN(s.size))
			u.HardState = hard(term, uint64(1+s.rng.IntN(3)), first-1)
		case p < 30 && len(g.entries) > 1 && id != s.slow:
			n := 1 + s.rng.IntN(len(g.entries))
			if s.rng.IntN(2) == 0 {
				n = len(g.entries)
			}
			var t, i uint64
			fmt.Sscanf(g.entries[n-1], "%d/%d/", &t, &i)
			u.Marker = &Marker{i, t}
		case p < 32 && id != s.slow: // an install
			i := g.marker.Index + uint64(s.rng.IntN(len(g.entries)+5))
			u.Marker, u.Reset = &Marker{i, term}, true
			u.Entries = entries(term, i+1, s.rng.IntN(3), s.rng.IntN(s.size))
			u.HardState = hard(term, g.hs.vote, i)
		case p < 40:
			u.HardState = hard(term+1, uint64(1+s.rng.IntN(3)), g.last())
		default:
			u.Entries = entries(max(term, lastTerm(g)), g.last()+1, 1+s.rng.IntN(8), s.rng.IntN(s.size))
			if s.rng.IntN(2) == 0 {
				u.HardState = hard(term, g.hs.vote, g.last())
			}
		}
		us = append(us, u)
		s.model.apply(u)
	}
	return us
}

func lastTerm(g *modelGroup) uint64 {
	var t uint64
	if n := len(g.entries); n > 0 {
		fmt.Sscanf(g.entries[n-1], "%d/", &t)
	}
	return t
}

func isCorrupt(err error) *CorruptError {
	var c *CorruptError
	if errors.As(err, &c) && errors.Is(err, ErrCorrupt) {
		return c
	}
	return nil
}

// cloneFS copies the log's directory.
func cloneFS(t testing.TB, from vfs.FS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewMem()
	if ok, err := vfs.Clone(from, to, testDir, testDir); err != nil || !ok {
		t.Fatalf("clone: %v, %v", ok, err)
	}
	return to
}

func overwrite(t testing.TB, fs vfs.FS, name string, offset int64, b []byte) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.WriteAt(b, offset)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatalf("overwrite %s: %v", name, err)
	}
}

func contents(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func crcOf(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b, castagnoli))
}

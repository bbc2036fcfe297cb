package raftlog

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// TestInvalidUpdate: an Append with one bad update writes nothing of any.
func TestInvalidUpdate(t *testing.T) {
	l := mustOpen(t, testOptions(vfs.NewMem()))
	defer mustClose(t, l)
	m := model{}
	base := []Update{{Group: 1, Marker: &Marker{3, 2}, Entries: entries(2, 4, 4, 10), HardState: hard(5, 2, 4)}}
	mustAppend(t, l, true, base...)
	m.apply(base...)
	good := Update{Group: 2, Entries: entries(1, 1, 1, 1)}
	for name, u := range map[string]Update{
		"gap":                       {Group: 1, Entries: entries(2, 9, 1, 1)},
		"at the marker":             {Group: 1, Entries: entries(2, 3, 2, 1)},
		"term goes down":            {Group: 1, Entries: entries(1, 8, 1, 1)},
		"term goes down inside":     {Group: 1, Entries: append(entries(3, 8, 1, 1), entries(2, 9, 1, 1)...)},
		"hole inside":               {Group: 1, Entries: append(entries(3, 8, 1, 1), entries(3, 10, 1, 1)...)},
		"nil entry":                 {Group: 1, Entries: []*raftpb.Entry{nil}},
		"odd type":                  {Group: 1, Entries: []*raftpb.Entry{{Index: new(uint64(8)), Term: new(uint64(2)), Type: raftpb.EntryType(300).Enum()}}},
		"reset without marker":      {Group: 1, Reset: true},
		"reset goes back":           {Group: 1, Reset: true, Marker: &Marker{2, 1}},
		"marker of another term":    {Group: 1, Marker: &Marker{5, 1}},
		"endless marker":            {Group: 1, Marker: &Marker{^uint64(0), 1}},
		"hard state term":           {Group: 1, HardState: hard(4, 2, 4)},
		"vote changes":              {Group: 1, HardState: hard(5, 3, 4)},
		"vote forgotten":            {Group: 1, HardState: hard(5, 0, 4)},
		"too large":                 {Group: 1, Entries: entries(2, 8, 3, 20<<10)},
		"first entry not at 1":      {Group: 3, Entries: entries(1, 2, 1, 1)},
		"too far behind the marker": {Group: 1, Marker: &Marker{20, 2}, Entries: entries(2, 22, 1, 1)},
	} {
		for _, us := range [][]Update{{u}, {good, u}, {u, good}} {
			if err := l.Append(us, true); !errors.Is(err, ErrInvalidUpdate) || !strings.Contains(err.Error(), fmt.Sprintf("group %d", u.Group)) {
				t.Errorf("%s: %v", name, err)
			}
			checkState(t, l, m)
		}
	}
	// What comes first in one Append counts for what comes later.
	ok := []Update{
		{Group: 1, Entries: entries(6, 6, 3, 1)},
		{Group: 1, Marker: &Marker{7, 6}, HardState: hard(6, 0, 7)},
		{Group: 1, Entries: entries(6, 9, 1, 1), HardState: hard(6, 3, 7)},
		{Group: 1, Marker: &Marker{5, 99}}, // late cut
		{},
	}
	mustAppend(t, l, true, ok...)
	m.apply(ok...)
	checkState(t, l, m)
}

// TestManyGroups: the head of a segment bounds the number of groups.
func TestManyGroups(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	o.SegmentBytes = 2 * MinSegmentBytes
	l := mustOpen(t, o)
	m := model{}
	var err error
	n := uint64(0)
	for err == nil {
		n++
		u := Update{Group: n, HardState: hard(1, n, 0)}
		if err = l.Append([]Update{u}, true); err == nil {
			m.apply(u)
		}
	}
	if !errors.Is(err, ErrInvalidUpdate) || n < 150 {
		t.Fatalf("%d groups: %v", n, err)
	}
	for i := range uint64(4) { // heads with all of them
		u := Update{Group: 1, Entries: entries(1, 1+i, 1, 60<<10)}
		mustAppend(t, l, true, u)
		m.apply(u)
	}
	checkState(t, l, m)
	mustClose(t, l)
	l = mustOpen(t, o)
	checkState(t, l, m)
	mustClose(t, l)
	o.SegmentBytes = MinSegmentBytes
	if _, err := Open(o); err == nil || !strings.Contains(err.Error(), "larger value") {
		t.Fatal(err)
	}
}

// TestEntries checks the rules of raft.Storage, cached and not.
func TestEntries(t *testing.T) {
	for _, cache := range []int64{-1, 1 << 20, 600} {
		t.Run(fmt.Sprint(cache), func(t *testing.T) {
			o := testOptions(vfs.NewMem())
			o.CacheBytes = cache
			l := mustOpen(t, o)
			defer mustClose(t, l)
			es := entries(3, 11, 20, 70)
			es[4].Data = nil
			es[6].Type = raftpb.EntryConfChangeV2.Enum()
			// Another group's entries lie between.
			for i := range es {
				mustAppend(t, l, false,
					Update{Group: 1, Marker: &Marker{10, 2}, Entries: es[i : i+1]},
					Update{Group: 2, Entries: entries(1, 1+uint64(i), 1, 70)})
			}
			g := l.Group(1)
			if g.FirstIndex() != 11 || g.LastIndex() != 30 || g.Marker() != (Marker{10, 2}) || l.Group(1) != g || g.ID() != 1 {
				t.Fatal(g.FirstIndex(), g.LastIndex(), g.Marker())
			}
			for _, tc := range []struct {
				i    uint64
				term uint64
				err  error
			}{{9, 0, raft.ErrCompacted}, {10, 2, nil}, {11, 3, nil}, {30, 3, nil}, {31, 0, raft.ErrUnavailable}} {
				if term, err := g.Term(tc.i); term != tc.term || err != tc.err {
					t.Fatalf("Term(%d) = %d, %v", tc.i, term, err)
				}
			}
			if _, err := g.Entries(10, 12, 1); err != raft.ErrCompacted {
				t.Fatal(err)
			}
			if _, err := g.Entries(11, 32, 1); err != raft.ErrUnavailable {
				t.Fatal(err)
			}
			if got, err := g.Entries(15, 15, 1); err != nil || len(got) != 0 {
				t.Fatal(got, err)
			}
			for lo := uint64(11); lo <= 30; lo++ {
				for hi := lo + 1; hi <= 31; hi++ {
					var size uint64
					for n := 1; n <= int(hi-lo); n++ {
						size += uint64(proto.Size(es[int(lo)-11+n-1]))
						got, err := g.Entries(lo, hi, size)
						if err != nil || len(got) != n {
							t.Fatalf("Entries(%d, %d, %d) = %d entries, %v; want %d", lo, hi, size, len(got), err, n)
						}
						if got, err := g.Entries(lo, hi, size-1); err != nil || len(got) != max(n-1, 1) {
							t.Fatalf("Entries(%d, %d, %d) = %d entries, %v; want %d", lo, hi, size-1, len(got), err, n-1)
						}
						for i, e := range got {
							if !proto.Equal(e, es[int(lo)-11+i]) {
								t.Fatalf("entry %d is %v", lo+uint64(i), e)
							}
						}
					}
				}
			}
			if m := l.Metrics(); cache == -1 && m.CacheHits > 0 || cache == 1<<20 && m.CacheMisses > 0 || cache == 600 && (m.CacheHits == 0 || m.CacheMisses == 0) {
				t.Fatal(m)
			}
			checkAccounts(t, l)
		})
	}
}

// TestLargeAppend: more than a batch holds becomes several, more than a segment
// several segments.
func TestLargeAppend(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	o.MaxBatchBytes = 16 << 10
	l := mustOpen(t, o)
	m := model{}
	var us []Update
	for i := range uint64(60) {
		us = append(us, Update{Group: 1 + i%7, Entries: entries(1, 1+4*(i/7), 4, 1000)})
	}
	mustAppend(t, l, true, us...)
	m.apply(us...)
	checkState(t, l, m)
	if got := l.Metrics(); got.Segments < 4 || got.Batches < 15 || got.Batches > 30 {
		t.Fatal(got)
	}
	mustClose(t, l)
	l = mustOpen(t, o)
	checkState(t, l, m)
	mustClose(t, l)
}

// TestSegmentSizeChanges opens a log with another segment size.
func TestSegmentSizeChanges(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	m := model{}
	var i uint64
	for _, size := range []int64{1 << 20, MinSegmentBytes, 2 * MinSegmentBytes, MinSegmentBytes} {
		o.SegmentBytes, o.MaxBatchBytes = size, 0
		l := mustOpen(t, o)
		checkState(t, l, m)
		for range 40 {
			u := Update{Group: 1, Entries: entries(1, i+1, 2, 1500)}
			if i%60 == 58 {
				u.Marker = &Marker{i - 10, 1}
			}
			mustAppend(t, l, i%3 == 0, u)
			m.apply(u)
			i += 2
		}
		checkState(t, l, m)
		mustClose(t, l)
	}
}

// TestQuietVote: the only record of a vote is in a segment that is deleted long
// before.
func TestQuietVote(t *testing.T) {
	fs := vfs.NewMem()
	o := testOptions(fs)
	l := mustOpen(t, o)
	mustAppend(t, l, true, Update{Group: 7, Marker: &Marker{5, 2}, HardState: hard(9, 4, 5)})
	for i := range uint64(200) {
		u := Update{Group: 1, Entries: entries(1, 1+i, 1, 3000)}
		if i > 0 {
			u.Marker = &Marker{i, 1}
		}
		mustAppend(t, l, true, u)
	}
	if l.segments[0].number < 5 || l.Metrics().Recycled == 0 {
		t.Fatalf("the first segment is %d", l.segments[0].number)
	}
	if n := l.DiskBytes(); n > 5*MinSegmentBytes {
		t.Fatalf("%d bytes on disk for %d live ones", n, l.Metrics().LiveBytes)
	}
	mustClose(t, l)
	l = mustOpen(t, o)
	defer mustClose(t, l)
	g := l.Group(7)
	if hs := hardStateOf(g.HardState()); hs != (hardState{9, 4, 5}) || g.Marker() != (Marker{5, 2}) {
		t.Fatal(hs, g.Marker())
	}
}

// TestUnsyncedCutKeepsSegments: what an unsynced marker deletes is not deleted on
// disk.
func TestUnsyncedCutKeepsSegments(t *testing.T) {
	mem := vfs.NewCrashableMem()
	l := mustOpen(t, testOptions(mem))
	m := model{}
	for i := range uint64(4) {
		u := Update{Group: 1, Entries: entries(1, 1+i, 1, 40<<10)}
		mustAppend(t, l, true, u)
		m.apply(u)
	}
	segments := l.Metrics().Segments
	mustAppend(t, l, false, Update{Group: 1, Marker: &Marker{4, 1}})
	if n := l.Metrics().Segments; n != segments {
		t.Fatalf("%d of %d segments are left before the sync", n, segments)
	}
	crashed := mustOpen(t, testOptions(mem.CrashClone(vfs.CrashCloneCfg{})))
	checkState(t, crashed, m)
	mustClose(t, crashed)
	mustAppend(t, l, true)
	if n := l.Metrics().Segments; n != 1 {
		t.Fatalf("%d segments are left after the sync", n)
	}
	mustClose(t, l)
}

// TestReaderKeepsSegment: a segment is not recycled under a reader.
func TestReaderKeepsSegment(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.CacheBytes = -1
	l := mustOpen(t, o)
	defer mustClose(t, l)
	for i := range uint64(3) {
		mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 1+i, 1, 40<<10)})
	}
	got, cold, err := l.Group(1).collect(1, 2, 0)
	if err != nil || len(cold) != 1 {
		t.Fatal(err)
	}
	mustAppend(t, l, true, Update{Group: 1, Marker: &Marker{3, 1}})
	if l.segments[0].number != 1 {
		t.Fatal("the segment is gone under the reader")
	}
	if err := l.readCold(1, cold, got); err != nil || got[0].GetIndex() != 1 {
		t.Fatal(err)
	}
	unpin(cold)
	mustAppend(t, l, true, Update{Group: 1, HardState: hard(1, 1, 1)})
	if len(l.segments) != 1 {
		t.Fatalf("%d segments are left", len(l.segments))
	}
}

// TestConcurrentReaders reads while the log appends, cuts and recycles.
func TestConcurrentReaders(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.CacheBytes = 8 << 10
	l := mustOpen(t, o)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for r := range uint64(3) {
		wg.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-done:
					return
				default:
				}
				g := l.Group(1 + (r+n)%2)
				first, last := g.FirstIndex(), g.LastIndex()
				es, err := g.Entries(first, last+1, 20000)
				if err != nil && !errors.Is(err, raft.ErrCompacted) {
					t.Errorf("entries %d to %d: %v", first, last, err)
					return
				}
				for i, e := range es {
					if e.GetIndex() != first+uint64(i) {
						t.Errorf("entry %d at %d", e.GetIndex(), first+uint64(i))
					}
				}
				_, _, _, _ = l.Groups(), l.Metrics().String(), g.HardState(), g.LiveBytes()
			}
		})
	}
	for i := range uint64(1500) {
		var us []Update
		for group := uint64(1); group <= 2; group++ {
			u := Update{Group: group, Entries: entries(1, 1+i, 1, 500), HardState: hard(1, 1, i)}
			if i > 40 && i%10 == 0 && group == 1 || i > 300 && i%200 == 0 {
				u.Marker = &Marker{i - 40, 1}
			}
			us = append(us, u)
		}
		mustAppend(t, l, i%4 == 0, us...)
	}
	close(done)
	wg.Wait()
	checkAccounts(t, l)
	mustClose(t, l)
}

// TestClosed: everything says that the log is closed, cached entries are read.
func TestClosed(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.CacheBytes = 1000
	l := mustOpen(t, o)
	mustAppend(t, l, false, Update{Group: 1, Entries: entries(1, 1, 10, 200)})
	mustClose(t, l)
	for _, err := range []error{l.Close(), l.Append(nil, true), l.ProveEnd()} {
		if !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
	if _, err := l.Group(1).Entries(1, 11, ^uint64(0)); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if es, err := l.Group(1).Entries(10, 11, 0); err != nil || len(es) != 1 {
		t.Fatal(err)
	}
}

// TestOnSync: one sync per Append, with the bytes since the last.
func TestOnSync(t *testing.T) {
	o := testOptions(vfs.NewMem())
	var syncs []int
	o.OnSync = func(d time.Duration, bytes int) { syncs = append(syncs, bytes) }
	l := mustOpen(t, o)
	syncs = nil
	a := Update{Group: 1, HardState: hard(1, 1, 0)}
	mustAppend(t, l, false, a)
	mustAppend(t, l, true, a)
	mustAppend(t, l, true)
	mustAppend(t, l, true, a, a)
	want := align(headerSize + recordHeaderSize + hardStatePayload)
	if len(syncs) != 2 || syncs[0] != 2*want || syncs[1] <= want {
		t.Fatal(syncs)
	}
	mustClose(t, l)
}

// TestBubble: the log works in a synctest bubble and leaves nothing behind.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustOpen(t, testOptions(vfs.NewMem()))
		for i := range uint64(20) {
			mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 1+i, 1, 20<<10)})
			synctest.Wait()
		}
		if n := l.Metrics().PreallocWaits; n > 1 {
			t.Errorf("%d waits for a segment though there was time to make it", n)
		}
		mustClose(t, l)
	})
}

// TestOptions checks defaults and limits.
func TestOptions(t *testing.T) {
	var o Options
	o.EnsureDefaults()
	if o.SegmentBytes != 64<<20 || o.MaxBatchBytes != 16<<20 || o.CacheBytes != 64<<20 || o.FS == nil || o.Logger == nil {
		t.Fatalf("%+v", o)
	}
	for name, f := range map[string]func(*Options){
		"Dir":           func(o *Options) { o.Dir = "" },
		"SegmentBytes":  func(o *Options) { o.SegmentBytes = 4096 },
		"SegmentBytes ": func(o *Options) { o.SegmentBytes = 2 << 30 },
		"SegmentBytes.": func(o *Options) { o.SegmentBytes = MinSegmentBytes + 1 },
		"MaxBatchBytes": func(o *Options) { o.MaxBatchBytes = MinSegmentBytes },
	} {
		o := testOptions(vfs.NewMem())
		f(&o)
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), strings.TrimRight(name, " .")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMetricsString(t *testing.T) {
	m := Metrics{Segments: 1, Recycled: 2, DiskBytes: 3, LiveBytes: 4, Batches: 5, BytesWritten: 6, Syncs: 7, MovedEntries: 8, MovedBytes: 9, CacheHits: 10, CacheMisses: 11, PreallocWaits: 12}
	want := `segments: 1 in use, 2 recycled, 12 waits for one
disk:     3 bytes, 4 live
written:  6 bytes in 5 batches, 7 syncs
moved:    8 entries, 9 bytes
cache:    10 hits, 11 misses
`
	if got := m.String(); got != want {
		t.Errorf("%s", got)
	}
}

// TestDefaultFS runs once on the real file system.
func TestDefaultFS(t *testing.T) {
	o := Options{Dir: t.TempDir() + "/log", SegmentBytes: MinSegmentBytes}
	m := model{}
	for round := range uint64(2) {
		l := mustOpen(t, o)
		checkState(t, l, m)
		for i := range uint64(100) {
			i += 100 * round
			u := Update{Group: 1, Entries: entries(1, 1+i, 1, 2000)}
			if i > 20 {
				u.Marker = &Marker{i - 20, 1}
			}
			mustAppend(t, l, i%10 == 0, u)
			m.apply(u)
		}
		checkState(t, l, m)
		mustClose(t, l)
	}
}

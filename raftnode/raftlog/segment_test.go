package raftlog

import (
	"bytes"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestRotationOrder checks the order of operations that makes a new segment:
// filled and synced before it is named, its name synced before its first record,
// the old segment synced before the new one takes a batch.
func TestRotationOrder(t *testing.T) {
	var mu sync.Mutex
	var ops []string
	l := mustOpen(t, testOptions(hookFS{vfs.NewMem(), func(op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if n := len(ops); n == 0 || ops[n-1] != op+" "+name { // runs of writes count as one
			ops = append(ops, op+" "+name)
		}
		return nil
	}}))
	defer mustClose(t, l)
	mustAppend(t, l, false, Update{Group: 1, Entries: entries(1, 1, 1, 30<<10)})
	mu.Lock()
	ops = nil
	mu.Unlock()
	mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 2, 1, 40<<10)})
	mu.Lock()
	defer mu.Unlock()
	want := []string{
		"create log/spare-2", "write log/spare-2", "sync log/spare-2", "open log/spare-2",
		"rename log/000000000002.seg", "sync log",
		"syncdata log/spare-1", // segment 1, by the name it was opened with
		"writeat log/spare-2", "syncdata log/spare-2",
	}
	if !slices.Equal(ops, want) {
		t.Fatalf("\n%s", strings.Join(ops, "\n"))
	}
}

// TestUnsyncedHeadKeepsSegment: a segment is not deleted before the head of the
// next one, which has the only other copy of a quiet group's vote, is synced.
func TestUnsyncedHeadKeepsSegment(t *testing.T) {
	l := mustOpen(t, testOptions(vfs.NewMem()))
	defer mustClose(t, l)
	mustAppend(t, l, true, Update{Group: 9, HardState: hard(4, 2, 0)}, Update{Group: 1, Entries: entries(1, 1, 1, 40<<10)})
	mustAppend(t, l, true, Update{Group: 1, Marker: &Marker{1, 1}})
	mustAppend(t, l, false, Update{Group: 1, Entries: entries(1, 2, 1, 40<<10)})
	if n := l.Metrics().Segments; n != 2 {
		t.Fatalf("%d segments are left before the head is synced", n)
	}
	mustAppend(t, l, true)
	if n := l.Metrics().Segments; n != 1 {
		t.Fatalf("%d segments are left after it", n)
	}
}

// TestFullSegment: the room for the empty batch at the end is never given away,
// and everything else is.
func TestFullSegment(t *testing.T) {
	for _, over := range []int{0, 1} {
		fs := vfs.NewMem()
		l := mustOpen(t, testOptions(fs))
		mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 1, 1, 30<<10)})
		s := l.active()
		room := int(s.size-s.offset) - 2*headerSize - recordHeaderSize - entryPayload
		m := model{}
		m.apply(Update{Group: 1, Entries: entries(1, 1, 1, 30<<10)})
		u := Update{Group: 1, Entries: entries(1, 2, 1, room+over)}
		mustAppend(t, l, true, u)
		m.apply(u)
		if n := l.Metrics().Segments; n != int64(1+over) {
			t.Fatalf("%d segments", n)
		}
		if err := l.ProveEnd(); err != nil {
			t.Fatal(err)
		}
		if n := l.Metrics().Segments; n != int64(1+over) {
			t.Fatalf("%d segments after the proof", n)
		}
		if over == 0 && s.offset > s.size {
			t.Fatalf("the segment was written to %d of %d", s.offset, s.size)
		}
		if !l.lastEmpty {
			t.Fatal("the end is not proven")
		}
		mustClose(t, l)
		l = mustOpen(t, testOptions(fs))
		checkState(t, l, m)
		more := Update{Group: 1, Entries: entries(1, 3, 1, 10)}
		mustAppend(t, l, true, more)
		m.apply(more)
		mustClose(t, l)
		l = mustOpen(t, testOptions(fs))
		checkState(t, l, m)
		mustClose(t, l)
	}
}

// TestOpenCleansUp: files without a head and spares go, others stay, and the torn
// tail is zero on disk, durably, before anything is appended.
func TestOpenCleansUp(t *testing.T) {
	mem := vfs.NewCrashableMem()
	l := mustOpen(t, testOptions(mem))
	m := model{}
	u := Update{Group: 1, Entries: entries(1, 1, 2, 100)}
	mustAppend(t, l, true, u)
	m.apply(u)
	mustClose(t, l)
	name, end := l.active().name, l.active().offset
	for _, leftover := range []string{segmentName(2), segmentName(3), spareName(1), "NOTES"} {
		overwrite(t, mem, mem.PathJoin(testDir, leftover), 0, []byte("left by a crash"))
	}
	overwrite(t, mem, name, end, bytes.Repeat([]byte("torn"), 3000))
	f, err := mem.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := firstError(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}

	l = mustOpen(t, testOptions(mem))
	defer mustClose(t, l)
	checkState(t, l, m)
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	names, err := mem.List(testDir)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{segmentName(1), "NOTES"}) {
		t.Fatal(names, err)
	}
	if b := contents(t, crashed, name); !allZero(b[end:]) || allZero(b[end-8:end]) && allZero(b[:end]) {
		t.Fatal("what was torn is still on disk")
	}
}

// TestForeignSegment: a segment of another log is not taken for this one's.
func TestForeignSegment(t *testing.T) {
	var disks []*vfs.MemFS
	for salt := range uint64(2) {
		mem := vfs.NewMem()
		o := testOptions(mem)
		o.newSalt = func() uint64 { return salt + 1 }
		l := mustOpen(t, o)
		for i := range uint64(3) {
			mustAppend(t, l, true, Update{Group: 1, Entries: entries(1, 1+i, 1, 40<<10)})
		}
		mustClose(t, l)
		disks = append(disks, mem)
	}
	name := disks[0].PathJoin(testDir, segmentName(2))
	overwrite(t, disks[0], name, 0, contents(t, disks[1], name))
	if _, err := Open(testOptions(disks[0])); isCorrupt(err) == nil || !strings.Contains(err.Error(), "another log") {
		t.Fatal(err)
	}
}

// TestForgedHeader: bytes a client wrote into a torn batch do not prove anything,
// whatever they look like: they do not know the salt.
func TestForgedHeader(t *testing.T) {
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(mem))
	defer mustClose(t, l)
	m := model{}
	u := Update{Group: 1, Entries: entries(1, 1, 2, 100)}
	mustAppend(t, l, true, u)
	m.apply(u)
	from, name := l.active().offset, l.active().name
	forged := make([]byte, headerSize)
	h := header{salt: 1, segment: 1, batch: 1 << 40, syncedThrough: 1<<40 - 1}
	h.put(forged)
	var data []byte
	for range batchAlign { // at every alignment
		data = append(append(data, forged...), 0)
	}
	mustAppend(t, l, false, Update{Group: 1, Entries: entries(1, 3, 1, 10)}, Update{Group: 1, Entries: nil, HardState: hard(1, 1, 1)})
	e := entry(1, 4, data)
	mustAppend(t, l, false, Update{Group: 1, Entries: append(entries(1, 4, 0, 0), e)})
	fs := cloneFS(t, mem)
	overwrite(t, fs, name, from, make([]byte, 40))
	again := mustOpen(t, testOptions(fs))
	checkState(t, again, m)
	mustClose(t, again)
}

// TestMixedBatch: a record that names another batch or segment than the header in
// front of it makes the batch torn, though every checksum holds: sectors of
// several lives of the file can mix.
func TestMixedBatch(t *testing.T) {
	for name, mix := range map[string]struct{ segment, batch uint64 }{
		"sound": {1, 2}, "batch": {1, 3}, "segment": {2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var s rawSegment
			s.head(1, 1, 0, nil)
			s.batch(0, 1, 2, 1, recordHeaderSize+hardStatePayload, func(e *encoder) {
				e.segment, e.batch = mix.segment, mix.batch
				putHardState(e.record(hardStatePayload), hardState{1, 1, 0})
				e.seal(1, kindHardState, hardStatePayload)
				e.segment, e.batch = 1, 2
			})
			l, err := s.open(t)
			if err != nil {
				t.Fatal(err)
			}
			defer mustClose(t, l)
			if got := len(l.Groups()) == 1; got != (name == "sound") {
				t.Fatalf("replayed: %v", got)
			}
		})
	}
}

// scribbleFS changes what it was given to write, as a vfs.File may.
type scribbleFS struct{ vfs.FS }

func (f scribbleFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return scribbleFile{file}, err
}

func (f scribbleFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return scribbleFile{file}, err
}

type scribbleFile struct{ vfs.File }

func scribble(b []byte) {
	for i := range b {
		b[i] = 0x55
	}
}

func (f scribbleFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(bytes.Clone(b))
	scribble(b)
	return n, err
}

func (f scribbleFile) WriteAt(b []byte, offset int64) (int, error) {
	n, err := f.File.WriteAt(bytes.Clone(b), offset)
	scribble(b)
	return n, err
}

// TestScribblingFile: nothing depends on a buffer after it was written.
func TestScribblingFile(t *testing.T) {
	mem := vfs.NewMem()
	o := testOptions(scribbleFS{mem})
	o.SegmentBytes = 1 << 20
	l := mustOpen(t, o)
	m := model{}
	for i := range uint64(5) {
		u := Update{Group: 1, Entries: entries(1, 1+i, 1, 100), HardState: hard(1, 1, i)}
		mustAppend(t, l, true, u)
		m.apply(u)
	}
	mustClose(t, l)
	name, end := l.active().name, l.active().offset
	if b := contents(t, mem, name); !allZero(b[end:]) {
		t.Fatal("a new segment is not filled with zeros")
	}
	overwrite(t, mem, name, end, bytes.Repeat([]byte("torn"), 200<<10))
	l = mustOpen(t, o)
	checkState(t, l, m)
	mustClose(t, l)
	if b := contents(t, mem, name); !allZero(b[end:]) {
		t.Fatal("the torn tail is not zero")
	}
}

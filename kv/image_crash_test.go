package kv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// imageCase is a receiver with an image of one kind in its inbox, all durable.
type imageCase struct {
	opts     Options
	base     *vfs.MemFS
	manifest *snapshotv1.Manifest
	old, new string // dumps before and after the install
}

// newImageCase makes the case of a kind.
func newImageCase(t *testing.T, kind string) *imageCase {
	t.Helper()
	c := &imageCase{base: vfs.NewCrashableMem()}
	c.opts = Options{Shared: testShared(t), MemTableBytes: 64 << 10, JournalBytes: 1 << 30, ScrubBytesPerSecond: -1}
	makeDir(t, c.base)
	source, log := openStore(t, c.opts), newRandomLog(7)
	log.value = 300
	feed := splitIndexes(log.grow(150))
	o := c.opts
	o.FS = c.base
	receiver := openStore(t, o)
	for i, e := range feed {
		if _, err := source.Apply(e); err != nil {
			t.Fatal(err)
		}
		if i < 100 {
			if _, err := receiver.Apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(source.Flush(), receiver.Flush()); err != nil {
		t.Fatal(err)
	}
	have := snapshot.Have{}
	switch kind {
	case "records":
		have.StateFormat = uint32(pebble.FormatFlushableIngest)
	case "delta":
		e := feed[89][0]
		have = snapshot.Have{Index: e.Index, Term: e.Term, Schema: schemaVersion}
	}
	source.records.tableBytes = 1 << 10
	m, err := writeImage(t, source, have, 150)
	if err != nil {
		t.Fatal(err)
	}
	c.manifest = m
	copyImage(t, m, source.opts.FS, c.base)
	c.old = dump(t, receiver)
	closeStore(t, receiver)
	o.FS = c.base.CrashClone(vfs.CrashCloneCfg{})
	clean := openStore(t, o)
	c.install(t, clean)
	c.new = dump(t, clean)
	closeStore(t, clean)
	closeStore(t, source)
	if c.old == c.new {
		t.Fatal("the image changes nothing")
	}
	return c
}

// install takes the image from the inbox.
func (c *imageCase) install(t *testing.T, s *Store) {
	t.Helper()
	sink, err := prepareImage(t, s, c.manifest)
	if err == nil {
		err = s.Install(sink)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// imageCrash is the file system as a crash before an operation leaves it.
type imageCrash struct {
	op        string
	installed bool
	fs        *vfs.MemFS
}

// imageRecorder takes a clone before each operation that writes.
type imageRecorder struct {
	mem       *vfs.MemFS
	percent   int
	installed atomic.Bool

	mu     sync.Mutex
	random *rand.Rand
	points []imageCrash
}

func (r *imageRecorder) String() string { return "image crash recorder" }

// MaybeError records and never errs.
func (r *imageRecorder) MaybeError(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	point := imageCrash{op: fmt.Sprintf("%d %s", op.Kind, op.Path), installed: r.installed.Load()}
	point.fs = r.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.percent, RNG: r.random})
	r.points = append(r.points, point)
	return nil
}

// TestCrashBeforeEachImageOperation crashes before each write of Open, Stage,
// CheckFile, Prepare, Install, the removal of the old state and Close. Every
// clone opens all old or all new, goes on from the staged image, and leaves
// nothing behind. The same then while Open sweeps.
func TestCrashBeforeEachImageOperation(t *testing.T) {
	for _, kind := range []string{"files", "records", "delta"} {
		for _, percent := range []int{0, 50} {
			t.Run(fmt.Sprintf("%s/unsynced=%d", kind, percent), func(t *testing.T) {
				c := newImageCase(t, kind)
				recorder := &imageRecorder{mem: c.base, percent: percent, random: rand.New(rand.NewPCG(1, 2))}
				o := c.opts
				o.FS = errorfs.Wrap(c.base, recorder)
				s := openStore(t, o)
				c.install(t, s)
				recorder.installed.Store(true)
				closeStore(t, s)
				old, swept := 0, 0
				for i, point := range recorder.points {
					old += c.check(t, point)
					// What a crash left is swept by an Open that crashes too.
					if kind == "delta" || i%15 != 0 {
						continue
					}
					again := &imageRecorder{mem: point.fs.CrashClone(vfs.CrashCloneCfg{}), percent: percent, random: recorder.random}
					again.installed.Store(point.installed)
					o.FS = errorfs.Wrap(again.mem, again)
					s := openStore(t, o)
					swept += int(s.Metrics().DirectoriesSwept)
					closeStore(t, s)
					for _, point := range again.points {
						c.opens(t, point, o)
					}
				}
				t.Logf("%d crash points, %d before the install", len(recorder.points), old)
				if len(recorder.points) < 30 || old == 0 || old == len(recorder.points) || kind != "delta" && swept == 0 {
					t.Error("too few crash points to prove anything")
				}
			})
		}
	}
}

// opens opens what a crash left and tells whether it is the old state.
func (c *imageCase) opens(t *testing.T, point imageCrash, o Options) (*Store, bool) {
	t.Helper()
	o.FS = point.fs
	s := newStore(t, o)
	if _, err := s.Open(testDir); err != nil {
		t.Fatalf("crash before %s: %v", point.op, err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	got := dump(t, s)
	if got == c.old && !point.installed {
		return s, true
	}
	if diff := cmp.Diff(c.new, got); diff != "" {
		t.Fatalf("crash before %s: neither old nor new:\n%s", point.op, diff)
	}
	return s, false
}

// check goes on from what a crash left, with what is staged and without; it
// returns 1 for the old state.
func (c *imageCase) check(t *testing.T, point imageCrash) int {
	t.Helper()
	clone := imageCrash{point.op, point.installed, point.fs.CrashClone(vfs.CrashCloneCfg{})}
	o := c.opts
	o.KeepImages = func() [][]byte { return [][]byte{c.manifest.GetImage()} }
	s, old := c.opens(t, clone, o)
	if old {
		c.install(t, s)
		if diff := cmp.Diff(c.new, dump(t, s)); diff != "" {
			t.Fatalf("crash before %s: the install afterwards:\n%s", point.op, diff)
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	clone.installed = true
	s, _ = c.opens(t, clone, c.opts)
	if dirs := stateDirs(t, clone.fs); len(dirs) != 1 {
		t.Fatalf("crash before %s: state directories %v", point.op, dirs)
	}
	closeStore(t, s)
	return btoi(old)
}

// fullDisk errs every operation that needs space from the n-th on.
type fullDisk struct {
	after atomic.Int64
	full  atomic.Bool
	armed atomic.Bool
}

func (f *fullDisk) String() string { return "full disk" }

// MaybeError errs with ENOSPC.
func (f *fullDisk) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpMkdirAll, errorfs.OpFileWrite, errorfs.OpFileWriteAt:
	default:
		return nil
	}
	if f.armed.Load() && f.after.Add(-1) < 0 {
		f.full.Store(true)
		return syscall.ENOSPC
	}
	return nil
}

// TestDiskFullWhileStaging has the disk fill up at each operation of staging:
// the state goes on, Discard leaves nothing, and with space again it succeeds.
func TestDiskFullWhileStaging(t *testing.T) {
	for _, kind := range []string{"files", "records", "delta"} {
		t.Run(kind, func(t *testing.T) {
			c := newImageCase(t, kind)
			for n := int64(0); ; n++ {
				disk := new(fullDisk)
				disk.after.Store(n)
				o := c.opts
				o.FS = errorfs.Wrap(c.base.CrashClone(vfs.CrashCloneCfg{}), disk)
				s := openStore(t, o)
				before := stateDirs(t, o.FS)
				disk.armed.Store(true)
				sink, err := prepareImage(t, s, c.manifest)
				disk.armed.Store(false)
				if !disk.full.Load() {
					if err != nil {
						t.Fatal(err)
					}
					if n < 3 {
						t.Fatalf("staging writes only %d times", n)
					}
					closeStore(t, s)
					return
				}
				if err != nil && !errors.Is(err, syscall.ENOSPC) {
					t.Fatalf("disk full at operation %d: %v", n, err)
				}
				if err := sink.Discard(); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, stateDirs(t, o.FS)); diff != "" {
					t.Fatalf("disk full at operation %d: left behind:\n%s", n, diff)
				}
				if diff := cmp.Diff(c.old, dump(t, s)); diff != "" || s.Err() != nil {
					t.Fatalf("disk full at operation %d: %v\n%s", n, s.Err(), diff)
				}
				emptyDir(t, o.FS, inboxDir)
				for _, file := range c.manifest.GetFiles() {
					path := o.FS.PathJoin(inboxDir, file.GetName())
					if err := vfs.CopyAcrossFS(c.base, path, o.FS, path); err != nil {
						t.Fatal(err)
					}
				}
				c.install(t, s)
				if diff := cmp.Diff(c.new, dump(t, s)); diff != "" {
					t.Fatalf("disk full at operation %d, then not: %s", n, diff)
				}
				closeStore(t, s)
			}
		})
	}
}

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// crashPoints returns a file system over mem and what a crash just before each
// of its writing operations can leave.
func crashPoints(mem *vfs.MemFS) (vfs.FS, func() []crashPoint) {
	var mu sync.Mutex
	var points []crashPoint
	seed := uint64(0)
	fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		seed++
		points = append(points,
			crashPoint{op, 0, mem.CrashClone(vfs.CrashCloneCfg{})},
			crashPoint{op, 50, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(7, seed))})})
		return nil
	}))
	return fsys, func() []crashPoint {
		mu.Lock()
		defer mu.Unlock()
		return points
	}
}

type crashPoint struct {
	op   errorfs.Op
	kept int
	fsys *vfs.MemFS
}

func (p crashPoint) String() string {
	return fmt.Sprintf("before %v of %s with %d %% of what was not synced", p.op.Kind, p.op.Path, p.kept)
}

// TestCrashReceiver crashes the receiver before each of its operations; from
// every state it must come to READY with the right bytes, and leave nothing.
func TestCrashReceiver(t *testing.T) {
	s := newTestSource(t, randomContent(8, 40<<10, 0, 10<<10)).start()
	defer s.stop()
	mem := vfs.NewCrashableMem()
	fsys, points := crashPoints(mem)
	prepare := func(r *testReceiver) {
		smallChunks(s, r)
		r.opts.ProgressBytes = 8 << 10
	}
	r := newTestReceiverOn(t, fsys, s)
	prepare(r)
	r.mustReceive()
	all := points()
	if len(all) < 100 {
		t.Fatalf("only %d crashes", len(all))
	}
	resumed, ready := 0, 0
	for _, p := range all {
		s.awaitIdle()
		r := newTestReceiverOn(t, p.fsys, s)
		prepare(r)
		staged, transfer, err := r.receive(t.Context())
		if err != nil {
			t.Fatalf("crash %v: %v", p, err)
		}
		if err := r.install(staged); err != nil {
			t.Fatalf("crash %v: %v", p, err)
		}
		switch wire := transfer.Progress().WireBytes; {
		case wire == 0:
			ready++
		case wire < s.content.bytes():
			resumed++
		}
		// Records are written when the data is durable, so at most a progress step
		// and the window may come again.
	}
	// The test is worth something only if crashes fell on all sides.
	if resumed == 0 || ready == 0 {
		t.Errorf("%d resumed, %d were ready", resumed, ready)
	}
}

// TestCrashImages crashes the source before each operation of making, renewing
// and removing images: what is there afterwards is whole.
func TestCrashImages(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fsys, points := crashPoints(mem)
	c := randomContent(9, 10<<10, 5)
	open := func(fsys vfs.FS) *Images {
		images, err := OpenImages(ImagesOptions{FS: fsys, Dir: "images", Group: 7, MaxImages: 1})
		if err != nil {
			t.Fatal(err)
		}
		return images
	}
	images := open(fsys)
	for range 2 {
		image, err := images.Create(t.Context(), &fakeCapture{fsys: fsys, content: c})
		if err != nil {
			t.Fatal(err)
		}
		image.Release()
	}
	if err := images.Remove(images.Kept()[0].Manifest.Image); err != nil {
		t.Fatal(err)
	}
	found := map[int]int{}
	for _, p := range points() {
		kept := open(p.fsys).Kept()
		found[len(kept)]++
		for _, info := range kept {
			for _, f := range info.Manifest.Files {
				data, err := readTestFile(p.fsys, "images/"+FormatID(info.Manifest.Image)+"/db/"+f.Name)
				if err != nil || string(data) != string(c[f.Name]) {
					t.Errorf("crash %v: file %s: %d bytes, %v", p, f.Name, len(data), err)
				}
			}
		}
		names, err := p.fsys.List("images")
		if err != nil || len(names) != len(kept) {
			t.Errorf("crash %v: %q for %d images, %v", p, names, len(kept), err)
		}
	}
	if found[0] == 0 || found[1] == 0 {
		t.Errorf("images found: %v", found)
	}
}

// diskUse returns the bytes of all files below dir.
func diskUse(t *testing.T, fsys vfs.FS, dir string) (total int64) {
	t.Helper()
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		info, err := fsys.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() {
			total += diskUse(t, fsys, path)
		} else {
			total += info.Size()
		}
	}
	return total
}

// TestDiskFull receives ten times onto a disk that fills up at different
// moments: nothing may stay that no record speaks of. Then there is space.
func TestDiskFull(t *testing.T) {
	s := newTestSource(t, randomContent(10, 100<<10, 200<<10)).start()
	defer s.stop()
	for _, resume := range []bool{false, true} {
		t.Run(fmt.Sprintf("resume %v", resume), func(t *testing.T) {
			mem := vfs.NewMem()
			var left atomic.Int64
			full := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
				write := op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate
				if write && left.Add(-1) < 0 {
					return syscall.ENOSPC
				}
				return nil
			}))
			r := newTestReceiverOn(t, full, s)
			smallChunks(s, r)
			r.opts.GiveUpAfter = time.Millisecond
			for i := range 10 {
				left.Store(int64(3 * i))
				if !resume {
					r.transfer.ID = NewID()
				}
				_, transfer, err := r.receive(t.Context())
				if err == nil {
					t.Fatal("received onto a full disk")
				}
				if transfer != nil && !errors.Is(err, ErrNoSpace) {
					t.Fatal(err)
				}
				inboxes, err := OpenInboxes(mem, "inbox", nil)
				if err != nil {
					t.Fatal(err)
				}
				infos, err := inboxes.List()
				if err != nil {
					t.Fatal(err)
				}
				var known int64
				for _, info := range infos {
					log, err := mem.Stat("inbox/" + FormatID(info.Transfer) + "/session.log")
					if err != nil {
						t.Fatal(err)
					}
					known += int64(info.Bytes) + log.Size()
				}
				// What is written of a file whose record did not fit may stay, and is
				// written over later; it never adds up.
				if use := diskUse(t, mem, "inbox"); use > known+200<<10 || use > int64(s.content.bytes())+known {
					t.Errorf("receive %d: %d bytes are used, %d known", i, use, known)
				}
				if !resume {
					for _, info := range infos {
						if err := inboxes.Remove(info.Transfer); err != nil {
							t.Fatal(err)
						}
					}
					if use := diskUse(t, mem, "inbox"); use > 0 {
						t.Errorf("receive %d: %d bytes are left", i, use)
					}
				}
			}
			left.Store(1 << 30)
			r.opts.GiveUpAfter = 0
			r.mustReceive()
		})
	}
}

// TestNoSpace: the room is looked at before the first byte.
func TestNoSpace(t *testing.T) {
	s := newTestSource(t, randomContent(11, 100<<10)).start()
	defer s.stop()
	mem := vfs.NewMem()
	r := newTestReceiverOn(t, mem, s)
	r.opts.GiveUpAfter = time.Millisecond
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 105 << 10, TotalBytes: 10 << 20})
	_, _, err := r.receive(t.Context())
	if !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "free some") {
		t.Fatal(err)
	}
	if use := diskUse(t, mem, "inbox"); use > 0 {
		t.Errorf("%d bytes are left", use)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 2 << 20, TotalBytes: 10 << 20})
	r.opts.GiveUpAfter = 0
	r.mustReceive()
}

// TestFailures lets each operation of the receiver fail once: the transfer goes
// on and comes to READY.
func TestFailures(t *testing.T) {
	s := newTestSource(t, randomContent(12, 40<<10, 0, 10<<10)).start()
	defer s.stop()
	for failAt := int64(1); ; failAt++ {
		var n atomic.Int64
		failed := atomic.Bool{}
		mem := vfs.NewMem()
		fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && n.Add(1) == failAt {
				failed.Store(true)
				return syscall.EIO
			}
			return nil
		}))
		r := newTestReceiverOn(t, fsys, s)
		r.stager.fsys = mem
		smallChunks(s, r)
		r.opts.ProgressBytes = 8 << 10
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		staged, _, err := r.receive(ctx)
		if err != nil {
			// Opening and giving up are not tried again by Receive itself.
			staged, _, err = r.receive(ctx)
		}
		cancel()
		if err != nil {
			t.Fatalf("operation %d failed: %v", failAt, err)
		}
		if err := r.install(staged); err != nil && !errors.Is(err, syscall.EIO) {
			t.Fatalf("operation %d failed: %v", failAt, err)
		}
		if !failed.Load() {
			if failAt < 50 {
				t.Fatalf("only %d operations", failAt)
			}
			return
		}
	}
}

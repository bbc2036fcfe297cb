package inmemory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/snapshot"
)

// point is what a crash before a file operation leaves.
type point struct {
	what string
	fsys *vfs.MemFS
}

// crashes records what crashes leave, with nothing and with half kept of what was
// not synced. Removals are on a goroutine of their own.
type crashes struct {
	mu     sync.Mutex
	points []point
}

// each returns a file system over mem.
func (c *crashes) each(mem *vfs.MemFS) vfs.FS {
	return errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		what := fmt.Sprintf("before operation %d on %s", op.Kind, op.Path)
		c.points = append(c.points, point{what, mem.CrashClone(vfs.CrashCloneCfg{})},
			point{what + ", half kept", mem.CrashClone(vfs.CrashCloneCfg{
				UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(1, uint64(len(c.points)))),
			})})
		return nil
	}))
}

// take returns the points so far and begins anew.
func (c *crashes) take() []point {
	c.mu.Lock()
	defer c.mu.Unlock()
	points := c.points
	c.points = nil
	return points
}

// TestCrashSaving: a crash at any moment of a save leaves the state at the old
// index or at the new one; after it returned, the new one. What is half made goes
// at the next start, and the log reaches from what is left.
func TestCrashSaving(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := open(t, mem)
	advance(t, s, 1, 50)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	old := s.Machine().dump()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var c crashes
	s = open(t, c.each(mem))
	advance(t, s, 51, 90)
	next := s.Machine().dump()
	c.take()
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	points := c.take()
	during := len(points)
	if err := s.Close(); err != nil { // with the removal of the old one
		t.Fatal(err)
	}
	points = append(points, c.take()...)
	points = append(points, point{"after the save", mem.CrashClone(vfs.CrashCloneCfg{})})
	counts := map[uint64]int{}
	for i, p := range points {
		s := open(t, p.fsys)
		index := s.index()
		if index != s.DurableApplied() {
			t.Fatalf("%s: applied %d, durable %d", p.what, index, s.DurableApplied())
		}
		if index != 90 && (i >= during || index != 50) {
			t.Fatalf("%s: the state is at index %d", p.what, index)
		}
		if want := map[uint64]string{50: old, 90: next}[index]; s.Machine().dump() != want {
			t.Fatalf("%s: index %d with another content", p.what, index)
		}
		if names := stateNames(t, p.fsys); len(names) != 1 {
			t.Fatalf("%s: after the sweep there are %q", p.what, names)
		}
		counts[index]++
		advance(t, s, index+1, 95)
		if err := errors.Join(s.Flush(), s.Close()); err != nil {
			t.Fatalf("%s: saving again: %v", p.what, err)
		}
	}
	if counts[50] < 20 || counts[90] < 3 {
		t.Errorf("too few crashes to prove anything: %v", counts)
	}
	t.Logf("crashes by what they left: %v", counts)
}

// TestCrashTaking: a crash at any moment of Prepare and Install; the image can be
// staged again from what is left, and prepared and installed.
func TestCrashTaking(t *testing.T) {
	mem := vfs.NewCrashableMem()
	source := open(t, mem)
	advance(t, source, 1, 90)
	m := imageOf(t, source, mem, "inbox/files")
	next := source.Machine().dump()
	if err := errors.Join(source.Close(), mem.RemoveAll(stateDir)); err != nil {
		t.Fatal(err)
	}
	s := open(t, mem)
	advance(t, s, 1, 40)
	old := s.Machine().dump()
	if err := errors.Join(s.Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	var c crashes
	s = open(t, c.each(mem), m.Image)
	c.take()
	sink, err := prepare(t, s, m, "inbox/files")
	if err == nil {
		err = s.Install(sink)
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	counts := map[uint64]int{}
	for _, p := range c.take() {
		s := open(t, p.fsys, m.Image)
		counts[s.index()]++
		if want := map[uint64]string{40: old, 90: next}[s.index()]; s.Machine().dump() != want {
			t.Fatalf("%s: neither old nor new: index %d", p.what, s.index())
		}
		if s.index() == 40 {
			sink, err := prepare(t, s, m, "inbox/files")
			if err == nil {
				err = s.Install(sink)
			}
			if err != nil || s.Machine().dump() != next {
				t.Fatalf("%s: taken again: %v", p.what, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, p.fsys)
		if names := stateNames(t, p.fsys); s.index() != 90 || len(names) != 1 {
			t.Fatalf("%s: at the end index %d, %q", p.what, s.index(), names)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if counts[40] < 8 || counts[90] < 2 {
		t.Errorf("too few crashes to prove anything: %v", counts)
	}
}

// fullDisk errs every operation that needs space from the n-th on.
type fullDisk struct {
	after atomic.Int64
	armed atomic.Bool
	hit   atomic.Bool
}

func (f *fullDisk) String() string { return "full disk" }

func (f *fullDisk) MaybeError(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpLink, errorfs.OpMkdirAll, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFileSync:
	default:
		return nil
	}
	if f.armed.Load() && f.after.Add(-1) < 0 {
		f.hit.Store(true)
		return syscall.ENOSPC
	}
	return nil
}

// TestDiskFull: the disk fills up at each operation of a save, then of a capture
// and of taking an image: the state goes on, nothing is left behind once space
// is back, and then it succeeds.
func TestDiskFull(t *testing.T) {
	for n := int64(0); ; n++ {
		mem := vfs.NewCrashableMem()
		disk := new(fullDisk)
		fsys := errorfs.Wrap(mem, disk)
		s := open(t, fsys)
		advance(t, s, 1, 30)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		advance(t, s, 31, 60)
		disk.after.Store(n)
		disk.armed.Store(true)
		err := s.Flush()
		disk.armed.Store(false)
		if !disk.hit.Load() {
			if err != nil || n < 10 {
				t.Fatalf("after %d operations: %v", n, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) || s.DurableApplied() != 30 {
			t.Fatalf("full at operation %d: %v, durable %d", n, err, s.DurableApplied())
		}
		if names := stateNames(t, mem); len(names) > 1 && !errors.Is(err, errInDoubt) {
			t.Fatalf("full at operation %d: left behind %q", n, names)
		}
		crashed := open(t, mem.CrashClone(vfs.CrashCloneCfg{}))
		if i := crashed.index(); i != 30 && i != 60 {
			t.Fatalf("full at operation %d, and a crash: index %d", n, i)
		}
		advance(t, s, 61, 70)
		if err := errors.Join(crashed.Close(), s.Flush(), s.Close()); err != nil {
			t.Fatalf("full at operation %d, then not: %v", n, err)
		}
		if names := stateNames(t, mem); len(names) != 1 {
			t.Fatalf("full at operation %d, then not: left behind %q", n, names)
		}
	}
}

func TestDiskFullTaking(t *testing.T) {
	for n := int64(0); ; n++ {
		mem := vfs.NewCrashableMem()
		source := open(t, mem)
		advance(t, source, 1, 90)
		m := imageOf(t, source, mem, "inbox/files")
		if err := errors.Join(source.Close(), mem.RemoveAll(stateDir)); err != nil {
			t.Fatal(err)
		}
		disk := new(fullDisk)
		s := open(t, errorfs.Wrap(mem, disk), m.Image)
		advance(t, s, 1, 20)
		disk.after.Store(n)
		disk.armed.Store(true)
		sink, err := prepare(t, s, m, "inbox/files")
		disk.armed.Store(false)
		if !disk.hit.Load() {
			if err := errors.Join(err, s.Install(sink), s.Close()); err != nil {
				t.Fatal(err)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("full at operation %d: %v", n, err)
		}
		// The same sink goes on.
		if err := errors.Join(sink.Prepare(t.Context()), s.Install(sink), s.Close()); err != nil || s.index() != 90 {
			t.Fatalf("full at operation %d, then not: %v", n, err)
		}
	}
}

// TestSpaceForInstall: a marker that cannot be written leaves the image where the
// next start finds it, whichever of them it names.
func TestSpaceForInstall(t *testing.T) {
	mem := vfs.NewCrashableMem()
	source := open(t, mem)
	advance(t, source, 1, 90)
	m := imageOf(t, source, mem, "inbox/files")
	if err := errors.Join(source.Close(), mem.RemoveAll(stateDir)); err != nil {
		t.Fatal(err)
	}
	disk := new(fullDisk)
	s := open(t, errorfs.Wrap(mem, disk))
	sink, err := prepare(t, s, m, "inbox/files")
	if err != nil {
		t.Fatal(err)
	}
	disk.armed.Store(true)
	if err := s.Install(sink); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("install: %v", err)
	}
	disk.armed.Store(false)
	if s.index() != 0 || s.DurableApplied() != 0 {
		t.Errorf("the state moved to index %d", s.index())
	}
	if err := errors.Join(sink.Discard(), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, mem, m.Image)
	sink, err = prepare(t, s, m, "inbox/files")
	if err == nil {
		err = s.Install(sink)
	}
	if err != nil || s.index() != 90 {
		t.Errorf("the next start: index %d, %v", s.index(), err)
	}
	if _, err := s.Stage(m, "inbox/files"); !errors.Is(err, snapshot.ErrUnfit) {
		t.Errorf("the same image again: %v", err)
	}
	if err := errors.Join(sink.Discard(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if s = open(t, mem); s.index() != 90 {
		t.Errorf("Discard of what is installed removed it: index %d", s.index())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

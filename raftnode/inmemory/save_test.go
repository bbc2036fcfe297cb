package inmemory

import (
	"errors"
	"io"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// cowTable is a table with views; a view waits for wait, if there is one.
type cowTable struct {
	*table
	wait     chan struct{}
	saving   chan struct{}
	released *atomic.Int32
}

type rowsView struct {
	t    *cowTable
	rows map[string]string
}

func (t *cowTable) Snapshot() (View, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &rowsView{t, maps.Clone(t.rows)}, nil
}

func (v *rowsView) Save(w io.Writer) error {
	if v.t.wait != nil {
		close(v.t.saving)
		<-v.t.wait
	}
	return saveRows(w, v.rows)
}

func (v *rowsView) Release() { v.t.released.Add(1) }

// TestApplyBesideSave: entries are applied while a view is saved, and the image
// is of the index before them.
func TestApplyBesideSave(t *testing.T) {
	fsys := vfs.NewMem()
	machine := &cowTable{table: newTable(), wait: make(chan struct{}), saving: make(chan struct{}), released: new(atomic.Int32)}
	s, err := New(Options[*cowTable]{FS: fsys, New: func() *cowTable { return machine }})
	if err == nil {
		err = durable.MkdirAll(fsys, stateDir)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(stateDir); err != nil {
		t.Fatal(err)
	}
	advance(t, s, 1, 20)
	saved := make(chan error)
	go func() { saved <- s.Flush() }()
	<-machine.saving
	advance(t, s, 21, 40)
	close(machine.wait)
	if err := <-saved; err != nil || s.DurableApplied() != 20 || machine.released.Load() != 1 {
		t.Fatalf("durable %d, released %d, %v", s.DurableApplied(), machine.released.Load(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	twin := newTable()
	for i := uint64(1); i <= 20; i++ {
		if _, err := twin.Apply([]raftnode.Entry{entry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, fsys)
	if again.index() != 20 || again.Machine().dump() != twin.dump() {
		t.Errorf("the image is of index %d, or of another content", again.index())
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestApplyWaitsForSave: a plain machine is not changed while it is saved.
func TestApplyWaitsForSave(t *testing.T) {
	s := open(t, vfs.NewMem())
	advance(t, s, 1, 20)
	l, begun := s.live.Load(), make(chan struct{})
	var returned atomic.Bool
	applied := make(chan error, 1)
	s.Machine().onSave = func() error {
		if l.mu.TryLock() {
			l.mu.Unlock()
			t.Error("nothing keeps Apply from a state that is being saved")
		}
		go func() {
			close(begun)
			_, err := s.Apply([]raftnode.Entry{entry(21)})
			if !returned.Load() {
				t.Error("an entry was applied into a state that is being saved")
			}
			applied <- err
		}()
		<-begun
		returned.Store(true)
		return nil
	}
	if err := errors.Join(s.Flush(), <-applied); err != nil || s.DurableApplied() != 20 || s.index() != 21 {
		t.Errorf("durable %d, applied %d, %v", s.DurableApplied(), s.index(), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestInstallBesideSave: an image is installed while the state that it replaces
// is being saved. The install does not wait, and the save changes nothing.
func TestInstallBesideSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		source := open(t, mem)
		advance(t, source, 1, 90)
		m := imageOf(t, source, mem, "inbox/files")
		if err := errors.Join(source.Close(), mem.RemoveAll(stateDir)); err != nil {
			t.Fatal(err)
		}
		s := open(t, mem)
		advance(t, s, 1, 20)
		release := make(chan struct{})
		s.Machine().onSave = func() error { <-release; return nil }
		saved := make(chan error, 1)
		go func() { saved <- s.Flush() }()
		synctest.Wait()
		sink, err := prepare(t, s, m, "inbox/files")
		if err == nil {
			err = s.Install(sink)
		}
		if err != nil || s.DurableApplied() != 90 || s.index() != 90 {
			t.Fatalf("install: %v, durable %d", err, s.DurableApplied())
		}
		close(release)
		if err := <-saved; err != nil || s.DurableApplied() != 90 {
			t.Errorf("the save: %v, durable %d", err, s.DurableApplied())
		}
		advance(t, s, 91, 95)
		if err := errors.Join(s.Flush(), s.Close()); err != nil {
			t.Fatal(err)
		}
		if names := stateNames(t, mem); s.DurableApplied() != 95 || len(names) != 1 {
			t.Errorf("durable %d, on disk %q", s.DurableApplied(), names)
		}
	})
}

// TestCloseEndsSave: Close does not wait for all of a long save.
func TestCloseEndsSave(t *testing.T) {
	s := open(t, vfs.NewMem())
	advance(t, s, 1, 20)
	saving := make(chan struct{})
	s.Machine().onSave = func() error { close(saving); return nil }
	endless := &endlessTable{table: s.Machine()}
	e, err := New(Options[*endlessTable]{FS: vfs.NewMem(), New: func() *endlessTable { return endless }})
	if err == nil {
		err = durable.MkdirAll(e.opts.FS, stateDir)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Open(stateDir); err != nil {
		t.Fatal(err)
	}
	advance(t, e, 1, 1)
	saved := make(chan error)
	go func() { saved <- e.Flush() }()
	<-saving
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-saved; !errors.Is(err, ErrNotOpen) {
		t.Errorf("the save ended with %v", err)
	}
	if names := stateNames(t, e.opts.FS); len(names) != 0 {
		t.Errorf("it left %q", names)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// endlessTable saves until its writer errs.
type endlessTable struct{ *table }

func (t *endlessTable) Save(w io.Writer) error {
	if err := t.onSave(); err != nil {
		return err
	}
	for {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
	}
}

// TestSaveFails: an error and a panic of Save leave nothing and harm nothing.
func TestSaveFails(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, mem)
	advance(t, s, 1, 20)
	told := errors.New("told to fail")
	for what, onSave := range map[string]func() error{
		"an error": func() error { return told },
		"a panic":  func() error { panic(told) },
	} {
		s.Machine().onSave = onSave
		if err := s.Flush(); err == nil || !strings.Contains(err.Error(), "told to fail") {
			t.Errorf("%s: %v", what, err)
		}
		if names := stateNames(t, mem); len(names) != 0 || s.DurableApplied() != 0 {
			t.Errorf("%s left %q, durable %d", what, names, s.DurableApplied())
		}
	}
	s.Machine().onSave = nil
	if err := errors.Join(s.Flush(), s.Flush()); err != nil || s.Machine().saves != 3 {
		t.Errorf("%d saves, %v; the second Flush had nothing to do", s.Machine().saves, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// flip flips a bit in the middle of a file.
func flip(t *testing.T, fsys vfs.FS, path string) {
	t.Helper()
	data, err := durable.ReadFile(fsys, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := durable.WriteFile(fsys, path, data); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedKeptImage: damage on disk is found before the image is sent; the
// state in memory is sound, so a new image takes its place.
func TestDamagedKeptImage(t *testing.T) {
	for _, file := range []string{recordName, dataName(1)} {
		mem := vfs.NewMem()
		s := open(t, mem)
		advance(t, s, 1, 90)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		flip(t, mem, mem.PathJoin(stateDir, s.kept.name, file))
		c, err := s.Capture(snapshot.Have{}, 90)
		if err == nil {
			err = durable.MkdirAll(mem, "image")
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write(t.Context(), "image")
		if !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("%s: Write: %v", file, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Capture(snapshot.Have{}, 90); !errors.Is(err, snapshot.ErrTooOld) {
			t.Errorf("%s: the damaged image is handed out again: %v", file, err)
		}
		imageOf(t, s, mem, "second")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s = open(t, mem); s.index() != 90 {
			t.Errorf("%s: after a restart at index %d", file, s.index())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpenDamaged: a damaged state is told as unsound, is not swept, and an image
// takes its place; what only a person can mend is no such error.
func TestOpenDamaged(t *testing.T) {
	mem := vfs.NewCrashableMem()
	source := open(t, mem)
	advance(t, source, 1, 90)
	m := imageOf(t, source, mem, "inbox/files")
	want := source.Machine().dump()
	if err := errors.Join(source.Close(), mem.RemoveAll(stateDir)); err != nil {
		t.Fatal(err)
	}
	s := open(t, mem)
	advance(t, s, 1, 50)
	if err := errors.Join(s.Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	image := mem.PathJoin(stateDir, s.kept.name)
	for what, damage := range map[string]func(fsys vfs.FS) error{
		"a bit in the data":   func(fsys vfs.FS) error { flip(t, fsys, fsys.PathJoin(image, dataName(1))); return nil },
		"a bit in the record": func(fsys vfs.FS) error { flip(t, fsys, fsys.PathJoin(image, recordName)); return nil },
		"a bit in the marker": func(fsys vfs.FS) error { flip(t, fsys, fsys.PathJoin(stateDir, markerName)); return nil },
		"no data":             func(fsys vfs.FS) error { return fsys.Remove(fsys.PathJoin(image, dataName(0))) },
		"no image":            func(fsys vfs.FS) error { return fsys.RemoveAll(image) },
	} {
		fsys := mem.CrashClone(vfs.CrashCloneCfg{})
		if err := damage(fsys); err != nil {
			t.Fatal(err)
		}
		before := len(stateNames(t, fsys))
		s, err := tryOpen(fsys)
		if !errors.Is(err, raftnode.ErrUnsound) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if after := len(stateNames(t, fsys)); after != before {
			t.Errorf("%s: a state that did not open was swept", what)
		}
		if _, err := s.Apply([]raftnode.Entry{entry(51)}); !errors.Is(err, ErrNotOpen) {
			t.Errorf("%s: Apply: %v", what, err)
		}
		sink, err := prepare(t, s, m, "inbox/files")
		if err == nil {
			err = s.Install(sink)
		}
		if err := errors.Join(err, s.Close()); err != nil {
			t.Errorf("%s: take an image: %v", what, err)
			continue
		}
		if s = open(t, fsys); s.index() != 90 || s.Machine().dump() != want {
			t.Errorf("%s: after an image at index %d", what, s.index())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	bad := func() *table { return &table{restore: func() error { return errors.New("told to fail") }} }
	s, err := New(Options[*table]{New: bad, FS: mem})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(stateDir); !errors.Is(err, ErrRestore) || errors.Is(err, raftnode.ErrUnsound) {
		t.Errorf("a machine that does not restore a sound image: %v", err)
	}
	if s.Machine() != nil {
		t.Error("there is a machine")
	}
	if _, err := s.Capture(snapshot.Have{}, 0); !errors.Is(err, ErrNotOpen) {
		t.Errorf("capture: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestUnfit: images that could never be installed are refused by Stage; damaged
// ones by CheckFile, before all of them has arrived.
func TestUnfit(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, mem)
	advance(t, s, 1, 90)
	m := imageOf(t, s, mem, "inbox/files")
	kind, schema, format, name := m.Kind, m.Schema, m.StateFormat, m.Files[1].Name
	for what, change := range map[string]func(){
		"another kind":     func() { m.Kind = 1 },
		"a higher schema":  func() { m.Schema++ },
		"another format":   func() { m.StateFormat++ },
		"a file elsewhere": func() { m.Files[1].Name = "../state/current" },
	} {
		change()
		if _, err := s.Stage(m, "inbox/files"); !errors.Is(err, snapshot.ErrUnfit) {
			t.Errorf("%s: %v", what, err)
		}
		m.Kind, m.Schema, m.StateFormat, m.Files[1].Name = kind, schema, format, name
	}
	sink, err := s.Stage(m, "inbox/files")
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.CheckFile(t.Context(), dataName(1), false); err != nil {
		t.Fatal(err)
	}
	flip(t, mem, "inbox/files/"+dataName(1))
	if err := sink.CheckFile(t.Context(), dataName(1), false); !errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("a damaged file: %v", err)
	}
	if err := sink.Prepare(t.Context()); !errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("prepare a damaged image: %v", err)
	}
	if err := s.Install(sink); err == nil {
		t.Error("an image that was not prepared was installed")
	}
	if err := errors.Join(sink.Discard(), s.Close()); err != nil {
		t.Fatal(err)
	}
}

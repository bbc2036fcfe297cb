package snapshottest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// State is a state machine under test.
type State interface {
	snapshot.Capturer
	snapshot.Stager

	// Apply applies the entry of an index, the next one, in term 1. What it does
	// depends on the index only, and over a hundred of them it should do all that
	// the state machine can do: set, overwrite, delete, delete ranges.
	Apply(index uint64) error
	// Flush makes what was applied durable.
	Flush() error
	// Applied returns the index of the last entry in the state.
	Applied() uint64
	// Digest is the same for two states exactly if all that is replicated is.
	Digest() (string, error)
	// Close closes the state; also one whose Install failed.
	Close() error
}

// Open opens a state, or makes an empty one, in dir, a directory of its own.
// staged are the ids of images that inboxes hold and that may have been prepared:
// what Prepare moved must not be swept then, for the install is still to come.
type Open func(tb testing.TB, fsys vfs.FS, dir string, staged [][]byte) State

// Run runs the suite. A state machine that makes no deltas passes without them.
func Run(t *testing.T, open Open) {
	for _, check := range []struct {
		name string
		run  func(testing.TB, Open)
	}{
		{"RoundTrip", RoundTrip},
		{"OneIndex", OneIndex},
		{"Delta", Delta},
		{"DeltaLegality", DeltaLegality},
		{"Resume", Resume},
		{"PrepareAfterRestart", PrepareAfterRestart},
		{"Discard", Discard},
		{"InstallCrash", InstallCrash},
	} {
		t.Run(check.name, func(t *testing.T) { check.run(t, open) })
	}
}

// entries is how many indexes the checks apply first.
const entries = 100

// image is a captured image in a directory of its own.
type image struct {
	manifest *snapshotv1.Manifest
	dir      string
}

// bench is a file system with a source and what the checks do with it.
type bench struct {
	testing.TB
	opener Open
	fsys   *vfs.MemFS
	// staged are the images in the inbox now.
	staged [][]byte
}

func newBench(tb testing.TB, open Open) *bench {
	return &bench{TB: tb, opener: open, fsys: vfs.NewCrashableMem()}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) open(fsys vfs.FS, dir string) State {
	b.Helper()
	return b.opener(b, fsys, dir, b.staged)
}

// state opens a state and brings it from where it is to an index.
func (b *bench) state(dir string, index uint64) State {
	b.Helper()
	b.must(durable.MkdirAll(b.fsys, dir))
	s := b.open(b.fsys, dir)
	b.advance(s, index)
	return s
}

func (b *bench) advance(s State, index uint64) {
	b.Helper()
	for i := s.Applied() + 1; i <= index; i++ {
		b.must(s.Apply(i))
	}
}

func (b *bench) digest(s State) string {
	b.Helper()
	d, err := s.Digest()
	b.must(err)
	return d
}

// capture makes an image of all that is applied; ErrNoDelta comes back.
func (b *bench) capture(s State, dir string, have snapshot.Have) (image, error) {
	b.Helper()
	c, err := s.Capture(have, s.Applied())
	if errors.Is(err, snapshot.ErrTooOld) {
		b.must(s.Flush())
		c, err = s.Capture(have, s.Applied())
	}
	if err != nil {
		return image{}, err
	}
	b.must(durable.MkdirAll(b.fsys, dir))
	m, err := c.Write(b.Context(), dir)
	if err := c.Close(); err != nil {
		b.Error("close of a capture:", err)
	}
	if err != nil {
		return image{}, err
	}
	m.Image, m.Group = snapshot.NewID(), 1
	if err := snapshot.ValidateManifest(m); err != nil {
		b.Fatal("the manifest of a capture:", err)
	}
	names, err := b.fsys.List(dir)
	b.must(err)
	if len(names) != len(m.Files) {
		b.Fatalf("the image has %d files and its directory %d: %q", len(m.Files), len(names), names)
	}
	return image{m, dir}, nil
}

// full makes a full image.
func (b *bench) full(s State, dir string) image {
	b.Helper()
	i, err := b.capture(s, dir, snapshot.Have{})
	b.must(err)
	if i.manifest.Kind == snapshotv1.Kind_KIND_RECORDS && i.manifest.FromIndex != 0 {
		b.Fatal("a full image was asked for")
	}
	return i
}

// delta makes a delta from an index on, or reports that there is none.
func (b *bench) delta(s State, dir string, from uint64) (image, bool) {
	b.Helper()
	// Schema and format are known only from an image.
	probe := b.full(s, dir+".probe").manifest
	i, err := b.capture(s, dir, snapshot.Have{Index: from, Term: 1, Schema: probe.Schema, StateFormat: probe.StateFormat})
	if errors.Is(err, snapshot.ErrNoDelta) {
		return image{}, false
	}
	b.must(err)
	return i, i.manifest.Kind == snapshotv1.Kind_KIND_RECORDS
}

// deliver copies the files of an image, some of them or all, as a transfer does.
func (b *bench) deliver(i image, dir string, files int) {
	b.Helper()
	b.must(durable.MkdirAll(b.fsys, dir))
	for _, f := range i.manifest.Files[:files] {
		b.must(vfs.Copy(b.fsys, b.fsys.PathJoin(i.dir, f.Name), b.fsys.PathJoin(dir, f.Name)))
	}
	b.must(durable.SyncDir(b.fsys, dir))
}

// stage delivers an image and stages it.
func (b *bench) stage(s State, i image, dir string) snapshot.Sink {
	b.Helper()
	b.deliver(i, dir, len(i.manifest.Files))
	b.staged = [][]byte{i.manifest.Image}
	sink, err := s.Stage(i.manifest, dir)
	b.must(err)
	b.check(sink, i, 0)
	return sink
}

func (b *bench) check(sink snapshot.Sink, i image, from int) {
	b.Helper()
	for _, f := range i.manifest.Files[from:] {
		b.must(sink.CheckFile(b.Context(), f.Name, f.Verified))
	}
}

// install delivers, stages, prepares and installs an image.
func (b *bench) install(s State, i image, dir string) {
	b.Helper()
	sink := b.stage(s, i, dir)
	b.must(sink.Prepare(b.Context()))
	b.must(s.Install(sink))
	b.staged = nil // the inbox is removed
}

// same compares two states, and again after the second was opened anew.
func (b *bench) same(source, s State, dir string) State {
	b.Helper()
	b.staged = nil
	want, index := b.digest(source), source.Applied()
	if got := b.digest(s); got != want || s.Applied() != index {
		b.Fatalf("after the install: digest %s at %d, not %s at %d", got, s.Applied(), want, index)
	}
	b.must(s.Close())
	s = b.open(b.fsys, dir)
	if got := b.digest(s); got != want || s.Applied() != index {
		b.Fatalf("after a restart: digest %s at %d, not %s at %d", got, s.Applied(), want, index)
	}
	return s
}

// crashes returns a file system over that of the bench and what a crash before
// each writing operation leaves.
func (b *bench) crashes() (vfs.FS, func() []crash) {
	var mu sync.Mutex
	var all []crash
	return errorfs.Wrap(b.fsys, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			what := fmt.Sprintf("before operation %d on %s", op.Kind, op.Path)
			all = append(all, crash{what, b.fsys.CrashClone(vfs.CrashCloneCfg{})},
				crash{what + ", half of what was not synced kept", b.fsys.CrashClone(vfs.CrashCloneCfg{
					UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(1, uint64(len(all)))),
				})})
			return nil
		})), func() []crash {
			mu.Lock()
			defer mu.Unlock()
			return all
		}
}

type crash struct {
	what string
	fsys *vfs.MemFS
}

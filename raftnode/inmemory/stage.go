package inmemory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// imageIDBytes is the length of an image's id.
const imageIDBytes = 16

// stagedName is the directory that an image has in the state directory from
// Prepare on.
func stagedName(id []byte) string { return "image-" + snapshot.FormatID(id) }

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Stage begins or resumes taking an image; see snapshot.Stager. It may be called
// where Open found the state unsound.
func (s *StateMachine[M]) Stage(m *snapshotv1.Manifest, dir string) (snapshot.Sink, error) {
	state := s.dir.Load()
	if state == nil || s.closed.Load() {
		return nil, ErrNotOpen
	}
	if err := s.fits(m); err != nil {
		return nil, fmt.Errorf("inmemory: stage an image of index %d: %w", m.GetIndex(), err)
	}
	name := stagedName(m.GetImage())
	return &sink[M]{s: s, m: m, dir: dir, name: name, path: s.opts.FS.PathJoin(*state, name)}, nil
}

// fits tells whether an image could ever be installed.
func (s *StateMachine[M]) fits(m *snapshotv1.Manifest) error {
	if len(m.GetImage()) != imageIDBytes {
		return unfitf("its id has %d bytes", len(m.GetImage()))
	}
	if m.GetKind() != snapshotv1.Kind_KIND_STREAM || m.GetFromIndex() != 0 {
		return unfitf("it is of kind %s from index %d, and a state in memory takes streams", m.GetKind(), m.GetFromIndex())
	}
	if m.GetSchema() == 0 || m.GetSchema() > s.opts.Schema || m.GetStateFormat() != stateFormat {
		return unfitf("it has schema %d and format %d, this release reads %d and %d", m.GetSchema(), m.GetStateFormat(), s.opts.Schema, stateFormat)
	}
	if n := len(m.GetFiles()); n == 0 || n > maxDataFiles+1 {
		return unfitf("it has %d files", n)
	}
	for i, file := range m.GetFiles() {
		name := recordName
		if i > 0 {
			name = dataName(i - 1)
		}
		if file.GetName() != name {
			return unfitf("file %d is %q and should be %q", i, file.GetName(), name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept != nil && s.kept.name == stagedName(m.GetImage()) {
		return unfitf("it is the state already")
	}
	return nil
}

// unfitf returns an error that matches snapshot.ErrUnfit.
func unfitf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", snapshot.ErrUnfit, fmt.Sprintf(format, args...))
}

// sink is an image being staged. Prepare moves its files into the state directory
// under the image's name, where a restart finds them.
type sink[M Machine] struct {
	s          *StateMachine[M]
	m          *snapshotv1.Manifest
	dir        string
	name, path string

	mu      sync.Mutex
	image   *keptImage
	next    *live[M] // restored from it; nil until Prepare returned nil
	inDoubt bool     // the marker may name it
}

// CheckFile verifies the blocks of one file; see snapshot.Sink.
func (k *sink[M]) CheckFile(ctx context.Context, name string, verified bool) error {
	if moved, err := k.moved(); moved || err != nil {
		return err // Prepare checked them
	}
	for i, file := range k.m.GetFiles() {
		if file.GetName() != name {
			continue
		}
		if err := k.sized(file); err != nil || i == 0 || verified {
			return err
		}
		return k.checkBlocks(ctx, i-1, file.GetSize())
	}
	return damagedf("the image has no file %q", name)
}

// checkBlocks reads a data file as it arrived.
func (k *sink[M]) checkBlocks(ctx context.Context, number int, size uint64) error {
	f, err := openDataFile(k.s.opts.FS, k.dir, number, size)
	if err != nil {
		return err
	}
	for err == nil {
		if err = k.stop(ctx)(); err == nil {
			_, _, err = f.next()
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, f.close())
}

// stop ends work with ctx and with Close.
func (k *sink[M]) stop(ctx context.Context) func() error {
	return func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return k.s.stopped()
	}
}

// moved tells whether an earlier Prepare took the files.
func (k *sink[M]) moved() (bool, error) {
	_, err := k.s.opts.FS.Stat(k.path)
	if isGone(err) {
		return false, nil
	}
	return err == nil, err
}

// sized wants a file in dir to have its size.
func (k *sink[M]) sized(file *snapshotv1.File) error {
	path := k.s.opts.FS.PathJoin(k.dir, file.GetName())
	info, err := k.s.opts.FS.Stat(path)
	if isGone(err) {
		return damagedf("%v", err)
	}
	if err != nil {
		return err
	}
	if info.IsDir() || uint64(info.Size()) != file.GetSize() {
		return damagedf("%s has %d bytes, the manifest says %d", path, info.Size(), file.GetSize())
	}
	return nil
}

// Prepare moves the files to the state and restores a second machine from them;
// see snapshot.Sink. Both machines are in memory until Install.
func (k *sink[M]) Prepare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next != nil {
		return nil
	}
	if err := k.prepare(ctx); err != nil {
		return fmt.Errorf("inmemory: prepare image %s: %w", k.name, err)
	}
	return nil
}

func (k *sink[M]) prepare(ctx context.Context) error {
	if err := k.stop(ctx)(); err != nil {
		return err
	}
	moved, err := k.moved()
	if err == nil && !moved {
		err = k.move()
	}
	if err != nil {
		return err
	}
	r, err := readRecord(k.s.opts.FS, k.path, k.s.opts.Schema)
	if errors.Is(err, ErrNewer) {
		err = unfitf("%v", err)
	}
	if err != nil {
		return err
	}
	if err := k.matches(r); err != nil {
		return err
	}
	machine, err := k.s.restore(k.path, r, k.stop(ctx))
	if err != nil {
		return err
	}
	k.image = &keptImage{name: k.name, record: r}
	k.next = &live[M]{machine: machine, applied: r.applied}
	return nil
}

// move makes the directory with the files one of the state's.
func (k *sink[M]) move() error {
	fsys := k.s.opts.FS
	files := make(map[string]bool, len(k.m.GetFiles()))
	for _, file := range k.m.GetFiles() {
		if err := k.sized(file); err != nil {
			return err
		}
		files[file.GetName()] = true
	}
	names, err := fsys.List(k.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !files[name] {
			// What an earlier attempt left would lie in the state for ever.
			if err := fsys.RemoveAll(fsys.PathJoin(k.dir, name)); err != nil {
				return err
			}
		}
	}
	if err := durable.SyncDir(fsys, k.dir); err != nil {
		return err
	}
	if err := fsys.Rename(k.dir, k.path); err != nil {
		return err
	}
	// The new name first: at no time is neither durable.
	if err := durable.SyncDir(fsys, fsys.PathDir(k.path)); err != nil {
		return err
	}
	return durable.SyncDir(fsys, fsys.PathDir(k.dir))
}

// matches wants the record to be what the manifest tells.
func (k *sink[M]) matches(r *record) error {
	m := k.m
	if r.applied.Index != m.GetIndex() || r.applied.Term != m.GetTerm() || r.applied.Clock != m.GetClock() ||
		r.schema != m.GetSchema() || !bytes.Equal(r.applied.Membership, m.GetMembership()) {
		return damagedf("its record is at index %d term %d clock %d schema %d, the manifest says %d, %d, %d, %d, or the membership differs",
			r.applied.Index, r.applied.Term, r.applied.Clock, r.schema, m.GetIndex(), m.GetTerm(), m.GetClock(), m.GetSchema())
	}
	if len(r.files) != len(m.GetFiles())-1 {
		return damagedf("its record has %d data files, the manifest %d", len(r.files), len(m.GetFiles())-1)
	}
	return nil
}

// Discard gives up and removes what Prepare moved; see snapshot.Sink.
func (k *sink[M]) Discard() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = nil
	k.s.mu.Lock()
	named := k.inDoubt || k.s.kept != nil && k.s.kept.name == k.name
	k.s.mu.Unlock()
	if named {
		return nil
	}
	return k.s.opts.FS.RemoveAll(k.path)
}

// Install makes a staged image the state: it moves the marker, which is durable
// when Install returns, and puts the machine that Prepare restored in the place
// of the old one. It waits for no save: one that runs ends by itself. See
// snapshot.Stager.
func (s *StateMachine[M]) Install(staged snapshot.Sink) error {
	k, ok := staged.(*sink[M])
	if !ok || k.s != s {
		return fmt.Errorf("inmemory: install: a %T was not staged here", staged)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next == nil {
		return fmt.Errorf("inmemory: install image %s: it is not prepared", k.name)
	}
	err := s.keep(k.image, s.stopped, k.next)
	k.inDoubt = errors.Is(err, errInDoubt)
	if err != nil {
		return fmt.Errorf("inmemory: install image %s: %w", k.name, err)
	}
	k.next = nil
	return nil
}

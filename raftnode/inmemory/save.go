package inmemory

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/streamraft/streamraft/internal/durable"
	"github.com/streamraft/streamraft/raftnode"
)

// dirPermissions of an image: for the owner only.
const dirPermissions os.FileMode = 0o700

// errSuperseded ends a save whose state an installed image replaced.
var errSuperseded = errors.New("an installed image replaced the state")

// keptImage is an image in the state directory that is, or was, named by the
// marker. Its fields are guarded by StateMachine.mu, but for those of the image.
type keptImage struct {
	name   string
	record *record
	// holders are captures; retired tells the last of them to remove it.
	holders int
	retired bool
	// damaged: a check found that the files are not what was written.
	damaged bool
}

// Flush keeps an image of everything applied before the call, and removes the one
// before; see raftnode.StateMachine. Apply waits while the view of the state is
// taken: for Snapshotter.Snapshot, or else for all of Machine.Save. Calls share a
// save where they can. After an error nothing has changed: the image of before is
// kept. ErrNotOpen after Close.
func (s *StateMachine[M]) Flush() error {
	wanted, err := s.appliedIndex()
	if err != nil {
		return err
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	if s.saved(wanted) {
		return nil
	}
	err = s.save()
	if errors.Is(err, errSuperseded) {
		return nil // Install made durable what is the state now
	}
	if err != nil {
		return fmt.Errorf("inmemory: keep an image in %s: %w", *s.dir.Load(), err)
	}
	return nil
}

func (s *StateMachine[M]) appliedIndex() (uint64, error) {
	l := s.live.Load()
	if l == nil || s.closed.Load() {
		return 0, ErrNotOpen
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.applied.Index, nil
}

// saved tells that a sound image of an index, or a later one, is kept.
func (s *StateMachine[M]) saved(index uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return index == 0 || s.kept != nil && !s.kept.damaged && s.kept.record.applied.Index >= index
}

// save keeps an image of the state as it is.
func (s *StateMachine[M]) save() error {
	l, begin := s.live.Load(), time.Now()
	stop := func() error {
		if s.live.Load() != l {
			return errSuperseded
		}
		return s.stopped()
	}
	if err := stop(); err != nil {
		return err
	}
	fsys, salt := s.opts.FS, rand.Uint64()
	name := fmt.Sprintf("saved-%016x", salt)
	path := fsys.PathJoin(*s.dir.Load(), name)
	// What is left behind is never named by the marker, and goes at the next start.
	abandon := func(err error) error { return errors.Join(err, fsys.RemoveAll(path)) }
	if err := fsys.MkdirAll(path, dirPermissions); err != nil {
		return abandon(err)
	}
	w, err := newStreamWriter(fsys, path, salt, s.opts.FileBytes, stop)
	if err != nil {
		return abandon(err)
	}
	applied, err := l.save(w)
	r := &record{applied: applied, schema: s.opts.Schema}
	if err := w.finish(r, err); err != nil {
		return abandon(err)
	}
	// The directory's own entry; the marker must never name what may go.
	if err := durable.SyncDir(fsys, *s.dir.Load()); err != nil {
		return abandon(err)
	}
	img := &keptImage{name: name, record: r}
	if err := s.keep(img, stop, nil); err != nil {
		if !errors.Is(err, errInDoubt) {
			err = abandon(err)
		}
		return err
	}
	var stored uint64
	for _, f := range r.files {
		stored += f.size
	}
	s.opts.Logger.Info("kept an image", "index", applied.Index, "bytes", r.raw, "stored", stored, "took", time.Since(begin))
	return nil
}

// save writes the state, at the index it returns.
func (l *live[M]) save(w io.Writer) (raftnode.Applied, error) {
	l.mu.Lock()
	applied := l.applied
	snapshotter, ok := any(l.machine).(Snapshotter)
	if !ok {
		defer l.mu.Unlock()
		return applied, guarded("Save", func() error { return l.machine.Save(w) })
	}
	var view View
	err := guarded("Snapshot", func() (err error) {
		view, err = snapshotter.Snapshot()
		return err
	})
	l.mu.Unlock()
	if err != nil {
		return applied, err
	}
	defer view.Release()
	return applied, guarded("Save", func() error { return view.Save(w) })
}

// errInDoubt: the marker names the old image or the new one; neither may go.
var errInDoubt = errors.New("the marker did not move for certain")

// keep moves the marker to an image that is durable in the state directory, and
// then lets go of the one before. next, if not nil, becomes the live machine; stop
// is asked before. errInDoubt tells that the image must stay.
func (s *StateMachine[M]) keep(img *keptImage, stop func() error, next *live[M]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := stop(); err != nil {
		return err
	}
	dir := *s.dir.Load()
	if err := durable.WriteRecord(s.opts.FS, s.opts.FS.PathJoin(dir, markerName), markerFormat(), []byte(img.name)); err != nil {
		s.doubtful = append(s.doubtful, img)
		return fmt.Errorf("%w: %w", errInDoubt, err)
	}
	replaced := s.doubtful
	if s.kept != nil {
		replaced = append(replaced, s.kept)
	}
	s.kept, s.doubtful = img, nil
	if next != nil {
		s.live.Store(next)
	}
	s.durable.Store(img.record.applied.Index)
	for _, old := range replaced {
		if old.name != img.name { // a second Install of one in doubt
			old.retired = true
			s.removeRetired(old)
		}
	}
	return nil
}

// removeRetired removes an image that was replaced, unless a capture holds it.
// Large files take their time, and Install must not. After Close they stay for
// the next start. s.mu is held.
func (s *StateMachine[M]) removeRetired(img *keptImage) {
	if img.retired && img.holders == 0 && !s.closed.Load() {
		s.removals.Go(func() { s.remove(img.name) })
	}
}

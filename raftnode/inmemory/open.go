package inmemory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/streamraft/streamraft/internal/durable"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// markerName is the file in the state directory that holds the name of the kept
// image: a record of package durable, version 1, whose payload is the name. It is
// replaced as a whole, so a crash leaves the old name or the new one.
const markerName = "current"

func markerFormat() durable.Format {
	return durable.Format{Magic: [8]byte([]byte("SRSTRCUR")), Version: 1, Limit: snapshot.MaxFileName}
}

// Open restores the state of the kept image in dir into a new machine, or begins
// with an empty one; see raftnode.StateMachine. It takes as long as Restore does.
// A kept image that is missing or damaged is raftnode.ErrUnsound: the replica
// then fetches another one. There is no older one to fall back to, for the log
// was cut below the kept one. ErrNewer and ErrRestore stop the replica. After an
// error only Stage and Install may be called.
func (s *StateMachine[M]) Open(dir string) (raftnode.Applied, error) {
	s.dir.Store(&dir)
	l, kept, err := s.open(dir)
	if err != nil {
		err = fmt.Errorf("inmemory: open the state in %s: %w", dir, err)
		if errors.Is(err, snapshot.ErrCorrupt) {
			err = fmt.Errorf("%w: %w", raftnode.ErrUnsound, err)
		}
		return raftnode.Applied{}, err
	}
	s.mu.Lock()
	s.kept = kept
	s.mu.Unlock()
	s.durable.Store(l.applied.Index)
	applied := l.applied
	s.live.Store(l)
	s.sweep(dir, kept)
	return applied, nil
}

func (s *StateMachine[M]) open(dir string) (*live[M], *keptImage, error) {
	name, err := readDurable(s.opts.FS, s.opts.FS.PathJoin(dir, markerName), markerFormat())
	if errors.Is(err, fs.ErrNotExist) {
		// Nothing was ever kept, so nothing of the log was cut: a state that lost
		// its marker is found by raftnode, which knows where the log begins.
		return &live[M]{machine: s.opts.New()}, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := snapshot.CheckFileName(string(name)); err != nil {
		return nil, nil, err
	}
	path := s.opts.FS.PathJoin(dir, string(name))
	r, err := readRecord(s.opts.FS, path, s.opts.Schema)
	if err != nil {
		return nil, nil, err
	}
	machine, err := s.restore(path, r, s.stopped)
	if err != nil {
		return nil, nil, err
	}
	return &live[M]{machine: machine, applied: r.applied}, &keptImage{name: string(name), record: r}, nil
}

// stopped is the error of what runs on after Close.
func (s *StateMachine[M]) stopped() error {
	if s.closed.Load() {
		return ErrNotOpen
	}
	return nil
}

// restore makes a machine of the image in a directory. Errors are
// snapshot.ErrCorrupt where the image is damaged, ErrRestore where only the
// machine found something wrong, that of stop, and the file system's.
func (s *StateMachine[M]) restore(path string, r *record, stop func() error) (machine M, err error) {
	begin := time.Now()
	reader, err := newStreamReader(s.opts.FS, path, r, stop)
	if err != nil {
		return machine, err
	}
	made := s.opts.New()
	err = guarded("Restore", func() error { return made.Restore(reader) })
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrRestore, err)
	} else {
		// A machine may stop reading where it knows the end; the rest counts.
		_, err = io.Copy(io.Discard, onlyReader{reader})
	}
	if reader.err != nil && !errors.Is(reader.err, io.EOF) {
		err = reader.err
	}
	if err = errors.Join(err, reader.close()); err != nil {
		return machine, err
	}
	s.opts.Logger.Info("restored an image", "index", r.applied.Index, "bytes", r.raw, "took", time.Since(begin))
	return made, nil
}

// onlyReader hides what else a reader can do.
type onlyReader struct{ io.Reader }

// guarded calls f of the user's machine; a panic becomes an error, so that it
// ends one attempt and not the process.
func guarded(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panicked: %v", what, p)
		}
	}()
	return f()
}

// sweep removes what nothing refers to from the state directory: images that were
// replaced, what a crash left half made, and what was staged and is not to be
// kept. An error is not one of Open: the next sweep tries again.
func (s *StateMachine[M]) sweep(dir string, kept *keptImage) {
	names, err := s.opts.FS.List(dir)
	if err != nil {
		s.opts.Logger.Warn("listing the state directory failed", "directory", dir, "error", err)
		return
	}
	keep := map[string]bool{markerName: true}
	if kept != nil {
		keep[kept.name] = true
	}
	for _, id := range s.staged() {
		keep[stagedName(id)] = true
	}
	for _, name := range names {
		if !keep[name] {
			s.remove(name)
		}
	}
}

// remove removes an image that nothing refers to.
func (s *StateMachine[M]) remove(name string) {
	path := s.opts.FS.PathJoin(*s.dir.Load(), name)
	if err := s.opts.FS.RemoveAll(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.opts.Logger.Warn("removing what nothing refers to failed; it is tried again at the next start", "path", path, "error", err)
		return
	}
	s.opts.Logger.Debug("removed what nothing refers to", "path", path)
}

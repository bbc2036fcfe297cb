package kv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// openRoom is more than opening a database writes: a MANIFEST of some thousand
// tables, options and markers.
const openRoom = 1 << 20

// fullSink takes an image that replaces the state: files, which become the
// state's directory as they are, or all records, which are ingested into a new
// one. Prepare leaves the directory in the state directory under the image's
// name, where a restart finds it.
type fullSink struct {
	staging
	name, path, state string

	// mu guards what Close of the store and the caller both touch.
	mu       sync.Mutex
	detached bool
	writer   *writer // of the open, checked state
	ready    bool
	inDoubt  bool // the directory may be the state's
}

// CheckFile verifies one file; see snapshot.Sink. Files that Prepare moved are
// checked.
func (k *fullSink) CheckFile(ctx context.Context, name string, verified bool) error {
	if moved, err := k.moved(); moved || err != nil {
		return err
	}
	return k.check(ctx, name, verified)
}

// moved tells whether an earlier Prepare made the directory.
func (k *fullSink) moved() (bool, error) {
	_, err := k.s.opts.FS.Stat(k.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Prepare makes the image's directory and opens the state in it; see
// snapshot.Sink. It takes dir away: the caller need not find it afterwards.
func (k *fullSink) Prepare(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.detached {
		return fmt.Errorf("kv: prepare image %s: %w", k.name, snapshot.ErrStale)
	}
	if k.ready {
		return nil
	}
	if err := k.prepare(ctx); err != nil {
		return fmt.Errorf("kv: prepare image %s in group %d: %w", k.name, k.s.opts.Group, err)
	}
	k.ready = true
	return nil
}

func (k *fullSink) prepare(ctx context.Context) error {
	moved, err := k.moved()
	if err != nil {
		return err
	}
	switch {
	case k.m.GetKind() == snapshotv1.Kind_KIND_RECORDS:
		return k.ingest(ctx, moved)
	case !moved:
		if err := k.move(ctx); err != nil {
			return err
		}
	}
	return k.open((*database).open)
}

// move makes the directory with the files the state's.
func (k *fullSink) move(ctx context.Context) error {
	if err := k.complete(ctx); err != nil {
		return err
	}
	filesystem := k.s.opts.FS
	names, err := filesystem.List(k.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if k.files[name] == nil {
			// What an earlier attempt left would lie in the state for ever.
			if err := filesystem.RemoveAll(filesystem.PathJoin(k.dir, name)); err != nil {
				return err
			}
		}
	}
	if err := syncDir(filesystem, k.dir); err != nil {
		return err
	}
	if err := filesystem.Rename(k.dir, k.path); err != nil {
		return err
	}
	// The new name first: at no time is neither durable.
	if err := syncDir(filesystem, k.state); err != nil {
		return err
	}
	return syncDir(filesystem, filesystem.PathDir(k.dir))
}

// ingest makes a database of records. Its applied record comes with the tables,
// in one step, so one that has it is whole: whether an earlier Prepare got so
// far tells the record.
func (k *fullSink) ingest(ctx context.Context, exists bool) error {
	if exists {
		err := k.open((*database).open)
		if err == nil || k.complete(ctx) != nil {
			return err
		}
		// Half made; the tables are still there.
	}
	if err := k.complete(ctx); err != nil {
		return err
	}
	record, err := k.readAppliedFile()
	if err != nil {
		return err
	}
	spans, err := k.tableSpans()
	if err != nil {
		return err
	}
	if err := disjoint(spans); err != nil {
		return err
	}
	return k.open(func(d *database) error {
		if err := d.create(); err != nil {
			return err
		}
		paths, err := k.ingestPaths(d.pebbleOptions(), &record)
		if err == nil {
			err = syncDir(k.s.opts.FS, k.state)
		}
		if err == nil {
			err = d.db.Ingest(ctx, paths)
		}
		if err != nil {
			return errors.Join(err, d.db.Close())
		}
		return nil
	})
}

// open opens the staged state and checks it. Where the store has none that is
// sound it is closed again: the store cannot use it, another one will.
func (k *fullSink) open(open func(*database) error) error {
	release, err := k.s.borrowShared()
	if err != nil {
		return err
	}
	d := k.s.newDatabase(k.path, k.name)
	var w *writer
	err = d.guard(func() error {
		if err := k.room(); err != nil {
			return err
		}
		if err := open(d); err != nil {
			return err
		}
		var err error
		w, err = k.s.loadWriter(d)
		if err == nil {
			err = k.matches(&w.applied)
		}
		if err == nil && uint32(d.db.FormatMajorVersion()) > stateFormat() {
			err = unfitf("its format is %d", d.db.FormatMajorVersion())
		}
		if err != nil {
			return errors.Join(err, d.db.Close())
		}
		return nil
	})
	if err == nil && (k.s.failure() != nil || k.s.current.Load() == nil) {
		err = d.guard(d.db.Close)
		w = nil
	}
	if unlock := d.unlock.Load(); d.failure() != nil && unlock != nil {
		// It is touched no more, and the next Prepare opens the directory again.
		err = errors.Join(err, (*unlock)())
	}
	if err = errors.Join(err, release()); err != nil {
		if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrStateMissing) || pebble.IsCorruptionError(err) {
			err = damagedf("%v", err)
		}
		return err
	}
	k.writer = w
	return nil
}

// room wants space for what opening a database writes. Pebble calls a MANIFEST
// that it cannot write fatal and leaves goroutines that hang: better to see a
// full disk before.
func (k *fullSink) room() error {
	fs := k.s.opts.FS
	path := fs.PathJoin(k.state, k.name+".room")
	err := writeFile(fs, path, make([]byte, openRoom))
	if removeErr := fs.Remove(path); err == nil {
		err = removeErr
	}
	return err
}

// detach closes the staged state, if it is open.
func (k *fullSink) detach() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.detached, k.ready = true, false
	w := k.writer
	k.writer = nil
	if w == nil || w.d.failure() != nil {
		return nil
	}
	return w.d.guard(w.db.Close)
}

// Discard removes what Prepare made; see snapshot.Sink.
func (k *fullSink) Discard() error {
	k.s.staged.remove(k.m.GetImage(), k)
	err := k.detach()
	if k.inDoubt {
		return err
	}
	return errors.Join(err, k.s.opts.FS.RemoveAll(k.path))
}

// borrowShared makes sure that the store has shared resources until release is
// called: one that did not open may have none.
func (s *Store) borrowShared() (release func() error, err error) {
	if s.current.Load() != nil {
		return func() error { return nil }, nil
	}
	if s.shared == nil || s.ownShared {
		return nil, fmt.Errorf("%w: staging without an open state needs Options.Shared", ErrNotOpen)
	}
	if err := s.shared.join(s); err != nil {
		return nil, err
	}
	return func() error { s.shared.leave(s); return nil }, nil
}

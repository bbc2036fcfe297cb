package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// restoreGap is how far the index of a group jumps when it is restored: what the
// old history had, or still has somewhere, beyond the archive is given no number a
// second time. At a million entries a second it is an hour's worth.
const restoreGap = 1 << 32

// maxRestoreIndex keeps revisions, index << 16, within 64 bits.
const maxRestoreIndex = 1 << 47

// RestoreOptions configures Restore.
type RestoreOptions struct {
	// Dir is the directory of the node to make: absent, or empty. Required.
	Dir string
	// FS is the file system Dir lives on. nil: the operating system's.
	FS vfs.FS
	// Node is the name of the node, Address where its peers will reach it.
	// Required.
	Node, Address string
	// Archive is read to its end. Required.
	Archive io.Reader
	// NewStateMachine makes the state machine of a group, as Options.
	// NewStateMachine does. It must be a Rebaser and a snapshot.Stager. Required.
	NewStateMachine func(group uint64) StateMachine
	// LogSegmentBytes is as in Options. 0: its default.
	LogSegmentBytes int64
	// StartOver removes what an interrupted Restore left in Dir. It removes nothing
	// else: a directory with anything of another origin is refused.
	StartOver bool
	// Logger takes the steps. nil: nothing is logged.
	Logger *slog.Logger
}

// EnsureDefaults puts the defaults in place of zero values.
func (o *RestoreOptions) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	setDefault(&o.LogSegmentBytes, 64<<20)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate tells the first field that is missing.
func (o *RestoreOptions) Validate() error {
	if o.Dir == "" || o.Node == "" || o.Address == "" || o.Archive == nil || o.NewStateMachine == nil {
		return errors.New("raftnode: Dir, Node, Address, Archive and NewStateMachine of a restore are required")
	}
	return nil
}

// Restored describes what Restore made.
type Restored struct {
	// Archive it was made from.
	Archive *snapshot.Archive
	// ClusterID of the new cluster, in hex, and its HistoryEpoch: one more than the
	// archive's.
	ClusterID    string
	HistoryEpoch uint64
	// Index at which each group goes on, in the order of Archive.Manifests.
	Index []uint64
	// Members of the old cluster at the time of the archive, by name.
	Members []Founder
}

// Restore makes an empty directory that of the only node of a new cluster, with
// the state of an archive: Open it then, and let others join. Nothing runs
// meanwhile.
//
// The cluster has a new random id, and a history epoch above the archive's: nodes
// of the old one are refused, and so are those of another Restore of the same
// archive. Replicas and node have new ids. Each group goes on 2^32 indexes above
// the archive's, with an empty log and journal, so that no revision comes again;
// who belonged to the old cluster is forgotten.
//
// All of it is durable on return. Until then there is a file RESTORING and no
// usable directory, and Open refuses it: after a crash call Restore again with
// StartOver, or remove the directory. After an error what was made is removed.
//
// It blocks until ctx ends. Errors: ErrRefused for a directory that is not empty
// and an archive that lacks groups, ErrLocked, snapshot.ErrCorrupt,
// snapshot.ErrNoSpace, those of the file system and of the state machines.
func Restore(ctx context.Context, o RestoreOptions) (*Restored, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &restore{o: o, dir: directory{o.FS, o.Dir}}
	// Before anything is touched: it may be somebody else's.
	if err := r.checkDirectory(); err != nil {
		return nil, err
	}
	if err := durable.MkdirAll(o.FS, o.Dir); err != nil {
		return nil, fmt.Errorf("raftnode: make the directory: %w", err)
	}
	lock, err := lockDirectory(r.dir)
	if err != nil {
		return nil, err
	}
	restored, err := r.locked(ctx)
	if err = errors.Join(err, lock.Close()); err != nil {
		return nil, err
	}
	return restored, nil
}

// restore is one Restore.
type restore struct {
	o        RestoreOptions
	dir      directory
	identity identity
}

var restoringFormat = durable.Format{Magic: [8]byte([]byte("SRRESTOR")), Version: 1, Limit: 4 << 10}

func (d directory) restoringFile() string { return d.fs.PathJoin(d.path, "RESTORING") }

// restoreDir has the files of the archive until they are the state's.
func (d directory) restoreDir() string { return d.fs.PathJoin(d.path, "restore") }

// checkDirectory refuses a directory that holds anything but an interrupted
// restore that is to be started over.
func (r *restore) checkDirectory() error {
	names, err := r.o.FS.List(r.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("raftnode: restore: %w", err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == r.o.FS.PathBase(r.dir.lockFile()) })
	restoring := slices.Contains(names, r.o.FS.PathBase(r.dir.restoringFile()))
	node := slices.Contains(names, r.o.FS.PathBase(r.dir.nodeFile()))
	switch {
	case node:
		return fmt.Errorf("%w: directory %s is that of a node already; restore into an empty one", ErrRefused, r.o.Dir)
	case restoring && !r.o.StartOver:
		return fmt.Errorf("%w: an earlier restore into %s did not finish; start it over (--force), or remove the directory", ErrRefused, r.o.Dir)
	case len(names) > 0 && !restoring:
		slices.Sort(names)
		return fmt.Errorf("%w: directory %s is not empty, it holds %s; restore into an empty one", ErrRefused, r.o.Dir, names[0])
	}
	return nil
}

// locked restores once the directory is ours alone.
func (r *restore) locked(ctx context.Context) (_ *Restored, err error) {
	if err := r.checkDirectory(); err != nil {
		return nil, err
	}
	// First of all, and alone: without it a half-made directory would look like an
	// empty one.
	if err := durable.WriteRecord(r.o.FS, r.dir.restoringFile(), restoringFormat, []byte(r.o.Node)); err != nil {
		return nil, fmt.Errorf("raftnode: restore: %w", err)
	}
	if err := r.clear(); err != nil {
		return nil, err
	}
	restored, err := r.make(ctx)
	if err != nil {
		// What cannot be removed stays together with RESTORING.
		return nil, errors.Join(err, r.undo())
	}
	return restored, nil
}

// clear removes all but RESTORING and the lock.
func (r *restore) clear() error {
	names, err := r.o.FS.List(r.o.Dir)
	if err != nil {
		return fmt.Errorf("raftnode: restore: %w", err)
	}
	for _, name := range names {
		path := r.o.FS.PathJoin(r.o.Dir, name)
		if path == r.dir.lockFile() || path == r.dir.restoringFile() {
			continue
		}
		if err := r.o.FS.RemoveAll(path); err != nil {
			return fmt.Errorf("raftnode: restore: remove what is half made: %w", err)
		}
	}
	return durable.SyncDir(r.o.FS, r.o.Dir)
}

// undo leaves the directory empty.
func (r *restore) undo() error {
	if err := r.clear(); err != nil {
		return err
	}
	return r.dir.endRestoring()
}

// endRestoring removes RESTORING.
func (d directory) endRestoring() error {
	switch err := d.fs.Remove(d.restoringFile()); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("raftnode: remove %s: %w", d.restoringFile(), err)
	}
	return durable.SyncDir(d.fs, d.path)
}

// make makes the directory; NODE comes last.
func (r *restore) make(ctx context.Context) (*Restored, error) {
	archive, err := r.extract(ctx)
	if err != nil {
		return nil, err
	}
	restored := &Restored{Archive: archive, HistoryEpoch: archive.Header.GetHistoryEpoch() + 1, Members: oldMembers(archive)}
	node := &raftv1.NodeRecord{
		Node: r.o.Node, NodeIncarnation: randomBytes(16), ClusterId: randomBytes(16), HistoryEpoch: restored.HistoryEpoch,
		// From here on a group without a log has lost it.
		Started: true,
	}
	groups := make([]uint64, len(archive.Manifests))
	for i, m := range archive.Manifests {
		groups[i] = m.GetGroup()
	}
	if err := r.identity.drawReplicas(r.dir, groups); err != nil {
		return nil, fmt.Errorf("raftnode: restore: %w", err)
	}
	var bases []Applied
	for _, m := range archive.Manifests {
		base, err := r.base(m, node)
		if err == nil {
			err = r.install(ctx, m, base)
		}
		if err != nil {
			return nil, fmt.Errorf("raftnode: restore group %d: %w", m.GetGroup(), err)
		}
		bases = append(bases, base)
		restored.Index = append(restored.Index, base.Index)
		r.o.Logger.Info("group restored", "group", m.GetGroup(), "from_index", m.GetIndex(), "index", base.Index)
	}
	if err := r.writeLog(archive, bases); err != nil {
		return nil, err
	}
	if err := r.o.FS.RemoveAll(r.dir.restoreDir()); err != nil {
		return nil, fmt.Errorf("raftnode: restore: %w", err)
	}
	if err := r.identity.writeNode(r.dir, node); err != nil {
		return nil, fmt.Errorf("raftnode: restore: %w", err)
	}
	restored.ClusterID = r.identity.clusterID()
	// It is a node from here on; Open removes the file too.
	if err := r.dir.endRestoring(); err != nil {
		r.o.Logger.Warn("the directory is complete, but a file of its making stays until the node is opened", "error", err)
	}
	return restored, nil
}

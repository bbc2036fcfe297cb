package inmemory

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// Machine is what a user writes: a state in memory. Reads of it are between the
// user's code and the machine; they run beside all methods and lock as they need.
type Machine interface {
	// Apply applies entries, as raftnode.StateMachine.Apply says: every index in
	// order, one Result per Entry, answered only from the arguments and the state.
	// It need not keep the applied record.
	Apply(entries []raftnode.Entry) ([]raftnode.Result, error)

	// Save writes the whole replicated state to w, in any form that Restore reads.
	// No Apply runs on this machine meanwhile, so it needs no view of its own; a
	// machine for which that is too long implements Snapshotter. It returns the
	// errors of w at once; w is not used after it returned.
	Save(w io.Writer) error

	// Restore fills a machine that Options.New just made from what Save wrote. It
	// is called at most once, before any Apply. r ends with io.EOF where Save
	// ended; what it reads is checked. It returns the errors of r at once.
	Restore(r io.Reader) error
}

// Snapshotter is a Machine with a cheap consistent view of its state, such as a
// copy-on-write structure. Apply then waits only for Snapshot.
type Snapshotter interface {
	Machine

	// Snapshot returns a view of the state as it is. It is called between two
	// Applies, which wait for it, and must be fast (milliseconds). Apply goes on
	// while the view is saved.
	Snapshot() (View, error)
}

// View is the state of a Snapshotter at one index.
type View interface {
	// Save writes the state of the view; as Machine.Save, but beside Apply.
	Save(w io.Writer) error

	// Release is called once, after Save or instead of it.
	Release()
}

// Options configures a StateMachine.
type Options[M Machine] struct {
	// New makes an empty machine. It is called for every opening, and beside the
	// live machine for every image that arrives. Required.
	New func() M

	// FS is the file system of the node, raftnode.Options.FS. nil: the operating
	// system's.
	FS vfs.FS

	// Schema is the version of what Save writes, from 1; raise it when an older
	// Restore could not read it. A state or an image of a higher one is refused
	// with a clear error instead of being restored. 0: 1.
	Schema uint32

	// FileBytes is the size at which a file of an image ends, from 4 KiB to 16
	// GiB: a transfer acknowledges and resumes by it, and there are at most
	// 65,535. Blocks within are at most 1 MiB. 0: 64 MiB, for states up to 4 TiB
	// compressed.
	FileBytes int64

	// Logger takes saves, restores and what went wrong beside them. nil: nothing
	// is logged.
	Logger *slog.Logger
}

const (
	defaultFileBytes = 64 << 20
	minFileBytes     = 4 << 10
	maxFileBytes     = 16 << 30
)

// EnsureDefaults puts the defaults in place of zero values.
func (o *Options[M]) EnsureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Schema == 0 {
		o.Schema = 1
	}
	if o.FileBytes == 0 {
		o.FileBytes = defaultFileBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate tells the first field that is out of range. Call it after
// EnsureDefaults.
func (o *Options[M]) Validate() error {
	switch {
	case o.New == nil:
		return errors.New("inmemory: option New is required: a function that makes an empty machine")
	case o.FileBytes < minFileBytes || o.FileBytes > maxFileBytes:
		return fmt.Errorf("inmemory: option FileBytes is %d; it must be from %d to %d", o.FileBytes, minFileBytes, int64(maxFileBytes))
	}
	return nil
}

// Errors of a StateMachine; test with errors.Is.
var (
	// ErrNotOpen: Open has not succeeded, or Close was called.
	ErrNotOpen = errors.New("inmemory: the state is not open")

	// ErrNewer: a newer release wrote the state, or its Schema is higher than
	// Options.Schema. Nothing was changed; run that release.
	ErrNewer = errors.New("inmemory: the state is of a newer release")

	// ErrRestore: the image on disk is sound and Machine.Restore refused it.
	ErrRestore = errors.New("inmemory: the machine did not restore its own image")

	// ErrTooBig: an image would need more than 65,535 files; raise
	// Options.FileBytes.
	ErrTooBig = errors.New("inmemory: the state has too many files")
)

// StateMachine makes a replicated state machine of a Machine: a
// raftnode.StateMachine that implements snapshot.Capturer and snapshot.Stager. It
// is used for one opening of a replica; raftnode.Options.NewStateMachine makes a
// new one each time it is called.
type StateMachine[M Machine] struct {
	opts Options[M]
	// staged returns the images that are staged and not installed.
	staged func() [][]byte

	dir     atomic.Pointer[string] // of the state, once Open was called
	live    atomic.Pointer[live[M]]
	durable atomic.Uint64
	closed  atomic.Bool

	// saving is held by the one save that runs.
	saving sync.Mutex
	// removals are goroutines that remove what was replaced; Close waits.
	removals sync.WaitGroup

	// mu guards the marker and which images there are. It is held for two syncs
	// at most, never while an image is written or read.
	mu   sync.Mutex
	kept *keptImage
	// doubtful images may be named by the marker after a failed move.
	doubtful []*keptImage
}

// live is a machine with its applied record.
type live[M Machine] struct {
	machine M
	// mu is held by Apply, and while a consistent view of the machine is taken.
	mu      sync.Mutex
	applied raftnode.Applied
}

// New returns a state machine that is not open.
func New[M Machine](opts Options[M]) (*StateMachine[M], error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &StateMachine[M]{opts: opts, staged: func() [][]byte { return nil }}, nil
}

var (
	_ raftnode.StateMachine = (*StateMachine[Machine])(nil)
	_ snapshot.Capturer     = (*StateMachine[Machine])(nil)
	_ snapshot.Stager       = (*StateMachine[Machine])(nil)
)

// Machine returns the machine to read from; any goroutine may call it at any
// time. An installed image replaces it, so take it after raftnode's Group.Read
// returned, and anew for each read. It is the zero M where Open did not succeed.
func (s *StateMachine[M]) Machine() M {
	if l := s.live.Load(); l != nil {
		return l.machine
	}
	var none M
	return none
}

// KeepStaged sets the function that returns the ids of the images that are staged
// and not installed; Open does not sweep their files. raftnode calls it before
// Open.
func (s *StateMachine[M]) KeepStaged(staged func() [][]byte) { s.staged = staged }

// Apply has the machine apply entries; see raftnode.StateMachine. It waits for a
// view of the state that is being taken.
func (s *StateMachine[M]) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	l := s.live.Load()
	if l == nil {
		return nil, ErrNotOpen
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	results, err := l.machine.Apply(entries)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		l.applied = entries[i].Applied(l.applied.Membership)
	}
	return results, nil
}

// DurableApplied returns the index of the newest kept image; see
// raftnode.StateMachine.
func (s *StateMachine[M]) DurableApplied() uint64 { return s.durable.Load() }

// Close ends a save that runs, and waits for it and for what is being removed. It
// saves nothing: the raft log has what is not durable. Reads of the machine go on
// as long as they hold it.
func (s *StateMachine[M]) Close() error {
	s.mu.Lock()
	s.closed.Store(true) // no removal begins any more
	s.mu.Unlock()
	s.saving.Lock()
	defer s.saving.Unlock()
	s.removals.Wait()
	return nil
}

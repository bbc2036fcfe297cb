package testcluster

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// errDisk is the error of an injected sync failure.
var errDisk = errors.New("testcluster: injected disk error")

// logDirName is the directory of the raft log in a node's directory.
const logDirName = "log"

// disk is a node's disk from one crash to the next: a memory file system that
// knows what was synced, and the errors it is to return.
type disk struct {
	mem *vfs.MemFS
	// fs is what the node sees.
	fs vfs.FS

	mu sync.Mutex
	// failSync counts down the syncs of log data until one fails; 0: none does.
	failSync int
	// onSyncError is called when it does, before the node hears of it.
	onSyncError func()
	// full: no file of the log can be made or grow.
	full bool
	// before, if set, is called before every operation.
	before func(errorfs.Op)

	// Where a crash came between a write and a sync of the log: the disk with
	// none and with all of what was written. What is left must be one of them.
	none, all *vfs.MemFS
}

// remember notes what a crash of the old disk could leave.
func (d *disk) remember(old *disk) {
	d.none = old.mem.CrashClone(vfs.CrashCloneCfg{})
	d.all = old.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: newRandom(0, 0)})
}

// watch has every operation announced.
func (d *disk) watch(before func(errorfs.Op)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = before
}

// diskSpace is what a disk reports when it is not full.
const diskSpace = 1 << 30

func newDisk(mem *vfs.MemFS) *disk {
	d := &disk{mem: mem}
	d.fs = errorfs.Wrap(mem, errorfs.InjectorFunc(d.inject))
	d.setFull(false, false)
	return d
}

// isStagedFile tells whether a path is of an image that arrives.
func isStagedFile(path string) bool { return strings.Contains(path, "/inbox/") }

// isLogFile tells whether a path is a segment or a spare file of the log.
func isLogFile(path string) bool { return strings.Contains(path, "/"+logDirName+"/") }

// inject decides whether an operation fails.
//
// Only files of the log fail. Pebble's own are left alone: a failed write of its
// MANIFEST leaves goroutines behind that never end, by its design, and while a
// failed flush backs off it holds a mutex, which stops a bubble's time.
func (d *disk) inject(op errorfs.Op) error {
	d.mu.Lock()
	before := d.before
	d.mu.Unlock()
	if before != nil {
		before(op)
	}
	if !isLogFile(op.Path) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch op.Kind {
	case errorfs.OpFileSyncData:
		if d.failSync == 0 {
			return nil
		}
		if d.failSync--; d.failSync > 0 {
			return nil
		}
		if d.onSyncError != nil {
			d.onSyncError()
		}
		return errDisk
	case errorfs.OpCreate, errorfs.OpFileWrite:
		// Segments are overwritten in place (WriteAt): that needs no space.
		if d.full {
			return syscall.ENOSPC
		}
	}
	return nil
}

// failSyncAt has the n-th sync of log data from now fail, n >= 1; 0 takes it back.
func (d *disk) failSyncAt(n int, onError func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failSync, d.onSyncError = n, onError
}

// setFull has the disk report little space (low), and refuse to grow files of
// the log (full).
func (d *disk) setFull(low, full bool) {
	available := uint64(diskSpace)
	if low {
		available = 4 << 10
	}
	d.mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: available, TotalBytes: 2 * diskSpace, UsedBytes: 2*diskSpace - available})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// crash returns what a crash at this moment leaves. It takes nothing from d,
// which the old run may go on using.
func (d *disk) crash(kind crashKind, r *rand.Rand) (*disk, error) {
	clone := func(percent int) *vfs.MemFS {
		return d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
	}
	switch kind {
	case crashHalf:
		return newDisk(clone(50)), nil
	case crashKill:
		return newDisk(clone(100)), nil
	case crashTorn:
		old, written := clone(0), clone(100)
		if err := tear(old, written, "/", r); err != nil {
			return nil, err
		}
		return newDisk(old), nil
	default:
		return newDisk(clone(0)), nil
	}
}

// sectorBytes is what a disk writes as a whole.
const sectorBytes = 512

// tear writes into old some sectors of the log and of staged files that written
// has and old has not: a crash while unsynced data was on its way to the disk.
func tear(old, written *vfs.MemFS, dir string, r *rand.Rand) error {
	names, err := old.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := old.PathJoin(dir, name)
		info, err := old.Stat(path)
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			err = tear(old, written, path, r)
		case isLogFile(path):
			err = tearFile(old, written, path, r)
		case isStagedFile(path):
			err = tearTail(old, written, path, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func tearFile(old, written *vfs.MemFS, path string, r *rand.Rand) error {
	before, err := old.UnsafeGetFileDataBuffer(path)
	if err != nil {
		return err
	}
	after, err := written.UnsafeGetFileDataBuffer(path)
	if err != nil || len(after) != len(before) {
		return nil // another file had that name, or it was not whole yet
	}
	var torn []int // sectors that differ, then those that were written in time
	for at := 0; at < len(before); at += sectorBytes {
		end := min(at+sectorBytes, len(before))
		if string(before[at:end]) != string(after[at:end]) {
			torn = append(torn, at)
		}
	}
	if r.IntN(3) == 0 {
		torn = slices.DeleteFunc(torn, func(int) bool { return r.IntN(2) == 0 })
	} else {
		// Disks mostly write in order.
		torn = torn[:r.IntN(len(torn)+1)]
	}
	if len(torn) == 0 {
		return nil
	}
	f, err := old.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	for _, at := range torn {
		if _, err := f.WriteAt(after[at:min(at+sectorBytes, len(after))], int64(at)); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// tearTail leaves a part of what was appended to a file and not synced, with
// zeros in place of some of its sectors: a file system may make a file longer
// before its data is on the disk.
func tearTail(old, written *vfs.MemFS, path string, r *rand.Rand) error {
	before, err := old.UnsafeGetFileDataBuffer(path)
	if err != nil {
		return err
	}
	after, err := written.UnsafeGetFileDataBuffer(path)
	if err != nil || len(after) <= len(before) || !bytes.HasPrefix(after, before) {
		return nil // another file had that name, or nothing was appended
	}
	synced := len(before)
	tail := bytes.Clone(after[synced : synced+1+r.IntN(len(after)-synced)])
	for at := 0; at < len(tail); {
		end := min(at+sectorBytes-(synced+at)%sectorBytes, len(tail))
		if r.IntN(4) == 0 {
			clear(tail[at:end])
		}
		at = end
	}
	f, err := old.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(tail, int64(synced))
	return errors.Join(err, f.Sync(), f.Close())
}

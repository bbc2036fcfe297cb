package raftlog

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var errDisk = errors.New("the disk is on fire")

// TestSyncError fails each sync of log data in turn: that Append and all later
// ones fail, reads go on, and what was synced before is there afterwards.
func TestSyncError(t *testing.T) {
	for _, op := range []string{"syncdata", "writeat"} {
		for failAt := int32(2); ; failAt++ {
			var n atomic.Int32
			mem := vfs.NewCrashableMem()
			fs := hookFS{mem, func(o, name string) error {
				if o == op && n.Add(1) == failAt {
					return errDisk
				}
				return nil
			}}
			l, err := Open(testOptions(fs))
			if err != nil {
				if !errors.Is(err, errDisk) {
					t.Fatal(err)
				}
				continue
			}
			m := model{}
			var failed error
			for i := range uint64(30) {
				u := Update{Group: 1 + i%2, Entries: entries(1, 1+5*(i/2), 5, 1000)}
				err := l.Append([]Update{u}, true)
				if failed != nil {
					if !errors.Is(err, ErrFailed) || !errors.Is(err, errDisk) {
						t.Fatalf("%s %d: a failed log answers %v", op, failAt, err)
					}
					continue
				}
				if failed = err; err == nil {
					m.apply(u)
				}
			}
			if failed == nil {
				if err := l.Close(); err != nil {
					if !errors.Is(err, ErrFailed) || !errors.Is(err, errDisk) {
						t.Fatal(err)
					}
					continue
				}
				if failAt < 20 {
					t.Fatalf("only %d operations %s", failAt, op)
				}
				break
			}
			if !errors.Is(failed, ErrFailed) || !errors.Is(failed, errDisk) || !strings.Contains(failed.Error(), testDir) {
				t.Fatalf("%s %d: %v", op, failAt, failed)
			}
			if err := l.ProveEnd(); !errors.Is(err, ErrFailed) {
				t.Fatal(err)
			}
			if _, err := l.Group(1).Entries(1, 2, 0); len(m) > 0 && err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = mustOpen(t, testOptions(mem.CrashClone(vfs.CrashCloneCfg{})))
			checkState(t, l, m)
			mustClose(t, l)
		}
	}
}

// TestNoSpace fills the disk at each operation that makes a segment: the Append
// writes nothing and goes through unchanged when there is space.
func TestNoSpace(t *testing.T) {
	for _, op := range []string{"create", "write", "sync", "open", "rename"} {
		t.Run(op, func(t *testing.T) {
			var full atomic.Bool
			mem := vfs.NewCrashableMem()
			fs := hookFS{mem, func(o, name string) error {
				if full.Load() && o == op {
					return syscall.ENOSPC
				}
				return nil
			}}
			l := mustOpen(t, testOptions(fs))
			m := model{}
			full.Store(true)
			refused := 0
			for i := range uint64(40) {
				u := Update{Group: 1 + i%3, Entries: entries(1, 1+5*(i/3), 5, 1500), HardState: hard(1, 1, i)}
				before := snapshotDir(t, mem)
				err := l.Append([]Update{u}, true)
				if err != nil {
					if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrFailed) {
						t.Fatal(err)
					}
					refused++
					checkState(t, l, m)
					for name, b := range snapshotDir(t, mem) {
						if _, segment := parseSegmentName(name); segment && before[name] != b {
							t.Fatalf("a refused append changed %s", name)
						}
					}
					clone := mustOpen(t, testOptions(mem.CrashClone(vfs.CrashCloneCfg{})))
					checkState(t, clone, m)
					mustClose(t, clone)
					full.Store(false)
					if err := l.Append([]Update{u}, true); err != nil {
						t.Fatalf("with space again: %v", err)
					}
					full.Store(true)
				}
				m.apply(u)
				checkState(t, l, m)
			}
			if refused == 0 {
				t.Fatal("the disk was never full")
			}
			full.Store(false)
			mustClose(t, l)
			l = mustOpen(t, testOptions(mem))
			checkState(t, l, m)
			mustClose(t, l)
		})
	}
}

// TestSegmentError: any other error while a segment is made fails the log.
func TestSegmentError(t *testing.T) {
	for _, op := range []string{"create", "write", "sync", "open", "rename"} {
		var broken atomic.Bool
		mem := vfs.NewMem()
		l := mustOpen(t, testOptions(hookFS{mem, func(o, name string) error {
			if broken.Load() && o == op {
				return errDisk
			}
			return nil
		}}))
		broken.Store(true)
		m := model{}
		var err error
		for i := uint64(0); err == nil && i < 40; i++ {
			u := Update{Group: 1, Entries: entries(1, 1+5*i, 5, 2000)}
			if err = l.Append([]Update{u}, true); err == nil {
				m.apply(u)
			}
		}
		if !errors.Is(err, ErrFailed) || !errors.Is(err, errDisk) {
			t.Fatalf("%s: %v", op, err)
		}
		mustClose(t, l)
		l = mustOpen(t, testOptions(mem))
		checkState(t, l, m)
		mustClose(t, l)
	}
}

// TestNoSpaceAtOpen: a new log on a full disk says so; an old one opens.
func TestNoSpaceAtOpen(t *testing.T) {
	mem := vfs.NewMem()
	full := hookFS{mem, func(op, name string) error {
		if op == "create" {
			return syscall.ENOSPC
		}
		return nil
	}}
	if _, err := Open(testOptions(full)); !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, testOptions(mem)))
	l := mustOpen(t, testOptions(full))
	mustAppend(t, l, true, Update{Group: 1, HardState: hard(1, 1, 0)})
	mustClose(t, l)
}

// TestNoSpaceInSegment: a disk that is full in the middle of a segment whose
// space was taken does not keep its word; nobody knows what was written.
func TestNoSpaceInSegment(t *testing.T) {
	var full atomic.Bool
	l := mustOpen(t, testOptions(hookFS{vfs.NewMem(), func(op, name string) error {
		if full.Load() && op == "writeat" {
			return syscall.ENOSPC
		}
		return nil
	}}))
	full.Store(true)
	err := l.Append([]Update{{Group: 1, HardState: hard(1, 1, 0)}}, false)
	if !errors.Is(err, ErrFailed) || errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	full.Store(false)
	if err := l.Append(nil, true); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	mustClose(t, l)
}

// TestFreeingFails: a segment that cannot be deleted stays in line, and the log
// goes on.
func TestFreeingFails(t *testing.T) {
	var broken atomic.Bool
	mem := vfs.NewMem()
	l := mustOpen(t, testOptions(hookFS{mem, func(op, name string) error {
		if broken.Load() && (op == "remove" || op == "rename" && strings.Contains(name, sparePrefix)) {
			return errDisk
		}
		return nil
	}}))
	m := model{}
	broken.Store(true)
	for i := range uint64(60) {
		if i == 40 {
			broken.Store(false)
		}
		u := Update{Group: 1, Marker: &Marker{5 * i, min(i, 1)}, Entries: entries(1, 1+5*i, 5, 2000)}
		mustAppend(t, l, true, u)
		m.apply(u)
	}
	checkState(t, l, m)
	mustClose(t, l)
	l = mustOpen(t, testOptions(mem))
	checkState(t, l, m)
	if l.DiskBytes() > 4*MinSegmentBytes {
		t.Fatalf("%d bytes on disk", l.DiskBytes())
	}
	mustClose(t, l)
}

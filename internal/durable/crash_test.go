package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// crashEach returns a file system over mem that calls check with what a crash
// just before each of its operations can leave.
func crashEach(mem *vfs.MemFS, check func(op errorfs.Op, after *vfs.MemFS)) vfs.FS {
	seed := uint64(0)
	return errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		check(op, mem.CrashClone(vfs.CrashCloneCfg{}))
		for range 16 {
			seed++
			check(op, mem.CrashClone(vfs.CrashCloneCfg{
				UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(1, seed)),
			}))
		}
		return nil
	}))
}

func TestCrashLeavesOldOrNew(t *testing.T) {
	// Several blocks of the memory file system, so that a torn write shows.
	contents := [][]byte{
		bytes.Repeat([]byte("a"), 5*4096), bytes.Repeat([]byte("b"), 100), nil, bytes.Repeat([]byte("c"), 9000),
	}
	mem := vfs.NewCrashableMem()
	if err := MkdirAll(mem, "/data/node"); err != nil {
		t.Fatal(err)
	}
	const path = "/data/node/NODE"
	format := Format{Magic: [8]byte([]byte("SRTEST01")), Version: 1, Limit: 1 << 20}

	var old, next []byte
	existed := false // the write of old has returned
	operations := 0
	outcomes := map[string]int{}
	fsys := crashEach(mem, func(op errorfs.Op, after *vfs.MemFS) {
		operations++
		got, _, err := ReadRecord(after, path, format)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !existed:
			outcomes["absent"]++
		case err != nil:
			t.Errorf("crash before %v: %v", op, err)
		case existed && bytes.Equal(got, old):
			outcomes["old"]++
		case bytes.Equal(got, next):
			outcomes["new"]++
		default:
			t.Errorf("crash before %v: %d bytes that were never written", op, len(got))
		}
	})
	for i, content := range contents {
		next = content
		if err := WriteRecord(fsys, path, format, content); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
		old, existed = content, true
		got, version, err := ReadRecord(mem.CrashClone(vfs.CrashCloneCfg{}), path, format)
		if err != nil || version != 1 || !bytes.Equal(got, content) {
			t.Fatalf("write %d is not durable: version %d, %d bytes, %v", i, version, len(got), err)
		}
	}
	// The test is worth something only if the crashes fell on all sides.
	if operations < 100 || outcomes["absent"] == 0 || outcomes["old"] == 0 || outcomes["new"] == 0 {
		t.Errorf("%d crashes, outcomes %v", operations, outcomes)
	}
}

func TestCrashAfterMkdirAll(t *testing.T) {
	mem := vfs.NewCrashableMem()
	if err := MkdirAll(mem, "a/b/c"); err != nil {
		t.Fatal(err)
	}
	if info, err := mem.CrashClone(vfs.CrashCloneCfg{}).Stat("a/b/c"); err != nil || !info.IsDir() {
		t.Errorf("a/b/c is not durable: %v", err)
	}
	// Made by somebody who did not sync, as after a kill: made good.
	if err := mem.MkdirAll("a/b/d", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll(mem, "a/b/d"); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.CrashClone(vfs.CrashCloneCfg{}).Stat("a/b/d"); err != nil {
		t.Errorf("a/b/d is not durable: %v", err)
	}
}

// TestMkdirAllAfterFailure lets MkdirAll fail at each of its operations; the
// next call must make all of it durable.
func TestMkdirAllAfterFailure(t *testing.T) {
	injected := errors.New("injected")
	for failAt := 0; ; failAt++ {
		mem := vfs.NewCrashableMem()
		operation, failed := 0, false
		fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
			operation++
			if operation-1 == failAt {
				failed = true
				return injected
			}
			return nil
		}))
		err := MkdirAll(fsys, "a/b/c")
		if !failed {
			if err != nil || failAt < 9 {
				t.Fatalf("after %d operations: %v", failAt, err)
			}
			return
		}
		if !errors.Is(err, injected) {
			t.Fatalf("operation %d failed and MkdirAll returned %v", failAt, err)
		}
		if err := MkdirAll(fsys, "a/b/c"); err != nil {
			t.Fatalf("operation %d: second call: %v", failAt, err)
		}
		if _, err := mem.CrashClone(vfs.CrashCloneCfg{}).Stat("a/b/c"); err != nil {
			t.Fatalf("operation %d: not durable after the second call: %v", failAt, err)
		}
	}
}

// TestWriteFileFailure lets WriteFile fail at each of its operations: the error
// comes back, the file is whole, and no temporary file stays where the failure
// left a way to remove it.
func TestWriteFileFailure(t *testing.T) {
	injected := errors.New("injected")
	for failAt := 0; ; failAt++ {
		mem := vfs.NewCrashableMem()
		if err := WriteFile(mem, "f", []byte("old")); err != nil {
			t.Fatal(err)
		}
		operation, failed := 0, false
		fsys := errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
			operation++
			if operation-1 == failAt {
				failed = true
				return injected
			}
			return nil
		}))
		err := WriteFile(fsys, "f", []byte("new"))
		if !failed {
			if err != nil || failAt < 5 {
				t.Fatalf("after %d operations: %v", failAt, err)
			}
			return
		}
		if !errors.Is(err, injected) {
			t.Fatalf("operation %d failed and WriteFile returned %v", failAt, err)
		}
		got, err := ReadFile(mem, "f", 10)
		if err != nil || (string(got) != "old" && string(got) != "new") {
			t.Errorf("operation %d: %q, %v", failAt, got, err)
		}
		names, err := mem.List("/")
		if err != nil || fmt.Sprint(names) != "[f]" {
			t.Errorf("operation %d left %v, %v", failAt, names, err)
		}
	}
}

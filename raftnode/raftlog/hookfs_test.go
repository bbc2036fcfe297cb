package raftlog

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// hookFS calls hook before every operation that changes or syncs something. An
// error of the hook is returned in place of the operation.
type hookFS struct {
	vfs.FS
	hook func(op, name string) error
}

func (f hookFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.hook("create", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, c)
	return f.wrap(file, name, err)
}

func (f hookFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := f.hook("open", name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(name, c, opts...)
	return f.wrap(file, name, err)
}

func (f hookFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(file, name, err)
}

func (f hookFS) wrap(file vfs.File, name string, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return hookFile{file, f.hook, name}, nil
}

func (f hookFS) Remove(name string) error {
	if err := f.hook("remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f hookFS) Rename(a, b string) error {
	if err := f.hook("rename", b); err != nil {
		return err
	}
	return f.FS.Rename(a, b)
}

func (f hookFS) MkdirAll(name string, mode os.FileMode) error {
	if err := f.hook("mkdir", name); err != nil {
		return err
	}
	return f.FS.MkdirAll(name, mode)
}

type hookFile struct {
	vfs.File
	hook func(op, name string) error
	name string
}

func (f hookFile) Write(b []byte) (int, error) {
	if err := f.hook("write", f.name); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f hookFile) WriteAt(b []byte, offset int64) (int, error) {
	if err := f.hook("writeat", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(b, offset)
}

func (f hookFile) Sync() error {
	if err := f.hook("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f hookFile) SyncData() error {
	if err := f.hook("syncdata", f.name); err != nil {
		return err
	}
	return f.File.SyncData()
}

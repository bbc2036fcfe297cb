package server

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var errBrokenDisk = errors.New("broken disk")

// failingFS fails every write and sync of log files once broken is set.
type failingFS struct {
	vfs.FS
	broken atomic.Bool
}

func (f *failingFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.Contains(name, "/log/") {
		return file, err
	}
	return &failingFile{File: file, fs: f}, nil
}

func (f *failingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, category)
	return f.wrap(name, file, err)
}

func (f *failingFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.Open(name, opts...)
	return f.wrap(name, file, err)
}

func (f *failingFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, category, opts...)
	return f.wrap(name, file, err)
}

func (f *failingFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(oldname, newname, category)
	return f.wrap(newname, file, err)
}

type failingFile struct {
	vfs.File
	fs *failingFS
}

func (f *failingFile) check() error {
	if f.fs.broken.Load() {
		return errBrokenDisk
	}
	return nil
}

func (f *failingFile) Write(p []byte) (int, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *failingFile) WriteAt(p []byte, offset int64) (int, error) {
	if err := f.check(); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, offset)
}

func (f *failingFile) Sync() error {
	if err := f.check(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *failingFile) SyncData() error {
	if err := f.check(); err != nil {
		return err
	}
	return f.File.SyncData()
}

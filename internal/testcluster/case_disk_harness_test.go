package testcluster

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// bucket lets some bytes a second through, in order of arrival. All files of a
// disk share one.
type bucket struct {
	rate atomic.Int64 // bytes a second; 0: as fast as it goes

	mu   sync.Mutex
	free time.Time // when what was let in so far is through
}

// take takes the time that n bytes take.
func (b *bucket) take(n int) {
	rate := b.rate.Load()
	if rate <= 0 || n == 0 {
		return
	}
	b.mu.Lock()
	now := time.Now()
	if b.free.Before(now) {
		b.free = now
	}
	b.free = b.free.Add(time.Duration(n) * time.Second / time.Duration(rate))
	wait := b.free.Sub(now)
	b.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	<-timer.C
}

// slowDisk is a disk whose writes take their time.
type slowDisk struct {
	vfs.FS
	bucket *bucket
	slow   func(path string) bool
}

// isBulkOrLog: tables, files of images on their way, and the raft log. A file
// that Pebble writes under its own lock must not wait: a bubble's time stands
// still then.
func isBulkOrLog(path string) bool {
	return isLogFile(path) || strings.HasSuffix(path, ".sst") || isIncoming(path)
}

// isIncoming tells the files of an image that arrives.
func isIncoming(path string) bool {
	return strings.Contains(path, "/inbox/") && !strings.HasSuffix(path, "session.log")
}

func (d *slowDisk) wrap(path string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &slowFile{f, d, path}, nil
}

func (d *slowDisk) Create(path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(path, c)
	return d.wrap(path, f, err)
}

func (d *slowDisk) OpenReadWrite(path string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.OpenReadWrite(path, c, o...)
	return d.wrap(path, f, err)
}

func (d *slowDisk) ReuseForWrite(old, path string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(old, path, c)
	return d.wrap(path, f, err)
}

type slowFile struct {
	vfs.File
	disk *slowDisk
	path string
}

// wait takes the time of a write, if the disk is slow by now.
func (f *slowFile) wait(n int) {
	if f.disk.slow(f.path) {
		f.disk.bucket.take(n)
	}
}

func (f *slowFile) Write(p []byte) (int, error) {
	f.wait(len(p))
	return f.File.Write(p)
}

func (f *slowFile) WriteAt(p []byte, at int64) (int, error) {
	f.wait(len(p))
	return f.File.WriteAt(p, at)
}

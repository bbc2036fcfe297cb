package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// dataSync makes a file's content durable, as the raft log does.
func dataSync(file *os.File) error { return unix.Fdatasync(int(file.Fd())) }

// dropCache makes the system forget what it has of a file in memory, so that it
// is read from the disk.
func dropCache(file *os.File) error {
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

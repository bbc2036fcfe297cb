package bench

import (
	"os"
	"syscall"
)

// dataSync makes a file's content durable, as the raft log does.
func dataSync(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }

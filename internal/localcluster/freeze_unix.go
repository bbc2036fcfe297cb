//go:build unix

package localcluster

import (
	"os"
	"syscall"
)

// Signals that freeze a process and let it go on.
func freezeSignals() (pause, resume os.Signal, ok bool) {
	return syscall.SIGSTOP, syscall.SIGCONT, true
}

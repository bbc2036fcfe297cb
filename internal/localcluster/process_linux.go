package localcluster

import "syscall"

// processAttributes ties a node to its parent: it dies with it, even if the
// parent is killed. A group of its own keeps a terminal's Ctrl-C away from it.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

//go:build !linux

package localcluster

import "syscall"

// processAttributes leaves a node in its parent's process group, so that a
// terminal's Ctrl-C reaches it even if the parent is gone.
func processAttributes() *syscall.SysProcAttr { return nil }

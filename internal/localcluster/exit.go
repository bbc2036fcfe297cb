package localcluster

import (
	"fmt"
	"strings"
	"syscall"
)

// ExitError is a node that ended when it should run.
type ExitError struct {
	Node string
	// Code is the exit code; -1 if a signal ended the process.
	Code int
	// Log is the end of what it printed.
	Log string
}

// Error tells all of it.
func (e *ExitError) Error() string {
	return fmt.Sprintf("node %s ended with exit code %d%s", e.Node, e.Code, e.Log)
}

// portTaken tells that another process sits on one of the node's ports.
func (e *ExitError) portTaken() bool {
	// The code of a failed start says not why; this text is the system's.
	return strings.Contains(e.Log, syscall.EADDRINUSE.Error())
}

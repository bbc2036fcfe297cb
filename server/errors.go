package server

import (
	"errors"
	"fmt"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// ErrListen is matched by every *ListenError.
var ErrListen = errors.New("server: cannot listen")

// ErrStopped is the error of a server whose Close or Shutdown was called.
var ErrStopped = errors.New("server: stopped")

// ListenError tells which address could not be listened on. It matches
// ErrListen and unwraps to the network's error.
type ListenError struct {
	// Key of the config that names the address.
	Key string
	// Address that was tried.
	Address string
	// Err is the network's error.
	Err error
}

// Error names key, address and cause.
func (e *ListenError) Error() string {
	return fmt.Sprintf("cannot listen on %s (%s): %v; stop what uses that port, or choose another address", e.Address, e.Key, e.Err)
}

// Unwrap returns the network's error.
func (e *ListenError) Unwrap() error { return e.Err }

// Is makes a ListenError match ErrListen.
func (e *ListenError) Is(target error) bool { return target == ErrListen }

// Kind sorts the errors of Open, and of a failed server, by what an operator
// does about them.
type Kind int

const (
	// KindOther is everything that has no kind of its own.
	KindOther Kind = iota
	// KindConfig: the configuration is wrong; nothing was done.
	KindConfig
	// KindListen: an address could not be listened on; nothing was done.
	KindListen
	// KindLocked: another process has the data directory open.
	KindLocked
	// KindRefused: the data directory does not go with this node or cluster.
	KindRefused
	// KindVersion: a newer release wrote the data directory.
	KindVersion
	// KindDamaged: the data directory lost data or holds damaged files.
	KindDamaged
)

// KindOf returns the kind of an error.
func KindOf(err error) Kind {
	var corrupt *raftlog.CorruptError
	switch {
	case errors.Is(err, ErrConfig):
		return KindConfig
	case errors.Is(err, ErrListen):
		return KindListen
	case errors.Is(err, raftnode.ErrLocked):
		return KindLocked
	case errors.Is(err, raftnode.ErrVersion), errors.Is(err, kv.ErrSchemaTooNew):
		return KindVersion
	case errors.Is(err, raftnode.ErrRefused):
		return KindRefused
	case errors.Is(err, raftnode.ErrDataLoss), errors.Is(err, kv.ErrCorrupt), errors.Is(err, kv.ErrStateMissing), errors.As(err, &corrupt):
		return KindDamaged
	}
	return KindOther
}

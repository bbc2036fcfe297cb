package server

import (
	"errors"
	"fmt"
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

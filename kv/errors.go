package kv

import (
	"errors"
	"fmt"
)

var (
	// ErrFailed is matched by every error of a Store whose database failed. The
	// state in memory and the database are touched no more; open a new Store
	// on the same directory, which goes on from what is durable.
	ErrFailed = errors.New("kv: the store failed")

	// ErrNotOpen tells that Open did not succeed yet or Close was called.
	ErrNotOpen = errors.New("kv: the store is not open")

	// ErrCorrupt is matched where stored bytes do not decode. The state is not
	// to be trusted: fetch it anew from another replica.
	ErrCorrupt = errors.New("kv: stored bytes do not decode")

	// ErrSchemaTooNew tells that a newer release wrote the state. Run that
	// release.
	ErrSchemaTooNew = errors.New("kv: the state was written by a newer release")

	// ErrStateMissing tells that the marker names a state directory that is
	// not there or holds no database. The replica lost its state: it is not
	// created anew, since an empty state would pass for a complete one.
	ErrStateMissing = errors.New("kv: the state named by the marker is missing")

	// ErrOutOfOrder tells that Apply was called with a gap, a repetition or a
	// split index. It is a bug in the caller; nothing of the call is kept.
	ErrOutOfOrder = errors.New("kv: entries are not the next ones of the log")

	// ErrInvalid is matched by what limit and rule checks of commands return:
	// certainly not applied, and it never will be as it stands.
	ErrInvalid = errors.New("kv: invalid command")

	// ErrPageToken tells that a page token is malformed or belongs to another
	// range or direction. Start again without one.
	ErrPageToken = errors.New("kv: page token does not belong to this range")

	// ErrReplaced tells that an image took the place of the state more than 30
	// seconds ago, or that the store closes, while a long read of the old state
	// went on. Read again.
	ErrReplaced = errors.New("kv: the state that is read was replaced")

	// ErrDigestUnknown tells that the state passed an index without a digest
	// being taken there, or that the digest was dropped for newer ones. Put a
	// new TakeDigest into the log.
	ErrDigestUnknown = errors.New("kv: no digest is kept for this index")
)

// LimitError tells which limit a command breaks. It matches ErrInvalid.
type LimitError struct {
	// What is too large or too many: "key", "value", "transaction", ...
	What string
	// Size is what was found, Limit what is allowed, in bytes unless What says
	// otherwise.
	Size, Limit int
}

// Error says what is over which limit.
func (e *LimitError) Error() string {
	return fmt.Sprintf("kv: %s of %d is over the limit of %d: make it smaller or split it", e.What, e.Size, e.Limit)
}

// Is makes a LimitError match ErrInvalid.
func (e *LimitError) Is(target error) bool { return target == ErrInvalid }

// FailedError is the error of every call on a failed Store. It matches
// ErrFailed and unwraps to what made it fail.
type FailedError struct {
	// Group whose store failed.
	Group uint64
	// Cause is the first error.
	Cause error
}

// Error names the group and the cause.
func (e *FailedError) Error() string {
	return fmt.Sprintf("kv: the store of group %d failed and is touched no more; open the node anew: %v", e.Group, e.Cause)
}

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Cause }

// Is makes a FailedError match ErrFailed.
func (e *FailedError) Is(target error) bool { return target == ErrFailed }

// invalidf returns an error that matches ErrInvalid.
func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// corruptf returns an error that matches ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

package raftlog

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrCorrupt is what every CorruptError is.
	ErrCorrupt = errors.New("raftlog: log is corrupt")

	// ErrNoSpace tells that the disk was full when a segment had to be made.
	// Nothing of the Append was written; repeat it when there is space.
	ErrNoSpace = errors.New("raftlog: no space for a new segment")

	// ErrFailed tells that a write or a sync failed, now or earlier. Nothing
	// more can be appended; what the failed Append held may or may not survive.
	// Close the log and open it anew.
	ErrFailed = errors.New("raftlog: log failed")

	// ErrClosed tells that the log is closed.
	ErrClosed = errors.New("raftlog: log is closed")

	// ErrInvalidUpdate tells that an Update breaks a rule (see Update). Nothing
	// of the Append was written. It is a bug of the caller or a limit reached.
	ErrInvalidUpdate = errors.New("raftlog: invalid update")
)

// CorruptError tells that the log does not hold what was once synced to it, and
// where. Nothing was overwritten. errors.Is(err, ErrCorrupt) holds.
type CorruptError struct {
	// File is the path of the segment, Offset the byte in it where the broken
	// batch or record begins.
	File   string
	Offset int64
	// Group whose data is affected; 0 where that is not known.
	Group uint64
	// Reason says what is wrong, Hint what to do about it.
	Reason string
	Hint   string
}

// Error says what is broken, where, and what to do.
func (e *CorruptError) Error() string {
	group := ""
	if e.Group != 0 {
		group = fmt.Sprintf(", group %d", e.Group)
	}
	return fmt.Sprintf("%v: %s at offset %d%s: %s; %s", ErrCorrupt, e.File, e.Offset, group, e.Reason, e.Hint)
}

// Unwrap makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// A damaged log must not vote or acknowledge again: it may have forgotten a vote
// or an entry that others count on.
const hintReplace = "nothing was changed; restore the file from a copy, or keep the directory aside and replace this node's replicas from the other members"

func isNoSpace(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrNoSpace) }

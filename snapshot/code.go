package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// AbortError is why the other side ended an attempt. errors.Is finds the error
// of this package that Code stands for.
type AbortError struct {
	// Code the peer gave.
	Code snapshotv1.Code
	// Message of the peer, for people.
	Message string
	// RetryAfter is how long the peer wants to be left alone; 0: it does not say.
	RetryAfter time.Duration
}

// Error tells all of it.
func (e *AbortError) Error() string {
	return fmt.Sprintf("snapshot: the peer ended the attempt: %s: %s", codeName(e.Code), e.Message)
}

// Unwrap returns the error that the code stands for, or nil.
func (e *AbortError) Unwrap() error {
	for _, c := range codeErrors() {
		if c.code == e.Code {
			return c.err
		}
	}
	return nil
}

type codeError struct {
	code snapshotv1.Code
	err  error
}

// codeErrors pairs errors with what they are on the wire, the first that fits
// decides.
func codeErrors() []codeError {
	return []codeError{
		{snapshotv1.Code_CODE_NO_SPACE, ErrNoSpace},
		{snapshotv1.Code_CODE_BUSY, ErrBusy},
		{snapshotv1.Code_CODE_BUSY, ErrGivenUp},
		{snapshotv1.Code_CODE_BUSY, ErrTooOld},
		{snapshotv1.Code_CODE_NOT_NEEDED, ErrNotNeeded},
		{snapshotv1.Code_CODE_STALE, ErrStale},
		{snapshotv1.Code_CODE_IMAGE_GONE, ErrImageGone},
		{snapshotv1.Code_CODE_CORRUPT, ErrCorrupt},
		{snapshotv1.Code_CODE_STALLED, ErrStalled},
		{snapshotv1.Code_CODE_SHUTDOWN, ErrClosed},
		{snapshotv1.Code_CODE_SHUTDOWN, context.Canceled},
		{snapshotv1.Code_CODE_SHUTDOWN, context.DeadlineExceeded},
		{snapshotv1.Code_CODE_REFUSED, ErrRefused},
		{snapshotv1.Code_CODE_REFUSED, ErrUnfit},
		{snapshotv1.Code_CODE_REFUSED, ErrProtocol},
	}
}

// codeOf returns what an error is on the wire.
func codeOf(err error) snapshotv1.Code {
	for _, c := range codeErrors() {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return snapshotv1.Code_CODE_INTERNAL
}

func codeName(c snapshotv1.Code) string {
	switch c {
	case snapshotv1.Code_CODE_BUSY:
		return "busy"
	case snapshotv1.Code_CODE_NO_SPACE:
		return "no space"
	case snapshotv1.Code_CODE_NOT_NEEDED:
		return "not needed"
	case snapshotv1.Code_CODE_STALE:
		return "stale"
	case snapshotv1.Code_CODE_IMAGE_GONE:
		return "image gone"
	case snapshotv1.Code_CODE_CORRUPT:
		return "corrupt"
	case snapshotv1.Code_CODE_STALLED:
		return "stalled"
	case snapshotv1.Code_CODE_SHUTDOWN:
		return "shutting down"
	case snapshotv1.Code_CODE_REFUSED:
		return "refused"
	case snapshotv1.Code_CODE_INTERNAL:
		return "internal error"
	}
	return fmt.Sprintf("code %d", c)
}

// messageOf returns the text of an error for the wire.
func messageOf(err error) string {
	text := err.Error()
	// Cut or foreign text may not be valid UTF-8, which would not encode.
	return strings.ToValidUTF8(text[:min(len(text), maxMessageText)], "?")
}

// diskError makes a full disk an ErrNoSpace; other errors stay as they are.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// isGone tells that a file or directory does not exist.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

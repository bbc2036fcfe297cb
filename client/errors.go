package client

import (
	"errors"
	"fmt"
	"strings"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// Sentinels for errors.Is. Those from NotLeader to SequenceTooOld mirror
// kvv1.Reason. Only ErrUncertain says that a write may be applied; an error
// that does not match it is of a write that is certainly not applied.
var (
	// ErrNotFound: there is no record with this key.
	ErrNotFound = errors.New("not found")
	// ErrClosed: the client or the writer is closed.
	ErrClosed = errors.New("closed")
	// ErrUnavailable: no node that could serve the call was reached in time.
	ErrUnavailable = errors.New("unavailable")
	// ErrNoQuorum: nodes answer, but none of them leads or knows a leader. An
	// error that matches it matches ErrUnavailable too.
	ErrNoQuorum = errors.New("no leader")
	// ErrUncertain: the write may be applied. Read before writing it again, or
	// use a client session.
	ErrUncertain = errors.New("outcome uncertain")
	// ErrNotLeader: the node that was asked does not lead the group.
	ErrNotLeader = errors.New("not leader")
	// ErrDropped: the cluster let go of the write before it was stored.
	ErrDropped = errors.New("dropped")
	// ErrOverloaded: too much is waiting on the leader.
	ErrOverloaded = errors.New("overloaded")
	// ErrNoSpace: the disk of the leader is full and no other node takes over.
	ErrNoSpace = errors.New("no space")
	// ErrFailed: the node failed, usually for its disk.
	ErrFailed = errors.New("node failed")
	// ErrInvalid: the request breaks a limit or a rule.
	ErrInvalid = errors.New("invalid")
	// ErrRefused: the node does not take calls from this client, or not in its
	// present state.
	ErrRefused = errors.New("refused")
	// ErrSessionExpired: the client session is unknown or expired.
	ErrSessionExpired = errors.New("client session expired")
	// ErrSequenceTooOld: the sequence lies below the client session's low-water
	// mark.
	ErrSequenceTooOld = errors.New("sequence too old")
)

// Outcome is what is known of a call that failed.
type Outcome int

const (
	// OutcomeNotApplied: certainly not applied.
	OutcomeNotApplied Outcome = iota
	// OutcomeUncertain: may be applied.
	OutcomeUncertain
	// OutcomeRead: the call changes nothing.
	OutcomeRead
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case OutcomeNotApplied:
		return "certainly not applied"
	case OutcomeUncertain:
		return "may be applied"
	default:
		return "nothing was to be changed"
	}
}

// Attempt is the last thing that happened with one endpoint.
type Attempt struct {
	Endpoint string
	Problem  string
}

// Error is the error of every call that reached for a node.
type Error struct {
	// Op names the call: "put", "range", ...
	Op string
	// Endpoint is the node that caused the error, if one did.
	Endpoint string
	// Reason is the node's reason; unspecified if no node gave one.
	Reason kvv1.Reason
	// Outcome is what is known of the call's effect.
	Outcome Outcome
	// Message says what happened.
	Message string
	// Attempts lists the last problem per endpoint, in order of endpoint, where
	// the call was tried in several places.
	Attempts []Attempt
	// kinds are the sentinels that the error matches beside those of its Reason
	// and Outcome.
	kinds []error
	// cause is what made the client give up: the end of a context, a transport
	// error.
	cause error
}

// Error returns one line: what was done, what happened, what is known.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Endpoint != "" {
		fmt.Fprintf(&b, " (%s)", e.Endpoint)
	}
	b.WriteString(": ")
	b.WriteString(e.Message)
	switch {
	case e.Outcome == OutcomeUncertain:
		b.WriteString("; it may be applied: read before you write it again")
	case e.Outcome == OutcomeNotApplied:
		b.WriteString("; certainly not applied")
	}
	if len(e.Attempts) > 0 {
		b.WriteString("; tried ")
		for i, a := range e.Attempts {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s (%s)", a.Endpoint, a.Problem)
		}
	}
	return b.String()
}

// Is reports whether target is a sentinel that describes the error.
func (e *Error) Is(target error) bool {
	if target == ErrUncertain {
		return e.Outcome == OutcomeUncertain
	}
	if s := sentinelOf(e.Reason); s != nil && s == target {
		return true
	}
	for _, kind := range e.kinds {
		if kind == target || (kind == ErrNoQuorum && target == ErrUnavailable) {
			return true
		}
	}
	return false
}

// Unwrap returns what made the client give up, if anything did.
func (e *Error) Unwrap() error { return e.cause }

// sentinelOf returns the sentinel that mirrors a reason. REASON_UNCERTAIN has
// none of its own: it is an Outcome.
func sentinelOf(reason kvv1.Reason) error {
	switch reason {
	case kvv1.Reason_REASON_NOT_LEADER:
		return ErrNotLeader
	case kvv1.Reason_REASON_DROPPED:
		return ErrDropped
	case kvv1.Reason_REASON_OVERLOADED:
		return ErrOverloaded
	case kvv1.Reason_REASON_NO_SPACE:
		return ErrNoSpace
	case kvv1.Reason_REASON_FAILED:
		return ErrFailed
	case kvv1.Reason_REASON_INVALID:
		return ErrInvalid
	case kvv1.Reason_REASON_SESSION_EXPIRED:
		return ErrSessionExpired
	case kvv1.Reason_REASON_SEQUENCE_TOO_OLD:
		return ErrSequenceTooOld
	case kvv1.Reason_REASON_UNAVAILABLE:
		return ErrUnavailable
	default:
		return nil
	}
}

package server

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamraft/streamraft/kv"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// What an error tells a client:
//
//	raftnode.ErrNotLeader            NOT_LEADER        FAILED_PRECONDITION, with the leader
//	raftnode.ErrUncertain            UNCERTAIN         UNKNOWN, or DEADLINE_EXCEEDED / CANCELLED where the caller's time ended
//	raftnode.ErrDropped              DROPPED           ABORTED, or as above
//	raftnode.ErrChangePending        DROPPED           ABORTED
//	raftnode.ErrChangeRefused        INVALID           FAILED_PRECONDITION
//	raftnode.ErrOverloaded           OVERLOADED        RESOURCE_EXHAUSTED
//	raftnode.ErrNoSpace              NO_SPACE          RESOURCE_EXHAUSTED
//	raftnode.ErrFailed, kv.ErrFailed FAILED            UNAVAILABLE
//	ErrQuarantined                   UNAVAILABLE       UNAVAILABLE
//	ErrClosed, not open, not founded UNAVAILABLE       UNAVAILABLE
//	limits, rules, page tokens       INVALID           INVALID_ARGUMENT
//	kv.ErrDigestUnknown              INVALID           NOT_FOUND
//	the caller's time ended a read   UNAVAILABLE       DEADLINE_EXCEEDED / CANCELLED
//
// UNCERTAIN comes first: an error may match several, and the one that promises
// least is the honest one.

// errNotReady: the replicas are not open yet.
var errNotReady = errors.New("this node is not ready: it waits for the other founders, or opens its log and state; try again or ask another node")

// failureOf returns the status code and failure of an error. submitted tells
// that the group had taken the command: then a closed node says nothing of its
// fate.
func failureOf(err error, submitted bool) (codes.Code, *kvv1.Failure) {
	f := &kvv1.Failure{Message: err.Error()}
	var notLeader *raftnode.NotLeaderError
	var code codes.Code
	switch {
	case errors.Is(err, raftnode.ErrUncertain):
		f.Reason, code = kvv1.Reason_REASON_UNCERTAIN, contextCode(err, codes.Unknown)
	case errors.As(err, &notLeader):
		f.LeaderNode, f.LeaderAddress = notLeader.LeaderNode, notLeader.LeaderAddress
		f.Reason, code = kvv1.Reason_REASON_NOT_LEADER, codes.FailedPrecondition
	case errors.Is(err, raftnode.ErrDropped):
		f.Reason, code = kvv1.Reason_REASON_DROPPED, contextCode(err, codes.Aborted)
	case errors.Is(err, raftnode.ErrChangePending):
		f.Reason, code = kvv1.Reason_REASON_DROPPED, codes.Aborted
	case errors.Is(err, raftnode.ErrChangeRefused):
		f.Reason, code = kvv1.Reason_REASON_INVALID, codes.FailedPrecondition
	case failureIn(err) != nil: // what another node said is passed on
		f, code = failureIn(err), status.Code(err)
	case errors.Is(err, raftnode.ErrOverloaded):
		f.Reason, code = kvv1.Reason_REASON_OVERLOADED, codes.ResourceExhausted
	case errors.Is(err, raftnode.ErrNoSpace):
		f.Reason, code = kvv1.Reason_REASON_NO_SPACE, codes.ResourceExhausted
	case errors.Is(err, raftnode.ErrFailed), errors.Is(err, kv.ErrFailed):
		f.Reason, code = kvv1.Reason_REASON_FAILED, codes.Unavailable
	case errors.Is(err, raftnode.ErrClosed) && submitted:
		f.Reason, code = kvv1.Reason_REASON_UNCERTAIN, codes.Unknown
	case errors.Is(err, raftnode.ErrQuarantined), errors.Is(err, raftnode.ErrClosed), errors.Is(err, kv.ErrNotOpen), errors.Is(err, errNotReady), errors.Is(err, ErrStopped):
		f.Reason, code = kvv1.Reason_REASON_UNAVAILABLE, codes.Unavailable
	case errors.Is(err, kv.ErrDigestUnknown):
		f.Reason, code = kvv1.Reason_REASON_INVALID, codes.NotFound
	case errors.Is(err, kv.ErrInvalid), errors.Is(err, kv.ErrPageToken), errors.Is(err, raftnode.ErrTooLarge), errors.Is(err, raftnode.ErrUnknownGroup):
		f.Reason, code = kvv1.Reason_REASON_INVALID, codes.InvalidArgument
	case contextCode(err, codes.OK) != codes.OK:
		f.Reason, code = kvv1.Reason_REASON_UNAVAILABLE, contextCode(err, codes.OK)
	case submitted:
		f.Reason, code = kvv1.Reason_REASON_UNCERTAIN, codes.Internal
	default:
		f.Reason, code = kvv1.Reason_REASON_FAILED, codes.Internal
	}
	return code, f
}

// contextCode returns the code of a context that ended, else otherwise.
func contextCode(err error, otherwise codes.Code) codes.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return otherwise
}

// codeOf returns the code of a refusal by the state machine.
func codeOf(f *kvv1.Failure) codes.Code {
	switch f.GetReason() {
	case kvv1.Reason_REASON_INVALID:
		return codes.InvalidArgument
	case kvv1.Reason_REASON_OVERLOADED, kvv1.Reason_REASON_NO_SPACE:
		return codes.ResourceExhausted
	case kvv1.Reason_REASON_SESSION_EXPIRED, kvv1.Reason_REASON_SEQUENCE_TOO_OLD:
		return codes.FailedPrecondition
	}
	return codes.Unknown
}

// statusOf makes the status error of an error.
func statusOf(err error, submitted bool) error {
	if err == nil {
		return nil
	}
	return withFailure(failureOf(err, submitted))
}

// withFailure makes a status with a failure as its detail.
func withFailure(code codes.Code, f *kvv1.Failure) error {
	st := status.New(code, f.GetMessage())
	if detailed, err := st.WithDetails(f); err == nil {
		st = detailed
	}
	return st.Err()
}

package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// verdict is what the client makes of one failed attempt.
type verdict struct {
	// reason is the node's own, unspecified for a transport error.
	reason kvv1.Reason
	// message says what happened, without the endpoint.
	message string
	// leader is the address of the leader, where the node named it.
	leader string
	// notApplied: the attempt certainly has no effect.
	notApplied bool
	// again: another attempt may succeed.
	again bool
	// elsewhere: the next attempt should look for the leader anew.
	elsewhere bool
	// kind is the sentinel of a failure without a reason.
	kind error
	// cause is the error as it came.
	cause error
}

// judgeFailure judges a failure that a node reported.
func judgeFailure(f *kvv1.Failure) verdict {
	v := verdict{reason: f.GetReason(), message: f.GetMessage(), leader: f.GetLeaderAddress()}
	if v.message == "" {
		v.message = reasonName(v.reason)
	}
	switch v.reason {
	case kvv1.Reason_REASON_NOT_LEADER, kvv1.Reason_REASON_UNAVAILABLE:
		v.notApplied, v.again, v.elsewhere = true, true, true
	case kvv1.Reason_REASON_DROPPED, kvv1.Reason_REASON_OVERLOADED:
		v.notApplied, v.again = true, true
	case kvv1.Reason_REASON_FAILED:
		v.again, v.elsewhere = true, true
	case kvv1.Reason_REASON_NO_SPACE:
		// A full leader hands over; one that cannot makes it final: see
		// fullLeader.
		v.notApplied, v.again, v.elsewhere = true, true, true
	case kvv1.Reason_REASON_INVALID,
		kvv1.Reason_REASON_SESSION_EXPIRED, kvv1.Reason_REASON_SEQUENCE_TOO_OLD:
		v.notApplied = true
	default:
		// UNCERTAIN, and reasons of a newer server: nothing may be concluded.
		v.again = true
	}
	return v
}

// noAnswer is the problem of a node that is silent, or was not given the time.
const noAnswer = "no answer in time"

// judgeError judges the error of a call or of a stream. It does not know what
// was sent: notApplied is set only where the node itself vouches for it.
func judgeError(err error) verdict {
	s, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return verdict{message: noAnswer, again: true, elsewhere: true, cause: err}
		}
		return verdict{message: err.Error(), again: true, elsewhere: true, kind: ErrUnavailable, cause: err}
	}
	for _, detail := range s.Details() {
		if f, ok := detail.(*kvv1.Failure); ok {
			v := judgeFailure(f)
			v.cause = err
			return v
		}
	}
	v := verdict{message: s.Message(), cause: err}
	switch s.Code() {
	case codes.Unavailable:
		v.message = plainTransportMessage(s.Message())
		v.again, v.elsewhere, v.kind = true, true, ErrUnavailable
	case codes.DeadlineExceeded, codes.Canceled:
		v.message = noAnswer
		v.again, v.elsewhere = true, true
	case codes.InvalidArgument, codes.OutOfRange, codes.ResourceExhausted:
		v.kind, v.notApplied = ErrInvalid, s.Code() == codes.InvalidArgument
	case codes.NotFound:
		v.kind, v.notApplied = ErrNotFound, true
	case codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		// Given before a handler runs: by the server's router and its
		// interceptors.
		v.kind, v.notApplied = ErrRefused, true
	case codes.FailedPrecondition:
		v.kind = ErrRefused
	default:
		v.message = fmt.Sprintf("%s: %s", s.Code(), s.Message())
		v.kind = ErrFailed
	}
	return v
}

// plainTransportMessage shortens gRPC's nested transport errors to their last,
// telling part.
func plainTransportMessage(message string) string {
	if i := strings.LastIndex(message, `desc = "`); i >= 0 {
		message = strings.TrimSuffix(message[i+len(`desc = "`):], `"`)
	}
	message = strings.TrimPrefix(message, "transport: ")
	if i := strings.LastIndex(message, "connect: "); i >= 0 {
		message = message[i+len("connect: "):]
	}
	if message == "" {
		return "unreachable"
	}
	return message
}

// reasonName returns a reason in words: "not leader".
func reasonName(reason kvv1.Reason) string {
	name := strings.TrimPrefix(reason.String(), "REASON_")
	return strings.ToLower(strings.ReplaceAll(name, "_", " "))
}

package server

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/streamraft/streamraft/kv"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/raftlog"
)

func TestFailureOf(t *testing.T) {
	for _, c := range []struct {
		err       error
		submitted bool
		code      codes.Code
		reason    kvv1.Reason
	}{
		{&raftnode.NotLeaderError{Group: 2, LeaderNode: "n2", LeaderAddress: "h:1"}, true, codes.FailedPrecondition, kvv1.Reason_REASON_NOT_LEADER},
		{raftnode.ErrDropped, true, codes.Aborted, kvv1.Reason_REASON_DROPPED},
		{fmt.Errorf("%w: %w", raftnode.ErrDropped, context.DeadlineExceeded), true, codes.DeadlineExceeded, kvv1.Reason_REASON_DROPPED},
		{raftnode.ErrUncertain, true, codes.Unknown, kvv1.Reason_REASON_UNCERTAIN},
		{fmt.Errorf("%w: %w", raftnode.ErrUncertain, context.Canceled), true, codes.Canceled, kvv1.Reason_REASON_UNCERTAIN},
		{fmt.Errorf("%w: %w", raftnode.ErrUncertain, raftnode.ErrFailed), true, codes.Unknown, kvv1.Reason_REASON_UNCERTAIN},
		{fmt.Errorf("%w: %w", raftnode.ErrUncertain, &raftnode.NotLeaderError{}), true, codes.Unknown, kvv1.Reason_REASON_UNCERTAIN},
		{raftnode.ErrOverloaded, false, codes.ResourceExhausted, kvv1.Reason_REASON_OVERLOADED},
		{raftnode.ErrNoSpace, false, codes.ResourceExhausted, kvv1.Reason_REASON_NO_SPACE},
		{raftnode.ErrFailed, true, codes.Unavailable, kvv1.Reason_REASON_FAILED},
		{&kv.FailedError{Group: 2, Cause: errors.New("disk")}, false, codes.Unavailable, kvv1.Reason_REASON_FAILED},
		{raftnode.ErrClosed, false, codes.Unavailable, kvv1.Reason_REASON_UNAVAILABLE},
		{raftnode.ErrClosed, true, codes.Unknown, kvv1.Reason_REASON_UNCERTAIN},
		{raftnode.ErrTooLarge, false, codes.InvalidArgument, kvv1.Reason_REASON_INVALID},
		{&kv.LimitError{What: "key", Size: 2, Limit: 1}, false, codes.InvalidArgument, kvv1.Reason_REASON_INVALID},
		{kv.ErrDigestUnknown, false, codes.NotFound, kvv1.Reason_REASON_INVALID},
		{fmt.Errorf("read gave up: %w", context.DeadlineExceeded), false, codes.DeadlineExceeded, kvv1.Reason_REASON_UNAVAILABLE},
		{errNotReady, false, codes.Unavailable, kvv1.Reason_REASON_UNAVAILABLE},
		{errors.New("anything"), true, codes.Internal, kvv1.Reason_REASON_UNCERTAIN},
		{errors.New("anything"), false, codes.Internal, kvv1.Reason_REASON_FAILED},
	} {
		code, f := failureOf(c.err, c.submitted)
		if code != c.code || f.GetReason() != c.reason || f.GetMessage() != c.err.Error() {
			t.Errorf("%v (submitted %v): %v, %v; want %v, %v", c.err, c.submitted, code, f, c.code, c.reason)
		}
	}
	if _, f := failureOf(&raftnode.NotLeaderError{LeaderNode: "n2", LeaderAddress: "h:1"}, true); f.GetLeaderNode() != "n2" || f.GetLeaderAddress() != "h:1" {
		t.Errorf("the leader is lost: %v", f)
	}
}

func TestKindOf(t *testing.T) {
	for err, want := range map[error]Kind{
		&ConfigError{}:          KindConfig,
		&ListenError{}:          KindListen,
		raftnode.ErrLocked:      KindLocked,
		raftnode.ErrRefused:     KindRefused,
		raftnode.ErrVersion:     KindVersion,
		kv.ErrSchemaTooNew:      KindVersion,
		raftnode.ErrDataLoss:    KindDamaged,
		kv.ErrStateMissing:      KindDamaged,
		&raftlog.CorruptError{}: KindDamaged,
		errors.New("other"):     KindOther,
	} {
		if got := KindOf(fmt.Errorf("open: %w", err)); got != want {
			t.Errorf("%v is of kind %d, want %d", err, got, want)
		}
	}
}

// A request that makes a handler panic costs that call only.
func TestPanicIsContained(t *testing.T) {
	n := startCluster(t, 1, nil)[0]
	_, err := n.unary(testContext(t), nil, &grpc.UnaryServerInfo{FullMethod: "/x/Y"}, func(context.Context, any) (any, error) {
		panic("boom") // what a bug would do
	})
	if status.Code(err) != codes.Internal {
		t.Errorf("unary: %v", err)
	}
	err = n.streaming(nil, nil, &grpc.StreamServerInfo{FullMethod: "/x/Z"}, func(any, grpc.ServerStream) error { panic("boom") })
	if status.Code(err) != codes.Internal {
		t.Errorf("stream: %v", err)
	}
}

package transport

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// A node that was removed cannot learn it from the log: nobody sends it any more.
// So the refusal of its hello says it, in a detail of the status, which a
// stranger's or a proxy's refusal has not.

// removedStatus is the status that refuses a removed node.
func removedStatus(err error, hello *raftv1.NodeHello) error {
	refusal := status.New(codes.FailedPrecondition, err.Error())
	if detailed, err := refusal.WithDetails(&raftv1.RemovedNotice{Replicas: hello.GetReplicas()}); err == nil {
		refusal = detailed
	}
	return refusal.Err()
}

// removedNotice returns the notice in a status, or nil.
func removedNotice(s *status.Status) *raftv1.RemovedNotice {
	for _, detail := range s.Details() {
		if notice, ok := detail.(*raftv1.RemovedNotice); ok {
			return notice
		}
	}
	return nil
}

// toldRemovedError: the other side says that this node was removed.
type toldRemovedError struct {
	replicas []*raftv1.ReplicaId
	text     string
}

// Error returns the other side's text.
func (e *toldRemovedError) Error() string {
	return fmt.Sprintf("%v by the other side: %s", ErrRefused, e.text)
}

// Unwrap makes it an ErrRefused.
func (e *toldRemovedError) Unwrap() error { return ErrRefused }

// tellRemoved tells the handler what the peer said, if it was that.
func (p *peer) tellRemoved(err error) {
	var told *toldRemovedError
	if listener, ok := p.handler.(RemovalListener); ok && errors.As(err, &told) {
		listener.Removed(p.node, told.replicas)
	}
}

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

const (
	// joinRetry is the pause between two rounds of asking.
	joinRetry = 200 * time.Millisecond
	// joinTimeout bounds one question.
	joinTimeout = 5 * time.Second
	// maxJoinHints is how many leader hints in a row are followed.
	maxJoinHints = 3
)

// join asks the cluster to take this node, until it did or refused. A node that
// was accepted before does nothing. The error of a refusal is raftnode.ErrRefused.
func (s *Server) join(ctx context.Context, node *raftnode.Node) error {
	wanted, ok := node.Joining()
	if !ok {
		return nil
	}
	hello := node.Hello()
	q := &adminv1.AddNodeRequest{
		Node: hello.GetNode(), Address: s.config.Advertise, NodeIncarnation: hello.GetNodeIncarnation(),
		Replicas: hello.GetReplicas(), Replace: wanted.Replace, Learner: wanted.Learner,
	}
	last := ""
	for {
		waiting := ""
		for _, address := range wanted.Addresses {
			err := s.askToJoin(ctx, address, q)
			if err == nil {
				s.log.Info("the cluster takes this node; it catches up now", "name", s.config.Name)
				return node.JoinAccepted()
			}
			if errors.Is(err, raftnode.ErrRefused) {
				return err
			}
			waiting = fmt.Sprintf("%s: %s", address, problemText(err))
		}
		if waiting != last {
			s.log.Info("waiting for the cluster to take this node", "reason", waiting)
			last = waiting
		}
		timer := time.NewTimer(joinRetry)
		select {
		case <-timer.C:
		case <-node.Failed():
			timer.Stop()
			return node.Err()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("server: joining did not end: %s: %w", waiting, context.Cause(ctx))
		}
	}
}

// askToJoin asks one node, and the leader it names.
func (s *Server) askToJoin(ctx context.Context, address string, q *adminv1.AddNodeRequest) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var asked []string
	for {
		asked = append(asked, address)
		err := s.askAdmin(address, func(admin adminv1.AdminServiceClient) error {
			_, err := admin.AddNode(ctx, q)
			return err
		})
		if err == nil {
			return nil
		}
		f := failureIn(err)
		switch {
		case f.GetReason() == kvv1.Reason_REASON_INVALID, status.Code(err) == codes.Unimplemented:
			return errRefused(problemText(err))
		case f.GetReason() != kvv1.Reason_REASON_NOT_LEADER, f.GetLeaderAddress() == "",
			slices.Contains(asked, f.GetLeaderAddress()), len(asked) > maxJoinHints:
			return err
		}
		address = f.GetLeaderAddress()
	}
}

// failureIn returns the failure in an error of another node, or nil.
func failureIn(err error) *kvv1.Failure {
	s, _ := status.FromError(err)
	for _, detail := range s.Details() {
		if f, ok := detail.(*kvv1.Failure); ok {
			return f
		}
	}
	return nil
}

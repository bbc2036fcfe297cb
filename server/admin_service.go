package server

import (
	"context"
	"encoding/hex"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// adminService is AdminService of a node.
type adminService struct {
	adminv1.UnimplementedAdminServiceServer
	s *Server
}

// Status implements AdminService.
func (a *adminService) Status(ctx context.Context, _ *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return a.s.Status(ctx), nil
}

// Status returns the node as it is now. It answers while the node is founding,
// and on a failed node from the last known figures; it waits for nothing.
func (s *Server) Status(ctx context.Context) *adminv1.StatusResponse {
	answer := &adminv1.StatusResponse{Node: s.config.Name, Address: s.config.Advertise, Version: s.options.Version}
	if err := s.Err(); err != nil {
		answer.Failure = err.Error()
	}
	node := s.node.Load()
	if node == nil {
		s.statusBefore(answer)
		return answer
	}
	st := node.Status()
	answer.ClusterId, answer.HistoryEpoch, answer.NodeIncarnation = st.ClusterID, st.HistoryEpoch, st.NodeIncarnation
	if st.Failure != "" {
		answer.Failure = st.Failure
	}
	answer.NoSpace, answer.Removed = st.NoSpace, st.Removed
	answer.DiskAvailableBytes, answer.DiskTotalBytes = st.Disk.AvailBytes, st.Disk.TotalBytes
	answer.LogDiskBytes = uint64(max(st.LogDiskBytes, 0))
	stores := make(map[uint64]uint64)
	for _, r := range s.replicas() {
		stores[r.group.ID()] = uint64(max(r.store.StateBytes(), 0))
	}
	for i := range st.Groups {
		g := groupStatus(&st.Groups[i])
		g.StateBytes = stores[g.GetGroup()]
		answer.Groups = append(answer.Groups, g)
		for _, replica := range g.GetReplicas() {
			if replica.GetNode() == s.config.Name {
				answer.Address = replica.GetAddress()
			}
		}
	}
	answer.Nodes = s.knownNodes(ctx, st.Groups)
	return answer
}

// statusBefore fills in what is known before the groups run.
func (s *Server) statusBefore(answer *adminv1.StatusResponse) {
	answer.Founding = s.founding()
	if hello := s.transport.hello(); hello != nil {
		answer.ClusterId = hex.EncodeToString(hello.GetClusterId())
		answer.HistoryEpoch = hello.GetHistoryEpoch()
		answer.NodeIncarnation = hex.EncodeToString(hello.GetNodeIncarnation())
	}
	for _, f := range s.config.Cluster {
		answer.Nodes = append(answer.Nodes, &adminv1.NodeAddress{Node: f.Node, Address: f.Address})
	}
}

func groupStatus(g *raftnode.GroupStatus) *adminv1.GroupStatus {
	answer := &adminv1.GroupStatus{
		Group: g.Group, RaftId: g.RaftID, Role: roleOf(g.Role), Term: g.Term,
		CommitIndex: g.Commit, AppliedIndex: g.Applied, DurableAppliedIndex: g.DurableApplied,
		FirstIndex: g.FirstIndex, LastIndex: g.LastIndex, LogBytes: uint64(max(g.LogBytes, 0)),
		LeaderNode: g.LeaderNode, LeaderAddress: g.LeaderAddress, Failure: g.Failure, Quarantined: g.Quarantined,
		PendingProposals: uint64(max(g.PendingProposals, 0)),
	}
	for _, r := range g.Replicas {
		answer.Replicas = append(answer.Replicas, &adminv1.ReplicaStatus{
			RaftId: r.RaftID, Node: r.Node, Address: r.Address, Learner: r.Learner,
			MatchIndex: r.Match, RecentlyActive: r.Active, Progress: r.Progress,
		})
	}
	return answer
}

func roleOf(r raftnode.Role) adminv1.Role {
	switch r {
	case raftnode.RoleLeader:
		return adminv1.Role_ROLE_LEADER
	case raftnode.RoleFollower:
		return adminv1.Role_ROLE_FOLLOWER
	case raftnode.RoleCandidate:
		return adminv1.Role_ROLE_CANDIDATE
	case raftnode.RoleLearner:
		return adminv1.Role_ROLE_LEARNER
	}
	return adminv1.Role_ROLE_UNSPECIFIED
}

// TransferLeader implements AdminService; only the leader of the group does it.
// Codes: INVALID_ARGUMENT for an unknown group, FAILED_PRECONDITION on another
// node (with the leader) or where the target cannot lead, ABORTED where it did
// not in time.
func (a *adminService) TransferLeader(ctx context.Context, q *adminv1.TransferLeaderRequest) (*adminv1.TransferLeaderResponse, error) {
	r, err := a.s.replicaOf(q.GetGroup())
	if err != nil {
		return nil, statusOf(err, false)
	}
	err = r.group.TransferLeader(ctx, q.GetNode())
	switch {
	case err == nil:
		return &adminv1.TransferLeaderResponse{LeaderNode: r.group.Status().LeaderNode}, nil
	case errors.Is(err, raftnode.ErrNotLeader), errors.Is(err, raftnode.ErrFailed), errors.Is(err, raftnode.ErrClosed), ctx.Err() != nil:
		return nil, statusOf(err, false)
	}
	return nil, status.Error(codes.FailedPrecondition, err.Error())
}

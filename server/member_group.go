package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// ChangeGroup implements AdminService: one step of a plan in a group that this
// node leads. It looks first what is done already, so that it may be repeated.
func (a *adminService) ChangeGroup(ctx context.Context, q *adminv1.ChangeGroupRequest) (*adminv1.ChangeGroupResponse, error) {
	done, err := a.s.changeGroup(ctx, q)
	if err != nil {
		return nil, statusOf(err, false)
	}
	return &adminv1.ChangeGroupResponse{Done: done}, nil
}

// changeGroup does one step in a group that this node leads. With CheckOnly it
// changes nothing and tells whether the step is done.
func (s *Server) changeGroup(ctx context.Context, q *adminv1.ChangeGroupRequest) (done bool, err error) {
	r, err := s.replicaOf(q.GetGroup())
	if err != nil {
		return false, err
	}
	if err := leadsNow(ctx, r.group); err != nil {
		return false, err
	}
	change, done, err := s.stepChange(ctx, r.group, q)
	switch {
	case err != nil || done:
		return done, err
	case q.GetCheckOnly():
		return false, r.group.CheckChange(ctx, change)
	}
	if _, err := r.group.ChangeMembership(ctx, change); err != nil {
		return false, err
	}
	s.log.Info("membership changed", "group", q.GetGroup(), "action", actionName(q.GetAction()), "changed_node", q.GetNode())
	return true, nil
}

// stepChange returns the change that a step means now, or that it is done.
func (s *Server) stepChange(ctx context.Context, g *raftnode.Group, q *adminv1.ChangeGroupRequest) (change raftnode.Change, done bool, err error) {
	m, id := g.Membership(), q.GetRaftId()
	var others []uint64 // the node's other replicas
	member := false
	for _, o := range m.GetReplicas() {
		if o.GetRaftId() == id {
			member = true
		} else if o.GetNode() == q.GetNode() {
			others = append(others, o.GetRaftId())
		}
	}
	voter := slices.Contains(m.GetVoters(), id)
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: group %d: %s", raftnode.ErrChangeRefused, g.ID(), fmt.Sprintf(format, args...))
	}
	switch q.GetAction() {
	case adminv1.StepAction_STEP_ACTION_ADD_LEARNER, adminv1.StepAction_STEP_ACTION_ADD_REPLACEMENT:
		if member {
			return change, true, nil
		}
		if q.GetAction() == adminv1.StepAction_STEP_ACTION_ADD_LEARNER && len(others) > 0 {
			return change, false, refuse("%s", nameTaken(q.GetNode()))
		}
		change.AddLearners = []raftnode.NewReplica{{RaftID: id, Node: q.GetNode(), Address: q.GetAddress(), Incarnation: q.GetNodeIncarnation()}}
		return change, false, s.awaitSilence(ctx, g, q.GetNode(), others)
	case adminv1.StepAction_STEP_ACTION_PROMOTE, adminv1.StepAction_STEP_ACTION_SWAP:
		if q.GetAction() == adminv1.StepAction_STEP_ACTION_PROMOTE {
			others = nil
		}
		if !member {
			return change, false, refuse("replica %x of node %s is no member", id, q.GetNode())
		}
		if voter && len(others) == 0 {
			return change, true, nil
		}
		if !voter {
			change.Promote = []uint64{id}
		}
		change.Remove = others
		return change, false, s.awaitSilence(ctx, g, q.GetNode(), others)
	case adminv1.StepAction_STEP_ACTION_REMOVE:
		if member && id != 0 {
			others = append(others, id)
		}
		change.Remove = others
		return change, len(others) == 0, nil
	}
	return change, false, refuse("unknown action %d", q.GetAction())
}

// awaitSilence makes sure that no replica of a node that is to be replaced
// answers: the leader has heard nothing of it for an election timeout, which is
// several heartbeats; a new leader has to wait for that. A node that was stopped
// a moment ago is waited for by trying again.
func (s *Server) awaitSilence(ctx context.Context, g *raftnode.Group, node string, ids []uint64) error {
	if len(ids) == 0 {
		return nil
	}
	poll := time.NewTicker(s.config.TickInterval)
	defer poll.Stop()
	enough := time.Duration(s.config.ElectionTicks) * s.config.TickInterval
	for {
		silent := true
		for _, r := range g.Status().Replicas {
			if !slices.Contains(ids, r.RaftID) {
				continue
			}
			if r.Active {
				return fmt.Errorf("%w: group %d: node %s still answers with its old directory; it cannot be replaced while it runs: stop it", raftnode.ErrChangePending, g.ID(), node)
			}
			silent = silent && r.Silent >= enough
		}
		if silent {
			return nil
		}
		if err := leads(g); err != nil {
			return err
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func nameTaken(node string) string {
	return fmt.Sprintf("the cluster knows node %s with another directory; choose another --name, or, if that directory is lost, start the new one with --replace instead of --join", node)
}

// leads returns where the leader is, unless this node leads.
func leads(g *raftnode.Group) error {
	st := g.Status()
	if st.Role == raftnode.RoleLeader {
		return nil
	}
	return &raftnode.NotLeaderError{Group: st.Group, LeaderNode: st.LeaderNode, LeaderAddress: st.LeaderAddress}
}

// leadsNow is leads of a leader that has applied all that any leader before it
// committed.
func leadsNow(ctx context.Context, g *raftnode.Group) error {
	for {
		if err := leads(g); err != nil {
			return err
		}
		// A leader that is deposed or removed at this moment may never hear of
		// another; it must not keep the caller waiting.
		readCtx, cancel := context.WithTimeout(ctx, leaderRead)
		_, err := g.Read(readCtx, raftnode.ReadOptions{})
		cancel()
		if err == nil {
			return leads(g)
		}
		if ctx.Err() != nil || readCtx.Err() == nil {
			return err
		}
	}
}

// leaderRead bounds the confirmation that this node leads.
const leaderRead = 500 * time.Millisecond

// askGroup has the leader of a group do a step, wherever it is.
func (s *Server) askGroup(ctx context.Context, q *adminv1.ChangeGroupRequest) (done bool, err error) {
	done, err = s.changeGroup(ctx, q)
	var elsewhere *raftnode.NotLeaderError
	if !errors.As(err, &elsewhere) || elsewhere.LeaderAddress == "" {
		return done, err
	}
	err = s.askAdmin(elsewhere.LeaderAddress, func(admin adminv1.AdminServiceClient) error {
		answer, err := admin.ChangeGroup(ctx, q)
		done = answer.GetDone()
		return err
	})
	return done, err
}

// askAdmin calls the AdminService of another node.
func (s *Server) askAdmin(address string, ask func(adminv1.AdminServiceClient) error) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig())
	if err != nil {
		return fmt.Errorf("server: address %q: %w", address, err)
	}
	defer conn.Close()
	return ask(adminv1.NewAdminServiceClient(conn))
}

// replicaIDOf returns the raft id of a group in a list, or 0.
func replicaIDOf(ids []*raftv1.ReplicaId, group uint64) uint64 {
	for _, r := range ids {
		if r.GetGroup() == group {
			return r.GetRaftId()
		}
	}
	return 0
}

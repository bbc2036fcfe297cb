package server

import (
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// listTimeout bounds asking the leaders of other groups.
const listTimeout = time.Second

// ListMembers implements AdminService; only the leader of the meta group answers.
func (a *adminService) ListMembers(ctx context.Context, _ *adminv1.ListMembersRequest) (*adminv1.ListMembersResponse, error) {
	members, err := a.s.members(ctx)
	if err != nil {
		return nil, statusOf(err, false)
	}
	return &adminv1.ListMembersResponse{Members: members}, nil
}

func (s *Server) members(ctx context.Context) ([]*adminv1.Member, error) {
	meta, err := s.replicaOf(raftnode.MetaGroup)
	if err != nil {
		return nil, err
	}
	if err := leadsNow(ctx, meta.group); err != nil {
		return nil, err
	}
	all, err := plans(ctx, meta)
	if err != nil {
		return nil, err
	}
	list := memberList{}
	led := s.ledGroups(ctx)
	for _, g := range s.groups() {
		list.addGroup(g.ID(), g.Membership(), led[g.ID()])
	}
	for node, p := range all {
		m := list.member(node)
		m.Plan, m.Problem = p.NodePlan, s.problems.get(node)
		m.Address = cmp.Or(m.Address, p.GetAddress())
		m.NodeIncarnation = cmp.Or(m.NodeIncarnation, hex.EncodeToString(p.GetNodeIncarnation()))
	}
	members := make([]*adminv1.Member, 0, len(list))
	for _, m := range list {
		m.State = memberState(m, len(s.groups()))
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b *adminv1.Member) int { return cmp.Compare(a.GetNode(), b.GetNode()) })
	return members, nil
}

// ledGroups returns each group's status as its leader sees it, where the leader
// answers in time.
func (s *Server) ledGroups(ctx context.Context) map[uint64]*adminv1.GroupStatus {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var mu sync.Mutex
	led := make(map[uint64]*adminv1.GroupStatus)
	take := func(groups []*adminv1.GroupStatus) {
		mu.Lock()
		defer mu.Unlock()
		for _, g := range groups {
			if g.GetRole() == adminv1.Role_ROLE_LEADER {
				led[g.GetGroup()] = g
			}
		}
	}
	var own []*adminv1.GroupStatus
	asked := make(map[string]bool)
	var asking sync.WaitGroup
	for _, g := range s.groups() {
		st := g.Status()
		own = append(own, groupStatus(&st))
		if st.Role == raftnode.RoleLeader || st.LeaderAddress == "" || asked[st.LeaderAddress] {
			continue
		}
		asked[st.LeaderAddress] = true
		asking.Go(func() {
			_ = s.askAdmin(st.LeaderAddress, func(admin adminv1.AdminServiceClient) error {
				answer, err := admin.Status(ctx, &adminv1.StatusRequest{})
				take(answer.GetGroups())
				return err
			})
		})
	}
	take(own)
	asking.Wait()
	return led
}

// memberList collects members by name.
type memberList map[string]*adminv1.Member

func (l memberList) member(node string) *adminv1.Member {
	if l[node] == nil {
		l[node] = &adminv1.Member{Node: node}
	}
	return l[node]
}

// addGroup adds the replicas of a group; status is its leader's, or nil.
func (l memberList) addGroup(group uint64, m *raftv1.Membership, status *adminv1.GroupStatus) {
	for _, r := range m.GetReplicas() {
		node := l.member(r.GetNode())
		if newest, _ := newestOf(m, r.GetNode()); newest == r {
			node.Address, node.NodeIncarnation = r.GetAddress(), hex.EncodeToString(r.GetNodeIncarnation())
		}
		replica := &adminv1.MemberReplica{Group: group, RaftId: r.GetRaftId(), Role: adminv1.Role_ROLE_FOLLOWER}
		if slices.Contains(m.GetLearners(), r.GetRaftId()) {
			replica.Role = adminv1.Role_ROLE_LEARNER
		}
		for _, known := range status.GetReplicas() {
			if known.GetRaftId() != r.GetRaftId() {
				continue
			}
			replica.Known, replica.RecentlyActive, replica.MatchIndex = true, known.GetRecentlyActive(), known.GetMatchIndex()
			replica.Lag = status.GetCommitIndex() - min(status.GetCommitIndex(), known.GetMatchIndex())
			if known.GetRaftId() == status.GetRaftId() {
				replica.Role = adminv1.Role_ROLE_LEADER
			}
		}
		node.Replicas = append(node.Replicas, replica)
	}
}

// memberState tells what a node is, from its replicas and its plan.
func memberState(m *adminv1.Member, groups int) adminv1.MemberState {
	if p := m.GetPlan(); p != nil {
		switch {
		case p.GetKind() == adminv1.PlanKind_PLAN_KIND_REMOVE && planDone(p) && len(m.GetReplicas()) == 0:
			return adminv1.MemberState_MEMBER_STATE_REMOVED
		case planDone(p):
		case p.GetKind() == adminv1.PlanKind_PLAN_KIND_REMOVE:
			return adminv1.MemberState_MEMBER_STATE_REMOVING
		case p.GetKind() == adminv1.PlanKind_PLAN_KIND_REPLACE:
			return adminv1.MemberState_MEMBER_STATE_REPLACING
		}
	}
	learners, held := 0, make(map[uint64]bool)
	for _, r := range m.GetReplicas() {
		held[r.GetGroup()] = true
		if r.GetRole() == adminv1.Role_ROLE_LEARNER {
			learners++
		}
	}
	switch {
	case len(held) < groups:
		return adminv1.MemberState_MEMBER_STATE_JOINING
	case len(m.GetReplicas()) > groups:
		return adminv1.MemberState_MEMBER_STATE_REPLACING
	case learners > 0:
		return adminv1.MemberState_MEMBER_STATE_LEARNER
	}
	return adminv1.MemberState_MEMBER_STATE_VOTER
}

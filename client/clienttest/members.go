package clienttest

import (
	"context"
	"fmt"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// The members of the scripted cluster: its nodes are voters of group 1 and 2, n1
// has a learner n4 beside it, and n5 was removed. Changes are answered with their
// plan and change nothing.

func refused(format string, args ...any) error {
	return Refusal(&kvv1.Failure{Reason: kvv1.Reason_REASON_INVALID, Message: "membership change refused: " + fmt.Sprintf(format, args...)})
}

func planOf(kind adminv1.PlanKind, node string, action adminv1.StepAction) *adminv1.NodePlan {
	return &adminv1.NodePlan{Kind: kind, Node: node, Steps: []*adminv1.PlanStep{
		{Group: 1, Action: action, Done: true}, {Group: 2, Action: action},
	}}
}

// ListMembers implements AdminService.
func (n *node) ListMembers(context.Context, *adminv1.ListMembersRequest) (*adminv1.ListMembersResponse, error) {
	answer := &adminv1.ListMembersResponse{}
	for i, address := range n.cluster.Addresses() {
		m := &adminv1.Member{Node: Name(i), Address: address, NodeIncarnation: "0a", State: adminv1.MemberState_MEMBER_STATE_VOTER}
		for group := range uint64(2) {
			role := adminv1.Role_ROLE_FOLLOWER
			if i == 0 {
				role = adminv1.Role_ROLE_LEADER
			}
			m.Replicas = append(m.Replicas, &adminv1.MemberReplica{
				Group: group + 1, RaftId: uint64(i + 1), Role: role, MatchIndex: 10, RecentlyActive: true, Known: true,
			})
		}
		answer.Members = append(answer.Members, m)
	}
	answer.Members = append(answer.Members, &adminv1.Member{
		Node: "n4", Address: "127.0.0.1:4", NodeIncarnation: "0b", State: adminv1.MemberState_MEMBER_STATE_JOINING,
		Replicas: []*adminv1.MemberReplica{{Group: 1, RaftId: 4, Role: adminv1.Role_ROLE_LEARNER, MatchIndex: 3, Lag: 7, RecentlyActive: true, Known: true}},
		Plan:     planOf(adminv1.PlanKind_PLAN_KIND_ADD, "n4", adminv1.StepAction_STEP_ACTION_ADD_LEARNER), Problem: "n4 does not answer",
	}, &adminv1.Member{Node: "n5", State: adminv1.MemberState_MEMBER_STATE_REMOVED})
	return answer, nil
}

// AddNode implements AdminService.
func (n *node) AddNode(_ context.Context, q *adminv1.AddNodeRequest) (*adminv1.AddNodeResponse, error) {
	if q.GetReplace() {
		return &adminv1.AddNodeResponse{Plan: planOf(adminv1.PlanKind_PLAN_KIND_REPLACE, "n3", adminv1.StepAction_STEP_ACTION_ADD_REPLACEMENT)}, nil
	}
	return &adminv1.AddNodeResponse{Plan: planOf(adminv1.PlanKind_PLAN_KIND_ADD, "n4", adminv1.StepAction_STEP_ACTION_ADD_LEARNER)}, nil
}

// PromoteNode implements AdminService.
func (n *node) PromoteNode(_ context.Context, q *adminv1.PromoteNodeRequest) (*adminv1.PromoteNodeResponse, error) {
	if q.GetNode() != "n4" {
		return nil, refused("node %s is a voter already", q.GetNode())
	}
	return &adminv1.PromoteNodeResponse{Plan: planOf(adminv1.PlanKind_PLAN_KIND_PROMOTE, "n4", adminv1.StepAction_STEP_ACTION_PROMOTE)}, nil
}

// RemoveNode implements AdminService.
func (n *node) RemoveNode(_ context.Context, q *adminv1.RemoveNodeRequest) (*adminv1.RemoveNodeResponse, error) {
	if q.GetNode() == "n9" {
		return nil, refused("there is no node n9")
	}
	return &adminv1.RemoveNodeResponse{Plan: planOf(adminv1.PlanKind_PLAN_KIND_REMOVE, q.GetNode(), adminv1.StepAction_STEP_ACTION_REMOVE)}, nil
}

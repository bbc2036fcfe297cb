package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// AddNode implements AdminService. Where only an address is given, the node
// there is asked who it is.
func (a *adminService) AddNode(ctx context.Context, q *adminv1.AddNodeRequest) (*adminv1.AddNodeResponse, error) {
	p, err := a.s.planNode(ctx, func(m *planning) (*adminv1.NodePlan, error) {
		if q.GetNode() == "" {
			hello, err := a.s.transport.Hello(ctx, q.GetAddress())
			if err != nil {
				return nil, fmt.Errorf("%w: no node answers at %s: %w", raftnode.ErrChangeRefused, q.GetAddress(), err)
			}
			q = &adminv1.AddNodeRequest{
				Node: hello.GetNode(), Address: q.GetAddress(), NodeIncarnation: hello.GetNodeIncarnation(),
				Replicas: hello.GetReplicas(), Replace: q.GetReplace(), Learner: q.GetLearner(),
			}
		}
		return m.add(q)
	})
	if err != nil {
		return nil, statusOf(err, false)
	}
	return &adminv1.AddNodeResponse{Plan: p}, nil
}

// PromoteNode implements AdminService.
func (a *adminService) PromoteNode(ctx context.Context, q *adminv1.PromoteNodeRequest) (*adminv1.PromoteNodeResponse, error) {
	p, err := a.s.planNode(ctx, func(m *planning) (*adminv1.NodePlan, error) { return m.promote(q.GetNode()) })
	if err != nil {
		return nil, statusOf(err, false)
	}
	return &adminv1.PromoteNodeResponse{Plan: p}, nil
}

// RemoveNode implements AdminService.
func (a *adminService) RemoveNode(ctx context.Context, q *adminv1.RemoveNodeRequest) (*adminv1.RemoveNodeResponse, error) {
	p, err := a.s.planNode(ctx, func(m *planning) (*adminv1.NodePlan, error) { return m.remove(q.GetNode()) })
	if err != nil {
		return nil, statusOf(err, false)
	}
	return &adminv1.RemoveNodeResponse{Plan: p}, nil
}

// planNode makes a plan, on the leader of the meta group, has it checked by the
// leaders of all groups, and makes it durable. The result is durable.
func (s *Server) planNode(ctx context.Context, plan func(*planning) (*adminv1.NodePlan, error)) (*adminv1.NodePlan, error) {
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
	m := &planning{server: s, node: s.node.Load(), meta: meta.group.Membership(), plans: all}
	p, err := plan(m)
	if err != nil {
		return nil, err
	}
	old := all[p.GetNode()]
	if m.same(p) {
		s.duePlans()
		return old.NodePlan, nil
	}
	// The first steps of all groups can be judged now; a person should hear at
	// once what would never be done.
	for _, step := range p.GetSteps() {
		if step.GetAction() != p.GetSteps()[0].GetAction() {
			break
		}
		q := stepRequest(p, step)
		q.CheckOnly = true
		if step.Done, err = s.askGroup(ctx, q); err != nil {
			return nil, err
		}
	}
	if err := s.writePlan(ctx, meta, storedPlan{p, old.revision}, false); err != nil {
		return nil, err
	}
	s.log.Info("membership change is planned", "kind", kindName(p.GetKind()), "changed_node", p.GetNode(), "address", p.GetAddress())
	s.duePlans()
	return p, nil
}

// planning is what a plan is made from.
type planning struct {
	server *Server
	node   *raftnode.Node
	meta   *raftv1.Membership
	plans  map[string]storedPlan
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", raftnode.ErrChangeRefused, fmt.Errorf(format, args...))
}

// same tells that a plan of the same node is under way that does the same.
func (m *planning) same(p *adminv1.NodePlan) bool {
	old := m.plans[p.GetNode()].NodePlan
	if old == nil || planDone(old) || old.GetKind() != p.GetKind() || len(old.GetSteps()) != len(p.GetSteps()) ||
		string(old.GetNodeIncarnation()) != string(p.GetNodeIncarnation()) {
		return false
	}
	return slices.EqualFunc(old.GetSteps(), p.GetSteps(), func(a, b *adminv1.PlanStep) bool {
		return a.GetGroup() == b.GetGroup() && a.GetAction() == b.GetAction()
	})
}

// underWay returns the plan of a node that is not done, or nil.
func (m *planning) underWay(node string) *adminv1.NodePlan {
	if p := m.plans[node].NodePlan; p != nil && !planDone(p) {
		return p
	}
	return nil
}

// add makes the plan of a node that comes.
func (m *planning) add(q *adminv1.AddNodeRequest) (*adminv1.NodePlan, error) {
	groups := groupIDs(m.node)
	switch {
	case !validNodeName(q.GetNode()):
		return nil, refuse("node name %q must have 1 to 64 characters of A-Z a-z 0-9 . _ -", q.GetNode())
	case checkDialAddress(q.GetAddress()) != nil:
		return nil, refuse("address %q of node %s: %w", q.GetAddress(), q.GetNode(), checkDialAddress(q.GetAddress()))
	case len(q.GetNodeIncarnation()) == 0 || len(q.GetReplicas()) != len(groups):
		return nil, refuse("node %s brings %d replicas, but the cluster has %d groups; start it with --join and an address of this cluster", q.GetNode(), len(q.GetReplicas()), len(groups))
	}
	for _, group := range groups {
		if replicaIDOf(q.GetReplicas(), group) == 0 {
			return nil, refuse("node %s brings no replica of group %d; start it with --join and an address of this cluster", q.GetNode(), group)
		}
	}
	id := replicaIDOf(q.GetReplicas(), raftnode.MetaGroup)
	if slices.Contains(m.meta.GetRemoved(), id) {
		return nil, refuse("this directory of node %s was removed from the cluster; start it with an empty directory", q.GetNode())
	}
	known := false // with another directory
	for _, r := range m.meta.GetReplicas() {
		if r.GetNode() == q.GetNode() {
			known = known || r.GetRaftId() != id
		} else if r.GetAddress() == q.GetAddress() {
			return nil, refuse("%s is the address of node %s; give node %s another --advertise", q.GetAddress(), r.GetNode(), q.GetNode())
		}
	}
	if p := m.underWay(q.GetNode()); p != nil && string(p.GetNodeIncarnation()) != string(q.GetNodeIncarnation()) {
		if p.GetKind() == adminv1.PlanKind_PLAN_KIND_REMOVE {
			return nil, refuse("node %s is being removed; wait until that is done", q.GetNode())
		}
		known = true
	}
	kind, actions := adminv1.PlanKind_PLAN_KIND_ADD, []adminv1.StepAction{
		adminv1.StepAction_STEP_ACTION_ADD_LEARNER, adminv1.StepAction_STEP_ACTION_PROMOTE,
	}
	switch {
	case known && !q.GetReplace():
		return nil, refuse("%s", nameTaken(q.GetNode()))
	case q.GetReplace() && !known && !m.member(id):
		return nil, refuse("there is no node %s to replace; use --join for a new node", q.GetNode())
	case q.GetReplace():
		kind, actions = adminv1.PlanKind_PLAN_KIND_REPLACE, []adminv1.StepAction{
			adminv1.StepAction_STEP_ACTION_ADD_REPLACEMENT, adminv1.StepAction_STEP_ACTION_SWAP,
		}
	}
	if q.GetLearner() {
		actions = actions[:1]
	}
	return newPlan(kind, q.GetNode(), q.GetAddress(), q.GetNodeIncarnation(), q.GetReplicas(), groups, actions...), nil
}

func (m *planning) member(id uint64) bool {
	return slices.ContainsFunc(m.meta.GetReplicas(), func(r *raftv1.Replica) bool { return r.GetRaftId() == id })
}

// promote makes the plan of a learner that becomes a voter, and takes the place
// of the older replicas of its node if there are any.
func (m *planning) promote(node string) (*adminv1.NodePlan, error) {
	p := newPlan(adminv1.PlanKind_PLAN_KIND_PROMOTE, node, "", nil, nil, nil)
	action, learner := adminv1.StepAction_STEP_ACTION_PROMOTE, false
	var groups []uint64
	for _, g := range m.node.Groups() {
		newest, count := newestOf(g.Membership(), node)
		if newest == nil {
			continue
		}
		groups = append(groups, g.ID())
		learner = learner || slices.Contains(g.Membership().GetLearners(), newest.GetRaftId())
		p.Address, p.NodeIncarnation = newest.GetAddress(), newest.GetNodeIncarnation()
		p.Replicas = append(p.Replicas, &raftv1.ReplicaId{Group: g.ID(), RaftId: newest.GetRaftId()})
		if count > 1 {
			action = adminv1.StepAction_STEP_ACTION_SWAP
		}
	}
	switch under := m.underWay(node); {
	case under != nil && under.GetKind() != adminv1.PlanKind_PLAN_KIND_PROMOTE:
		return nil, fmt.Errorf("%w: node %s: its %s is not done yet", raftnode.ErrChangePending, node, kindName(under.GetKind()))
	case len(groups) == 0:
		return nil, refuse("there is no node %s", node)
	case !learner:
		return nil, refuse("node %s is a voter already", node)
	}
	p.Steps = newPlan(0, "", "", nil, nil, groups, action).GetSteps()
	return p, nil
}

// remove makes the plan of a node that goes, with all its replicas. It takes the
// place of any other plan of the node.
func (m *planning) remove(node string) (*adminv1.NodePlan, error) {
	p := newPlan(adminv1.PlanKind_PLAN_KIND_REMOVE, node, "", nil, nil, groupIDs(m.node), adminv1.StepAction_STEP_ACTION_REMOVE)
	known := m.underWay(node) != nil
	for _, g := range m.node.Groups() {
		if newest, _ := newestOf(g.Membership(), node); newest != nil {
			known, p.Address, p.NodeIncarnation = true, newest.GetAddress(), newest.GetNodeIncarnation()
		}
	}
	if !known {
		return nil, refuse("there is no node %s", node)
	}
	return p, nil
}

// newestOf returns the replica of a node that was added last, or nil, and how
// many it has.
func newestOf(m *raftv1.Membership, node string) (newest *raftv1.Replica, count int) {
	for _, r := range m.GetReplicas() {
		if r.GetNode() != node {
			continue
		}
		count++
		if newest == nil || r.GetAddedIndex() > newest.GetAddedIndex() {
			newest = r
		}
	}
	return newest, count
}

// errRefused is the refusal of a node that asked to join.
func errRefused(text string) error { return errors.Join(raftnode.ErrRefused, errors.New(text)) }

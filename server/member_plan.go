package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/kv"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// A change of a node is a plan in the registry space of the meta group:
//
//	plan/<node>   byte version, 1
//	              adminv1.NodePlan
//
// Whoever leads the meta group carries the plans out, step by step, and notes
// each step there; a step that was done and not noted is done again without
// effect. A plan that is done is deleted, but for a removal: it stays as the
// memory of the node until a node of that name comes again.
const (
	planPrefix = "plan/"
	planEnd    = "plan0" // '0' follows '/'

	planVersion = 1
	// maxPlanBytes bounds a plan that is read; one of a thousand groups has less
	// than 64 KiB.
	maxPlanBytes = 1 << 20
)

var errPlan = errors.New("server: a plan of a membership change does not decode")

// storedPlan is a plan as it stands in the registry.
type storedPlan struct {
	*adminv1.NodePlan
	// revision of the record; 0 for a plan that is not there yet.
	revision uint64
}

func encodePlan(p *adminv1.NodePlan) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte{planVersion}, p)
	if err != nil {
		return nil, fmt.Errorf("server: encode the plan of node %s: %w", p.GetNode(), err)
	}
	return data, nil
}

func decodePlan(b []byte) (*adminv1.NodePlan, error) {
	if len(b) == 0 || b[0] != planVersion || len(b) > maxPlanBytes {
		return nil, fmt.Errorf("%w: %d bytes", errPlan, len(b))
	}
	p := &adminv1.NodePlan{}
	if err := proto.Unmarshal(b[1:], p); err != nil {
		return nil, fmt.Errorf("%w: %w", errPlan, err)
	}
	return p, nil
}

// planDone tells that no step is left.
func planDone(p *adminv1.NodePlan) bool {
	return !slices.ContainsFunc(p.GetSteps(), func(s *adminv1.PlanStep) bool { return !s.GetDone() })
}

// plans returns all plans, by node.
func plans(ctx context.Context, meta replica) (map[string]storedPlan, error) {
	page, err := meta.store.SpaceRange(ctx, kv.RangeOptions{Start: []byte(planPrefix), End: []byte(planEnd), Limit: maxDirectoryNodes})
	if err != nil {
		return nil, err
	}
	found := make(map[string]storedPlan)
	for _, record := range page.Records {
		p, err := decodePlan(record.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", record.Key, err)
		}
		found[p.GetNode()] = storedPlan{p, record.ModRevision}
	}
	return found, nil
}

// writePlan writes a plan over what was read, or deletes it. Somebody else may
// have written it meanwhile; then it is an error and nothing is changed.
func (s *Server) writePlan(ctx context.Context, meta replica, p storedPlan, remove bool) error {
	key := []byte(planPrefix + p.GetNode())
	write := &kvv1.RegistryWrite{Compares: []*kvv1.Compare{compareRevision(key, p.revision)}}
	if remove {
		write.Operations = []*kvv1.BatchOperation{{Operation: &kvv1.BatchOperation_Delete{Delete: &kvv1.Delete{Key: key}}}}
	} else {
		value, err := encodePlan(p.NodePlan)
		if err != nil {
			return err
		}
		write.Operations = []*kvv1.BatchOperation{{Operation: &kvv1.BatchOperation_Put{Put: &kvv1.Put{Key: key, Value: value}}}}
	}
	return writeRegistry(ctx, meta, write)
}

// newPlan makes the plan of a change over groups. replicas are the node's, by
// group.
func newPlan(kind adminv1.PlanKind, node, address string, incarnation []byte, replicas []*raftv1.ReplicaId, groups []uint64, actions ...adminv1.StepAction) *adminv1.NodePlan {
	p := &adminv1.NodePlan{Kind: kind, Node: node, Address: address, NodeIncarnation: incarnation, Replicas: replicas}
	for _, action := range actions {
		for _, group := range groups {
			p.Steps = append(p.Steps, &adminv1.PlanStep{Group: group, Action: action})
		}
	}
	return p
}

// stepRequest is what the leader of a step's group is asked.
func stepRequest(p *adminv1.NodePlan, step *adminv1.PlanStep) *adminv1.ChangeGroupRequest {
	q := &adminv1.ChangeGroupRequest{
		Group: step.GetGroup(), Action: step.GetAction(),
		Node: p.GetNode(), Address: p.GetAddress(), NodeIncarnation: p.GetNodeIncarnation(),
	}
	for _, r := range p.GetReplicas() {
		if r.GetGroup() == step.GetGroup() {
			q.RaftId = r.GetRaftId()
		}
	}
	return q
}

// groupIDs returns the ids of all groups of a node.
func groupIDs(node *raftnode.Node) []uint64 {
	var ids []uint64
	for _, g := range node.Groups() {
		ids = append(ids, g.ID())
	}
	return ids
}

package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// Join is how an empty directory joins a cluster that exists.
//
// Open asks any member which cluster and groups there are, draws a raft id for
// each group and makes all of that durable. Then the node runs, but belongs to
// no group yet: a leader has to add its replicas (Group.ChangeMembership, with
// the raft ids in Node.Hello). From then on the leader sends it log or state.
type Join struct {
	// Addresses are host:port of members; one that answers is enough.
	Addresses []string
	// Replace says that the node takes the place of one of its name that lost its
	// directory.
	Replace bool
	// Learner says that it shall stay a learner until it is promoted by hand.
	Learner bool
}

func (j *Join) validate(o *Options) error {
	switch {
	case j == nil:
		return nil
	case len(j.Addresses) == 0:
		return errors.New("no address of a member")
	case len(o.Founders) > 0:
		return errors.New("a node either joins a cluster or founds one; leave Founders empty")
	case o.Address == "":
		return errors.New("it needs Options.Address, where the others reach it")
	}
	return nil
}

// join returns once the directory belongs to the cluster. It blocks until a
// member answers or ctx ends.
func (n *Node) join(ctx context.Context) error {
	lastProblem := ""
	for {
		hello, waiting, err := n.askMembers(ctx)
		switch {
		case err != nil:
			return err
		case hello.GetFounding() != nil && n.standsIn(hello.GetFounding()):
			// It was started as a founder before, and founded it was.
			return n.takeFounding(hello.GetFounding())
		case hello != nil:
			return n.takeCluster(hello)
		}
		if waiting != lastProblem {
			n.log.Info("waiting for a member of the cluster to join", "reason", waiting)
			lastProblem = waiting
		}
		timer := time.NewTimer(foundingRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("raftnode: joining did not end: %s: %w", waiting, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// askMembers asks each address once. It returns the hello of a member, or what
// it still waits for.
func (n *Node) askMembers(ctx context.Context) (member *raftv1.NodeHello, waiting string, err error) {
	for _, address := range n.opts.Join.Addresses {
		asked, cancel := context.WithTimeout(ctx, 2*time.Second)
		hello, err := n.transport.Hello(asked, address)
		cancel()
		switch {
		case err != nil:
			waiting = fmt.Sprintf("no member answers at %s: %v", address, err)
		case string(hello.GetNodeIncarnation()) == string(n.Hello().GetNodeIncarnation()):
			waiting = address + " is this node itself; give the address of a member"
		case hello.GetNode() == n.opts.Node:
			return nil, "", fmt.Errorf("%w: the node at %s has this node's name, %s, and runs; choose another --name, or stop that node first and start this one with --replace and the address of a third",
				ErrRefused, address, n.opts.Node)
		case len(hello.GetClusterId()) == 0:
			waiting = fmt.Sprintf("node %s at %s belongs to no cluster yet", hello.GetNode(), address)
		case len(hello.GetReplicas()) == 0:
			waiting = fmt.Sprintf("node %s at %s has no groups yet", hello.GetNode(), address)
		default:
			return hello, "", nil
		}
	}
	return nil, waiting, nil
}

// takeCluster makes the node part of the cluster of a member. NODE comes last: a
// crash before it leaves a directory that joins again.
func (n *Node) takeCluster(member *raftv1.NodeHello) error {
	groups := make([]uint64, 0, len(member.GetReplicas()))
	for _, r := range member.GetReplicas() {
		groups = append(groups, r.GetGroup())
	}
	n.identityMu.Lock()
	err := n.identity.join(n.dir, member, groups, n.opts.Join)
	clusterID := n.identity.clusterID()
	n.identityMu.Unlock()
	if err != nil {
		return err
	}
	n.transport.ResetConnections()
	n.log.Info("joining", "cluster", clusterID, "groups", len(groups), "asked", member.GetNode())
	return nil
}

// join makes the cluster of a member, and a raft id for each group, durable.
func (id *identity) join(dir directory, member *raftv1.NodeHello, groups []uint64, join *Join) error {
	for _, r := range id.replicas {
		if !slices.Contains(groups, r.GetGroup()) {
			return fmt.Errorf("%w: directory %s has a replica of group %d, which cluster %x has not; use an empty directory", ErrRefused, dir.path, r.GetGroup(), member.GetClusterId())
		}
	}
	if err := id.drawReplicas(dir, groups); err != nil {
		return err
	}
	node := proto.CloneOf(id.node)
	node.ClusterId, node.HistoryEpoch = member.GetClusterId(), member.GetHistoryEpoch()
	node.Join = joinRecord(join)
	return id.writeNode(dir, node)
}

func joinRecord(j *Join) *raftv1.JoinRecord {
	return &raftv1.JoinRecord{Addresses: slices.Clone(j.Addresses), Replace: j.Replace, Learner: j.Learner}
}

// renewJoin takes over what Options say of a join that the cluster has not
// accepted yet: it may have been refused as it was.
func (n *Node) renewJoin() error {
	if n.opts.Join == nil {
		return nil
	}
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	if old := n.identity.node.GetJoin(); old == nil || old.GetAccepted() {
		n.log.Info("the directory belongs to the cluster already; it is not asked again to join", "cluster", n.identity.clusterID())
		return nil
	}
	wanted := joinRecord(n.opts.Join)
	if proto.Equal(n.identity.node.GetJoin(), wanted) {
		return nil
	}
	node := proto.CloneOf(n.identity.node)
	node.Join = wanted
	return n.identity.writeNode(n.dir, node)
}

// Joining returns how the node joins, while the cluster has not accepted it yet;
// false for a member.
func (n *Node) Joining() (Join, bool) {
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	j := n.identity.node.GetJoin()
	if j == nil || j.GetAccepted() {
		return Join{}, false
	}
	return Join{Addresses: slices.Clone(j.GetAddresses()), Replace: j.GetReplace(), Learner: j.GetLearner()}, true
}

// JoinAccepted notes, durably, that the cluster took the node: its replicas are
// added, or will be without it asking again. It may be repeated.
func (n *Node) JoinAccepted() error {
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	if j := n.identity.node.GetJoin(); j == nil || j.GetAccepted() {
		return nil
	}
	node := proto.CloneOf(n.identity.node)
	node.Join.Accepted = true
	return n.identity.writeNode(n.dir, node)
}

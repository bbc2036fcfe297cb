package raftnode

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// Founding makes a list of empty nodes one cluster, exactly once.
//
// Each node draws its raft ids and makes them durable. When all listed nodes
// answered with an empty directory, the first listed one draws the cluster id
// and makes the record FOUNDING {cluster id, raft ids of all} durable; that is
// the moment of founding. Whoever holds the record serves it in its hello. A
// node whose own ids stand in it takes it, at any time and again after a crash;
// any other empty node is refused: it is an old node that lost its disk, and
// letting it in under its old name could found a second cluster or forget a
// vote.

// foundingRetry is the pause between two rounds of asking the other founders.
const foundingRetry = 200 * time.Millisecond

// found returns once the node is founded. It blocks until all founders answered
// or ctx ends.
func (n *Node) found(ctx context.Context) error {
	if len(n.opts.Founders) == 0 {
		return fmt.Errorf("%w: directory %s is empty and no founding list was given; start it with --cluster name=address,... on each node of the list", ErrRefused, n.dir.path)
	}
	lastProblem := ""
	for {
		founding, waiting, err := n.askFounders(ctx)
		if err != nil {
			return err
		}
		if founding != nil {
			return n.takeFounding(founding)
		}
		if waiting != lastProblem {
			n.log.Info("waiting for the other founders", "reason", waiting)
			lastProblem = waiting
		}
		timer := time.NewTimer(foundingRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("raftnode: founding did not end: %s: %w", waiting, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// askFounders asks every other founder once. It returns a record to take, or
// what it still waits for.
func (n *Node) askFounders(ctx context.Context) (founding *raftv1.Founding, waiting string, err error) {
	hellos := []*raftv1.NodeHello{n.Hello()}
	for _, f := range n.opts.Founders {
		if f.Node == n.opts.Node {
			continue
		}
		asked, cancel := context.WithTimeout(ctx, 2*time.Second)
		hello, err := n.transport.Hello(asked, f.Address)
		cancel()
		if err != nil {
			waiting = fmt.Sprintf("node %s at %s does not answer: %v", f.Node, f.Address, err)
			continue
		}
		if err := n.checkFounder(f, hello); err != nil {
			return nil, "", err
		}
		if record := hello.GetFounding(); record != nil {
			if n.standsIn(record) {
				return record, "", nil
			}
			return nil, "", n.refuseWiped(f, hello)
		}
		if len(hello.GetClusterId()) > 0 {
			return nil, "", n.refuseWiped(f, hello)
		}
		hellos = append(hellos, hello)
	}
	if waiting != "" {
		return nil, waiting, nil
	}
	if own := hellos[0].GetReplicas(); !sameGroups(own, n.opts.Groups) {
		return nil, "", fmt.Errorf("%w: directory %s was prepared for %d groups, but this node was started with %d, and no cluster has been founded with it; use the same number again, or empty the directory", ErrRefused, n.dir.path, len(own), len(n.opts.Groups))
	}
	if n.opts.Founders[0].Node != n.opts.Node {
		return nil, fmt.Sprintf("node %s, the first of the list, founds the cluster once all answer it", n.opts.Founders[0].Node), nil
	}
	return n.newFounding(hellos), "", nil
}

// checkFounder refuses a peer that cannot be the founder it is listed as.
func (n *Node) checkFounder(f Founder, hello *raftv1.NodeHello) error {
	if hello.GetNode() != f.Node {
		return fmt.Errorf("%w: the founding list says that %s is node %s, but node %s answers there; correct --cluster on all nodes", ErrRefused, f.Address, f.Node, hello.GetNode())
	}
	if hello.GetProtocolVersion() != n.protocolVersion {
		return fmt.Errorf("%w: node %s speaks raft protocol version %d, this node version %d; run the same release on both", ErrRefused, f.Node, hello.GetProtocolVersion(), n.protocolVersion)
	}
	if hello.GetFounding() != nil || len(hello.GetClusterId()) > 0 {
		return nil
	}
	if len(hello.GetFounders()) == 0 {
		return fmt.Errorf("%w: node %s at %s was started without a founding list; start it with --cluster %s", ErrRefused, f.Node, f.Address, founderList(n.opts.Founders))
	}
	theirs := make([]Founder, len(hello.GetFounders()))
	for i, o := range hello.GetFounders() {
		theirs[i] = Founder{Node: o.GetNode(), Address: o.GetAddress()}
	}
	if !slices.Equal(theirs, n.opts.Founders) {
		return fmt.Errorf("%w: node %s was started with --cluster %s, this node with --cluster %s; use one list, in one order, on all nodes",
			ErrRefused, f.Node, founderList(theirs), founderList(n.opts.Founders))
	}
	if !sameGroups(hello.GetReplicas(), n.opts.Groups) {
		return fmt.Errorf("%w: node %s was started with %d groups, this node with %d; use the same number on all nodes",
			ErrRefused, f.Node, len(hello.GetReplicas()), len(n.opts.Groups))
	}
	return nil
}

// sameGroups tells whether there is one replica for each of groups and no other.
func sameGroups(replicas []*raftv1.ReplicaId, groups []uint64) bool {
	for _, group := range groups {
		if _, ok := replicaIDOf(replicas, group); !ok {
			return false
		}
	}
	return len(replicas) == len(groups)
}

// refuseWiped explains why an empty node cannot be who it says.
func (n *Node) refuseWiped(f Founder, hello *raftv1.NodeHello) error {
	named := len(hello.GetFounding().GetNodes()) == 0 // a member that joined keeps no list
	for _, node := range hello.GetFounding().GetNodes() {
		named = named || node.GetNode() == n.opts.Node
	}
	if !named {
		return fmt.Errorf("%w: node %s at %s belongs to cluster %x, which was founded without a node %s; correct --cluster, or add this node to that cluster: streamraft node --name %s --data-dir %s --join %s",
			ErrRefused, f.Node, f.Address, hello.GetFounding().GetClusterId(), n.opts.Node, n.opts.Node, n.dir.path, f.Address)
	}
	cluster := hello.GetClusterId()
	if len(cluster) == 0 {
		cluster = hello.GetFounding().GetClusterId() // it is just taking the record
	}
	return fmt.Errorf("%w: cluster %x exists (node %s at %s belongs to it) and knows node %s with another data directory; "+
		"this directory, %s, is empty, so it cannot be the node it was: its votes and data are gone. "+
		"Bring the old directory back, or let this empty one take its place: streamraft node --name %s --data-dir %s --replace %s",
		ErrRefused, cluster, f.Node, f.Address, n.opts.Node, n.dir.path, n.opts.Node, n.dir.path, f.Address)
}

// standsIn tells whether this very directory is one of the founders.
func (n *Node) standsIn(record *raftv1.Founding) bool {
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	for _, f := range record.GetNodes() {
		if f.GetNode() != n.opts.Node || len(f.GetReplicas()) != len(n.identity.replicas) {
			continue
		}
		same := true
		for _, own := range n.identity.replicas {
			id, ok := replicaIDOf(f.GetReplicas(), own.GetGroup())
			same = same && ok && id == own.GetRaftId()
		}
		return same
	}
	return false
}

// newFounding draws the record from the hellos of all founders.
func (n *Node) newFounding(hellos []*raftv1.NodeHello) *raftv1.Founding {
	record := &raftv1.Founding{ClusterId: randomBytes(16)}
	for _, f := range n.opts.Founders {
		for _, h := range hellos {
			if h.GetNode() == f.Node {
				record.Nodes = append(record.Nodes, &raftv1.FoundingNode{
					Node: f.Node, Address: f.Address,
					NodeIncarnation: h.GetNodeIncarnation(), Replicas: h.GetReplicas(),
				})
			}
		}
	}
	return record
}

// takeFounding makes the record this node's own and tells the peers.
func (n *Node) takeFounding(record *raftv1.Founding) error {
	n.identityMu.Lock()
	err := n.identity.take(n.dir, record)
	clusterID := n.identity.clusterID()
	n.identityMu.Unlock()
	if err != nil {
		return fmt.Errorf("raftnode: write the founding record: %w", err)
	}
	n.transport.ResetConnections()
	n.log.Info("founded", "cluster", clusterID, "nodes", len(record.GetNodes()))
	n.opts.Listener.Founded(clusterID)
	return nil
}

// Hello returns who this node is; part of transport.Handler.
func (n *Node) Hello() *raftv1.NodeHello {
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	hello := &raftv1.NodeHello{
		Address:         n.ownAddress(),
		ProtocolVersion: n.protocolVersion,
		ClusterId:       n.identity.node.GetClusterId(),
		HistoryEpoch:    n.identity.node.GetHistoryEpoch(),
		Node:            n.opts.Node,
		NodeIncarnation: n.identity.node.GetNodeIncarnation(),
		Replicas:        n.identity.replicas,
		StateFormat:     n.opts.StateFormat,
	}
	if n.identity.founding != nil {
		hello.Founding = proto.CloneOf(n.identity.founding)
	}
	if !n.identity.founded() {
		for _, f := range n.opts.Founders {
			hello.Founders = append(hello.Founders, &raftv1.Founder{Node: f.Node, Address: f.Address})
		}
	}
	return hello
}

// CheckHello decides whether a peer may exchange raft messages with this node;
// part of transport.Handler.
func (n *Node) CheckHello(peer *raftv1.NodeHello) error {
	if err := n.checkCluster(peer); err != nil {
		return err
	}
	if err := n.checkMember(peer); err != nil {
		return err
	}
	n.learnPeer(peer)
	return nil
}

// checkCluster compares what both nodes belong to.
func (n *Node) checkCluster(peer *raftv1.NodeHello) error {
	n.identityMu.Lock()
	defer n.identityMu.Unlock()
	if !n.identity.founded() {
		return fmt.Errorf("%w: node %s is not founded yet", transport.ErrNotReady, n.opts.Node)
	}
	if string(peer.GetClusterId()) != string(n.identity.node.GetClusterId()) {
		if len(peer.GetClusterId()) == 0 {
			return fmt.Errorf("%w: node %s is not founded yet", transport.ErrNotReady, peer.GetNode())
		}
		// A restore makes another cluster, with a higher epoch.
		if theirs, ours := peer.GetHistoryEpoch(), n.identity.node.GetHistoryEpoch(); theirs != ours {
			return fmt.Errorf("node %s belongs to cluster %x, history epoch %d, this node to cluster %x, history epoch %d; the one with the lower epoch holds data from before a restore: stop it, and start it with an empty directory and --join",
				peer.GetNode(), peer.GetClusterId(), theirs, n.identity.node.GetClusterId(), ours)
		}
		return fmt.Errorf("node %s belongs to cluster %x, this node to cluster %x; one of them was started with the wrong directory or address list",
			peer.GetNode(), peer.GetClusterId(), n.identity.node.GetClusterId())
	}
	if peer.GetHistoryEpoch() != n.identity.node.GetHistoryEpoch() {
		return fmt.Errorf("node %s is at history epoch %d, this node at %d; the one with the lower epoch holds data from before a restore and must be replaced",
			peer.GetNode(), peer.GetHistoryEpoch(), n.identity.node.GetHistoryEpoch())
	}
	if peer.GetNode() == n.opts.Node {
		return fmt.Errorf("node %s is this node's own name; two nodes run under one name, or an address points back here", peer.GetNode())
	}
	return nil
}

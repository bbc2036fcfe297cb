package raftnode

import (
	"fmt"
	"slices"
	"sync"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// Who is where. A node knows its peers from the memberships. One that joins has
// none yet, and one that was away has old ones; yet it must answer a leader it
// has never heard of, or it would never get the log that tells. So the address of
// a peer comes with its hello, and the node of a raft id with its messages.

// routes are the nodes of raft ids as their messages told.
type routes struct {
	mu    sync.Mutex
	nodes map[uint64]string
}

// maxRoutes bounds them; ids come from peers of this cluster only.
const maxRoutes = 256

// learn notes that a message of raftID came from a node, unless the membership
// names it.
func (r *routes) learn(g *Group, raftID uint64, node string) {
	for _, m := range g.members.Load().GetReplicas() {
		if m.GetRaftId() == raftID {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes == nil || len(r.nodes) >= maxRoutes {
		r.nodes = make(map[uint64]string)
	}
	r.nodes[raftID] = node
}

func (r *routes) node(raftID uint64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[raftID]
}

// Membership returns the group's membership as it is applied here. The result
// must not be changed.
func (g *Group) Membership() *raftv1.Membership { return g.members.Load() }

// newestReplica returns the replica of a node that was added last: a node that
// is being replaced has two. It returns nil if the node has none.
func newestReplica(m *raftv1.Membership, node string) *raftv1.Replica {
	var newest *raftv1.Replica
	for _, r := range m.GetReplicas() {
		if r.GetNode() == node && (newest == nil || r.GetAddedIndex() > newest.GetAddedIndex()) {
			newest = r
		}
	}
	return newest
}

// checkMember decides on a peer of the same cluster by the memberships: a
// replica that was removed, or is being replaced by another directory of the same
// name, takes part no more.
func (n *Node) checkMember(peer *raftv1.NodeHello) error {
	if !n.ready.Load() {
		return nil
	}
	removed, known := 0, 0
	var problem error
	for _, g := range n.ordered {
		id, ok := replicaIDOf(peer.GetReplicas(), g.id)
		if !ok {
			continue
		}
		known++
		m := g.members.Load()
		switch newest := newestReplica(m, peer.GetNode()); {
		case slices.Contains(m.GetRemoved(), id):
			removed++
		case newest == nil || newest.GetRaftId() == id:
			// A member, or one that is not known here yet.
		case slices.ContainsFunc(m.GetReplicas(), func(r *raftv1.Replica) bool { return r.GetRaftId() == id }):
			problem = fmt.Errorf("node %s is being replaced by another directory at %s; stop the old one", peer.GetNode(), newest.GetAddress())
		case problem == nil:
			problem = fmt.Errorf("%w: node %s is known here with another directory; this one has not been added yet", transport.ErrNotReady, peer.GetNode())
		}
	}
	if removed > 0 && removed == known {
		return fmt.Errorf("%w: node %s, with this directory, was removed; its data is not needed any more. To bring the node back, start it with an empty directory: --join and an address of the cluster",
			transport.ErrRemoved, peer.GetNode())
	}
	return problem
}

// learnPeer makes the address of an accepted peer known, unless it is.
func (n *Node) learnPeer(peer *raftv1.NodeHello) {
	if address := peer.GetAddress(); address != "" && n.ready.Load() {
		n.addPeer(peer.GetNode(), address, false)
	}
}

// ownAddress returns where peers reach this node, or "". The membership comes
// first, since that is where the others look.
func (n *Node) ownAddress() string {
	if n.ready.Load() {
		for _, g := range n.ordered {
			for _, r := range g.members.Load().GetReplicas() {
				if r.GetRaftId() == g.raftID {
					return r.GetAddress()
				}
			}
		}
	}
	for _, f := range n.opts.Founders {
		if f.Node == n.opts.Node {
			return f.Address
		}
	}
	return n.opts.Address
}

// addKnownPeers tells the transport of the nodes that memberships and founding
// record name.
func (n *Node) addKnownPeers() {
	newest := make(map[string]*raftv1.Replica)
	for _, g := range n.ordered {
		for _, r := range g.members.Load().GetReplicas() {
			if o := newest[r.GetNode()]; o == nil || r.GetAddedIndex() > o.GetAddedIndex() {
				newest[r.GetNode()] = r
			}
		}
	}
	for node, r := range newest {
		n.addPeer(node, r.GetAddress(), true)
	}
	for _, f := range n.identity.founding.GetNodes() {
		if !n.founderRemoved(f) {
			n.addPeer(f.GetNode(), f.GetAddress(), false)
		}
	}
}

func (n *Node) founderRemoved(f *raftv1.FoundingNode) bool {
	for _, g := range n.ordered {
		if id, ok := replicaIDOf(f.GetReplicas(), g.id); ok && g.isRemoved(id) {
			return true
		}
	}
	return false
}

// followMembership tells the transport what a membership change means: new
// replicas, and nodes that are no members any more.
func (n *Node) followMembership(old, m *raftv1.Membership) {
	has := func(m *raftv1.Membership, id uint64) bool {
		return slices.ContainsFunc(m.GetReplicas(), func(r *raftv1.Replica) bool { return r.GetRaftId() == id })
	}
	for _, r := range m.GetReplicas() {
		// The older replica of a node says nothing of where it is now.
		if !has(old, r.GetRaftId()) && newestReplica(m, r.GetNode()) == r {
			n.addPeer(r.GetNode(), r.GetAddress(), true)
		}
	}
	for _, r := range old.GetReplicas() {
		if !has(m, r.GetRaftId()) {
			n.dropPeer(r.GetNode())
		}
	}
}

// dropPeer forgets a node that no group names any more, and cuts its
// connections; when it comes again it is told why.
func (n *Node) dropPeer(node string) {
	for _, g := range n.ordered {
		if newestReplica(g.members.Load(), node) != nil {
			return
		}
	}
	n.peersMu.Lock()
	defer n.peersMu.Unlock()
	delete(n.peers, node)
	n.transport.RemovePeer(node)
}

// superseded tells that a newer replica of its node stands beside a replica:
// nobody holds it any more, and messages to it would reach the newer one.
func (g *Group) superseded(raftID uint64) bool {
	m := g.members.Load()
	for _, r := range m.GetReplicas() {
		if r.GetRaftId() == raftID {
			return newestReplica(m, r.GetNode()) != r
		}
	}
	return false
}

// whereIs returns the node and the address of a raft id that the membership does
// not name, as far as messages and hellos told.
func (g *Group) whereIs(raftID uint64) (node, address string) {
	node = g.routes.node(raftID)
	g.node.peersMu.Lock()
	defer g.node.peersMu.Unlock()
	return node, g.node.peers[node]
}

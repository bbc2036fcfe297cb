package raftnode

import (
	"slices"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// A removed replica is told REMOVED: the log that removed it may never have
// reached it, and its elections would be in the others' way for ever. The others
// take nothing from a removed raft id, and refuse the hello of a node whose
// replicas are all removed with a notice that names them. The node then stops
// campaigning for good and leaves its data as it is. It goes on answering votes:
// a peer that has not applied the removal yet may need its voice to leave a joint
// configuration.

// isRemoved tells that a raft id was a member and never comes back.
func (g *Group) isRemoved(raftID uint64) bool {
	_, found := slices.BinarySearch(g.members.Load().GetRemoved(), raftID)
	return found
}

// Removed takes the notice of a peer; part of transport.RemovalListener.
func (n *Node) Removed(by string, replicas []*raftv1.ReplicaId) {
	if !n.ready.Load() {
		return // it is repeated
	}
	for _, g := range n.ordered {
		// Of another directory, or of some groups only: those that are left go on.
		if id, ok := replicaIDOf(replicas, g.id); !ok || id != g.raftID {
			return
		}
	}
	n.park("node " + by + " says so")
}

// noticeOwnRemoval parks the node when its own log says that it was removed from
// every group.
func (n *Node) noticeOwnRemoval() {
	for _, g := range n.ordered {
		if !g.isRemoved(g.raftID) {
			return
		}
	}
	n.park("its log says so")
}

// park ends the node's part in the cluster. A process that is started again with
// this directory hears of it again.
func (n *Node) park(reason string) {
	if n.removed.Swap(true) {
		return
	}
	n.log.Error("this node was removed from the cluster: it does not take part any more, and its data is left as it is; stop it. To bring the node back, start it with an empty directory and --join",
		"reason", reason, "dir", n.dir.path)
	n.opts.Listener.Removed(reason)
}

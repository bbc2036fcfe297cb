package raftnode

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// Metrics are the counters of a node since Open.
type Metrics struct {
	Log raftlog.Metrics
	// LogWriting is how long the batch of the log that is written and synced now
	// has taken so far; 0: none is. It shows a disk that hangs, of which no sync
	// tells.
	LogWriting time.Duration
	Groups     []GroupMetrics
}

// GroupMetrics are the counters of one replica since Open.
type GroupMetrics struct {
	Group uint64
	// Entries and Commands this replica packed as leader.
	Entries  uint64
	Commands uint64
	// Applied commands, of any leader.
	Applied uint64
	// Overloaded proposals were refused.
	Overloaded uint64
	// ReadRounds of ReadIndex that were started.
	ReadRounds uint64
	// StepErrors are messages that raft did not take.
	StepErrors uint64
	// Installs are images that were installed here.
	Installs uint64
	// DigestMismatches are digests of this replica's state that most voters had
	// otherwise; DigestAlarms, at a leader, rounds in which no majority agreed.
	DigestMismatches, DigestAlarms uint64
	// LogPinBytes is how much of the log this leader keeps for replicas that are
	// getting an image. It is not a counter.
	LogPinBytes int64
	// InboxDropped are messages dropped because the inbox was full.
	InboxDropped uint64
}

type groupMetrics struct {
	pinnedBytes atomic.Int64 // LogPinBytes

	entries, commands, applied, overloaded, readRounds, stepErrors, installs, digestMismatches, digestAlarms atomic.Uint64
}

// LogWriting is the figure of that name of Metrics alone: it allocates nothing
// and may be asked often.
func (n *Node) LogWriting() time.Duration {
	since := n.appender.since.Load()
	if since < 0 {
		return 0
	}
	return max(n.age()-time.Duration(since), 0)
}

// age is the time since the node was opened, by the monotonic clock.
func (n *Node) age() time.Duration { return time.Since(n.opened) }

// Metrics returns the counters of the node, also after it failed.
func (n *Node) Metrics() Metrics {
	m := Metrics{Log: n.logStore.Metrics(), LogWriting: n.LogWriting()}
	for _, g := range n.ordered {
		g.mailbox.mu.Lock()
		dropped := g.mailbox.dropped
		g.mailbox.mu.Unlock()
		m.Groups = append(m.Groups, GroupMetrics{
			Group: g.id, Entries: g.metrics.entries.Load(), Commands: g.metrics.commands.Load(),
			Applied: g.metrics.applied.Load(), Overloaded: g.metrics.overloaded.Load(),
			ReadRounds: g.metrics.readRounds.Load(), StepErrors: g.metrics.stepErrors.Load(),
			LogPinBytes:  g.metrics.pinnedBytes.Load(),
			InboxDropped: dropped, Installs: g.metrics.installs.Load(),
			DigestMismatches: g.metrics.digestMismatches.Load(), DigestAlarms: g.metrics.digestAlarms.Load(),
		})
	}
	return m
}

// String writes the metrics as a table for logs and terminals.
func (m Metrics) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", strings.TrimRight(m.Log.String(), "\n"))
	fmt.Fprintf(&b, "%6s %10s %10s %10s %10s %10s %10s %10s\n", "group", "entries", "commands", "applied", "overload", "readrounds", "steperrs", "dropped")
	for _, g := range m.Groups {
		fmt.Fprintf(&b, "%6d %10d %10d %10d %10d %10d %10d %10d\n",
			g.Group, g.Entries, g.Commands, g.Applied, g.Overloaded, g.ReadRounds, g.StepErrors, g.InboxDropped)
	}
	return b.String()
}

// Status returns the node as it is now; on a failed node, as it was last.
func (n *Node) Status() Status {
	n.identityMu.Lock()
	s := Status{
		Node:            n.opts.Node,
		ClusterID:       n.identity.clusterID(),
		Removed:         n.removed.Load(),
		HistoryEpoch:    n.identity.node.GetHistoryEpoch(),
		NodeIncarnation: fmt.Sprintf("%x", n.identity.node.GetNodeIncarnation()),
		NoSpace:         n.noSpace(),
		LogDiskBytes:    n.logStore.DiskBytes(),
	}
	for _, f := range n.identity.founding.GetNodes() {
		if f.GetNode() == n.opts.Node {
			s.Address = f.GetAddress()
		}
	}
	n.identityMu.Unlock()
	if err := n.Err(); err != nil {
		s.Failure = err.Error()
	}
	if usage := n.diskUsage.Load(); usage != nil {
		s.Disk = *usage
	}
	for _, g := range n.ordered {
		s.Groups = append(s.Groups, g.Status())
	}
	return s
}

// Status returns the group as this replica sees it. Figures of raft are at most
// a heartbeat interval old.
func (g *Group) Status() GroupStatus {
	soft := g.soft.Load()
	s := GroupStatus{
		Group: g.id, RaftID: g.raftID, Role: soft.role, Term: soft.term,
		Commit: soft.commit, Applied: g.Applied(),
		FirstIndex: g.logs.FirstIndex(), LastIndex: g.logs.LastIndex(), LogBytes: g.logs.LiveBytes(),
		Leader: soft.leader, LeaderNode: soft.leaderNode, LeaderAddress: soft.leaderAddress,
		Replicas: soft.replicas,
	}
	s.PendingProposals, s.PendingBytes = g.pending.size()
	if err := g.failure.Load(); err != nil {
		s.Failure = (*err).Error()
	} else if reason := g.unsound.Load(); reason != nil {
		s.Quarantined = (*reason).Error()
	} else if !g.node.closed.Load() {
		s.DurableApplied = g.sm().DurableApplied()
	}
	return s
}

// replicaStatus lists the replicas; a leader adds their progress.
func (g *Group) replicaStatus(members *raftv1.Membership, role Role) []ReplicaStatus {
	list := make([]ReplicaStatus, 0, len(members.GetReplicas()))
	for _, r := range members.GetReplicas() {
		list = append(list, ReplicaStatus{RaftID: r.GetRaftId(), Node: r.GetNode(), Address: r.GetAddress()})
	}
	for i := range list {
		for _, id := range members.GetLearners() {
			list[i].Learner = list[i].Learner || id == list[i].RaftID
		}
	}
	if role != RoleLeader {
		return list
	}
	g.raw.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		for i := range list {
			if list[i].RaftID == id {
				list[i].Match, list[i].Active = pr.Match, g.answers(id)
				list[i].Silent = time.Duration(g.silent[id]) * g.node.opts.TickInterval
				list[i].Progress = progressName(pr.State)
			}
		}
	})
	return list
}

func progressName(s tracker.StateType) string {
	switch s {
	case tracker.StateProbe:
		return "probe"
	case tracker.StateReplicate:
		return "replicate"
	default:
		return "snapshot"
	}
}

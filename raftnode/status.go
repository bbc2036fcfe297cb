package raftnode

import (
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Role of a replica in its group.
type Role string

// Roles.
const (
	RoleLeader    Role = "leader"
	RoleFollower  Role = "follower"
	RoleCandidate Role = "candidate"
	RoleLearner   Role = "learner"
)

// Status is a node at one moment.
type Status struct {
	Node    string
	Address string
	// ClusterID is hex; empty until founded.
	ClusterID       string
	HistoryEpoch    uint64
	NodeIncarnation string
	// Removed tells that no replica of this node is a member of its group any
	// more. Its data is left as it is.
	Removed bool
	// Failure is why the node failed; empty while it is well.
	Failure string
	// NoSpace tells that writes are refused for want of disk space.
	NoSpace bool
	Disk    vfs.DiskUsage
	// LogDiskBytes is the size of all log segments on disk.
	LogDiskBytes int64
	// Groups in order of their ids.
	Groups []GroupStatus
}

// GroupStatus is one group as this node's replica sees it.
type GroupStatus struct {
	Group  uint64
	RaftID uint64
	Role   Role
	Term   uint64
	// Commit, Applied and DurableApplied are indexes of the log.
	Commit         uint64
	Applied        uint64
	DurableApplied uint64
	// FirstIndex and LastIndex bound the log that is kept.
	FirstIndex uint64
	LastIndex  uint64
	// LogBytes is the size of the group's live entries.
	LogBytes int64
	// Leader is the raft id of the leader, 0 while none is known.
	Leader        uint64
	LeaderNode    string
	LeaderAddress string
	// Replicas of the group, by raft id.
	Replicas []ReplicaStatus
	// PendingProposals and PendingBytes wait for their result here.
	PendingProposals int
	PendingBytes     int64
	// Failure is why the replica stopped; empty while it runs.
	Failure string
	// Quarantined is why its state is unsound: it votes and keeps its log, and
	// serves nothing until it got another state. Empty while the state is sound.
	Quarantined string
}

// ReplicaStatus is one replica of a group. Match, Active and Progress are known
// to the leader only.
type ReplicaStatus struct {
	RaftID  uint64
	Node    string
	Address string
	Learner bool
	// Match is the highest index known to be on the replica's disk.
	Match uint64
	// Active tells that the replica answered within an election timeout.
	Active bool
	// Silent is for how long this leader has heard nothing of it; 0 where it
	// answers.
	Silent time.Duration
	// Progress is probe, replicate or snapshot.
	Progress string
}

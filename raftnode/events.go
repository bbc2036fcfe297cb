package raftnode

import "time"

// EventListener is told what happens in a node. Every field may be nil. The
// functions are called from several of the node's goroutines, also at the same
// time, and must return at once; they must not call back into the node.
type EventListener struct {
	// LeaderChanged: a replica learned of another leader (raft id and node; 0
	// and "" while there is none) or another term.
	LeaderChanged func(LeaderInfo)
	// MembershipApplied: a configuration change was applied.
	MembershipApplied func(MembershipInfo)
	// Applied: entries up to an index are applied and visible to readers.
	Applied func(group, index uint64)
	// LogCut: entries up to an index were cut from the log.
	LogCut func(group, index uint64)
	// Committed: an entry that this replica proposed as leader is applied; took is
	// the time since the oldest of its commands was taken. It is what those who
	// propose wait for, and is called before they are answered.
	Committed func(group uint64, took time.Duration)
	// LogSynced: one batch of the log is durable.
	LogSynced func(duration time.Duration, bytes int)
	// Founded: the node became part of a new cluster.
	Founded func(clusterID string)
	// Removed: the node learned that none of its replicas is a member any more,
	// and from whom.
	Removed func(reason string)
	// NoSpace: the disk reserve was reached (true) or space returned (false).
	NoSpace func(on bool, availableBytes uint64)
	// GroupFailed: one replica stopped for good.
	GroupFailed func(group uint64, err error)
	// NodeFailed: the node stopped for good.
	NodeFailed func(err error)
}

// LeaderInfo is what LeaderChanged tells.
type LeaderInfo struct {
	Group  uint64
	Term   uint64
	Leader uint64
	Node   string
	// Self tells that this replica is the leader.
	Self bool
}

// MembershipInfo is what MembershipApplied tells.
type MembershipInfo struct {
	Group    uint64
	Index    uint64
	Voters   []uint64
	Learners []uint64
}

// Tee returns a listener that calls a, then b.
func Tee(a, b EventListener) EventListener {
	return EventListener{
		LeaderChanged:     tee1(a.LeaderChanged, b.LeaderChanged),
		MembershipApplied: tee1(a.MembershipApplied, b.MembershipApplied),
		Applied:           tee2(a.Applied, b.Applied),
		LogCut:            tee2(a.LogCut, b.LogCut),
		Committed:         tee2(a.Committed, b.Committed),
		LogSynced:         tee2(a.LogSynced, b.LogSynced),
		Founded:           tee1(a.Founded, b.Founded),
		Removed:           tee1(a.Removed, b.Removed),
		NoSpace:           tee2(a.NoSpace, b.NoSpace),
		GroupFailed:       tee2(a.GroupFailed, b.GroupFailed),
		NodeFailed:        tee1(a.NodeFailed, b.NodeFailed),
	}
}

func tee1[T any](a, b func(T)) func(T) {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	return func(t T) { a(t); b(t) }
}

func tee2[T, U any](a, b func(T, U)) func(T, U) {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	return func(t T, u U) { a(t, u); b(t, u) }
}

// ensureDefaults makes every field callable.
func (l *EventListener) ensureDefaults() {
	*l = Tee(*l, EventListener{
		LeaderChanged:     func(LeaderInfo) {},
		MembershipApplied: func(MembershipInfo) {},
		Applied:           func(uint64, uint64) {},
		LogCut:            func(uint64, uint64) {},
		Committed:         func(uint64, time.Duration) {},
		LogSynced:         func(time.Duration, int) {},
		Founded:           func(string) {},
		Removed:           func(string) {},
		NoSpace:           func(bool, uint64) {},
		GroupFailed:       func(uint64, error) {},
		NodeFailed:        func(error) {},
	})
}

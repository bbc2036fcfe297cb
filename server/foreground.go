package server

import (
	"time"

	"github.com/streamraft/streamraft/snapshot"
)

// slowDisk is what a batch of the log may take, whatever the disk is used to:
// beyond it everybody waits for the disk, and nobody for the network.
const slowDisk = 100 * time.Millisecond

// foreground tells the pacing how clients fare; see snapshot.Foreground. A node
// without load has no base: then only stalled writes and a slow disk slow a
// transfer down.
type foreground struct {
	commit, logSync *latencyTrack
	// transferring tells that images are sent or received.
	transferring func() bool
	// logWriting is how long the batch of the log under way has taken.
	logWriting func() time.Duration
	// stores tells whether one holds writes up, and the most sublevels of L0.
	stores func() (stalled bool, sublevels int)
}

func (s *Server) newForeground() *foreground {
	return &foreground{
		commit: newLatencyTrack(), logSync: newLatencyTrack(),
		transferring: func() bool { return s.pacer.Active() > 0 || s.receiver.Running() > 0 },
		logWriting: func() time.Duration {
			if node := s.node.Load(); node != nil {
				return node.LogWriting()
			}
			return 0
		},
		stores: func() (stalled bool, sublevels int) {
			for _, r := range s.replicas() {
				m := r.store.Metrics()
				stalled, sublevels = stalled || m.WriteStalled, max(sublevels, m.L0Sublevels)
			}
			return stalled, sublevels
		},
	}
}

// committed and synced count what raftnode tells.
func (f *foreground) committed(took time.Duration) { f.commit.add(took, f.transferring()) }
func (f *foreground) synced(took time.Duration)    { f.logSync.add(took, f.transferring()) }

// Base implements snapshot.Foreground. The pacer asks before the transfer counts
// as running.
func (f *foreground) Base() snapshot.Latencies {
	on := f.transferring()
	return snapshot.Latencies{Commit: f.commit.baseP99(on), LogSync: f.logSync.baseP99(on)}
}

// Recent implements snapshot.Foreground.
func (f *foreground) Recent(d time.Duration) snapshot.Latencies {
	return snapshot.Latencies{Commit: f.commit.recentP99(d), LogSync: f.logSync.recentP99(d)}
}

// WriteStalled implements snapshot.Foreground. A batch of the log that hangs is
// no sync yet, so its age counts too. Commits that wait do not: where a quorum is
// missing, the transfer may be what brings it back.
func (f *foreground) WriteStalled() bool {
	slow := max(slowDisk, 2*f.logSync.baseP99(true))
	if f.logWriting() > slow || f.logSync.recentP99(time.Second) > slow {
		return true
	}
	stalled, _ := f.stores()
	return stalled
}

// L0Sublevels implements snapshot.Foreground.
func (f *foreground) L0Sublevels() int {
	_, sublevels := f.stores()
	return sublevels
}

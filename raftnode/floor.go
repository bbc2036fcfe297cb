package raftnode

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// How much of the log a leader keeps for its members, in multiples of
// Options.LogBudgetBytes. Past it a member gets an image instead.
const (
	// keepForSilent: for a member that does not answer.
	keepForSilent = 1
	// keepForLive: for one that answers but falls behind, and behind the image
	// of one that is getting one (the pin of a transfer). A second full image
	// within one recovery would be worse than the disk this takes.
	keepForLive = 4
)

// memberFloor returns the index up to which no member needs the log, as far as
// this leader knows. It never goes back: what a log has on disk stays there, and
// who was given up gets an image.
func (g *Group) memberFloor() uint64 {
	images := g.images != nil
	live, budget := g.logs.LiveBytes(), g.node.opts.LogBudgetBytes
	floor := ^uint64(0)
	g.raw.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		needs := pr.Match
		pin, transfer := g.offers.pin(id)
		if transfer {
			needs = max(pin, needs)
		}
		if images && id != g.raftID {
			if live > keepForLive*budget {
				return
			}
			if !transfer && live > keepForSilent*budget && g.silent[id] > 4*g.node.opts.ElectionTicks {
				return
			}
		}
		floor = min(floor, needs)
	})
	if floor == ^uint64(0) {
		return g.floor.Load()
	}
	return max(floor, g.floor.Load())
}

// noteSilence counts the ticks since each member answered. Raft's own flag is
// cleared at every check of the quorum, so it is false for moments.
func (g *Group) noteSilence(ticks int) {
	g.notePins()
	if g.soft.Load().role != RoleLeader {
		clear(g.silent)
		return
	}
	g.raw.WithProgress(func(id uint64, _ raft.ProgressType, _ tracker.Progress) {
		if at, heard := g.heardAt[id]; heard && g.ticks-at <= ticks {
			g.silent[id] = 0
		} else {
			g.silent[id] += ticks
		}
	})
}

// notePins publishes how much of the log is kept behind the images that replicas
// are getting from this leader, judged by the share of the entries.
func (g *Group) notePins() {
	if len(g.offers.byReplica) == 0 {
		g.metrics.pinnedBytes.Store(0)
		return
	}
	lowest := ^uint64(0)
	g.raw.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if pin, transfer := g.offers.pin(id); transfer {
			lowest = min(lowest, max(pin, pr.Match))
		}
	})
	first, last := g.logs.FirstIndex(), g.logs.LastIndex()
	if lowest = max(lowest, first-1); last < first || lowest >= last {
		g.metrics.pinnedBytes.Store(0)
		return
	}
	g.metrics.pinnedBytes.Store(int64(float64(last-lowest) / float64(last-first+1) * float64(g.logs.LiveBytes())))
}

package raftnode

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// runMaintenance watches the disk and keeps the logs short, until the node
// stops. Flushes run beside it, one per group at a time.
func (n *Node) runMaintenance() {
	flushing := make(map[*Group]chan struct{})
	expired := n.opts.Clock.Now()
	ticks, stop := n.opts.Clock.NewTicker(n.opts.DiskCheckInterval)
	defer stop()
	for {
		n.watchDisk()
		for _, g := range n.ordered {
			if done, ok := flushing[g]; ok {
				select {
				case <-done:
					delete(flushing, g)
				default:
				}
			}
			if _, busy := flushing[g]; !busy && g.wantsFlush() {
				done := make(chan struct{})
				flushing[g] = done
				n.flushes.Go(func() { defer close(done); g.flush() })
			}
			g.cutLog()
		}
		n.appender.prove()
		if now := n.opts.Clock.Now(); now.Sub(expired) >= imageExpiryCheck {
			expired = now
			n.expireImages()
		}
		select {
		case <-n.stop:
			return
		case <-ticks:
		}
	}
}

// watchDisk takes the node in and out of the mode without space.
func (n *Node) watchDisk() {
	if n.opts.DiskReserveBytes < 0 {
		return
	}
	usage, err := n.opts.FS.GetDiskUsage(n.opts.Dir)
	if err != nil {
		n.setNoSpace(&n.belowReserve, false) // a file system that cannot tell is not watched
		return
	}
	n.diskUsage.Store(&usage)
	reserve := uint64(n.opts.DiskReserveBytes)
	if n.belowReserve.Load() {
		// Some more than the reserve, so that the mode does not flap.
		reserve += reserve / 4
	}
	n.setNoSpace(&n.belowReserve, usage.AvailBytes < reserve)
}

// noSpace tells that the node takes no writes: too little space is left, or the
// log waits for some (a quota can be reached while the disk has space).
func (n *Node) noSpace() bool { return n.belowReserve.Load() || n.logWaits.Load() }

// setNoSpace sets one of the two reasons for that mode, and tells of a change.
func (n *Node) setNoSpace(reason *atomic.Bool, on bool) {
	n.spaceMu.Lock()
	defer n.spaceMu.Unlock()
	before := n.noSpace()
	reason.Store(on)
	if on = n.noSpace(); on == before {
		return
	}
	var available uint64
	if usage := n.diskUsage.Load(); usage != nil {
		available = usage.AvailBytes
	}
	if on {
		n.log.Error("disk reserve reached: this node refuses writes, hands its leaderships away and takes no new entries; it goes on by itself when space returns",
			"available_bytes", available, "reserve_bytes", n.opts.DiskReserveBytes, "dir", n.opts.Dir)
	} else {
		n.log.Info("disk space is back; the node takes writes again", "available_bytes", available)
	}
	n.opts.Listener.NoSpace(on, available)
}

// wantsFlush tells that the log above the durable applied index is over its
// budget, so that the state machine must become durable before it can be cut.
func (g *Group) wantsFlush() bool {
	if g.logs.LiveBytes() <= g.node.opts.LogBudgetBytes || g.failure.Load() != nil || g.quarantined() {
		return false
	}
	// Flushing helps only if something applied is not durable yet; and members
	// that are behind hold the log whatever is flushed here.
	return g.sm().DurableApplied() < min(g.Applied(), g.floor.Load())
}

func (g *Group) flush() {
	start := time.Now()
	if err := g.sm().Flush(); err != nil {
		g.log.Error("flushing the state machine failed; the log cannot be cut", "error", err)
		return
	}
	g.log.Debug("flushed the state machine to cut the log", "duration", time.Since(start))
}

// cutLog cuts what neither this replica after a crash nor any member needs. A
// cut costs a log record, so small ones wait.
func (g *Group) cutLog() {
	g.cutMu.Lock()
	defer g.cutMu.Unlock()
	if g.failure.Load() != nil || g.node.failed() || g.quarantined() {
		return
	}
	to := min(g.sm().DurableApplied(), g.floor.Load(), g.raftApplied.Load())
	first := g.logs.FirstIndex()
	if to < first || !g.worthCutting(first, to) || g.cutting.Swap(true) {
		return
	}
	term, err := g.logs.Term(to)
	if err != nil {
		g.fail(fmt.Errorf("cut the log at index %d: %w", to, err))
		return
	}
	g.node.appender.put(appendRequest{
		group:  g,
		update: raftlog.Update{Group: g.id, Marker: &raftlog.Marker{Index: to, Term: term}},
		sync:   true,
		done: func() {
			g.cutting.Store(false)
			g.node.opts.Listener.LogCut(g.id, to)
		},
	})
}

// worthCutting: an eighth of the budget, judged by the share of the entries.
func (g *Group) worthCutting(first, to uint64) bool {
	last := g.logs.LastIndex()
	if last < first {
		return false
	}
	live := g.logs.LiveBytes()
	share := float64(to-first+1) / float64(last-first+1)
	return share*float64(live) >= float64(g.node.opts.LogBudgetBytes)/8
}

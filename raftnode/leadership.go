package raftnode

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// TransferLeader makes another node lead the group; it must be called on the
// leader. node "" picks the voter that is furthest. It blocks until another
// leader is known, raft gave up (after an election timeout), or ctx ends.
// Proposals wait or are dropped meanwhile.
//
// Errors: ErrNotLeader, ErrFailed, ErrClosed, or one that says what is wrong.
func (g *Group) TransferLeader(ctx context.Context, node string) error {
	return g.transferLeader(ctx, func() (uint64, error) { return g.transferTarget(node) })
}

// transferLeader hands over to the raft id that choose, called on the step
// goroutine, returns.
func (g *Group) transferLeader(ctx context.Context, choose func() (uint64, error)) error {
	var target uint64
	var problem error
	err := g.call(ctx, func() {
		if g.soft.Load().role != RoleLeader {
			problem = g.notLeader()
			return
		}
		if target, problem = choose(); problem == nil {
			g.raw.TransferLeader(target)
			g.handleReady()
		}
	})
	if err != nil {
		return err // problem may still be written
	}
	if problem != nil {
		return problem
	}
	// Raft gives up after one election timeout; look again then.
	limit := time.NewTimer(time.Duration(2*g.node.opts.ElectionTicks) * g.node.opts.TickInterval)
	defer limit.Stop()
	for {
		changed := g.waiters.leaderChange()
		if s := g.soft.Load(); s.leader == target {
			return nil
		} else if s.role == RoleFollower && s.leader != raft.None {
			return fmt.Errorf("raftnode: group %d: node %s became leader instead", g.id, s.leaderNode)
		}
		select {
		case <-changed:
		case <-g.stopped:
			return g.closedError()
		case <-ctx.Done():
			return fmt.Errorf("raftnode: group %d: leader transfer to %s did not end: %w", g.id, g.nodeOf(target), context.Cause(ctx))
		case <-limit.C:
			return fmt.Errorf("raftnode: group %d: leader transfer to %s was given up; it did not catch up or answer in time", g.id, g.nodeOf(target))
		}
	}
}

// transferTarget finds the voter on a node, or the furthest one.
func (g *Group) transferTarget(node string) (uint64, error) {
	if node == "" {
		if to := g.bestFollower(); to != raft.None {
			return to, nil
		}
		return 0, fmt.Errorf("raftnode: group %d: no other voter answers", g.id)
	}
	learner := false
	for _, r := range g.soft.Load().replicas {
		switch {
		case r.Node != node:
		case r.RaftID == g.raftID:
			return 0, fmt.Errorf("raftnode: group %d: node %s is the leader already", g.id, node)
		case r.Learner: // a node that is being replaced has a voter too
			learner = true
		default:
			return r.RaftID, nil
		}
	}
	if learner {
		return 0, fmt.Errorf("raftnode: group %d: node %s is a learner; only voters can lead", g.id, node)
	}
	return 0, fmt.Errorf("raftnode: group %d: node %s has no replica of it", g.id, node)
}

// bestFollower returns the active voter with the longest log that is none of
// except, or 0. It runs on the step goroutine of a leader.
func (g *Group) bestFollower(except ...uint64) uint64 {
	best, match := uint64(raft.None), uint64(0)
	g.raw.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		if id != g.raftID && !slices.Contains(except, id) && typ == raft.ProgressTypePeer && g.answers(id) && g.offers.byReplica[id] == nil && (best == raft.None || pr.Match > match) {
			best, match = id, pr.Match
		}
	})
	return best
}

// nextFollower is bestFollower for a leader that must go: one after the other is
// asked, since the best may have no space either.
func (g *Group) nextFollower() uint64 {
	to := g.bestFollower(g.handedTo...)
	if to == raft.None {
		g.handedTo = nil
		to = g.bestFollower()
	}
	if to != raft.None {
		g.handedTo = append(g.handedTo, to)
	}
	return to
}

// Shutdown hands the node's leaderships over, as far as others take them before
// ctx ends, waits for the results of what was proposed before, and closes the
// node. The result is that of Close.
func (n *Node) Shutdown(ctx context.Context) error {
	var transfers sync.WaitGroup
	for _, g := range n.ordered {
		if g.soft.Load().role != RoleLeader {
			continue
		}
		transfers.Go(func() {
			if err := g.TransferLeader(ctx, ""); err != nil {
				g.log.Info("leadership was not handed over before the stop", "reason", err)
				return
			}
			g.awaitResults(ctx)
		})
	}
	transfers.Wait()
	return n.Close()
}

// awaitResults waits until nothing is open that this replica proposed before it
// handed its leadership over: the new leader commits it or puts something else
// in its place, and either is a certain answer. Without a majority neither
// comes, so it waits no longer than an election takes.
func (g *Group) awaitResults(ctx context.Context) {
	o := &g.node.opts
	ctx, cancel := context.WithTimeout(ctx, time.Duration(2*o.ElectionTicks)*o.TickInterval)
	defer cancel()
	ticker := time.NewTicker(o.TickInterval)
	defer ticker.Stop()
	for {
		if open, _ := g.pending.size(); open == 0 {
			return
		}
		select {
		case <-ticker.C:
		case <-g.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
}

// roleOf names raft's state.
func (g *Group) roleOf(st raft.BasicStatus, members *raftv1.Membership) Role {
	switch st.RaftState {
	case raft.StateLeader:
		return RoleLeader
	case raft.StateCandidate, raft.StatePreCandidate:
		return RoleCandidate
	}
	for _, id := range members.GetLearners() {
		if id == g.raftID {
			return RoleLearner
		}
	}
	return RoleFollower
}

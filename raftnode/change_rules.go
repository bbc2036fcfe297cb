package raftnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/tracker"
)

// errSilent marks refusals because members have not answered yet.
var errSilent = errors.New("a member does not answer")

// checkChange holds a change against the rules. It runs on the step goroutine:
// no change can come between it and the membership it looks at but through the
// log, and raft takes none while one is not applied.
func (g *Group) checkChange(change *Change, h *hearing) error {
	if g.soft.Load().role != RoleLeader {
		return g.notLeader()
	}
	if len(change.AddLearners)+len(change.Promote)+len(change.Remove) == 0 {
		return g.refuseChange("it changes nothing")
	}
	g.beginHearing(h)
	members := g.members.Load()
	if len(members.GetVotersOutgoing()) > 0 {
		return fmt.Errorf("%w: group %d is still leaving a joint configuration", ErrChangePending, g.id)
	}
	named := make(map[uint64]bool)
	once := func(id uint64) error {
		if id == raft.None || named[id] {
			return g.refuseChange("raft id %d is zero or named twice", id)
		}
		named[id] = true
		return nil
	}
	for _, r := range change.AddLearners {
		if err := errors.Join(once(r.RaftID), g.checkNewReplica(&r)); err != nil {
			return err
		}
	}
	voters := slices.Clone(members.GetVoters())
	for _, id := range change.Promote {
		if err := once(id); err != nil {
			return err
		}
		if !slices.Contains(members.GetLearners(), id) {
			return g.refuseChange("replica %x is not one of its learners; only a learner can be promoted", id)
		}
		if err := g.checkCaughtUp(id, h); err != nil {
			return err
		}
		voters = append(voters, id)
	}
	for _, id := range change.Remove {
		if err := once(id); err != nil {
			return err
		}
		switch {
		case slices.Contains(voters, id):
			voters = slices.DeleteFunc(voters, func(v uint64) bool { return v == id })
		case !slices.Contains(members.GetLearners(), id):
			return g.refuseChange("replica %x is no member of it", id)
		}
	}
	if len(change.Promote)+len(change.Remove) == 0 {
		return nil // learners have no voice
	}
	return g.checkMajority(voters, h)
}

// A hearing is whom this leader has heard of since a change was asked for. What
// raft knows of who answers may be two election timeouts old: a member that died
// in between would count.
type hearing struct {
	begun bool
	ids   map[uint64]bool
}

func newHearing() *hearing { return &hearing{ids: make(map[uint64]bool)} }

// beginHearing starts to listen, once, on the step goroutine.
func (g *Group) beginHearing(h *hearing) {
	if !h.begun {
		h.begun, h.ids[g.raftID] = true, true
		g.hearings = append(g.hearings, h)
	}
}

// endHearing stops to listen. It does not wait.
func (g *Group) endHearing(h *hearing) {
	_ = g.mailbox.putCall(func() { // fails only once the group has stopped
		g.hearings = slices.DeleteFunc(g.hearings, func(o *hearing) bool { return o == h })
	})
}

// hear notes that a member answered, on the step goroutine.
func (g *Group) hear(raftID uint64) {
	for _, h := range g.hearings {
		h.ids[raftID] = true
	}
	if g.heardAt == nil || len(g.heardAt) >= maxRoutes {
		g.heardAt = make(map[uint64]int)
	}
	g.heardAt[raftID] = g.ticks
}

// answers tells that a replica was heard of within an election timeout. Raft
// knows too, but forgets all of it once per election timeout.
func (g *Group) answers(raftID uint64) bool {
	at, heard := g.heardAt[raftID]
	return raftID == g.raftID || heard && g.ticks-at <= g.node.opts.ElectionTicks
}

func (g *Group) refuseChange(format string, args ...any) error {
	return fmt.Errorf("%w: group %d: %w", ErrChangeRefused, g.id, fmt.Errorf(format, args...))
}

func (g *Group) checkNewReplica(r *NewReplica) error {
	members := g.members.Load()
	if err := checkNodeName(r.Node); err != nil {
		return g.refuseChange("%w", err)
	}
	if r.Address == "" {
		return g.refuseChange("node %s has no address", r.Node)
	}
	if slices.Contains(members.GetRemoved(), r.RaftID) {
		return g.refuseChange("replica %x of node %s was removed and never comes back; start the node with an empty directory", r.RaftID, r.Node)
	}
	for _, o := range members.GetReplicas() {
		if o.GetRaftId() == r.RaftID {
			return g.refuseChange("replica %x is a member already, on node %s", r.RaftID, o.GetNode())
		}
		if o.GetAddress() == r.Address && o.GetNode() != r.Node {
			return g.refuseChange("address %s is that of node %s", r.Address, o.GetNode())
		}
	}
	return nil
}

// checkCaughtUp refuses a learner that as a voter would hold up commits until
// it has caught up (raft thesis, section 4.2.1).
func (g *Group) checkCaughtUp(id uint64, h *hearing) error {
	var pr tracker.Progress
	g.raw.WithProgress(func(other uint64, _ raft.ProgressType, p tracker.Progress) {
		if other == id {
			pr = p
		}
	})
	commit := g.raw.BasicStatus().HardState.GetCommit()
	if behind := commit - min(commit, pr.Match); behind > maxPromotionLag || pr.State == tracker.StateSnapshot {
		return g.refuseChange("node %s is %d entries behind, at most %d; wait until it has caught up", g.nodeOf(id), behind, maxPromotionLag)
	}
	if !h.ids[id] {
		return g.refuseChange("%w: learner on node %s; start it or mend its connection", errSilent, g.nodeOf(id))
	}
	return nil
}

// checkMajority refuses a set of voters of which no majority answers now.
func (g *Group) checkMajority(voters []uint64, h *hearing) error {
	if len(voters) == 0 {
		return g.refuseChange("it would have no voter left")
	}
	var silent []string
	for _, id := range voters {
		if !h.ids[id] {
			silent = append(silent, g.nodeOf(id))
		}
	}
	if need := len(voters)/2 + 1; len(voters)-len(silent) < need {
		return g.refuseChange("%w: of the %d voters after it only %d would answer (not: %s), and %d are needed, so the group would stand still",
			errSilent, len(voters), len(voters)-len(silent), strings.Join(silent, ", "), need)
	}
	return nil
}

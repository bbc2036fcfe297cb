package testcluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
)

// lostDisk is how a node that lost its disk comes back: it joins under its
// name, its new replicas become learners, and each takes the place of the old one
// in one change. A run has at most one.
type lostDisk struct {
	member *member
	old    map[uint64]uint64 // raft ids by group
	work   sync.WaitGroup
	cancel context.CancelFunc
	done   atomic.Bool
	// joining: the node is starting; nobody else may start it.
	joining atomic.Bool
}

// loseDisk crashes a node, takes its disk, and brings it back beside the plan.
// The other nodes are enough for what was acknowledged: the old replica says
// nothing any more.
func (in *injurer) loseDisk(m *member) {
	c := in.c
	if c.replacing != nil {
		return
	}
	p := &lostDisk{member: m, old: make(map[uint64]uint64)}
	for _, g := range m.current().node.Status().Groups {
		p.old[g.Group] = g.RaftID
	}
	in.crash(m, crashNone)
	c.trace.add("%s loses its disk", m.name)
	m.disk = newDisk(vfs.NewCrashableMem())
	m.replaced++
	m.promises, m.terms = make(map[uint64]*promise), make(map[uint64]map[uint64]uint64)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.joining.Store(true)
	c.replacing = p
	p.work.Go(func() {
		err := m.start(ctx)
		p.joining.Store(false)
		if err != nil {
			c.checker.violation("%s does not join: %v", m.name, err)
			return
		}
		// Not one group after the other: nobody talks to a node before all groups
		// know its new directory.
		for left := len(groups()); left > 0; {
			if !pause(ctx, 50*time.Millisecond) {
				return
			}
			left = 0
			for _, group := range groups() {
				if !c.swap(ctx, p, group) {
					left++
				}
			}
		}
		c.trace.add("%s is replaced", m.name)
		p.done.Store(true)
		c.checker.count(func(t *Totals) { t.Replaced++ })
	})
}

// swap takes the next step of a group's replacement; true: nothing is left to do.
// What fails is tried again: nodes crash and leaders change meanwhile.
func (c *cluster) swap(ctx context.Context, p *lostDisk, group uint64) bool {
	leader, joined := c.leader(group), p.member.current()
	if leader == nil || joined == nil {
		return false
	}
	r := leader.current()
	if r == nil {
		return false
	}
	g, err := r.node.Group(group)
	if err != nil {
		return false
	}
	hello := joined.node.Hello()
	replica := raftnode.NewReplica{Node: p.member.name, Address: p.member.address, Incarnation: hello.GetNodeIncarnation()}
	for _, id := range hello.GetReplicas() {
		if id.GetGroup() == group {
			replica.RaftID = id.GetRaftId()
		}
	}
	members := g.Membership()
	var change raftnode.Change
	switch {
	case slices.Contains(members.GetVoters(), replica.RaftID):
		return len(members.GetVotersOutgoing()) == 0
	case slices.Contains(members.GetLearners(), replica.RaftID):
		change = raftnode.Change{Promote: []uint64{replica.RaftID}, Remove: []uint64{p.old[group]}}
	default:
		change = raftnode.Change{AddLearners: []raftnode.NewReplica{replica}}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = g.ChangeMembership(ctx, change)
	c.trace.add("%s: change of group %d for %s, add %d promote %d: %v", r, group, p.member.name, len(change.AddLearners), len(change.Promote), err)
	if err == nil && len(change.Promote) > 0 {
		c.checker.count(func(t *Totals) { t.Promotions++ })
	}
	return false
}

// awaitReplacement waits until a node that lost its disk is a member again.
func (c *cluster) awaitReplacement() {
	p := c.replacing
	if p == nil {
		return
	}
	timer := time.AfterFunc(recoveryLimit, p.cancel)
	p.work.Wait()
	timer.Stop()
	p.cancel()
	if !p.done.Load() {
		c.checker.violation("%s lost its disk and is not replaced within %v after everything was healed", p.member.name, recoveryLimit)
	}
}

// voter names a node's replicas between two losses of its disk: those that come
// after one may vote anew in the same term, since they are others.
func (m *member) voter() string { return fmt.Sprintf("%s/%d", m.name, m.replaced) }

// join is how the node joins once it lost the disk with which it was founded.
func (m *member) join(o *raftnode.Options) {
	if m.replaced == 0 {
		return
	}
	j := &raftnode.Join{Replace: true}
	for _, other := range m.cluster.members {
		if other != m {
			j.Addresses = append(j.Addresses, other.address)
		}
	}
	o.Founders, o.Groups, o.Join, o.Address = nil, nil, j, m.address
}

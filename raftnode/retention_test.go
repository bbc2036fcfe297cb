package raftnode_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

// keeping is a chain that becomes durable when it is flushed: it keeps a copy
// outside of the node, as a disk would, and starts from it.
type keeping struct {
	chain
	disk *chain
}

func (k *keeping) Open(string) (raftnode.Applied, error) {
	k.disk.mu.Lock()
	defer k.disk.mu.Unlock()
	k.applied, k.sum, k.count, k.clock = k.disk.applied, k.disk.sum, k.disk.count, k.disk.clock
	return k.applied, nil
}

func (k *keeping) DurableApplied() uint64 {
	applied, _, _ := k.disk.state()
	return applied
}

func (k *keeping) Flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.disk.mu.Lock()
	defer k.disk.mu.Unlock()
	k.disk.applied, k.disk.sum, k.disk.count, k.disk.clock = k.applied, k.sum, k.count, k.clock
	return nil
}

// TestLogRetention: the log is cut once the state is durable, never above what a
// member that is away needs, and the member catches up from it.
func TestLogRetention(t *testing.T) {
	disks := map[string]*chain{}
	machines := map[string]*keeping{}
	c := newCluster(t, 3, func(o *raftnode.Options) {
		o.LogBudgetBytes, o.DiskCheckInterval = 64<<10, 10*time.Millisecond
		o.LogSegmentBytes, o.MaxCommandBytes, o.MaxEntryBytes, o.MaxMessageBytes = 256<<10, 64<<10, 16<<10, 16<<10
		o.NewStateMachine = func(group uint64) raftnode.StateMachine {
			key := fmt.Sprintf("%s%d", o.Node, group)
			if disks[key] == nil {
				disks[key] = &chain{}
			}
			machines[key] = &keeping{disk: disks[key]}
			return machines[key]
		}
	})
	c.founders = c.founders[:1]
	c.members = c.members[:1]
	c.openAll()
	command := string(make([]byte, 1000))
	for range 300 {
		c.propose(raftnode.FirstDataGroup, command)
	}
	g := c.members[0].group(t, raftnode.FirstDataGroup)
	eventually(t, "the log is cut", func() bool { return g.Status().FirstIndex > 200 })
	if s := g.Status(); s.FirstIndex > s.DurableApplied+1 {
		t.Errorf("log begins at %d, but only %d is durable in the state", s.FirstIndex, s.DurableApplied)
	}
	c.stop(c.members[0])
	c.openAll()
	eventually(t, "everything is applied again", func() bool {
		_, _, n := machines["n12"].state()
		return n == 300
	})
}

// TestLogWaitsForMembers: with a member away nothing that it needs is cut, and
// afterwards the log shrinks.
func TestLogWaitsForMembers(t *testing.T) {
	disks := map[string]*chain{}
	for i := range 3 {
		for group := range 3 {
			disks[fmt.Sprintf("n%d%d", i+1, group)] = &chain{}
		}
	}
	c := newCluster(t, 3, func(o *raftnode.Options) {
		o.LogBudgetBytes, o.DiskCheckInterval = 64<<10, 10*time.Millisecond
		node := o.Node
		o.NewStateMachine = func(group uint64) raftnode.StateMachine {
			return &keeping{disk: disks[fmt.Sprintf("%s%d", node, group)]}
		}
	})
	c.openAll()
	command := string(make([]byte, 1000))
	for range 50 {
		c.propose(raftnode.FirstDataGroup, command)
	}
	away := c.members[0]
	if c.leader(raftnode.FirstDataGroup) == away {
		away = c.members[1]
	}
	has := away.group(t, raftnode.FirstDataGroup).Status().LastIndex
	c.stop(away)
	for range 300 {
		c.propose(raftnode.FirstDataGroup, command)
	}
	for _, m := range c.members {
		if m.node == nil {
			continue
		}
		if s := m.group(t, raftnode.FirstDataGroup).Status(); s.FirstIndex > has+1 {
			t.Errorf("%s cut its log to %d; %s has only %d", m.name, s.FirstIndex, away.name, has)
		}
	}
	c.openAll()
	for range 100 {
		c.propose(raftnode.FirstDataGroup, command)
	}
	for _, m := range c.members {
		g := m.group(t, raftnode.FirstDataGroup)
		eventually(t, m.name+" cuts its log", func() bool {
			c.propose(raftnode.FirstDataGroup, "x")
			return g.Status().FirstIndex > has+200
		})
	}
}

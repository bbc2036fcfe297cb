package raftnode_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

// TestLatencyIsTold: the leader tells how long its entries took, followers tell
// nothing, and a batch of the log is known while it is written.
func TestLatencyIsTold(t *testing.T) {
	var committed [3]atomic.Int64
	var shortest, writing atomic.Int64
	shortest.Store(int64(time.Hour))
	var nodes [3]atomic.Pointer[raftnode.Node]
	c := newCluster(t, 3, func(o *raftnode.Options) {
		i := int(o.Node[1] - '1')
		o.Listener.Committed = func(_ uint64, took time.Duration) {
			committed[i].Add(1)
			shortest.Store(min(shortest.Load(), int64(took)))
		}
		// It is called before the batch counts as written.
		o.Listener.LogSynced = func(time.Duration, int) {
			if n := nodes[i].Load(); n != nil {
				writing.Store(max(writing.Load(), int64(n.LogWriting())))
			}
		}
	})
	c.openAll()
	leader := c.leader(raftnode.FirstDataGroup)
	for i, m := range c.members {
		nodes[i].Store(m.node)
	}
	for range 20 {
		c.propose(raftnode.FirstDataGroup, "x")
	}
	for i, m := range c.members {
		if got := committed[i].Load(); m == leader && got < 20 {
			t.Errorf("the leader told of %d entries", got)
		} else if m != leader && m != c.leader(raftnode.MetaGroup) && got > 0 {
			t.Errorf("a follower told of %d entries", got)
		}
	}
	if d := time.Duration(shortest.Load()); d <= 0 || d >= time.Hour {
		t.Errorf("an entry took %v", d)
	}
	if writing.Load() == 0 {
		t.Error("no batch of the log was under way")
	}
	eventually(t, "the log rests", func() bool { return leader.node.LogWriting() == 0 })
}

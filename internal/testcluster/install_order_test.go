package testcluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// TestLostInstallResponse: the acknowledgement that raft sends when a snapshot is
// installed is lost. The status that says INSTALLED carries the same; the log goes
// on within two seconds, and no second image is offered. (Raft gets there too by
// probing, once the snapshot is reported as finished.)
func TestLostInstallResponse(t *testing.T) {
	var receiver atomic.Pointer[member]
	var installed atomic.Bool
	var lost atomic.Int64
	runCase(t, 3, tuning{
		installs: func(m *member) { installed.Store(m == receiver.Load()) },
		loses: func(m *member, g transport.GroupMessage) bool {
			if m != receiver.Load() || !installed.Load() || g.Group != raftnode.FirstDataGroup ||
				g.Message.GetType() != raftpb.MsgAppResp || lost.Load() > 0 {
				return false
			}
			lost.Add(1)
			return true
		},
	}, func(c *caseRun) {
		c.fill(60, 2<<10)
		m := c.follower()
		receiver.Store(m)
		c.behind(m)
		c.network.Rejoin(m.name)
		c.await("the image is installed", func() bool { return c.installs(m) > 0 })
		begin := time.Now()
		c.put("after", 100)
		last := c.group(c.leader(raftnode.FirstDataGroup)).Status().LastIndex
		c.await("the log goes on", func() bool { return c.group(m).Applied() >= last })
		if took := time.Since(begin); took > 2*time.Second || lost.Load() != 1 || c.installs(m) != 1 {
			t.Errorf("the log went on after %v, with %d images; %d messages were lost", took, c.installs(m), lost.Load())
		}
		c.level()
	})
}

// TestInstallWaitsForApply: an image is READY while entries that were committed
// before are being applied, which takes a while. The snapshot is stepped when they
// are done: applied behind it, they would be of an old configuration on a new
// state. The checker sees the order.
func TestInstallWaitsForApply(t *testing.T) {
	var receiver atomic.Pointer[member]
	var held atomic.Int64
	var hold atomic.Bool
	runCase(t, 3, tuning{
		receiver: patient,
		applies: func(m *member) {
			if m != receiver.Load() {
				return
			}
			held.Add(1)
			for hold.Load() {
				pause(context.Background(), 10*time.Millisecond)
			}
		},
	}, func(c *caseRun) {
		c.fill(60, 2<<10)
		m := c.follower()
		hold.Store(true)
		receiver.Store(m)
		for i := range 5 {
			c.put(fmt.Sprintf("k/%04d", i), 100) // applied elsewhere
		}
		c.await("an entry is being applied", func() bool { return held.Load() > 0 })
		c.behind(m)
		c.network.Rejoin(m.name)
		c.await("the image waits", func() bool {
			for _, s := range transfersOf(m) {
				if s.Waiting != "" {
					return true
				}
			}
			return false
		})
		c.pass(2 * time.Second)
		if c.installs(m) > 0 {
			t.Error("it was installed beside an Apply")
		}
		hold.Store(false)
		c.await("the image is installed", func() bool { return c.installs(m) > 0 })
		c.level()
	})
}

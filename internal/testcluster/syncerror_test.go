package testcluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

// TestSyncErrorAtEverySync lets each of the first syncs of a node's log fail, of
// the leader and of a follower. The node fails and acknowledges nothing any more
// (the checker sees to that); the others go on; started again on what a crash
// left, the node comes back and agrees with the rest.
func TestSyncErrorAtEverySync(t *testing.T) {
	const syncs = 16
	for _, who := range []target{targetLeader, targetFollower} {
		for n := 1; n <= syncs; n++ {
			t.Run(fmt.Sprintf("%s/sync=%d", who, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { syncError(t, who, n) })
			})
		}
	}
}

func syncError(t *testing.T, who target, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	trace := newTrace()
	checker := newChecker(trace, cancel)
	plan := focusedPlan(3)
	plan.Seed = uint64(n)
	c, err := newCluster(plan, false, trace, checker)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.stop()
		for _, v := range checker.found() {
			t.Error(v)
		}
		if t.Failed() {
			t.Log(strings.Join(trace.tail(40), "\n"))
		}
	}()
	if err := c.found(ctx); err != nil {
		t.Error(err)
		return
	}
	if err := putAtLeader(ctx, c, "before", "all is well"); err != nil {
		t.Error(err)
		return
	}
	m := c.leader(raftnode.FirstDataGroup)
	if who == targetFollower {
		m = c.members[(int(m.name[1]-'1')+1)%3]
	}
	r := m.current()
	r.failSync(n)
	load := startLoad(ctx, c, new(history))
	select {
	case <-r.node.Failed():
	case <-time.After(recoveryLimit):
		t.Errorf("%s did not fail", r)
	}
	failed := time.Now()
	// Refused at once, and reported.
	group, err := r.node.Group(raftnode.FirstDataGroup)
	if err != nil {
		t.Error(err)
		load.stop()
		return
	}
	if _, err := group.Propose(ctx, []byte("x")); err == nil {
		t.Errorf("%s took a proposal after it failed", r)
	}
	if r.node.Status().Failure == "" || r.node.Err() == nil {
		t.Errorf("%s does not say why it failed", r)
	}
	if err := putAtLeader(ctx, c, "after", "the others go on"); err != nil {
		t.Errorf("the others do not go on: %v", err)
	}
	if took := time.Since(failed); took > 5*time.Second {
		t.Errorf("the others went on only after %v", took)
	}
	pause(ctx, time.Second)
	m.crash(crashNone)
	c.restart(m)
	pause(ctx, time.Second)
	load.stop()
	load.stopped = make(chan struct{})
	last := &client{load: load, number: -1, alike: true, random: newRandom(uint64(n), 3), revisions: make(map[string]uint64)}
	if ctx.Err() == nil {
		c.converge(last)
	}
	for _, problem := range load.history.check(historyLimit) {
		t.Error(problem)
	}
}

package proctest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

func TestKillAllUnderLoad(t *testing.T) {
	c, connection := startCluster(t, localcluster.Options{})
	var loads []*load
	for round := range rounds() {
		l := startLoad(t, connection, fmt.Sprintf("round%d", round), 100)
		loads = append(loads, l)
		l.awaitMore(t, 1000, 30*time.Second)
		c.KillAll()
		l.abort()
		if err := c.StartAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, l := range loads {
			l.check(t)
		}
		sameDigests(t, c)
	}
}

func TestLeaderKillGap(t *testing.T) {
	c, connection := startCluster(t, localcluster.Options{})
	l := startLoad(t, connection, "gap", 100)
	l.awaitMore(t, 500, 30*time.Second)
	var gaps []time.Duration
	for range rounds() {
		killed := leader(t, c)
		l.resetGap()
		if err := c.Kill(killed); err != nil {
			t.Fatal(err)
		}
		if next := leader(t, c); next == killed {
			t.Fatalf("%s is killed and leads", killed)
		}
		l.awaitMore(t, 200, 30*time.Second)
		gaps = append(gaps, l.longestGap())
		if err := c.Restart(t.Context(), killed); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitCaughtUp(within(t, 30*time.Second), killed, nil); err != nil {
			t.Fatal(err)
		}
	}
	l.finish()
	l.check(t)
	sameDigests(t, c)
	slices.Sort(gaps)
	at := func(share float64) time.Duration {
		return gaps[int(share*float64(len(gaps)-1)+0.5)].Round(time.Millisecond)
	}
	t.Logf("longest time without an acknowledged write, %d kills of the leader: p50 %v, p99 %v, max %v", len(gaps), at(0.5), at(0.99), at(1))
	if at(1) > 10*time.Second {
		t.Errorf("writes stood still for %v", at(1))
	}
}

func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	c, connection := startCluster(t, localcluster.Options{})
	l := startLoad(t, connection, "frozen", 100)
	l.awaitMore(t, 500, 30*time.Second)
	frozen := leader(t, c)
	start := time.Now()
	if err := c.Pause(frozen); err != nil {
		t.Fatal(err)
	}
	var next string
	await(t, "another leader", 20*time.Second, func() error {
		if next = leader(t, c); next == frozen {
			return errors.New("the frozen one leads")
		}
		return nil
	})
	l.awaitMore(t, 200, 30*time.Second)
	await(t, "3 s in the ice", 10*time.Second, func() error {
		if time.Since(start) < 3*time.Second {
			return errors.New("not yet")
		}
		return nil
	})
	if err := c.Resume(frozen); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitCaughtUp(within(t, 30*time.Second), frozen, nil); err != nil {
		t.Fatal(err)
	}
	await(t, frozen+" follows", 20*time.Second, func() error { return role(t, c, frozen, adminv1.Role_ROLE_FOLLOWER) })
	l.awaitMore(t, 200, 30*time.Second)
	l.finish()
	l.check(t)
	sameDigests(t, c)
}

// role tells whether a node has a role in the data group.
func role(t *testing.T, c *localcluster.Cluster, name string, want adminv1.Role) error {
	status, err := c.Status(t.Context(), name)
	if err != nil {
		return err
	}
	for _, g := range status.GetGroups() {
		if g.GetGroup() == client.DataGroup && g.GetRole() != want {
			return fmt.Errorf("%s is %v", name, g.GetRole())
		}
	}
	return nil
}

func TestGracefulStop(t *testing.T) {
	c, connection := startCluster(t, localcluster.Options{})
	l := startLoad(t, connection, "stop", 100)
	l.awaitMore(t, 500, 30*time.Second)
	stopped := leader(t, c)
	l.resetGap()
	start := time.Now()
	code, err := c.Stop(within(t, 20*time.Second), stopped)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); code != 0 || took > 5*time.Second {
		t.Errorf("exit code %d after %v, want 0 within 5 s", code, took)
	}
	if text := c.LogTail(stopped); strings.Contains(text, "was not handed over") {
		t.Errorf("the leadership was not handed over:%s", text)
	}
	// Whoever waits for an election timeout now was not handed anything.
	if next := leader(t, c); next == stopped {
		t.Errorf("%s is stopped and leads", next)
	}
	l.awaitMore(t, 200, 30*time.Second)
	t.Logf("longest time without an acknowledged write: %v", l.longestGap().Round(time.Millisecond))
	if err := c.Restart(t.Context(), stopped); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitCaughtUp(within(t, 30*time.Second), stopped, nil); err != nil {
		t.Fatal(err)
	}
	l.finish()
	if l.uncertain > 0 || l.failed > 0 {
		t.Errorf("a graceful stop left %d writes uncertain and %d failed: %v", l.uncertain, l.failed, l.lastError)
	}
	l.check(t)
	sameDigests(t, c)
}

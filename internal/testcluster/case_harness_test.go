package testcluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// The cases of docs/protocol.md that need a whole cluster. Each runs in virtual
// time on memory disks and byte streams that can be cut and slowed; the checker
// of the simulation watches them too.

// caseRun is a cluster in which one case happens.
type caseRun struct {
	*cluster
	t      *testing.T
	ctx    context.Context
	random *rand.ChaCha8
	mu     sync.Mutex // of random
}

// runCase founds a cluster of some nodes and lets a case happen. Afterwards
// nothing that the checker watches for may have happened.
func runCase(t *testing.T, nodes int, tune tuning, happen func(*caseRun)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		trace := newTrace()
		checker := newChecker(trace, cancel)
		c, err := newCluster(focusedPlan(nodes), testing.Verbose(), trace, checker)
		if err != nil {
			t.Fatal(err)
		}
		c.tuning = tune
		defer func() {
			c.stop()
			for _, leak := range leakedGoroutines() {
				t.Errorf("a goroutine is left over:\n%s", leak)
			}
			for _, v := range checker.found() {
				t.Error(v)
			}
			if t.Failed() {
				t.Logf("the last events:\n%s", strings.Join(trace.tail(80), "\n"))
			}
		}()
		if err := c.found(ctx); err != nil {
			t.Fatal(err)
		}
		happen(&caseRun{cluster: c, t: t, ctx: ctx, random: rand.NewChaCha8([32]byte{1})})
	})
}

// noise returns bytes that do not compress.
func (c *caseRun) noise(n int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	data := make([]byte, n)
	_, _ = c.random.Read(data) // which never fails
	return data
}

// put writes a record of some bytes that do not compress.
func (c *caseRun) put(key string, bytes int) {
	c.t.Helper()
	if err := putAtLeader(c.ctx, c.cluster, key, string(c.noise(bytes))); err != nil {
		c.t.Fatalf("write %s: %v", key, err)
	}
}

// fill writes records k/0 to k/n-1.
func (c *caseRun) fill(n, bytes int) {
	c.t.Helper()
	for i := range n {
		c.put(fmt.Sprintf("k/%04d", i), bytes)
	}
}

// propose proposes a command at the leader until it is applied.
func (c *caseRun) propose(command []byte) raftnode.Result {
	c.t.Helper()
	var result raftnode.Result
	c.await("a command is applied", func() bool {
		m := c.leader(raftnode.FirstDataGroup)
		if m == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		defer cancel()
		var err error
		result, err = c.group(m).Propose(ctx, command)
		return err == nil
	})
	return result
}

// awaitLimit is longer than anything takes that comes at all.
const awaitLimit = 10 * time.Minute

// await waits until a condition holds.
func (c *caseRun) await(what string, holds func() bool) {
	c.t.Helper()
	for begin := time.Now(); !holds(); {
		if time.Since(begin) > awaitLimit || !pause(c.ctx, 20*time.Millisecond) {
			c.t.Fatalf("it does not come, within %v: %s", time.Since(begin), what)
		}
	}
}

func (c *caseRun) pass(d time.Duration) {
	c.t.Helper()
	if !pause(c.ctx, d) {
		c.t.Fatal("the checker ended the run")
	}
}

func (c *caseRun) group(m *member) *raftnode.Group {
	c.t.Helper()
	g, err := m.last().node.Group(raftnode.FirstDataGroup)
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

// follower returns a node that does not lead and is none of some others.
func (c *caseRun) follower(except ...*member) *member {
	c.t.Helper()
	var found *member
	c.await("a leader", func() bool { return c.leader(raftnode.FirstDataGroup) != nil })
	leader := c.leader(raftnode.FirstDataGroup)
	for _, m := range c.members {
		if m != leader && m.current() != nil && !slices.Contains(except, m) {
			found = m
		}
	}
	return found
}

// behind isolates nodes and writes until no log reaches them any more. Nothing
// is written after that.
func (c *caseRun) behind(away ...*member) {
	c.t.Helper()
	var last uint64
	for _, m := range away {
		last = max(last, c.group(m).Status().LastIndex)
		c.network.Isolate(m.name)
	}
	i := 0
	c.await("no log reaches them any more", func() bool {
		i++
		c.put(fmt.Sprintf("k/%04d", i%8), 2<<10)
		c.pass(100 * time.Millisecond)
		for _, m := range c.members {
			if m.current() != nil && !slices.Contains(away, m) && c.group(m).Status().FirstIndex <= last+1 {
				return false
			}
		}
		return true
	})
}

// level waits until all nodes have applied the same and compares their states.
func (c *caseRun) level() {
	c.t.Helper()
	command, err := kv.EncodeTakeDigest(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	// A digest is no part of an image, so a replica that gets one instead of the
	// log has none; the next is there.
	for range 10 {
		index := c.propose(command).Revision >> 16
		missing := false
		for _, m := range c.members {
			if m.last() == nil {
				continue
			}
			c.await(m.name+" has everything", func() bool { return c.group(m).Applied() >= index })
			ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
			_, err := m.last().machine(raftnode.FirstDataGroup).DigestAt(ctx, index)
			cancel()
			missing = missing || err != nil
		}
		if !missing {
			c.sameDigest(raftnode.FirstDataGroup, index, awaitLimit)
			return
		}
	}
	c.t.Fatal("no digest is taken by all")
}

// installs returns what a node installed since its start.
func (c *caseRun) installs(m *member) uint64 { return m.last().node.Metrics().Groups[1].Installs }

// figures of images over all nodes.
func (c *caseRun) figures() (full, delta int64) {
	c.checker.count(func(t *Totals) { full, delta = t.FullInstalls, t.DeltaInstalls })
	return full, delta
}

// elections that were won so far.
func (c *caseRun) elections() (n int64) {
	c.checker.count(func(t *Totals) { n = t.Elections })
	return n
}

// slowStream is a link over which a node receives images.
type slowStream struct {
	net.Conn
	rate *atomic.Int64 // bytes a second; 0: as fast as it goes
}

// Read takes the time that the bytes take.
func (s *slowStream) Read(p []byte) (int, error) {
	rate := s.rate.Load()
	if rate <= 0 {
		return s.Conn.Read(p)
	}
	n, err := s.Conn.Read(p[:min(len(p), max(1, int(rate/10)))])
	timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(rate))
	defer timer.Stop()
	<-timer.C
	return n, err
}

// slowReceiver has one node receive images slowly.
func slowReceiver(rate *atomic.Int64, of func(*member) bool) func(*member, net.Conn) net.Conn {
	return func(m *member, conn net.Conn) net.Conn {
		if !of(m) {
			return conn
		}
		return &slowStream{conn, rate}
	}
}

// patient has the limits of the default receiver, in a cluster whose images are
// small: nothing is given up early.
func patient(_ *member, o *snapshot.ReceiverOptions) {
	o.StallTimeout, o.SourceLostAfter, o.GiveUpAfter = 30*time.Second, 30*time.Second, 10*time.Minute
}

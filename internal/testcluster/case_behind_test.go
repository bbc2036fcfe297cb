package testcluster

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// TestCase01IsolatedLeaderTail: a leader is cut off and takes entries that nobody
// else gets; the others go on and cut their logs at exactly the index where its
// tail ends. When it comes back raft finds nothing to compare at that index, so
// the position of an image must be judged by its term: one installation, and
// the tail is gone.
//
// It guards min_index (the log begins at min_index + 1) and the term in the
// marker.
func TestCase01IsolatedLeaderTail(t *testing.T) {
	runCase(t, 3, tuning{}, func(c *caseRun) {
		c.fill(3, 100)
		c.level()
		old := c.leader(raftnode.FirstDataGroup)
		c.network.Isolate(old.name)
		begin := c.group(old).Status().LastIndex
		for i := range 20 {
			c.submit(old.current(), kv.EncodePut(nil, fmt.Appendf(nil, "lost/%d", i), c.noise(2<<10), nil))
			c.pass(10 * time.Millisecond)
		}
		tail := c.group(old).Status().LastIndex
		if tail < begin+15 {
			t.Fatalf("the tail has %d entries", tail-begin)
		}
		c.await("another one leads", func() bool {
			m := c.leader(raftnode.FirstDataGroup)
			return m != nil && m != old
		})
		next := c.leader(raftnode.FirstDataGroup)
		for i := 0; c.group(next).Status().LastIndex < tail; i++ {
			c.put(fmt.Sprintf("k/%d", i%3), 2<<10)
		}
		if last := c.group(next).Status().LastIndex; last != tail {
			t.Fatalf("the new log ends at %d, the old one at %d", last, tail)
		}
		// What is needed of the log is told with each entry, so one more is there.
		c.pass(5 * time.Second)
		c.put("one more", 10)
		for _, m := range c.members {
			if m != old {
				c.await(m.name+" has cut its log there", func() bool { return c.group(m).Status().FirstIndex == tail+1 })
			}
		}
		c.network.Rejoin(old.name)
		c.await("the old leader is level", func() bool { return c.group(old).Applied() >= tail && c.installs(old) > 0 })
		c.put("after", 100)
		c.level()
		if n := c.installs(old); n != 1 {
			t.Errorf("%d images were installed, want 1", n)
		}
		if r, err := old.current().machine(raftnode.FirstDataGroup).Get([]byte("lost/0")); err != nil || r.Found {
			t.Errorf("an entry of the tail was applied: %v", err)
		}
	})
}

// TestCase03WritesBeyondLogBudget: while a full image travels the others write
// many times what the log may hold. The log is given up; what the image lacks
// comes as a delta from a pinned journal, not as another full image.
//
// It guards the pin of the journal from Y and the choice of a delta to close the
// gap: without the pin the second image is a full one, and so on for ever.
func TestCase03WritesBeyondLogBudget(t *testing.T) {
	var rate atomic.Int64
	var receiver atomic.Pointer[member]
	runCase(t, 3, tuning{
		receiver: patient,
		stream:   slowReceiver(&rate, func(m *member) bool { return m == receiver.Load() }),
		store:    func(_ *member, o *kv.Options) { o.JournalBytes = 4 << 10 },
		node:     func(_ *member, o *raftnode.Options) { o.DiskCheckInterval = 50 * time.Millisecond },
	}, func(c *caseRun) {
		c.fill(200, 2<<10)
		m := c.follower()
		receiver.Store(m)
		c.behind(m)
		// What changed while it was away is more than the journal holds.
		for i := range 300 {
			c.put(fmt.Sprintf("k/%04d", i%200), 16)
		}
		for i := range 200 {
			c.put(fmt.Sprintf("k/%04d", i), 2<<10)
		}
		rate.Store(40 << 10)
		c.network.Rejoin(m.name)
		written, most := 0, int64(0)
		for i := 0; ; i++ {
			if full, _ := c.figures(); full > 0 {
				break
			}
			c.put(fmt.Sprintf("k/%04d", i%20), 4<<10)
			written += 4 << 10
			most = max(most, c.group(c.leader(raftnode.FirstDataGroup)).Status().LogBytes)
			c.pass(20 * time.Millisecond)
		}
		c.level()
		full, delta := c.figures()
		t.Logf("%d bytes written while the image travelled, %d of log kept at most; then %d deltas", written, most, delta)
		if full != 1 || delta < 1 {
			t.Errorf("%d full images and %d deltas, want one and at least one", full, delta)
		}
		if budget := int(c.plan.BudgetBytes); written < 20*budget || most > int64(8*budget) {
			t.Errorf("%d bytes were written and %d kept, the budget is %d", written, most, budget)
		}
	})
}

// TestCase19DeletedKeysStayDeleted: what the others deleted while a replica was
// away is gone there too, be it by a full image in place of its state or by a
// delta into it.
//
// It guards that a full image replaces the directory and that a delta carries
// deletes and range deletes.
func TestCase19DeletedKeysStayDeleted(t *testing.T) {
	for _, kind := range []string{"full", "delta"} {
		t.Run(kind, func(t *testing.T) {
			runCase(t, 3, tuning{store: func(_ *member, o *kv.Options) {
				if kind == "full" {
					o.JournalBytes = 1
				}
			}}, func(c *caseRun) {
				c.fill(100, 2<<10)
				c.level()
				m := c.follower()
				if err := m.current().machine(raftnode.FirstDataGroup).Flush(); err != nil {
					t.Fatal(err)
				}
				c.network.Isolate(m.name)
				c.propose(kv.EncodeDelete(nil, []byte("k/0050"), nil))
				c.propose(kv.EncodeDeleteRange(nil, []byte("k/0060"), []byte("k/0070"), nil))
				c.behind(m)
				c.network.Rejoin(m.name)
				c.await("an image is installed", func() bool { return c.installs(m) > 0 })
				c.level()
				full, delta := c.figures()
				if (full > 0) != (kind == "full") || (delta > 0) != (kind == "delta") {
					t.Errorf("%d full images and %d deltas", full, delta)
				}
				store := m.current().machine(raftnode.FirstDataGroup)
				for key, want := range map[string]bool{"k/0049": true, "k/0050": false, "k/0060": false, "k/0069": false, "k/0070": true} {
					if r, err := store.Get([]byte(key)); err != nil || r.Found != want {
						t.Errorf("%s: %v, %v; there it should be: %v", key, r.Found, err, want)
					}
				}
			})
		})
	}
}

package testcluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/transport"
	"github.com/streamraft/streamraft/snapshot"
)

// votes notes how long a node takes to answer requests for votes.
type votes struct {
	mu    sync.Mutex
	asked map[question]time.Time
	took  []time.Duration
}

type question struct {
	group, term, from uint64
	pre               bool
}

func (v *votes) hears(m *raftpb.Message, group uint64) {
	if t := m.GetType(); t == raftpb.MsgVote || t == raftpb.MsgPreVote {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.asked[question{group, m.GetTerm(), m.GetFrom(), t == raftpb.MsgPreVote}] = time.Now()
	}
}

func (v *votes) sends(m *raftpb.Message, group uint64) {
	if t := m.GetType(); t == raftpb.MsgVoteResp || t == raftpb.MsgPreVoteResp {
		v.mu.Lock()
		defer v.mu.Unlock()
		q := question{group, m.GetTerm(), m.GetTo(), t == raftpb.MsgPreVoteResp}
		if at, ok := v.asked[q]; ok {
			delete(v.asked, q)
			v.took = append(v.took, time.Since(at))
		}
	}
}

// slowDiskRun is an image that arrives at a slow disk.
type slowDiskRun struct {
	bytes, rate, chunk int
	// alone: the third node is away, so that the meta group's writes need the log
	// of the node that receives.
	alone bool
	// hand: the leaderships of both groups are handed to and fro meanwhile, so that
	// votes are asked for.
	hand bool

	before, during []time.Duration // of writes to the meta group
	elections      int64
	votes          votes
}

// sizes are those of a test that always runs, and with STREAMRAFT_LONG as much
// as disks in memory hold, at the speed of a slow disk. The ratios of image,
// chunk and rate are alike.
func (r *slowDiskRun) sizes() {
	r.bytes, r.rate, r.chunk = 24<<20, 2<<20, 32<<10
	if os.Getenv("STREAMRAFT_LONG") != "" {
		r.bytes, r.rate, r.chunk = 512<<20, 50<<20, 1<<20
	}
}

func (r *slowDiskRun) run(t *testing.T) {
	r.sizes()
	r.votes.asked = make(map[question]time.Time)
	disk := &bucket{}
	var receiver atomic.Pointer[member]
	tune := tuning{
		receiver: func(m *member, o *snapshot.ReceiverOptions) {
			patient(m, o)
			o.ChunkBytes, o.WindowBytes, o.BudgetBytes, o.ProgressBytes = r.chunk, int64(16*r.chunk), int64(64*r.chunk), uint64(16*r.chunk)
		},
		source: func(_ *member, o *snapshot.SourceOptions) { o.ChunkBytes = r.chunk },
		node: func(_ *member, o *raftnode.Options) {
			o.MaxCommandBytes, o.MaxEntryBytes, o.MaxMessageBytes = 256<<10, 256<<10, 128<<10
			o.LogSegmentBytes, o.MaxInflightBytes, o.LogBudgetBytes = 2<<20, 1<<20, 2<<20
		},
		store: func(_ *member, o *kv.Options) { o.JournalBytes = 1 },
		files: func(m *member, fs vfs.FS) vfs.FS {
			return &slowDisk{fs, disk, func(path string) bool { return m == receiver.Load() && isBulkOrLog(path) }}
		},
		hears: func(m *member, g transport.GroupMessage) {
			if m == receiver.Load() {
				r.votes.hears(g.Message, g.Group)
			}
		},
		sends: func(m *member, g transport.GroupMessage) {
			if m == receiver.Load() {
				r.votes.sends(g.Message, g.Group)
			}
		},
	}
	runCase(t, 3, tune, func(c *caseRun) { r.happen(c, disk, &receiver) })
}

func (r *slowDiskRun) happen(c *caseRun, disk *bucket, receiver *atomic.Pointer[member]) {
	const value = 128 << 10
	m := c.follower()
	third := c.follower(m)
	for i := range 16 {
		c.put(fmt.Sprintf("new/%06d", i), value)
	}
	last := c.group(m).Status().LastIndex
	c.network.Isolate(m.name)
	for i := range r.bytes / value {
		c.put(fmt.Sprintf("new/%06d", i), value)
	}
	c.await("no log reaches it any more", func() bool {
		c.put("more", value)
		c.pass(100 * time.Millisecond)
		return !slices.ContainsFunc(c.members, func(o *member) bool { return o != m && c.group(o).Status().FirstIndex <= last+1 })
	})
	c.await("the meta group has a leader that stays", func() bool {
		l := c.leader(raftnode.MetaGroup)
		if l == third {
			c.handOver(raftnode.MetaGroup, m)
		}
		return l != nil && l != third
	})
	if r.alone {
		c.network.Isolate(third.name)
	}
	disk.rate.Store(int64(r.rate))
	receiver.Store(m)
	c.network.Rejoin(m.name)
	c.pass(3 * time.Second)
	elections := c.elections()
	arriving := false
	for i := 0; c.installs(m) == 0; i++ {
		took := c.metaPut()
		if arriving {
			r.during = append(r.during, took)
		} else {
			r.before = append(r.before, took)
			arriving = slices.ContainsFunc(transfersOf(m), func(s raftnode.TransferStatus) bool { return s.BytesDone > 0 })
		}
		if r.hand && i%10 == 0 {
			for _, group := range groups() {
				c.handOver(group, m)
			}
		}
		c.pass(20 * time.Millisecond)
	}
	r.elections = c.elections() - elections
	disk.rate.Store(0)
	c.network.HealAll()
	c.level()
}

// metaPut writes to the meta group and returns how long that took.
func (c *caseRun) metaPut() time.Duration {
	c.t.Helper()
	begin := time.Now()
	c.await("a write to the meta group", func() bool {
		l := c.leader(raftnode.MetaGroup)
		if l == nil {
			return false
		}
		g, err := l.current().node.Group(raftnode.MetaGroup)
		if err != nil {
			c.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		defer cancel()
		_, err = g.Propose(ctx, kv.EncodePut(nil, []byte("meta"), c.noise(100), nil))
		return err == nil
	})
	return time.Since(begin)
}

// handOver has the leader of a group hand its office to another one than m.
func (c *caseRun) handOver(group uint64, m *member) {
	c.t.Helper()
	leader := c.leader(group)
	for _, to := range c.members {
		if leader == nil || to == leader || to == m {
			continue
		}
		g, err := leader.current().node.Group(group)
		if err != nil {
			c.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(c.ctx, 2*time.Second)
		_ = g.TransferLeader(ctx, to.name) // the next one is tried soon
		cancel()
	}
}

// p99 of some durations.
func p99(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)*99/100]
}

// TestCase08SlowDiskNoElection: a follower gets, checks and installs an image
// behind a disk that is busy with it all the while, log and image together.
// Nobody is elected; and where votes are asked for, because leaderships are
// handed over, it answers within 200 ms.
//
// It guards that only the switch of the state holds up votes: everything slow
// comes before the snapshot is stepped, on other goroutines.
func TestCase08SlowDiskNoElection(t *testing.T) {
	t.Run("quiet", func(t *testing.T) {
		r := &slowDiskRun{}
		r.run(t)
		if r.elections > 0 {
			t.Errorf("%d elections", r.elections)
		}
		if len(r.during) < 50 {
			t.Errorf("only %d writes while it arrived", len(r.during))
		}
	})
	t.Run("votes", func(t *testing.T) {
		r := &slowDiskRun{hand: true}
		r.run(t)
		slowest := time.Duration(0)
		for _, d := range r.votes.took {
			slowest = max(slowest, d)
		}
		t.Logf("%d votes and pre-votes, the slowest after %v; %d elections", len(r.votes.took), slowest, r.elections)
		if len(r.votes.took) < 10 || slowest > 200*time.Millisecond {
			t.Errorf("%d votes were asked for, the slowest came after %v", len(r.votes.took), slowest)
		}
	})
}

// TestCase12ForegroundUnderDiskLimit: the same, where writes of another group
// wait for the log on that disk.
//
// It guards that an image is written piece by piece and not all at once: the log
// waits for what is in the window, no longer.
func TestCase12ForegroundUnderDiskLimit(t *testing.T) {
	r := &slowDiskRun{alone: true}
	r.run(t)
	before, during := p99(r.before), p99(r.during)
	t.Logf("p99 of %d writes before %v, of %d while the image arrives %v", len(r.before), before, len(r.during), during)
	if len(r.during) < 50 || during > 200*time.Millisecond {
		t.Errorf("p99 of %d writes is %v", len(r.during), during)
	}
}

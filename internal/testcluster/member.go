package testcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// nodeDir is a node's directory on its disk.
const nodeDir = "/data/node"

// member is one node of the cluster over all its runs.
type member struct {
	cluster *cluster
	name    string
	address string
	clock   *skewedClock
	random  *rand.Rand // of crashes; the goroutine of the faults uses it

	// disk is that of the run, or what the last crash left.
	disk *disk
	runs int
	// replaced counts the disks it lost.
	replaced int

	// What the replicas promised to their peers and what is in their logs, by
	// group; guarded by the mu of the run that is alive.
	promises map[uint64]*promise
	terms    map[uint64]map[uint64]uint64

	mu  sync.Mutex
	run *run // nil while the node is down
}

// current returns the run that is alive, or nil.
func (m *member) current() *run {
	if r := m.last(); r != nil && !r.isCrashed() {
		return r
	}
	return nil
}

// last returns the run that is not ended yet, though a trap may have crashed it,
// or nil.
func (m *member) last() *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.run
}

func (m *member) promise(group uint64) *promise {
	p := m.promises[group]
	if p == nil {
		p = new(promise)
		m.promises[group] = p
	}
	return p
}

func (m *member) logTerms(group uint64) map[uint64]uint64 {
	terms := m.terms[group]
	if terms == nil {
		terms = make(map[uint64]uint64)
		m.terms[group] = terms
	}
	return terms
}

// run is a node from one start to its end.
type run struct {
	member *member
	number int
	shared *kv.Shared
	images *images
	node   *raftnode.Node

	mu      sync.Mutex
	crashed bool
	left    *disk // what the crash left
	trap    *trap
	// syncFailed: an injected error hit a sync of the log, at that time.
	syncFailed   bool
	syncFailedAt time.Time
	failed       error // the node failed, or one of its replicas did
	expectFailed bool
	machines     map[uint64]*machine
	durable      map[uint64]uint64 // durable applied index as last seen
	applied      map[uint64]uint64
	committed    map[uint64]uint64
	moved        int64 // figures of the log as last seen
	recycled     int64
}

func (r *run) String() string { return fmt.Sprintf("%s run %d", r.member.name, r.number) }

// unlessCrashed calls f, if the node did not crash; a crash waits for it. f must
// not block.
func (r *run) unlessCrashed(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.crashed {
		return false
	}
	f()
	return true
}

func (r *run) isCrashed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.crashed
}

// start opens the node on its disk. On a restart the log that the crash left is
// looked at before.
func (m *member) start(ctx context.Context) error {
	if m.runs > 0 {
		m.inspectLog()
	}
	m.runs++
	r := &run{
		member: m, number: m.runs,
		machines: make(map[uint64]*machine), durable: make(map[uint64]uint64),
		applied: make(map[uint64]uint64), committed: make(map[uint64]uint64),
	}
	var err error
	if r.shared, err = kv.NewShared(kv.SharedOptions{CacheBytes: 1 << 20, MemTableBytes: 16 << 20, OpenTables: 64}); err != nil {
		return err
	}
	if r.images, err = m.newImages(r); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", r, err), r.shared.Close())
	}
	m.disk.watch(r.operation)
	m.cluster.trace.add("%s starts", r)
	node, err := raftnode.Open(ctx, m.options(r))
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", r, err), r.images.close(), r.shared.Close())
	}
	r.mu.Lock()
	r.node = node
	r.mu.Unlock()
	m.mu.Lock()
	m.run = r
	m.mu.Unlock()
	return nil
}

// options of a run: small limits, so that a run of seconds reaches them.
func (m *member) options(r *run) raftnode.Options {
	c := m.cluster
	level := slog.LevelWarn
	if c.verbose {
		level = slog.LevelInfo
	}
	o := raftnode.Options{
		Node: m.name, Dir: nodeDir, FS: m.files(), Founders: c.founders(),
		Groups:            groups(),
		NewStateMachine:   func(group uint64) raftnode.StateMachine { return r.newMachine(group) },
		Transport:         &tap{c.network.Transport(m.name, m.address), r},
		Clock:             m.clock,
		MaxCommandBytes:   32 << 10,
		MaxEntryBytes:     16 << 10,
		MaxEntryCommands:  64,
		MaxPendingBytes:   8 << 20,
		MaxMessageBytes:   12 << 10,
		MaxInflightBytes:  48 << 10,
		MaxApplyBytes:     64 << 10,
		LogBudgetBytes:    c.plan.BudgetBytes,
		LogSegmentBytes:   c.plan.SegmentBytes,
		LogCacheBytes:     64 << 10,
		DiskReserveBytes:  c.plan.ReserveBytes,
		DiskCheckInterval: 200 * time.Millisecond,
		Logger:            slog.New(logHandler{trace: c.trace, level: level, node: r.String()}),
		Listener:          r.listener(),
		Snapshots:         r.images.options(),
	}
	m.join(&o)
	if tune := c.tuning.node; tune != nil {
		tune(m, &o)
	}
	return o
}

// groups of the cluster: the quiet meta group and one with data.
func groups() []uint64 { return []uint64{raftnode.MetaGroup, raftnode.FirstDataGroup} }

func (r *run) newMachine(group uint64) raftnode.StateMachine {
	o := kv.Options{
		FS: r.member.files(), Shared: r.shared, Group: group, MemTableBytes: 4 << 20,
		Compression: kv.CompressionFastest, JournalBytes: r.member.cluster.plan.JournalBytes,
	}
	if tune := r.member.cluster.tuning.store; tune != nil {
		tune(r.member, &o)
	}
	store, err := kv.New(o)
	if err != nil {
		r.member.cluster.checker.violation("make a store: %v", err)
		return nil
	}
	m := &machine{Store: store, run: r, group: group}
	r.mu.Lock()
	r.machines[group] = m
	r.mu.Unlock()
	return m
}

// machine returns the state machine of a group.
func (r *run) machine(group uint64) *machine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machines[group]
}

// listener tells the checker what the node says happened.
func (r *run) listener() raftnode.EventListener {
	m := r.member
	c := m.cluster
	return raftnode.EventListener{
		LeaderChanged: func(i raftnode.LeaderInfo) {
			if i.Self {
				r.unlessCrashed(func() { c.checker.leads(i.Group, i.Term, m.name) })
			}
		},
		Applied: func(group, index uint64) {
			r.unlessCrashed(func() {
				if index <= r.applied[group] && !c.goesBack {
					c.checker.violation("%s applied index %d of group %d after %d", r, index, group, r.applied[group])
				}
				r.applied[group] = index
			})
		},
		LogCut: func(group, index uint64) {
			machine := r.machine(group)
			r.unlessCrashed(func() {
				if durable := machine.DurableApplied(); index > durable {
					c.checker.violation("%s cut the log of group %d at %d, durable is %d", r, group, index, durable)
				}
				c.checker.count(func(t *Totals) { t.LogCuts++ })
			})
		},
		NoSpace: func(on bool, available uint64) {
			c.trace.add("%s no space %v, %d available", r, on, available)
			if on {
				c.checker.count(func(t *Totals) { t.DiskFull++ })
			}
		},
		GroupFailed: func(group uint64, err error) { r.fails(fmt.Errorf("group %d: %w", group, err)) },
		NodeFailed:  r.fails,
	}
}

// fails: the node or a replica stopped for good, which only an injected error
// may do.
func (r *run) fails(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	r.member.cluster.trace.add("%s failed: %v", r, err)
	if !r.crashed && !r.expectFailed {
		r.member.cluster.checker.violation("%s failed by itself: %v", r, err)
	}
}

// failSync has the node's n-th sync of its log from now fail.
func (r *run) failSync(n int) {
	r.member.disk.failSyncAt(n, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.expectFailed, r.syncFailed, r.syncFailedAt = true, true, time.Now()
		r.member.cluster.trace.add("%s met a sync error", r)
		r.member.cluster.checker.count(func(t *Totals) { t.SyncErrors++ })
	})
}

// acknowledges checks that the node may acknowledge to a client now. After a
// failed sync nothing may be, but for what was committed before and is on its
// way to the client, which takes no virtual time.
func (r *run) acknowledges() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.syncFailed && time.Now().After(r.syncFailedAt) {
		r.member.cluster.checker.violation("%s acknowledged to a client after a sync of its log failed", r)
	}
	r.springs(trapAnswer)
}

// crash ends the run as a crash does. Afterwards m.disk is what it left.
func (m *member) crash(kind crashKind) {
	r := m.last()
	if r == nil {
		return
	}
	r.look()
	m.mu.Lock()
	m.run = nil
	m.mu.Unlock()
	r.mu.Lock()
	r.crashLocked(kind, m.random)
	left := r.left
	r.mu.Unlock()
	old := m.disk
	m.disk = left
	old.failSyncAt(0, nil)
	old.setFull(false, false)
	r.end()
}

// crashLocked takes what a crash at this moment leaves, once. From here on
// nothing the run does counts, so it may go on for a while.
func (r *run) crashLocked(kind crashKind, random *rand.Rand) {
	if r.crashed {
		return
	}
	r.crashed = true
	r.member.cluster.trace.add("%s crashes, keeping %s", r, kind)
	left, err := r.member.disk.crash(kind, random)
	if err != nil {
		r.member.cluster.checker.violation("crash %s: %v", r, err)
		left = r.member.disk
	}
	r.left = left
	if err := r.images.host.Close(); err != nil {
		r.member.cluster.checker.violation("crash %s: %v", r, err)
	}
}

// end closes what is left of a run.
func (r *run) end() {
	if err := r.images.close(); err != nil {
		r.member.cluster.checker.violation("end the images of %s: %v", r, err)
	}
	if err := r.node.Close(); err != nil && r.failure() == nil {
		r.member.cluster.checker.violation("close %s: %v", r, err)
	}
	if err := r.shared.Close(); err != nil {
		r.member.cluster.checker.violation("close the caches of %s: %v", r, err)
	}
}

func (r *run) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// look polls the node's status and checks what may only rise.
func (r *run) look() {
	c := r.member.cluster.checker
	status, metrics := r.node.Status(), r.node.Metrics()
	r.unlessCrashed(func() {
		for _, g := range status.Groups {
			if g.Failure != "" {
				continue
			}
			rises := func(what string, seen map[uint64]uint64, now uint64) {
				if now < seen[g.Group] && !r.member.cluster.goesBack {
					c.violation("%s: %s of group %d went back from %d to %d", r, what, g.Group, seen[g.Group], now)
				}
				seen[g.Group] = now
			}
			rises("commit index", r.committed, g.Commit)
			rises("durable applied index", r.durable, g.DurableApplied)
			if g.FirstIndex > g.DurableApplied+1 {
				c.violation("%s: the log of group %d begins at %d, durable is %d", r, g.Group, g.FirstIndex, g.DurableApplied)
			}
		}
		moved, recycled := metrics.Log.MovedEntries, metrics.Log.Recycled
		c.count(func(t *Totals) {
			t.MovedEntries += moved - r.moved
			t.SegmentsFreed += recycled - r.recycled
		})
		r.moved, r.recycled = moved, recycled
	})
}

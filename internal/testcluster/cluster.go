package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/faultnet"
	"github.com/streamraft/streamraft/raftnode"
)

// cluster is what one run works with.
type cluster struct {
	plan    *Plan
	verbose bool
	trace   *trace
	checker *checker
	network *faultnet.Network
	members []*member
	// replacing is the node that lost its disk, nil if none did.
	replacing *lostDisk
	tuning    tuning

	// onOperation, if set before the start, is called before every change of a
	// node's disk.
	onOperation func(*member)
	// refuseInstall, if set before the start, is called before (or after) a replica
	// switches to an image, which fails with its error.
	refuseInstall func(m *member, after bool) error
	// spoil, if set before the start, changes what a state machine applies.
	spoil func(m *member, entries []raftnode.Entry) []raftnode.Entry
	// reopened: the disks hold the state of another cluster, of whose log the
	// checker knows nothing.
	reopened bool
	// goesBack: replicas are opened anew in place and quarantined, so what they
	// have applied may go back.
	goesBack bool
}

func newCluster(plan *Plan, verbose bool, t *trace, c *checker) (*cluster, error) {
	network, err := faultnet.NewNetwork(faultnet.Options{Seed: plan.Seed, MinDelay: 200 * time.Microsecond, MaxDelay: 2 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	cl := &cluster{plan: plan, verbose: verbose, trace: t, checker: c, network: network}
	for i := range plan.Nodes {
		name := fmt.Sprintf("n%d", i+1)
		cl.members = append(cl.members, &member{
			cluster: cl, name: name, address: name + ":7601", clock: newSkewedClock(),
			random:   rand.New(rand.NewPCG(plan.Seed, uint64(i)+100)),
			disk:     newDisk(vfs.NewCrashableMem()),
			promises: make(map[uint64]*promise), terms: make(map[uint64]map[uint64]uint64),
		})
	}
	return cl, nil
}

func (c *cluster) founders() []raftnode.Founder {
	var list []raftnode.Founder
	for _, m := range c.members {
		list = append(list, raftnode.Founder{Node: m.name, Address: m.address})
	}
	return list
}

// startLimit bounds the virtual time of founding and of a restart.
const startLimit = 20 * time.Second

// found starts all nodes for the first time.
func (c *cluster) found(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	errs := make([]error, len(c.members))
	var starts sync.WaitGroup
	for i, m := range c.members {
		starts.Go(func() { errs[i] = m.start(ctx) })
	}
	starts.Wait()
	return errors.Join(errs...)
}

// up returns the runs that are alive.
func (c *cluster) up() []*run {
	var runs []*run
	for _, m := range c.members {
		if r := m.current(); r != nil {
			runs = append(runs, r)
		}
	}
	return runs
}

// restart starts a node that is down. A node that does not come up again is a
// violation: what a crash leaves must be good enough.
func (c *cluster) restart(m *member) {
	if p := c.replacing; m.last() != nil || p != nil && p.member == m && p.joining.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := m.start(ctx); err != nil {
		c.checker.violation("%v", err)
	}
}

// leader returns the member that leads a group as it says itself, nil if none.
// With a stale one about it is the one of the highest term.
func (c *cluster) leader(group uint64) *member {
	var leader *member
	var term uint64
	for _, r := range c.up() {
		for _, g := range r.node.Status().Groups {
			if g.Group == group && g.Role == raftnode.RoleLeader && g.Term > term && r.failure() == nil {
				leader, term = r.member, g.Term
			}
		}
	}
	return leader
}

// stop ends all runs without a crash.
func (c *cluster) stop() {
	for _, m := range c.members {
		if r := m.last(); r != nil {
			r.look()
			m.mu.Lock()
			m.run = nil
			m.mu.Unlock()
			c.trace.add("%s stops", r)
			r.end()
		}
	}
}

// pause waits for a time or the end of ctx; it returns false at the latter.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

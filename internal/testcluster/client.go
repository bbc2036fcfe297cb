package testcluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"

	"github.com/streamraft/streamraft/kv"
	"github.com/streamraft/streamraft/raftnode"
)

// client is one client of the cluster: it calls the nodes as a server does and
// records what it saw. One goroutine uses it.
type client struct {
	load   *load
	number int
	random *rand.Rand
	values int
	// alike: commands of this client may be equal, so that one that was refused
	// cannot be told from one that was applied.
	alike bool
	// revisions last seen of keys, for transactions.
	revisions map[string]uint64
}

// load is what all clients share.
type load struct {
	c       *cluster
	history *history
	keys    keys
	ctx     context.Context // ends when the run is given up
	stopped chan struct{}   // closed when no new operations are wanted
	clients sync.WaitGroup
}

// outcome is what is known of a write.
type outcome int

const (
	applied   outcome = iota // the result says so
	refused                  // certainly not applied
	uncertain                // perhaps applied, perhaps later
)

// running tells whether another operation is wanted.
func (l *load) running() bool {
	select {
	case <-l.stopped:
		return false
	case <-l.ctx.Done():
		return false
	default:
		return true
	}
}

// attempt proposes a command at one node and says what is known then.
func (cl *client) attempt(r *run, group uint64, command []byte, limit time.Duration) (raftnode.Result, outcome, error) {
	c := cl.load.c
	g, err := r.node.Group(group)
	if err != nil {
		c.checker.violation("%v", err)
		return raftnode.Result{}, refused, err
	}
	ctx, cancel := context.WithTimeout(cl.load.ctx, limit)
	defer cancel()
	result, err := g.Propose(ctx, command)
	if r.isCrashed() {
		// The client of a crashed node hears nothing.
		return raftnode.Result{}, uncertain, fmt.Errorf("%s crashed", r)
	}
	known := outcomeOf(err)
	if known == applied {
		r.acknowledges()
	}
	return result, known, err
}

// outcomeOf tells what an error of a proposal means.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return applied
	case errors.Is(err, raftnode.ErrUncertain), errors.Is(err, raftnode.ErrFailed), errors.Is(err, raftnode.ErrClosed):
		return uncertain
	default:
		return refused
	}
}

// submit proposes a unique command at a node without waiting for it.
func (c *cluster) submit(r *run, command []byte) {
	g, err := r.node.Group(raftnode.FirstDataGroup)
	if err != nil {
		c.checker.violation("%v", err)
		return
	}
	ended := func(result raftnode.Result, err error) {
		if r.isCrashed() {
			return
		}
		switch outcomeOf(err) {
		case applied:
			c.checker.acknowledged(r.member.name, raftnode.FirstDataGroup, result.Revision, [][]byte{command})
		case refused:
			c.checker.refusedCommand(r.String(), command, err)
		}
	}
	if err := g.Submit(command, ended); err != nil {
		ended(raftnode.Result{}, err)
	}
}

// pick returns the node to ask: the one that the last error named, mostly the
// leader, sometimes any.
func (cl *client) pick(last error) *run {
	c := cl.load.c
	var hint *raftnode.NotLeaderError
	if errors.As(last, &hint) && hint.LeaderNode != "" {
		for _, m := range c.members {
			if m.name == hint.LeaderNode {
				if r := m.current(); r != nil {
					return r
				}
			}
		}
	}
	if cl.random.IntN(4) > 0 {
		if m := c.leader(raftnode.FirstDataGroup); m != nil {
			if r := m.current(); r != nil {
				return r
			}
		}
	}
	if up := c.up(); len(up) > 0 {
		return up[cl.random.IntN(len(up))]
	}
	return nil
}

// writeAttempts bounds how often a refused write is tried again.
const writeAttempts = 8

// write proposes a command until it is applied or its outcome is uncertain. Each
// attempt is a command of its own, so that one that was refused can be looked
// for among those applied.
func (cl *client) write(group uint64, encode func() []byte) (*kvv1.OperationResult, outcome) {
	c := cl.load.c
	var last error
	for range writeAttempts {
		r := cl.pick(last)
		if r == nil {
			if !pause(cl.load.ctx, 50*time.Millisecond) {
				break
			}
			continue
		}
		command := encode()
		result, known, err := cl.attempt(r, group, command, time.Duration(300+cl.random.IntN(1200))*time.Millisecond)
		switch known {
		case applied:
			answer, failure, err := kv.DecodeResult(result)
			if err != nil || failure != nil {
				c.checker.violation("%s answered a write with %v, %v", r, failure, err)
				return nil, refused
			}
			c.checker.acknowledged(r.member.name, group, answer.GetRevision(), [][]byte{command})
			return answer, applied
		case uncertain:
			c.trace.add("client %d: uncertain at %s: %v", cl.number, r, err)
			c.checker.count(func(t *Totals) { t.Uncertain++ })
			return nil, uncertain
		}
		if !cl.alike {
			c.checker.refusedCommand(r.String(), command, err)
		}
		if last = err; !pause(cl.load.ctx, time.Duration(10+cl.random.IntN(80))*time.Millisecond) {
			break
		}
	}
	return nil, refused
}

// readAt waits until a node's state is new enough and returns its store; nil if
// it does not get there.
func (cl *client) readAt(o raftnode.ReadOptions) (*run, *kv.Store) {
	c := cl.load.c
	up := c.up()
	if len(up) == 0 {
		return nil, nil
	}
	r := up[cl.random.IntN(len(up))]
	g, err := r.node.Group(raftnode.FirstDataGroup)
	if err != nil {
		c.checker.violation("%v", err)
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(cl.load.ctx, time.Duration(200+cl.random.IntN(800))*time.Millisecond)
	defer cancel()
	index, err := g.Read(ctx, o)
	if err != nil {
		return nil, nil
	}
	if index < o.MinIndex {
		c.checker.violation("%s: a read that wants index %d was let in at %d", r, o.MinIndex, index)
	}
	if o.Level == raftnode.Linearizable && g.Status().Role != raftnode.RoleLeader {
		c.checker.count(func(t *Totals) { t.FollowerReads++ })
	}
	return r, r.machine(raftnode.FirstDataGroup).Store
}

// get reads a record; ok is false if no answer came.
func (cl *client) get(key string, o raftnode.ReadOptions) (result kv.GetResult, ok bool) {
	r, store := cl.readAt(o)
	if store == nil {
		return kv.GetResult{}, false
	}
	result, err := store.Get([]byte(key))
	return result, err == nil && !r.isCrashed()
}

// value returns a new unique value and its identity. The rest is padding: logs
// are cut by their size.
func (cl *client) value() (id string, value []byte) {
	cl.values++
	id = fmt.Sprintf("c%d.%d", cl.number, cl.values)
	size := cl.random.IntN(256)
	if cl.random.IntN(3) == 0 {
		size = cl.random.IntN(8 << 10)
	}
	return id, []byte(id + "|" + strings.Repeat("x", size))
}

// identity returns the identity of a value, without the padding.
func identity(value []byte) string {
	id, _, _ := strings.Cut(string(value), "|")
	return id
}

package raftnode

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// An appender is the node's one append goroutine: it writes what all groups
// want in their logs as one synced batch, and delivers the responses that raft
// attached to it only then. While a batch is being synced the next one
// collects: group commit over all groups.
type appender struct {
	node *Node
	wake chan struct{}

	mu      sync.Mutex
	waiting []appendRequest
	stopped bool
	idle    bool // nothing was put since the last look of prove
	proving bool // the end of the log shall be proven

	// since is when the batch that is written now was begun, by the node's age;
	// negative: none is.
	since atomic.Int64
}

// appendRequest is one MsgStorageAppend, or a cut of the log.
type appendRequest struct {
	group  *Group
	update raftlog.Update
	// sync: entries, term or vote changed, so the responses vouch for this
	// request. Without it only the commit index changed: written in order, but
	// it may wait for the next sync (skipping it altogether could elect two
	// leaders after a joint change).
	sync bool
	// responses go out once this request, and all before it, are durable.
	responses []*raftpb.Message
	// done is set for a cut, which has no responses, and called then.
	done func()
	// durable is called then, before the responses go out; may be nil.
	durable func()
}

func newAppender(n *Node) *appender {
	a := &appender{node: n, wake: make(chan struct{}, 1)}
	a.since.Store(-1)
	return a
}

func (a *appender) put(r appendRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return
	}
	a.waiting, a.idle = append(a.waiting, r), false
	a.wakeLocked()
}

func (a *appender) wakeLocked() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// prove is called now and then. Where nothing was appended between two calls,
// the end of the log is proven, so that damage to the last batch can be told
// from a write that a crash tore.
func (a *appender) prove() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.idle && !a.stopped {
		a.proving = true
		a.wakeLocked()
	}
	a.idle = true
}

// run writes batches until the node stops.
func (a *appender) run() {
	var spare []appendRequest
	var updates []raftlog.Update
	for {
		select {
		case <-a.node.stop:
			a.mu.Lock()
			a.stopped, a.waiting = true, nil
			a.mu.Unlock()
			return
		case <-a.wake:
		}
		a.mu.Lock()
		batch, proving := a.waiting, a.proving
		a.waiting, a.proving = spare[:0], false
		a.mu.Unlock()

		updates = updates[:0]
		sync := false
		for i := range batch {
			if batch[i].update.Group == 0 {
				continue // only waits for what is before it
			}
			updates = append(updates, batch[i].update)
			sync = sync || batch[i].sync
		}
		if len(updates) > 0 {
			switch err := a.write(updates, sync); {
			case errors.Is(err, raftlog.ErrInvalidUpdate):
				if !a.writeEach(batch) {
					return
				}
			case err != nil:
				return
			}
		}
		a.respond(batch)
		if proving {
			if err := a.node.logStore.ProveEnd(); err != nil {
				a.node.fail(fmt.Errorf("prove the end of the raft log in %s: %w", a.node.dir.log(), err))
				return
			}
		}
		clear(batch)
		clear(updates)
		spare = batch
	}
}

// setLogWaits notes whether the log waits for space.
func (n *Node) setLogWaits(on bool) {
	if n.logWaits.Load() != on {
		n.setNoSpace(&n.logWaits, on)
	}
}

// write appends updates; an error means that the node stopped or failed, or, with
// ErrInvalidUpdate, that the log refused one of them and wrote none.
// Where a new segment finds no space, nothing was written and it tries again
// until there is some: nothing is acknowledged meanwhile.
func (a *appender) write(updates []raftlog.Update, sync bool) error {
	a.since.Store(int64(a.node.age()))
	defer a.since.Store(-1)
	for {
		err := a.node.logStore.Append(updates, sync)
		switch {
		case err == nil:
			a.node.setLogWaits(false)
			return nil
		case errors.Is(err, raftlog.ErrNoSpace):
			a.node.setLogWaits(true)
			a.node.log.Error("no space for the log; it waits until there is some", "error", err)
			timer := time.NewTimer(a.node.opts.DiskCheckInterval)
			select {
			case <-a.node.stop:
				timer.Stop()
				return errStopped
			case <-timer.C:
			}
		case errors.Is(err, raftlog.ErrInvalidUpdate):
			return err
		default:
			a.node.fail(fmt.Errorf("write the raft log in %s: %w", a.node.dir.log(), err))
			return err
		}
	}
}

// writeEach writes the requests of a batch one by one, to find the update that
// the log refuses: it breaks a rule that raft's own checks should have kept, so
// that replica fails, and the other groups go on. It returns false when the node
// stopped or failed.
func (a *appender) writeEach(batch []appendRequest) bool {
	for i := range batch {
		r := &batch[i]
		if r.group.failure.Load() != nil {
			r.responses, r.done = nil, nil
			continue
		}
		if r.update.Group == 0 {
			continue
		}
		switch err := a.write([]raftlog.Update{r.update}, r.sync); {
		case errors.Is(err, raftlog.ErrInvalidUpdate):
			r.responses, r.done = nil, nil
			r.group.fail(err)
		case err != nil:
			return false
		}
	}
	return true
}

// respond delivers the responses of a batch that is durable: those to raft
// itself go to the group, the others to their nodes.
func (a *appender) respond(batch []appendRequest) {
	for i := range batch {
		r := &batch[i]
		if a.node.failed() {
			return
		}
		if r.durable != nil {
			r.durable()
		}
		local := r.responses[:0:0]
		for _, m := range r.responses {
			if m.GetTo() == r.group.raftID {
				local = append(local, m)
			} else {
				r.group.send(m)
			}
		}
		if r.done != nil {
			r.done()
			continue
		}
		r.group.mailbox.putLocal(local, 1)
	}
}

// send gives a message to the transport.
func (g *Group) send(m *raftpb.Message) {
	if node := g.nodeOf(m.GetTo()); node != "" && !g.superseded(m.GetTo()) {
		g.node.transport.Send(node, transport.GroupMessage{Group: g.id, Message: m})
	}
}

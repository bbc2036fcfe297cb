package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/streamraft/streamraft/client"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

const (
	// pollEvery is the pause between two looks at the node that recovers: a small
	// part of the shortest recovery.
	pollEvery = 5 * time.Millisecond
	// othersEvery is how many of those looks go by until the other nodes are
	// looked at too: what they know outlives the transfer.
	othersEvery = 10
	// askTimeout bounds one question to a node.
	askTimeout = time.Second
)

// watched is one recovery while it is measured.
type watched struct {
	r    *recovery
	c    Case
	node string

	load         *openLoop // nil: none
	memory       *memoryWatch
	trace        *trace
	started      time.Time
	total        time.Duration
	calm, during Latencies
	base         map[string]memorySeen // before
	struck       bool
}

func (r *recovery) watch(ctx context.Context, c Case, node string) *watched {
	w := &watched{r: r, c: c, node: node, trace: newTrace(node), memory: startMemoryWatch(r.cluster)}
	if r.o.Load > 0 {
		w.load = startForeground(ctx, r.client, r.o.Load, r.data.values)
	}
	return w
}

func (w *watched) end() {
	if w.load != nil {
		w.load.end()
	}
	w.memory.end()
}

// before watches latency and memory while all is well, but for the node that is
// away.
func (w *watched) before(ctx context.Context) error {
	if err := pause(ctx, w.r.o.Settle); err != nil {
		return err
	}
	if w.load != nil {
		w.calm = w.load.take()
	}
	w.base = w.memory.take()
	return w.ask(ctx, w.r.cluster.Names(), w.trace.ignore)
}

// recover starts the node and waits until it has applied what the leader had.
func (w *watched) recover(ctx context.Context) error {
	cluster := w.r.cluster
	leader, err := cluster.Leader(ctx, client.DataGroup)
	if err != nil {
		return err
	}
	status, err := cluster.Status(ctx, leader)
	if err != nil {
		return err
	}
	goal := groupOf(status).GetAppliedIndex()
	w.started = time.Now()
	if err := cluster.Launch(w.node); err != nil {
		return err
	}
	for look := 0; ; look++ {
		if status, err := cluster.Status(ctx, w.node); err == nil && groupOf(status).GetAppliedIndex() >= goal {
			w.total = time.Since(w.started)
			break
		}
		if !cluster.Running(w.node) {
			return fmt.Errorf("node %s ended%s", w.node, cluster.LogTail(w.node))
		}
		if err := w.look(ctx, look%othersEvery == 0); err != nil {
			return err
		}
		if w.c.strikes() && !w.struck && w.trace.percent() >= w.r.o.At {
			w.struck = true
			if err := w.look(ctx, true); err != nil { // the last of who is to go
				return err
			}
			if err := w.r.strike(w.c, w.node, w.trace.sender(), leader); err != nil {
				return err
			}
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	if w.load != nil {
		w.during = w.load.take()
	}
	return nil
}

// look notes what the node, or all of them, tell of the transfer.
func (w *watched) look(ctx context.Context, all bool) error {
	names := []string{w.node}
	if all {
		names = w.r.cluster.Names()
	}
	return w.ask(ctx, names, w.trace.note)
}

// ask visits what running nodes tell of transfers of the data group. A node that
// does not answer starts, or was killed.
func (w *watched) ask(ctx context.Context, names []string, visit func(from string, t *adminv1.Transfer)) error {
	for _, name := range names {
		if !w.r.cluster.Running(name) {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		list, err := w.r.client.Transfers(asking, w.r.cluster.Endpoint(name))
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			continue
		}
		for _, t := range list.GetTransfers() {
			if t.GetGroup() == client.DataGroup {
				visit(name, t)
			}
		}
	}
	return nil
}

// result puts together what was seen, once the receiver has settled.
func (w *watched) result(ctx context.Context) (*Recovery, error) {
	if w.c.strikes() && !w.struck {
		return nil, fmt.Errorf("the transfer was over before it was at %v %% of the bytes: use a larger size", w.r.o.At)
	}
	during := w.memory.take()
	if err := pause(ctx, w.r.o.Settle); err != nil {
		return nil, err
	}
	after := w.memory.take()
	if err := w.look(ctx, true); err != nil {
		return nil, err
	}
	result := new(Recovery)
	if err := w.trace.fill(result, w.started, w.total); err != nil {
		return nil, err
	}
	source := w.trace.sender()
	result.SourceMemory = over(during[source].peak, w.base[source].median)
	result.ReceiverMemory = over(during[w.node].peak, after[w.node].median)
	if w.load != nil {
		result.Before, result.During = &w.calm, &w.during
	}
	return result, nil
}

// over is how much a is above b.
func over(a, b uint64) uint64 { return max(a, b) - b }

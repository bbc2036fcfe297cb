package bench

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/streamraft/streamraft/client"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// watched is one recovery while it is measured.
type watched struct {
	r    *recovery
	c    Case
	node string

	load    *openLoop
	memory  *memoryWatch
	started time.Time
	total   time.Duration
	calm    Latencies
	during  Latencies
	// sent by source node and attempt: what it put on the wire.
	sent   map[string]uint64
	struck bool
	source string
	last   *adminv1.Transfer
	base   map[string]uint64 // of the nodes' anonymous memory, before
	first  map[string]bool   // transfers that were there before
}

func (r *recovery) watch(ctx context.Context, c Case, node string) *watched {
	w := &watched{r: r, c: c, node: node, sent: make(map[string]uint64), base: make(map[string]uint64), first: make(map[string]bool)}
	w.memory = startMemoryWatch(r.cluster)
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
	for name, seen := range w.memory.take() {
		w.base[name] = seen.median
	}
	return w.eachTransfer(ctx, func(name string, t *adminv1.Transfer) { w.first[transferKey(name, t)] = true })
}

func transferKey(node string, t *adminv1.Transfer) string {
	return fmt.Sprintf("%s/%d/%x/%d", node, t.GetRole(), t.GetTransfer(), t.GetAttempt())
}

// pollEvery is the pause between two looks at the nodes: a small part of the
// shortest recovery.
const pollEvery = 5 * time.Millisecond

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
	for {
		if status, err := cluster.Status(ctx, w.node); err == nil && groupOf(status).GetAppliedIndex() >= goal {
			w.total = time.Since(w.started)
			break
		}
		if !cluster.Running(w.node) {
			return fmt.Errorf("node %s ended%s", w.node, cluster.LogTail(w.node))
		}
		if err := w.look(ctx, leader); err != nil {
			return err
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
	if w.load != nil {
		w.during = w.load.take()
	}
	return w.look(ctx, leader)
}

// eachTransfer visits what the running nodes tell of transfers of the data group.
func (w *watched) eachTransfer(ctx context.Context, visit func(node string, t *adminv1.Transfer)) error {
	for _, name := range w.r.cluster.Names() {
		if !w.r.cluster.Running(name) {
			continue
		}
		ask, cancel := context.WithTimeout(ctx, time.Second)
		list, err := w.r.client.Transfers(ask, w.r.cluster.Endpoint(name))
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			continue // it starts or was killed
		}
		for _, t := range list.GetTransfers() {
			if t.GetGroup() == client.DataGroup {
				visit(name, t)
			}
		}
	}
	return nil
}

// look notes where the transfer is, and strikes when it is time.
func (w *watched) look(ctx context.Context, leader string) error {
	var done float64
	err := w.eachTransfer(ctx, func(name string, t *adminv1.Transfer) {
		key := transferKey(name, t)
		switch {
		case w.first[key]:
		case t.GetRole() == adminv1.TransferRole_TRANSFER_ROLE_SOURCE && t.GetPeer() == w.node:
			w.sent[key] = max(w.sent[key], t.GetWireBytes())
			if t.GetEndedUnixMs() == 0 {
				w.source = name
			}
		case t.GetRole() == adminv1.TransferRole_TRANSFER_ROLE_RECEIVER && name == w.node:
			if w.last == nil || t.GetStartedUnixMs() >= w.last.GetStartedUnixMs() {
				w.last = t
			}
			if t.GetBytesTotal() > 0 {
				done = 100 * float64(t.GetBytesDone()) / float64(t.GetBytesTotal())
			}
		}
	})
	if err != nil || w.struck || done < w.r.o.At {
		return err
	}
	w.struck = true
	switch w.c {
	case CaseCut:
		if err := w.r.cluster.Kill(w.node); err != nil {
			return err
		}
		return w.r.cluster.Launch(w.node)
	case CaseLeader:
		if w.source == leader {
			return fmt.Errorf("the leader %s is the source; this case needs a follower", leader)
		}
		return w.r.cluster.Kill(leader)
	case CaseSource:
		if w.source == leader {
			return fmt.Errorf("the leader %s is the source; this case needs a follower", leader)
		}
		w.r.replacing[w.source].Store(new(w.r.cluster.Endpoint(leader)))
		return w.r.destroy(w.source)
	}
	return nil
}

// result puts together what was seen, after the receiver has settled.
func (w *watched) result(ctx context.Context) (*Recovery, error) {
	during := w.memory.take()
	if err := pause(ctx, w.r.o.Settle); err != nil {
		return nil, err
	}
	after := w.memory.take()
	if err := w.look(ctx, ""); err != nil {
		return nil, err
	}
	t := w.last
	if t == nil {
		return nil, fmt.Errorf("node %s caught up without an image: its log was not cut", w.node)
	}
	if (w.c == CaseCut || w.c == CaseLeader || w.c == CaseSource) && !w.struck {
		return nil, fmt.Errorf("the transfer was over before it was at %v %% of the bytes; use a larger --size", w.r.o.At)
	}
	result := &Recovery{
		Kind: kindName(t.GetKind()), Total: w.total, ToTransfer: max(0, time.UnixMilli(t.GetStartedUnixMs()).Sub(w.started)),
		Stages: make(map[string]time.Duration), ImageBytes: t.GetBytesTotal(), RawBytes: t.GetRawBytes(),
	}
	if t.GetKind() == snapshotv1.Kind_KIND_UNSPECIFIED {
		return nil, fmt.Errorf("node %s caught up, and its transfer never had an image", w.node)
	}
	for _, stage := range t.GetStages() {
		result.Stages[stage.GetStage()] = time.Duration(stage.GetNanoseconds())
	}
	for bytes := range maps.Values(w.sent) {
		result.SentBytes += bytes
	}
	result.Attempts = uint64(len(w.sent))
	result.SourceMemory = over(during[w.source].peak, w.base[w.source])
	result.ReceiverMemory = over(during[w.node].peak, after[w.node].median)
	if w.load != nil {
		result.Before, result.During = &w.calm, &w.during
	}
	return result, nil
}

// over is how much a is above b.
func over(a, b uint64) uint64 { return max(a, b) - b }

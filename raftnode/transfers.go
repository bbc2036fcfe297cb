package raftnode

import (
	"slices"
	"sync"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// TransferStatus is an image on its way to a replica of this node, or one whose
// transfer ended.
type TransferStatus struct {
	// Progress of the transfer. Phase INSTALL follows when the image is READY, and
	// CATCH_UP when it is installed; the end of that is the end of the transfer.
	snapshot.Progress
	// Applied is the index the replica has applied; of an ended transfer, at its
	// end.
	Applied uint64
	// Target is the index that was applied at the leader when it offered the image
	// last. Catching up ends there.
	Target uint64
}

// maxEndedTransfers is how many ended transfers of a group are remembered.
const maxEndedTransfers = 16

// Transfers tells of the images that the node's replicas receive: first those
// that run, then the last 16 of each group that ended since the node was opened,
// the latest first. It may be called from any goroutine, waits for nothing, and
// answers on a failed node too.
func (n *Node) Transfers() []TransferStatus {
	if !n.ready.Load() {
		return nil
	}
	var running, ended []TransferStatus
	for _, g := range n.ordered {
		r, e := g.transfers.list(g.Applied())
		running, ended = append(running, r...), append(ended, e...)
	}
	slices.SortStableFunc(ended, func(a, b TransferStatus) int { return b.Ended.Compare(a.Ended) })
	return append(running, ended...)
}

// transferBook is what a group knows of its transfers; the step goroutine
// writes it and others read it.
type transferBook struct {
	mu      sync.Mutex
	running []*bookedTransfer // one that is fetched or installed, and one that catches up
	ended   []TransferStatus  // the oldest first
}

type bookedTransfer struct {
	run    *snapshot.Transfer
	target uint64
}

// begin enters a transfer.
func (b *transferBook) begin(run *snapshot.Transfer, target uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = append(b.running, &bookedTransfer{run, target})
}

// aim raises the target of a transfer, after another offer.
func (b *transferBook) aim(run *snapshot.Transfer, target uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.running {
		if t.run == run {
			t.target = max(t.target, target)
		}
	}
}

// target returns where catching up ends.
func (b *transferBook) target(run *snapshot.Transfer) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.running {
		if t.run == run {
			return t.target
		}
	}
	return 0
}

// end moves a transfer to those that ended.
func (b *transferBook) end(run *snapshot.Transfer, applied uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.IndexFunc(b.running, func(t *bookedTransfer) bool { return t.run == run })
	if at < 0 {
		return
	}
	last := TransferStatus{Progress: run.Progress(), Applied: applied, Target: b.running[at].target}
	b.running = slices.Delete(b.running, at, at+1)
	if len(b.ended) >= maxEndedTransfers {
		b.ended = slices.Delete(b.ended, 0, len(b.ended)-maxEndedTransfers+1)
	}
	b.ended = append(b.ended, last)
}

func (b *transferBook) list(applied uint64) (running, ended []TransferStatus) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.running {
		running = append(running, TransferStatus{Progress: t.run.Progress(), Applied: applied, Target: t.target})
	}
	return running, slices.Clone(b.ended)
}

// targetOf is the highest index that an offer says to be applied somewhere: the
// leader's own is among them.
func targetOf(offer *snapshotv1.Offer) (target uint64) {
	for _, s := range offer.GetSources() {
		target = max(target, s.GetApplied())
	}
	return target
}

// ended notes the outcome of a transfer and the times of the replica's own
// stages.
func (r *receiving) ended(run *snapshot.Transfer, outcome snapshotv1.Outcome, err error) {
	run.End(outcome, err)
	r.g.transfers.end(run, r.g.Applied())
	if outcome != snapshotv1.Outcome_OUTCOME_INSTALLED {
		return
	}
	counters, spent := r.g.counters(), run.Progress().Stages
	counters.ObserveStage(snapshot.StageInstall, spent[snapshot.StageInstall])
	counters.ObserveStage(snapshot.StageCatchUp, spent[snapshot.StageCatchUp])
}

// catchUp follows a replica from the installation on, until it has applied what
// its leader had when it offered the image.
func (r *receiving) catchUp(run *snapshot.Transfer) {
	r.endCatchUp()
	run.Advance(snapshotv1.Phase_PHASE_CATCH_UP, "")
	r.catching = run
	r.checkCatchUp()
}

func (r *receiving) checkCatchUp() {
	if r.catching != nil && r.g.Applied() >= r.g.transfers.target(r.catching) {
		r.recovered()
		r.endCatchUp()
	}
}

// endCatchUp ends it as it is: another image is on its way.
func (r *receiving) endCatchUp() {
	if run := r.catching; run != nil {
		r.catching = nil
		r.ended(run, snapshotv1.Outcome_OUTCOME_INSTALLED, nil)
	}
}

package bench

import (
	"fmt"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// trace is what the nodes told of the transfers of one recovery. A process that
// ends takes what it knows with it, so the last that was heard of it counts.
type trace struct {
	node   string          // that recovers
	before map[string]bool // transfers that were there already
	// received and sent are the transfers at the receiver and the attempts at its
	// sources, as they were last heard of, in the order they were first.
	received, sent []*told
	source         string // that sent last
}

// told is a transfer as a node told of it.
type told struct {
	key  string
	from string
	*adminv1.Transfer
}

func newTrace(node string) *trace { return &trace{node: node, before: make(map[string]bool)} }

// toldKey tells transfers apart, those of two processes of a node as well.
func toldKey(from string, t *adminv1.Transfer) string {
	return fmt.Sprintf("%s/%d/%x/%d", from, t.GetRole(), t.GetTransfer(), t.GetStartedUnixMs())
}

// ignore notes a transfer that is none of this recovery.
func (t *trace) ignore(from string, x *adminv1.Transfer) { t.before[toldKey(from, x)] = true }

// note takes what a node tells of a transfer.
func (t *trace) note(from string, x *adminv1.Transfer) {
	n := &told{key: toldKey(from, x), from: from, Transfer: x}
	if t.before[n.key] {
		return
	}
	switch {
	case x.GetRole() == adminv1.TransferRole_TRANSFER_ROLE_SOURCE && x.GetPeer() == t.node:
		t.sent = noted(t.sent, n)
		if x.GetEndedUnixMs() == 0 || t.source == "" {
			t.source = from
		}
	case x.GetRole() == adminv1.TransferRole_TRANSFER_ROLE_RECEIVER && from == t.node:
		t.received = noted(t.received, n)
	}
}

func noted(list []*told, n *told) []*told {
	for i, old := range list {
		if old.key == n.key {
			list[i] = n
			return list
		}
	}
	return append(list, n)
}

// percent is how much of the bytes of the newest image is staged.
func (t *trace) percent() float64 {
	if len(t.received) == 0 {
		return 0
	}
	last := t.received[len(t.received)-1]
	return 100 * ratio(float64(last.GetBytesDone()), float64(last.GetBytesTotal()))
}

// sender is the node that sends the newest image: as its receiver tells it, for
// one that just began may have told nothing yet.
func (t *trace) sender() string {
	if len(t.received) > 0 {
		if peer := t.received[len(t.received)-1].GetPeer(); peer != "" {
			return peer
		}
	}
	return t.source
}

// fill puts what was heard into a result. The receiver's process began at
// started, and total later the node had recovered.
func (t *trace) fill(result *Recovery, started time.Time, total time.Duration) error {
	if len(t.received) == 0 {
		return fmt.Errorf("node %s caught up without an image: its log was not cut", t.node)
	}
	result.Total, result.Stages = total, make(map[string]time.Duration)
	// The nodes tell milliseconds.
	result.ToTransfer = min(total, max(0, time.UnixMilli(t.received[0].GetStartedUnixMs()).Sub(started)))
	result.Other = total - result.ToTransfer
	images := make(map[string]bool)
	for _, x := range t.received {
		for _, stage := range x.GetStages() {
			d := time.Duration(stage.GetNanoseconds())
			result.Stages[stage.GetStage()] += d
			result.Other -= d
		}
		result.Restarts += int(x.GetRestarts())
		if id := string(x.GetImage()); id != "" && !images[id] {
			images[id] = true
			result.Kind = kindName(x.GetKind())
			result.ImageBytes += x.GetBytesTotal()
			result.RawBytes += x.GetRawBytes()
		}
	}
	if len(images) == 0 {
		return fmt.Errorf("node %s caught up, and its transfer never had an image", t.node)
	}
	for _, x := range t.sent {
		result.SentBytes += x.GetWireBytes()
	}
	result.Attempts = len(t.sent)
	return nil
}

func kindName(k snapshotv1.Kind) string {
	switch k {
	case snapshotv1.Kind_KIND_FILES:
		return "files"
	case snapshotv1.Kind_KIND_RECORDS:
		return "records"
	case snapshotv1.Kind_KIND_STREAM:
		return "stream"
	}
	return "none"
}

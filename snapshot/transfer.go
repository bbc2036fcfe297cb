package snapshot

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// SourceRef names a node that can serve a transfer.
type SourceRef struct {
	// Node is its name, Address where its SnapshotService is.
	Node, Address string
}

// TransferOptions describe a transfer to a Receiver.
type TransferOptions struct {
	// ID of the transfer, 16 random bytes (NewID). Required. What an earlier
	// Receive of the same ID staged is gone on with.
	ID []byte

	// ClusterID, HistoryEpoch and Group the image must be of. Group is required.
	ClusterID    []byte
	HistoryEpoch uint64
	Group        uint64

	// Node and Incarnation of this node; Node is required.
	Node        string
	Incarnation []byte

	// Class orders transfers that wait.
	Class snapshotv1.Class

	// MinIndex: an older image is of no use.
	MinIndex uint64

	// Kinds of images that are taken. Required.
	Kinds []snapshotv1.Kind

	// Applied tells what this replica has, for a delta; nil: nothing. It is called
	// before each attempt, on Receive's goroutine.
	Applied func() Have

	// Sources that can serve, the preferred first; SetSources changes them. A
	// transfer stays with the source of what it has staged while that can be had.
	Sources []SourceRef

	// Inboxes of the group. Required.
	Inboxes *Inboxes

	// Stager takes the image. Required.
	Stager Stager

	// OnChange, if not nil, is called when phase, source, image or error change,
	// from goroutines of the transfer. It must not block.
	OnChange func(Progress)
}

// Validate tells the first field that is missing or out of range.
func (o *TransferOptions) Validate() error {
	switch {
	case len(o.ID) != idBytes:
		return fmt.Errorf("snapshot: the ID of a transfer has %d bytes, not %d", len(o.ID), idBytes)
	case o.Group == 0 || o.Node == "" || o.Inboxes == nil || o.Stager == nil || len(o.Kinds) == 0:
		return errors.New("snapshot: Group, Node, Kinds, Inboxes and Stager of a transfer are required")
	}
	return nil
}

// Progress of a transfer at one moment.
type Progress struct {
	// Transfer and its group.
	Transfer []byte
	Group    uint64
	// Attempt that runs or ran last, and the source it goes to.
	Attempt uint64
	Source  string
	// Phase the transfer is in.
	Phase snapshotv1.Phase
	// Position in a queue, from 1; 0 if it waits for no slot.
	Position int
	// Image that is received, its kind, the index it starts from, its index and
	// term; zero before it is known.
	Image     []byte
	Kind      snapshotv1.Kind
	FromIndex uint64
	Index     uint64
	Term      uint64
	// BytesDone of BytesTotal of the image are written; RawBytes is what it holds
	// uncompressed, 0 if that is not known.
	BytesDone, BytesTotal, RawBytes uint64
	// WireBytes came over the network in this transfer, in all attempts of this
	// process, and held MovedBytes of files.
	WireBytes, MovedBytes uint64
	// BytesPerSecond is the rate of MovedBytes over the last few seconds; after
	// the end, over the time it spent sending.
	BytesPerSecond uint64
	// Paced: the source holds back for its foreground work.
	Paced bool
	// Restarts is how often staged bytes were lost; LastRestart why.
	Restarts    int
	LastRestart string
	// Err ended the last attempt, or the transfer; nil while one goes well.
	Err error
	// Retry is when the next attempt begins, after Err.
	Retry time.Time
	// Waiting is why a staged image is not installed yet, as the replica told it;
	// "" while nothing is in its way.
	Waiting string
	// Started is when it was made; Ended is zero until End.
	Started, Ended time.Time
	// Outcome is RUNNING until End.
	Outcome snapshotv1.Outcome
	// Stages is the time spent in each stage. Pauses between attempts count for
	// the stage that the attempt was in.
	Stages map[Stage]time.Duration
}

// describe fills in what a manifest tells.
func (p *Progress) describe(m *snapshotv1.Manifest) {
	p.Image, p.Kind, p.FromIndex, p.Index, p.Term = m.Image, m.Kind, m.FromIndex, m.Index, m.Term
	p.BytesTotal, p.RawBytes = m.Bytes, m.RawBytes
}

// Transfer is one image on its way to one replica: a Receiver runs it. Its
// methods may be called from any goroutine.
type Transfer struct {
	opts TransferOptions

	mu       sync.Mutex
	sources  []SourceRef
	progress Progress
	timeline timeline
	meter    meter
}

// NewTransfer returns a transfer that does nothing yet.
func NewTransfer(opts TransferOptions) (*Transfer, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	t := &Transfer{opts: opts, sources: slices.Clone(opts.Sources), progress: Progress{
		Transfer: opts.ID, Group: opts.Group, Phase: snapshotv1.Phase_PHASE_QUEUED,
		Outcome: snapshotv1.Outcome_OUTCOME_RUNNING, Started: time.Now(),
	}}
	t.timeline.enter(StageQueue, t.progress.Started)
	return t, nil
}

// Progress returns how far the transfer is.
func (t *Transfer) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now()
}

// stagedBytes is Progress().BytesDone alone.
func (t *Transfer) stagedBytes() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress.BytesDone
}

// now completes the progress; t.mu is held.
func (t *Transfer) now() Progress {
	p := t.progress
	at := time.Now()
	p.BytesPerSecond = t.meter.rate(at)
	if !p.Ended.IsZero() {
		at = p.Ended
	}
	p.Stages = t.timeline.times(at)
	if !p.Ended.IsZero() {
		p.BytesPerSecond = perSecond(p.MovedBytes, p.Stages[StageSend])
	}
	return p
}

// Advance tells of the phases that are the replica's, after Receive: INSTALL and
// CATCH_UP. waiting is why the image is not installed yet, or "".
func (t *Transfer) Advance(phase snapshotv1.Phase, waiting string) {
	t.change(func(p *Progress) { p.Phase, p.Waiting = phase, waiting })
}

// End notes the outcome; err is why it failed. Only the first End counts.
func (t *Transfer) End(outcome snapshotv1.Outcome, err error) {
	t.change(func(p *Progress) {
		if !p.Ended.IsZero() {
			return
		}
		p.Phase, p.Outcome, p.Err, p.Ended = snapshotv1.Phase_PHASE_DONE, outcome, err, time.Now()
		p.Waiting, p.Position, p.Paced, p.Retry = "", 0, false, time.Time{}
	})
}

// SetSources changes who can serve, for the next attempt. A source of staged
// files that is left out is gone for good.
func (t *Transfer) SetSources(sources []SourceRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sources = slices.Clone(sources)
}

// change changes the progress and tells who asked for it.
func (t *Transfer) change(f func(*Progress)) {
	t.mu.Lock()
	f(&t.progress)
	t.timeline.enter(stageOf(t.progress.Phase), time.Now())
	p := t.now()
	t.mu.Unlock()
	if t.opts.OnChange != nil {
		t.opts.OnChange(p)
	}
}

// wrote counts bytes, without telling anybody.
func (t *Transfer) wrote(wire, raw int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.progress.WireBytes += uint64(wire)
	t.progress.MovedBytes += uint64(raw)
	t.progress.BytesDone += uint64(raw)
	t.meter.add(time.Now(), uint64(raw))
}

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// maxCondemned is how many images may turn out damaged or unfit before a
// transfer ends: the fault is then not the image's.
const maxCondemned = 3

// Receive runs a transfer until its image is staged and READY is on disk. It
// makes attempts, with pauses between them, and goes on where the last one
// ended, in this process or an earlier one. It returns an error only where
// another attempt cannot help: ctx's; ErrGivenUp after GiveUpAfter without a new
// byte; ErrNotNeeded, ErrRefused, ErrUnfit and ErrCorrupt. What is
// staged stays then; an inbox in which nothing is staged is removed.
//
// It blocks; call it once at a time for a transfer.
func (r *Receiver) Receive(ctx context.Context, t *Transfer) (*Staged, error) {
	inbox, err := t.opts.Inboxes.Open(t.opts.ID)
	if err != nil {
		return nil, err
	}
	d := &driver{r: r, t: t, inbox: inbox, chunk: r.opts.ChunkBytes,
		log: r.opts.Logger.With("group", t.opts.Group, "transfer", FormatID(t.opts.ID))}
	r.opts.Counters.beginStaging(t)
	defer r.opts.Counters.endStaging(t)
	r.running.Add(1)
	defer r.running.Add(-1)
	staged, err := d.run(ctx)
	kind := ""
	if d.inbox.manifest != nil {
		kind = kindName(d.inbox.manifest.Kind)
	}
	r.opts.Counters.ended(RoleReceiver, kind, err)
	if err == nil {
		return staged, nil
	}
	t.change(func(p *Progress) { p.Err = err })
	d.log.Warn("transfer ended without an image", "reason", err)
	if d.inbox.bytes() == 0 {
		return nil, errors.Join(err, d.inbox.Remove())
	}
	return nil, errors.Join(err, d.inbox.Close())
}

// driver runs one transfer, on Receive's goroutine.
type driver struct {
	r     *Receiver
	t     *Transfer
	inbox *Inbox
	sink  Sink // nil until the image is staged
	// prepared: Prepare of this sink returned nil.
	prepared bool
	log      *slog.Logger

	chunk     int // largest chunk to ask for
	pause     time.Duration
	progress  time.Time // of the last new byte
	failing   time.Time // since when the source of staged files fails; zero: it does not
	turn      int       // rotates through the sources
	refusals  int       // in a row
	condemned int       // images
	bad       []byte    // the last image that was condemned
}

func (d *driver) run(ctx context.Context) (*Staged, error) {
	d.progress = time.Now()
	if m := d.inbox.manifest; m != nil && d.wrongImage(m) != nil {
		if err := d.restart("outdated", d.wrongImage(m)); err != nil {
			return nil, err
		}
	}
	for {
		if d.inbox.complete() {
			staged, err := d.finish(ctx)
			if err == nil {
				return staged, nil
			}
			if err := d.next(ctx, err, SourceRef{}); err != nil {
				return nil, err
			}
			continue
		}
		source, err := d.pick()
		if err == nil {
			err = d.attempt(ctx, source)
		}
		if err == nil {
			continue
		}
		if err := d.next(ctx, err, source); err != nil {
			return nil, err
		}
	}
}

// wrongImage tells why an image can never be installed here.
func (d *driver) wrongImage(m *snapshotv1.Manifest) error {
	o := &d.t.opts
	switch {
	case string(m.ClusterId) != string(o.ClusterID) || m.HistoryEpoch != o.HistoryEpoch || m.Group != o.Group:
		return fmt.Errorf("%w: image %s is of group %d, history epoch %d", ErrUnfit, FormatID(m.Image), m.Group, m.HistoryEpoch)
	case m.Index < o.MinIndex:
		return fmt.Errorf("%w: image %s is at index %d, and raft would ignore any below %d", ErrUnfit, FormatID(m.Image), m.Index, o.MinIndex)
	case !slices.Contains(o.Kinds, m.Kind):
		return fmt.Errorf("%w: image %s is %s, which is not taken", ErrUnfit, FormatID(m.Image), kindName(m.Kind))
	}
	return nil
}

// pick chooses the source of the next attempt: the one of what is staged, unless
// that is gone; else each in turn.
func (d *driver) pick() (SourceRef, error) {
	d.t.mu.Lock()
	sources := d.t.sources
	d.t.mu.Unlock()
	if len(sources) == 0 {
		return SourceRef{}, fmt.Errorf("%w: no source is known", ErrBusy)
	}
	if d.inbox.manifest != nil {
		lost := !d.failing.IsZero() && time.Since(d.failing) >= d.r.opts.SourceLostAfter
		at := slices.IndexFunc(sources, func(s SourceRef) bool { return s.Node == d.inbox.source })
		if at >= 0 && (!lost || len(sources) == 1) {
			return sources[at], nil
		}
	}
	return sources[d.turn%len(sources)], nil
}

// attempt runs one attempt within a slot.
func (d *driver) attempt(ctx context.Context, source SourceRef) error {
	begin := time.Now()
	claim := Claim{Class: d.t.opts.Class}
	if m := d.inbox.manifest; m != nil {
		claim.BytesLeft = m.Bytes - min(m.Bytes, d.inbox.bytes())
	}
	slot, err := d.r.opts.Slots.Acquire(ctx, claim, func(at int) {
		d.t.change(func(p *Progress) { p.Phase, p.Position = snapshotv1.Phase_PHASE_QUEUED, at })
	})
	if err != nil {
		return err
	}
	defer slot.Release()
	d.r.opts.Counters.stage(StageQueue, time.Since(begin))
	if d.inbox.log.broken {
		if err := d.reopen(); err != nil {
			return err
		}
	}
	before := d.inbox.bytes()
	a := &attempt{d: d, r: d.r, t: d.t, inbox: d.inbox, source: source, slot: slot}
	err = a.run(ctx, claim)
	if d.inbox.bytes() > before || a.wrote > 0 {
		d.progress, d.pause = time.Now(), 0
	}
	if a.manifest != nil && d.inbox.manifest != nil && source.Node == d.inbox.source {
		d.failing = time.Time{}
		d.refusals = 0
	}
	switch {
	case errors.Is(err, ErrStalled):
		d.chunk = max(d.chunk/2, min(d.r.opts.ChunkBytes, MinChunkBytes))
	case a.wrote >= 32*uint64(d.chunk):
		d.chunk = min(d.chunk*2, d.r.opts.ChunkBytes)
	}
	return err
}

// next decides what follows an error: nil to try again, after a pause.
func (d *driver) next(ctx context.Context, err error, source SourceRef) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errReopen) {
		return nil
	}
	d.log.Info("attempt to receive an image ended", "source", source.Node, "bytes", d.t.Progress().BytesDone, "reason", err)
	var condemned *condemnedError
	var aborted *AbortError
	switch fromSource := errors.As(err, &aborted); {
	case errors.As(err, &condemned):
		if m := d.inbox.manifest; m != nil {
			d.bad = m.Image
		}
		if restartErr := d.restart("corrupt", err); restartErr != nil {
			return restartErr
		}
		if d.condemned++; d.condemned >= maxCondemned {
			return fmt.Errorf("%d images could not be used, the last: %w", d.condemned, err)
		}
	case errors.Is(err, ErrNotNeeded):
		return err
	// ErrStale needs nothing: the inbox is ours alone, so what the source takes for
	// newer is an attempt of ours that it has not seen the end of, and numbers
	// rise.
	case errors.Is(err, ErrUnfit), errors.Is(err, ErrRefused):
		d.t.mu.Lock()
		enough := 2 * len(d.t.sources)
		d.t.mu.Unlock()
		if d.refusals++; d.refusals >= max(enough, maxCondemned) {
			return err
		}
		if !fromSource {
			if err := d.restart("unfit", err); err != nil {
				return err
			}
		}
	}
	if d.inbox.manifest != nil && source.Node == d.inbox.source && d.failing.IsZero() {
		d.failing = time.Now()
	}
	d.turn++
	if time.Since(d.progress) >= d.r.opts.GiveUpAfter {
		return fmt.Errorf("%w: no new byte for %v; the last attempt: %w", ErrGivenUp, d.r.opts.GiveUpAfter, err)
	}
	return d.wait(ctx, err, aborted)
}

// wait pauses between attempts.
func (d *driver) wait(ctx context.Context, err error, aborted *AbortError) error {
	d.pause = min(max(2*d.pause, d.r.opts.BackoffMin), d.r.opts.BackoffMax)
	pause := d.pause + time.Duration(rand.Int64N(int64(d.pause)/5+1))
	if aborted != nil {
		pause = max(pause, min(aborted.RetryAfter, d.r.opts.BackoffMax))
	}
	d.t.change(func(p *Progress) { p.Err, p.Retry, p.Paced = err, time.Now().Add(pause), false })
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// restart forgets what is staged.
func (d *driver) restart(reason string, why error) error {
	lost := d.inbox.bytes()
	d.log.Warn("starting over", "reason", reason, "because", why, "bytes", lost)
	if err := d.discard(); err != nil {
		return err
	}
	if err := d.inbox.restart(); err != nil {
		return fmt.Errorf("snapshot: empty inbox %s: %w", d.inbox.name, diskError(err))
	}
	d.restarted(reason, lost)
	return nil
}

func (d *driver) restarted(reason string, lost uint64) {
	if lost == 0 {
		return
	}
	d.r.opts.Counters.restarted(reason)
	d.t.change(func(p *Progress) { p.Restarts++; p.LastRestart = reason })
}

// discard lets go of the sink.
func (d *driver) discard() error {
	if d.sink == nil {
		return nil
	}
	err := d.sink.Discard()
	d.sink, d.prepared = nil, false
	if err != nil {
		return fmt.Errorf("snapshot: discard what is staged in inbox %s: %w", d.inbox.name, diskError(err))
	}
	return nil
}

// reopen opens the inbox anew after its log failed.
func (d *driver) reopen() error {
	if err := d.inbox.log.close(); err != nil {
		d.log.Debug("a failed session log did not close", "reason", err)
	}
	if err := d.inbox.load(); err != nil {
		return fmt.Errorf("snapshot: open inbox %s: %w", d.inbox.name, diskError(err))
	}
	return nil
}

// stage begins or resumes taking the image in the inbox.
func (d *driver) stage() error {
	if d.sink != nil {
		return nil
	}
	sink, err := d.t.opts.Stager.Stage(d.inbox.manifest, d.inbox.FilesDir())
	if err != nil {
		return fmt.Errorf("snapshot: take image %s: %w", FormatID(d.inbox.manifest.Image), diskError(err))
	}
	d.sink = sink
	return nil
}

// finish checks what is not checked yet, prepares the installation and records
// READY.
func (d *driver) finish(ctx context.Context) (*Staged, error) {
	begin := time.Now()
	if d.inbox.log.broken {
		if err := d.reopen(); err != nil {
			return nil, err
		}
	}
	m := d.inbox.manifest
	d.t.change(func(p *Progress) {
		p.Phase, p.Attempt, p.Err, p.Position, p.Paced = snapshotv1.Phase_PHASE_VERIFY, d.inbox.attempt, nil, 0, false
		p.describe(m)
		p.BytesDone = m.Bytes
	})
	if err := d.stage(); err != nil {
		return nil, err
	}
	for no := range uint32(len(m.Files)) {
		if !d.inbox.done[no].Checked {
			if err := checkFile(ctx, d.inbox, d.sink, no); err != nil {
				return nil, err
			}
		}
	}
	if !d.prepared {
		if err := d.sink.Prepare(ctx); err != nil {
			return nil, condemn(ctx, fmt.Errorf("snapshot: prepare image %s: %w", FormatID(m.Image), diskError(err)))
		}
		d.prepared = true
	}
	if !d.inbox.Ready() {
		if err := d.inbox.setReady(); err != nil {
			return nil, err
		}
	}
	d.r.opts.Counters.stage(StageVerify, time.Since(begin))
	d.t.change(func(p *Progress) { p.Phase = snapshotv1.Phase_PHASE_READY })
	d.log.Info("image is ready", "image", FormatID(m.Image), "kind", kindName(m.Kind), "index", m.Index, "bytes", m.Bytes)
	return &Staged{Inbox: d.inbox, Sink: d.sink}, nil
}

// condemnedError: the image, as it arrived, is of no use, and has to be received
// again.
type condemnedError struct{ err error }

func (e *condemnedError) Error() string { return e.err.Error() }

func (e *condemnedError) Unwrap() []error { return []error{ErrCorrupt, e.err} }

// condemn tells what an error of the sink means: a full disk, the end of ctx or
// an unfit image say nothing against the bytes.
func condemn(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, ErrNoSpace) || errors.Is(err, ErrUnfit) || errors.Is(err, context.Canceled) {
		return err
	}
	return &condemnedError{err}
}

// checkFile lets the sink check a file and records that it did.
func checkFile(ctx context.Context, inbox *Inbox, sink Sink, no uint32) error {
	f := inbox.manifest.Files[no]
	if err := sink.CheckFile(ctx, f.Name, f.Verified); err != nil {
		return condemn(ctx, fmt.Errorf("snapshot: check file %q of image %s: %w", f.Name, FormatID(inbox.manifest.Image), diskError(err)))
	}
	inbox.mu.Lock()
	checked := &snapshotv1.StagedFile{File: no, Size: f.Size, Xxhash64: inbox.done[no].GetXxhash64(), Checked: true}
	inbox.mu.Unlock()
	return inbox.record(fileRecord(checked))
}

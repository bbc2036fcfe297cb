package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// errPeerDone ends an attempt whose receiver has all it wants.
var errPeerDone = errors.New("snapshot: the receiver ended the stream")

// abortLinger is how long an Abort may take to leave before the stream ends
// without it.
const abortLinger = time.Second

// sending is one attempt at the source.
type sending struct {
	source *Source
	stream grpc.BidiStreamingServer[snapshotv1.FetchRequest, snapshotv1.FetchResponse]
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the image is released and nothing is sent any more
	open   *snapshotv1.Open

	opened  chan *snapshotv1.Open // from receive
	acks    *fileAcks             // from receive
	out     chan *snapshotv1.FetchResponse
	credit  *sendCredit
	buffers *buffers
	unacked sync.Map // file number -> struct{}: FileEnd sent, FileAck awaited

	mu       sync.Mutex
	phase    snapshotv1.Phase
	position int
	built    [2]uint64 // done and total of building
	image    OpenedImage
	resumed  uint64    // bytes that the receiver had already
	sent     uint64    // bytes of files
	wire     uint64    // bytes of Chunk.data
	waits    time.Time // since when it waits for the pacing; zero: it does not
	waited   time.Time // when such a wait ended last
	noCredit time.Time // since when the receiver takes no more; zero: it does
	started  time.Time
	timeline timeline
	meter    meter
	slot     *Slot
}

func newSending(s *Source, stream grpc.BidiStreamingServer[snapshotv1.FetchRequest, snapshotv1.FetchResponse]) *sending {
	a := &sending{
		source: s,
		stream: stream,
		done:   make(chan struct{}),
		opened: make(chan *snapshotv1.Open, 1),
		acks:   newFileAcks(),
		out:    make(chan *snapshotv1.FetchResponse, 2),
		credit: newSendCredit(0),
		// One being read, two waiting, one being sent.
		buffers: newBuffers(4),
		phase:   snapshotv1.Phase_PHASE_QUEUED,
		started: time.Now(),
	}
	a.timeline.enter(StageQueue, a.started)
	a.ctx, a.cancel = context.WithCancelCause(stream.Context())
	return a
}

func (a *sending) key() attemptKey { return attemptKey{a.open.Node, a.open.Group} }

// refuse ends an attempt that was not begun.
func (a *sending) refuse(err error) error {
	close(a.done)
	if sendErr := a.stream.Send(a.abort(err)); sendErr != nil {
		return sendErr
	}
	return nil
}

func (a *sending) abort(err error) *snapshotv1.FetchResponse {
	return &snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Abort{Abort: &snapshotv1.Abort{
		Code: codeOf(err), Message: messageOf(err), RetryAfterMs: uint64(a.source.opts.RetryAfter.Milliseconds()),
	}}}
}

// serve runs an attempt to its end, on gRPC's goroutine.
func (a *sending) serve() error {
	s := a.source
	stop := context.AfterFunc(s.ctx, func() { a.cancel(context.Cause(s.ctx)) })
	defer stop()
	log := s.opts.Logger.With("group", a.open.Group, "node", a.open.Node, "transfer", FormatID(a.open.Transfer), "attempt", a.open.Attempt)
	log.Info("attempt to send an image begins")

	var produced error
	producerDone, senderDone := make(chan struct{}), make(chan struct{})
	s.wg.Go(func() {
		defer close(producerDone)
		defer close(a.out)
		produced = a.produce()
	})
	s.wg.Go(func() {
		defer close(senderDone)
		a.send(func() error { <-producerDone; return produced })
	})
	// The next attempt of this replica waits for done; it must come even when the
	// sender is stuck in a dead connection, and only after the image is released.
	s.wg.Go(func() {
		<-producerDone
		<-senderDone
		close(a.done)
		s.leave(a)
	})

	select {
	case <-senderDone:
	case <-a.ctx.Done():
		// The sender says why, if the connection still takes it.
		timer := time.NewTimer(abortLinger)
		defer timer.Stop()
		select {
		case <-senderDone:
		case <-timer.C:
		}
	}
	a.cancel(errPeerDone) // if it has no reason yet
	<-producerDone
	err := produced
	if cause := context.Cause(a.ctx); err == nil || errors.Is(err, context.Canceled) {
		err = cause
	}
	if errors.Is(err, errPeerDone) {
		err = nil
	}
	kind := ""
	if a.image != nil {
		kind = kindName(a.image.Manifest().Kind)
	}
	s.opts.Counters.ended(RoleSource, kind, err)
	last := a.lastInfo(err)
	s.remember(last)
	log.Info("attempt to send an image ended", "bytes", last.SentBytes, "reason", err)
	return endStatus(err)
}

// receive is the receiver goroutine.
func (a *sending) receive() {
	for first := true; ; first = false {
		req, err := a.stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errPeerDone
		}
		if err != nil {
			a.cancel(err)
			return
		}
		switch m := req.Message.(type) {
		case *snapshotv1.FetchRequest_Open:
			if !first {
				a.cancel(fmt.Errorf("%w: a second open", ErrProtocol))
				return
			}
			a.credit.raise(m.Open.GetCreditLimit())
			a.opened <- m.Open
			continue
		case *snapshotv1.FetchRequest_Ack:
			if !first {
				a.credit.raise(m.Ack.GetCreditLimit())
				continue
			}
		case *snapshotv1.FetchRequest_FileAck:
			if _, awaited := a.unacked.LoadAndDelete(m.FileAck.GetFile()); !first && awaited {
				a.acks.put(m.FileAck)
				continue
			}
		case *snapshotv1.FetchRequest_Cancel:
			a.cancel(a.cancelled(m.Cancel))
			return
		}
		a.cancel(fmt.Errorf("%w: unexpected %T", ErrProtocol, req.Message))
		return
	}
}

// cancelled is why a receiver ended the attempt.
func (a *sending) cancelled(c *snapshotv1.Cancel) error {
	if c.GetCode() == snapshotv1.Code_CODE_UNSPECIFIED {
		return errPeerDone
	}
	err := &AbortError{Code: c.GetCode(), Message: c.GetMessage()}
	a.mu.Lock()
	defer a.mu.Unlock()
	if errors.Is(err, ErrCorrupt) && !c.GetKeepPartial() && a.image != nil {
		a.image.Condemn(err)
	}
	return err
}

// send is the sender goroutine: what the producer makes, and keepalives while it
// makes nothing.
func (a *sending) send(produced func() error) {
	tick := time.NewTicker(a.source.opts.KeepaliveEvery)
	defer tick.Stop()
	quiet := true  // since the last tick
	paced := false // as last told
	for {
		var m *snapshotv1.FetchResponse
		select {
		case next, more := <-a.out:
			if !more {
				a.finish(produced())
				return
			}
			m, quiet = next, false
		case <-tick.C:
			now := a.heldBack()
			if !quiet && now == paced {
				quiet = true
				continue
			}
			m, quiet, paced = a.keepalive(), true, now
		case <-a.ctx.Done():
			a.finish(context.Cause(a.ctx))
			return
		}
		if err := a.stream.Send(m); err != nil {
			// The stream's own error is the receiver goroutine's to find; it must not
			// be masked by this one.
			a.cancel(err)
			return
		}
		// gRPC has encoded it, so the memory is free again.
		if c := m.GetChunk(); c != nil {
			a.buffers.put(c.Data)
		}
	}
}

// finish tells the peer why the attempt ends, unless it ended it itself.
func (a *sending) finish(err error) {
	var aborted *AbortError
	if err == nil || errors.Is(err, errPeerDone) || errors.As(err, &aborted) || a.stream.Context().Err() != nil {
		return
	}
	if sendErr := a.stream.Send(a.abort(err)); sendErr != nil {
		a.source.opts.Logger.Debug("an abort did not leave", "reason", sendErr)
	}
}

func (a *sending) keepalive() *snapshotv1.FetchResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := &snapshotv1.Keepalive{Phase: a.phase, Paced: a.paced(time.Now())}
	switch a.phase {
	case snapshotv1.Phase_PHASE_QUEUED:
		k.Done = uint64(a.position)
	case snapshotv1.Phase_PHASE_CAPTURE:
		k.Done, k.Total = a.built[0], a.built[1]
	default:
		k.Done = a.sent
		if a.image != nil {
			k.Total = a.image.Manifest().Bytes
		}
	}
	return &snapshotv1.FetchResponse{Message: &snapshotv1.FetchResponse_Keepalive{Keepalive: k}}
}

package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// errReopen ends an attempt to open the next at once, which resumes an image
// that this one learned of.
var errReopen = errors.New("snapshot: files of another image count again")

// cancelLinger is how long a Cancel may take to leave.
const cancelLinger = time.Second

// attempt is one attempt of a transfer at the receiver. It has these goroutines:
//
//	run      the driver's: waits for the end, watches for stalls
//	receive  reads from the stream, and checks what comes
//	send     the only one that writes to the stream
//	write    writes chunks to files; raises the credit
//	sync     makes files and progress durable
//	check    several: let the sink check complete files
//
// Data goes receive -> write -> sync -> check, each closing the channel to the
// next.
type attempt struct {
	d      *driver
	r      *Receiver
	t      *Transfer
	inbox  *Inbox
	source SourceRef
	slot   *Slot

	number   uint64
	chunkMax uint32
	ctx      context.Context // ends with the attempt
	cancel   context.CancelFunc
	stream   grpc.BidiStreamingClient[snapshotv1.FetchRequest, snapshotv1.FetchResponse]
	wg       sync.WaitGroup

	manifest *snapshotv1.Manifest // set by receive before the others begin
	stage    *stage               // likewise
	buffers  *buffers
	credit   recvCredit
	sum      chunkSum
	sequence sequence

	written  atomic.Uint64 // highest seq written
	moved    atomic.Int64  // when a byte was last written or there was an excuse, unix nanoseconds
	wrote    uint64        // bytes of files; read after the attempt
	ackable  chan struct{}
	fileAcks chan *snapshotv1.FileAck
	ended    chan struct{} // closed when the source's End was right
	complete chan struct{} // closed when all is staged and checked

	drained chan struct{} // closed when the stream has ended
	talked  chan struct{} // closed when send has ended

	failOnce sync.Once
	failed   chan struct{}
	err      error // read after failed
}

// fail ends the attempt; the first reason counts.
func (a *attempt) fail(err error) {
	a.failOnce.Do(func() {
		a.err = err
		close(a.failed)
	})
}

func (a *attempt) hasFailed() bool {
	select {
	case <-a.failed:
		return true
	default:
		return false
	}
}

func (a *attempt) excuse() { a.moved.Store(time.Now().UnixNano()) }

// run runs the attempt. When it returns, no goroutine of it touches the inbox.
func (a *attempt) run(ctx context.Context, claim Claim) error {
	window, err := a.r.budget.take(ctx, a.r.opts.WindowBytes, int64(a.d.chunk))
	if err != nil {
		return err
	}
	defer a.r.budget.give(window)
	if a.number, err = a.inbox.begin(); err != nil {
		return err
	}
	a.chunkMax = uint32(a.d.chunk)
	a.credit.window, a.credit.lag = uint64(window), a.r.opts.ProgressBytes
	// What is sent ahead and read, not yet written.
	a.buffers = newBuffers(int(window)/a.d.chunk + 1)
	a.sum = newChunkSum(a.t.opts.ID, a.number)
	a.ackable = make(chan struct{}, 1)
	a.fileAcks = make(chan *snapshotv1.FileAck, 64)
	a.drained, a.talked = make(chan struct{}), make(chan struct{})
	a.ended, a.complete, a.failed = make(chan struct{}), make(chan struct{}), make(chan struct{})
	a.t.change(func(p *Progress) {
		p.Attempt, p.Source, p.Position, p.Phase = a.number, a.source.Node, 0, snapshotv1.Phase_PHASE_CAPTURE
		p.BytesDone = a.inbox.bytes()
	})
	conn, err := a.r.dial(a.source.Address)
	if err != nil {
		return err
	}
	// Not ctx itself: a Cancel must still leave when that has ended.
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	a.excuse()
	a.wg.Go(func() { a.talk(conn, claim) })
	a.watch(ctx)
	a.wg.Wait()
	closeErr := conn.Close()
	if a.stage != nil {
		a.wrote = a.stage.wrote
		a.stage.settle()
	}
	if a.hasFailed() {
		return a.err
	}
	if !a.inbox.complete() {
		return fmt.Errorf("%w: the source ended before all files were sent", ErrProtocol)
	}
	if closeErr != nil {
		a.d.log.Debug("a connection did not close", "reason", closeErr)
	}
	return nil
}

// watch waits for the end of the attempt and ends its goroutines.
func (a *attempt) watch(ctx context.Context) {
	stall := a.r.opts.StallTimeout
	tick := time.NewTicker(stall / 8)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-a.complete:
			done = true
		case <-a.failed:
			done = true
		case <-ctx.Done():
			a.fail(context.Cause(ctx))
		case <-a.slot.Evicted():
			a.fail(errEvicted(a.r.opts.Slots.opts))
		case <-tick.C:
			if s := a.staging(); a.credit.backlog() > 0 || a.credit.syncing() || s != nil && s.pending.Load() > 0 {
				a.excuse() // it is the disk that is slow, or checking
				a.slot.Excuse()
			}
			if idle := time.Since(time.Unix(0, a.moved.Load())); idle >= stall {
				a.fail(fmt.Errorf("%w: no byte from %s for %v while %d could be sent", ErrStalled, a.source.Node, idle.Round(time.Second), a.credit.window))
			}
		}
	}
	// send says farewell to the source, if the connection still takes it.
	timer := time.NewTimer(cancelLinger)
	defer timer.Stop()
	select {
	case <-a.talked:
	case <-timer.C:
	}
	a.cancel()
}

// staging returns the stage once it exists.
func (a *attempt) staging() *stage {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	return a.stage
}

// talk opens the stream, then is the send goroutine.
func (a *attempt) talk(conn *grpc.ClientConn, claim Claim) {
	defer close(a.talked)
	dialing, stop := context.WithCancel(a.ctx)
	defer stop()
	// Until the stream is open nothing else notices a failure.
	opened := make(chan struct{})
	a.wg.Go(func() {
		select {
		case <-a.failed:
			select {
			case <-opened:
			default:
				stop()
			}
		case <-opened:
		}
	})
	stream, err := snapshotv1.NewSnapshotServiceClient(conn).Fetch(dialing)
	if err == nil {
		a.stream = stream
		err = stream.Send(&snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_Open{Open: a.request(claim)}})
	}
	close(opened)
	if err != nil {
		a.fail(fmt.Errorf("snapshot: open an attempt at %s (%s): %w", a.source.Node, a.source.Address, err))
		return
	}
	a.wg.Go(a.receive)
	for {
		var m *snapshotv1.FetchRequest
		last := false
		select {
		case ack := <-a.fileAcks:
			m = &snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_FileAck{FileAck: ack}}
		case <-a.ackable:
			m = &snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_Ack{Ack: &snapshotv1.Ack{Seq: a.written.Load(), CreditLimit: a.credit.limit()}}}
		case <-a.ended:
			// All FileAcks went before the source could end.
			last = true
		case <-a.failed:
			m, last = a.farewell(), true
		}
		if m != nil {
			if err := stream.Send(m); err != nil {
				// Why is told to receive; io.EOF says only that the stream has ended.
				a.awaitFailure()
				return
			}
		}
		if last {
			if err := stream.CloseSend(); err != nil {
				a.d.log.Debug("a stream did not close", "reason", err)
			}
			// Cut before the source has read it, a good end would look like a bad one.
			select {
			case <-a.drained:
			case <-a.ctx.Done():
			}
			return
		}
	}
}

// awaitFailure waits until receive has told why the stream ended.
func (a *attempt) awaitFailure() {
	select {
	case <-a.failed:
	case <-a.complete:
	case <-a.ctx.Done():
	}
}

// request is the Open of this attempt.
func (a *attempt) request(claim Claim) *snapshotv1.Open {
	o := &a.t.opts
	open := &snapshotv1.Open{
		Transfer: o.ID, Attempt: a.number, ClusterId: o.ClusterID, HistoryEpoch: o.HistoryEpoch, Group: o.Group,
		Node: o.Node, NodeIncarnation: o.Incarnation, MinIndex: o.MinIndex, Kinds: o.Kinds, Class: o.Class,
		ChunkMax: a.chunkMax, CreditLimit: a.credit.limit(), DiskFree: freeSpace(a.inbox.boxes.fsys, a.inbox.dir),
		Resume: a.inbox.resume(), BytesLeft: claim.BytesLeft, Condemned: a.d.bad,
	}
	if o.Applied != nil {
		have := o.Applied()
		open.Applied = &snapshotv1.ReplicaState{Index: have.Index, Term: have.Term, Schema: have.Schema, StateFormat: have.StateFormat}
	}
	return open
}

// farewell is the Cancel for the source; nil if it ended the attempt itself.
func (a *attempt) farewell() *snapshotv1.FetchRequest {
	var aborted *AbortError
	if errors.As(a.err, &aborted) {
		return nil
	}
	var condemned *condemnedError
	code := codeOf(a.err)
	if errors.Is(a.err, errReopen) {
		code = snapshotv1.Code_CODE_UNSPECIFIED // nothing is wrong
	}
	c := &snapshotv1.Cancel{Code: code, Message: messageOf(a.err), KeepPartial: !errors.As(a.err, &condemned)}
	return &snapshotv1.FetchRequest{Message: &snapshotv1.FetchRequest_Cancel{Cancel: c}}
}

// receive is the receive goroutine.
func (a *attempt) receive() {
	defer close(a.drained)
	err := a.receiveAll()
	if a.stage != nil {
		close(a.stage.work)
	}
	if err != nil {
		a.fail(err)
	}
	// The stream must be read to its end, or gRPC keeps it open.
	for err := error(nil); err == nil; {
		_, err = a.stream.Recv()
	}
}

func (a *attempt) receiveAll() error {
	wire := newResponse(a.buffers)
	for {
		err := a.stream.RecvMsg(wire)
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: %s ended the stream in the middle", ErrProtocol, a.source.Node)
		}
		if err != nil {
			return fmt.Errorf("snapshot: receive from %s: %w", a.source.Node, err)
		}
		if wire.err != nil {
			return wire.err
		}
		resp := wire.message
		switch m := resp.Message.(type) {
		case *snapshotv1.FetchResponse_Keepalive:
			a.keepalive(m.Keepalive)
			continue
		case *snapshotv1.FetchResponse_Abort:
			return &AbortError{Code: m.Abort.GetCode(), Message: m.Abort.GetMessage(),
				RetryAfter: time.Duration(min(m.Abort.GetRetryAfterMs(), 3_600_000)) * time.Millisecond}
		case *snapshotv1.FetchResponse_Manifest:
			if a.manifest != nil {
				return fmt.Errorf("%w: a second manifest", ErrProtocol)
			}
			if err := a.adopt(m.Manifest); err != nil {
				return err
			}
			continue
		}
		if a.manifest == nil {
			return fmt.Errorf("%w: %T before the manifest", ErrProtocol, resp.Message)
		}
		item := workItem{}
		switch m := resp.Message.(type) {
		case *snapshotv1.FetchResponse_Chunk:
			fresh, err := a.takeChunk(m.Chunk)
			if err != nil {
				return err
			}
			if !fresh {
				a.buffers.put(m.Chunk.Data)
				a.acknowledge()
				continue
			}
			item.chunk = m.Chunk
		case *snapshotv1.FetchResponse_FileEnd:
			item.fileEnd = m.FileEnd
		case *snapshotv1.FetchResponse_End:
			item.end = m.End
		default:
			return fmt.Errorf("%w: unexpected %T", ErrProtocol, resp.Message)
		}
		select {
		case a.stage.work <- item:
		case <-a.failed:
			return a.err
		}
		if item.end != nil {
			return nil
		}
	}
}

// takeChunk checks a chunk and counts it.
func (a *attempt) takeChunk(c *snapshotv1.Chunk) (fresh bool, err error) {
	if err := a.sum.checkChunk(c, a.manifest, a.chunkMax); err != nil {
		if errors.Is(err, ErrCorrupt) {
			a.r.opts.Counters.add(&a.r.opts.Counters.checksums, 1)
		}
		return false, err
	}
	fresh, err = a.sequence.next(c.Seq)
	if err != nil || !fresh {
		return false, err
	}
	return true, a.credit.receive(len(c.Data))
}

func (a *attempt) acknowledge() {
	select {
	case a.ackable <- struct{}{}:
	default: // send will look at the newest state
	}
}

func (a *attempt) keepalive(k *snapshotv1.Keepalive) {
	phase := k.GetPhase()
	waiting := phase == snapshotv1.Phase_PHASE_QUEUED || phase == snapshotv1.Phase_PHASE_CAPTURE
	if waiting || k.GetPaced() {
		a.excuse()
		a.slot.Excuse()
	}
	a.t.change(func(p *Progress) {
		p.Paced, p.Position = k.GetPaced(), 0
		if waiting && a.manifest == nil {
			p.Phase = phase
		}
		if phase == snapshotv1.Phase_PHASE_QUEUED {
			p.Position = int(min(k.GetDone(), 1<<20))
		}
	})
}

// adopt takes the manifest, on the receive goroutine, and starts the others.
func (a *attempt) adopt(m *snapshotv1.Manifest) error {
	if err := ValidateManifest(m); err != nil {
		return err
	}
	if err := a.d.wrongImage(m); err != nil {
		return err
	}
	old := a.inbox.manifest
	same := old != nil && string(old.Image) == string(m.Image)
	if same && !equalManifests(old, m) {
		return &condemnedError{fmt.Errorf("%w: %s sent another manifest of image %s", ErrCorrupt, a.source.Node, FormatID(m.Image))}
	}
	if !same {
		lost, oldSource := a.inbox.bytes(), a.inbox.source
		if err := a.d.discard(); err != nil {
			return err
		}
		space := m.Bytes - min(m.Bytes, lost) // what goes makes room
		if err := a.r.opts.Space.CheckSpace(a.inbox.boxes.fsys, a.inbox.dir, space); err != nil {
			return err
		}
		reused, err := a.inbox.adopt(a.t.opts.ID, a.source.Node, m)
		if err != nil {
			return fmt.Errorf("snapshot: note image %s: %w", FormatID(m.Image), diskError(err))
		}
		if old != nil {
			reason := "image_gone"
			if oldSource != a.source.Node {
				reason = "source_lost"
			}
			a.d.restarted(reason, lost)
		}
		a.r.opts.Counters.add(&a.r.opts.Counters.reused, reused)
		if reused > 0 && reused < m.Bytes {
			return errReopen
		}
	} else {
		left := m.Bytes - min(m.Bytes, a.inbox.bytes())
		if err := a.r.opts.Space.CheckSpace(a.inbox.boxes.fsys, a.inbox.dir, left); err != nil {
			return err
		}
		a.r.opts.Counters.add(&a.r.opts.Counters.resumed, a.inbox.bytes())
	}
	if err := a.d.stage(); err != nil {
		return err
	}
	a.excuse()
	a.manifest = m
	s := newStage(a)
	a.t.mu.Lock()
	a.stage = s
	a.t.mu.Unlock()
	a.t.change(func(p *Progress) {
		p.Phase, p.Err, p.Position = snapshotv1.Phase_PHASE_SEND, nil, 0
		p.describe(m)
		p.BytesDone = a.inbox.bytes()
	})
	s.start()
	return nil
}

package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// Why an attempt or a connection ended, as the cause of its context.
var (
	errKicked    = errors.New("connection reset by this node")
	errHandshake = errors.New("no answer to the hello in time")
)

// lane sends one kind of messages to one peer. run is its only goroutine beside
// the one that waits for the end of a stream.
type lane struct {
	peer  *peer
	id    raftv1.Lane
	queue *queue
	sent  laneCounts

	connects   atomic.Uint64
	unsendlogs atomic.Bool // an unsendable message was logged on this connection

	// kicked holds a token while a kick has not been taken notice of.
	kicked chan struct{}
	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the attempt or connection; nil between
}

func newLane(p *peer, id raftv1.Lane, limits QueueLimits) *lane {
	return &lane{peer: p, id: id, queue: newQueue(limits), kicked: make(chan struct{}, 1)}
}

// kick ends the connection and the pause before the next one.
func (l *lane) kick() {
	l.nudge()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel(errKicked)
	}
}

// nudge ends the pause before the next attempt, or the next pause.
func (l *lane) nudge() {
	select {
	case l.kicked <- struct{}{}:
	default:
	}
}

func (l *lane) setCancel(cancel context.CancelCauseFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = cancel
}

// run connects and sends until the peer is removed.
func (l *lane) run() {
	opts := &l.peer.t.opts
	pause := opts.BackoffMin
	for l.peer.ctx.Err() == nil {
		// A kick from before this point is obeyed by what follows: address and
		// hello are taken after it.
		select {
		case <-l.kicked:
		default:
		}
		ctx, cancel := context.WithCancelCause(l.peer.ctx)
		l.setCancel(cancel)
		connected, err := l.connect(ctx, cancel)
		l.setCancel(nil)
		cancel(nil)

		if l.peer.ctx.Err() != nil {
			return
		}
		if connected >= opts.BackoffMax {
			pause = opts.BackoffMin
		}
		if !errors.Is(err, errKicked) {
			l.peer.logProblem(err)
		}
		l.peer.tellRemoved(err)
		timer := time.NewTimer(jitter(pause))
		select {
		case <-timer.C:
			pause = min(2*pause, opts.BackoffMax)
		case <-l.kicked:
			pause = opts.BackoffMin
		case <-l.peer.ctx.Done():
		}
		timer.Stop()
	}
}

// jitter spreads a pause by a fifth each way, so that the nodes do not all come
// at once to one that restarted.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// connect makes a connection and sends on it until it ends. It returns for how
// long it was connected, and why it is not any more.
func (l *lane) connect(ctx context.Context, cancel context.CancelCauseFunc) (connected time.Duration, err error) {
	t, p := l.peer.t, l.peer
	defer func() {
		// gRPC reports only that the context ended; the cause says why.
		if cause := context.Cause(ctx); cause == errKicked || cause == errHandshake {
			err = cause
		}
	}()
	timer := time.AfterFunc(t.opts.HandshakeTimeout, func() { cancel(errHandshake) })
	defer timer.Stop()

	conn, err := t.dial(p.getAddress())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stream, err := raftv1.NewRaftServiceClient(conn).Connect(ctx)
	if err != nil {
		return 0, peerError(err)
	}
	local := p.handler.Hello()
	if err := l.handshake(stream, local); err != nil {
		return 0, err
	}
	if !timer.Stop() {
		return 0, errHandshake
	}

	p.logConnected()
	l.connects.Add(1)
	l.unsendlogs.Store(false)
	l.queue.connect()
	start := time.Now()
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		if err == nil {
			err = fmt.Errorf("%w: a second answer to the hello", ErrMalformed)
		}
		ended <- peerError(err)
		cancel(nil) // frees a sender that waits for the window
	}()
	sendErr := l.send(ctx, stream)
	cancel(nil)
	err = <-ended
	if sendErr != nil {
		err = sendErr
	}
	if l.queue.disconnect() && p.ctx.Err() == nil {
		t.notifier.tell(p.node)
	}
	return time.Since(start), err
}

// connectStream is what a lane uses of the generated client stream.
type connectStream interface {
	SendMsg(m any) error
	Recv() (*raftv1.ConnectResponse, error)
}

func (l *lane) handshake(stream connectStream, local *raftv1.NodeHello) error {
	first := newBatch()
	first.hello, first.lane = local, l.id
	if err := stream.SendMsg(first); err != nil {
		// io.EOF: the stream ended, and Recv knows why.
		if _, recvErr := stream.Recv(); recvErr != nil {
			err = recvErr
		}
		return peerError(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return peerError(err)
	}
	return CheckPeer(l.peer.handler, local, resp.GetHello(), l.peer.node)
}

// peerError makes a refusal by the peer an ErrRefused or ErrNotReady.
func peerError(err error) error {
	switch s, _ := status.FromError(err); s.Code() {
	case codes.FailedPrecondition:
		if notice := removedNotice(s); notice != nil {
			return &toldRemovedError{replicas: notice.GetReplicas(), text: s.Message()}
		}
		return fmt.Errorf("%w by the other side: %s", ErrRefused, s.Message())
	case codes.Aborted:
		return fmt.Errorf("%w, says the other side: %s", ErrNotReady, s.Message())
	}
	return err
}

// send packs and sends what comes into the queue until ctx or the stream ends.
// nil means that the receiver of the stream knows the reason.
func (l *lane) send(ctx context.Context, stream connectStream) error {
	b := newBatch()
	var spare []GroupMessage
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.queue.wake:
		}
		taken := l.queue.take(spare)
		for rest := taken; len(rest) > 0; {
			n, bytes := l.fill(b, rest)
			rest = rest[n:]
			if len(b.messages) > 0 {
				// gRPC encodes before it returns, so the batch may be used again.
				if err := stream.SendMsg(b); err == io.EOF {
					return nil
				} else if err != nil {
					return err
				}
				l.sent.add(len(b.messages), b.wire)
			}
			l.queue.release(n, bytes)
		}
		b.Reset()
		clear(taken)
		const keep = 4096
		if spare = taken; cap(spare) > keep {
			spare = nil
		}
	}
}

// fill packs messages into b, in order and within the bounds, and returns how
// many it went through and their cost.
func (l *lane) fill(b *batch, messages []GroupMessage) (n int, bytes int64) {
	opts := &l.peer.t.opts
	b.Reset()
	for _, m := range messages {
		size := proto.Size(m.Message)
		if size > MaxMessageBytes {
			l.unsendable(tooLarge(m, size))
		} else {
			wire := size + 32 // more than what wraps it
			if len(b.messages) > 0 && (len(b.messages) == opts.BatchMessages || b.payload+wire > opts.BatchBytes) {
				break
			}
			b.add(m, size)
		}
		n++
		bytes += cost(m.Message)
	}
	return n, bytes
}

// unsendable drops a message that can never be sent. It is logged once per
// connection: raft will hand it over again and again.
func (l *lane) unsendable(err error) {
	l.queue.drop()
	if l.unsendlogs.CompareAndSwap(false, true) {
		l.peer.logger.Error("raft message dropped; it cannot be sent", "reason", err)
	}
}

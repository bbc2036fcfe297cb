package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

var errReset = errors.New("this node reset its connections; connect again")

// service is RaftService as the node's server sees it.
type service struct {
	raftv1.UnimplementedRaftServiceServer
	t *GRPC
}

// Hello answers who this node is, to anybody that can connect.
func (s *service) Hello(context.Context, *raftv1.HelloRequest) (*raftv1.HelloResponse, error) {
	h, err := s.t.enter()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	defer s.t.wg.Done()
	return &raftv1.HelloResponse{Hello: h.Hello()}, nil
}

// inboundKey names the one stream that may deliver for a peer and lane.
type inboundKey struct {
	node string
	lane raftv1.Lane
}

// inbound is a stream a peer opened. Two goroutines serve it: gRPC's, which
// returns when the stream is to end (a handler has no other means to end it),
// and the receiver.
type inbound struct {
	t      *GRPC
	stream grpc.BidiStreamingServer[raftv1.ConnectRequest, raftv1.ConnectResponse]
	key    inboundKey // written under t.mu, before accepted is closed
	counts *laneCounts

	first    chan *batch   // the hello, from the receiver
	accepted chan struct{} // closed when messages may be delivered
	ended    chan error    // why the receiver ended: a status
	done     chan struct{} // closed when nothing more is delivered from this stream or those before it

	// previous is the stream this one replaces; guarded by t.mu.
	previous *inbound

	haltOnce sync.Once
	halted   chan struct{}
	reason   error // read after halted
}

// halt ends the stream for a reason the peer is told.
func (in *inbound) halt(reason error) {
	in.haltOnce.Do(func() {
		in.reason = reason
		close(in.halted)
	})
}

func (in *inbound) isHalted() bool {
	select {
	case <-in.halted:
		return true
	default:
		return false
	}
}

// Connect serves a stream of raft messages.
func (s *service) Connect(stream grpc.BidiStreamingServer[raftv1.ConnectRequest, raftv1.ConnectResponse]) error {
	t := s.t
	h, err := t.enter()
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer t.wg.Done()
	in := &inbound{
		t:        t,
		stream:   stream,
		first:    make(chan *batch, 1),
		accepted: make(chan struct{}),
		ended:    make(chan error, 1),
		done:     make(chan struct{}),
		halted:   make(chan struct{}),
	}
	if err := t.addInbound(in); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	defer t.removeInbound(in)
	// The receiver ends only after this function returned, since that is what
	// ends the stream; Close waits for it by the group.
	t.wg.Go(func() { in.receive(h) })
	return in.serve(h)
}

// serve answers the hello and waits for the end of the stream.
func (in *inbound) serve(h Handler) error {
	defer in.halt(errReset)
	timer := time.NewTimer(in.t.opts.HandshakeTimeout)
	defer timer.Stop()

	var first *batch
	select {
	case first = <-in.first:
	case err := <-in.ended:
		return endStatus(err)
	case <-in.halted:
		return in.haltStatus()
	case <-timer.C:
		return status.Error(codes.DeadlineExceeded, "the peer said no hello in time")
	}
	local := h.Hello()
	if err := CheckPeer(h, local, first.hello, ""); errors.Is(err, ErrNotReady) {
		return status.Error(codes.Aborted, err.Error())
	} else if err != nil {
		in.t.logRefusal(first.hello.GetNode(), err)
		if errors.Is(err, ErrRemoved) {
			return removedStatus(err, first.hello)
		}
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	previous, ok := in.t.accept(in, inboundKey{first.hello.GetNode(), first.lane})
	if !ok {
		return in.haltStatus()
	}
	if previous != nil {
		// Messages of a lane are delivered in order, so the old stream must have
		// delivered its last before this one delivers its first.
		select {
		case <-previous.done:
		case <-in.halted:
			return in.haltStatus()
		case <-in.stream.Context().Done():
			return status.FromContextError(in.stream.Context().Err()).Err()
		case <-timer.C:
			return status.Error(codes.Unavailable, "the node is still busy with messages of an earlier connection; connect again")
		}
	}
	if err := in.stream.Send(&raftv1.ConnectResponse{Hello: local}); err != nil {
		return err
	}
	close(in.accepted)
	// It is there: a connection the other way need not wait out its pause.
	if p := (*in.t.peers.Load())[first.hello.GetNode()]; p != nil {
		p.nudge()
	}
	select {
	case err := <-in.ended:
		return endStatus(err)
	case <-in.halted:
		return in.haltStatus()
	}
}

func endStatus(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

func (in *inbound) haltStatus() error {
	return status.Error(codes.Unavailable, in.reason.Error())
}

// receive is the receiver goroutine: it reads the hello, waits until it was
// accepted, and delivers what follows.
func (in *inbound) receive(h Handler) {
	defer func() {
		in.t.mu.Lock()
		previous := in.previous
		in.t.mu.Unlock()
		if previous != nil {
			<-previous.done
		}
		// Only now may a next stream go without waiting for this one.
		in.t.mu.Lock()
		in.previous = nil
		if in.t.accepted[in.key] == in {
			delete(in.t.accepted, in.key)
		}
		in.t.mu.Unlock()
		close(in.done)
	}()
	first := newBatch()
	err := in.next(first)
	if err == nil && (first.hello == nil || first.lane == 0 || len(first.messages) > 0) {
		err = status.Error(codes.InvalidArgument, "the first message of a stream is a hello and a lane, without raft messages")
	}
	if err != nil {
		in.ended <- err
		return
	}
	in.first <- first
	select {
	case <-in.accepted:
	case <-in.halted:
		return
	}

	b := newBatch()
	for {
		err := in.next(b)
		if err == nil && (b.hello != nil || b.lane != 0) {
			err = status.Error(codes.InvalidArgument, "a hello in the middle of a stream")
		}
		if err != nil {
			in.ended <- err
			return
		}
		// A reset may mean that the peer would be refused now.
		if in.isHalted() {
			return
		}
		if len(b.messages) > 0 {
			in.counts.add(len(b.messages), b.wire)
			h.Receive(in.key.node, b.messages)
		}
		b.Reset()
	}
}

// next reads a batch. The error is the status the stream ends with.
func (in *inbound) next(b *batch) error {
	err := in.stream.RecvMsg(b)
	switch {
	case err != nil:
		return err // io.EOF when the peer is done
	case b.err != nil:
		in.t.opts.Logger.Error("raft message from a peer refused; closing its stream", "peer", in.key.node, "reason", b.err)
		return status.Error(codes.InvalidArgument, b.err.Error())
	}
	return nil
}

func (t *GRPC) addInbound(in *inbound) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	t.inbound[in] = struct{}{}
	return nil
}

func (t *GRPC) removeInbound(in *inbound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.inbound, in)
}

// accept makes a stream the one that delivers for its peer and lane and halts
// the one before it, which it returns. It is not ok if the stream was halted
// meanwhile.
func (t *GRPC) accept(in *inbound, key inboundKey) (previous *inbound, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if in.isHalted() {
		return nil, false
	}
	previous = t.accepted[key]
	if previous != nil {
		previous.halt(fmt.Errorf("node %q opened a new stream for %v", key.node, key.lane))
	}
	in.key, in.previous = key, previous
	t.accepted[key] = in
	if t.received[key] == nil {
		t.received[key] = new(laneCounts)
	}
	in.counts = t.received[key]
	delete(t.refusals, key.node)
	return previous, true
}

// logRefusal logs why a peer's hello was refused, once until the reason
// changes.
func (t *GRPC) logRefusal(node string, reason error) {
	// Names come from whoever connects; forgetting some only repeats a line.
	const bound = 256
	if len(node) > maxNodeName {
		node = node[:maxNodeName]
	}
	t.mu.Lock()
	known := t.refusals[node] == reason.Error()
	if !known {
		if len(t.refusals) >= bound {
			clear(t.refusals)
		}
		t.refusals[node] = reason.Error()
	}
	t.mu.Unlock()
	if !known {
		t.opts.Logger.Error("connection from a peer refused", "peer", node, "reason", reason)
	}
}

package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// writeStream is one stream to one leader. Its fields are guarded by the
// writer's mu, except those that never change.
type writeStream struct {
	address string
	leader  candidate // as it was found
	stream  grpc.BidiStreamingClient[kvv1.WriteRequest, kvv1.WriteResponse]
	cancel  context.CancelFunc
	// ended is closed when the receiver has ended; err tells why.
	ended chan struct{}
	err   error

	// unanswered holds the sent writes by sequence, those that were given up
	// too.
	unanswered map[uint64]*Pending
	sequence   uint64
	// leaving: the node does not lead any more; nothing is sent on this stream.
	leaving bool
	// hint is the new leader's address, if the node named it.
	hint string
	// heard is when the last message came; zero if none did.
	heard time.Time
	// worked: a write succeeded on it.
	worked bool

	// checking: whoever leads is being looked for, because the node does not
	// answer. checked is when that was done last, nextCheck when it may be again.
	checking           bool
	checked, nextCheck time.Time
	checks             backoff
	// stalled is why the stream was left for another leader; empty if it was not.
	stalled string
}

// send is the sending goroutine: it opens a stream when there is something to
// send, and another when that one ends.
func (w *Writer) send() {
	defer w.failQueue()
	pause := w.client.backoff()
	hints := 0
	for w.awaitWork() {
		s, err := w.open()
		if err != nil {
			w.connectFailed(err)
			_ = wait(w.ctx, pause.pause())
			continue
		}
		w.serve(s)
		switch {
		case s.worked:
			pause.reset()
			hints = 0
		case s.hint != "" && hints < maxHints:
			hints++
		default:
			hints = 0
			_ = wait(w.ctx, pause.pause())
		}
	}
}

// awaitWork waits for something to send. It is false when there never will be.
func (w *Writer) awaitWork() bool {
	for {
		w.mu.Lock()
		ready, over := len(w.queue) > 0, w.aborted || (w.closing && w.unfinished == 0)
		w.mu.Unlock()
		if over {
			return false
		}
		if ready {
			return true
		}
		select {
		case <-w.work:
		case <-w.ctx.Done():
			return false
		}
	}
}

// open finds the leader and opens a stream to it. Whatever fails here, nothing
// was sent.
func (w *Writer) open() (*writeStream, error) {
	c := w.client
	leader, err := c.findLeader(w.ctx, DataGroup, &w.trail)
	if err != nil {
		return nil, err
	}
	address := leader.address
	conn, err := c.connections.get(address)
	if err != nil {
		return nil, err
	}
	// Bounds the wait for a node that does not even refuse. After a refusal the
	// stream itself fails at once and says why.
	ready, cancelReady := context.WithTimeout(w.ctx, min(c.options.AttemptTimeout, c.options.StallCheck))
	err = awaitReady(ready, conn)
	late := err != nil && ready.Err() != nil
	cancelReady()
	if late {
		c.leaders.forget(DataGroup, address)
		w.trail.add(address, "no connection in time")
		return nil, err
	}
	ctx, cancel := context.WithCancel(w.ctx)
	stream, err := kvv1.NewKvServiceClient(conn).Write(ctx)
	if err != nil {
		cancel()
		c.leaders.forget(DataGroup, address)
		w.trail.add(address, judgeError(err).message)
		return nil, err
	}
	return &writeStream{
		address: address, leader: leader, stream: stream, cancel: cancel,
		ended: make(chan struct{}), unanswered: map[uint64]*Pending{},
	}, nil
}

// connectFailed keeps why there is no stream, for the writes whose time runs
// out, and fails all that wait where trying again makes no sense.
func (w *Writer) connectFailed(err error) {
	v := judgeError(err)
	if errors.Is(err, errNoLeader) {
		v = verdict{message: "no leader", again: true, kind: ErrNoQuorum}
	}
	w.client.options.Logger.Debug("no stream for writes", "problem", v.message)
	v.notApplied = true
	w.mu.Lock()
	w.connect = v
	w.mu.Unlock()
	if !v.again {
		w.failQueued(v)
	}
}

// serve sends on a stream until it ends or must be left, and settles what is
// then unanswered.
func (w *Writer) serve(s *writeStream) {
	w.mu.Lock()
	w.stream = s
	w.mu.Unlock()
	go w.receive(s)
	for {
		request := w.take(s)
		if request == nil {
			break
		}
		if err := s.stream.Send(request); err != nil {
			break // the receiver learns why
		}
	}
	w.drain(s)
	_ = s.stream.CloseSend()
	s.cancel()
	<-s.ended
	w.retire(s)
}

// take waits for writes and packs them into a message; nil when nothing more is
// to be sent on this stream.
func (w *Writer) take(s *writeStream) *kvv1.WriteRequest {
	for {
		w.mu.Lock()
		if s.leaving || w.aborted || (w.closing && w.unfinished == 0) {
			w.mu.Unlock()
			return nil
		}
		select {
		case <-s.ended: // what would be sent now, would be uncertain
			w.mu.Unlock()
			return nil
		default:
		}
		pause := time.Until(w.holdUntil)
		if pause <= 0 {
			if request := w.pack(s); request != nil {
				w.mu.Unlock()
				return request
			}
		}
		w.mu.Unlock()
		if pause > 0 {
			if !s.waitOut(pause) {
				return nil
			}
			continue
		}
		select {
		case <-w.work:
		case <-s.ended:
			return nil
		}
	}
}

// waitOut waits for the end of a pause; false if the stream ends before.
func (s *writeStream) waitOut(pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ended:
		return false
	}
}

// pack moves writes from the queue to the stream. It is called with mu held.
func (w *Writer) pack(s *writeStream) *kvv1.WriteRequest {
	if w.unsorted {
		slices.SortFunc(w.queue, func(a, b *Pending) int { return cmp.Compare(a.order, b.order) })
		w.unsorted = false
	}
	var writes []*kvv1.Write
	bytes := 0
	now := time.Now()
	for len(w.queue) > 0 && len(writes) < maxWritesPerMessage {
		p := w.queue[0]
		if p.state == queued {
			if len(writes) > 0 && bytes+p.size > w.options.MessageBytes {
				break
			}
			if !w.claimKeys(p) {
				break
			}
			s.sequence++
			s.unanswered[s.sequence] = p
			p.state, p.sentAt, p.endpoint = sent, now, s.address
			p.attempts++
			bytes += p.size
			writes = append(writes, p.write(s.sequence))
		}
		w.queue[0] = nil
		w.queue = w.queue[1:]
	}
	if writes == nil {
		return nil
	}
	return &kvv1.WriteRequest{Writes: writes}
}

// claimKeys marks a write's keys as being written; false if one already is.
func (w *Writer) claimKeys(p *Pending) bool {
	if !w.options.OrderKeys {
		return true
	}
	key, single := operationKey(p.operation)
	switch {
	case w.spanning > 0, single && w.keys[string(key)] > 0, !single && len(w.keys) > 0:
		return false
	case single:
		w.keys[string(key)]++
	default:
		w.spanning++
	}
	return true
}

// releaseKeys undoes claimKeys.
func (w *Writer) releaseKeys(p *Pending) {
	if !w.options.OrderKeys {
		return
	}
	if key, single := operationKey(p.operation); single {
		delete(w.keys, string(key))
	} else {
		w.spanning--
	}
}

// drain waits a little for the answers of a node that stopped to lead, so that
// what it refused is sent on in order and less is uncertain.
func (w *Writer) drain(s *writeStream) {
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	for {
		w.mu.Lock()
		over := w.aborted || !s.awaited()
		w.mu.Unlock()
		if over {
			return
		}
		select {
		case <-w.work:
		case <-s.ended:
			return
		case <-timer.C:
			return
		case <-w.ctx.Done():
			return
		}
	}
}

// awaited reports whether an answer is still of use to anybody. It is called
// with the writer's mu held.
func (s *writeStream) awaited() bool {
	for _, p := range s.unanswered {
		if p.state == sent {
			return true
		}
	}
	return false
}

// retire settles the writes that a stream left unanswered, and the leader.
func (w *Writer) retire(s *writeStream) {
	w.mu.Lock()
	s.leaving = true // the watcher does not touch it any more
	w.mu.Unlock()
	v := judgeError(s.err)
	if errors.Is(s.err, io.EOF) || status.Code(s.err) == codes.Canceled {
		v = verdict{message: "the stream ended before the answer came", kind: ErrUnavailable}
		if s.stalled != "" {
			v.message = s.stalled
		}
	}
	// In general nothing is known of what was sent: the status tells of the
	// stream. There are two exceptions. A refusal of the stream itself, before
	// any answer, comes from in front of the handler. And a node that ends a
	// stream because it stops, or has not started, says UNAVAILABLE after it has
	// answered everything that it took.
	refused := s.heard.IsZero() && v.kind == ErrRefused && v.notApplied
	stopping := status.Code(s.err) == codes.Unavailable && v.reason == kvv1.Reason_REASON_UNAVAILABLE
	v.notApplied = refused || stopping
	v.again, v.elsewhere = !refused, true
	c := w.client
	c.leaders.forget(DataGroup, s.address)
	if s.hint != "" {
		c.leaders.hint(DataGroup, s.hint)
	} else if v.leader != "" {
		c.leaders.hint(DataGroup, v.leader)
	}
	w.trail.add(s.address, v.message)
	c.options.Logger.Debug("write stream ended", "endpoint", s.address, "problem", v.message, "unanswered", len(s.unanswered), "next", s.hint)

	var finished []*Pending
	w.mu.Lock()
	w.stream = nil
	w.connect = v
	w.connect.notApplied = true
	for _, p := range s.unanswered {
		w.releaseKeys(p)
		if p.state == sent && w.attemptFailed(p, v) {
			finished = append(finished, p)
		}
	}
	w.mu.Unlock()
	slices.SortFunc(finished, func(a, b *Pending) int { return cmp.Compare(a.order, b.order) })
	w.complete(finished)
	if refused {
		w.failQueued(v)
	}
}

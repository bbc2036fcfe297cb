package client

import (
	"context"
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// receive is the receiving goroutine of a stream.
func (w *Writer) receive(s *writeStream) {
	defer close(s.ended)
	for {
		response, err := s.stream.Recv()
		if err != nil {
			s.err = err // read after ended is closed
			return
		}
		w.handle(s, response.GetResults())
	}
}

// handle settles the writes that a message answers.
func (w *Writer) handle(s *writeStream, results []*kvv1.WriteResult) {
	finished := make([]*Pending, 0, len(results))
	w.mu.Lock()
	s.heard = time.Now()
	for _, r := range results {
		p := s.unanswered[r.GetSequence()]
		if p == nil {
			continue
		}
		delete(s.unanswered, r.GetSequence())
		w.releaseKeys(p)
		if r.GetResult() != nil {
			s.worked = true
			w.full = fullLeader{}
			w.hold.reset()
			if p.state == sent {
				p.result = resultOf(r.GetResult())
				w.finish(p, nil)
				finished = append(finished, p)
			}
			continue
		}
		// Without a failure too the answer says nothing: uncertain.
		v := judgeFailure(r.GetFailure())
		w.full.judge(&v, s.address, w.client.fullPatience)
		if v.elsewhere {
			s.leaving = true
			if v.leader != "" && v.leader != s.address {
				s.hint = v.leader
			}
		}
		if p.state == sent && w.attemptFailed(p, v) {
			finished = append(finished, p)
		}
	}
	worked := s.worked
	w.mu.Unlock()
	if worked {
		w.trail.reset()
	}
	w.complete(finished)
	wake(w.work)
}

// attemptFailed decides what becomes of a write whose attempt failed: it goes
// back to the queue, or it is finished and the result is true. It is called with
// mu held. This is the one place that sends a write again: only if this attempt
// certainly had no effect, or the write carries a client session.
func (w *Writer) attemptFailed(p *Pending, v verdict) (finished bool) {
	p.last = v
	if !v.notApplied {
		p.maybeApplied = true
	}
	safe := v.notApplied || p.session != nil
	if w.aborted {
		v.kind, v.message = ErrClosed, "the client was closed: "+v.message
	}
	if !v.again || !safe || w.aborted || w.client.retriesUsed(p.attempts-1) {
		w.finish(p, p.errorOf(v, nil))
		return true
	}
	if !time.Now().Before(p.deadline) {
		v.message = giveUpMessage(context.DeadlineExceeded) + ": " + v.message
		w.finish(p, p.errorOf(v, context.DeadlineExceeded))
		return true
	}
	p.state = queued
	w.queue = append(w.queue, p)
	w.unsorted = true
	// One pause for all that fail together; a node that does not lead is left
	// instead, at once.
	hold := !v.elsewhere || v.reason == kvv1.Reason_REASON_NO_SPACE
	if now := time.Now(); hold && now.After(w.holdUntil) {
		w.holdUntil = now.Add(w.hold.pause())
	}
	return false
}

// finish sets the outcome. It is called with mu held; complete must follow
// without it.
func (w *Writer) finish(p *Pending, err error) {
	p.state = done
	p.err = err
	if err != nil && w.firstErr == nil {
		w.firstErr = err
	}
	w.unfinished--
	w.bytes -= p.size
	w.releaseRoom()
}

// releaseRoom wakes those who wait for room. It is called with mu held.
func (w *Writer) releaseRoom() {
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}

// complete tells the outcomes of finished writes. It is called without mu.
func (w *Writer) complete(finished []*Pending) {
	for _, p := range finished {
		if p.session != nil {
			p.session.finish(p.sessionSequence)
		}
		if w.options.OnComplete != nil {
			w.options.OnComplete(p)
		}
		close(p.finished)
	}
}

// abandon ends a write because its caller's context ended.
func (w *Writer) abandon(p *Pending, cause error) {
	w.mu.Lock()
	if p.state == done {
		w.mu.Unlock()
		return
	}
	w.giveUp(p, cause)
	w.mu.Unlock()
	w.complete([]*Pending{p})
	wake(w.work)
}

// giveUp finishes a write that is not done, with what is known of it. It is
// called with mu held.
func (w *Writer) giveUp(p *Pending, cause error) {
	attempts, answered := w.trail.attempts()
	if p.state == sent {
		v := verdict{message: giveUpMessage(cause) + ": it was sent and not answered", kind: ErrUnavailable}
		p.maybeApplied = true
		w.finish(p, p.errorOf(v, cause))
		return
	}
	v := verdict{message: giveUpMessage(cause), notApplied: true}
	switch {
	case p.last.message != "":
		v.reason, v.kind = p.last.reason, p.last.kind
		v.message += ": " + p.last.message
	case w.stream == nil && w.connect.message != "":
		v.kind = w.connect.kind
		v.message += ": " + w.connect.message
	default:
		v.kind = ErrOverloaded
		v.message += ": other writes were before it"
	}
	e := p.errorOf(v, cause)
	e.Attempts = attempts
	// Wherever it last failed, now there is nobody to write to.
	if w.stream == nil {
		e.kinds = append(e.kinds, ErrUnavailable)
		if w.connect.kind == ErrNoQuorum && answered {
			e.kinds = append(e.kinds, ErrNoQuorum)
			e.Message += "; no node knows a leader: check that a majority of the nodes runs and that they reach each other"
		}
	}
	w.finish(p, e)
}

// watch is the goroutine that ends writes at their deadlines and notices streams
// that stall. It only runs a clock while there are any writes.
func (w *Writer) watch() {
	tick := min(max(w.options.Timeout/50, time.Millisecond), 100*time.Millisecond, max(w.client.options.StallCheck/4, time.Millisecond))
	for {
		select {
		case <-w.armed:
		case <-w.ctx.Done():
			return
		}
		for w.expire(time.Now()) {
			if wait(w.ctx, tick) != nil {
				return
			}
		}
	}
}

// expire ends the writes whose deadline is over and tells whether others are
// left.
func (w *Writer) expire(now time.Time) bool {
	var finished []*Pending
	w.mu.Lock()
	// The queue is rebuilt without those that are done, or it would grow while
	// there is no leader to send them to.
	kept := make([]*Pending, 0, len(w.queue))
	for _, p := range w.queue {
		if p.state == queued && now.After(p.deadline) {
			w.giveUp(p, context.DeadlineExceeded)
			finished = append(finished, p)
		}
		if p.state == queued {
			kept = append(kept, p)
		}
	}
	if len(kept) < len(w.queue) {
		w.queue = kept
	}
	if s := w.stream; s != nil {
		var oldest time.Time
		for _, p := range s.unanswered {
			if oldest.IsZero() || p.sentAt.Before(oldest) {
				oldest = p.sentAt
			}
			if p.state != sent || !now.After(p.deadline) {
				continue
			}
			w.giveUp(p, context.DeadlineExceeded)
			finished = append(finished, p)
			if s.heard.Before(p.sentAt) {
				// Not a word in the whole life of a write: the node is gone.
				s.cancel()
			}
		}
		w.watchStream(s, oldest, now)
	}
	left := w.unfinished > 0
	w.mu.Unlock()
	w.complete(finished)
	if len(finished) > 0 {
		wake(w.work)
	}
	return left
}

// failQueued fails every write that waits to be sent.
func (w *Writer) failQueued(v verdict) {
	var finished []*Pending
	w.mu.Lock()
	for _, p := range w.queue {
		if p.state == queued {
			p.last = v
			w.finish(p, p.errorOf(v, nil))
			finished = append(finished, p)
		}
	}
	w.queue = nil
	w.mu.Unlock()
	w.complete(finished)
}

// failQueue fails what an aborted writer never sent.
func (w *Writer) failQueue() {
	w.failQueued(verdict{message: "the client was closed", notApplied: true, kind: ErrClosed})
}

// Pending tells how many writes are accepted and not finished, and their bytes.
func (w *Writer) Pending() (writes, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unfinished, w.bytes
}

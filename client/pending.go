package client

import (
	"context"
	"time"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// pendingState is where a write is.
type pendingState int

const (
	queued pendingState = iota // waits to be sent, for the first time or again
	sent                       // on a stream, unanswered
	done                       // result and err are set
)

// Pending is one write of a Writer, from its acceptance to its outcome.
type Pending struct {
	writer    *Writer
	operation *kvv1.Operation
	size      int
	// order is the position in which the writer accepted it.
	order    uint64
	deadline time.Time

	// session makes the write exactly-once; nil for none.
	session         *ClientSession
	sessionSequence uint64

	finished chan struct{}

	// Guarded by writer.mu until state is done, constant then.
	state    pendingState
	attempts int
	sentAt   time.Time
	// maybeApplied: an earlier attempt had an uncertain outcome. With a client
	// session the write is sent again; any other end than success is then
	// uncertain too.
	maybeApplied bool
	// last is what the last attempt came to, at endpoint.
	last     verdict
	endpoint string
	result   Result
	err      error
}

// Done is closed when the outcome is known.
func (p *Pending) Done() <-chan struct{} { return p.finished }

// Wait waits for the outcome and returns it. The end of ctx ends the wait, not
// the write.
func (p *Pending) Wait(ctx context.Context) (Result, error) {
	select {
	case <-p.finished:
		return p.result, p.err
	case <-ctx.Done():
		return Result{}, ctx.Err()
	}
}

// Outcome returns the result and the error of a write that is done. It must be
// called only after Done is closed or in WriterOptions.OnComplete.
func (p *Pending) Outcome() (Result, error) { return p.result, p.err }

// Operation returns what is written. It must not be changed.
func (p *Pending) Operation() *kvv1.Operation { return p.operation }

// Size returns the bytes that the write counts against the writer's bound.
func (p *Pending) Size() int { return p.size }

// write returns the message of the next attempt.
func (p *Pending) write(sequence uint64) *kvv1.Write {
	w := &kvv1.Write{Sequence: sequence, Operation: p.operation}
	if p.session != nil {
		w.Session = p.session.ref(p.sessionSequence)
	}
	return w
}

// errorOf makes the error of a write from what its last attempt came to. It is
// called with writer.mu held.
func (p *Pending) errorOf(v verdict, cause error) *Error {
	e := &Error{Op: operationName(p.operation), Endpoint: p.endpoint, Reason: v.reason, Message: v.message, cause: cause}
	if cause == nil {
		e.cause = contextCause(v.cause)
	}
	if v.kind != nil {
		e.kinds = append(e.kinds, v.kind)
	}
	e.Outcome = OutcomeNotApplied
	if p.maybeApplied || !v.notApplied {
		e.Outcome = OutcomeUncertain
	}
	return e
}

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// target says which node a call goes to.
type target int

const (
	// toLeader: the leader of the group.
	toLeader target = iota
	// toAny: any node; the leader if it is known, since it answers a
	// linearizable read without asking another node first.
	toAny
	// toEndpoint: the named node and no other.
	toEndpoint
)

// callOptions describes a call that is not a pipelined write.
type callOptions struct {
	op       string
	target   target
	group    uint64
	endpoint string
	// repeatable: doing it twice does no harm, so that it is tried again
	// whatever the outcome.
	repeatable bool
	// slow: it may work for long, so that no attempt is cut short for that; a
	// stall still ends one.
	slow bool
	// read: it changes nothing.
	read bool
}

// maxHints is how many leader hints in a row are followed without a pause: two
// nodes with old knowledge may name each other.
const maxHints = 3

// call does one call with all its attempts.
func (c *Client) call(ctx context.Context, o callOptions, do func(ctx context.Context, conn *grpc.ClientConn, address string) error) error {
	ctx, cancel := c.withTimeout(ctx)
	defer cancel()
	var t trail
	pause := c.backoff()
	hints, abandoned := 0, 0
	var next candidate // where to go after a stall
	var full fullLeader
	for attempt := 0; ; attempt++ {
		if c.isClosed() {
			return fmt.Errorf("%s: client %w", o.op, ErrClosed)
		}
		at, err := next, error(nil)
		if at.address == "" {
			at, err = c.pick(ctx, o, &t, attempt)
		}
		address := at.address
		next = candidate{}
		if err == nil {
			watch := o.repeatable && abandoned < maxAbandoned && !c.retriesUsed(attempt)
			next, err = c.attempt(ctx, o, at, watch, do)
			if err == nil {
				return nil
			}
		}
		v := judgeError(err)
		if errors.Is(err, errNoLeader) {
			v = verdict{message: "no leader", again: true, notApplied: true, kind: ErrNoQuorum}
		} else if errors.Is(err, errNotSent) {
			v.notApplied = true
		}
		full.judge(&v, address, c.fullPatience)
		if address != "" {
			t.add(address, v.message)
			if v.elsewhere {
				c.leaders.forget(o.group, address)
			}
		}
		if !v.again || !(o.repeatable || v.notApplied) || o.target == toEndpoint || c.retriesUsed(attempt) {
			return c.callError(o, v, address, nil)
		}
		c.options.Logger.Debug("call is tried again", "op", o.op, "endpoint", address, "problem", v.message)
		if next.address != "" {
			abandoned++
			continue
		}
		if v.leader != "" && hints < maxHints {
			hints++
			c.leaders.hint(o.group, v.leader)
			continue
		}
		hints = 0
		if err := wait(ctx, pause.pause()); err != nil {
			return c.deadlineError(o, v, &t, err)
		}
	}
}

// errNotSent: the connection was not made, so that nothing was sent.
var errNotSent = errors.New("not sent")

// pick chooses the node of the next attempt.
func (c *Client) pick(ctx context.Context, o callOptions, t *trail, attempt int) (candidate, error) {
	switch o.target {
	case toEndpoint:
		return candidate{address: o.endpoint}, nil
	case toAny:
		leader := c.leaders.get(DataGroup)
		if leader.address != "" && attempt == 0 {
			return leader, nil
		}
		return candidate{address: c.connections.known()[0], term: leader.term}, nil
	default:
		return c.findLeader(ctx, o.group, t)
	}
}

// attempt runs one attempt, bounded in time where another can follow. With watch
// it may be abandoned for a stall: then next is the node to go to.
func (c *Client) attempt(
	ctx context.Context, o callOptions, at candidate, watch bool, do func(context.Context, *grpc.ClientConn, string) error,
) (next candidate, err error) {
	conn, err := c.connections.get(at.address)
	if err != nil {
		return candidate{}, err
	}
	if o.repeatable {
		var cancel context.CancelFunc
		if o.slow {
			ctx, cancel = context.WithCancel(ctx)
		} else {
			ctx, cancel = context.WithTimeout(ctx, c.options.AttemptTimeout)
		}
		defer cancel()
		if watch {
			finish := c.watchAttempt(ctx, cancel, o, at)
			err = do(ctx, conn, at.address)
			return finish(), err
		}
	} else if !o.read {
		if err := awaitReady(ctx, conn); err != nil {
			return candidate{}, err
		}
	}
	return candidate{}, do(ctx, conn, at.address)
}

// awaitReady waits for the connection, so that a failure to connect is told
// from a failure of the call.
func awaitReady(ctx context.Context, conn *grpc.ClientConn) error {
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return fmt.Errorf("%w: no connection", errNotSent)
		case connectivity.Idle:
			conn.Connect()
		}
		if !conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w: %w", errNotSent, ctx.Err())
		}
	}
}

// callError makes the error of a call whose last attempt ended it.
func (c *Client) callError(o callOptions, v verdict, address string, cause error) error {
	e := &Error{Op: o.op, Endpoint: address, Reason: v.reason, Message: v.message, Outcome: OutcomeRead, cause: cause}
	if e.cause == nil {
		e.cause = contextCause(v.cause)
	}
	if v.kind != nil {
		e.kinds = append(e.kinds, v.kind)
	} else if v.reason == kvv1.Reason_REASON_UNSPECIFIED {
		e.kinds = append(e.kinds, ErrUnavailable)
	}
	if !o.read {
		e.Outcome = OutcomeUncertain
		if v.notApplied {
			e.Outcome = OutcomeNotApplied
		}
	}
	return e
}

// deadlineError makes the error of a call that used up its time between
// attempts; last is what the last attempt made of it.
func (c *Client) deadlineError(o callOptions, last verdict, t *trail, cause error) error {
	attempts, answered := t.attempts()
	e := &Error{Op: o.op, Reason: last.reason, Outcome: OutcomeRead, Attempts: attempts, cause: cause}
	// What is retried here and is no read is either certainly not applied or
	// harmless to repeat.
	if !o.read && !o.repeatable {
		e.Outcome = OutcomeNotApplied
	}
	e.kinds = []error{ErrUnavailable}
	e.Message = giveUpMessage(cause)
	switch {
	case last.kind == ErrNoQuorum && answered:
		e.kinds = []error{ErrNoQuorum}
		e.Message += ": no node knows a leader; check that a majority of the nodes runs and that they reach each other"
	case !answered && last.reason == kvv1.Reason_REASON_UNSPECIFIED:
		e.Message += ": no node answered in time; check the endpoints, and that a majority of the nodes runs and that they reach each other"
	default:
		e.Message += ": " + last.message
	}
	return e
}

// giveUpMessage says why the client stopped trying.
func giveUpMessage(cause error) string {
	if errors.Is(cause, context.Canceled) {
		return "cancelled"
	}
	return "gave up at the deadline"
}

// contextCause returns err if it is the end of a context, so that callers can
// tell it.
func contextCause(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	return err
}

func (c *Client) retriesUsed(attempts int) bool {
	return c.options.MaxRetries < 0 || (c.options.MaxRetries > 0 && attempts >= c.options.MaxRetries)
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// withTimeout adds RequestTimeout to a context without a deadline.
func (c *Client) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.options.RequestTimeout)
}

// deadline returns when a write that is given now must be finished.
func (c *Client) deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(c.options.RequestTimeout)
}

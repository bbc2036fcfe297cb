package transport

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"google.golang.org/grpc/status"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// peer is a node this node sends to.
type peer struct {
	t       *GRPC
	handler Handler
	node    string
	ctx     context.Context // ends when the peer is removed or the transport closed
	cancel  context.CancelFunc
	lanes   [2]*lane
	logger  *slog.Logger

	mu      sync.Mutex
	address string
	// problem is what was logged last: empty while all is well. Both lanes share
	// it, so that a node that is down makes one line.
	problem string
}

func newPeer(t *GRPC, h Handler, node, address string) *peer {
	p := &peer{t: t, handler: h, node: node, address: address, problem: "not connected yet"}
	p.logger = t.opts.Logger.With("peer", node)
	p.ctx, p.cancel = context.WithCancel(t.ctx)
	for i, id := range []raftv1.Lane{raftv1.Lane_LANE_URGENT, raftv1.Lane_LANE_APPEND} {
		p.lanes[i] = newLane(p, id, t.opts.queue(id))
	}
	return p
}

func (p *peer) lane(id raftv1.Lane) *lane {
	if id == raftv1.Lane_LANE_APPEND {
		return p.lanes[1]
	}
	return p.lanes[0]
}

func (p *peer) getAddress() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.address
}

func (p *peer) setAddress(address string) {
	p.mu.Lock()
	changed := p.address != address
	p.address = address
	p.mu.Unlock()
	if changed {
		p.kick()
	} else {
		p.nudge()
	}
}

// kick makes both lanes connect anew, at once.
func (p *peer) kick() {
	for _, l := range p.lanes {
		l.kick()
	}
}

// nudge ends the pauses before the next attempts to connect; connections stay.
func (p *peer) nudge() {
	for _, l := range p.lanes {
		l.nudge()
	}
}

// logProblem logs why there is no connection, once until the reason changes.
func (p *peer) logProblem(err error) {
	// The text of a refusal says what differs. That of a failed connection names
	// ports that change with every attempt, so its code stands for it.
	reason := status.Code(err).String()
	refused := errors.Is(err, ErrRefused)
	if refused {
		reason = err.Error()
	}
	p.mu.Lock()
	changed := p.problem != reason
	p.problem = reason
	address := p.address
	p.mu.Unlock()
	switch {
	case !changed:
	case refused:
		p.logger.Error("peer refused; no raft messages are exchanged", "address", address, "reason", err)
	case errors.Is(err, ErrNotReady):
		p.logger.Info("peer not ready; connecting again in the background", "address", address, "reason", err)
	default:
		p.logger.Warn("peer unreachable; connecting again in the background", "address", address, "reason", err)
	}
}

func (p *peer) logConnected() {
	p.mu.Lock()
	changed := p.problem != ""
	p.problem = ""
	address := p.address
	p.mu.Unlock()
	if changed {
		p.logger.Info("peer connected", "address", address)
	}
}

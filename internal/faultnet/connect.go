package faultnet

import (
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/streamraft/streamraft/raftnode/transport"
)

// connect is the goroutine that makes an endpoint's connections and calls
// Unreachable.
func (e *endpoint) connect() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, node := range e.takePending() {
			if e.ctx.Err() != nil {
				return
			}
			e.handler.Unreachable(node)
		}
		next := e.net.opts.Redial
		for _, a := range e.due(&next) {
			e.attempt(a)
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-e.dial:
		case <-e.ctx.Done():
			return
		}
	}
}

func (e *endpoint) takePending() []string {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	pending := slices.Sorted(maps.Keys(e.pending))
	clear(e.pending)
	return pending
}

// attempt is one try to connect to a peer.
type attempt struct {
	node    string
	peer    *peer
	version uint64
}

// due begins the attempts that are due, returns those that have got there, and
// lowers next to when the first of the others is to be looked at.
func (e *endpoint) due(next *time.Duration) []attempt {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	var due []attempt
	for _, node := range slices.Sorted(maps.Keys(e.peers)) { // in an order, since delays are drawn
		p := e.peers[node]
		if p.to != nil {
			continue
		}
		if p.ready.IsZero() {
			if wait := p.retry.Sub(now); wait > 0 {
				*next = min(*next, wait)
				continue
			}
			p.ready = now.Add(n.delay(e.node, node))
		}
		if wait := p.ready.Sub(now); wait > 0 {
			*next = min(*next, wait)
			continue
		}
		p.ready, p.retry = time.Time{}, now.Add(n.opts.Redial)
		due = append(due, attempt{node, p, p.version})
	}
	return due
}

// attempt tries to connect to a peer.
func (e *endpoint) attempt(a attempt) {
	n, node := e.net, a.node
	n.mu.Lock()
	to := n.at[a.peer.address]
	// Only the direction of the messages must be whole: a link cut one way stays
	// usable the other way, also for a node that restarts.
	if e.closed || to == nil || n.isCut(e.node, to.node) || n.isCut(e.node, node) || !to.enter() {
		n.mu.Unlock()
		return
	}
	generation := to.generation
	n.mu.Unlock()

	err := shake(e.handler, to.handler, node)
	if listener, ok := e.handler.(transport.RemovalListener); ok && errors.Is(err, errToldRemoved) {
		listener.Removed(node, e.handler.Hello().GetReplicas())
	}
	to.wg.Done()

	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err != nil:
		n.counters.Refused++
	case e.closed || to.closed || to.generation != generation ||
		e.peers[node] != a.peer || a.peer.version != a.version || n.isCut(e.node, node):
		// Things changed meanwhile; the hellos may be of the past. Try anew.
		a.peer.retry = time.Time{}
		wake(e.dial)
	default:
		n.counters.Connected++
		a.peer.to, a.peer.told = to, false
	}
}

// errToldRemoved: the dialled node says that the dialling one was removed.
var errToldRemoved = errors.New("faultnet: told that it was removed")

// shake exchanges hellos between the dialling and the dialled node.
func shake(from, to transport.Handler, node string) error {
	dialler, dialled := proto.CloneOf(from.Hello()), proto.CloneOf(to.Hello())
	told := transport.CheckPeer(to, dialled, dialler, "")
	if errors.Is(told, transport.ErrRemoved) {
		told = errors.Join(told, errToldRemoved)
	}
	return errors.Join(
		told,
		transport.CheckPeer(from, dialler, dialled, node),
	)
}

package faultnet

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// ErrAddressInUse: another transport of the same node or address is running;
// close it first.
var ErrAddressInUse = errors.New("faultnet: node or address in use")

// ErrNoAnswer: nobody runs at the address, or the link there is cut.
var ErrNoAnswer = errors.New("faultnet: no answer")

// endpoint is one run of a node: the Transport. Fields are guarded by net.mu
// unless they are said to be fixed.
type endpoint struct {
	net           *Network
	node, address string
	ctx           context.Context // ends at Close
	cancel        context.CancelFunc
	wg            sync.WaitGroup // goroutines, and calls of this node's handler by others

	handler transport.Handler
	closed  bool
	// generation rises with each ResetConnections: what was taken for delivery
	// before, and a peer's handshake that began before, do not count.
	generation uint64
	peers      map[string]*peer
	unknown    map[string]bool // nodes without an address that Send was told of
	pending    map[string]bool // calls of Unreachable to make
	dial       chan struct{}   // a token when peers or pending changed

	arriving flights
	arrived  chan struct{} // a token when arriving changed
	last     map[laneKey]*laneState
}

// peer is a node an endpoint sends to.
type peer struct {
	address string
	// to is the run of the node that the connection goes to; nil without one.
	to   *endpoint
	told bool // Unreachable was asked for since the last connection or burst
	// retry is when the next attempt may begin; ready is when the one under way
	// gets there, zero without one.
	retry, ready time.Time
	// version changes when an attempt under way no longer counts.
	version uint64
}

func newEndpoint(n *Network, node, address string) *endpoint {
	e := &endpoint{
		net: n, node: node, address: address,
		peers:   make(map[string]*peer),
		unknown: make(map[string]bool),
		pending: make(map[string]bool),
		dial:    make(chan struct{}, 1),
		arrived: make(chan struct{}, 1),
		last:    make(map[laneKey]*laneState),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// Start implements transport.Transport.
func (e *endpoint) Start(h transport.Handler) error {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case e.closed:
		return transport.ErrClosed
	case e.handler != nil:
		return transport.ErrStarted
	case n.nodes[e.node] != nil || n.at[e.address] != nil:
		return fmt.Errorf("%w: %s at %s", ErrAddressInUse, e.node, e.address)
	}
	e.handler = h
	n.nodes[e.node], n.at[e.address] = e, e
	e.wg.Go(e.deliver)
	e.wg.Go(e.connect)
	return nil
}

// enter lets a call of this node's handler in that Close has to wait for; the
// caller holds net.mu and calls wg.Done when it is over.
func (e *endpoint) enter() bool {
	if e.closed || e.handler == nil {
		return false
	}
	e.wg.Add(1)
	return true
}

// SetPeer implements transport.Transport.
func (e *endpoint) SetPeer(node, address string) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.closed || e.handler == nil {
		return
	}
	delete(e.unknown, node)
	p := e.peers[node]
	switch {
	case p == nil:
		e.peers[node] = &peer{address: address}
	case p.address != address:
		p.address = address
		e.disconnect(node, p)
	}
	wake(e.dial)
}

// RemovePeer implements transport.Transport.
func (e *endpoint) RemovePeer(node string) {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	delete(e.peers, node)
	delete(e.unknown, node)
	if other := e.net.nodes[node]; other != nil {
		if p := other.peers[e.node]; p != nil && p.to == e {
			other.disconnect(e.node, p)
		}
	}
	kept := e.arriving[:0]
	for _, f := range e.arriving {
		if f.from.node != node {
			kept = append(kept, f)
		}
	}
	e.net.counters.Lost += uint64(len(e.arriving) - len(kept))
	clear(e.arriving[len(kept):])
	e.arriving = kept
	heap.Init(&e.arriving)
}

// disconnect ends the connection to a peer, or the attempt to make one, and has
// the next begin at once.
func (e *endpoint) disconnect(node string, p *peer) {
	p.version++
	p.retry, p.ready = time.Time{}, time.Time{}
	if p.to != nil {
		p.to = nil
		if !p.told {
			p.told = true
			e.tell(node)
		}
	}
	wake(e.dial)
}

// tell asks for a call of Unreachable.
func (e *endpoint) tell(node string) {
	e.pending[node] = true
	wake(e.dial)
}

// Send implements transport.Transport.
func (e *endpoint) Send(node string, m transport.GroupMessage) {
	// Encoded on the sender's side of the lock, as at the moment of sending.
	data, err := transport.AppendMessages(nil, []transport.GroupMessage{m})
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.closed || e.handler == nil {
		return
	}
	n.counters.Sent++
	if err != nil {
		n.counters.Invalid++
		return
	}
	p := e.peers[node]
	if p == nil {
		n.counters.Unconnected++
		if !e.unknown[node] {
			e.unknown[node] = true
			e.tell(node)
		}
		return
	}
	if p.to == nil {
		if n.isCut(e.node, node) {
			n.counters.Cut++
		} else {
			n.counters.Unconnected++
		}
		if !p.told {
			p.told = true
			e.tell(node)
		}
		return
	}
	e.launch(node, p, m, data)
}

// launch puts an encoded message on its way, with the faults it is to meet.
func (e *endpoint) launch(node string, p *peer, m transport.GroupMessage, data []byte) {
	n := e.net
	// All choices are drawn for every message; see chance.
	drop, duplicate, reorder := n.chance(n.odds.Drop), n.chance(n.odds.Duplicate), n.chance(n.odds.Reorder)
	delay, later := n.delay(e.node, node), n.delay(e.node, node)
	hold := time.Duration(n.rnd.Float64() * 10 * float64(n.opts.MaxDelay))
	if drop {
		n.counters.Dropped++
		return
	}
	now := time.Now()
	n.sequence++
	f := &flight{
		from: e, key: laneKey{e, transport.LaneOf(m.Message)}, sent: m, data: data,
		sequence: n.sequence, at: now.Add(delay),
	}
	lane := p.to.lane(f.key)
	if reorder {
		f.at = f.at.Add(hold)
	} else {
		// A faster message does not overtake the one before it.
		if f.at.Before(lane.arrives) {
			f.at = lane.arrives
		}
		lane.arrives = f.at
	}
	flights := []*flight{f}
	if duplicate {
		second := *f
		second.duplicate = true
		second.at = f.at.Add(later + hold)
		flights = append(flights, &second)
	}
	if len(p.to.arriving) <= n.opts.QueueMessages/2 {
		p.told = false
	}
	for _, f := range flights {
		if len(p.to.arriving) >= n.opts.QueueMessages {
			n.counters.Overflowed++
			if !p.told {
				p.told = true
				e.tell(node)
			}
			continue
		}
		heap.Push(&p.to.arriving, f)
	}
	wake(p.to.arrived)
}

// ResetConnections implements transport.Transport. What is on the way to this
// node is lost with its connections; what it has sent still arrives.
func (e *endpoint) ResetConnections() {
	n := e.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if e.closed || e.handler == nil {
		return
	}
	e.generation++
	n.counters.Lost += uint64(len(e.arriving))
	e.arriving = nil
	for name, p := range e.peers {
		e.disconnect(name, p)
	}
	for _, other := range n.nodes {
		for name, p := range other.peers {
			if p.to == e {
				other.disconnect(name, p)
			}
		}
	}
}

// Hello implements transport.Transport. Over a cut link it waits for the end of
// ctx, at most a second, as a dial without an answer would.
func (e *endpoint) Hello(ctx context.Context, address string) (*raftv1.NodeHello, error) {
	n := e.net
	n.mu.Lock()
	switch {
	case e.closed:
		n.mu.Unlock()
		return nil, transport.ErrClosed
	case !e.enter():
		n.mu.Unlock()
		return nil, transport.ErrNotStarted
	}
	defer e.wg.Done()
	there, back := n.delay(e.node, ""), n.delay(e.node, "")
	if other := n.at[address]; other != nil {
		there, back = n.delay(e.node, other.node), n.delay(other.node, e.node)
		if n.isCut(e.node, other.node) || n.isCut(other.node, e.node) {
			there = time.Second
		}
	}
	n.mu.Unlock()
	if err := e.wait(ctx, there); err != nil {
		return nil, err
	}
	n.mu.Lock()
	other := n.at[address]
	if other == nil || n.isCut(e.node, other.node) || n.isCut(other.node, e.node) || !other.enter() {
		n.mu.Unlock()
		return nil, fmt.Errorf("%w: ask the node at %s who it is", ErrNoAnswer, address)
	}
	n.mu.Unlock()
	hello := proto.CloneOf(other.handler.Hello())
	other.wg.Done()
	if err := e.wait(ctx, back); err != nil {
		return nil, err
	}
	return hello, nil
}

// wait lets time pass.
func (e *endpoint) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("faultnet: %w", ctx.Err())
	case <-e.ctx.Done():
		return transport.ErrClosed
	}
}

// Close implements transport.Transport: the node crashes.
func (e *endpoint) Close() error {
	n := e.net
	n.mu.Lock()
	if !e.closed {
		e.closed = true
		if e.handler != nil {
			delete(n.nodes, e.node)
			delete(n.at, e.address)
		}
		n.counters.Lost += uint64(len(e.arriving))
		e.arriving = nil
		for _, other := range n.nodes {
			for name, p := range other.peers {
				if p.to == e {
					other.disconnect(name, p)
				}
			}
		}
		e.cancel()
	}
	n.mu.Unlock()
	e.wg.Wait()
	return nil
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

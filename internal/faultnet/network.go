package faultnet

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/streamraft/streamraft/raftnode/transport"
)

// Network connects the transports made by it and injures what they send. All
// methods may be called from any goroutine; none blocks.
type Network struct {
	opts Options

	mu    sync.Mutex // never held while a handler is called
	rnd   *rand.Rand
	odds  Probabilities
	nodes map[string]*endpoint // running nodes by name
	at    map[string]*endpoint // running nodes by address
	hosts map[string]*Host     // of byte streams, by address
	// cuts and isolated nodes carry nothing; slow links take longer.
	cuts     map[link]bool
	isolated map[string]bool
	slow     map[link]time.Duration
	counters Counters
	sequence uint64 // of sent messages
}

// link is one direction between two nodes.
type link struct{ from, to string }

// Counters are what happened on a Network since it was made.
type Counters struct {
	// Sent are messages given to Send; Delivered those given to Receive,
	// duplicates included.
	Sent, Delivered uint64
	// Dropped vanished by Probabilities.Drop; Cut by a cut link, before or on the
	// way; Unconnected had no connection for another reason; Overflowed met
	// Options.QueueMessages; Lost were on the way to a node that closed, reset its
	// connections or removed the sender; Invalid must not travel (transport.CheckMessage).
	Dropped, Cut, Unconnected, Overflowed, Lost, Invalid uint64
	// Duplicated are second deliveries; Reordered are deliveries after one of a
	// message sent later on the same lane.
	Duplicated, Reordered uint64
	// Connected are handshakes that succeeded, Refused those that ended in the
	// refusal of a hello.
	Connected, Refused uint64
	// Mutated messages were changed by their sender after Send, a bug in it;
	// Undecoded did not decode, a bug in the codec. Both must stay zero.
	Mutated, Undecoded uint64
}

// NewNetwork makes a network without nodes. The error names the option that is
// out of range.
func NewNetwork(opts Options) (*Network, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Network{
		opts:     opts,
		rnd:      rand.New(rand.NewPCG(opts.Seed, opts.Seed^0x9e3779b97f4a7c15)),
		odds:     opts.Probabilities,
		nodes:    make(map[string]*endpoint),
		at:       make(map[string]*endpoint),
		hosts:    make(map[string]*Host),
		cuts:     make(map[link]bool),
		isolated: make(map[string]bool),
		slow:     make(map[link]time.Duration),
	}, nil
}

// Transport makes a transport for one run of a node. It joins the network at
// Start, which fails while another of the same node or address is running, and
// leaves it at Close.
func (n *Network) Transport(node, address string) transport.Transport {
	return newEndpoint(n, node, address)
}

// SetProbabilities changes the chances of faults for messages sent from now on.
func (n *Network) SetProbabilities(p Probabilities) error {
	if err := p.validate(); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.odds = p
	return nil
}

// Cut cuts the link between two nodes in both directions.
func (n *Network) Cut(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[link{a, b}] = true
	n.cuts[link{b, a}] = true
	n.dropConnections()
}

// CutOneWay cuts the link for what node from sends to node to.
func (n *Network) CutOneWay(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[link{from, to}] = true
	n.dropConnections()
}

// Isolate cuts a node off from all others, also from those that start later,
// until Rejoin or HealAll.
func (n *Network) Isolate(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isolated[node] = true
	n.dropConnections()
}

// Rejoin ends Isolate; links that were cut otherwise stay cut.
func (n *Network) Rejoin(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.isolated, node)
}

// Heal ends what Cut and CutOneWay did between two nodes, in both directions.
func (n *Network) Heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.cuts, link{a, b})
	delete(n.cuts, link{b, a})
}

// HealAll ends all cuts, isolations and slow links. Probabilities stay.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cuts)
	clear(n.isolated)
	clear(n.slow)
}

// SlowLink adds a delay to everything between two nodes, each way, that is sent
// from now on. Zero ends it.
func (n *Network) SlowLink(a, b string, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if delay <= 0 {
		delete(n.slow, link{a, b})
		delete(n.slow, link{b, a})
		return
	}
	n.slow[link{a, b}] = delay
	n.slow[link{b, a}] = delay
}

// Counters returns the counters of now.
func (n *Network) Counters() Counters {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.counters
}

// String returns the counters in one line.
func (c Counters) String() string {
	return fmt.Sprintf("sent %d, delivered %d, dropped %d, cut %d, unconnected %d, overflowed %d, lost %d, invalid %d, duplicated %d, reordered %d, connected %d, refused %d, mutated %d, undecoded %d",
		c.Sent, c.Delivered, c.Dropped, c.Cut, c.Unconnected, c.Overflowed, c.Lost, c.Invalid, c.Duplicated, c.Reordered, c.Connected, c.Refused, c.Mutated, c.Undecoded)
}

// isCut tells whether a direction carries nothing. A node always reaches itself.
func (n *Network) isCut(from, to string) bool {
	return from != to && (n.cuts[link{from, to}] || n.isolated[from] || n.isolated[to])
}

// dropConnections ends the connections and streams over cut links.
func (n *Network) dropConnections() {
	n.dropStreams()
	for _, e := range n.nodes {
		for name, p := range e.peers {
			if p.to != nil && n.isCut(e.node, name) {
				e.disconnect(name, p)
			}
		}
	}
}

// delay draws how long something takes from one node to another.
func (n *Network) delay(from, to string) time.Duration {
	d := n.opts.MinDelay
	if spread := int64(n.opts.MaxDelay - n.opts.MinDelay); spread > 0 {
		d += time.Duration(n.rnd.Int64N(spread + 1))
	}
	return d + n.slow[link{from, to}]
}

// chance draws a yes with probability p. It draws the same amount from the
// generator whatever p is, so that a changed probability does not shift all
// later choices.
func (n *Network) chance(p float64) bool { return n.rnd.Float64() < p }

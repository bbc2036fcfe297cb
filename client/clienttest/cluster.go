package clienttest

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

// NoLeader as a leader means that there is none.
const NoLeader = -1

// Action is what a node does with one pipelined write. The zero value applies
// and acknowledges it.
type Action struct {
	// SkipApply leaves the write unapplied.
	SkipApply bool
	// Failure answers the write with this instead of its result.
	Failure *kvv1.Failure
	// Silent never answers the write.
	Silent bool
	// Cut ends the stream before the write is answered.
	Cut bool
	// Leave ends the stream as a node does that stops: with a status that
	// vouches that what is unanswered was not taken. The write is not applied.
	Leave bool
}

// Arrival is one write as it came to a node.
type Arrival struct {
	Node  int
	Write *kvv1.Write
	// Applied tells whether it changed the state.
	Applied bool
	// Answer is what the client was told; nil if nothing.
	Answer *kvv1.WriteResult
}

// Cluster is the scripted cluster.
type Cluster struct {
	nodes []*node
	made  time.Time

	mu       sync.Mutex
	leader   int
	hide     bool
	term     uint64
	index    uint64
	records  map[string]*kvv1.KeyValue
	sessions map[uint64]map[uint64]*kvv1.OperationResult
	arrivals []Arrival
	script   func(node int, w *kvv1.Write) Action
	reads    func(node int) error
	calls    func(node int) error
	failure  []string
	// ice has a channel for every frozen node; it is closed when the node thaws.
	ice []chan struct{}
}

// anyPort is a node's address before its first start.
const anyPort = "127.0.0.1:0"

// node is one member.
type node struct {
	kvv1.UnimplementedKvServiceServer
	adminv1.UnimplementedAdminServiceServer
	cluster *Cluster
	number  int
	address string

	mu      sync.Mutex
	server  *grpc.Server
	serving sync.WaitGroup
}

// New starts a cluster of n nodes; node 0 leads.
func New(n int) (*Cluster, error) {
	c := &Cluster{
		made: time.Now(),
		term: 1, index: 10,
		records: map[string]*kvv1.KeyValue{}, sessions: map[uint64]map[uint64]*kvv1.OperationResult{},
		failure: make([]string, n), ice: make([]chan struct{}, n),
	}
	for i := range n {
		nd := &node{cluster: c, number: i, address: anyPort}
		c.nodes = append(c.nodes, nd)
		if err := c.Start(i); err != nil {
			c.Close()
			return nil, err
		}
	}
	return c, nil
}

// Start starts a node that was stopped, at its old address.
func (c *Cluster) Start(i int) error {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	listener, err := net.Listen("tcp", n.address)
	if err != nil {
		return fmt.Errorf("scripted node %d: %w", i, err)
	}
	if n.address == anyPort {
		n.address = listener.Addr().String()
	}
	n.server = grpc.NewServer(grpc.UnaryInterceptor(n.unary), grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}))
	kvv1.RegisterKvServiceServer(n.server, n)
	adminv1.RegisterAdminServiceServer(n.server, n)
	server := n.server
	n.serving.Go(func() { _ = server.Serve(listener) })
	return nil
}

// Stop stops a node at once: its connections are cut, new ones refused.
func (c *Cluster) Stop(i int) {
	n := c.nodes[i]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server != nil {
		n.server.Stop()
		n.serving.Wait()
		n.server = nil
	}
}

// Close stops all nodes.
func (c *Cluster) Close() {
	for i := range c.nodes {
		c.Stop(i)
	}
}

// Addresses returns the nodes' addresses.
func (c *Cluster) Addresses() []string {
	var list []string
	for _, n := range c.nodes {
		list = append(list, n.address)
	}
	return list
}

// Name returns the name of a node: n1 for node 0.
func Name(i int) string { return fmt.Sprintf("n%d", i+1) }

// SetLeader makes a node the leader, in a new term; NoLeader leaves none.
func (c *Cluster) SetLeader(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = i
	c.term++
}

// HideLeader has nodes that do not lead keep to themselves who does.
func (c *Cluster) HideLeader(hide bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hide = hide
}

// Script has f decide what happens to each write that comes to the leader. It
// is called with the cluster locked and must not call it. nil: all are applied.
func (c *Cluster) Script(f func(node int, w *kvv1.Write) Action) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script = f
}

// FailReads has f decide with which error a node answers a read; nil: none.
func (c *Cluster) FailReads(f func(node int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = f
}

// FailCalls has f decide with which error the leader answers a call that is no
// pipelined write, such as OpenClientSession; nil: none.
func (c *Cluster) FailCalls(f func(node int) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = f
}

// Freeze has a node answer nothing, like a process that is stopped by a signal:
// its connections stay, new ones are made, and what comes waits for Thaw.
func (c *Cluster) Freeze(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ice[i] == nil {
		c.ice[i] = make(chan struct{})
	}
}

// Thaw has a frozen node go on with what has come meanwhile.
func (c *Cluster) Thaw(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ice[i] != nil {
		close(c.ice[i])
		c.ice[i] = nil
	}
}

// FailNode gives a node's Status a failure.
func (c *Cluster) FailNode(i int, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure[i] = why
}

// Arrivals returns every pipelined write that came to any node, in order.
func (c *Cluster) Arrivals() []Arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.arrivals)
}

// Value returns a record's value.
func (c *Cluster) Value(key string) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	record := c.records[key]
	return string(record.GetValue()), record != nil
}

// Set writes a record without a client.
func (c *Cluster) Set(key, value string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	c.records[key] = &kvv1.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: c.index << 16}
}

// Len returns how many records there are.
func (c *Cluster) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.records)
}

// notLeader is the refusal of node i. It is called with mu held.
func (c *Cluster) notLeader(i int) *kvv1.Failure {
	if c.leader == NoLeader {
		return &kvv1.Failure{Reason: kvv1.Reason_REASON_UNAVAILABLE, Message: "no leader is known"}
	}
	f := &kvv1.Failure{Reason: kvv1.Reason_REASON_NOT_LEADER, Message: Name(i) + " does not lead the group"}
	if !c.hide {
		f.LeaderNode, f.LeaderAddress = Name(c.leader), c.nodes[c.leader].address
	}
	return f
}

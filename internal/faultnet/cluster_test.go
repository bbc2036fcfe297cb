package faultnet

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
	"github.com/streamraft/streamraft/raftnode/transport"
)

// node records what its transport tells it.
type node struct {
	name, cluster string
	tr            transport.Transport

	mu          sync.Mutex
	refuse      error
	onCheck     func()
	got         []delivery
	unreachable map[string]int
	hellos      int
	spoil       bool // change what is received, as no handler may see of another's
	onReceive   func(from string)
}

type delivery struct {
	from  string
	index uint64
	at    time.Time
	data  string
}

func (n *node) Hello() *raftv1.NodeHello {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hellos++
	return &raftv1.NodeHello{ProtocolVersion: transport.ProtocolVersion, Node: n.name, ClusterId: []byte(n.cluster)}
}

func (n *node) CheckHello(peer *raftv1.NodeHello) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.onCheck != nil {
		n.onCheck()
	}
	if !bytes.Equal(peer.ClusterId, []byte(n.cluster)) {
		return fmt.Errorf("cluster %s, not %s", peer.ClusterId, n.cluster)
	}
	return n.refuse
}

func (n *node) Receive(from string, messages []transport.GroupMessage) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range messages {
		d := delivery{from: from, index: m.Message.GetIndex(), at: time.Now()}
		for _, e := range m.Message.Entries {
			d.data += string(e.Data)
			if n.spoil {
				clear(e.Data)
			}
		}
		n.got = append(n.got, d)
	}
	if n.onReceive != nil {
		n.onReceive(from)
	}
}

func (n *node) Unreachable(peer string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unreachable[peer]++
}

func (n *node) take() []delivery {
	n.mu.Lock()
	defer n.mu.Unlock()
	got := n.got
	n.got = nil
	return got
}

func (n *node) indexes() []uint64 {
	var out []uint64
	for _, d := range n.take() {
		out = append(out, d.index)
	}
	return out
}

func (n *node) told(peer string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unreachable[peer]
}

// cluster is a network in a bubble with nodes that know each other.
type cluster struct {
	t *testing.T
	*Network
	nodes map[string]*node
}

func bubble(t *testing.T, opts Options, names []string, f func(c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n, err := NewNetwork(opts)
		if err != nil {
			t.Fatal(err)
		}
		c := &cluster{t, n, make(map[string]*node)}
		for _, name := range names {
			c.start(name)
		}
		for _, a := range names {
			for _, b := range names {
				if a != b {
					c.nodes[a].tr.SetPeer(b, b+":1")
				}
			}
		}
		c.settle()
		f(c)
		for _, n := range c.nodes {
			if err := n.tr.Close(); err != nil {
				t.Error(err)
			}
		}
		if got := c.Counters(); got.Mutated+got.Undecoded > 0 {
			t.Error(got)
		}
	})
}

// settle lets enough virtual time pass for all connections and messages.
func (c *cluster) settle() {
	pass(time.Second)
	synctest.Wait()
}

func (c *cluster) start(name string) *node {
	c.t.Helper()
	n := &node{name: name, cluster: "blue", unreachable: make(map[string]int), tr: c.Transport(name, name+":1")}
	if err := n.tr.Start(n); err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = n
	return n
}

func (c *cluster) crash(name string) {
	c.t.Helper()
	if err := c.nodes[name].tr.Close(); err != nil {
		c.t.Error(err)
	}
}

func beat(index uint64) transport.GroupMessage {
	return transport.GroupMessage{Group: 1, Message: &raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), Index: &index}}
}

func app(index uint64, data string) transport.GroupMessage {
	return transport.GroupMessage{Group: 1, Message: &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), Index: &index, Entries: []*raftpb.Entry{{Index: new(index + 1), Data: []byte(data)}},
	}}
}

func upTo(n uint64) (out []uint64) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

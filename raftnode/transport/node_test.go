package transport

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// testNode is a node that only records what its transport tells it.
type testNode struct {
	t         testing.TB
	name      string
	address   string
	transport *GRPC
	server    *grpc.Server
	serving   sync.WaitGroup
	log       *syncBuffer

	mu          sync.Mutex
	hello       *raftv1.NodeHello
	check       func(*raftv1.NodeHello) error
	received    []received
	unreachable map[string]int
	hellos      int
	block       chan struct{}                // Receive of appends waits for it if not nil
	onReceive   func(string, []GroupMessage) // replaces recording
}

type received struct {
	from  string
	group uint64
	typ   raftpb.MessageType
	index uint64
}

func (n *testNode) Hello() *raftv1.NodeHello {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hellos++
	return &raftv1.NodeHello{ProtocolVersion: n.hello.ProtocolVersion, Node: n.hello.Node, ClusterId: n.hello.ClusterId}
}

func (n *testNode) CheckHello(peer *raftv1.NodeHello) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.check != nil {
		return n.check(peer)
	}
	if !bytes.Equal(peer.ClusterId, n.hello.ClusterId) {
		return fmt.Errorf("node %s is of cluster %s, node %s of cluster %s", peer.Node, peer.ClusterId, n.hello.Node, n.hello.ClusterId)
	}
	return nil
}

func (n *testNode) Receive(from string, messages []GroupMessage) {
	n.mu.Lock()
	block, onReceive := n.block, n.onReceive
	n.mu.Unlock()
	if block != nil && LaneOf(messages[0].Message) == raftv1.Lane_LANE_APPEND {
		<-block
	}
	if onReceive != nil {
		onReceive(from, messages)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range messages {
		n.received = append(n.received, received{from, m.Group, m.Message.GetType(), m.Message.GetIndex()})
	}
}

func (n *testNode) Unreachable(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unreachable[node]++
}

func (n *testNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// get returns what was received of one type.
func (n *testNode) get(typ raftpb.MessageType) []received {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []received
	for _, r := range n.received {
		if r.typ == typ {
			out = append(out, r)
		}
	}
	return out
}

func (n *testNode) toldUnreachable(node string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.unreachable[node]
}

func newTestNode(t testing.TB, name string, change ...func(*GRPCOptions)) *testNode {
	t.Helper()
	n := &testNode{
		t: t, name: name, log: new(syncBuffer),
		hello:       &raftv1.NodeHello{ProtocolVersion: ProtocolVersion, Node: name, ClusterId: []byte("blue")},
		unreachable: make(map[string]int),
	}
	n.open("127.0.0.1:0", change...)
	t.Cleanup(n.close)
	return n
}

// open starts the node at an address.
func (n *testNode) open(address string, change ...func(*GRPCOptions)) {
	n.t.Helper()
	opts := GRPCOptions{
		BackoffMin: 5 * time.Millisecond,
		BackoffMax: 20 * time.Millisecond,
		Logger:     testLogger(n.log),
	}
	for _, f := range change {
		f(&opts)
	}
	tr, err := NewGRPC(opts)
	if err != nil {
		n.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		n.t.Fatal(err)
	}
	n.transport, n.address = tr, listener.Addr().String()
	server := grpc.NewServer(tr.ServerOptions()...)
	n.server = server
	tr.Register(server)
	n.serving.Go(func() { server.Serve(listener) })
	if err := tr.Start(n); err != nil {
		n.t.Fatal(err)
	}
}

func (n *testNode) close() {
	n.set(func() {
		if n.block != nil {
			close(n.block)
			n.block = nil
		}
	})
	if err := n.transport.Close(); err != nil {
		n.t.Error(err)
	}
	n.server.Stop()
	n.serving.Wait()
}

// knows makes peers known and waits until the connections to them are up.
func (n *testNode) knows(peers ...*testNode) {
	n.t.Helper()
	for _, p := range peers {
		n.transport.SetPeer(p.name, p.address)
	}
	for _, p := range peers {
		n.waitConnected(p.name)
	}
}

func (n *testNode) lane(node string, lane raftv1.Lane) LaneMetrics {
	for _, l := range n.transport.Metrics().Lanes {
		if l.Node == node && l.Lane == lane {
			return l
		}
	}
	return LaneMetrics{}
}

func (n *testNode) waitConnected(node string) {
	n.t.Helper()
	eventually(n.t, "connected to "+node, func() bool {
		return n.lane(node, raftv1.Lane_LANE_URGENT).Connected && n.lane(node, raftv1.Lane_LANE_APPEND).Connected
	})
}

// eventually polls: what it waits for happens on goroutines and sockets that
// give no other sign.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// never gives something that must not happen the time to happen.
func never[T any](t testing.TB, happens <-chan T, what string) {
	t.Helper()
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-happens:
		t.Fatal(what)
	case <-timer.C:
	}
}

func heartbeat(group, index uint64) GroupMessage {
	return GroupMessage{group, &raftpb.Message{
		Type: raftpb.MsgHeartbeat.Enum(), To: new(uint64(2)), From: new(uint64(1)), Term: new(uint64(3)), Index: &index,
	}}
}

func appendOf(group, index uint64, data ...[]byte) GroupMessage {
	m := &raftpb.Message{
		Type: raftpb.MsgApp.Enum(), To: new(uint64(2)), From: new(uint64(1)), Term: new(uint64(3)),
		LogTerm: new(uint64(3)), Index: &index, Commit: new(index),
	}
	for i, d := range data {
		m.Entries = append(m.Entries, &raftpb.Entry{
			Type: raftpb.EntryNormal.Enum(), Term: new(uint64(3)), Index: new(index + 1 + uint64(i)), Data: d,
		})
	}
	return GroupMessage{group, m}
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), text)
}

func testLogger(b *syncBuffer) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

package transport

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

const (
	urgent = raftv1.Lane_LANE_URGENT
	bulk   = raftv1.Lane_LANE_APPEND
)

func checkOrder(t *testing.T, got []received, from string, n int) {
	t.Helper()
	if len(got) != n {
		t.Fatalf("%d messages, want %d", len(got), n)
	}
	for i, r := range got {
		if r.from != from || r.index != uint64(i) {
			t.Fatalf("message %d is %+v", i, r)
		}
	}
}

func TestThreeNodes(t *testing.T) {
	nodes := []*testNode{newTestNode(t, "n1"), newTestNode(t, "n2"), newTestNode(t, "n3")}
	for i, n := range nodes {
		n.knows(nodes[(i+1)%3], nodes[(i+2)%3])
	}
	const count = 2000 // below the bounds of the queues
	var senders sync.WaitGroup
	for i, n := range nodes {
		for _, to := range []string{nodes[(i+1)%3].name, nodes[(i+2)%3].name} {
			senders.Go(func() {
				for k := range uint64(count) {
					n.transport.Send(to, heartbeat(k%100+1, k))
					n.transport.Send(to, appendOf(k%100+1, k, []byte("data")))
				}
			})
		}
	}
	senders.Wait()
	for i, n := range nodes {
		for _, from := range []string{nodes[(i+1)%3].name, nodes[(i+2)%3].name} {
			of := func(typ raftpb.MessageType) (out []received) {
				for _, r := range n.get(typ) {
					if r.from == from {
						out = append(out, r)
					}
				}
				return out
			}
			eventually(t, "all received", func() bool {
				return len(of(raftpb.MsgHeartbeat)) == count && len(of(raftpb.MsgApp)) == count
			})
			checkOrder(t, of(raftpb.MsgHeartbeat), from, count)
			checkOrder(t, of(raftpb.MsgApp), from, count)
		}
	}
	m := nodes[0].lane("n2", bulk)
	if m.SentMessages != count || m.Dropped != 0 || m.Connects != 1 || m.SentBatches == 0 || m.SentBatches > count || !m.Accepted {
		t.Errorf("%+v", m)
	}
	if got := nodes[1].lane("n1", bulk); got.ReceivedMessages != count || got.ReceivedBytes != m.SentBytes || got.ReceivedBatches != m.SentBatches {
		t.Errorf("%+v", got)
	}
}

// Messages keep their content, whatever waits before them.
func TestContentArrives(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	var mu sync.Mutex
	var got []GroupMessage
	b.set(func() {
		b.onReceive = func(_ string, ms []GroupMessage) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, ms...)
		}
	})
	a.knows(b)
	want := []GroupMessage{
		appendOf(1, 1, make([]byte, 700<<10)), appendOf(2, 1, []byte("x")),
		appendOf(1, 2, make([]byte, 5<<20)), appendOf(3, 3, []byte("y"), []byte("z")),
	}
	for _, m := range want {
		a.transport.Send("n2", m)
	}
	eventually(t, "all", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == len(want) })
	for i := range want {
		if got[i].Group != want[i].Group || !proto.Equal(got[i].Message, want[i].Message) {
			t.Errorf("message %d changed", i)
		}
	}
}

func TestStuckAppendLaneDoesNotDelayUrgent(t *testing.T) {
	a, b := newTestNode(t, "n1", func(o *GRPCOptions) {
		o.WindowBytes = 64 << 10
		o.AppendQueue = QueueLimits{Messages: 64, Bytes: 16 << 20}
	}), newTestNode(t, "n2", func(o *GRPCOptions) { o.WindowBytes = 64 << 10 })
	b.set(func() { b.block = make(chan struct{}) })
	a.knows(b)
	// Enough to fill the receiver, the windows and the queue.
	sent := uint64(0)
	for a.toldUnreachable("n2") == 0 {
		a.transport.Send("n2", appendOf(1, sent, make([]byte, 32<<10)))
		sent++
	}
	for k := range uint64(100) {
		a.transport.Send("n2", heartbeat(1, k))
		eventually(t, "heartbeat", func() bool { return len(b.get(raftpb.MsgHeartbeat)) == int(k)+1 })
	}
	if n := len(b.get(raftpb.MsgApp)); n != 0 {
		t.Fatalf("%d appends got through", n)
	}
	m := a.lane("n2", bulk)
	if m.Queued == 0 || m.Queued > 64 || m.Dropped == 0 {
		t.Errorf("%+v", m)
	}
	// Still full: no second call.
	a.transport.Send("n2", appendOf(1, sent, make([]byte, 32<<10)))
	if n := a.toldUnreachable("n2"); n != 1 {
		t.Errorf("told %d times", n)
	}

	// Once the receiver goes on, so does the lane, on the same connection.
	b.set(func() { close(b.block); b.block = nil })
	eventually(t, "queue drained", func() bool { return a.lane("n2", bulk).Queued == 0 })
	before := a.lane("n2", bulk)
	a.transport.Send("n2", appendOf(1, 1<<40))
	a.transport.Send("n2", appendOf(1, 1<<40, []byte("x")))
	eventually(t, "append after the burst", func() bool {
		got := b.get(raftpb.MsgApp)
		return len(got) > 0 && got[len(got)-1].index == 1<<40
	})
	if after := a.lane("n2", bulk); after.Connects != 1 || after.Dropped != before.Dropped {
		t.Errorf("%+v", after)
	}
	// The next burst is told again.
	b.set(func() { b.block = make(chan struct{}) })
	eventually(t, "told again", func() bool {
		a.transport.Send("n2", appendOf(1, sent, make([]byte, 32<<10)))
		return a.toldUnreachable("n2") == 2
	})
}

func TestPeerRestarts(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	a.knows(b)
	a.transport.Send("n2", heartbeat(1, 1))
	eventually(t, "received", func() bool { return len(b.get(raftpb.MsgHeartbeat)) == 1 })
	b.close()
	eventually(t, "unreachable", func() bool { return a.toldUnreachable("n2") >= 1 })
	eventually(t, "both lanes down", func() bool { return !a.lane("n2", urgent).Connected && !a.lane("n2", bulk).Connected })
	eventually(t, "told of both lanes", func() bool { return a.log.count("peer unreachable") == 1 })
	for range 10 {
		a.transport.Send("n2", heartbeat(1, 2))
	}
	if n := a.toldUnreachable("n2"); n > 2 {
		t.Errorf("told %d times of one disconnection of two lanes", n)
	}
	b.open(b.address)
	a.waitConnected("n2")
	a.transport.Send("n2", heartbeat(1, 3))
	eventually(t, "received again", func() bool { return len(b.get(raftpb.MsgHeartbeat)) == 2 })
	if got := b.get(raftpb.MsgHeartbeat)[1].index; got != 3 {
		t.Errorf("received %d", got)
	}
	if m := a.lane("n2", urgent); m.Connects != 2 || m.Dropped != 10 {
		t.Errorf("%+v", m)
	}
	if a.log.count("peer connected") != 2 {
		t.Errorf("log: %s", a.log.buf.String())
	}
}

func TestPeerMoves(t *testing.T) {
	a, old, moved := newTestNode(t, "n1"), newTestNode(t, "n2"), newTestNode(t, "n2")
	a.knows(old)
	a.transport.SetPeer("n2", old.address) // no change, no new connection
	a.transport.SetPeer("n2", moved.address)
	eventually(t, "connected to the new address", func() bool {
		return moved.lane("n1", urgent).Accepted && moved.lane("n1", bulk).Accepted
	})
	a.waitConnected("n2")
	a.transport.Send("n2", heartbeat(1, 1))
	eventually(t, "received there", func() bool { return len(moved.get(raftpb.MsgHeartbeat)) == 1 })
	if m := a.lane("n2", urgent); m.Connects != 2 {
		t.Errorf("%+v", m)
	}
}

func TestUnknownAndRemovedPeer(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	for range 5 {
		a.transport.Send("n2", heartbeat(1, 1))
	}
	eventually(t, "unreachable", func() bool { return a.toldUnreachable("n2") == 1 })
	if n := a.transport.Metrics().DroppedUnknown; n != 5 {
		t.Errorf("%d dropped", n)
	}
	a.knows(b)
	b.knows(a)
	eventually(t, "accepted", func() bool { return b.lane("n1", urgent).Accepted })
	a.transport.RemovePeer("n2")
	a.transport.RemovePeer("n2")
	eventually(t, "closed both ways", func() bool { return !b.lane("n1", urgent).Accepted && b.lane("n2", urgent).Node == "" })
	eventually(t, "b's streams closed too, and made anew", func() bool {
		return b.lane("n1", urgent).Connects >= 2 && b.lane("n1", bulk).Connects >= 2
	})
	a.transport.Send("n2", heartbeat(1, 1))
	eventually(t, "unreachable again", func() bool { return a.toldUnreachable("n2") == 2 })
}

func TestResetConnections(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	a.knows(b)
	b.knows(a)
	a.set(func() { a.hello.ClusterId = []byte("red") })
	a.transport.ResetConnections()
	// Every connection said the new hello, so none is accepted in any direction.
	eventually(t, "refused both ways", func() bool {
		return a.log.count("of cluster") >= 2 && b.log.count("of cluster") >= 2 &&
			!a.lane("n2", urgent).Connected && !a.lane("n2", bulk).Connected && !b.lane("n1", urgent).Connected && !b.lane("n1", bulk).Connected
	})
	a.transport.Send("n2", heartbeat(1, 1))
	b.transport.Send("n1", heartbeat(1, 1))
	b.set(func() { b.hello.ClusterId = []byte("red") })
	b.transport.ResetConnections()
	a.waitConnected("n2")
	b.waitConnected("n1")
	a.transport.Send("n2", heartbeat(1, 2))
	b.transport.Send("n1", heartbeat(1, 3))
	eventually(t, "received", func() bool { return len(a.get(raftpb.MsgHeartbeat)) == 1 && len(b.get(raftpb.MsgHeartbeat)) == 1 })
	if got := a.get(raftpb.MsgHeartbeat)[0]; got.index != 3 {
		t.Errorf("%+v", got)
	}
	if got := b.get(raftpb.MsgHeartbeat)[0]; got.index != 2 {
		t.Errorf("%+v", got)
	}
}

func TestCloseWhileSending(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	a.knows(b)
	b.knows(a)
	var closed atomic.Bool
	var late atomic.Int64
	count := func(string, []GroupMessage) {
		if closed.Load() {
			late.Add(1)
		}
	}
	b.set(func() { b.onReceive = count })
	ctx, cancel := context.WithCancel(context.Background())
	var senders sync.WaitGroup
	for _, n := range []*testNode{a, b} {
		senders.Go(func() {
			other := map[string]string{"n1": "n2", "n2": "n1"}[n.name]
			for k := uint64(0); ctx.Err() == nil; k++ {
				n.transport.Send(other, appendOf(1, k, make([]byte, 100)))
				n.transport.Send(other, heartbeat(1, k))
				n.transport.Metrics()
			}
		})
	}
	eventually(t, "traffic", func() bool { return b.lane("n1", bulk).ReceivedMessages > 100 })
	if err := b.transport.Close(); err != nil {
		t.Fatal(err)
	}
	closed.Store(true)
	if err := a.transport.Close(); err != nil {
		t.Fatal(err)
	}
	cancel()
	senders.Wait()
	if late.Load() > 0 {
		t.Errorf("%d batches delivered after Close", late.Load())
	}
	if err := a.transport.Start(a); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := a.transport.Hello(context.Background(), b.address); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	a.transport.SetPeer("n2", b.address)
	a.transport.RemovePeer("n2")
	a.transport.ResetConnections()
	a.transport.Send("n2", heartbeat(1, 1))
}

func TestCloseWaitsForReceive(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	b.set(func() { b.block = make(chan struct{}) })
	a.knows(b)
	a.transport.Send("n2", appendOf(1, 1, []byte("x")))
	eventually(t, "in Receive", func() bool { return b.lane("n1", bulk).ReceivedBatches == 1 })
	closed := make(chan error, 1)
	go func() { closed <- b.transport.Close() }()
	never(t, closed, "closed while the handler is called")
	b.set(func() { close(b.block); b.block = nil })
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestHello(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	b.set(func() { b.hello.ClusterId = []byte("red") })
	hello, err := a.transport.Hello(t.Context(), b.address)
	if err != nil || hello.Node != "n2" || string(hello.ClusterId) != "red" {
		t.Fatal(hello, err)
	}
	b.close()
	_, err = a.transport.Hello(t.Context(), b.address)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), b.address) {
		t.Error(err)
	}
}

func TestNotStarted(t *testing.T) {
	a := newTestNode(t, "n1")
	if err := a.transport.Start(a); !errors.Is(err, ErrStarted) {
		t.Error(err)
	}
	tr, err := NewGRPC(GRPCOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if _, err := tr.Hello(t.Context(), a.address); !errors.Is(err, ErrNotStarted) {
		t.Error(err)
	}
	s := &service{t: tr}
	if _, err := s.Hello(t.Context(), nil); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if err := s.Connect(nil); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	tr.SetPeer("n2", a.address)
	tr.Send("n2", heartbeat(1, 1))
}

func TestOversizeMessageIsDropped(t *testing.T) {
	a, b := newTestNode(t, "n1"), newTestNode(t, "n2")
	a.knows(b)
	for range 3 {
		a.transport.Send("n2", appendOf(7, 1, make([]byte, MaxMessageBytes)))
		a.transport.Send("n2", GroupMessage{Group: 7})
	}
	a.transport.Send("n2", appendOf(7, 2, make([]byte, MaxMessageBytes-200)))
	a.transport.Send("n2", appendOf(7, 3, []byte("small")))
	eventually(t, "the good ones", func() bool { return len(b.get(raftpb.MsgApp)) == 2 })
	if m := a.lane("n2", bulk); m.Dropped != 3 || m.Connects != 1 || m.Queued != 0 {
		t.Errorf("%+v", m)
	}
	if n := a.log.count("message too large"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if n := a.log.count("invalid message"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// A message that is changed while it waits cannot be sent right; it must not be
// sent wrong.
func TestMutatedMessageIsNotEncoded(t *testing.T) {
	for _, change := range []func(*raftpb.Message){
		func(m *raftpb.Message) { m.Entries[0].Data = []byte("longer") },
		func(m *raftpb.Message) { m.Context = []byte("context") },
	} {
		b := newBatch()
		m := appendOf(1, 1, []byte("x"))
		b.add(m, proto.Size(m.Message))
		change(m.Message)
		if data, err := proto.Marshal(b); err == nil {
			t.Errorf("encoded as %x", data)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		opts GRPCOptions
		text string
	}{
		{GRPCOptions{BatchMessages: -1}, "BatchMessages is -1"},
		{GRPCOptions{BatchBytes: MaxWireBytes + 1}, "BatchBytes"},
		{GRPCOptions{WindowBytes: 1}, "WindowBytes"},
		{GRPCOptions{BackoffMin: 2 * time.Second, BackoffMax: time.Second}, "BackoffMax"},
		{GRPCOptions{KeepaliveTime: time.Second}, "KeepaliveTime is 1s; it must be at least 10s"},
		{GRPCOptions{UrgentQueue: QueueLimits{Messages: -1}}, "UrgentQueue.Messages"},
	} {
		if _, err := NewGRPC(c.opts); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%v", err)
		}
	}
	if _, err := NewGRPC(GRPCOptions{BackoffMin: time.Minute}); err != nil {
		t.Error(err)
	}
}

func TestMetricsString(t *testing.T) {
	m := Metrics{DroppedUnknown: 3, Lanes: []LaneMetrics{
		{Node: "n2", Lane: urgent, Connected: true, Connects: 1, SentMessages: 10, SentBatches: 2, SentBytes: 300, Accepted: true, ReceivedMessages: 7, ReceivedBatches: 6, ReceivedBytes: 5},
		{Node: "n2", Lane: bulk, Connects: 4, Queued: 8, Dropped: 9},
	}}
	const want = `
peer             lane    out  in   connects  queued       sent    batches        bytes  dropped   received    batches        bytes
n2               urgent  up   up          1       0         10          2          300        0          7          6            5
n2               append  down down        4       8          0          0            0        9          0          0            0
3 messages dropped for nodes without an address
`
	if got := "\n" + m.String(); got != want {
		t.Errorf("%s", got)
	}
}

package transport

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// rawStream is a client that says what it likes.
func rawStream(t *testing.T, n *testNode) raftv1.RaftService_ConnectClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := raftv1.NewRaftServiceClient(conn).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func helloRequest(name string, lane raftv1.Lane) *raftv1.ConnectRequest {
	return &raftv1.ConnectRequest{
		Hello: &raftv1.NodeHello{ProtocolVersion: ProtocolVersion, Node: name, ClusterId: []byte("blue")}, Lane: lane,
	}
}

func TestRawClient(t *testing.T) {
	n := newTestNode(t, "n1", func(o *GRPCOptions) { o.HandshakeTimeout = 200 * time.Millisecond })
	beat := &raftv1.GroupMessage{Group: 1, Message: rawMessage(heartbeat(1, 1).Message)}
	withMessage := helloRequest("n9", urgent)
	withMessage.Messages = []*raftv1.GroupMessage{beat}
	for _, c := range []struct {
		name  string
		first *raftv1.ConnectRequest
		then  []*raftv1.ConnectRequest
		code  codes.Code
		text  string
	}{
		{"messages without hello", &raftv1.ConnectRequest{Messages: []*raftv1.GroupMessage{beat}}, nil, codes.InvalidArgument, "first message"},
		{"messages with hello", withMessage, nil, codes.InvalidArgument, "first message"},
		{"no lane", helloRequest("n9", 0), nil, codes.InvalidArgument, "first message"},
		{"strange lane", helloRequest("n9", 5), nil, codes.InvalidArgument, "no lane 5"},
		{"nothing", nil, nil, codes.DeadlineExceeded, "no hello in time"},
		{"second hello", helloRequest("n9", urgent), []*raftv1.ConnectRequest{helloRequest("n9", urgent)}, codes.InvalidArgument, "middle of a stream"},
		{"nonsense", helloRequest("n9", urgent), []*raftv1.ConnectRequest{{Messages: []*raftv1.GroupMessage{{Group: 4, Message: []byte("\xff\xff\xff")}}}}, codes.InvalidArgument, "group 4: transport: malformed"},
		{"good then local", helloRequest("n9", urgent), []*raftv1.ConnectRequest{{Messages: []*raftv1.GroupMessage{beat, {Group: 4, Message: []byte{8, 19}}}}}, codes.InvalidArgument, "MsgStorageAppend"},
		{"oversize", helloRequest("n9", urgent), []*raftv1.ConnectRequest{{Messages: []*raftv1.GroupMessage{{Group: 4, Message: make([]byte, MaxWireBytes)}}}}, codes.ResourceExhausted, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			stream := rawStream(t, n)
			if c.first != nil {
				if err := stream.Send(c.first); err != nil {
					t.Fatal(err)
				}
			}
			if len(c.then) > 0 {
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
				for _, r := range c.then {
					stream.Send(r)
				}
			}
			_, err := stream.Recv()
			if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("%v", err)
			}
		})
	}
	if got := n.get(raftpb.MsgHeartbeat); len(got) != 0 {
		t.Errorf("delivered: %v", got)
	}
}

// A peer that comes back before its old stream was noticed dead replaces it,
// and what the old one still delivers comes first.
func TestNewStreamReplacesOld(t *testing.T) {
	n := newTestNode(t, "n1")
	n.set(func() { n.block = make(chan struct{}) })
	send := func(s raftv1.RaftService_ConnectClient, index uint64) {
		m := appendOf(1, index, []byte("x"))
		if err := s.Send(&raftv1.ConnectRequest{Messages: []*raftv1.GroupMessage{{Group: 1, Message: rawMessage(m.Message)}}}); err != nil {
			t.Fatal(err)
		}
	}
	old := rawStream(t, n)
	old.Send(helloRequest("n9", bulk))
	if _, err := old.Recv(); err != nil {
		t.Fatal(err)
	}
	send(old, 0)
	eventually(t, "in Receive", func() bool { return n.lane("n9", bulk).ReceivedBatches == 1 })
	var block chan struct{}
	n.set(func() { block, n.block = n.block, nil }) // only the first Receive blocks
	send(old, 7)                                    // behind the one that blocks: not delivered any more

	next := rawStream(t, n)
	next.Send(helloRequest("n9", bulk))
	if _, err := old.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "opened a new stream") {
		t.Fatal(err)
	}
	send(next, 1)
	answered := make(chan error, 1)
	go func() {
		_, err := next.Recv()
		answered <- err
	}()
	never(t, answered, "answered while an earlier stream delivers")
	close(block)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	send(next, 2)
	eventually(t, "all", func() bool { return len(n.get(raftpb.MsgApp)) == 3 })
	checkOrder(t, n.get(raftpb.MsgApp), "n9", 3)
	next.CloseSend()
	if _, err := next.Recv(); err == nil || status.Code(err) == codes.Unknown && !strings.Contains(err.Error(), "EOF") {
		t.Error(err)
	}
}

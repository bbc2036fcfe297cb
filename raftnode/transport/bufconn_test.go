package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	raftv1 "github.com/streamraft/streamraft/proto/streamraft/raft/v1"
)

// In virtual time and on connections in memory, the pauses between attempts
// can be measured.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var listener atomic.Pointer[bufconn.Listener]
		var dials atomic.Int64
		a, b := bufNode(t, "n1", func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			if l := listener.Load(); l != nil {
				return l.DialContext(ctx)
			}
			return nil, errors.New("nobody there")
		}), bufNode(t, "n2", nil)
		attempts := func(d time.Duration) int64 {
			before := dials.Load()
			pass(d)
			synctest.Wait()
			return dials.Load() - before
		}
		a.transport.SetPeer("n2", "n2")
		// Two lanes, from 100 ms doubling to 1 s, with a jitter of a fifth.
		if n := attempts(time.Second); n < 6 || n > 10 {
			t.Errorf("%d attempts in the first second", n)
		}
		if n := attempts(time.Minute); n < 2*45 || n > 2*75 {
			t.Errorf("%d attempts in the next minute", n)
		}

		serve := func() (stop func()) {
			l := bufconn.Listen(1 << 20)
			server := grpc.NewServer(b.transport.ServerOptions()...)
			b.transport.Register(server)
			var serving sync.WaitGroup
			serving.Go(func() { server.Serve(l) })
			listener.Store(l)
			return func() {
				listener.Store(nil)
				server.Stop()
				serving.Wait()
			}
		}
		stop := serve()
		pass(1300 * time.Millisecond)
		synctest.Wait()
		if l := a.lane("n2", raftv1.Lane_LANE_URGENT); !l.Connected {
			t.Fatal("not connected")
		}
		// An idle connection stays, and makes no dials.
		if n := attempts(time.Hour); n != 0 {
			t.Errorf("%d dials while connected", n)
		}
		a.transport.Send("n2", heartbeat(1, 5))
		synctest.Wait()
		if got := b.get(raftpb.MsgHeartbeat); len(got) != 1 {
			t.Errorf("%v", got)
		}
		// After a stable connection the back-off starts over.
		stop()
		if n := attempts(time.Second); n < 6 || n > 10 {
			t.Errorf("%d attempts in the first second", n)
		}
		stop = serve()
		pass(1300 * time.Millisecond)
		synctest.Wait()
		if l := a.lane("n2", raftv1.Lane_LANE_APPEND); !l.Connected || l.Connects != 2 {
			t.Errorf("%+v", l)
		}
		if err := a.transport.Close(); err != nil {
			t.Error(err)
		}
		if err := b.transport.Close(); err != nil {
			t.Error(err)
		}
		stop()
	})
}

// A node that takes the connection and says nothing is given up on.
func TestHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		a := bufNode(t, "n1", func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			conn, silent := net.Pipe()
			context.AfterFunc(ctx, func() { silent.Close() })
			go func() {
				defer silent.Close()
				for buf := make([]byte, 1024); ; {
					if _, err := silent.Read(buf); err != nil {
						return
					}
				}
			}()
			return conn, nil
		})
		a.transport.SetPeer("n2", "n2")
		pass(20 * time.Second)
		synctest.Wait()
		if n := dials.Load(); n < 2*3 || n > 2*4 {
			t.Errorf("%d dials in 20 s, with a timeout of 5 s", n)
		}
		if n := a.log.count("peer unreachable"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		if err := a.transport.Close(); err != nil {
			t.Error(err)
		}
	})
}

// bufNode is a node without a server.
func bufNode(t *testing.T, name string, dial func(context.Context, string) (net.Conn, error)) *testNode {
	n := &testNode{
		t: t, name: name, log: new(syncBuffer), unreachable: make(map[string]int),
		hello: &raftv1.NodeHello{ProtocolVersion: ProtocolVersion, Node: name},
	}
	tr, err := NewGRPC(GRPCOptions{BackoffMin: 100 * time.Millisecond, Dialer: dial, Logger: testLogger(n.log)})
	if err != nil {
		t.Fatal(err)
	}
	n.transport = tr
	if err := tr.Start(n); err != nil {
		t.Fatal(err)
	}
	return n
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

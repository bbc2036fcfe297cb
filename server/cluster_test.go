package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// testNode is one node of a test cluster, with a client connection.
type testNode struct {
	*Server
	config  Config
	options Options
	conn    *grpc.ClientConn
	kv      kvv1.KvServiceClient
	admin   adminv1.AdminServiceClient
}

// testLog writes what a node logs into the test's output.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func listenLoopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// testConfig is a config with short elections and small files.
func testConfig(name, dir string, founders []raftnode.Founder) Config {
	return Config{
		Name: name, DataDir: dir, Cluster: founders, TickInterval: 5 * time.Millisecond,
		LogSegmentBytes: 8 << 20, CacheBytes: 8 << 20, MemtableBytes: 8 << 20, DiskReserve: sizeOff,
	}
}

// startCluster founds a cluster of count nodes on memory file systems.
func startCluster(t *testing.T, count int, change func(*Config)) []*testNode {
	t.Helper()
	nodes := make([]*testNode, count)
	founders := make([]raftnode.Founder, count)
	for i := range nodes {
		l := listenLoopback(t)
		founders[i] = raftnode.Founder{Node: fmt.Sprintf("n%d", i+1), Address: l.Addr().String()}
		nodes[i] = &testNode{options: Options{Logger: testLog(t), Version: "test", FS: vfs.NewMem(), Listener: l, HTTPListener: listenLoopback(t)}}
	}
	var opening sync.WaitGroup
	errs := make([]error, count)
	for i, n := range nodes {
		n.config = testConfig(founders[i].Node, "data", founders)
		if change != nil {
			change(&n.config)
		}
		opening.Go(func() { n.Server, errs[i] = Open(testContext(t), n.config, n.options) })
	}
	opening.Wait()
	for i, n := range nodes {
		if errs[i] != nil {
			t.Fatalf("open %s: %v", founders[i].Node, errs[i])
		}
		n.connect(t)
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Errorf("close %s: %v", n.config.Name, err)
			}
		})
	}
	for _, n := range nodes {
		eventually(t, n.config.Name+" is ready", func() bool { ready, _ := n.Ready(); return ready })
	}
	return nodes
}

func (n *testNode) connect(t testing.TB) {
	t.Helper()
	conn, err := grpc.NewClient(n.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(16<<20), grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n.conn, n.kv, n.admin = conn, kvv1.NewKvServiceClient(conn), adminv1.NewAdminServiceClient(conn)
}

// leaderOf returns the leader of a group and another node.
func leaderOf(t *testing.T, nodes []*testNode, group uint64) (leader, other *testNode) {
	t.Helper()
	eventually(t, fmt.Sprintf("group %d has a leader", group), func() bool {
		leader, other = nil, nil
		for _, n := range nodes {
			g, err := n.Node().Group(group)
			if err != nil {
				t.Fatal(err)
			}
			if g.Status().Role == raftnode.RoleLeader {
				leader = n
			} else {
				other = n
			}
		}
		return leader != nil
	})
	return leader, other
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.Now().Add(15 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		<-ticker.C
	}
}

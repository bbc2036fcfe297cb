package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/streamraft/streamraft/internal/durable"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// page gets an HTTP page.
func page(t *testing.T, n *testNode, path string) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(testContext(t), http.MethodGet, "http://"+n.HTTPAddress()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Close = true
	answer, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(body)
}

func healthOf(t *testing.T, n *testNode, service string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer, err := healthv1.NewHealthClient(n.conn).Check(testContext(t), &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

func TestPagesHealthAndStatus(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	for _, n := range nodes {
		for _, service := range []string{"", "streamraft.kv.v1.KvService", "streamraft.admin.v1.AdminService"} {
			eventually(t, "health of "+service, func() bool { return healthOf(t, n, service) == healthv1.HealthCheckResponse_SERVING })
		}
		for _, path := range []string{"/healthz", "/readyz"} {
			if code, body := page(t, n, path); code != http.StatusOK || !json.Valid([]byte(body)) {
				t.Errorf("%s answered %d %s", path, code, body)
			}
		}
		if code, body := page(t, n, "/debug/pprof/"); code != http.StatusOK || !strings.Contains(body, "goroutine") {
			t.Errorf("/debug/pprof/ answered %d", code)
		}
		eventually(t, "the directory names three nodes", func() bool {
			st, err := n.admin.Status(testContext(t), &adminv1.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			meta, err := n.replicaOf(raftnode.MetaGroup)
			if err != nil {
				t.Fatal(err)
			}
			found, err := meta.store.SpaceGet([]byte(nodePrefix + "n2"))
			return err == nil && found.Found && len(st.GetNodes()) == 3 && st.GetNodes()[1].GetAddress() == nodes[1].Address()
		})
		st, err := n.admin.Status(testContext(t), &adminv1.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if st.GetNode() != n.config.Name || st.GetAddress() != n.Address() || len(st.GetClusterId()) != 32 || st.GetVersion() != "test" ||
			st.GetFounding() || len(st.GetGroups()) != 2 || st.GetFailure() != "" || len(st.GetGroups()[1].GetReplicas()) != 3 || st.GetLogDiskBytes() == 0 {
			t.Errorf("status is %v", st)
		}
	}
	meta, _ := nodes[0].replicaOf(raftnode.MetaGroup)
	found, err := meta.store.SpaceGet([]byte(groupPrefix + "2"))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := decodeGroupEntry(found.Record.Value); err != nil || e != (groupEntry{groupData, 0, 1<<32 - 1}) {
		t.Errorf("the group map says %v, %v of group 2", e, err)
	}
	found, err = meta.store.SpaceGet([]byte(nodePrefix + "n3"))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := decodeNodeEntry(found.Record.Value); err != nil || e.address != nodes[2].Address() || len(e.incarnation) != 16 {
		t.Errorf("the directory says %v, %v of n3", e, err)
	}
}

// Status answers while the node waits for others, and Open ends with its ctx.
func TestFounding(t *testing.T) {
	l, silent := listenLoopback(t), listenLoopback(t)
	defer silent.Close()
	founders := []raftnode.Founder{{Node: "n1", Address: l.Addr().String()}, {Node: "n2", Address: silent.Addr().String()}}
	n := &testNode{options: Options{FS: vfs.NewMem(), Listener: l, HTTPListener: listenLoopback(t), Logger: testLog(t)}, config: testConfig("n1", "data", founders)}
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		s, err := Open(ctx, n.config, n.options)
		if err == nil {
			err = s.Close()
		}
		opened <- err
	}()
	n.Server = &Server{listener: l, httpListener: n.options.HTTPListener}
	n.connect(t)
	eventually(t, "status says founding", func() bool {
		st, err := n.admin.Status(testContext(t), &adminv1.StatusRequest{})
		return err == nil && st.GetFounding() && st.GetNode() == "n1" && len(st.GetNodes()) == 2 && st.GetClusterId() == ""
	})
	if code, body := page(t, n, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "founders") {
		t.Errorf("/readyz answered %d %s", code, body)
	}
	if code, _ := page(t, n, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answered %d", code)
	}
	if state := healthOf(t, n, ""); state != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health is %v", state)
	}
	_, err := n.kv.Get(testContext(t), &kvv1.GetRequest{Key: []byte("k")})
	if code, f := failureDetail(t, err); code != codes.Unavailable || f.GetReason() != kvv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("get while founding: %v, %v", code, f)
	}
	cancel()
	if err := <-opened; !errors.Is(err, context.Canceled) {
		t.Errorf("Open returned %v", err)
	}
}

// A graceful stop hands leadership over, answers what was taken, and tells the
// streams to go elsewhere.
func TestShutdownHandsOver(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
	var rest []*testNode
	for _, n := range nodes {
		if n != leader {
			rest = append(rest, n)
		}
	}
	stream := openStream(t, testContext(t), leader)
	if err := stream.Send(&kvv1.WriteRequest{Writes: []*kvv1.Write{streamPut(1, "k", "v")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	term := func() uint64 {
		g, err := rest[0].Node().Group(raftnode.FirstDataGroup)
		if err != nil {
			t.Fatal(err)
		}
		return g.Status().Term
	}
	before := term()
	start := time.Now()
	if err := leader.Shutdown(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("shutdown took %v", took)
	}
	_, err := answers(stream)
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	next, _ := leaderOf(t, rest, raftnode.FirstDataGroup)
	// A transfer takes one term; an election after a timeout may take more, and
	// more time than this has had.
	if after := term(); after != before+1 {
		t.Errorf("term went from %d to %d; leadership was not handed over", before, after)
	}
	if _, err := next.kv.Put(testContext(t), &kvv1.PutRequest{Key: []byte("k"), Value: []byte("w")}); err != nil {
		t.Error(err)
	}
}

func TestTransferLeader(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	leader, other := leaderOf(t, nodes, raftnode.FirstDataGroup)
	ctx := testContext(t)
	_, err := other.admin.TransferLeader(ctx, &adminv1.TransferLeaderRequest{Group: 2})
	if code, f := failureDetail(t, err); code != codes.FailedPrecondition || f.GetLeaderNode() != leader.config.Name {
		t.Errorf("transfer asked of a follower: %v, %v", code, f)
	}
	if _, err := leader.admin.TransferLeader(ctx, &adminv1.TransferLeaderRequest{Group: 2, Node: "n9"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("transfer to an unknown node: %v", err)
	}
	answer, err := leader.admin.TransferLeader(ctx, &adminv1.TransferLeaderRequest{Group: 2, Node: other.config.Name})
	if err != nil || answer.GetLeaderNode() != other.config.Name {
		t.Fatalf("transfer answered %v, %v", answer, err)
	}
}

// Restarted on its directory, a node goes on with its data; on another's
// directory, under another name or with a newer format it is refused.
func TestReopenAndRefusals(t *testing.T) {
	dir := t.TempDir()
	founders := []raftnode.Founder{{Node: "n1", Address: "127.0.0.1:1"}}
	open := func(change func(*Config)) (*testNode, error) {
		n := &testNode{config: testConfig("n1", filepath.Join(dir, "n1"), founders)}
		n.config.LogSegmentBytes = 8 << 20
		if change != nil {
			change(&n.config)
		}
		var err error
		n.Server, err = Open(testContext(t), n.config, Options{Listener: listenLoopback(t), HTTPListener: listenLoopback(t)})
		return n, err
	}
	n, err := open(nil)
	if err != nil {
		t.Fatal(err)
	}
	n.connect(t)
	eventually(t, "ready", func() bool { ready, _ := n.Ready(); return ready })
	if _, err := n.kv.Put(testContext(t), &kvv1.PutRequest{Key: []byte("k"), Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	if _, err := open(nil); !errors.Is(err, raftnode.ErrLocked) || !strings.Contains(err.Error(), n.config.DataDir) {
		t.Errorf("a second node in the directory: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err = open(nil); err != nil {
		t.Fatal(err)
	}
	n.connect(t)
	got, err := n.kv.Get(testContext(t), &kvv1.GetRequest{Key: []byte("k")})
	if err != nil || string(got.GetRecord().GetValue()) != "v" {
		t.Errorf("get after a restart answered %v, %v", got, err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}

	before := listing(t, dir)
	_, err = open(func(c *Config) {
		c.Name, c.Cluster = "other", []raftnode.Founder{{Node: "other", Address: "127.0.0.1:1"}}
	})
	if !errors.Is(err, raftnode.ErrRefused) || !strings.Contains(err.Error(), `belongs to node "n1"`) {
		t.Errorf("a wrong name: %v", err)
	}
	_, err = open(func(c *Config) { c.DataDir = filepath.Join(dir, "empty"); c.Cluster = nil })
	if !errors.Is(err, raftnode.ErrRefused) {
		t.Errorf("an empty directory without a list: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "empty")); err != nil {
		t.Fatal(err)
	}
	if after := listing(t, dir); after != before {
		t.Errorf("refused nodes changed the directory from\n%s\nto\n%s", before, after)
	}
	// What a later release might write.
	newer := durable.Format{Magic: [8]byte([]byte("SRNODE..")), Version: 2, Limit: 1 << 10}
	if err := durable.WriteRecord(vfs.Default, filepath.Join(n.config.DataDir, "NODE"), newer, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if _, err = open(nil); !errors.Is(err, raftnode.ErrVersion) || KindOf(err) != KindVersion {
		t.Errorf("a directory from the future: %v", err)
	}
}

// listing is every file below dir with its size.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b.WriteString(path + "\n")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPortTaken(t *testing.T) {
	taken := listenLoopback(t)
	defer taken.Close()
	dir := filepath.Join(t.TempDir(), "data")
	for _, key := range []string{"listen", "http_listen"} {
		c := testConfig("n1", dir, []raftnode.Founder{{Node: "n1", Address: "127.0.0.1:1"}})
		c.Listen, c.HTTPListen = "127.0.0.1:0", "127.0.0.1:0"
		if err := c.Set(key, taken.Addr().String(), "test"); err != nil {
			t.Fatal(err)
		}
		_, err := Open(testContext(t), c, Options{})
		var bad *ListenError
		if !errors.As(err, &bad) || bad.Key != key || bad.Address != taken.Addr().String() || !errors.Is(err, ErrListen) {
			t.Errorf("%s on a taken port: %v", key, err)
		}
		var network *net.OpError
		if !errors.As(err, &network) {
			t.Errorf("%s: the network's error is lost: %v", key, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was touched: %v", err)
	}
}

// A wiped node of an existing cluster is refused and told what to do.
func TestWipedNodeIsRefused(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	wiped := nodes[2]
	if err := wiped.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", wiped.Address())
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(testContext(t), wiped.config, Options{FS: vfs.NewMem(), Listener: l, HTTPListener: listenLoopback(t), Logger: testLog(t)})
	if !errors.Is(err, raftnode.ErrRefused) || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a wiped node: %v", err)
	}
}

// A failed log fails the node: Failed is closed, health says why, and Status
// and metrics go on.
func TestFailedNode(t *testing.T) {
	fs := &failingFS{FS: vfs.NewMem()}
	l := listenLoopback(t)
	n := &testNode{config: testConfig("n1", "data", []raftnode.Founder{{Node: "n1", Address: l.Addr().String()}})}
	var err error
	n.Server, err = Open(testContext(t), n.config, Options{FS: fs, Listener: l, HTTPListener: listenLoopback(t), Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	n.connect(t)
	eventually(t, "ready", func() bool { ready, _ := n.Ready(); return ready })
	fs.broken.Store(true)
	_, err = n.kv.Put(testContext(t), &kvv1.PutRequest{Key: []byte("k"), Value: []byte("v")})
	if code, f := failureDetail(t, err); f.GetReason() != kvv1.Reason_REASON_UNCERTAIN && f.GetReason() != kvv1.Reason_REASON_FAILED {
		t.Errorf("put on a broken disk: %v, %v", code, f)
	}
	select {
	case <-n.Failed():
	case <-testContext(t).Done():
		t.Fatal("the server did not fail")
	}
	if n.Err() == nil || !strings.Contains(n.Err().Error(), "broken disk") {
		t.Errorf("Err is %v", n.Err())
	}
	st, err := n.admin.Status(testContext(t), &adminv1.StatusRequest{})
	if err != nil || !strings.Contains(st.GetFailure(), "broken disk") || len(st.GetGroups()) != 2 {
		t.Errorf("status of a failed node: %v, %v", st, err)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := page(t, n, path); code != http.StatusServiceUnavailable || !strings.Contains(body, "broken disk") {
			t.Errorf("%s answered %d %s", path, code, body)
		}
	}
	if code, body := page(t, n, "/metrics"); code != http.StatusOK || !strings.Contains(body, "streamraft_node_failed 1") {
		t.Errorf("/metrics answered %d", code)
	}
	eventually(t, "health is NOT_SERVING", func() bool { return healthOf(t, n, "") == healthv1.HealthCheckResponse_NOT_SERVING })
}

package server

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
)

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A node started with the directory of another cluster is kept out by its peers,
// and both sides say why; its own cluster's data stays as it is.
func TestDirectoryOfAnotherCluster(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	foreign := nodes[2]
	address := foreign.Address()
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	other := vfs.NewMem()
	reopen := func(log *slog.Logger, founders []raftnode.Founder) *Server {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c := testConfig("n3", "data", founders)
		s, err := Open(testContext(t), c, Options{FS: other, Listener: l, HTTPListener: listenLoopback(t), Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// A cluster of its own is founded in the other directory first.
	alone := []raftnode.Founder{{Node: "n3", Address: address}}
	if err := reopen(testLog(t), alone).Close(); err != nil {
		t.Fatal(err)
	}
	buffer := &logBuffer{}
	s := reopen(slog.New(slog.NewTextHandler(buffer, nil)), foreign.config.Cluster)
	defer s.Close()
	eventually(t, "the refusal is logged", func() bool { return strings.Contains(buffer.String(), "belongs to cluster") })
	if a, b := s.Node().Status().ClusterID, nodes[0].Node().Status().ClusterID; a == b {
		t.Errorf("the node changed its cluster to %s", a)
	}
}

// Listening beyond loopback is refused without the switch, loud with it.
func TestInsecureListen(t *testing.T) {
	c := testConfig("n1", "data", []raftnode.Founder{{Node: "n1", Address: "127.0.0.1:1"}})
	c.Listen, c.HTTPListen = "0.0.0.0:0", "127.0.0.1:0"
	if _, err := Open(testContext(t), c, Options{FS: vfs.NewMem()}); KindOf(err) != KindConfig || !strings.Contains(err.Error(), "insecure_listen") {
		t.Errorf("got %v", err)
	}
	c.InsecureListen = true
	buffer := &logBuffer{}
	s, err := Open(testContext(t), c, Options{FS: vfs.NewMem(), Logger: slog.New(slog.NewTextHandler(buffer, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(buffer.String(), "level=WARN msg=\"INSECURE") {
		t.Errorf("no warning:\n%s", buffer)
	}
}

package inmemory_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/inmemory"
	"github.com/streamraft/streamraft/raftnode/transport"
	"github.com/streamraft/streamraft/snapshot"
)

// Phones is all of a replicated state: a map with a lock.
type Phones struct {
	mu      sync.RWMutex
	numbers map[string]string
}

// Apply applies commands of the form "name=number".
func (p *Phones) Apply(entries []raftnode.Entry) ([]raftnode.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make([]raftnode.Result, len(entries))
	for i, e := range entries {
		if name, number, ok := strings.Cut(string(e.Data), "="); ok {
			results[i].Data = []byte(p.numbers[name]) // the number before
			p.numbers[name] = number
		}
	}
	return results, nil
}

// Save writes the map. No Apply runs meanwhile, and reads change nothing.
func (p *Phones) Save(w io.Writer) error { return json.NewEncoder(w).Encode(p.numbers) }

// Restore reads it back.
func (p *Phones) Restore(r io.Reader) error { return json.NewDecoder(r).Decode(&p.numbers) }

// Number reads.
func (p *Phones) Number(name string) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.numbers[name]
}

func newPhones() *Phones { return &Phones{numbers: map[string]string{}} }

func newStateMachine(uint64) raftnode.StateMachine {
	s, err := inmemory.New(inmemory.Options[*Phones]{New: newPhones})
	if err != nil {
		log.Fatal(err)
	}
	return s
}

// Three nodes in one process replicate a map. Each has its own directory and
// address; usually it has a machine of its own as well.
func Example() {
	dir, err := os.MkdirTemp("", "phones")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var founders []raftnode.Founder
	var listeners []net.Listener
	for i := range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		listeners = append(listeners, l)
		founders = append(founders, raftnode.Founder{Node: fmt.Sprintf("n%d", i+1), Address: l.Addr().String()})
	}
	nodes := make([]*phonesNode, 3)
	var starting sync.WaitGroup
	for i, l := range listeners {
		starting.Go(func() { nodes[i] = start(filepath.Join(dir, founders[i].Node), founders, i, l) })
	}
	starting.Wait() // a cluster is founded when all of them are there

	propose(nodes, "ada=555-0100")
	before := propose(nodes, "ada=555-0199")
	fmt.Printf("written over %s\n", before)
	for i, n := range nodes {
		if _, err := n.group().Read(context.Background(), raftnode.ReadOptions{}); err != nil {
			log.Fatal(err)
		}
		phones := n.group().StateMachine().(*inmemory.StateMachine[*Phones]).Machine()
		fmt.Printf("n%d: ada has %s\n", i+1, phones.Number("ada"))
	}
	for _, n := range nodes {
		n.stop()
	}
	// Output:
	// written over 555-0100
	// n1: ada has 555-0199
	// n2: ada has 555-0199
	// n3: ada has 555-0199
}

// phonesNode is a node with the server that its peers reach it at.
type phonesNode struct {
	atomic.Pointer[raftnode.Node]
	server *grpc.Server
	source *snapshot.Source
}

// Provide serves images of the node, once it is open.
func (n *phonesNode) Provide(ctx context.Context, req *snapshotv1.Open, progress func(done, total uint64)) (snapshot.OpenedImage, snapshot.Choice, error) {
	if node := n.Load(); node != nil {
		return node.Provide(ctx, req, progress)
	}
	return nil, "", snapshot.ErrBusy
}

// start starts a node that also sends and receives images.
func start(dir string, founders []raftnode.Founder, i int, l net.Listener) *phonesNode {
	n := new(phonesNode)
	messages, err1 := transport.NewGRPC(transport.GRPCOptions{})
	receiver, err2 := snapshot.NewReceiver(snapshot.ReceiverOptions{})
	source, err3 := snapshot.NewSource(snapshot.SourceOptions{Provider: n})
	if err := errors.Join(err1, err2, err3); err != nil {
		log.Fatal(err)
	}
	n.source, n.server = source, grpc.NewServer(messages.ServerOptions()...)
	messages.Register(n.server)
	source.Register(n.server)
	go n.server.Serve(l)
	node, err := raftnode.Open(context.Background(), raftnode.Options{
		Node: founders[i].Node, Dir: dir, Founders: founders, Transport: messages, DiskReserveBytes: -1, LogSegmentBytes: 32 << 20,
		NewStateMachine: newStateMachine, Snapshots: &raftnode.SnapshotOptions{Receiver: receiver},
	})
	if err != nil {
		log.Fatal(err)
	}
	n.Store(node)
	return n
}

func (n *phonesNode) stop() {
	n.server.Stop()
	if err := errors.Join(n.source.Close(), n.Load().Close()); err != nil {
		log.Fatal(err)
	}
}

// group returns the group with the phones.
func (n *phonesNode) group() *raftnode.Group {
	group, err := n.Load().Group(raftnode.FirstDataGroup)
	if err != nil {
		log.Fatal(err)
	}
	return group
}

// propose proposes on the node that leads, once there is one.
func propose(nodes []*phonesNode, command string) []byte {
	for i := 0; ; i++ {
		result, err := nodes[i%len(nodes)].group().Propose(context.Background(), []byte(command))
		switch {
		case err == nil:
			return result.Data
		case !errors.Is(err, raftnode.ErrNotLeader):
			log.Fatal(err)
		}
		// A read waits until a leader is known.
		if _, err := nodes[i%len(nodes)].group().Read(context.Background(), raftnode.ReadOptions{}); err != nil {
			log.Fatal(err)
		}
	}
}

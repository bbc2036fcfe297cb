package raftnode_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/faultnet"
	"github.com/streamraft/streamraft/raftnode"
)

// virtual is a cluster of three in a synctest bubble: virtual time, memory file
// systems, a network with faults.
type virtual struct {
	t        *testing.T
	net      *faultnet.Network
	nodes    map[string]*raftnode.Node
	machines map[string]*chain
}

// inBubble runs test with a founded cluster and closes it.
func inBubble(t *testing.T, test func(*testing.T, *virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net, err := faultnet.NewNetwork(faultnet.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		v := &virtual{t: t, net: net, nodes: map[string]*raftnode.Node{}, machines: map[string]*chain{}}
		var founders []raftnode.Founder
		for _, name := range []string{"n1", "n2", "n3"} {
			founders = append(founders, raftnode.Founder{Node: name, Address: name + ":1"})
			v.machines[name] = &chain{}
		}
		type opened struct {
			name string
			node *raftnode.Node
			err  error
		}
		results := make(chan opened)
		for _, f := range founders {
			go func() {
				node, err := raftnode.Open(t.Context(), raftnode.Options{
					Node: f.Node, Dir: "/" + f.Node, FS: vfs.NewMem(), Founders: founders,
					Groups: []uint64{raftnode.FirstDataGroup}, Transport: net.Transport(f.Node, f.Address),
					NewStateMachine:  func(uint64) raftnode.StateMachine { return v.machines[f.Node] },
					DiskReserveBytes: -1, LogSegmentBytes: 256 << 10, MaxCommandBytes: 64 << 10, MaxEntryBytes: 64 << 10, MaxMessageBytes: 16 << 10,
				})
				results <- opened{f.Node, node, err}
			}()
		}
		for range founders {
			r := <-results
			if r.err != nil {
				t.Fatal(r.err)
			}
			v.nodes[r.name] = r.node
		}
		test(t, v)
		for name, n := range v.nodes {
			if err := n.Close(); err != nil {
				t.Errorf("close %s: %v", name, err)
			}
		}
	})
}

func (v *virtual) group(name string) *raftnode.Group {
	v.t.Helper()
	g, err := v.nodes[name].Group(raftnode.FirstDataGroup)
	if err != nil {
		v.t.Fatal(err)
	}
	return g
}

// leader waits for a leader that is none of except.
func (v *virtual) leader(except ...string) string {
	v.t.Helper()
	var leader string
	eventually(v.t, "a leader", func() bool {
		for name := range v.nodes {
			skip := false
			for _, e := range except {
				skip = skip || e == name
			}
			if !skip && v.group(name).Status().Role == raftnode.RoleLeader {
				leader = name
				return true
			}
		}
		return false
	})
	return leader
}

// submit proposes and returns where the outcome will be.
func (v *virtual) submit(name, command string) <-chan error {
	v.t.Helper()
	outcome := make(chan error, 1)
	if err := v.group(name).Submit([]byte(command), func(_ raftnode.Result, err error) { outcome <- err }); err != nil {
		v.t.Fatal(err)
	}
	return outcome
}

// TestOverwrittenProposalIsDropped: an isolated leader's entry loses its place.
// Once the leader is back it knows for certain that the command is not applied.
func TestOverwrittenProposalIsDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		old := v.leader()
		if err := <-v.submit(old, "first"); err != nil {
			t.Fatal(err)
		}
		v.net.Isolate(old)
		lost := v.submit(old, "lost")
		next := v.leader(old)
		if err := <-v.submit(next, "second"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-lost:
			t.Fatalf("the isolated leader knows the outcome already: %v", err)
		default:
		}
		v.net.HealAll()
		if err := <-lost; !errors.Is(err, raftnode.ErrDropped) {
			t.Errorf("got %v, want ErrDropped", err)
		}
		for name, m := range v.machines {
			eventually(t, name+" has both commands", func() bool { _, _, n := m.state(); return n == 2 })
		}
	})
}

// TestProposalSurvivesItsLeader: the entry reached the others, but no answer came
// back. The next leader commits it, and the old one learns the true result.
func TestProposalSurvivesItsLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		old := v.leader()
		// Acknowledged by some follower: raft replicates to it without probing.
		if err := <-v.submit(old, "first"); err != nil {
			t.Fatal(err)
		}
		for name := range v.nodes {
			if name != old {
				v.net.CutOneWay(name, old)
			}
		}
		outcome := v.submit(old, "kept")
		next := v.leader(old)
		if err := <-v.submit(next, "second"); err != nil {
			t.Fatal(err)
		}
		v.net.HealAll()
		if err := <-outcome; err != nil {
			t.Errorf("the entry was committed by the next leader, the proposer heard %v", err)
		}
		for name, m := range v.machines {
			eventually(t, name+" has all commands", func() bool { _, _, n := m.state(); return n == 3 })
		}
	})
}

// TestIsolatedLeaderServesNoRead: a read on a leader that was deposed without
// knowing must not return before it heard of the writes acknowledged meanwhile.
func TestIsolatedLeaderServesNoRead(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		old := v.leader()
		v.net.Isolate(old)
		type answer struct {
			index uint64
			err   error
		}
		answers := make(chan answer, 1)
		go func() {
			index, err := v.group(old).Read(t.Context(), raftnode.ReadOptions{})
			answers <- answer{index, err}
		}()
		next := v.leader(old)
		for i := range 10 {
			if err := <-v.submit(next, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case a := <-answers:
			t.Fatalf("a read was answered behind the cut: %+v", a)
		default:
		}
		v.net.HealAll()
		if a := <-answers; a.err != nil {
			t.Errorf("read after the cut healed: %v", a.err)
		}
	})
}

// TestReadsSurviveLostMessages: requests, heartbeats and answers of a read get
// lost; the round is started again under a new context.
func TestReadsSurviveLostMessages(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		leader := v.leader()
		if err := <-v.submit(leader, "first"); err != nil {
			t.Fatal(err)
		}
		if err := v.net.SetProbabilities(faultnet.Probabilities{Drop: 0.3, Duplicate: 0.2, Reorder: 0.2}); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			for name := range v.nodes {
				done := make(chan error, 1)
				go func() {
					_, err := v.group(name).Read(t.Context(), raftnode.ReadOptions{})
					done <- err
				}()
				select {
				case err := <-done:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(time.Minute):
					t.Fatalf("a read on %s never ended", name)
				}
			}
		}
	})
}

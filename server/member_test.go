package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// newcomer makes a node with an empty directory that asks one of nodes to join.
func newcomer(t *testing.T, name string, through *testNode) *testNode {
	t.Helper()
	l := listenLoopback(t)
	n := &testNode{options: Options{Logger: testLog(t), Version: "test", FS: vfs.NewMem(), Listener: l, HTTPListener: listenLoopback(t)}}
	n.config = testConfig(name, "data", nil)
	n.config.Advertise = l.Addr().String()
	n.config.Join = []string{through.Address()}
	return n
}

// open starts a newcomer, and stops it at the end of the test.
func (n *testNode) open(t *testing.T) error {
	t.Helper()
	var err error
	if n.Server, err = Open(testContext(t), n.config, n.options); err != nil {
		return err
	}
	n.connect(t)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close %s: %v", n.config.Name, err)
		}
	})
	return nil
}

// restart stops a node and starts it on the same directory and address.
func (n *testNode) restart(t *testing.T) {
	t.Helper()
	address, http := n.Address(), n.HTTPAddress()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n.config.Listen, n.config.HTTPListen = address, http
	n.options.Listener, n.options.HTTPListener = nil, nil
	eventually(t, "the ports are free", func() bool { return n.open(t) == nil })
}

// onMeta asks the leader of the meta group until it did.
func onMeta[T any](t *testing.T, nodes []*testNode, ask func(context.Context, adminv1.AdminServiceClient) (T, error)) (answer T, err error) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("last answer: %v", err)
		}
	}()
	eventually(t, "the meta group answers", func() bool {
		leader, _ := leaderOf(t, nodes, raftnode.MetaGroup)
		answer, err = ask(testContext(t), leader.admin)
		f := failureIn(err)
		return err == nil || f.GetReason() == kvv1.Reason_REASON_INVALID
	})
	return answer, err
}

func membersOf(t *testing.T, nodes []*testNode) map[string]*adminv1.Member {
	t.Helper()
	answer, err := onMeta(t, nodes, func(ctx context.Context, a adminv1.AdminServiceClient) (*adminv1.ListMembersResponse, error) {
		return a.ListMembers(ctx, &adminv1.ListMembersRequest{})
	})
	if err != nil {
		t.Fatal(err)
	}
	members := map[string]*adminv1.Member{}
	for _, m := range answer.GetMembers() {
		members[m.GetNode()] = m
	}
	return members
}

// becomes waits until a node has a state and no plan is under way.
func becomes(t *testing.T, nodes []*testNode, name string, state adminv1.MemberState) {
	t.Helper()
	var last *adminv1.Member
	defer func() {
		if t.Failed() {
			t.Logf("last seen: %v", last)
		}
	}()
	eventually(t, fmt.Sprintf("%s is %v", name, state), func() bool {
		last = membersOf(t, nodes)[name]
		return last.GetState() == state && (last.GetPlan() == nil || planDone(last.GetPlan()))
	})
}

func put(t *testing.T, nodes []*testNode, key string) {
	t.Helper()
	eventually(t, "a put", func() bool {
		leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
		_, err := leader.kv.Put(testContext(t), &kvv1.PutRequest{Key: []byte(key), Value: []byte("v")})
		return err == nil
	})
}

// holds checks that a node's own state has a key.
func holds(t *testing.T, n *testNode, key string) {
	t.Helper()
	eventually(t, n.config.Name+" has "+key, func() bool {
		for _, r := range n.replicas() {
			if r.group.ID() == raftnode.FirstDataGroup {
				found, err := r.store.Get([]byte(key))
				return err == nil && found.Found
			}
		}
		return false
	})
}

func remove(t *testing.T, nodes []*testNode, name string) error {
	t.Helper()
	_, err := onMeta(t, nodes, func(ctx context.Context, a adminv1.AdminServiceClient) (*adminv1.RemoveNodeResponse, error) {
		return a.RemoveNode(ctx, &adminv1.RemoveNodeRequest{Node: name})
	})
	return err
}

// TestNodeJoinsAndLeaves: the whole life of a fourth node, and the removal of a
// leader.
func TestNodeJoinsAndLeaves(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	put(t, nodes, "before")
	n4 := newcomer(t, "n4", nodes[1])
	if err := n4.open(t); err != nil {
		t.Fatal(err)
	}
	all := append(nodes, n4)
	becomes(t, all, "n4", adminv1.MemberState_MEMBER_STATE_VOTER)
	holds(t, n4, "before")
	eventually(t, "n4 is ready", func() bool { ready, _ := n4.Ready(); return ready })
	n4.restart(t)
	eventually(t, "n4 is ready again", func() bool { ready, _ := n4.Ready(); return ready })

	leader, _ := leaderOf(t, all, raftnode.MetaGroup)
	name := leader.config.Name
	if err := remove(t, all, name); err != nil {
		t.Fatal(err)
	}
	eventually(t, name+" knows that it was removed", func() bool { return leader.Node().Status().Removed })
	var left []*testNode
	for _, n := range all {
		if n != leader {
			left = append(left, n)
		}
	}
	becomes(t, left, name, adminv1.MemberState_MEMBER_STATE_REMOVED)
	put(t, left, "after")
	for _, n := range left {
		holds(t, n, "after")
	}
	if ready, reasons := leader.Ready(); ready || !strings.Contains(strings.Join(reasons, " "), "removed") {
		t.Errorf("a removed node is ready=%v, %v", ready, reasons)
	}
	eventually(t, "the directory forgets it", func() bool {
		for _, n := range left[0].Status(testContext(t)).GetNodes() {
			if n.GetNode() == name {
				return false
			}
		}
		return true
	})
	// Started again it is told again.
	leader.restart(t)
	eventually(t, name+" is told again", func() bool { return leader.Node().Status().Removed })
}

// TestLearnerIsPromotedByHand: --learner, then member promote.
func TestLearnerIsPromotedByHand(t *testing.T) {
	nodes := startCluster(t, 1, nil)
	n2 := newcomer(t, "n2", nodes[0])
	n2.config.Learner = true
	if err := n2.open(t); err != nil {
		t.Fatal(err)
	}
	all := append(nodes, n2)
	becomes(t, all, "n2", adminv1.MemberState_MEMBER_STATE_LEARNER)
	if _, err := onMeta(t, all, func(ctx context.Context, a adminv1.AdminServiceClient) (*adminv1.PromoteNodeResponse, error) {
		return a.PromoteNode(ctx, &adminv1.PromoteNodeRequest{Node: "n2"})
	}); err != nil {
		t.Fatal(err)
	}
	becomes(t, all, "n2", adminv1.MemberState_MEMBER_STATE_VOTER)
	_, err := onMeta(t, all, func(ctx context.Context, a adminv1.AdminServiceClient) (*adminv1.PromoteNodeResponse, error) {
		return a.PromoteNode(ctx, &adminv1.PromoteNodeRequest{Node: "n2"})
	})
	if err == nil || !strings.Contains(err.Error(), "a voter already") {
		t.Errorf("promote a voter: %v", err)
	}
	// Down to one again.
	if err := remove(t, all, "n2"); err != nil {
		t.Fatal(err)
	}
	becomes(t, nodes, "n2", adminv1.MemberState_MEMBER_STATE_REMOVED)
	put(t, nodes, "alone")
	if err := remove(t, nodes, "n1"); err == nil || !strings.Contains(err.Error(), "no voter left") {
		t.Errorf("remove the last voter: %v", err)
	}
}

// TestJoinRefused: a name that is taken, an address that is taken, a node to
// replace that is not there.
func TestJoinRefused(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	if err := nodes[2].Close(); err != nil {
		t.Fatal(err)
	}
	up := nodes[:2]
	for _, c := range []struct {
		what   string
		change func(*testNode)
		want   string
	}{
		{"a taken name", func(n *testNode) { n.config.Name = "n3" }, "--replace"},
		{"a running node's name", func(n *testNode) { n.config.Name = "n1"; n.config.Join = []string{nodes[0].Address()} }, "runs"},
		{"a taken address", func(n *testNode) { n.config.Advertise = nodes[0].Address() }, "is the address of node n1"},
		{"replacing nobody", func(n *testNode) { n.config.Replace, n.config.Join = n.config.Join, nil }, "no node n9 to replace"},
	} {
		n := newcomer(t, "n9", nodes[1])
		c.change(n)
		err := n.open(t)
		if !errors.Is(err, raftnode.ErrRefused) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want ErrRefused with %q", c.what, err, c.want)
		}
		if KindOf(err) != KindRefused {
			t.Errorf("%s: kind %v", c.what, KindOf(err))
		}
	}
	// Two of three are needed, so none that runs may go.
	if err := remove(t, up, "n1"); err == nil || !strings.Contains(err.Error(), "would answer") {
		t.Errorf("remove one of the last two: %v", err)
	}
	if err := remove(t, up, "n8"); err == nil || !strings.Contains(err.Error(), "no node n8") {
		t.Errorf("remove an unknown node: %v", err)
	}
}

// TestReplaceLostDirectory: a node's directory is lost while clients write; an
// empty one takes its place, and nothing acknowledged is missing. It was refused
// before with the flags to use.
func TestReplaceLostDirectory(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	lost := nodes[2]
	up := []*testNode{nodes[0], nodes[1]}
	var acknowledged atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, n := range nodes {
				key := fmt.Sprintf("k%06d", acknowledged.Load())
				if _, err := n.kv.Put(context.Background(), &kvv1.PutRequest{Key: []byte(key), Value: []byte("v")}); err == nil {
					acknowledged.Add(1)
					break
				}
			}
		}
	}()
	eventually(t, "some writes", func() bool { return acknowledged.Load() > 100 })
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	founders := lost.config
	founders.DataDir = "empty"
	_, err := Open(testContext(t), founders, Options{Logger: testLog(t), Version: "test", FS: vfs.NewMem(), Listener: listenLoopback(t), HTTPListener: listenLoopback(t)})
	if !errors.Is(err, raftnode.ErrRefused) || !strings.Contains(err.Error(), "--name n3 --data-dir empty --replace ") {
		t.Errorf("an empty directory under an old name: %v", err)
	}
	fresh := newcomer(t, "n3", nodes[0])
	fresh.config.Replace, fresh.config.Join = fresh.config.Join, nil
	if err := fresh.open(t); err != nil {
		t.Fatal(err)
	}
	all := append(up, fresh)
	becomes(t, all, "n3", adminv1.MemberState_MEMBER_STATE_VOTER)
	close(stop)
	<-stopped
	for i := range acknowledged.Load() {
		holds(t, fresh, fmt.Sprintf("k%06d", i))
	}
	for _, g := range fresh.Node().Groups() {
		// The replica looked at may apply the last change a little later.
		eventually(t, fmt.Sprintf("group %d has three voters and one removed replica", g.ID()), func() bool {
			m := g.Membership()
			return len(m.GetVoters()) == 3 && len(m.GetRemoved()) == 1
		})
	}
	// The old directory comes back, and is told that it is not needed.
	lost.options.Listener, lost.options.HTTPListener = listenLoopback(t), listenLoopback(t)
	if err := lost.open(t); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old directory is told", func() bool { return lost.Node().Status().Removed })
	put(t, all, "undisturbed")
}

// TestTwoJoinWhileLeadersChange: two nodes join at once; meanwhile the leader of
// the meta group changes again and again, and a joining node restarts.
func TestTwoJoinWhileLeadersChange(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	put(t, nodes, "before")
	n4, n5 := newcomer(t, "n4", nodes[0]), newcomer(t, "n5", nodes[1])
	if err := errors.Join(n4.open(t), n5.open(t)); err != nil {
		t.Fatal(err)
	}
	all := append(nodes, n4, n5)
	for range 3 {
		leader, _ := leaderOf(t, all, raftnode.MetaGroup)
		if g, err := leader.Node().Group(raftnode.MetaGroup); err == nil {
			_ = g.TransferLeader(testContext(t), "") // it may have moved by itself
		}
		n4.restart(t)
	}
	becomes(t, all, "n4", adminv1.MemberState_MEMBER_STATE_VOTER)
	becomes(t, all, "n5", adminv1.MemberState_MEMBER_STATE_VOTER)
	holds(t, n4, "before")
	holds(t, n5, "before")
	for _, name := range []string{"n1", "n2"} {
		if err := remove(t, all, name); err != nil {
			t.Fatal(err)
		}
	}
	left := all[2:]
	for _, name := range []string{"n1", "n2"} {
		becomes(t, left, name, adminv1.MemberState_MEMBER_STATE_REMOVED)
	}
	put(t, left, "after")
}

// TestPlanFormat: what was written is read; what is none is refused.
func TestPlanFormat(t *testing.T) {
	p := newPlan(adminv1.PlanKind_PLAN_KIND_ADD, "n4", "h:1", []byte("i"), nil, []uint64{1, 2}, adminv1.StepAction_STEP_ACTION_ADD_LEARNER)
	data, err := encodePlan(p)
	if err != nil {
		t.Fatal(err)
	}
	again, err := decodePlan(data)
	if err != nil || again.GetNode() != "n4" || len(again.GetSteps()) != 2 || planDone(again) {
		t.Errorf("%v, %v", again, err)
	}
	for _, bad := range [][]byte{nil, {2}, {1, 0xff}, make([]byte, maxPlanBytes+1)} {
		if _, err := decodePlan(bad); !errors.Is(err, errPlan) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

func FuzzDecodePlan(f *testing.F) {
	f.Add([]byte{1})
	f.Add([]byte{1, 8, 1, 18, 2, 'n', '4'})
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := decodePlan(data); err == nil {
			if _, err := encodePlan(p); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLeaderStopsAtEachStep: whoever carries a plan out is stopped each time a
// step was done; the next leader goes on, and the node becomes a voter.
func TestLeaderStopsAtEachStep(t *testing.T) {
	nodes := startCluster(t, 3, nil)
	put(t, nodes, "before")
	n4 := newcomer(t, "n4", nodes[0])
	if err := n4.open(t); err != nil {
		t.Fatal(err)
	}
	all := append(nodes, n4)
	stops := 0
	for seen := -1; ; {
		m := membersOf(t, all)["n4"]
		if m.GetState() == adminv1.MemberState_MEMBER_STATE_VOTER && m.GetPlan() == nil {
			break
		}
		done := 0
		for _, step := range m.GetPlan().GetSteps() {
			if step.GetDone() {
				done++
			}
		}
		if done == seen {
			continue
		}
		seen = done
		leader, _ := leaderOf(t, all, raftnode.MetaGroup)
		leader.restart(t)
		stops++
	}
	if stops == 0 {
		t.Error("the leader was never stopped")
	}
	holds(t, n4, "before")
	for _, g := range n4.Node().Groups() {
		// Its own replica may apply the last change a little later than the leader.
		eventually(t, fmt.Sprintf("group %d has four voters, says n4", g.ID()), func() bool { return len(g.Membership().GetVoters()) == 4 })
	}
}

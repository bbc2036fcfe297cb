package raftnode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode"
)

// join starts a node with an empty directory that joins through n1's address.
func (v *virtual) join(name string, join raftnode.Join) raftnode.NewReplica {
	v.t.Helper()
	v.machines[name] = &chain{}
	return v.start(name, vfs.NewMem(), join)
}

// start starts a joining node on a file system; the result is what a leader has
// to add.
func (v *virtual) start(name string, fs vfs.FS, join raftnode.Join) raftnode.NewReplica {
	v.t.Helper()
	node, err := raftnode.Open(v.t.Context(), raftnode.Options{
		Node: name, Dir: "/" + name, FS: fs, Join: &join, Address: name + ":1", Transport: v.net.Transport(name, name+":1"),
		NewStateMachine:  func(uint64) raftnode.StateMachine { return v.machines[name] },
		DiskReserveBytes: -1, LogSegmentBytes: 256 << 10, MaxCommandBytes: 64 << 10, MaxEntryBytes: 64 << 10, MaxMessageBytes: 16 << 10,
	})
	if err != nil {
		v.t.Fatal(err)
	}
	v.nodes[name] = node
	hello := node.Hello()
	return raftnode.NewReplica{RaftID: hello.GetReplicas()[0].GetRaftId(), Node: name, Address: name + ":1", Incarnation: hello.GetNodeIncarnation()}
}

// change proposes a change on the leader, whoever that is, until it is done.
func (v *virtual) change(change raftnode.Change) {
	v.t.Helper()
	var err error
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		ctx, cancel := context.WithTimeout(v.t.Context(), 10*time.Second)
		_, err = v.group(v.leader()).ChangeMembership(ctx, change)
		cancel()
		if err == nil {
			return
		}
		v.pass(10 * time.Millisecond)
	}
	v.t.Fatalf("the change %+v was not made: %v", change, err)
}

// pass lets virtual time pass.
func (v *virtual) pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// replica returns the raft id of a node's newest replica.
func (v *virtual) replica(name string) uint64 {
	v.t.Helper()
	return v.nodes[name].Hello().GetReplicas()[0].GetRaftId()
}

// write proposes through the leader until the command is in.
func (v *virtual) write(command string) {
	v.t.Helper()
	eventually(v.t, "a write", func() bool {
		ctx, cancel := context.WithTimeout(v.t.Context(), 10*time.Second)
		defer cancel()
		_, err := v.group(v.leader()).Propose(ctx, []byte(command))
		if errors.Is(err, raftnode.ErrUncertain) {
			v.t.Fatal(err)
		}
		return err == nil
	})
}

// close closes a node and forgets it.
func (v *virtual) close(name string) {
	v.t.Helper()
	if err := v.nodes[name].Close(); err != nil {
		v.t.Errorf("close %s: %v", name, err)
	}
	delete(v.nodes, name)
}

// converge waits until all open members have applied count commands and are
// equal.
func (v *virtual) converge(count int, except ...string) {
	v.t.Helper()
	sums := map[uint32]string{}
	for name := range v.nodes {
		if slices.Contains(except, name) {
			continue
		}
		eventually(v.t, fmt.Sprintf("%s has %d commands", name, count), func() bool {
			_, _, n := v.machines[name].state()
			return n >= count
		})
		_, sum, n := v.machines[name].state()
		if n != count {
			v.t.Errorf("%s applied %d commands, want %d", name, n, count)
		}
		sums[sum] = name
	}
	if len(sums) != 1 {
		v.t.Errorf("states differ: %v", sums)
	}
}

var throughN1 = raftnode.Join{Addresses: []string{"n1:1"}}

// TestJoinPromoteRemove: a fourth node joins under load, becomes a voter, and
// two others leave, one of them the leader.
func TestJoinPromoteRemove(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		for i := range 50 {
			v.write(fmt.Sprint("before ", i))
		}
		r := v.join("n4", throughN1)
		if j, ok := v.nodes["n4"].Joining(); !ok || !slices.Equal(j.Addresses, throughN1.Addresses) {
			t.Errorf("a node that was not accepted yet: joining %v %v", ok, j)
		}
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{r}})
		v.converge(50)
		if role := v.group("n4").Status().Role; role != raftnode.RoleLearner {
			t.Errorf("n4 is %s, want a learner", role)
		}
		v.change(raftnode.Change{Promote: []uint64{r.RaftID}})
		v.write("four voters")

		leader := v.leader()
		removed := v.replica(leader)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := v.group(leader).ChangeMembership(ctx, raftnode.Change{Remove: []uint64{removed}})
		var moved *raftnode.NotLeaderError
		if !errors.As(err, &moved) || moved.LeaderNode == "" || moved.LeaderNode == leader {
			t.Fatalf("removal of the leader: %v, want another leader's name", err)
		}
		v.change(raftnode.Change{Remove: []uint64{removed}})
		v.write("three voters")
		v.converge(52, leader)
		eventually(t, "the removed node knows it", func() bool { return v.nodes[leader].Status().Removed })

		// The three that are left tolerate one loss.
		silent := v.leader()
		v.net.Isolate(silent)
		if err := <-v.submit(v.leader(silent), "two of three"); err != nil {
			t.Error(err)
		}
		v.net.HealAll()
		v.converge(53, leader)
		members := v.group(v.leader(leader)).Status().Replicas
		if len(members) != 3 {
			t.Errorf("members after all: %+v", members)
		}
	})
}

// TestTwoAtOnce: two learners come, become voters, and two voters go, each pair
// in one joint change.
func TestTwoAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		v.write("first")
		a, b := v.join("n4", throughN1), v.join("n5", throughN1)
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{a, b}})
		v.converge(1)
		old := v.leader()
		var go2 []uint64
		for _, name := range []string{"n1", "n2", "n3"} {
			if name != old {
				go2 = append(go2, v.replica(name))
			}
		}
		v.change(raftnode.Change{Promote: []uint64{a.RaftID, b.RaftID}, Remove: go2})
		v.write("second")
		m := v.group(v.leader()).Membership()
		if len(m.GetVoters()) != 3 || len(m.GetVotersOutgoing()) != 0 || len(m.GetRemoved()) != 2 {
			t.Errorf("membership after the joint change: %v", m)
		}
		eventually(t, "both removed nodes know it", func() bool {
			count := 0
			for _, n := range v.nodes {
				if n.Status().Removed {
					count++
				}
			}
			return count == 2
		})
	})
}

// TestChangeRefused: each rule, with a reason that names it.
func TestChangeRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		v.write("first")
		leader := v.leader()
		var others []string
		for _, name := range []string{"n1", "n2", "n3"} {
			if name != leader {
				others = append(others, name)
			}
		}
		refused := func(change raftnode.Change, want string) {
			t.Helper()
			for _, err := range []error{
				v.group(leader).CheckChange(t.Context(), change),
				func() error { _, err := v.group(leader).ChangeMembership(t.Context(), change); return err }(),
			} {
				if !errors.Is(err, raftnode.ErrChangeRefused) || !strings.Contains(err.Error(), want) {
					t.Errorf("change %+v: %v, want ErrChangeRefused with %q", change, err, want)
				}
			}
		}
		refused(raftnode.Change{}, "changes nothing")
		refused(raftnode.Change{Remove: []uint64{7}}, "no member")
		refused(raftnode.Change{Promote: []uint64{7}}, "only a learner")
		refused(raftnode.Change{Promote: []uint64{v.replica(leader)}}, "only a learner")
		refused(raftnode.Change{Remove: []uint64{v.replica("n1"), v.replica("n1")}}, "named twice")
		refused(raftnode.Change{Remove: []uint64{v.replica("n1"), v.replica("n2"), v.replica("n3")}}, "no voter left")
		refused(raftnode.Change{AddLearners: []raftnode.NewReplica{{RaftID: v.replica("n1"), Node: "n9", Address: "n9:1"}}}, "a member already")
		refused(raftnode.Change{AddLearners: []raftnode.NewReplica{{RaftID: 9, Node: "n9", Address: others[0] + ":1"}}}, "is that of node")
		refused(raftnode.Change{AddLearners: []raftnode.NewReplica{{RaftID: 9, Node: "n9"}}}, "no address")

		if _, err := v.group(others[0]).ChangeMembership(t.Context(), raftnode.Change{Remove: []uint64{v.replica(leader)}}); !errors.Is(err, raftnode.ErrNotLeader) {
			t.Errorf("on a follower: %v, want ErrNotLeader", err)
		}

		// With one of three cut off, no other may go.
		v.net.Isolate(others[0])
		v.pass(2 * time.Second)
		refused(raftnode.Change{Remove: []uint64{v.replica(others[1])}}, "would answer")
		// But the silent one may, and its id never comes back.
		gone := v.replica(others[0])
		v.change(raftnode.Change{Remove: []uint64{gone}})
		refused(raftnode.Change{AddLearners: []raftnode.NewReplica{{RaftID: gone, Node: others[0], Address: others[0] + ":1"}}}, "never comes back")
		v.net.HealAll()
		eventually(t, "the removed node is told", func() bool { return v.nodes[others[0]].Status().Removed })
	})
}

// TestPromotionRefusedWhileBehind: a learner that does not answer, or has not
// what is committed, is not promoted.
func TestPromotionRefusedWhileBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		v.write("first")
		r := v.join("n4", throughN1)
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{r}})
		v.converge(1)
		v.net.Isolate("n4")
		leader := v.leader()
		for i := range 600 {
			if err := <-v.submit(leader, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := v.group(leader).ChangeMembership(t.Context(), raftnode.Change{Promote: []uint64{r.RaftID}})
		if !errors.Is(err, raftnode.ErrChangeRefused) || !strings.Contains(err.Error(), "behind") {
			t.Errorf("promotion of a learner behind: %v", err)
		}
		v.net.HealAll()
		v.converge(601)
		v.change(raftnode.Change{Promote: []uint64{r.RaftID}})
	})
}

// TestConfChangeRefusedBecomesError: raft turns a change that comes while another
// is not applied into an empty entry; its proposer must not take that for done.
func TestConfChangeRefusedBecomesError(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		v.write("first")
		a, b := v.join("n4", throughN1), v.join("n5", throughN1)
		leader := v.leader()
		v.net.Isolate(leader) // nothing commits, so the first change stays open
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		before := v.group(leader).Status().LastIndex
		first := make(chan error, 1)
		go func() {
			_, err := v.group(leader).ChangeMembership(ctx, raftnode.Change{AddLearners: []raftnode.NewReplica{a}})
			first <- err
		}()
		eventually(t, "the first change is in the log", func() bool { return v.group(leader).Status().LastIndex > before })
		_, err := v.group(leader).ChangeMembership(ctx, raftnode.Change{AddLearners: []raftnode.NewReplica{b}})
		if !errors.Is(err, raftnode.ErrChangePending) {
			t.Errorf("a second change: %v, want ErrChangePending", err)
		}
		if err := <-first; !errors.Is(err, raftnode.ErrUncertain) {
			t.Errorf("the change that nobody acknowledged: %v, want ErrUncertain", err)
		}
		v.net.HealAll()
		v.write("second")
		for _, r := range v.group(v.leader()).Status().Replicas {
			if r.Node == "n5" {
				t.Error("the refused change was made after all")
			}
		}
	})
}

// TestJoiningNodeRestarts: at each step of its way in, a joining node loses its
// process and comes again; so does the leader.
func TestJoiningNodeRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		fs := vfs.NewMem()
		again := func() raftnode.NewReplica {
			if v.nodes["n4"] != nil {
				v.close("n4")
			}
			v.machines["n4"] = &chain{}
			return v.start("n4", fs, throughN1)
		}
		v.write("first")
		r := again()
		if same := again(); same.RaftID != r.RaftID {
			t.Fatalf("the raft id changed from %x to %x", r.RaftID, same.RaftID)
		}
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{r}})
		again()
		if err := v.nodes["n4"].JoinAccepted(); err != nil {
			t.Fatal(err)
		}
		v.converge(1)
		again()
		if j, ok := v.nodes["n4"].Joining(); ok {
			t.Errorf("an accepted node still asks: %v", j)
		}
		v.write("second")
		v.converge(2)
		if err := v.group(v.leader()).TransferLeader(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		v.change(raftnode.Change{Promote: []uint64{r.RaftID}})
		again()
		v.write("third")
		v.converge(3)
	})
}

// TestReplaceWipedNode: a node comes back under its name with an empty directory
// while clients write; the old voter goes in the moment the new one comes.
func TestReplaceWipedNode(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		v.write("first")
		leader, wiped := v.leader(), "n2"
		if leader == wiped {
			wiped = "n3"
		}
		old := v.replica(wiped)
		v.close(wiped)
		v.machines[wiped] = &chain{}
		r := v.start(wiped, vfs.NewMem(), raftnode.Join{Addresses: []string{leader + ":1"}, Replace: true})
		stop, written := make(chan struct{}), make(chan int)
		go func() {
			n := 1
			for {
				select {
				case <-stop:
					written <- n
					return
				case <-time.After(5 * time.Millisecond):
					if err := <-v.submit(leader, fmt.Sprint("load ", n)); err != nil {
						t.Error(err)
					}
					n++
				}
			}
		}()
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{r}})
		m := v.group(leader).Membership()
		if !slices.Contains(m.GetVoters(), old) {
			t.Error("the old id is no voter any more before the new one is caught up")
		}
		eventually(t, "the swap is allowed", func() bool {
			_, err := v.group(leader).ChangeMembership(t.Context(), raftnode.Change{Promote: []uint64{r.RaftID}, Remove: []uint64{old}})
			return err == nil
		})
		close(stop)
		v.converge(<-written)
		m = v.group(leader).Membership()
		if len(m.GetVoters()) != 3 || slices.Contains(m.GetVoters(), old) || !slices.Contains(m.GetRemoved(), old) {
			t.Errorf("membership after the swap: %v", m)
		}
	})
}

// TestOldDirectoryIsTold: the directory that was replaced comes back: while the
// replacement is under way it is refused, afterwards it is told that it was
// removed, also when it starts anew. It never disturbs the others.
func TestOldDirectoryIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T, v *virtual) {
		v.write("first")
		// n4 stands for the old directory: unlike the founders' it can start again
		// on the same file system here.
		fs := vfs.NewMem()
		v.machines["n4"] = &chain{}
		old := v.start("n4", fs, throughN1)
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{old}})
		v.change(raftnode.Change{Promote: []uint64{old.RaftID}})
		v.close("n4")
		fresh := v.join("n4", raftnode.Join{Addresses: []string{"n1:1"}, Replace: true})
		v.change(raftnode.Change{AddLearners: []raftnode.NewReplica{fresh}})
		v.converge(1)
		v.close("n4")

		v.machines["n4"] = &chain{}
		v.start("n4", fs, throughN1) // on the address of the fresh one
		term := v.group(v.leader("n4")).Status().Term
		v.pass(10 * time.Second)
		if now := v.group(v.leader("n4")).Status().Term; now != term {
			t.Errorf("the old directory made the others elect: term %d, before %d", now, term)
		}
		if v.nodes["n4"].Status().Removed {
			t.Error("the old directory was told that it is removed while it is still a voter")
		}
		v.close("n4")
		v.change(raftnode.Change{Remove: []uint64{old.RaftID}})
		for range 2 {
			v.machines["n4"] = &chain{}
			v.start("n4", fs, throughN1)
			eventually(t, "the old directory is told", func() bool { return v.nodes["n4"].Status().Removed })
			v.close("n4")
		}
		v.write("second")
		v.converge(2)
	})
}

package raftnode_test

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamraft/streamraft/raftnode"
)

// joining is an image cluster whose last member joins later.
func joining(t *testing.T) (l *imageLoad, newcomer *member) {
	t.Helper()
	c, machine := imageCluster(t, &atomic.Bool{})
	newcomer = &member{name: "n4", address: freeAddress(t), dir: t.TempDir() + "/n4"}
	adjust := c.adjust
	c.adjust = func(o *raftnode.Options) {
		adjust(o)
		if o.Node == newcomer.name {
			o.Founders, o.Address = nil, newcomer.address
			o.Join = &raftnode.Join{Addresses: []string{c.members[0].address}}
		}
	}
	c.openAll()
	return &imageLoad{t: t, c: c, machine: machine}, newcomer
}

// add opens the newcomer and makes it a learner of the data group and, where it
// asks for it, a voter.
func (l *imageLoad) add(m *member, promote bool) {
	l.t.Helper()
	l.c.members = append(l.c.members, m)
	if err := l.c.open(l.t.Context(), m); err != nil {
		l.t.Fatal(err)
	}
	hello := m.node.Hello()
	for _, replica := range hello.GetReplicas() {
		l.change(replica.GetGroup(), raftnode.Change{AddLearners: []raftnode.NewReplica{{
			RaftID: replica.GetRaftId(), Node: m.name, Address: m.address, Incarnation: hello.GetNodeIncarnation(),
		}}})
	}
	for _, replica := range hello.GetReplicas() {
		if promote {
			l.change(replica.GetGroup(), raftnode.Change{Promote: []uint64{replica.GetRaftId()}})
		}
	}
}

func (l *imageLoad) change(group uint64, change raftnode.Change) {
	l.t.Helper()
	eventually(l.t, "a change of the membership", func() bool {
		ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Second)
		defer cancel()
		_, err := l.c.leader(group).group(l.t, group).ChangeMembership(ctx, change)
		return err == nil
	})
}

// knows tells whether a member has another one in its membership, and as what.
func (l *imageLoad) knows(m *member, name string) (known, learner bool) {
	for _, r := range l.group(m).Status().Replicas {
		if r.Node == name {
			return true, r.Learner
		}
	}
	return false, false
}

// TestCase06PromotedLearnerStaysVoter: a learner is promoted; then the logs are
// cut, a replica gets an image, and all nodes start again. It still is a voter,
// everywhere.
//
// It guards that the membership is in the state, and travels with it.
func TestCase06PromotedLearnerStaysVoter(t *testing.T) {
	l, newcomer := joining(t)
	l.put(20)
	l.add(newcomer, true)
	l.put(5)
	l.level()
	away := l.c.other(l.c.leader(raftnode.FirstDataGroup), newcomer)
	has := l.group(away).Status().LastIndex
	l.c.stop(away)
	l.cutPast(away, has)
	l.c.openAll()
	l.level()
	if n := away.node.Metrics().Groups[1].Installs; n == 0 {
		t.Error("no image was installed")
	}
	for _, m := range slices.Clone(l.c.members) {
		l.c.stop(m)
	}
	l.c.openAll()
	l.put(5)
	l.level()
	for _, m := range l.c.members {
		eventually(t, m.name+" knows the voter", func() bool {
			known, learner := l.knows(m, newcomer.name)
			return known && !learner
		})
	}
}

// TestCase07MemberAddedAfterImage: a member is added while a replica is away, and
// the replica comes back by an image. The member is known everywhere, also to the
// replica, and gets the log from whoever leads.
//
// It guards that the membership of an image, and the changes in the log behind it,
// are both applied; and that the image for the new member is not older than the
// change that added it (min_index).
func TestCase07MemberAddedAfterImage(t *testing.T) {
	l, newcomer := joining(t)
	l.put(20)
	away := l.c.other(l.c.leader(raftnode.FirstDataGroup), l.c.members[0])
	l.level()
	has := l.group(away).Status().LastIndex
	l.c.stop(away)
	l.cutPast(away, has)
	// The image that the sources keep is older than the change.
	for _, m := range l.c.members {
		if m != away {
			image, err := l.group(m).CreateImage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer image.Release()
		}
	}
	l.add(newcomer, false)
	l.c.openAll()
	l.put(5)
	l.level()
	if n := away.node.Metrics().Groups[1].Installs; n == 0 {
		t.Error("no image was installed")
	}
	for _, m := range l.c.members {
		// The status follows within a heartbeat.
		eventually(t, m.name+" knows the learner", func() bool {
			known, learner := l.knows(m, newcomer.name)
			return known && learner
		})
	}
	// Under the one that was away as leader it goes on.
	eventually(t, "the one that was away leads", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return l.group(l.c.leader(raftnode.FirstDataGroup)).TransferLeader(ctx, away.name) == nil
	})
	l.put(10)
	l.level()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // to be opened by the node
	return l.Addr().String()
}

package server

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// randomValue does not compress, so that bytes of files are bytes on the wire.
func randomValue(r *rand.Rand, size int) []byte {
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(r.Uint32())
	}
	return value
}

// fillBehindLog writes megabytes into the first data group until no log of it
// begins at the beginning, so that a newcomer needs an image.
func fillBehindLog(t *testing.T, nodes []*testNode, megabytes int) {
	t.Helper()
	leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
	r := rand.New(rand.NewPCG(1, 2))
	put := func(i int) {
		if _, err := leader.kv.Put(testContext(t), &kvv1.PutRequest{Key: fmt.Appendf(nil, "k%d", i), Value: randomValue(r, 100_000)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 * megabytes {
		put(i)
	}
	eventually(t, "the log begins later", func() bool {
		put(0)
		for _, n := range nodes {
			g, err := n.Node().Group(raftnode.FirstDataGroup)
			if err != nil {
				t.Fatal(err)
			}
			if g.Status().FirstIndex < 20 {
				return false
			}
		}
		return true
	})
}

// writeMeanwhile has a client write until the function it returns is called.
func writeMeanwhile(t *testing.T, n *testNode) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := n.kv.Put(ctx, &kvv1.PutRequest{Key: fmt.Appendf(nil, "load%d", i%100), Value: []byte("v")}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	return func() { cancel(); writing.Wait() }
}

// TestSnapshotRate: an image takes as many bytes a second as it may and no more,
// under load and over real sockets, and both ends tell that it is held back.
func TestSnapshotRate(t *testing.T) {
	const rate = 1 << 20
	nodes := startCluster(t, 3, func(c *Config) { c.LogBudget, c.SnapshotRate = 1<<20, rate })
	fillBehindLog(t, nodes, 4)
	leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
	defer writeMeanwhile(t, leader)()

	n4 := newcomer(t, "n4", nodes[1])
	n4.config.LogBudget = 1 << 20
	// Before a byte can go, so that the time below is never too short.
	begin := time.Now()
	if err := n4.open(t); err != nil {
		t.Fatal(err)
	}
	figures := func() (m snapshot.Metrics) {
		for _, n := range nodes {
			one := n.imageCounters.Metrics()
			m.SentBytes += one.SentBytes
			if m.CreditStall == nil || one.CreditStall["pacing"] > m.CreditStall["pacing"] {
				m.CreditStall = one.CreditStall
			}
		}
		return m
	}
	var toldBySource, toldByReceiver, gauge, pinned bool
	var sent uint64
	// The deadline of this is a few times what the rate needs.
	eventually(t, "n4 has its image", func() bool {
		sent = figures().SentBytes
		// Each of three sources may be one chunk ahead.
		if most := rate*time.Since(begin).Seconds() + 3<<20; float64(sent) > most {
			t.Fatalf("%d bytes are sent, %.0f may be", sent, most)
		}
		for _, tr := range n4.Node().Transfers() {
			toldByReceiver = toldByReceiver || tr.Paced
		}
		for _, n := range nodes {
			for _, i := range n.source.Sends() {
				toldBySource = toldBySource || i.Paced
			}
			gauge = gauge || n.pacer.Rate() == rate
			for _, g := range n.Node().Metrics().Groups {
				pinned = pinned || g.LogPinBytes > 0
			}
		}
		for _, tr := range n4.Node().Transfers() {
			if tr.Group == raftnode.FirstDataGroup && tr.Outcome != 0 && !tr.Ended.IsZero() {
				return tr.Index > 0
			}
		}
		return false
	})
	if sent < 3_900_000 {
		t.Fatalf("the image has only %d bytes", sent)
	}
	if !toldBySource || !toldByReceiver || !gauge || !pinned {
		t.Errorf("paced: the source tells %v, the receiver %v, the gauge %v; log is pinned: %v", toldBySource, toldByReceiver, gauge, pinned)
	}
	if waited := figures().CreditStall["pacing"]; waited < time.Second {
		t.Errorf("it waited only %v for the pacing", waited)
	}
	checkTransferMetrics(t, nodes, n4)
	becomes(t, append(nodes, n4), "n4", adminv1.MemberState_MEMBER_STATE_VOTER)
}

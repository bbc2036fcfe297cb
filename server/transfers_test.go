package server

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/streamraft/streamraft/kv"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
)

// TestTransfersAreTold: a node that joins behind the log gets an image; both ends
// tell of it. What is not compressed at rest is compressed on the wire.
func TestTransfersAreTold(t *testing.T) {
	for _, compression := range []kv.Compression{kv.CompressionBalanced, kv.CompressionNone} {
		t.Run(string(compression), func(t *testing.T) { transfersAreTold(t, compression) })
	}
}

func transfersAreTold(t *testing.T, compression kv.Compression) {
	nodes := startCluster(t, 3, func(c *Config) { c.LogBudget, c.Compression = 1<<20, compression })
	leader, _ := leaderOf(t, nodes, raftnode.FirstDataGroup)
	value := bytes.Repeat([]byte("v"), 100_000)
	eventually(t, "the log begins later", func() bool {
		for i := range 10 {
			if _, err := leader.kv.Put(testContext(t), &kvv1.PutRequest{Key: fmt.Appendf(nil, "k%d", i), Value: value}); err != nil {
				t.Fatal(err)
			}
		}
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
	n4 := newcomer(t, "n4", nodes[1])
	n4.config.LogBudget, n4.config.Compression = 1<<20, compression
	if err := n4.open(t); err != nil {
		t.Fatal(err)
	}
	all := append(nodes, n4)
	becomes(t, all, "n4", adminv1.MemberState_MEMBER_STATE_VOTER)
	transfers := func(n *testNode, role adminv1.TransferRole) (ended []*adminv1.Transfer) {
		answer, err := n.admin.ListTransfers(testContext(t), &adminv1.ListTransfersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, tr := range answer.GetTransfers() {
			if tr.GetRole() == role && tr.GetGroup() == raftnode.FirstDataGroup && tr.GetEndedUnixMs() > 0 {
				ended = append(ended, tr)
			}
		}
		return ended
	}
	var got *adminv1.Transfer
	eventually(t, "the receiver tells of its transfer", func() bool {
		ended := transfers(n4, adminv1.TransferRole_TRANSFER_ROLE_RECEIVER)
		if len(ended) > 0 {
			got = ended[0]
		}
		return got != nil
	})
	if got.GetOutcome() != snapshotv1.Outcome_OUTCOME_INSTALLED || got.GetBytesDone() == 0 || got.GetBytesDone() != got.GetBytesTotal() ||
		got.GetMovedBytes() < got.GetBytesTotal() || got.GetIndex() == 0 || got.GetPeer() == "" || got.GetProblem() != "" ||
		got.GetAppliedIndex() < got.GetTargetIndex() || got.GetTargetIndex() == 0 || got.GetPhase() != snapshotv1.Phase_PHASE_DONE {
		t.Errorf("the receiver tells %v", got)
	}
	if packed := got.GetWireBytes() < got.GetBytesTotal()/4; packed != (compression == kv.CompressionNone) {
		t.Errorf("compression %s at rest: %d bytes on the wire for an image of %d", compression, got.GetWireBytes(), got.GetBytesTotal())
	}
	stages := map[string]bool{}
	for _, s := range got.GetStages() {
		stages[s.GetStage()] = s.GetNanoseconds() > 0
	}
	for _, stage := range []string{"send", "verify", "install", "catchup"} {
		if !stages[stage] {
			t.Errorf("no time in %s: %v", stage, got.GetStages())
		}
	}
	var sent *adminv1.Transfer
	for _, n := range nodes {
		if n.config.Name == got.GetPeer() {
			for _, tr := range transfers(n, adminv1.TransferRole_TRANSFER_ROLE_SOURCE) {
				if string(tr.GetTransfer()) == string(got.GetTransfer()) {
					sent = tr
				}
			}
		}
	}
	if sent == nil || sent.GetPeer() != "n4" || sent.GetOutcome() != snapshotv1.Outcome_OUTCOME_SENT || sent.GetBytesDone() != sent.GetBytesTotal() ||
		!bytes.Equal(sent.GetImage(), got.GetImage()) || sent.GetWireBytes() != got.GetWireBytes() {
		t.Errorf("the source tells %v, the receiver %v", sent, got)
	}
}

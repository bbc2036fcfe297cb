package clienttest

import (
	"context"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// The transfers of the scripted cluster: n1 sends half of an image to n3, which
// holds back, and n3 tells the same; n2 got a delta a minute ago.

// ListTransfers implements AdminService.
func (n *node) ListTransfers(context.Context, *adminv1.ListTransfersRequest) (*adminv1.ListTransfersResponse, error) {
	answer := &adminv1.ListTransfersResponse{Node: Name(n.number)}
	now := n.cluster.made
	full := &adminv1.Transfer{
		Transfer: []byte{0xf0}, Group: 2, Attempt: 2, Phase: snapshotv1.Phase_PHASE_SEND, Outcome: snapshotv1.Outcome_OUTCOME_RUNNING,
		Image: []byte{0xab}, Kind: snapshotv1.Kind_KIND_FILES, Index: 1234, Term: 2,
		BytesDone: 64 << 20, BytesTotal: 128 << 20, RawBytes: 256 << 20, WireBytes: 64 << 20, MovedBytes: 64 << 20, BytesPerSecond: 32 << 20,
		StartedUnixMs: now.Add(-3 * time.Second).UnixMilli(),
		Stages:        []*adminv1.TransferStage{{Stage: "queue", Nanoseconds: 1e9}, {Stage: "send", Nanoseconds: 2e9}},
	}
	switch n.number {
	case 0:
		full.Role, full.Peer, full.Paced = adminv1.TransferRole_TRANSFER_ROLE_SOURCE, Name(2), true
		answer.Transfers = append(answer.Transfers, full)
	case 1:
		answer.Transfers = append(answer.Transfers, &adminv1.Transfer{
			Transfer: []byte{0xf1}, Group: 1, Role: adminv1.TransferRole_TRANSFER_ROLE_RECEIVER, Peer: Name(0), Attempt: 1,
			Phase: snapshotv1.Phase_PHASE_DONE, Outcome: snapshotv1.Outcome_OUTCOME_INSTALLED,
			Image: []byte{0xac}, Kind: snapshotv1.Kind_KIND_RECORDS, FromIndex: 1000, Index: 1200, Term: 2,
			BytesDone: 1 << 20, BytesTotal: 1 << 20, RawBytes: 2 << 20, WireBytes: 1 << 20, MovedBytes: 1 << 20, BytesPerSecond: 10_000_000,
			AppliedIndex: 1210, TargetIndex: 1205,
			StartedUnixMs: now.Add(-61 * time.Second).UnixMilli(), EndedUnixMs: now.Add(-60 * time.Second).UnixMilli(),
			Stages: []*adminv1.TransferStage{{Stage: "send", Nanoseconds: 7e8}, {Stage: "catchup", Nanoseconds: 3e8}},
		})
	case 2:
		full.Role, full.Peer = adminv1.TransferRole_TRANSFER_ROLE_RECEIVER, Name(0)
		answer.Transfers = append(answer.Transfers, full)
	}
	return answer, nil
}

package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/snapshot"
)

// ListTransfers implements AdminService. It waits for nothing.
func (a *adminService) ListTransfers(context.Context, *adminv1.ListTransfersRequest) (*adminv1.ListTransfersResponse, error) {
	return &adminv1.ListTransfersResponse{Node: a.s.config.Name, Transfers: a.s.transfers(time.Now())}, nil
}

// transfers lists what the node receives and sends, then what ended, the latest
// first.
func (s *Server) transfers(now time.Time) []*adminv1.Transfer {
	var running, ended []*adminv1.Transfer
	add := func(t *adminv1.Transfer) {
		if t.GetEndedUnixMs() == 0 {
			running = append(running, t)
		} else {
			ended = append(ended, t)
		}
	}
	if node := s.node.Load(); node != nil {
		for _, t := range node.Transfers() {
			add(receivedTransfer(&t, now))
		}
	}
	over := s.source.EndedSends()
	for _, i := range s.source.Sends() {
		// What is just ending is in both for a moment.
		if !slices.ContainsFunc(over, func(o snapshot.SendInfo) bool {
			return o.Attempt == i.Attempt && string(o.Transfer) == string(i.Transfer)
		}) {
			add(sentTransfer(&i, now))
		}
	}
	for _, i := range over {
		add(sentTransfer(&i, now))
	}
	slices.SortStableFunc(ended, func(a, b *adminv1.Transfer) int { return int(b.GetEndedUnixMs() - a.GetEndedUnixMs()) })
	return append(running, ended...)
}

// receivedTransfer is a transfer at its receiver.
func receivedTransfer(t *raftnode.TransferStatus, now time.Time) *adminv1.Transfer {
	answer := &adminv1.Transfer{
		Transfer: t.Transfer, Group: t.Group, Role: adminv1.TransferRole_TRANSFER_ROLE_RECEIVER, Peer: t.Source,
		Attempt: t.Attempt, Phase: t.Phase, Outcome: t.Outcome, Position: uint32(max(t.Position, 0)),
		Image: t.Image, Kind: t.Kind, FromIndex: t.FromIndex, Index: t.Index, Term: t.Term,
		BytesDone: t.BytesDone, BytesTotal: t.BytesTotal, RawBytes: t.RawBytes, WireBytes: t.WireBytes, MovedBytes: t.MovedBytes,
		BytesPerSecond: t.BytesPerSecond, Paced: t.Paced, Restarts: uint32(max(t.Restarts, 0)), LastRestart: t.LastRestart,
		StartedUnixMs: unixMilli(t.Started), EndedUnixMs: unixMilli(t.Ended), Stages: transferStages(t.Stages),
		AppliedIndex: t.Applied, TargetIndex: t.Target, Problem: t.Waiting,
	}
	if t.Err != nil {
		answer.Problem = t.Err.Error()
		answer.RetryAfterMs = uint64(max(t.Retry.Sub(now), 0).Milliseconds())
	}
	return answer
}

// noCreditNotice is how long a receiver may take no more before a person hears
// of it: below that it is how credit works.
const noCreditNotice = 500 * time.Millisecond

// sentTransfer is an attempt at its source.
func sentTransfer(i *snapshot.SendInfo, now time.Time) *adminv1.Transfer {
	answer := &adminv1.Transfer{
		Transfer: i.Transfer, Group: i.Group, Role: adminv1.TransferRole_TRANSFER_ROLE_SOURCE, Peer: i.Node,
		Attempt: i.Attempt, Phase: i.Phase, Outcome: snapshotv1.Outcome_OUTCOME_RUNNING, Position: uint32(max(i.Position, 0)),
		Image: i.Image, Kind: i.Kind, FromIndex: i.FromIndex, Index: i.Index, Term: i.Term,
		BytesDone: i.DoneBytes, BytesTotal: i.TotalBytes, RawBytes: i.RawBytes, WireBytes: i.WireBytes, MovedBytes: i.SentBytes,
		BytesPerSecond: i.BytesPerSecond, Paced: i.Paced,
		StartedUnixMs: unixMilli(i.Started), EndedUnixMs: unixMilli(i.Ended), Stages: transferStages(i.Stages),
	}
	if since := now.Sub(i.NoCredit); !i.NoCredit.IsZero() && since >= noCreditNotice {
		answer.Problem = fmt.Sprintf("%s has taken no more for %v; its disk or its checks are slower than this source", i.Node, since.Round(100*time.Millisecond))
	}
	switch {
	case i.Ended.IsZero():
	case i.Err != nil:
		answer.Outcome, answer.Problem = snapshotv1.Outcome_OUTCOME_FAILED, i.Err.Error()
	default:
		answer.Outcome = snapshotv1.Outcome_OUTCOME_SENT
	}
	return answer
}

func transferStages(times map[snapshot.Stage]time.Duration) []*adminv1.TransferStage {
	var stages []*adminv1.TransferStage
	for _, stage := range snapshot.Stages() {
		if d, ok := times[stage]; ok {
			stages = append(stages, &adminv1.TransferStage{Stage: string(stage), Nanoseconds: uint64(max(d, 0))})
		}
	}
	return stages
}

// unixMilli is a time in an answer; 0 for none.
func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// TestTransferLog: a transfer that moves is told at each look, one that stands
// still only now and then, an end once.
func TestTransferLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	running := &adminv1.Transfer{
		Transfer: []byte{1}, Group: 2, Role: adminv1.TransferRole_TRANSFER_ROLE_RECEIVER, Peer: "n1", Phase: snapshotv1.Phase_PHASE_SEND,
		BytesDone: 25, BytesTotal: 100, BytesPerSecond: 25, StartedUnixMs: 1000,
	}
	at := time.Unix(1000, 0)
	told := make(transferLog)
	look := func(wants ...string) {
		t.Helper()
		out.Reset()
		told = told.tell(log, []*adminv1.Transfer{running}, at)
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Fatalf("%q is not in %q", want, out.String())
			}
		}
		if len(wants) == 0 && out.Len() > 0 {
			t.Fatalf("told %q", out.String())
		}
		at = at.Add(transferLogEvery)
	}
	look("receiving an image", "group=2", "source=n1", "phase=send", "percent=25", "left=3s")
	look()
	running.BytesDone = 50
	look("percent=50", "left=2s")
	running.Problem = "the disk is slow"
	look(`waiting="the disk is slow"`)
	look()
	at = at.Add(transferLogIdle)
	look("the disk is slow")
	running.Problem, running.Phase, running.AppliedIndex, running.TargetIndex = "", snapshotv1.Phase_PHASE_CATCH_UP, 7, 9
	look("applied=7", "target=9")
	running.EndedUnixMs, running.Outcome, running.Phase = 5000, snapshotv1.Outcome_OUTCOME_INSTALLED, snapshotv1.Phase_PHASE_DONE
	look("is installed", "took=4s")
	look()
	for phase, name := range snapshotv1.Phase_name {
		if p := snapshotv1.Phase(phase); p != snapshotv1.Phase_PHASE_DONE && p != 0 && phaseText(p) == "unknown" {
			t.Errorf("%s has no text", name)
		}
	}
}

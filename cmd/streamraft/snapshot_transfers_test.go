package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client/clienttest"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// TestWatchTransfers: JSON has a line for each look; for people only what changed
// is told, and the interrupt is the way to end.
func TestWatchTransfers(t *testing.T) {
	cluster, err := clienttest.New(3)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	for _, test := range []struct {
		flags []string
		check func(lines int) bool
	}{{[]string{"--json"}, func(n int) bool { return n >= 3 }}, {nil, func(n int) bool { return n == 1 }}} {
		// Cancelled as an interrupt does it; a deadline would travel to the nodes and
		// end their answers a moment before it ends here.
		ctx, cancel := context.WithCancel(t.Context())
		stop := time.AfterFunc(500*time.Millisecond, cancel)
		var out, problems bytes.Buffer
		code := run(ctx, append([]string{"snapshot", "transfers", "--watch", "--interval", "10ms", "--endpoints", cluster.Addresses()[0]}, test.flags...), strings.NewReader(""), &out, &problems)
		stop.Stop()
		cancel()
		if code != exitOK || !test.check(strings.Count(out.String(), "\n")) {
			t.Errorf("%v: exit code %d\n%.1000s%s", test.flags, code, out.String(), problems.String())
		}
	}
}

// TestTransferLines: the plain watch tells an end once, and a problem while it
// lasts.
func TestTransferLines(t *testing.T) {
	lines := newTransferLines()
	transfer := &adminv1.Transfer{
		Transfer: []byte{1}, Group: 2, Role: adminv1.TransferRole_TRANSFER_ROLE_RECEIVER, Attempt: 1,
		Phase: snapshotv1.Phase_PHASE_QUEUED, Outcome: snapshotv1.Outcome_OUTCOME_RUNNING, Position: 3, StartedUnixMs: 1000,
	}
	look := func(want string) {
		t.Helper()
		report := transfersReport{at: time.Unix(100, 0)}
		report.merge(map[string]transferReport{"": reportTransfer("n3", transfer)}, nil)
		var out bytes.Buffer
		if err := lines.print(&out, report); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
	}
	look("group 2, ? -> n3: queued (3)\n")
	look("")
	transfer.Position, transfer.Phase, transfer.Peer, transfer.BytesTotal = 0, snapshotv1.Phase_PHASE_SEND, "n1", 1<<20
	transfer.Problem, transfer.RetryAfterMs, transfer.Restarts, transfer.LastRestart = "connection refused", 1500, 1, "source_lost"
	look("group 2, n1 -> n3: send 0 %, 0 B / 1 MiB, waiting: connection refused; again in 1.5s, started over 1 times, last for source lost\n")
	transfer.Problem, transfer.RetryAfterMs, transfer.Restarts = "", 0, 0
	transfer.Phase, transfer.Index, transfer.AppliedIndex, transfer.TargetIndex = snapshotv1.Phase_PHASE_CATCH_UP, 100, 150, 200
	look("group 2, n1 -> n3: catch up 50 %, applied 150 of 200\n")
	transfer.EndedUnixMs, transfer.Outcome, transfer.Phase = 3000, snapshotv1.Outcome_OUTCOME_FAILED, snapshotv1.Phase_PHASE_DONE
	transfer.Problem = "given up"
	look("group 2, n1 -> n3: failed, -, 0 B in 2.0s (): given up\n")
	look("")
}

package proctest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/streamraft/streamraft/bench"
)

// TestBenchRecovery runs each case once, with little data, and looks whether the
// figures can be true. The rate makes a transfer long enough to strike in.
func TestBenchRecovery(t *testing.T) {
	cases := []string{"--case", "lost,behind,cut"}
	if os.Getenv("STREAMRAFT_LONG") != "" {
		cases = []string{"--case", "lost,behind,cut,leader,source"}
	}
	command := exec.CommandContext(t.Context(), os.Getenv(binaryVariable), append([]string{
		"bench", "recovery", "--json", "--dir", t.TempDir(), "--size", "32MiB", "--settle", "200ms", "--load", "50",
		"--node-arg=--snapshot-rate=32MiB",
	}, cases...)...)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, os.Stderr
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	var run bench.Report
	if err := json.Unmarshal(out.Bytes(), &run); err != nil {
		t.Fatalf("%v in:\n%s", err, out.Bytes())
	}
	if len(run.Limits) != 1 || run.Limits[0].DiskWrite <= 0 || len(run.Runs) < 3 || len(run.Summary) != len(run.Runs) {
		t.Fatalf("limits %+v and %d runs", run.Limits, len(run.Runs))
	}
	for _, r := range run.Runs {
		if r.Total <= 0 || r.ImageBytes == 0 || r.SentBytes < r.ImageBytes || r.Before == nil || r.Before.Count == 0 || r.Stages["send"] <= 0 {
			t.Errorf("%s: %+v", r.Case, r)
		}
		switch r.Case {
		case bench.CaseBehind:
			if r.Kind != "records" || r.ImageBytes > 32<<20/4 {
				t.Errorf("behind by 5 %%: an image of %s, %d bytes", r.Kind, r.ImageBytes)
			}
		case bench.CaseCut, bench.CaseLeader, bench.CaseSource:
			if r.Kind != "files" || r.Attempts < 1 {
				t.Errorf("%s: an image of %s in %d attempts", r.Case, r.Kind, r.Attempts)
			}
		case bench.CaseLost:
			if r.Kind != "files" || r.SentBytes != r.ImageBytes {
				t.Errorf("lost: %d bytes of %s were sent for an image of %d", r.SentBytes, r.Kind, r.ImageBytes)
			}
		}
	}
}

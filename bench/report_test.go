package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func run(c Case, seconds, limit float64, image, sent, raw uint64) Recovery {
	d := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return Recovery{Case: c, Kind: "files", Total: d(seconds), Limit: d(limit), ImageBytes: image, SentBytes: sent, RawBytes: raw,
		Stages: map[string]time.Duration{"send": d(seconds / 2)}}
}

func TestSummarize(t *testing.T) {
	results := []Recovery{
		run(CaseLost, 4, 2, 1000e6, 1000e6, 0), run(CaseBehind, 1, 0.1, 50e6, 50e6, 0), run(CaseCut, 5, 2, 1000e6, 1020e6, 4000e6),
		run(CaseLost, 2, 2, 1000e6, 1000e6, 0), run(CaseBehind, 3, 0.1, 70e6, 70e6, 0), run(CaseCut, 5, 2, 1000e6, 1000e6, 4000e6),
		run(CaseLost, 3, 2, 1000e6, 1000e6, 0), run(CaseBehind, 1.5, 0.1, 60e6, 60e6, 0), run(CaseCut, 5, 2, 1000e6, 1010e6, 4000e6),
	}
	results[0].Before, results[0].During = &Latencies{P99: 2e6}, &Latencies{P99: 6e6}
	results[3].Before, results[3].During = &Latencies{P99: 3e6}, &Latencies{P99: 9e6}
	results[6].Before, results[6].During = &Latencies{P99: 4e6}, &Latencies{P99: 5e6}
	got := Summarize(results)
	if len(got) != 3 || got[0].Case != CaseLost || got[1].Case != CaseBehind || got[2].Case != CaseCut {
		t.Fatalf("%+v", got)
	}
	lost, behind, cut := got[0], got[1], got[2]
	if lost.Total != (Spread{Median: 3, Min: 2, Max: 4, N: 3}) || lost.Limit != 1.5 || lost.Stages["send"] != 1.5 || lost.TimeToLost != 1 {
		t.Errorf("%+v", lost)
	}
	if lost.BeforeP99 != 3 || lost.DuringP99 != 6 {
		t.Errorf("p99 %v, %v", lost.BeforeP99, lost.DuringP99)
	}
	if behind.TimeToLost != 0.5 || behind.SentToLost != 0.06 || behind.Wire != 0 {
		t.Errorf("%+v", behind)
	}
	if cut.Resent != 1.01 || cut.Wire != 0.2525 {
		t.Errorf("%+v", cut)
	}
	if alone := Summarize(results[1:2]); alone[0].TimeToLost != 0 {
		t.Errorf("without the case lost: %+v", alone[0])
	}
}

func TestReportIsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	r := NewReport("v0", RecoveryOptions{Load: 200}, []Recovery{run(CaseLost, 4, 2, 1000e6, 1010e6, 0)}, []Limits{{GRPC: 1500}})
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "recovery.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(raw, &back); err != nil || len(back.Runs) != 1 || back.Runs[0].SentBytes != 1010e6 || back.Pacing != PacingOff {
		t.Errorf("%+v, %v", back, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "recovery.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| lost | files | 1 | 4.00 | 4.00..4.00 | 2.00 | 1.00 |", "| lost | 1000.0 | 1010.0 | 1.010 |", "1500", "p99 during"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "|") && i > 0 && strings.HasSuffix(line, "|  |") {
			t.Errorf("an empty cell: %s", line)
		}
	}
}

func TestRecoveryOptions(t *testing.T) {
	good := RecoveryOptions{Dir: "d"}
	good.EnsureDefaults()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(o *RecoveryOptions){
		"no directory":   func(o *RecoveryOptions) { o.Dir = "" },
		"unknown case":   func(o *RecoveryOptions) { o.Cases = []Case{"flood"} },
		"1 MiB to 1 TiB": func(o *RecoveryOptions) { o.Bytes = 1 },
		"unknown data":   func(o *RecoveryOptions) { o.Data = "poems" },
		"unknown pacing": func(o *RecoveryOptions) { o.Pacing = "slow" },
		"repeat 0":       func(o *RecoveryOptions) { o.Repeat = 0 },
		"percent 101":    func(o *RecoveryOptions) { o.Percent = 101 },
		"at 100":         func(o *RecoveryOptions) { o.At = 100 },
		"load -1":        func(o *RecoveryOptions) { o.Load = -1 },
	} {
		o := good
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

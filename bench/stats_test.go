package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestSpread(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{3, 3, 3, 1}},
		{[]float64{9, 1, 5}, Spread{5, 1, 9, 3}},
		{[]float64{4, 1, 3, 2}, Spread{2.5, 1, 4, 4}},
	} {
		if got := SpreadOf(test.values); got != test.want {
			t.Errorf("SpreadOf(%v) = %+v, want %+v", test.values, got, test.want)
		}
	}
	if got := MBPerSecond(3e6, 2*time.Second); got != 1.5 {
		t.Errorf("3 MB in 2 s are %v MB/s", got)
	}
	if MBPerSecond(1, 0) != 0 || ratio(1, 0) != 0 {
		t.Error("what cannot be divided must be 0, not infinite")
	}
}

// TestOpenLoopCountsStalls: a service that answers in 1 ms stalls for 2 s. All
// that was due meanwhile waited, and must count, although nothing was started.
func TestOpenLoopCountsStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		stallFrom, stallTo := begin.Add(3*time.Second), begin.Add(5*time.Second)
		l := startOpenLoop(t.Context(), 100, func(ctx context.Context, i int) error {
			wait := time.Millisecond
			if now := time.Now(); now.After(stallFrom) && now.Before(stallTo) {
				wait = stallTo.Sub(now)
			}
			return pause(ctx, wait)
		})
		if err := pause(t.Context(), 10*time.Second-5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		got := l.take()
		l.end()
		if got.Count != 1000 || got.Failed != 0 {
			t.Fatalf("%d operations and %d failed in 10 s at 100 a second", got.Count, got.Failed)
		}
		// 200 of 1,000 were due within the stall; the one due first waited for 2 s.
		near := func(what string, got, want time.Duration) {
			if got < want*99/100-time.Millisecond || got > want*101/100+time.Millisecond {
				t.Errorf("%s is %v, want about %v", what, got, want)
			}
		}
		near("p50", got.P50, time.Millisecond)
		near("p99", got.P99, 1900*time.Millisecond)
		near("max", got.Max, 1990*time.Millisecond)
	})
}

func TestOpenLoopFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startOpenLoop(t.Context(), 10, func(_ context.Context, i int) error {
			if i%2 == 1 {
				return errors.New("refused")
			}
			return nil
		})
		if err := pause(t.Context(), 950*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if got := l.take(); got.Count != 5 || got.Failed != 5 {
			t.Errorf("counted %d and %d failed, want 5 and 5", got.Count, got.Failed)
		}
		l.end()
	})
}

func TestDataset(t *testing.T) {
	for _, data := range []Data{DataRandom, DataJSON} {
		d := newDataset(1<<20, data)
		if n := d.bytes(); n > 1<<20 || n < 1<<20-recordBytes {
			t.Errorf("%d bytes for 1 MiB", n)
		}
		a, b := d.values.at(7), d.values.at(7)
		d.values.generation++
		c := d.values.at(7)
		if string(a) != string(b) || string(a) == string(c) {
			t.Errorf("%s: a value must depend on its number and its generation only", data)
		}
		if len(a) < valueBytes-16 || len(a) > valueBytes+16 {
			t.Errorf("%s: a value of %d bytes", data, len(a))
		}
	}
	d := newDataset(1<<20, DataRandom)
	seen := make(map[int]bool)
	for i := range d.share(5, 1) {
		if seen[i] || i < 0 || i >= d.records {
			t.Fatalf("number %d is out of range or comes twice", i)
		}
		seen[i] = true
	}
	if want := d.records * 5 / 100; len(seen) != want {
		t.Errorf("5 %% of %d records are %d, got %d", d.records, want, len(seen))
	}
}

func TestSummarize(t *testing.T) {
	second := time.Second
	run := func(c Case, total time.Duration, sent uint64) Recovery {
		return Recovery{Case: c, Kind: "files", Total: total, ImageBytes: 100e6, SentBytes: sent,
			Stages: map[string]time.Duration{"send": total / 2},
			Before: &Latencies{P99: time.Millisecond}, During: &Latencies{P99: 3 * time.Millisecond}}
	}
	got := Summarize([]Recovery{
		run(CaseLost, 3*second, 100e6), run(CaseCut, 5*second, 110e6), run(CaseLost, second, 100e6), run(CaseLost, 2*second, 104e6),
	}, &Limits{DiskWrite: 200, GRPC: 100})
	if len(got) != 2 || got[0].Case != CaseLost || got[1].Case != CaseCut {
		t.Fatalf("summaries: %+v", got)
	}
	s := got[0]
	if s.Runs != 3 || s.Total != (Spread{2, 1, 3, 3}) || s.Resent != 1 || s.Limit != 2 || s.Stages["send"] != 1 || s.BeforeP99 != 1 || s.DuringP99 != 3 {
		t.Errorf("summary of lost: %+v", s)
	}
	if got[1].Resent != 1.1 {
		t.Errorf("cut sent %v times the image, want 1.1", got[1].Resent)
	}
	if row := s.Row(); len(row) != len(SummaryColumns()) {
		t.Errorf("%d cells under %d headings", len(row), len(SummaryColumns()))
	}
	if text := Markdown([]string{"a", "b"}, [][]string{{"1", "2"}}); text != "| a | b |\n| --- | --- |\n| 1 | 2 |\n" {
		t.Errorf("table:\n%s", text)
	}
}

func TestRecoveryOptions(t *testing.T) {
	o := RecoveryOptions{Dir: "x", Cases: []Case{"lsot"}, Data: "xml", Bytes: 1, Percent: 101, At: -1}
	o.EnsureDefaults()
	err := o.Validate()
	for _, part := range []string{`"lsot"`, `"xml"`, "1 bytes", "101"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not tell of %s: %v", part, err)
		}
	}
}

// TestLimits measures a little: that all figures are there, not what they are.
func TestLimits(t *testing.T) {
	l, err := MeasureLimits(t.Context(), t.TempDir(), 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	if l.DiskWrite <= 0 || l.GRPC <= 0 || l.Append <= 0 || l.Overwrite <= 0 || l.Encode <= 0 || l.Decode <= 0 || l.Ratio <= 0 || l.Ratio >= 1 {
		t.Errorf("limits: %+v", l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := MeasureLimits(ctx, t.TempDir(), 1<<30); !errors.Is(err, context.Canceled) {
		t.Errorf("a measurement that was cancelled: %v", err)
	}
}

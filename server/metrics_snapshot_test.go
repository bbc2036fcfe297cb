package server

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamraft/streamraft/snapshot"
)

// series are the values of a node's metrics by name and the values of the labels,
// as "streamraft_snapshot_bytes_total wire sent"; a histogram's is its count.
func series(t *testing.T, n *testNode) map[string]float64 {
	t.Helper()
	gathered, err := n.Server.options.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, family := range gathered {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch family.GetType().String() {
			case "COUNTER":
				all[name] = m.GetCounter().GetValue()
			case "GAUGE":
				all[name] = m.GetGauge().GetValue()
			case "HISTOGRAM":
				all[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}

// checkTransferMetrics looks at what a full image from one of the sources to the
// receiver left in the metrics.
func checkTransferMetrics(t *testing.T, sources []*testNode, receiver *testNode) {
	t.Helper()
	const prefix = "streamraft_snapshot_"
	eventually(t, "the receiver counts its recovery", func() bool { return series(t, receiver)[prefix+"recovery_seconds"] > 0 })
	got := series(t, receiver)
	for _, name := range []string{
		"transfers_total files ok receiver", "bytes_total received wire", "bytes_total received raw",
		"stage_seconds queue", "stage_seconds verify", "stage_seconds install", "stage_seconds catchup", "install_block_seconds",
	} {
		if got[prefix+name] == 0 {
			t.Errorf("%s is 0 at the receiver", name)
		}
	}
	for _, name := range []string{"repeated_full_total", "staged_bytes", "checksum_errors_total", "restarted_total corrupt", "pacing_bytes_per_second"} {
		if value, ok := got[prefix+name]; value != 0 || !ok {
			t.Errorf("%s is %v, %v at the receiver", name, value, ok)
		}
	}
	sum := make(map[string]float64)
	for _, n := range sources {
		for name, value := range series(t, n) {
			sum[name] += value
		}
	}
	for _, name := range []string{
		"transfers_total files ok source", "bytes_total sent wire", "bytes_total sent raw", "decision_total full no_state",
		"stage_seconds queue", "stage_seconds capture", "stage_seconds send", "credit_stall_seconds_total pacing",
	} {
		if sum[prefix+name] == 0 {
			t.Errorf("%s is 0 at the sources", name)
		}
	}
	if sent, received := sum[prefix+"bytes_total sent wire"], got[prefix+"bytes_total received wire"]; sent != received {
		t.Errorf("%.0f bytes sent, %.0f received", sent, received)
	}
	for name := range got {
		if strings.HasPrefix(name, prefix) && strings.HasSuffix(name, "log_pin_bytes") {
			t.Errorf("%s has no group", name)
		}
	}
}

// TestSnapshotSeries: results of people's words become labels, and buckets add up.
func TestSnapshotSeries(t *testing.T) {
	s := &Server{imageCounters: new(snapshot.Counters)}
	var err error
	if s.pacer, err = snapshot.NewRatePacer(snapshot.PacingOptions{Mode: snapshot.PacingOff}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{time.Millisecond, 2 * time.Millisecond, time.Minute} {
		s.imageCounters.ObserveInstallBlock(d)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newSnapshotCollector(s))
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range gathered {
		if family.GetName() != "streamraft_snapshot_install_block_seconds" {
			continue
		}
		h := family.GetMetric()[0].GetHistogram()
		if h.GetSampleCount() != 3 || h.GetSampleSum() != 60.003 || h.GetBucket()[0].GetCumulativeCount() != 1 ||
			h.GetBucket()[1].GetUpperBound() != 0.0025 || h.GetBucket()[1].GetCumulativeCount() != 2 {
			t.Errorf("told as %v", h)
		}
		return
	}
	t.Error("not told")
}

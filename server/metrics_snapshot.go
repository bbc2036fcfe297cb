package server

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/streamraft/streamraft/snapshot"
)

// snapshotFamily is a metric of transfers. collect tells every series of it, also
// those in which nothing has happened: a rate over a series that appears with its
// first event misses that event.
type snapshotFamily struct {
	family
	collect func(f *snapshotFigures, tell snapshotTeller)
}

// snapshotFigures are what the metrics of transfers are made of.
type snapshotFigures struct {
	snapshot.Metrics
	rate float64 // of the pacing
}

// snapshotTeller takes the series of a family: numbers, or histograms.
type snapshotTeller struct {
	number    func(value float64, labels ...string)
	histogram func(d snapshot.Durations, labels ...string)
}

func snapshotFamilies() []snapshotFamily {
	const prefix = "streamraft_snapshot_"
	number := func(name, kind, help string, value func(*snapshotFigures) float64) snapshotFamily {
		return snapshotFamily{family{prefix + name, kind, nil, help}, func(f *snapshotFigures, tell snapshotTeller) { tell.number(value(f)) }}
	}
	return []snapshotFamily{
		{family{prefix + "transfers_total", "counter", []string{"role", "kind", "result"}, "Transfers that ended at their receiver, and attempts that ended at their source, by kind of image and what ended them; ok: all of the image was there."}, tellTransfers},
		{family{prefix + "bytes_total", "counter", []string{"dir", "kind"}, "Bytes of images sent and received. wire: as they travel; raw: what that is of files; reused: not sent since the receiver had the file."}, tellBytes},
		{family{prefix + "stage_seconds", "histogram", []string{"stage"}, "Time of the stages of transfers that came to their end: queue, capture and send at the source (queue at the receiver too), verify, install and catchup at the receiver."}, tellStages},
		{family{prefix + "credit_stall_seconds_total", "counter", []string{"cause"}, "Time a source had data and did not send. credit: the receiver took no more; pacing: clients went first."}, tellStalls},
		number("resume_bytes_saved_total", "counter", "Bytes that were staged already when an attempt began, and were not sent again.", func(f *snapshotFigures) float64 { return float64(f.ResumeBytesSaved) }),
		{family{prefix + "decision_total", "counter", []string{"choice", "reason"}, "What this node served as a source, and why: resume, delta, kept (a full image it had) or full."}, tellDecisions},
		{family{prefix + "restarted_total", "counter", []string{"reason"}, "Transfers that lost what was staged and began again."}, tellRestarts},
		number("checksum_errors_total", "counter", "Chunks and files that were damaged on their way or on a disk.", func(f *snapshotFigures) float64 { return float64(f.ChecksumErrors) }),
		number("staged_bytes", "gauge", "Bytes in the inboxes of transfers that are received now.", func(f *snapshotFigures) float64 { return float64(f.StagedBytes) }),
		number("orphans_removed_total", "counter", "Leftovers of crashes that were removed.", func(f *snapshotFigures) float64 { return float64(f.OrphansRemoved) }),
		number("repeated_full_total", "counter", "Full images that a replica of this node got after another one in the same recovery. A bug if not 0.", func(f *snapshotFigures) float64 { return float64(f.RepeatedFull) }),
		{family{prefix + "install_block_seconds", "histogram", nil, "Time an installation held up the log of its group, votes included, until it was in state and log."}, func(f *snapshotFigures, tell snapshotTeller) { tell.histogram(f.InstallBlock) }},
		{family{prefix + "recovery_seconds", "histogram", nil, "Time from a replica's first transfer until it had caught up with the log."}, func(f *snapshotFigures, tell snapshotTeller) { tell.histogram(f.Recovery) }},
		number("pacing_bytes_per_second", "gauge", "Rate at which this node may send images now, all together: 0 while it sends none, +Inf if nothing bounds it.", func(f *snapshotFigures) float64 { return f.rate }),
	}
}

func tellTransfers(f *snapshotFigures, tell snapshotTeller) {
	for _, role := range []snapshot.Role{snapshot.RoleSource, snapshot.RoleReceiver} {
		for _, kind := range []string{"files", "records", "stream"} {
			tellSeries(f.Transfers, snapshot.TransferKey{Role: role, Kind: kind, Result: "ok"})
		}
	}
	for k, n := range f.Transfers {
		kind := k.Kind
		if kind == "" {
			kind = "none"
		}
		tell.number(float64(n), string(k.Role), kind, strings.ReplaceAll(k.Result, " ", "_"))
	}
}

func tellBytes(f *snapshotFigures, tell snapshotTeller) {
	tell.number(float64(f.SentBytes), "sent", "wire")
	tell.number(float64(f.SentRawBytes), "sent", "raw")
	tell.number(float64(f.ReceivedBytes), "received", "wire")
	tell.number(float64(f.ReceivedRawBytes), "received", "raw")
	tell.number(float64(f.ReusedBytes), "received", "reused")
}

func tellStages(f *snapshotFigures, tell snapshotTeller) {
	empty := snapshot.Durations{Bounds: f.Recovery.Bounds, Counts: make([]uint64, len(f.Recovery.Bounds)+1)}
	for _, stage := range snapshot.Stages() {
		d, ok := f.StageSeconds[stage]
		if !ok {
			d = empty
		}
		tell.histogram(d, string(stage))
	}
}

func tellStalls(f *snapshotFigures, tell snapshotTeller) {
	for _, cause := range []string{"credit", "pacing"} {
		tell.number(f.CreditStall[cause].Seconds(), cause)
	}
}

func tellDecisions(f *snapshotFigures, tell snapshotTeller) {
	for _, d := range []snapshot.Decision{
		{Choice: snapshot.ChoiceResume, Reason: "staged"}, {Choice: snapshot.ChoiceDelta, Reason: "behind"},
		{Choice: snapshot.ChoiceKept, Reason: "no_state"}, {Choice: snapshot.ChoiceKept, Reason: "no_delta"},
		{Choice: snapshot.ChoiceFull, Reason: "no_state"}, {Choice: snapshot.ChoiceFull, Reason: "no_delta"},
	} {
		tellSeries(f.Decisions, d)
	}
	for d, n := range f.Decisions {
		tell.number(float64(n), string(d.Choice), d.Reason)
	}
}

func tellRestarts(f *snapshotFigures, tell snapshotTeller) {
	for _, reason := range []string{"corrupt", "image_gone", "outdated", "source_lost", "unfit"} {
		tellSeries(f.Restarted, reason)
	}
	for reason, n := range f.Restarted {
		tell.number(float64(n), reason)
	}
}

// tellSeries makes sure that a series is there.
func tellSeries[K comparable](counts map[K]uint64, key K) {
	counts[key] += 0
}

// snapshotCollector exports the metrics of transfers.
type snapshotCollector struct {
	s        *Server
	families []snapshotFamily
	descs    []*prometheus.Desc
}

func newSnapshotCollector(s *Server) *snapshotCollector {
	c := &snapshotCollector{s: s, families: snapshotFamilies()}
	for _, f := range c.families {
		c.descs = append(c.descs, f.desc())
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *snapshotCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *snapshotCollector) Collect(out chan<- prometheus.Metric) {
	f := &snapshotFigures{Metrics: c.s.imageCounters.Metrics(), rate: c.s.pacer.Rate()}
	f.ensureMaps()
	for i, family := range c.families {
		desc, kind := c.descs[i], prometheus.GaugeValue
		if family.kind == "counter" {
			kind = prometheus.CounterValue
		}
		family.collect(f, snapshotTeller{
			number: func(value float64, labels ...string) {
				out <- prometheus.MustNewConstMetric(desc, kind, value, labels...)
			},
			histogram: func(d snapshot.Durations, labels ...string) {
				out <- prometheus.MustNewConstHistogram(desc, d.Count, d.Total.Seconds(), cumulated(d), labels...)
			},
		})
	}
}

// ensureMaps makes the maps of a node without transfers.
func (f *snapshotFigures) ensureMaps() {
	if f.Transfers == nil {
		f.Transfers = make(map[snapshot.TransferKey]uint64)
	}
	if f.Decisions == nil {
		f.Decisions = make(map[snapshot.Decision]uint64)
	}
	if f.Restarted == nil {
		f.Restarted = make(map[string]uint64)
	}
}

// cumulated returns the buckets as Prometheus counts them: all up to a bound.
func cumulated(d snapshot.Durations) map[float64]uint64 {
	buckets := make(map[float64]uint64, len(d.Bounds))
	var below uint64
	for i, bound := range d.Bounds {
		below += d.Counts[i]
		buckets[bound.Seconds()] = below
	}
	return buckets
}

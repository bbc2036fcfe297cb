package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
)

// demoReport is what the demonstration prints with --json; docs/cli.md
// documents the schema. Fields are only added.
type demoReport struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems"`

	Nodes int    `json:"nodes"`
	Data  string `json:"data"`
	// Records and Bytes (keys and values) that were imported.
	Records           uint64  `json:"records"`
	Bytes             uint64  `json:"bytes"`
	Skipped           uint64  `json:"skipped"`
	ImportSeconds     float64 `json:"import_seconds"`
	ImportMBPerSecond float64 `json:"import_megabytes_per_second"`

	Killed    string `json:"killed_leader"`
	NewLeader string `json:"new_leader"`
	// ElectionMS is the time from the kill to a new leader. The gaps are the
	// longest times between two acknowledged writes, before and around the kill.
	ElectionMS  float64 `json:"election_milliseconds"`
	KillGapMS   float64 `json:"kill_gap_milliseconds"`
	SteadyGapMS float64 `json:"steady_gap_milliseconds"`

	LoadWrites       uint64 `json:"load_writes_acknowledged"`
	LoadFailedWrites uint64 `json:"load_writes_failed"`
	LoadReads        uint64 `json:"load_reads"`
	LoadFailedReads  uint64 `json:"load_reads_failed"`

	CatchUpSeconds float64 `json:"catch_up_seconds"`

	// A node whose disk was lost: the time until it was a voter again and had
	// everything, and the files of its image.
	Replaced       string  `json:"replaced_node"`
	ReplaceSeconds float64 `json:"replace_seconds"`
	ReplaceBytes   uint64  `json:"replace_bytes"`
	// The same node, left behind while so much was written, and its delta.
	BehindWritten uint64  `json:"behind_written_bytes"`
	DeltaBytes    uint64  `json:"delta_bytes"`
	DeltaSeconds  float64 `json:"delta_seconds"`
	// A transfer that was cut: its receiver, the source that was killed, and the
	// bytes at that moment, of the image, received in all, and not sent again.
	// Empty where the image was too small to be cut.
	CutNode          string `json:"cut_node"`
	CutSource        string `json:"cut_source"`
	CutAtBytes       uint64 `json:"cut_at_bytes"`
	CutImageBytes    uint64 `json:"cut_image_bytes"`
	CutReceivedBytes uint64 `json:"cut_received_bytes"`
	CutSavedBytes    uint64 `json:"cut_saved_bytes"`

	// WritesChecked are all acknowledged records, of import, load and churn.
	WritesChecked uint64 `json:"writes_checked"`
	WritesLost    uint64 `json:"writes_lost"`

	DigestIndex uint64            `json:"digest_index"`
	Digests     map[string]string `json:"digests"`
	DigestEqual bool              `json:"digest_equal"`

	TotalSeconds float64 `json:"total_seconds"`
	// Directory of the cluster, if it was kept.
	Directory string `json:"directory,omitempty"`
}

func (r *demoReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *demoReport) addLoad(t demoLoadTotals) {
	r.LoadWrites, r.LoadFailedWrites = t.acknowledged, t.failed
	r.LoadReads, r.LoadFailedReads = t.reads, t.failedReads
	r.KillGapMS, r.SteadyGapMS = milliseconds(t.killGap), milliseconds(t.steadyGap)
	if t.problem != nil {
		r.problem("%v", t.problem)
	}
}

func (r *demoReport) addDigests(digests []client.Digest, nodes int) {
	r.Digests, r.DigestEqual = map[string]string{}, len(digests) == nodes
	for _, d := range digests {
		r.DigestIndex = d.Index
		r.Digests[d.Node] = fmt.Sprintf("%016x", d.Digest)
		r.DigestEqual = r.DigestEqual && d.Index == digests[0].Index && d.Digest == digests[0].Digest
	}
	if !r.DigestEqual {
		r.problem("the states of the nodes differ at index %d: digests %v", r.DigestIndex, r.Digests)
	}
}

func (r *demoReport) finish(started time.Time) {
	r.TotalSeconds = seconds(time.Since(started))
	r.OK = len(r.Problems) == 0
	if r.Problems == nil {
		r.Problems = []string{} // [] in JSON
	}
}

// print prints the report: one JSON object, or a table and what to do next.
func (d *demo) print(w io.Writer) error {
	r := &d.report
	if d.options.json {
		return printJSON(w, r)
	}
	digest := "equal on all nodes"
	if !r.DigestEqual {
		digest = "DIFFERENT"
	}
	fmt.Fprintln(w)
	err := cliui.Table(w, []cliui.Column{{Name: "what happened"}, {Name: "measured"}}, [][]string{
		{"records imported", fmt.Sprintf("%s, %s", cliui.Count(r.Records), cliui.Bytes(r.Bytes))},
		{"import, on disk on a majority", fmt.Sprintf("%.1f MB/s", r.ImportMBPerSecond)},
		{"leader killed, new leader", r.Killed + ", " + r.NewLeader},
		{"longest pause of writes", cliui.Duration(fromMilliseconds(r.KillGapMS))},
		{"killed node caught up after", cliui.Duration(time.Duration(r.CatchUpSeconds * float64(time.Second)))},
		{"lost disk replaced after", fmt.Sprintf("%s, %s", cliui.Duration(durationOf(r.ReplaceSeconds)), cliui.Bytes(r.ReplaceBytes))},
		{"left behind the log, got", fmt.Sprintf("a delta of %s, %s", cliui.Bytes(r.DeltaBytes), cliui.Duration(durationOf(r.DeltaSeconds)))},
		{"transfer cut at, not sent again", cutFigures(r)},
		{"acknowledged writes checked, lost", cliui.Count(r.WritesChecked) + ", " + cliui.Count(r.WritesLost)},
		{"digest of the state", digest},
		{"all of it took", cliui.Duration(time.Duration(r.TotalSeconds * float64(time.Second)))},
	})
	if err != nil {
		return err
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(w, "PROBLEM: %s\n", problem)
	}
	_, err = fmt.Fprint(w, d.next())
	return err
}

func cutFigures(r *demoReport) string {
	if r.CutNode == "" {
		return "not cut: the image is too small"
	}
	return fmt.Sprintf("%s of %s, %s", cliui.Bytes(r.CutAtBytes), cliui.Bytes(r.CutImageBytes), cliui.Bytes(r.CutSavedBytes))
}

// next tells what to try next, as commands.
func (d *demo) next() string {
	program, dir := demoProgram(), d.report.Directory
	var b strings.Builder
	if dir == "" {
		fmt.Fprintf(&b, "\nTry next:\n  %[1]s demo --keep              # keep the cluster and play with it\n"+
			"  %[1]s demo --data DIRECTORY    # with data of yours\n", program)
		return b.String()
	}
	fmt.Fprintf(&b, "\nThe cluster is kept in %s. Start it again:\n", dir)
	for _, name := range d.cluster.Names() {
		fmt.Fprintf(&b, "  %s node --name %s --data-dir %s --listen %s --http-listen %s --cluster %s &\n", program, name,
			d.cluster.DataDir(name), d.cluster.Endpoint(name), d.cluster.HTTPEndpoint(name), d.cluster.FoundingList())
	}
	fmt.Fprintf(&b, "Then:\n  export %[2]s=%[3]s\n  %[1]s status\n  %[1]s kv range --limit 10\n  %[1]s kv digest\n"+
		"When you are done: stop the nodes and remove %[4]s\n", program, endpointsVariable, strings.Join(d.cluster.Endpoints(), ","), dir)
	return b.String()
}

// Numbers for programs have three decimals: more is noise.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

func seconds(d time.Duration) float64 { return round(d.Seconds()) }

func milliseconds(d time.Duration) float64 { return round(float64(d) / float64(time.Millisecond)) }

func fromMilliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

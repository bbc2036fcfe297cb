package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Report is all of a run of MeasureRecovery, with its raw samples. As JSON it is
// what `streamraft bench recovery --json` prints.
type Report struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	Machine Machine   `json:"machine"`
	// What was measured; see RecoveryOptions.
	Bytes         uint64   `json:"data_bytes"`
	Data          Data     `json:"data"`
	Repeat        int      `json:"repeat"`
	Percent       float64  `json:"percent"`
	At            float64  `json:"at"`
	Load          int      `json:"load"`
	Pacing        string   `json:"pacing"`
	SettleSeconds float64  `json:"settle_seconds"`
	NodeArgs      []string `json:"node_args"`
	// Limits before each round, and recoveries in the order they were measured.
	Limits  []Limits   `json:"limits"`
	Runs    []Recovery `json:"runs"`
	Summary []Summary  `json:"summary"`
}

// NewReport puts a report together; o is as MeasureRecovery got it, and version
// that of the program.
func NewReport(version string, o RecoveryOptions, results []Recovery, limits []Limits) *Report {
	o.EnsureDefaults()
	return &Report{
		Time: time.Now().UTC(), Version: version, Machine: ThisMachine(),
		Bytes: o.Bytes, Data: o.Data, Repeat: o.Repeat, Percent: o.Percent, At: o.At, Load: o.Load, Pacing: o.Pacing,
		SettleSeconds: o.Settle.Seconds(), NodeArgs: slices.Clone(o.NodeArgs),
		Limits: limits, Runs: results, Summary: Summarize(results),
	}
}

// Write writes recovery.json and recovery.md to a directory, made if missing.
func (r *Report) Write(dir string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: report: %w", err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("bench: report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "recovery.json"), append(raw, '\n'), 0o640); err != nil {
		return fmt.Errorf("bench: report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "recovery.md"), []byte(r.Markdown()), 0o640); err != nil {
		return fmt.Errorf("bench: report: %w", err)
	}
	return nil
}

// Markdown returns the report for people, as tables.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "streamraft %s, %s. %s.\n", r.Version, r.Time.Format(time.RFC3339), r.Machine)
	fmt.Fprintf(&b, "%.0f MB of %s data, median of %d, pacing %s, %d foreground writes a second, settle time %v s.\n\n",
		float64(r.Bytes)/1e6, r.Data, r.Repeat, r.Pacing, r.Load, r.SettleSeconds)
	for _, t := range r.Tables() {
		b.WriteString(t.Markdown() + "\n")
	}
	return b.String()
}

// Tables returns the summary as tables: the limits, times, bytes and memory, and
// latencies where there was a load.
func (r *Report) Tables() []Table {
	limits := MedianLimits(r.Limits)
	tables := []Table{limits.Table(), timeTable(r.Summary), bytesTable(r.Summary)}
	if r.Load > 0 {
		tables = append(tables, latencyTable(r.Summary))
	}
	return tables
}

// Table is a table of text; the first cell of a row names it, the others are
// figures.
type Table struct {
	Columns []string
	Rows    [][]string
}

// Markdown returns the table as Markdown.
func (t *Table) Markdown() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.Columns)
	line(slices.Repeat([]string{"---"}, len(t.Columns)))
	for _, row := range t.Rows {
		line(row)
	}
	return b.String()
}

// Table returns the limits as a table of one row.
func (l *Limits) Table() Table {
	return Table{
		Columns: []string{"limits", "disk write MB/s", "disk read MB/s", "append+sync ms", "overwrite+sync ms", "gRPC MB/s",
			"zstd encode MB/s", "zstd decode MB/s", "zstd ratio"},
		Rows: [][]string{{"this machine", figure(l.DiskWrite, 0), figure(l.DiskRead, 0), figure(milliseconds(l.Append), 2),
			figure(milliseconds(l.Overwrite), 2), figure(l.GRPC, 0), figure(l.Encode, 0), figure(l.Decode, 0), figure(l.Ratio, 2)}},
	}
}

func timeTable(summaries []Summary) Table {
	t := Table{Columns: append(append([]string{"time, s", "image", "runs", "total", "least..most", "x limit", "x lost", "to transfer"}, stages()...), "other")}
	for _, s := range summaries {
		row := []string{string(s.Case), s.Kind, fmt.Sprint(s.Runs), figure(s.Total.Median, 2), fmt.Sprintf("%.2f..%.2f", s.Total.Min, s.Total.Max),
			figure(s.Limit, 2), figure(s.TimeToLost, 2), figure(s.ToTransfer, 2)}
		for _, stage := range stages() {
			row = append(row, figure(s.Stages[stage], 3))
		}
		t.Rows = append(t.Rows, append(row, figure(s.Other, 2)))
	}
	return t
}

func bytesTable(summaries []Summary) Table {
	t := Table{Columns: []string{"bytes, MB", "image", "sent", "sent/image", "sent/lost", "sent/raw", "memory source", "memory receiver"}}
	for _, s := range summaries {
		t.Rows = append(t.Rows, []string{string(s.Case), figure(s.ImageMB, 1), figure(s.SentMB, 1), figure(s.Resent, 3), figure(s.SentToLost, 3),
			figure(s.Wire, 3), figure(s.SourceMemoryMB, 0), figure(s.ReceiverMemoryMB, 0)})
	}
	return t
}

func latencyTable(summaries []Summary) Table {
	t := Table{Columns: []string{"foreground, ms", "p50 before", "p50 during", "p99 before", "p99 during", "p99 ratio"}}
	for _, s := range summaries {
		t.Rows = append(t.Rows, []string{string(s.Case), figure(s.BeforeP50, 1), figure(s.DuringP50, 1), figure(s.BeforeP99, 1), figure(s.DuringP99, 1),
			figure(ratio(s.DuringP99, s.BeforeP99), 2)})
	}
	return t
}

// figure is a number in a table; 0 is a dash: nothing there, or not measured.
func figure(v float64, digits int) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, v)
}

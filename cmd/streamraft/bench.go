package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/bench"
	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/server"
)

func newBenchCommand(g *globals) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:   "bench",
		Short: "Measure recovery, and what the machine can do, here",
		Long: `Measure this machine, with clusters of real node processes on it. Figures of a
machine that does something else at the same time are of little use; repeat, and
look at the spread. BENCHMARKS.md tells what the figures mean.`,
		Example: `  streamraft bench limits
  streamraft bench recovery --size 256MiB`,
	})
	cmd.AddCommand(newBenchRecoveryCommand(g), newBenchLimitsCommand(g))
	return cmd
}

// benchDir is where a measurement keeps its files.
type benchDir struct{ path string }

func (d *benchDir) flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.path, "dir", "", "keep files below this directory, on the disk to measure (default: the system's temporary directory)")
}

// make makes a directory of its own below it.
func (d *benchDir) make() (dir string, remove func() error, err error) {
	if d.path != "" {
		if err := os.MkdirAll(d.path, 0o750); err != nil {
			return "", nil, err
		}
	}
	if dir, err = os.MkdirTemp(d.path, "streamraft-bench-"); err != nil {
		return "", nil, err
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

func newBenchLimitsCommand(g *globals) *cobra.Command {
	var dir benchDir
	var size string
	cmd := &cobra.Command{
		Use:   "limits",
		Short: "Measure disk, sync, gRPC and zstd of this machine",
		Example: `  streamraft bench limits
  streamraft bench limits --dir /data --size 4GiB`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			bytes, err := benchSize(size)
			if err != nil {
				return err
			}
			path, remove, err := dir.make()
			if err != nil {
				return err
			}
			limits, err := bench.MeasureLimits(cmd.Context(), path, int64(bytes))
			if err = errors.Join(err, remove()); err != nil {
				return err
			}
			if g.json {
				return printJSON(cmd.OutOrStdout(), limits)
			}
			return printTable(cmd, bench.LimitsColumns(), [][]string{limits.Row()})
		},
	}
	dir.flag(cmd)
	cmd.Flags().StringVar(&size, "size", "1GiB", "how much to write and to send")
	return cmd
}

func benchSize(text string) (uint64, error) {
	size, err := server.ParseSize(text)
	if err != nil || size < 1<<20 || size > 1<<40 {
		return 0, usageErrorf("--size %q: it must be a size from 1MiB to 1TiB", text)
	}
	return uint64(size), nil
}

// benchRun is what bench recovery writes as JSON.
type benchRun struct {
	Time     time.Time        `json:"time"`
	Version  string           `json:"version"`
	CPUs     int              `json:"cpus"`
	Bytes    uint64           `json:"data_bytes"`
	Data     bench.Data       `json:"data"`
	NodeArgs []string         `json:"node_args"`
	Limits   *bench.Limits    `json:"limits"`
	Summary  []bench.Summary  `json:"summary"`
	Runs     []bench.Recovery `json:"runs"`
}

func newBenchRecoveryCommand(g *globals) *cobra.Command {
	var dir benchDir
	var size, data, pacing, out, link string
	var cases []string
	var o bench.RecoveryOptions
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure how fast a lost, stale or interrupted node comes back",
		Long: `Run three node processes, load a data set, take a node away and measure how long it
takes from the start of its process until it has applied what the leader had then.

  lost    its directory is gone; an empty one replaces it
  behind  a share of the records was overwritten at random, and the logs are cut
  cut     as lost; the process is killed in the middle and started again
  leader  as behind, with a full image; the leader is killed in the middle
  source  as leader; the source is destroyed in the middle

The limits of the machine are measured in the same run: "x limit" is the time of a
recovery to the least time that disk and gRPC need for its bytes.`,
		Example: `  streamraft bench recovery
  streamraft bench recovery --size 256MiB --case behind --percent 5 --repeat 5
  streamraft bench recovery --case lost --load 200 --pacing latency --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Bytes, err = benchSize(size); err != nil {
				return err
			}
			o.Data, o.Cases = bench.Data(data), nil
			for _, c := range cases {
				o.Cases = append(o.Cases, bench.Case(c))
			}
			if pacing != "off" && pacing != "latency" {
				return usageErrorf("--pacing %q: it is off or latency", pacing)
			}
			o.NodeArgs = append(o.NodeArgs, "--snapshot-pacing="+pacing)
			if link != "" {
				return runOnLink(cmd, link)
			}
			path, remove, err := dir.make()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, remove()) }()
			o.Dir = path
			o.Log = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
			o.Loaded = limitLink
			o.EnsureDefaults()
			if err := o.Validate(); err != nil {
				return usageErrorf("%v", err)
			}
			return runBenchRecovery(cmd, g, o, out)
		},
	}
	dir.flag(cmd)
	f := cmd.Flags()
	f.StringVar(&size, "size", "1GiB", "size of the data set: keys of 16 and values of 256 bytes")
	f.StringVar(&data, "data", "random", "what values hold: random or json")
	f.StringSliceVar(&cases, "case", []string{"lost", "behind", "cut"}, "cases to measure: lost, behind, cut, leader, source")
	f.IntVar(&o.Repeat, "repeat", 1, "measure each case so often, and take the median")
	f.Float64Var(&o.Percent, "percent", 5, "behind: share of the records to overwrite")
	f.Float64Var(&o.At, "at", 50, "cut, leader, source: strike at this share of the bytes")
	f.IntVar(&o.Load, "load", 0, "foreground writes a second, each measured from when it was due")
	f.DurationVar(&o.Settle, "settle", 5*time.Second, "watch latency and memory so long before and after each recovery")
	f.StringVar(&pacing, "pacing", "off", "the nodes' --snapshot-pacing: off or latency")
	f.StringVar(&link, "link", "", "limit the network between the nodes, such as 100mbit, once the data is loaded (Linux, root)")
	f.StringVar(&out, "out", "", "also write recovery.json and recovery.md to this directory")
	f.StringArrayVar(&o.NodeArgs, "node-arg", nil, "a further argument of every node")
	return cmd
}

func runBenchRecovery(cmd *cobra.Command, g *globals, o bench.RecoveryOptions, out string) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	if err := raiseLink(); err != nil {
		return err
	}
	limits, err := bench.MeasureLimits(ctx, o.Dir, int64(o.Bytes))
	if err != nil {
		return err
	}
	results, failed := bench.MeasureRecovery(ctx, o)
	run := benchRun{
		Time: time.Now().UTC(), Version: version, CPUs: runtime.NumCPU(), Bytes: o.Bytes, Data: o.Data, NodeArgs: o.NodeArgs,
		Limits: limits, Summary: bench.Summarize(results, limits), Runs: results,
	}
	if len(results) > 0 {
		if err := printBenchRun(cmd, g, &run, out); err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

func printBenchRun(cmd *cobra.Command, g *globals, run *benchRun, out string) error {
	var rows [][]string
	for i := range run.Summary {
		rows = append(rows, run.Summary[i].Row())
	}
	if out != "" {
		raw, err := json.MarshalIndent(run, "", "  ")
		if err == nil {
			err = os.MkdirAll(out, 0o750)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(out, "recovery.json"), append(raw, '\n'), 0o640)
		}
		if err == nil {
			text := bench.Markdown(bench.LimitsColumns(), [][]string{run.Limits.Row()}) + "\n" + bench.Markdown(bench.SummaryColumns(), rows)
			err = os.WriteFile(filepath.Join(out, "recovery.md"), []byte(text), 0o640)
		}
		if err != nil {
			return err
		}
	}
	if g.json {
		return printJSON(cmd.OutOrStdout(), run)
	}
	if err := printTable(cmd, bench.LimitsColumns(), [][]string{run.Limits.Row()}); err != nil {
		return err
	}
	return printTable(cmd, bench.SummaryColumns(), rows)
}

func printTable(cmd *cobra.Command, headings []string, rows [][]string) error {
	var columns []cliui.Column
	for i, heading := range headings {
		columns = append(columns, cliui.Column{Name: heading, Number: i > 0})
	}
	return cliui.Table(cmd.OutOrStdout(), columns, rows)
}

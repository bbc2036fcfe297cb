package main

import (
	"errors"
	"fmt"
	"os"

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
		Long: `Measure what a recovery cannot be faster than: writing to the disk and reading from
it, the sync of a small record, gRPC over loopback, and compression. The units are
10^6 bytes a second. The files go below --dir, so that it is the right disk.`,
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
			limits, err := bench.MeasureLimits(cmd.Context(), path, bytes)
			if err = errors.Join(err, remove()); err != nil {
				return err
			}
			if g.json {
				return printJSON(cmd.OutOrStdout(), limits)
			}
			return printTables(cmd, []bench.Table{limits.Table()})
		},
	}
	dir.flag(cmd)
	cmd.Flags().StringVar(&size, "size", "1GiB", "how much to write and to send, in 5 s at most")
	return cmd
}

func benchSize(text string) (uint64, error) {
	size, err := server.ParseSize(text)
	if err != nil || size < 1<<20 || size > 1<<40 {
		return 0, usageErrorf("--size %q: it must be a size from 1MiB to 1TiB", text)
	}
	return uint64(size), nil
}

func printTables(cmd *cobra.Command, tables []bench.Table) error {
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		var columns []cliui.Column
		for j, name := range t.Columns {
			columns = append(columns, cliui.Column{Name: name, Number: j > 0})
		}
		if err := cliui.Table(cmd.OutOrStdout(), columns, t.Rows); err != nil {
			return err
		}
	}
	return nil
}

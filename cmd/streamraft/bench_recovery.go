package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/bench"
)

// benchRecovery are the flags of `streamraft bench recovery`.
type benchRecovery struct {
	options    bench.RecoveryOptions
	dir        benchDir
	size, data string
	cases      []string
	link, out  string
	quick      bool
}

// quickSettle is the settle time of --quick.
const quickSettle = 2 * time.Second

func newBenchRecoveryCommand(g *globals) *cobra.Command {
	var b benchRecovery
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure how fast a lost, stale or interrupted node comes back",
		Long: `Run three node processes, load a data set, take a node away and measure how long it
takes from the start of its process until it has applied what the leader had then.

  lost    its directory is gone; an empty one replaces it
  behind  a share of the records was overwritten at random, and the logs are cut
  cut     as lost; the process is killed in the middle and started again
  leader  as behind, with a full image; the leader is killed in the middle, while a
          follower sends
  source  as leader; it is the node that sends that goes, with its disk

The limits of the machine are measured before each round: "x limit" is the time of a
recovery to the least time that disk and gRPC need for its bytes. Times are medians
of --repeat rounds. Lines on the standard error output tell how far it is.`,
		Example: `  streamraft bench recovery
  streamraft bench recovery --size 256MiB --case behind --percent 5 --repeat 5
  streamraft bench recovery --case lost --load 200 --pacing latency --json
  streamraft bench recovery --case lost --link 100mbit --data json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd, g) },
	}
	b.dir.flag(cmd)
	f, o := cmd.Flags(), &b.options
	f.StringVar(&b.size, "size", "1GiB", "size of the data set: keys of 16 and values of 256 bytes")
	f.StringVar(&b.data, "data", string(bench.DataRandom), "what values hold: random or json")
	f.StringSliceVar(&b.cases, "case", []string{"lost", "behind", "cut"}, "cases to measure: lost, behind, cut, leader, source")
	f.IntVar(&o.Repeat, "repeat", 1, "measure each case so often, and take the median")
	f.Float64Var(&o.Percent, "percent", 5, "behind, leader, source: share of the records to overwrite")
	f.Float64Var(&o.At, "at", 50, "cut, leader, source: strike at this share of the bytes")
	f.IntVar(&o.Load, "load", 0, "foreground writes a second, each measured from when it was due")
	f.DurationVar(&o.Settle, "settle", 30*time.Second, "watch latency and memory so long before and after each recovery")
	f.BoolVar(&b.quick, "quick", false, "settle for 2s only: rough figures of memory and latency")
	f.StringVar(&o.Pacing, "pacing", bench.PacingOff, "the nodes' --snapshot-pacing: off or latency")
	f.StringVar(&b.link, "link", "", "limit the network between the nodes, such as 100mbit, once the data is loaded (Linux, root, iproute2)")
	f.StringVar(&b.out, "out", "", "also write recovery.json and recovery.md to this directory")
	f.StringArrayVar(&o.NodeArgs, "node-arg", nil, "a further argument of every node")
	return cmd
}

func (b *benchRecovery) run(cmd *cobra.Command, g *globals) (err error) {
	o := &b.options
	if o.Bytes, err = benchSize(b.size); err != nil {
		return err
	}
	o.Data, o.Cases = bench.Data(b.data), nil
	for _, c := range b.cases {
		o.Cases = append(o.Cases, bench.Case(c))
	}
	if b.quick && !cmd.Flags().Changed("settle") {
		o.Settle = quickSettle
	}
	o.Log = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
	o.Loaded = limitLink
	// Before a zero that was given becomes a default.
	if err := b.check(); err != nil {
		return err
	}
	if b.link != "" {
		return runOnLink(cmd, b.link)
	}
	if err := raiseLink(); err != nil {
		return err
	}
	path, remove, err := b.dir.make()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	o.Dir = path
	results, limits, failed := bench.MeasureRecovery(cmd.Context(), *o)
	if len(results) == 0 {
		return failed
	}
	report := bench.NewReport(version, *o, results, limits)
	if b.out != "" {
		if err := report.Write(b.out); err != nil {
			return errors.Join(failed, err)
		}
	}
	if g.json {
		return errors.Join(failed, printJSON(cmd.OutOrStdout(), report))
	}
	return errors.Join(failed, printTables(cmd, report.Tables()))
}

// check tells what is wrong with the flags.
func (b *benchRecovery) check() error {
	o := b.options
	o.Dir = "."
	if err := o.Validate(); err != nil {
		return usageErrorf("%v", err)
	}
	return nil
}

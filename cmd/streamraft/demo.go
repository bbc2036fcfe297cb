package main

import (
	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/server"
)

func newDemoCommand(g *globals) *cobra.Command {
	var o demoOptions
	var limit string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a cluster here, kill its leader, destroy a disk, and check every write",
		Long: `Run a cluster of real node processes on this machine, in a temporary directory:
import a data set, kill the leader while clients write and read, measure how long
writes pause, and start the killed node again. Then destroy a node's disk and bring
the node back, leave it behind the log and show the delta that it gets, and cut the
transfer of an image in the middle and show that it goes on where it was. At last
check every acknowledged write and compare the states of all nodes.

It exits with 0 only if all of that held. Ctrl-C ends it at any time and leaves
nothing behind. The default data set is the sources of Go.`,
		Example: `  streamraft demo
  streamraft demo --data ./site --nodes 5
  streamraft demo --keep
  streamraft demo --json --limit 16MiB`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.nodes != 3 && o.nodes != 5 {
				return usageErrorf("--nodes must be 3 or 5, not %d", o.nodes)
			}
			if cmd.Flags().Changed("limit") {
				size, err := server.ParseSize(limit)
				if err != nil || size == 0 {
					return usageErrorf("--limit %q: it must be a size above 0, such as 64MiB", limit)
				}
				o.limit = uint64(size)
			}
			o.json = g.json
			return runDemo(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&o.data, "data", "", "import this directory, .jsonl or .csv file (default: the sources of Go)")
	cmd.Flags().StringVar(&limit, "limit", "", "import only the first so many bytes of the data, such as 64MiB")
	cmd.Flags().IntVar(&o.nodes, "nodes", 3, "number of nodes, 3 or 5")
	cmd.Flags().BoolVar(&o.keep, "keep", false, "keep the cluster's directory and tell how to start it again")
	return cmd
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
)

func newStatusCommand(g *globals) *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, groups and leaders",
		Long: `Show each node's replicas: role, term, applied index and how far it is behind the
highest commit index that any node knows, bytes of log and state, and the
leader. Nodes that the cluster names are asked too. Exit code 3 tells that no
node answered or a group has no leader.`,
		Example: `  streamraft status
  streamraft status --watch --interval 500ms
  streamraft status --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval <= 0 {
				return usageErrorf("--interval must be above zero")
			}
			c, err := g.connectLazily(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if watch {
				return g.watchStatus(cmd, c, interval)
			}
			report := gatherStatus(cmd.Context(), c, g.timeout)
			if err := g.printStatus(cmd.OutOrStdout(), report); err != nil {
				return err
			}
			return report.problem()
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again and again until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks with --watch")
	return cmd
}

// watchStatus shows the status until the command is interrupted, which is its
// way to end and no failure.
func (g *globals) watchStatus(cmd *cobra.Command, c *client.Client, interval time.Duration) error {
	out := cmd.OutOrStdout()
	return watchUntilInterrupted(cmd.Context(), interval, func() error {
		report := gatherStatus(cmd.Context(), c, g.timeout)
		if cmd.Context().Err() != nil {
			return nil // what could not be asked any more is no news
		}
		if cliui.IsTerminal(out) && !g.json {
			if err := cliui.ClearScreen(out); err != nil {
				return err
			}
		}
		if err := g.printStatus(out, report); err != nil {
			return err
		}
		if err := report.problem(); err != nil && !g.json {
			fmt.Fprintln(out, err)
		}
		return nil
	})
}

// problem returns why the cluster cannot be used, if it cannot.
func (r *statusReport) problem() error {
	answered := false
	leaders := map[uint64]bool{}
	for _, node := range r.Nodes {
		answered = answered || node.Error == ""
		for _, g := range node.Groups {
			leaders[g.Group] = leaders[g.Group] || g.Role == "leader"
		}
	}
	if !answered {
		var errs []error
		for _, node := range r.Nodes {
			errs = append(errs, fmt.Errorf("%s: %s", node.Address, node.Error))
		}
		return withExitCode(exitUnavailable, fmt.Errorf("status: no node answered: %w", errors.Join(errs...)))
	}
	for group, led := range leaders {
		if !led {
			return withExitCode(exitUnavailable, fmt.Errorf("status: no node that answered leads group %d", group))
		}
	}
	return nil
}

// printStatus prints a table, with a line for what is wrong with a node.
func (g *globals) printStatus(w io.Writer, report statusReport) error {
	if g.json {
		return printJSON(w, report)
	}
	var rows [][]string
	for _, node := range report.Nodes {
		rows = append(rows, node.rows()...)
	}
	return cliui.Table(w, []cliui.Column{
		{Name: "node"}, {Name: "address"}, {Name: "group", Number: true}, {Name: "role"}, {Name: "term", Number: true},
		{Name: "applied", Number: true}, {Name: "lag", Number: true}, {Name: "log", Number: true}, {Name: "state", Number: true},
		{Name: "leader"}, {Name: "note"},
	}, rows)
}

func (n *nodeReport) rows() [][]string {
	if n.Error != "" {
		return [][]string{{n.Node, n.Address, "", "unreachable", "", "", "", "", "", "", n.Error}}
	}
	if len(n.Groups) == 0 {
		return [][]string{{n.Node, n.Address, "", "", "", "", "", "", "", "", n.note("", "")}}
	}
	var rows [][]string
	for _, g := range n.Groups {
		rows = append(rows, []string{
			n.Node, n.Address, fmt.Sprint(g.Group), g.Role, fmt.Sprint(g.Term), cliui.Count(g.AppliedIndex), cliui.Count(g.Lag),
			cliui.Bytes(g.LogBytes), cliui.Bytes(g.StateBytes), g.LeaderNode, n.note(g.Failure, g.Quarantined),
		})
	}
	return rows
}

// note says what is wrong with the node or one of its replicas.
func (n *nodeReport) note(failure, quarantined string) string {
	switch {
	case n.Failure != "":
		return n.Failure
	case failure != "":
		return failure
	case quarantined != "":
		return "quarantined, getting another state: " + quarantined
	case n.NoSpace:
		return "disk full: writes are refused"
	case n.Founding:
		return "waits for the other founders"
	}
	return ""
}

// statusTimeout bounds one node's answer, so that a silent one does not hide
// the others.
const statusTimeout = 2 * time.Second

func statusContext(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(timeout, statusTimeout))
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

func newMemberCommand(g *globals) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:   "member",
		Short: "Show and change the nodes of the cluster",
		Long: `Show and change the nodes of the cluster.

A change of a node concerns all groups. It is a plan that the cluster keeps and
carries out by itself, step by step, whoever leads; "member ls" shows how far it
is. The commands return once the plan is durable, or with --wait once it is done.

A node joins by itself when it is started with "streamraft node --join" or
"--replace".`,
		Example: `  streamraft member ls
  streamraft member remove n4 --wait`,
	})
	cmd.AddCommand(newMemberListCommand(g), newMemberAddCommand(g, false), newMemberAddCommand(g, true),
		newMemberPromoteCommand(g), newMemberRemoveCommand(g), newTransferLeaderCommand(g, "member"))
	return cmd
}

func newMemberAddCommand(g *globals, replace bool) *cobra.Command {
	var learner, wait bool
	cmd := &cobra.Command{
		Use:   "add ADDRESS",
		Short: "Take the node that runs at an address into the cluster",
		Long: `Take the node that runs at ADDRESS into the cluster. The node was started with an
empty directory and --join, and asks by itself; this is for a node that cannot.`,
		Example: "  streamraft member add 127.0.0.1:7604",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return g.change(cmd, wait, func(ctx context.Context, c *client.Client) (*adminv1.NodePlan, error) {
				return c.AddNode(ctx, arguments[0], replace, learner)
			})
		},
	}
	if replace {
		cmd.Use, cmd.Short, cmd.Example = "replace ADDRESS", "Let the node at an address take the place of the one of its name", "  streamraft member replace 127.0.0.1:7602"
		cmd.Long = `Let the node that runs at ADDRESS take the place of the node of its name, whose
directory is lost. It was started with an empty directory and --replace, and asks
by itself; this is for a node that cannot, or that was to stay a learner. The old
replica is a voter until the new one has caught up; then one change swaps them.`
	}
	cmd.Flags().BoolVar(&learner, "learner", false, "keep it a learner until it is promoted")
	addWaitFlag(cmd, &wait)
	return cmd
}

func newMemberPromoteCommand(g *globals) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "promote NODE",
		Short: "Make a learner a voter",
		Long: `Make a learner a voter of every group. It is refused while the learner is behind.
If the node replaces an earlier one, that one leaves with the same change.`,
		Example: "  streamraft member promote n4",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return g.change(cmd, wait, func(ctx context.Context, c *client.Client) (*adminv1.NodePlan, error) {
				return c.PromoteNode(ctx, arguments[0])
			})
		},
	}
	addWaitFlag(cmd, &wait)
	return cmd
}

func newMemberRemoveCommand(g *globals) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Take a node out of the cluster for good",
		Long: `Take a node out of every group. A leader hands over first. It is refused if a
group would have no majority that answers. The node's directory is of no use to
the cluster any more: a node of that name joins again with an empty one.`,
		Example: "  streamraft member remove n4",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			return g.change(cmd, wait, func(ctx context.Context, c *client.Client) (*adminv1.NodePlan, error) {
				return c.RemoveNode(ctx, arguments[0])
			})
		},
	}
	addWaitFlag(cmd, &wait)
	return cmd
}

func addWaitFlag(cmd *cobra.Command, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "return when the change is done; interrupting it does not end the change")
}

// change asks for a plan, waits for its end if that is wanted, and prints it.
func (g *globals) change(cmd *cobra.Command, wait bool, ask func(context.Context, *client.Client) (*adminv1.NodePlan, error)) error {
	c, err := g.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer c.Close()
	plan, err := ask(cmd.Context(), c)
	if err != nil {
		return err
	}
	report := reportPlan(plan)
	if wait {
		if err := awaitPlan(cmd.Context(), c, plan); err != nil {
			return err
		}
		report.finish()
	}
	if g.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	if report.Done {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is done\n", report.Node, report.Kind)
	} else {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s is under way; streamraft member ls shows how far it is\n", report.Node, report.Kind)
	}
	return err
}

// planPoll is the time between two looks at a plan.
const planPoll = 250 * time.Millisecond

// awaitPlan waits until the cluster has carried a plan out: until it is gone, or
// stands there as done or as another.
func awaitPlan(ctx context.Context, c *client.Client, plan *adminv1.NodePlan) error {
	ticker := time.NewTicker(planPoll)
	defer ticker.Stop()
	for {
		members, err := c.Members(ctx)
		if err != nil {
			return err
		}
		under := false
		for _, m := range members {
			p := m.GetPlan()
			if m.GetNode() == plan.GetNode() && p.GetKind() == plan.GetKind() && !reportPlan(p).Done {
				under = true
			}
		}
		if !under {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

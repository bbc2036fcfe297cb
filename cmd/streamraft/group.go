package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
)

func newGroupCommand(g *globals) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:     "group",
		Short:   "Steer raft groups",
		Example: "  streamraft group transfer-leader n2",
	})
	cmd.AddCommand(newTransferLeaderCommand(g, "group"))
	return cmd
}

// newTransferLeaderCommand makes the command, which stands under two nouns: it is
// about a group's leadership and about a node's.
func newTransferLeaderCommand(g *globals, noun string) *cobra.Command {
	var group uint64
	cmd := &cobra.Command{
		Use:   "transfer-leader [NODE]",
		Short: "Hand a group's leadership to another node",
		Long: `Hand a group's leadership to the named node, or to the voter that is most caught
up. Writes wait meanwhile, for a few milliseconds as a rule.`,
		Example: "  streamraft " + noun + " transfer-leader n2\n  streamraft " + noun + " transfer-leader --group 1",
		Args:    args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			node := ""
			if len(arguments) == 1 {
				node = arguments[0]
			}
			c, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			leader, err := c.TransferLeader(cmd.Context(), group, node)
			if err != nil {
				return err
			}
			if g.json {
				return printJSON(cmd.OutOrStdout(), struct {
					Group  uint64 `json:"group"`
					Leader string `json:"leader"`
				}{group, leader})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s leads group %d\n", leader, group)
			return err
		},
	}
	cmd.Flags().Uint64Var(&group, "group", client.DataGroup, "group whose leadership is handed over")
	return cmd
}

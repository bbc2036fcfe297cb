package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// newConfigCommand makes the commands about config files.
func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Check config files of nodes"}
	cmd.AddCommand(newConfigCheckCommand())
	return parent(cmd)
}

func newConfigCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Check a config file and print what is in effect",
		Long: `Check a config file and print the effective config, every key with its value.

If something is wrong, every problem is named with its line, and the exit code
is 2. Nothing is opened or listened on.`,
		Example: "  streamraft config check node.yaml",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			config, err := nodeConfig(args[0], cmd.Flags())
			if err != nil {
				return withExitCode(exitUsage, err)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), config)
			return err
		},
	}
}

package main

import "github.com/spf13/cobra"

func newSnapshotCommand(g *globals) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:     "snapshot",
		Short:   "Show images on their way between nodes",
		Long:    `Show the images that nodes send each other.`,
		Example: `  streamraft snapshot transfers --watch`,
	})
	cmd.AddCommand(newSnapshotTransfersCommand(g))
	return cmd
}

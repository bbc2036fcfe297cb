package main

import "github.com/spf13/cobra"

// commands lists the command of every noun. A new one is added here and has a
// file of its own.
func commands(g *globals) []*cobra.Command {
	return []*cobra.Command{
		newNodeCommand(),      // node.go
		newConfigCommand(),    // config.go
		newDemoCommand(g),     // demo.go
		newKVCommand(g),       // kv.go
		newStatusCommand(g),   // status.go
		newGroupCommand(g),    // group.go
		newMemberCommand(g),   // member.go
		newSnapshotCommand(g), // snapshot.go
		newBenchCommand(g),    // bench.go
		newVersionCommand(g),  // version.go
	}
}

// Command streamraft runs a node, and reads, writes, loads and shows a cluster
// from the command line. docs/cli.md is its documentation, with the exit codes
// and the JSON schemas that scripts may rely on.
//
// main.go runs the root command; every noun has a file of its own, and
// commands.go lists them. A command returns an error and never exits; exit.go
// gives each error its exit code.
package main

// Command mutants proves that the tests notice what they are for: it breaks the
// code in known ways, one at a time, and wants a named test to fail for each.
//
// A mutant is a file testdata/NAME.patch: a header, an empty line, and a unified
// diff with paths below the module's root that changes existing files.
//
//	Breaks: the log acknowledges a batch before it is synced
//	Caught-by: go test ./raftnode/raftlog -run TestCrash
//	Caught-by: STREAMRAFT_SIM_SEEDS=50 go test ./internal/testcluster -run TestSimulation
//
//	--- a/raftnode/raftlog/append.go
//	+++ b/raftnode/raftlog/append.go
//	@@ ...
//
// A Caught-by line is a command without quotes or shell syntax: environment
// variables, then go test and its arguments. With several the first that fails
// catches the mutant; they are tried in order.
//
// The tree is not touched: the patch is applied to copies of the files it names,
// which the go command uses in their place (-overlay). It fails, with exit
// status 1, if
//
//   - a patch no longer applies: the code has moved on, and so must the mutant;
//   - the mutant does not build: that catches nothing;
//   - every command passes: the mutant survived, and a test is missing;
//   - a command fails without the mutant: then its failure means nothing;
//   - no mutant was found.
//
// Exit status 2 means that it could not run at all.
package main

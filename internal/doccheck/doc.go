// Package doccheck keeps the commands in the documents true. It holds tests
// only, over README.md, CONTRIBUTING.md, BENCHMARKS.md and docs/*.md.
//
// A command is a line that begins with "$ " in a code block marked console;
// lines that begin with "> " continue it, all others are what it prints.
//
//   - Each streamraft command and flag of such a block exists, as the built
//     program says itself.
//   - Each `make` target named there, or anywhere between backquotes, exists.
//   - Blocks marked "console executed" are run: those of one document in order
//     in one bash, in an empty directory, with streamraft in the PATH and as
//     bin/streamraft. Every command must succeed (one in the background, with &,
//     must start; it is ended after the last). What is printed must contain the
//     lines below the command, in order; "..." in a line stands for anything.
//   - README.md has at least one executed block.
package doccheck

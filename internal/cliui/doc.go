// Package cliui is how the command line shows things to people: tables, sizes,
// durations and progress. It writes only to the writers it is given. What
// programs read (--json) does not pass through it.
package cliui

// Package bench measures clusters of real nodes, on disk and on loopback sockets.
//
// MeasureRecovery runs three node processes, takes one away in one of several
// ways, and measures how it comes back: time by stage, bytes, memory, and what
// foreground writes feel meanwhile. MeasureLimits measures what the machine can
// do with the same means, so that a time can be held against the least that is
// possible. Summarize, Row and Markdown make tables of them; `streamraft bench` is
// their command line, BENCHMARKS.md says how to read the figures.
//
// # What is honest here
//
// Foreground operations start when they are due, whether those before have ended
// or not, and count from then: a stall counts against everything that was due
// within it. Sent bytes are what sources put on the wire, in all attempts. Limits
// are measured in the same run, since machines differ from hour to hour.
//
// # Go benchmarks
//
// Throughput has Go benchmarks, three nodes in one process, whose figures are the
// base that later work is compared with (docs/performance.md):
//
//	go test ./bench -run '^$' -bench Put -benchtime 10s -count 10 | tee new.txt
//
// Compare two outputs with benchstat.
//
// # Goroutines
//
// All functions block until they are done or their context ends, and leave no
// goroutine and no process behind.
package bench

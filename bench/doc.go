// Package bench measures clusters of real nodes, and what the machine they run on
// can do. The command `streamraft bench` is a thin layer over it; BENCHMARKS.md
// has the method and results.
//
//   - MeasureLimits (limits.go): disk, sync, gRPC over loopback, zstd.
//   - MeasureRecovery (recovery.go): three node processes, a data set, a node that
//     is taken away in one of several ways (Case), and how it comes back.
//   - Report (report.go): all of a run with its raw samples, as JSON and Markdown.
//
// Below them: data sets (dataset.go), the open-loop load (loop.go, histograms of
// HdrHistogram), the memory of processes (memory.go), what nodes tell of their
// transfers (trace.go), medians and ratios (stats.go).
//
// # What figures mean
//
// Bytes per second are in 10^6 bytes. Latencies under load are counted from the
// moment an operation was due, not from when it was sent, so a stalled system
// cannot hide what it held up. Medians are over repeated runs, with the least and
// the greatest beside them. The limits are measured again before each round of
// runs, and a ratio compares with the limits of its own round.
//
// # Goroutines and files
//
// Every function waits for the goroutines and processes that it started. Files
// are made below a directory of the caller, who removes it.
//
// # Go benchmarks
//
// The benchmarks of this package run three nodes in one process; their figures
// are in docs/performance.md. Compare two outputs with benchstat:
//
//	go test ./bench -run '^$' -bench Put -benchtime 10s -count 10 | tee new.txt
package bench

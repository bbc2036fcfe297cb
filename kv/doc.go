// Package kv is the default state machine: ordered records on one Pebble
// database per group.
//
// A Store implements raftnode.StateMachine, and snapshot.Capturer and
// snapshot.Stager for images of it. What it replicates are commands
// (streamraft.kv.v1.Command), one per Entry; the Encode functions make them and
// DecodeResult reads the answers. Reads (Get, Range) go to the Store directly,
// beside Apply, and see whole indexes only.
//
// # Life cycle
//
//	New -> Open -> Apply ... Get ... Flush ... Install ... -> Close
//	                 \-> failed (Failed, Err, Options.OnFailure) -> Close
//
// Open starts two background goroutines, one that follows flushes and one that
// reads each table once (the scrubber), which Close waits for. A TakeDigest
// command starts another until its digest is computed, and Install one until
// the old state is gone. Pebble has its own.
//
// # What is durable when
//
// The database has no write-ahead log: the raft log is it. Apply makes nothing
// durable. The applied record is written in the same atomic batch as the data
// of its indexes, and an index is never split over two batches, so a crash
// leaves a prefix of the log at an index boundary with its own applied record.
// DurableApplied tells which; Flush raises it to what was applied before. A full
// image is durable as the state when Install returns, all of it or, after a
// crash, nothing; a delta likewise. What Sink.Prepare made is durable when it
// returns, and Open keeps it where Options.KeepImages says so.
//
// # Images
//
// Capture and Install belong to the apply goroutine. Capture.Write, Stage and
// the methods of a Sink may run beside Apply, on any one goroutine; CheckFile on
// several. End a Prepare, by its ctx, before Close. A read uses the state it
// began with: one that outlasts an Install by 30 seconds fails with ErrReplaced.
//
// # Determinism
//
// Apply answers from the log and the state alone. The bounds it enforces are
// constants of the format, and not Options: a node configured differently must
// not apply differently. Limits are for before proposing.
//
// # Failure
//
// An error that Pebble calls fatal, a panic in it, or an error in Apply marks
// the store failed: every later call returns a *FailedError (ErrFailed),
// DurableApplied and Metrics go on from cached figures, and the database is
// touched no more, not even to close it. Goroutines that hang in it are left.
// The goroutine on which Pebble failed ends with runtime.Goexit, which may be
// the caller's in Apply, Get or Range; Open, Flush and Close always return. A
// full disk is no failure where Pebble can repeat the write: it does, with a
// back-off, and goes on when there is space; a MANIFEST that cannot be written
// is one.
//
// Keys, values and the rules behind them are in DESIGN.md and beside the codecs.
package kv

// Package snapshot moves images of a group's state from a replica that has it to
// one that needs it, and keeps them on disk.
//
// An image is immutable and named by (group, index, random id). A state machine
// makes images (Capturer) and takes them (Stager); this package does what lies
// between: it keeps images with their expiry, sends them in chunks within a
// credit, stages what arrives so that nothing has to be sent twice, and checks
// it. Raft hears of an image only when everything fallible is done; that is
// raftnode's part.
//
// # Parts
//
//	Images      the kept images of one group; Provide chooses what serves a request
//	Source      serves SnapshotService on a node: slots, credit, pacing, fencing
//	Receiver    runs a Transfer until its image is staged and READY is on disk
//	Inboxes     the incoming transfers of one group on disk
//	Slots       admit transfers: two sends and two receives on a node
//	RatePacer   slows sends down for the sake of foreground work
//	Counters    what happened, for metrics
//	Archive     images of all groups in one file
//
// # Flow
//
// A replica's leader offers; the receiving node makes a Transfer and calls
// Receive, which waits for a slot, dials one source on a connection of its own,
// and opens an attempt. The source waits for a slot of its own, gets an image
// from its Provider, sends the manifest and then chunks. The receiver writes,
// syncs and checks on goroutines of their own and raises the credit only for
// what is written. When all files are acknowledged and checked, Sink.Prepare
// does what is left, READY is recorded, and Receive returns. Installing is
// between the replica and its Stager.
//
// # Errors and retries
//
// An error ends an attempt, hardly ever a transfer: Receive tries again, goes on
// where it was, and returns an error only where another attempt cannot help.
// What is staged outlives attempts, processes and changes of leader. It is lost,
// and Counters tell why, only when the image is gone, damaged or of no use any
// more.
//
// # Durability
//
// Images.Create returns when the image survives a crash. A file of an inbox
// counts from the moment its record in session.log is synced, after the file and
// its name are. Receive returns when all of the image and READY are durable.
// Removing a directory is one rename; what a crash leaves is swept at open.
//
// # Goroutines
//
// Images, Inboxes, Slots, Source, RatePacer and Counters may be used from any
// goroutine. A Source has goroutines for each attempt and waits for them in
// Close; Receive waits for its own before it returns. Nothing else starts one.
//
// # Limits
//
// Everything from a peer or a disk has a limit, in limits.go, that is checked
// before memory is taken. A transfer holds at most its credit window in memory
// at the receiver (16 MiB, 64 MiB for all of a node) and four chunks at the
// source.
package snapshot

// Package raftlog stores the raft logs of all groups of a node in one
// segmented, append-only log.
//
// # What it promises
//
// When Append returns nil with sync set, everything it was given, and
// everything given to Append before, survives a crash of the process and of the
// machine. With sync unset it survives a crash of the process and becomes
// durable with the next sync. What was given to one Append in one batch is
// replayed whole or not at all, batches are replayed in order, and none is left
// out: what Open finds is a prefix of what was appended that holds everything
// synced.
//
// Open tells a torn tail from corruption. A batch that some later batch knows to
// be synced must be whole; if it is not, Open fails with a CorruptError and has
// changed nothing on disk. What lies behind the last such batch was never
// acknowledged and is cut where it is incomplete. The last batch has no later
// one; ProveEnd writes an empty one behind it, so call it when the node idles.
//
// # Groups
//
// A group has a marker (index and term up to which entries are gone), entries
// behind it without a gap, and a hard state. Appending at an index deletes the
// group's entries from there on. Moving the marker deletes the entries up to it.
// Disk space comes back in whole segments, oldest first, once the deletion is
// synced. A group that keeps little of an old segment alive has these entries
// rewritten at the end of the log.
//
// # Goroutines
//
// Append, ProveEnd and Close belong to one goroutine, the append goroutine of
// the node (they exclude each other, so a mistake is slow, not wrong). Everything
// else may be called from any goroutine beside it. Group.Term, FirstIndex,
// LastIndex, Marker, HardState and LiveBytes do no I/O; Entries does when an
// entry is no longer cached. The log owns one goroutine, which makes and recycles
// segment files; Close ends it.
//
// # Errors
//
// ErrInvalidUpdate and ErrNoSpace leave the log as it was; the same Append may
// be tried again once the cause is gone. Any other failed write or sync fails
// the log for good (ErrFailed): after a failed fsync nobody knows what the disk
// holds, so the only way on is a new Open. Nothing panics on what the disk holds.
//
// # Files
//
// DESIGN.md beside this file specifies every byte. The log touches only files in
// Options.Dir that are named like its own; the directory is locked by its owner,
// not here.
package raftlog

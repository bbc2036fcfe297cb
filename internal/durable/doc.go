// Package durable writes small files so that a crash leaves the old content or
// the new, never a mixture and never nothing.
//
// It is for the files that are rewritten whole and rarely: who a node is, what
// it was founded with, which replica a directory holds. Logs, tables and images
// have formats of their own.
//
// # Durability
//
// WriteFile and WriteRecord write a temporary file beside the target, sync it,
// rename it over the target and sync the directory; when they return nil the
// new content survives a crash. When they return an error the target holds the
// old content or the new one, whole in either case. MkdirAll makes directories
// that survive a crash as soon as it returns nil. The target's directory itself
// must have been made with MkdirAll (or be synced otherwise), or the file may go
// with it.
//
// # Integrity
//
// A record file adds a header with a magic number, a version, a length and a
// checksum, so that a torn, foreign or damaged file is told from a good one;
// ReadRecord then returns a *RecordError that names the file, the offset, the
// reason and what to do. A file that is absent is not damage: the error is
// fs.ErrNotExist.
//
// # Goroutines
//
// All functions block on the file system and may be called from any goroutine;
// calls that write the same path must not overlap, because they share the
// temporary file. The package keeps no state and starts no goroutine.
package durable

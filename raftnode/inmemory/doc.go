// Package inmemory makes a replicated state machine of a state in memory that can
// be saved and restored.
//
// A user writes a Machine: Apply, Save(io.Writer), Restore(io.Reader). New makes
// of it what raftnode wants of a state machine, with images, so that the log can
// be cut and a replica that the log no longer reaches gets the state:
//
//	NewStateMachine: func(group uint64) raftnode.StateMachine {
//		s, _ := inmemory.New(inmemory.Options[*counters]{New: newCounters})
//		return s
//	}
//
// and to read, on any node:
//
//	_, err = group.Read(ctx, raftnode.ReadOptions{})
//	machine := group.StateMachine().(*inmemory.StateMachine[*counters]).Machine()
//
// # What is durable
//
// Nothing but the newest kept image and the raft log. An image is what Save wrote
// at one index, with the applied record of that index. Flush keeps a new one and
// removes the one before when the new one is durable; DurableApplied is the index
// of the kept one, so the log is cut only below it. A start restores the kept
// image and applies the log above it again. raftnode flushes when the log is over
// Options.LogBudgetBytes: each time the whole state is written, so give the log a
// budget about the size of the state.
//
// A crash at any moment leaves the old image or the new one, and what it left
// half made is removed at Open. A full disk ends a save or a transfer and leaves
// nothing; the old image stays.
//
// # Consistent views
//
// Save sees the state at one index. For a plain Machine that means that Apply
// waits until Save returned: a save of 1 GB stops writes of the group for seconds.
// A machine that can make a cheap view, by copy-on-write, implements Snapshotter:
// Apply then waits only for that, and the view is saved beside it.
//
// # Determinism
//
// Apply answers from its arguments and the state alone. What Restore makes of
// what Save wrote must behave as the saved state did, in all that is replicated:
// the same later entries give the same results. Nothing of a machine's identity
// (addresses, times, random numbers of its own) belongs in the stream. The bytes
// of Save need not be the same on all replicas. The applied record is kept beside
// the stream; Save need not write it.
//
// # Images that travel
//
// They are kept as zstd blocks in files of bounded size (block.go, record.go) and
// sent as they are, by hard links to the kept ones; kind STREAM. Capture gives out
// the kept image, or says that it is too old and has raftnode flush. Write reads
// it once and compares the digests. A receiver restores an image into a second
// machine before it is installed, while the old one serves reads; both are in
// memory until then. Installing moves a marker of one file. Besides the machines,
// a save takes 4 MiB and an encoder, a restore one block and a decoder, however
// large the state is.
//
// # Goroutines
//
// raftnode calls the methods as raftnode.StateMachine and package snapshot say.
// Of a Machine, Apply is called by one goroutine at a time; Save, Snapshot and
// Apply exclude each other; Restore happens before anything else. View.Save runs
// beside Apply. Reads are the user's and run beside all of them. New is called
// from any goroutine. A panic in Save, Snapshot or Restore is taken as an error.
//
// Each save has a goroutine that compresses and writes, and each removal of an
// image has one; Close waits for them.
package inmemory

package raftnode

// StateMachine is what a user replicates. raftnode calls it so that every
// replica of a group sees the same calls with the same arguments in the same
// order; the state machine answers only from those arguments and its own
// state. It reads no clock, no random source and no environment.
//
// # Goroutines
//
// A replica that is opened anew in place gets another state machine from
// Options.NewStateMachine; what follows is about one. Open is called once, before
// anything else. Apply is called by one goroutine at a time, the group's apply
// goroutine. DurableApplied and Flush are called by other goroutines and may run
// beside Apply and each other, and, where the replica is opened anew, for a moment
// after Close. Close is called once, after the last Apply; a Flush that still runs
// must end soon after. Reads of the state are between the user's code and the
// state machine; they may run beside Apply and must not see half an index.
//
// # Durability
//
// The raft log is the write-ahead log: Apply need not sync. What survives a
// crash must be the effect of a prefix of the applied entries together with
// the Applied record of exactly that prefix, atomically. raftnode applies the
// entries above it again after a restart and cuts the log only below
// DurableApplied.
//
// # Errors
//
// An error, a panic or a runtime.Goexit in Apply stops the replica: it neither
// votes nor applies again until the node is opened anew. Refusals that belong
// to the application (a failed compare, an unknown session) are Results, not
// errors. An error that matches ErrUnsound, from Open or Apply, tells that the
// state cannot be used: where images travel (SnapshotOptions) the replica is
// quarantined instead and gets another state. After such an error of Open only
// Stage, Install and Close are called.
//
// A state machine with a method ReportDigests(func(index uint64, digest []byte))
// is given a function before Open, to be called with the digest, at most 64
// bytes, that it took of its state at an index; it may be called from any
// goroutine and returns at once. Replicas that took digests of the same index
// compare them, and one that differs from most voters is quarantined.
//
// A state machine that also implements snapshot.Capturer and snapshot.Stager can
// be sent to replicas that the log no longer reaches; the log of one that does
// not is kept until every member has it.
type StateMachine interface {
	// Open opens or creates the state in dir, which exists and belongs to the
	// state machine alone. It returns the applied record of the state; the
	// zero Applied for a new one. It may block; an error stops the replica, but
	// see Errors above.
	Open(dir string) (Applied, error)

	// Apply applies entries in order. Every index of the log arrives exactly
	// once, in order, with no index left out; all entries of an index come in
	// the same call and become visible and durable together. It returns one
	// Result per Entry. Entries and their Data are valid only during the call.
	Apply(entries []Entry) ([]Result, error)

	// DurableApplied returns the highest index whose effect, with the applied
	// record, would survive a crash now. It never goes back. It must not block
	// on Apply.
	DurableApplied() uint64

	// Flush makes everything applied before the call durable and returns then.
	// It may block for as long as writing takes; Apply goes on meanwhile.
	Flush() error

	// Close releases everything. It waits for readers of the state.
	Close() error
}

// Rebaser is a StateMachine whose state can begin another history, as Restore
// does with the images of an archive.
type Rebaser interface {
	StateMachine

	// Rebase makes a, which lies above the present one, the applied record of the
	// state and keeps the rest, but for what speaks of the indexes, terms or
	// members of the old history. It is atomic, and durable on return. It is called
	// once, after Open or Install and before any Apply; the state machine is closed
	// then.
	Rebase(a Applied) error
}

// Applied is the applied record: the position of a state in the log. The state
// machine stores it atomically with every index it applies and returns it from
// Open.
type Applied struct {
	// Index and Term of the last applied entry; 0 for a new state.
	Index uint64
	Term  uint64
	// Clock is the Clock of the last applied Entry. It lets a replica that was
	// restarted, or got its state from another, go on with the same monotonic
	// clock as the rest.
	Clock int64
	// Membership is the group's membership at Index: the last non-nil
	// Entry.Membership. Opaque to the state machine.
	Membership []byte
}

// Entry is one command at one position of the log.
type Entry struct {
	// Index and Term of the log entry.
	Index uint64
	Term  uint64
	// Ordinal is the position of the command in its log entry, from 0. Index
	// and Ordinal make the command's Revision.
	Ordinal uint16
	// Last tells that no further command of this Index follows.
	Last bool
	// Clock is the leader's time when it packed the log entry, in milliseconds
	// since the Unix epoch, made monotonic over the log: it never goes back
	// from one entry to the next. Use it for expiry; never read a local clock.
	Clock int64
	// Data is the command as it was proposed. nil for an entry that carries
	// none: a new leader's empty entry or a configuration change.
	Data []byte
	// Membership is not nil where the entry changed the membership: the
	// membership after the change, to be stored with Applied.
	Membership []byte
}

// Revision returns the entry's position as one number: Index << 16 | Ordinal.
// Revisions of a group rise with the order of application.
func (e *Entry) Revision() uint64 { return Revision(e.Index, e.Ordinal) }

// Applied returns the applied record that goes with this entry, given the
// membership so far.
func (e *Entry) Applied(membership []byte) Applied {
	if e.Membership != nil {
		membership = e.Membership
	}
	return Applied{Index: e.Index, Term: e.Term, Clock: e.Clock, Membership: membership}
}

// MaxOrdinals is the number of commands one log entry can hold: a revision has
// 16 bits for the ordinal.
const MaxOrdinals = 1<<16 - 1

// Revision returns index << 16 | ordinal.
func Revision(index uint64, ordinal uint16) uint64 { return index<<16 | uint64(ordinal) }

// Result is what the application of one command answered.
type Result struct {
	// Revision of the command; raftnode fills it in.
	Revision uint64
	// Data is the state machine's answer, delivered to the proposer if it still
	// waits. Its meaning is the state machine's; raftnode neither stores nor
	// replicates it.
	Data []byte
}

package testcluster

import (
	"math/rand/v2"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/streamraft/streamraft/raftnode"
)

// trapKind is the promise at which a node crashes.
type trapKind string

const (
	trapVote        trapKind = "a vote"             // given to a peer
	trapAcknowledge trapKind = "an acknowledgement" // of entries, to the leader
	trapAnswer      trapKind = "an answer to a client"

	// Right before these nothing was promised, but much is half done: no virtual
	// time passes between a write and its sync, so other crashes never come there.
	trapSync      trapKind = "a sync of the log"
	trapOperation trapKind = "a change of the file system"

	// While an image travels.
	trapImageSent     trapKind = "a piece of an image to send"
	trapImageReceived trapKind = "a piece of an image that arrives"
	// Right before the state is replaced by an image, and right after, when the
	// log does not know yet.
	trapInstall   trapKind = "an installation"
	trapInstalled trapKind = "an installed state"
)

// trap crashes a node at the very moment of a promise: it leaves, but nothing
// the node does afterwards counts. What was promised before it was durable is
// lost then; a crash at any other time rarely meets that moment.
type trap struct {
	kind   trapKind
	count  int // of moments, the last of which springs it
	crash  crashKind
	random *rand.Rand
	// many: only syncs of at least two new entries of the data group count.
	many   bool
	synced uint64 // last entry of it that an earlier sync made durable
}

// arm sets a trap, in place of one that was not sprung.
func (r *run) arm(t *trap) {
	t.synced = r.lastEntry()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trap = t
}

// disarm takes the trap back and tells whether the node crashed.
func (r *run) disarm() (crashed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trap = nil
	return r.crashed
}

// meets tells the trap of such a moment.
func (r *run) meets(kind trapKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.springs(kind)
}

// operation is called before each operation on the node's disk.
func (r *run) operation(op errorfs.Op) {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return
	}
	if f := r.member.cluster.onOperation; f != nil {
		f(r.member)
	}
	sync := op.Kind == errorfs.OpFileSyncData && isLogFile(op.Path)
	last := uint64(0)
	if sync && r.armed(trapSync) {
		last = r.lastEntry()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.springs(trapOperation)
	if sync && r.trap != nil {
		few := r.trap.many && last < r.trap.synced+2
		r.trap.synced = max(r.trap.synced, last)
		if !few && r.springs(trapSync) {
			r.left.remember(r.member.disk)
		}
	}
}

func (r *run) armed(kind trapKind) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trap != nil && r.trap.kind == kind
}

// lastEntry returns the index of the last entry of the data group, written and
// perhaps not synced; 0 while the node opens.
func (r *run) lastEntry() uint64 {
	r.mu.Lock()
	node := r.node
	r.mu.Unlock()
	if node == nil {
		return 0
	}
	g, err := node.Group(raftnode.FirstDataGroup)
	if err != nil {
		return 0
	}
	return g.Status().LastIndex
}

// springs tells the trap of such a moment, and whether that springs it; the
// caller holds r.mu.
func (r *run) springs(kind trapKind) bool {
	t := r.trap
	if t == nil || t.kind != kind || r.crashed {
		return false
	}
	if t.count--; t.count > 0 {
		return false
	}
	r.member.cluster.trace.add("%s is trapped by %s", r, kind)
	r.member.cluster.checker.count(func(totals *Totals) { totals.Traps++; totals.countCrash(t.crash) })
	switch kind {
	case trapImageSent, trapImageReceived:
		r.member.cluster.checker.count(func(totals *Totals) { totals.ImageCrashes++ })
	case trapInstall, trapInstalled:
		r.member.cluster.checker.count(func(totals *Totals) { totals.InstallCrashes++ })
	}
	r.crashLocked(t.crash, t.random)
	return true
}

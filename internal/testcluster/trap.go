package testcluster

import "math/rand/v2"

// trapKind is the promise at which a node crashes.
type trapKind string

const (
	trapVote        trapKind = "a vote"             // given to a peer
	trapAcknowledge trapKind = "an acknowledgement" // of entries, to the leader
	trapAnswer      trapKind = "an answer to a client"
)

// trap crashes a node at the very moment of a promise: it leaves, but nothing
// the node does afterwards counts. What was promised before it was durable is
// lost then; a crash at any other time rarely meets that moment.
type trap struct {
	kind   trapKind
	count  int // of promises, the last of which springs it
	crash  crashKind
	random *rand.Rand
}

// arm sets a trap, in place of one that was not sprung.
func (r *run) arm(t *trap) {
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

// springs tells the trap of a promise; the caller holds r.mu.
func (r *run) springs(kind trapKind) {
	t := r.trap
	if t == nil || t.kind != kind || r.crashed {
		return
	}
	if t.count--; t.count > 0 {
		return
	}
	r.member.cluster.trace.add("%s is trapped by %s", r, kind)
	r.member.cluster.checker.count(func(totals *Totals) { totals.Traps++; totals.countCrash(t.crash) })
	r.crashLocked(t.crash, t.random)
}

package raftnode

import (
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// recoveryGrace is how soon after a recovery another one counts as the same: the
// log went on past a replica that had just caught up.
const recoveryGrace = 10 * time.Second

// recovery is a replica's way back from behind the log: one transfer or several,
// then the log. It belongs to the step goroutine, and ends with the process.
type recovery struct {
	on    bool
	since time.Duration // by the node's age, as ended
	ended time.Duration // of the last one that ended; 0: none did
	full  []byte        // the full image that it got
}

// begin notes that a transfer begins.
func (r *recovery) begin(now time.Duration) {
	if r.on {
		return
	}
	if r.ended == 0 || now-r.ended > recoveryGrace {
		r.full = nil
	}
	r.on, r.since = true, now
}

// got notes an image that is READY. It tells whether it is a full one after
// another full one.
func (r *recovery) got(m *snapshotv1.Manifest) (repeated bool) {
	if m.GetKind() == snapshotv1.Kind_KIND_RECORDS {
		return false
	}
	repeated = r.full != nil && string(r.full) != string(m.GetImage())
	r.full = m.GetImage()
	return repeated
}

// end notes that the replica has caught up and returns how long that took.
func (r *recovery) end(now time.Duration) time.Duration {
	r.on, r.ended = false, now
	return now - r.since
}

// counters returns where transfers are counted; those of nobody if the owner of
// the node gave none.
func (g *Group) counters() *snapshot.Counters {
	if o := g.node.opts.Snapshots; o != nil && o.Counters != nil {
		return o.Counters
	}
	return new(snapshot.Counters)
}

// gotImage counts a READY image of the recovery.
func (r *receiving) gotImage(m *snapshotv1.Manifest) {
	if r.recovery.got(m) {
		r.g.log.Warn("a second full image in one recovery; the first should have been enough, with the log or a delta behind it",
			"image", snapshot.FormatID(m.GetImage()), "index", m.GetIndex())
		r.g.counters().CountRepeatedFull()
	}
}

// recovered notes that the replica follows the log again.
func (r *receiving) recovered() {
	if r.recovery.on {
		r.g.counters().ObserveRecovery(r.recovery.end(r.g.node.age()))
	}
}

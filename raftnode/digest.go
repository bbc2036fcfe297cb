package raftnode

import (
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Replicas at the same index are identical; digests check it. A state machine
// takes one when a command tells it to, so all take it at the same index, and
// each replica reports its own to the leader. A replica whose digest is not that
// of most voters has an unsound state, and is told so. Where no digest has a
// majority nobody can say who is right: that is only told, loudly.

const (
	// maxDigestRounds is how many indexes are remembered.
	maxDigestRounds = 16
	// maxDigestBytes bounds a digest.
	maxDigestBytes = 64
	// digestPatience is how long digests that differ wait for the voters that have
	// not reported, before that is told.
	digestPatience = time.Minute
)

// digestRounds are digests by index and replica. They belong to the step
// goroutine. Those of others are the leader's to know.
type digestRounds struct {
	indexes []uint64 // the oldest first
	rounds  map[uint64]*digestRound
}

// digestRound is one index.
type digestRound struct {
	digests map[uint64]string
	begun   int  // ticks of the group when the first was noted
	late    bool // judged without those who have not reported
	alarmed bool // told that nobody can tell who is right
}

// note enters a digest; false if it is known already.
func (d *digestRounds) note(index, replica uint64, digest []byte, ticks int) bool {
	round := d.rounds[index]
	if round == nil {
		if d.rounds == nil {
			d.rounds = make(map[uint64]*digestRound)
		}
		if len(d.indexes) == maxDigestRounds {
			delete(d.rounds, d.indexes[0])
			d.indexes = slices.Delete(d.indexes, 0, 1)
		}
		round = &digestRound{digests: make(map[uint64]string), begun: ticks}
		d.rounds[index] = round
		d.indexes = append(d.indexes, index)
	}
	if _, known := round.digests[replica]; known || len(round.digests) == maxRoutes {
		return false
	}
	round.digests[replica] = string(digest)
	return true
}

// digestTaken takes the digest of this replica's own state.
func (g *Group) digestTaken(index uint64, digest []byte) {
	if len(digest) == 0 || len(digest) > maxDigestBytes || !g.digests.note(index, g.raftID, digest, g.ticks) {
		return
	}
	if g.soft.Load().role == RoleLeader {
		g.judgeDigests(index)
		return
	}
	if lead := g.raw.BasicStatus().Lead; lead != 0 {
		g.sendControl(lead, &snapshotv1.Control{Message: &snapshotv1.Control_DigestReport{DigestReport: &snapshotv1.DigestReport{
			Group: g.id, Replica: g.raftID, Index: index, Digest: digest,
		}}})
	}
}

// digestReported takes the digest of another replica.
func (g *Group) digestReported(from uint64, r *snapshotv1.DigestReport) {
	if g.soft.Load().role != RoleLeader || r.GetReplica() != from || len(r.GetDigest()) == 0 || len(r.GetDigest()) > maxDigestBytes {
		return
	}
	if g.digests.note(r.GetIndex(), from, r.GetDigest(), g.ticks) {
		g.judgeDigests(r.GetIndex())
	}
}

// judgeDigests looks for a majority among the digests of an index.
func (g *Group) judgeDigests(index uint64) {
	round, voters := g.digests.rounds[index], g.members.Load().GetVoters()
	digests := round.digests
	votes := make(map[string]int)
	reported := 0
	for _, voter := range voters {
		if digest, ok := digests[voter]; ok {
			reported++
			votes[digest]++
		}
	}
	for digest, count := range votes {
		if 2*count <= len(voters) {
			continue
		}
		for replica, other := range digests {
			if other == digest {
				continue
			}
			g.log.Error("a replica's state differs from that of the majority", "replica", g.nodeOf(replica), "index", index)
			verdict := &snapshotv1.DigestVerdict{Group: g.id, Index: index, Digest: []byte(digest)}
			if replica == g.raftID {
				g.digestJudged(verdict)
				continue
			}
			g.sendControl(replica, &snapshotv1.Control{Message: &snapshotv1.Control_DigestVerdict{DigestVerdict: verdict}})
		}
		return
	}
	// Who has not reported yet may decide it, but may also be down.
	if len(votes) > 1 && (reported == len(voters) || round.late) && !round.alarmed {
		round.alarmed = true
		g.metrics.digestAlarms.Add(1)
		g.log.Error("the replicas' states differ and no majority agrees: nobody can tell which is right. Stop writing, keep all directories, and restore from a snapshot that was verified",
			"index", index, "voters", len(voters), "reported", reported)
	}
}

// checkDigests looks at the rounds that have waited for long.
func (g *Group) checkDigests() {
	if g.soft.Load().role != RoleLeader {
		return
	}
	for _, index := range g.digests.indexes {
		if r := g.digests.rounds[index]; !r.late && g.ticks-r.begun >= g.offers.ticksOf(digestPatience) {
			r.late = true
			g.judgeDigests(index)
		}
	}
}

// digestJudged takes the verdict on an index.
func (g *Group) digestJudged(v *snapshotv1.DigestVerdict) {
	round := g.digests.rounds[v.GetIndex()]
	if round == nil {
		return
	}
	own, ok := round.digests[g.raftID]
	if !ok || own == string(v.GetDigest()) || len(v.GetDigest()) == 0 {
		return
	}
	// The verdict may come again, and find another state by then.
	delete(round.digests, g.raftID)
	g.metrics.digestMismatches.Add(1)
	g.enterQuarantine(fmt.Errorf("the digest of the state at index %d is %x, most voters have %x", v.GetIndex(), own, v.GetDigest()))
}

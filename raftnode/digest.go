package raftnode

import (
	"fmt"
	"slices"

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
)

// digestRounds are digests by index and replica. They belong to the step
// goroutine. Those of others are the leader's to know.
type digestRounds struct {
	indexes []uint64 // the oldest first
	digests map[uint64]map[uint64]string
}

// note enters a digest; false if it is known already.
func (d *digestRounds) note(index, replica uint64, digest []byte) bool {
	round := d.digests[index]
	if round == nil {
		if d.digests == nil {
			d.digests = make(map[uint64]map[uint64]string)
		}
		if len(d.indexes) == maxDigestRounds {
			delete(d.digests, d.indexes[0])
			d.indexes = slices.Delete(d.indexes, 0, 1)
		}
		round = make(map[uint64]string)
		d.digests[index] = round
		d.indexes = append(d.indexes, index)
	}
	if _, known := round[replica]; known || len(round) == maxRoutes {
		return false
	}
	round[replica] = string(digest)
	return true
}

// digestTaken takes the digest of this replica's own state.
func (g *Group) digestTaken(index uint64, digest []byte) {
	if len(digest) == 0 || len(digest) > maxDigestBytes || !g.digests.note(index, g.raftID, digest) {
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
	if g.digests.note(r.GetIndex(), from, r.GetDigest()) {
		g.judgeDigests(r.GetIndex())
	}
}

// judgeDigests looks for a majority among the digests of an index.
func (g *Group) judgeDigests(index uint64) {
	round, voters := g.digests.digests[index], g.members.Load().GetVoters()
	votes := make(map[string]int)
	reported := 0
	for _, voter := range voters {
		if digest, ok := round[voter]; ok {
			reported++
			votes[digest]++
		}
	}
	for digest, count := range votes {
		if 2*count <= len(voters) {
			continue
		}
		for replica, other := range round {
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
	if reported == len(voters) {
		g.metrics.digestAlarms.Add(1)
		g.log.Error("the replicas' states differ and no majority agrees: nobody can tell which is right. Stop writing, keep all directories, and restore from a snapshot that was verified",
			"index", index)
	}
}

// digestJudged takes the verdict on an index.
func (g *Group) digestJudged(v *snapshotv1.DigestVerdict) {
	own, ok := g.digests.digests[v.GetIndex()][g.raftID]
	if !ok || own == string(v.GetDigest()) || len(v.GetDigest()) == 0 {
		return
	}
	g.metrics.digestMismatches.Add(1)
	g.enterQuarantine(fmt.Errorf("the digest of the state at index %d is %x, most voters have %x", v.GetIndex(), own, v.GetDigest()))
}

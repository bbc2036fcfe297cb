package testcluster

import (
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// inspectLog looks at the log that the last run left, in a copy, and compares it
// with what the replica promised while it ran.
func (m *member) inspectLog() {
	c := m.cluster.checker
	// The copy also is what the next Open finds: everything in it is synced.
	fs := m.disk.mem.CrashClone(vfs.CrashCloneCfg{})
	l, err := raftlog.Open(raftlog.Options{
		FS: fs, Dir: fs.PathJoin(nodeDir, logDirName), SegmentBytes: m.cluster.plan.SegmentBytes, CacheBytes: -1,
	})
	if err != nil {
		c.violation("%s: the log that run %d left does not open: %v", m.name, m.runs, err)
		return
	}
	for _, group := range groups() {
		m.inspectGroup(l.Group(group), group)
	}
	if err := l.Close(); err != nil {
		c.violation("%s: close the copy of the log: %v", m.name, err)
	}
}

func (m *member) inspectGroup(g *raftlog.Group, group uint64) {
	c, p := m.cluster.checker, m.promise(group)
	hs, first, last := g.HardState(), g.FirstIndex(), g.LastIndex()
	where := m.name + " after its crash"
	m.cluster.trace.add("%s left group %d at term %d, vote %x, commit %d, log %d to %d", m.name, group, hs.GetTerm(), hs.GetVote(), hs.GetCommit(), first, last)
	if hs.GetTerm() < p.term {
		c.violation("%s: group %d is at term %d, but it has answered in term %d", where, group, hs.GetTerm(), p.term)
	}
	if vote, voted := c.vote(m.name, group, hs.GetTerm()); voted && hs.GetVote() != vote {
		c.violation("%s: group %d forgot its vote for %x in term %d, it has %x", where, group, vote, hs.GetTerm(), hs.GetVote())
	}
	// A leader of a later term may have had the tail overwritten; then the term
	// on disk, written with it, is a later one too.
	if hs.GetTerm() == p.ackTerm && last < p.index {
		c.violation("%s: the log of group %d ends at %d, but in term %d it has acknowledged %d", where, group, last, p.ackTerm, p.index)
	}
	entries, err := g.Entries(first, last+1, math.MaxUint64)
	if err != nil {
		c.violation("%s: read the log of group %d: %v", where, group, err)
		return
	}
	terms := m.logTerms(group)
	clear(terms)
	term := g.Marker().Term
	for _, e := range entries {
		c.logEntry(m.name, group, e)
		if e.GetTerm() < term {
			c.violation("%s: entry %d of group %d has term %d, the one before has %d", where, e.GetIndex(), group, e.GetTerm(), term)
		}
		term = e.GetTerm()
		terms[e.GetIndex()] = term
		// What is committed here is what everybody applied there.
		if applied, ok := c.committedTerm(group, e.GetIndex()); ok && e.GetIndex() <= hs.GetCommit() && applied != term {
			c.violation("%s: entry %d of group %d has term %d, applied was term %d", where, e.GetIndex(), group, term, applied)
		}
	}
	// Entries and the term that came with them are one batch.
	if term > hs.GetTerm() {
		c.violation("%s: the log of group %d ends with term %d, the hard state is at term %d: half a batch", where, group, term, hs.GetTerm())
	}
	if hs.GetCommit() > last {
		c.violation("%s: group %d has commit index %d, its log ends at %d", where, group, hs.GetCommit(), last)
	}
}

package testcluster

import (
	"errors"
	"math"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// inspectLog looks at the log that the last run left, in a copy, and compares it
// with what the replica promised while it ran.
func (m *member) inspectLog() {
	c := m.cluster.checker
	// The copy also is what the next Open finds: everything in it is synced.
	l, err := m.openLog(m.disk.mem.CrashClone(vfs.CrashCloneCfg{}))
	if err != nil {
		c.violation("%s: the log that run %d left does not open: %v", m.name, m.runs, err)
		return
	}
	for _, group := range groups() {
		m.inspectGroup(l.Group(group), group)
	}
	if m.disk.none != nil {
		m.compareLogs(l)
	}
	if err := l.Close(); err != nil {
		c.violation("%s: close the copy of the log: %v", m.name, err)
	}
}

func (m *member) openLog(fs *vfs.MemFS) (*raftlog.Log, error) {
	return raftlog.Open(raftlog.Options{
		FS: fs, Dir: fs.PathJoin(nodeDir, logDirName), SegmentBytes: m.cluster.plan.SegmentBytes, CacheBytes: -1,
	})
}

// position is what a batch changes in a group, but for the commit index, which
// batches of their own may change without a sync.
type position struct{ last, lastTerm, term, vote uint64 }

func positionOf(g *raftlog.Group) (position, error) {
	hs, last := g.HardState(), g.LastIndex()
	term, err := g.Term(last)
	return position{last, term, hs.GetTerm(), hs.GetVote()}, err
}

// compareLogs checks that the batch which was being written when the node
// crashed is there whole or not at all, in every group.
func (m *member) compareLogs(l *raftlog.Log) {
	c := m.cluster.checker
	var bounds [2]*raftlog.Log
	for i, fs := range []*vfs.MemFS{m.disk.none, m.disk.all} {
		bound, err := m.openLog(fs)
		if err != nil {
			c.violation("%s: the log with %s of its last batch does not open: %v", m.name, []string{"none", "all"}[i], err)
			return
		}
		defer func() {
			if err := bound.Close(); err != nil {
				c.violation("%s: close the copy of the log: %v", m.name, err)
			}
		}()
		bounds[i] = bound
	}
	for _, group := range groups() {
		left, err := positionOf(l.Group(group))
		none, errNone := positionOf(bounds[0].Group(group))
		all, errAll := positionOf(bounds[1].Group(group))
		if err := errors.Join(err, errNone, errAll); err != nil {
			c.violation("%s: group %d: %v", m.name, group, err)
		} else if left != none && left != all {
			c.violation("%s after its crash: group %d is at %+v, but the batch that was written led from %+v to %+v: half a batch", m.name, group, left, none, all)
		}
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
	if vote, voted := c.vote(m.voter(), group, hs.GetTerm()); voted && hs.GetVote() != vote {
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

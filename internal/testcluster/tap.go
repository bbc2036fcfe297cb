package testcluster

import (
	"go.etcd.io/raft/v3/raftpb"

	"github.com/streamraft/streamraft/raftnode/transport"
)

// tap stands between a node and the network. It tells the checker what the node
// promises to its peers, and keeps a crashed node silent.
type tap struct {
	transport.Transport
	run *run
}

// Send sends, unless the node crashed.
func (t *tap) Send(node string, m transport.GroupMessage) {
	alive := t.run.unlessCrashed(func() {
		if f := t.run.member.cluster.tuning.sends; f != nil {
			f(t.run.member, m)
		}
		t.run.promises(node, m)
	})
	if f := t.run.member.cluster.tuning.loses; f != nil && f(t.run.member, m) {
		return
	}
	if alive {
		t.Transport.Send(node, m)
	}
}

// Start puts an ear between the network and the node.
func (t *tap) Start(h transport.Handler) error { return t.Transport.Start(&ear{h, t.run}) }

// ear counts what a node will overwrite in its log.
type ear struct {
	transport.Handler
	run *run
}

// Receive looks at the entries that arrive and hands everything on.
func (e *ear) Receive(from string, messages []transport.GroupMessage) {
	for _, m := range messages {
		if f := e.run.member.cluster.tuning.hears; f != nil {
			f(e.run.member, m)
		}
		if m.Message.GetType() == raftpb.MsgApp {
			e.run.unlessCrashed(func() { e.run.arrives(m.Group, m.Message.GetEntries()) })
		}
	}
	e.Handler.Receive(from, messages)
}

// promise is what a replica told others that it has on its disk.
type promise struct {
	term  uint64 // of the last acknowledgement or vote
	index uint64 // highest acknowledged in ackTerm
	// ackTerm is the term of the last acknowledgement of entries.
	ackTerm uint64
}

// promises notes what a message vouches for; the caller holds r.mu.
//
// Votes and acknowledgements of entries leave only when the term, the vote and
// the entries are durable. A candidate's request and a leader's entries may leave
// before, but a leader has voted for itself.
func (r *run) promises(to string, m transport.GroupMessage) {
	c, msg := r.member.cluster.checker, m.Message
	name, group, term := r.member.name, m.Group, msg.GetTerm()
	if r.member.cluster.verbose {
		c.trace.add("%s -> %s group %d %v term %d log %d.%d commit %d entries %d reject %v", name, to, group, msg.GetType(), term,
			msg.GetLogTerm(), msg.GetIndex(), msg.GetCommit(), len(msg.GetEntries()), msg.GetReject())
	}
	p := r.member.promise(group)
	switch msg.GetType() {
	case raftpb.MsgVoteResp:
		if !msg.GetReject() {
			c.voted(r.member.voter(), group, term, msg.GetTo())
		}
		r.durablePromise(group, term, p)
		if !msg.GetReject() {
			r.springs(trapVote)
		}
	case raftpb.MsgAppResp:
		r.durablePromise(group, term, p)
		if !msg.GetReject() && msg.GetIndex() > 0 {
			if term > p.ackTerm {
				p.ackTerm, p.index = term, 0
			}
			if term == p.ackTerm && msg.GetIndex() > p.index {
				p.index = msg.GetIndex()
				r.springs(trapAcknowledge)
			}
		}
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgTimeoutNow:
		c.leads(group, term, name)
		c.voted(r.member.voter(), group, term, msg.GetFrom())
		for _, e := range msg.GetEntries() {
			c.logEntry(name, group, e)
		}
		r.arrives(group, msg.GetEntries())
	}
}

// durablePromise: the message could leave only after a sync that worked.
func (r *run) durablePromise(group, term uint64, p *promise) {
	if r.syncFailed {
		r.member.cluster.checker.violation("%s acknowledged to a peer in group %d after a sync of its log failed", r, group)
	}
	if term < p.term {
		r.member.cluster.checker.violation("%s went back from term %d to %d in group %d", r, p.term, term, group)
	}
	p.term = term
}

// arrives counts entries that take the place of others in the log; the caller
// holds r.mu. It is a figure, not a check: that an entry arrived does not mean
// that it was taken.
func (r *run) arrives(group uint64, entries []*raftpb.Entry) {
	terms := r.member.logTerms(group)
	for _, e := range entries {
		known := terms[e.GetIndex()]
		if e.GetTerm() > known {
			terms[e.GetIndex()] = e.GetTerm()
			if known > 0 {
				r.member.cluster.checker.count(func(t *Totals) { t.Truncations++ })
			}
		}
	}
}

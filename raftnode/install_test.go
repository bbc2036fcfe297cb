package raftnode_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"

	"go.etcd.io/raft/v3/raftpb"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode"
	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/snapshot"
)

// alone stops all members but one follower, and returns it.
func (l *imageLoad) alone() *member {
	l.t.Helper()
	leader := l.c.leader(raftnode.FirstDataGroup)
	rest := l.c.other(leader)
	for _, m := range l.c.members {
		if m != rest {
			l.c.stop(m)
		}
	}
	return rest
}

// madeUp is an image far ahead of a member, with its own membership.
func (l *imageLoad) madeUp(m *member) (*snapshotv1.Manifest, snapshot.Sink) {
	l.t.Helper()
	data, index := l.machine(m).encode()
	var state filedState
	if err := json.Unmarshal(data, &state); err != nil {
		l.t.Fatal(err)
	}
	state.Applied.Index = index + 1000
	if data, _ = json.Marshal(state); data == nil {
		l.t.Fatal("no image")
	}
	return &snapshotv1.Manifest{
		Image: snapshot.NewID(), Kind: snapshotv1.Kind_KIND_STREAM, Index: state.Applied.Index, Term: state.Applied.Term,
		Clock: state.Applied.Clock, Membership: state.Applied.Membership,
	}, &filedSink{data: data}
}

// TestEntriesBehindASnapshot: raft hands out a snapshot and entries above it in
// one request, with responses for both. All of it must be in the log afterwards:
// the leader was told, and counts on them.
func TestEntriesBehindASnapshot(t *testing.T) {
	l := newImageLoad(t)
	l.put(5)
	l.level()
	m := l.alone()
	manifest, sink := l.madeUp(m)
	term := l.group(m).Status().Term
	var entries []*raftpb.Entry
	for i := range uint64(3) {
		entries = append(entries, &raftpb.Entry{Index: new(manifest.GetIndex() + 1 + i), Term: new(term), Type: raftpb.EntryNormal.Enum()})
	}
	stepped, err := l.group(m).InstallForTest(manifest, sink, entries...)
	if err != nil || !stepped {
		t.Fatalf("raft did not take the snapshot: %v (leader %q)", err, l.group(m).Status().LeaderNode)
	}
	last := manifest.GetIndex() + uint64(len(entries))
	eventually(t, "the entries are in the log", func() bool {
		s := l.group(m).Status()
		return s.FirstIndex == manifest.GetIndex()+1 && s.LastIndex == last
	})
	l.c.stop(m)
	if err := l.c.open(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if s := l.group(m).Status(); s.LastIndex != last || s.FirstIndex != manifest.GetIndex()+1 || s.Applied != manifest.GetIndex() {
		t.Errorf("after a restart: log from %d to %d, applied %d; want %d to %d, applied %d",
			s.FirstIndex, s.LastIndex, s.Applied, manifest.GetIndex()+1, last, manifest.GetIndex())
	}
}

// TestSnapshotNeedsALeader: a READY image waits while no leader is known. A
// candidate that stepped it would follow whoever it names.
func TestSnapshotNeedsALeader(t *testing.T) {
	l := newImageLoad(t)
	l.put(5)
	l.level()
	m := l.alone()
	eventually(t, "no leader is known", func() bool {
		s := l.group(m).Status()
		return s.Leader == 0 && s.Role == raftnode.RoleCandidate
	})
	last := l.group(m).Status().LastIndex
	manifest, sink := l.madeUp(m)
	stepped, err := l.group(m).InstallForTest(manifest, sink)
	if err != nil || stepped {
		t.Fatalf("the snapshot was stepped without a leader (%v)", err)
	}
	if s := l.group(m).Status(); s.LastIndex != last || s.Leader != 0 {
		t.Errorf("log to %d, was %d; leader %x", s.LastIndex, last, s.Leader)
	}
}

// TestAppliedAboveCommit: a commit-only hard state is not synced for its own
// sake, so a crash may leave the state ahead of the commit index on disk. That is
// no reason to drop the log: it holds acknowledged entries above the state.
func TestAppliedAboveCommit(t *testing.T) {
	l := newImageLoad(t)
	// Little, so that nothing is worth cutting.
	for range 5 {
		l.c.propose(raftnode.FirstDataGroup, "little")
		l.total++
	}
	l.level()
	m := l.c.other(l.c.leader(raftnode.FirstDataGroup))
	if err := l.machine(m).Flush(); err != nil {
		t.Fatal(err)
	}
	before := l.group(m).Status()
	l.c.stop(m)
	logs, err := raftlog.Open(raftlog.Options{Dir: filepath.Join(m.dir, "log"), SegmentBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	hs := logs.Group(raftnode.FirstDataGroup).HardState()
	hs.Commit = new(before.DurableApplied - 3)
	err = logs.Append([]raftlog.Update{{Group: raftnode.FirstDataGroup, HardState: hs}}, true)
	if err := errors.Join(err, logs.Close()); err != nil {
		t.Fatal(err)
	}
	if err := l.c.open(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if s := l.group(m).Status(); s.FirstIndex != before.FirstIndex || s.LastIndex < before.LastIndex {
		t.Errorf("the log was from %d to %d and is from %d to %d", before.FirstIndex, before.LastIndex, s.FirstIndex, s.LastIndex)
	}
	l.put(5)
	l.level()
}

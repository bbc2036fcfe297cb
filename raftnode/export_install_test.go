package raftnode

import (
	"context"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/snapshot"
)

// InstallForTest gives a replica a READY image, as if it had been fetched, and
// tells whether raft was given the snapshot. entries, if any, follow it from the
// leader at the same moment, before raft is asked what it wants done; then the
// leader is taken for known.
func (g *Group) InstallForTest(m *snapshotv1.Manifest, sink snapshot.Sink, entries ...*raftpb.Entry) (stepped bool, err error) {
	inbox, err := g.inboxes.Open(m.GetImage())
	if err != nil {
		return false, err
	}
	err = g.call(context.Background(), func() {
		ref := g.machine.Load()
		in := &installation{
			manifest: m, machine: ref, stager: ref.StateMachine.(snapshot.Stager), sink: sink, inbox: inbox, run: &snapshot.Transfer{},
			done: func(snapshotv1.Outcome, error) {},
		}
		g.installing = in
		if len(entries) == 0 {
			g.tryInstall()
			stepped = in.stepped
			return
		}
		st := g.raw.BasicStatus()
		leader := st.Lead
		if leader == raft.None {
			return
		}
		if g.stepSnapshot(in, leader, st.HardState.GetTerm()) != nil {
			return
		}
		_ = g.raw.Step(&raftpb.Message{
			Type: raftpb.MsgApp.Enum(), From: new(leader), To: new(g.raftID), Term: new(st.HardState.GetTerm()),
			Index: new(m.GetIndex()), LogTerm: new(m.GetTerm()), Commit: new(m.GetIndex()), Entries: entries,
		})
		g.handleReady()
		stepped = g.blocked
	})
	return stepped, err
}

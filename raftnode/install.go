package raftnode

import (
	"fmt"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
	"github.com/streamraft/streamraft/raftnode/raftlog"
	"github.com/streamraft/streamraft/snapshot"
)

// Installing a staged image. Everything that can fail or take time was done
// before (the image is READY); what is left is, in this order:
//
//  1. No MsgStorageApply is outstanding. Else entries of the old configuration
//     would be applied behind the new state.
//  2. Raft is told, as by the leader it knows: Step(MsgSnap). It may decline;
//     then nothing happened.
//  3. The state machine switches, durably (apply goroutine).
//  4. One synced log batch drops the group's entries, sets the marker to (Y,
//     term), and then writes the entries and the hard state of the very
//     MsgStorageAppend that carried the snapshot: raft may have put entries
//     above Y into it, with responses for both.
//  5. The applied index is published and the responses go out.
//
// From 2 to 4 the group's later MsgStorageAppends, votes too, wait; other groups
// go on. A crash between 3 and 4 is finished at open (checkState): the state is
// at (Y, term) and the inbox has a READY record for exactly that.

// installation is a staged image on its way into the group.
type installation struct {
	manifest *snapshotv1.Manifest
	machine  *machineRef // that it was staged in
	stager   snapshot.Stager
	sink     snapshot.Sink
	inbox    *snapshot.Inbox
	run      *snapshot.Transfer // is told why it waits
	// done is called once, on the step goroutine.
	done func(snapshotv1.Outcome, error)
	// stepped: raft has been given the snapshot.
	stepped bool
	waiting string        // why it waits, as last told
	blocked time.Duration // when the group's appends began to wait, by the node's age
}

// install takes a READY image; it runs on the step goroutine.
func (g *Group) install(in *installation) {
	if g.installing != nil {
		in.done(snapshotv1.Outcome_OUTCOME_FAILED, fmt.Errorf("raftnode: group %d: another image is being installed", g.id))
		return
	}
	g.installing = in
	g.tryInstall()
}

// tryInstall steps the snapshot if nothing is in its way; else it is called
// again with the next mail.
func (g *Group) tryInstall() {
	in := g.installing
	if in == nil || in.stepped || g.reopening {
		return
	}
	if in.machine != g.machine.Load() {
		g.endInstall(snapshotv1.Outcome_OUTCOME_FAILED, fmt.Errorf("raftnode: group %d: the replica was opened anew meanwhile", g.id))
		return
	}
	if g.quarantined() {
		g.installUnsound(in)
		return
	}
	g.handleReady() // what raft wants applied is handed on and counted first
	st := g.raw.BasicStatus()
	switch {
	case g.applying > 0:
		in.wait(g, "entries are being applied")
		return
	case st.HardState.GetCommit() >= in.manifest.GetIndex():
		g.endInstall(snapshotv1.Outcome_OUTCOME_NOT_NEEDED, nil)
		return
	case st.RaftState != raft.StateFollower || st.Lead == raft.None:
		// A candidate that stepped it would make itself a follower of whatever
		// From says.
		in.wait(g, "no leader is known")
		return
	}
	if err := g.stepSnapshot(in, st.Lead, st.HardState.GetTerm()); err != nil {
		g.endInstall(snapshotv1.Outcome_OUTCOME_FAILED, err)
		return
	}
	g.handleReady() // startAppend sees the snapshot, if raft took it
	if g.installing == in && in.stepped && !g.blocked {
		// restore() found a reason not to.
		in.stepped = false
		if g.raw.BasicStatus().HardState.GetCommit() >= in.manifest.GetIndex() {
			g.endInstall(snapshotv1.Outcome_OUTCOME_NOT_NEEDED, nil)
			return
		}
		in.wait(g, "raft did not take the snapshot; is this replica part of the membership in it?")
	}
}

// stepSnapshot tells raft of the snapshot, as its leader would.
func (g *Group) stepSnapshot(in *installation, leader, term uint64) error {
	members, err := DecodeMembership(in.manifest.GetMembership())
	if err != nil {
		return err
	}
	err = g.raw.Step(&raftpb.Message{
		Type: raftpb.MsgSnap.Enum(), From: new(leader), To: new(g.raftID), Term: new(term),
		Snapshot: &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{
			Index: new(in.manifest.GetIndex()), Term: new(in.manifest.GetTerm()), ConfState: confStateOf(members),
		}},
	})
	if err != nil {
		return fmt.Errorf("raftnode: group %d: raft refused the snapshot: %w", g.id, err)
	}
	in.stepped = true
	return nil
}

// wait notes and tells why an image waits, once per reason.
func (in *installation) wait(g *Group, reason string) {
	if in.waiting != reason {
		in.waiting = reason
		in.run.Advance(snapshotv1.Phase_PHASE_INSTALL, reason)
		g.log.Info("a staged image waits", "index", in.manifest.GetIndex(), "reason", reason)
	}
}

// endInstall ends the installation under way.
func (g *Group) endInstall(outcome snapshotv1.Outcome, err error) {
	in := g.installing
	g.installing = nil
	if outcome != snapshotv1.Outcome_OUTCOME_INSTALLED {
		inbox := in.inbox
		g.goroutine.Go(func() { _ = inbox.Close() }) // swept once it is of no use
	}
	in.done(outcome, err)
}

// removeInbox removes what an installed image leaves.
func (g *Group) removeInbox(in *installation) {
	g.goroutine.Go(func() {
		if err := in.inbox.Remove(); err != nil {
			g.log.Warn("the inbox of an installed image cannot be removed; it goes at the next start", "error", err)
		}
	})
}

// installFailed goes on after an Install that failed: raft cannot abandon the
// snapshot it accepted, so the replica is opened anew. The image stays staged.
func (g *Group) installFailed(err error) {
	g.log.Error("an installation failed; opening the replica anew", "error", err)
	g.reopen(nil, func(error) { g.endInstall(snapshotv1.Outcome_OUTCOME_FAILED, err) })
}

// startInstall takes the MsgStorageAppend that carries the snapshot, on the step
// goroutine: from here on the group's appends wait.
func (g *Group) startInstall(m *raftpb.Message) {
	if g.installing == nil || m.GetSnapshot().GetMetadata().GetIndex() != g.installing.manifest.GetIndex() {
		// invariant: raft hands out no snapshot that it was not given.
		panic(fmt.Sprintf("raft hands out a snapshot at index %d that nobody staged", m.GetSnapshot().GetMetadata().GetIndex()))
	}
	g.blocked, g.installing.blocked = true, g.node.age()
	g.installing.run.Advance(snapshotv1.Phase_PHASE_INSTALL, "") // it waits no more
	g.applier.putInstall(g.installing, m)
}

// switched continues on the step goroutine once the state machine has switched.
func (g *Group) switched(in *installation, applied Applied, m *raftpb.Message) {
	hs := &raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}
	g.node.appender.put(appendRequest{
		group: g,
		update: raftlog.Update{
			Group: g.id, Marker: &raftlog.Marker{Index: applied.Index, Term: applied.Term}, Reset: true,
			Entries: m.GetEntries(), HardState: hs,
		},
		sync:      true,
		responses: m.GetResponses(),
		durable: func() {
			g.counters().ObserveInstallBlock(g.node.age() - in.blocked)
			g.applier.publish(applied)
			// Only now is it true, and only now are further offers answered with
			// NOT_NEEDED: told before, it vouched for the old index, and an offer that
			// came between began a second transfer. Refused: the replica stopped.
			_ = g.mailbox.putCall(func() { g.endInstall(snapshotv1.Outcome_OUTCOME_INSTALLED, nil) })
			g.removeInbox(in)
		},
	})
	for _, r := range g.waitingAppends {
		g.node.appender.put(r)
	}
	g.waitingAppends, g.blocked = nil, false
	g.metrics.installs.Add(1)
}

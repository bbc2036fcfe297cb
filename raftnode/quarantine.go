package raftnode

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.etcd.io/raft/v3"

	"github.com/streamraft/streamraft/internal/durable"
	snapshotv1 "github.com/streamraft/streamraft/proto/streamraft/snapshot/v1"
)

// Quarantine: the log is sound and the state is not. The replica goes on voting
// and acknowledging, since its log and its vote are intact and without them the
// quorum may be lost; it applies nothing, serves no reads, is no source of images,
// cuts no log and never campaigns (raft has no configuration then, for the only
// copy is in the unsound state). It asks the leader for an image, a full one, and
// its installation needs nothing from raft: the state is switched and the replica
// opened anew, with its log, by the rules of every start.
//
// A file beside the state says so, durably, until the state is replaced: what
// made it unsound may not be seen at the next start.

var quarantineFormat = durable.Format{Magic: [8]byte([]byte("SRQUARAN")), Version: 1, Limit: 4 << 10}

func (d directory) quarantineFile(group uint64) string {
	return d.fs.PathJoin(d.group(group), "QUARANTINE")
}

// quarantined tells that the replica's state is unsound.
func (g *Group) quarantined() bool { return g.unsound.Load() != nil }

// quarantineError is what reads get; nil if the state is sound.
func (g *Group) quarantineError() error {
	if reason := g.unsound.Load(); reason != nil {
		return fmt.Errorf("%w: group %d: %w; it gets another one from the leader by itself, read from another node until then", ErrQuarantined, g.id, *reason)
	}
	return nil
}

// Quarantine tells that the state of this replica is unsound: a check of it
// failed. The replica stops applying and serving it, goes on voting, and replaces
// it by an image of another replica; Status tells when that is over. It returns
// at once and may be called from any goroutine, also by the state machine.
// Repeated it does nothing.
//
// Without SnapshotOptions, or where the state machine takes no images, the
// replica fails instead.
func (g *Group) Quarantine(reason error) {
	_ = g.mailbox.putCall(func() { g.enterQuarantine(reason) }) // fails only once the group has stopped
}

// enterQuarantine runs on the step goroutine.
func (g *Group) enterQuarantine(reason error) {
	switch {
	case g.quarantined():
		return
	case g.blocked || g.reopening:
		g.damage = reason // of the state before or after: to be looked at then
		return
	case !g.canFetch(g.sm()):
		g.fail(fmt.Errorf("%w: %w", ErrUnsound, reason))
		return
	}
	if err := g.markQuarantine(reason); err != nil {
		g.fail(fmt.Errorf("the state is unsound, %w, and that cannot be written down: %w", reason, err))
		return
	}
	g.cutMu.Lock()
	g.unsound.Store(&reason)
	g.cutMu.Unlock()
	g.receiving.abandon()
	if in := g.installing; in != nil {
		g.endInstall(snapshotv1.Outcome_OUTCOME_FAILED, reason)
	}
	g.reads.fail(g.quarantineError())
	g.waiters.interrupt(g.quarantineError())
	g.reopen(nil, func(error) {})
}

// takeDamage enters the quarantine that had to wait.
func (g *Group) takeDamage() {
	if damage := g.damage; damage != nil && !g.blocked && !g.reopening {
		g.damage = nil
		g.enterQuarantine(damage)
	}
}

// markQuarantine makes the quarantine outlive the process.
func (g *Group) markQuarantine(reason error) error {
	text := []byte(reason.Error())
	return durable.WriteRecord(g.node.opts.FS, g.node.dir.quarantineFile(g.id), quarantineFormat, text[:min(len(text), 2<<10)])
}

// quarantineReason returns what an earlier opening wrote; nil if nothing.
func (g *Group) quarantineReason() (reason, err error) {
	text, _, err := durable.ReadRecord(g.node.opts.FS, g.node.dir.quarantineFile(g.id), quarantineFormat)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("raftnode: group %d: %w", g.id, err)
	}
	return fmt.Errorf("%w: %s", ErrUnsound, text), nil
}

// liftQuarantine forgets it, durably.
func (g *Group) liftQuarantine() error {
	err := g.node.opts.FS.Remove(g.node.dir.quarantineFile(g.id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, durable.SyncDir(g.node.opts.FS, g.node.dir.group(g.id)))
}

// installUnsound replaces the unsound state by a READY image; on the step
// goroutine.
func (g *Group) installUnsound(in *installation) {
	in.stepped = true // raft has no part in it
	g.reopen(func() error {
		if err := in.stager.Install(in.sink); err != nil {
			return fmt.Errorf("install the image at index %d: %w", in.manifest.GetIndex(), err)
		}
		return g.liftQuarantine()
	}, func(err error) {
		if err == nil && g.quarantined() {
			err = g.quarantineError()
		}
		if err != nil {
			g.endInstall(snapshotv1.Outcome_OUTCOME_FAILED, err)
			return
		}
		g.metrics.installs.Add(1)
		g.removeInbox(in)
		g.endInstall(snapshotv1.Outcome_OUTCOME_INSTALLED, nil)
	})
}

// askForImage has a quarantined replica ask its leader for an image, again and
// again until one is offered.
func (g *Group) askForImage(ticks int) {
	reason := g.unsound.Load()
	if reason == nil || g.reopening || g.receiving.current != nil {
		return
	}
	if g.askTicks += ticks; time.Duration(g.askTicks)*g.node.opts.TickInterval < controlRepeat {
		return
	}
	g.askTicks = 0
	lead := g.raw.BasicStatus().Lead
	if lead == raft.None || lead == g.raftID {
		return
	}
	text := (*reason).Error()
	// Below its marker an image would leave a gap to the log.
	g.sendControl(lead, &snapshotv1.Control{Message: &snapshotv1.Control_NeedImage{NeedImage: &snapshotv1.NeedImage{
		Group: g.id, Replica: g.raftID, MinIndex: g.logs.Marker().Index, Reason: text[:min(len(text), 1<<10)],
	}}})
}

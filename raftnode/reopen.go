package raftnode

import (
	"errors"
	"fmt"

	"github.com/streamraft/streamraft/raftnode/raftlog"
)

// Opening a replica anew in place. Raft cannot abandon a snapshot that it has
// accepted, so after an installation that failed the RawNode is discarded and the
// group opened from disk, as after a crash; a replica whose state turned out to
// be unsound goes the same way, into quarantine and out of it.
//
// The state machine is closed and opened on the apply goroutine, while the old
// RawNode goes on: log and vote are sound, so it votes and acknowledges. What it
// hands out for the state is dropped by its generation. Then, on the step
// goroutine, everything on its way to the log is waited for, and a new RawNode is
// made from what is there. A group that is reopened because of a failed
// installation is blocked meanwhile: nothing that came after the snapshot was
// written, so nothing of it was acknowledged.
//
// Readers: the opened state may be older than what was told to be applied. It is
// served only when it has caught up with that; until then readers find the old
// one closed.

// reopen opens the replica anew. before runs first, on the apply goroutine, with
// no Apply running. then is called on the step goroutine with the error of before
// once the replica is open; not at all if that fails, which stops the replica. It
// runs on the step goroutine.
func (g *Group) reopen(before func() error, then func(error)) {
	g.reopening = true
	g.generation++
	generation := g.generation
	g.applier.call(func() error {
		g.applier.generation = generation
		var failed error
		if before != nil {
			failed = before()
		}
		if err := g.closeMachine(); err != nil {
			g.log.Warn("the state machine that is replaced did not close well", "error", err)
		}
		opened, err := g.openMachine()
		if err != nil {
			return fmt.Errorf("open the replica anew: %w", err)
		}
		_ = g.mailbox.putCall(func() {
			err := g.reopened(opened, func() { then(failed) })
			if err != nil && !errors.Is(err, errStopped) {
				g.fail(fmt.Errorf("open the replica anew: %w", err))
			}
		})
		return nil
	})
}

// reopened is the second half of reopen; then follows when the applied index is
// told.
func (g *Group) reopened(opened *openedMachine, then func()) error {
	// The log is read next: what is on its way there comes first.
	if err := g.appendAndWait(raftlog.Update{}); err != nil {
		return err
	}
	g.mailbox.forgetLocal()
	applied, members, err := g.begin(opened)
	if err != nil {
		return err
	}
	g.appending, g.applying = 0, 0
	g.blocked, g.waitingAppends = false, nil
	g.reopening = false
	generation := g.generation
	g.applier.call(func() error {
		g.applier.reset(generation, applied, members)
		_ = g.mailbox.putCall(then) // fails only once the group has stopped
		return nil
	})
	for _, e := range g.pending.takeAll() {
		g.finish(e, nil, fmt.Errorf("%w: the replica was opened anew", ErrUncertain))
	}
	g.publish()
	g.log.Info("the replica was opened anew", "applied", applied.Index, "quarantined", g.quarantined())
	return nil
}

// appendAndWait writes an update, an empty one writes nothing, and waits until it
// and all before it are durable. It runs on the step goroutine: the append
// goroutine never waits for that.
func (g *Group) appendAndWait(update raftlog.Update) error {
	done := make(chan struct{})
	g.node.appender.put(appendRequest{group: g, update: update, sync: update.Group != 0, done: func() { close(done) }})
	select {
	case <-done:
		return nil
	case <-g.stopped:
		return errStopped
	}
}

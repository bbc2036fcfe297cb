package testcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/streamraft/streamraft/kv"
)

// Report is what a run found.
type Report struct {
	// Plan that was carried out.
	Plan *Plan
	// Violations of what is checked while a run goes on; empty if all is well.
	Violations []string
	// Totals of the run.
	Totals Totals

	trace   *trace
	history *history
}

// WriteTrace writes the events of the run, a line each, after its plan.
func (r *Report) WriteTrace(w io.Writer) error {
	if _, err := fmt.Fprintln(w, r.Plan); err != nil {
		return err
	}
	return r.trace.writeTo(w)
}

// LastEvents returns the last n events of the run.
func (r *Report) LastEvents(n int) []string { return r.trace.tail(n) }

// CheckHistory returns what the clients saw and no sequential execution explains,
// and what could not be decided within limit for one key. It needs no bubble:
// limit is real time.
func (r *Report) CheckHistory(limit time.Duration) []error { return r.history.check(limit) }

// runLimit bounds the virtual time of a run; it ends much earlier.
const runLimit = 10 * time.Minute

// Simulate carries out a plan. It must be called in a testing/synctest bubble.
// verbose adds every raft message to the trace.
func Simulate(plan *Plan, verbose bool) *Report {
	ctx, cancel := context.WithTimeout(context.Background(), runLimit)
	defer cancel()
	t := newTrace()
	checker := newChecker(t, cancel)
	report := &Report{Plan: plan, trace: t, history: new(history)}
	c, err := newCluster(plan, verbose, t, checker)
	if err != nil {
		report.Violations = []string{err.Error()}
		return report
	}
	if err := c.found(ctx); err != nil {
		checker.violation("found the cluster: %v", err)
	} else {
		c.simulate(ctx, report.history)
	}
	c.stop()
	for _, leak := range leakedGoroutines() {
		checker.violation("a goroutine is left over:\n%s", leak)
	}
	checker.checkRefused()
	n := c.network.Counters()
	if n.Mutated > 0 {
		checker.violation("%d messages were changed after they were sent", n.Mutated)
	}
	checker.count(func(t *Totals) {
		t.LostMessages += int64(n.Dropped)
		t.DuplicateMessages += int64(n.Duplicated)
		t.ReorderedMessages += int64(n.Reordered)
	})
	report.Violations, report.Totals = checker.found(), checker.totals
	return report
}

// simulate injures the cluster under load, heals it and demands recovery.
func (c *cluster) simulate(ctx context.Context, h *history) {
	load := startLoad(ctx, c, h)
	c.injure(ctx)
	c.recover()
	c.workOn(ctx)
	load.stop()
	if ctx.Err() != nil {
		return
	}
	last := &client{load: load, number: -1, alike: true, random: newRandom(c.plan.Seed, 3), revisions: make(map[string]uint64)}
	load.stopped = make(chan struct{})
	if c.converge(last) {
		c.readAll(last)
	}
}

// Operations of a run at least; faults can leave little time for them.
const minOperations = 600

// workOn lets the clients go on until they have done enough, so that the healed
// cluster works too.
func (c *cluster) workOn(ctx context.Context) {
	begin := time.Now()
	for pause(ctx, 200*time.Millisecond) {
		operations := int64(0)
		c.checker.count(func(t *Totals) { operations = t.Operations })
		if took := time.Since(begin); operations >= minOperations && took > time.Second {
			return
		} else if took > 2*recoveryLimit {
			c.checker.violation("only %d operations ended, %v after everything was healed", operations, took)
			return
		}
	}
}

// recoveryLimit bounds the virtual time from the healing until all is well.
const recoveryLimit = 20 * time.Second

// converge demands that a write succeeds, and that all replicas come to the same
// index with the same digest.
func (c *cluster) converge(cl *client) bool {
	begin := time.Now()
	left := func() time.Duration { return recoveryLimit - time.Since(begin) }
	for _, group := range groups() {
		index := uint64(0)
		for index == 0 {
			answer, known := cl.write(group, func() []byte { return cl.encode(kv.EncodeTakeDigest(nil)) })
			if known == applied {
				index = answer.GetRevision() >> 16
			} else if left() < 0 || !pause(cl.load.ctx, 50*time.Millisecond) {
				c.checker.violation("group %d takes no write within %v after everything was healed", group, recoveryLimit)
				return false
			}
		}
		if !c.sameDigest(group, index, left()) || !c.sameApplied(group, left) {
			return false
		}
	}
	c.trace.add("recovered after %v", time.Since(begin))
	return true
}

// sameDigest compares the digests of all replicas.
func (c *cluster) sameDigest(group, index uint64, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var first digestOf
	for _, r := range c.up() {
		digest, err := r.machine(group).DigestAt(ctx, index)
		if err != nil {
			c.checker.violation("%s has no digest of group %d at index %d: %v", r, group, index, err)
			return false
		}
		c.checker.checkDigest(group, index, r.member.name, digest.Hash, digest.Records, &first)
	}
	return true
}

// sameApplied waits until all replicas have applied all there is.
func (c *cluster) sameApplied(group uint64, left func() time.Duration) bool {
	for {
		err := c.compareApplied(group)
		if err == nil {
			return true
		}
		if left() < 0 || !pause(context.Background(), 50*time.Millisecond) {
			c.checker.violation("group %d does not converge within %v after everything was healed: %v", group, recoveryLimit, err)
			return false
		}
	}
}

func (c *cluster) compareApplied(group uint64) error {
	if up := len(c.up()); up < len(c.members) {
		return fmt.Errorf("%d of %d nodes run", up, len(c.members))
	}
	highest := c.checker.highest(group)
	for _, r := range c.up() {
		g, err := r.node.Group(group)
		if err != nil {
			return err
		}
		if s := g.Status(); s.Applied != highest || s.LastIndex != highest || s.Failure != "" {
			return errors.Join(fmt.Errorf("%s applied %d of %d, its log ends at %d, failure %q", r, s.Applied, highest, s.LastIndex, s.Failure), r.failure())
		}
	}
	return nil
}

// readAll reads everything the clients wrote on every node, as part of the
// history: a lost write shows there.
func (c *cluster) readAll(cl *client) {
	for base, uses := range cl.load.keys.uses {
		for n := 0; n <= (uses-1)/operationsPerKey; n++ {
			name := keyName(base, n)
			for range c.members {
				if base[:4] == "set/" {
					cl.readSetOf(name)
				} else {
					cl.getKey(name)
				}
			}
		}
	}
}

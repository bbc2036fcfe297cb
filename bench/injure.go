package bench

import (
	"context"
	"fmt"
)

// injure takes the node away and leaves it behind.
func (r *recovery) injure(ctx context.Context, c Case, node, leader string) error {
	status, err := r.cluster.Status(ctx, node)
	if err != nil {
		return err
	}
	r.args[node].full = c.full()
	if c.replaces() {
		return r.destroy(node, leader)
	}
	if err := r.cluster.Kill(node); err != nil {
		return err
	}
	return r.leaveBehind(ctx, node, groupOf(status).GetLastIndex())
}

// destroy kills a node and removes all it has; when it is started again, it takes
// its own place through another one.
func (r *recovery) destroy(node, through string) error {
	if err := r.cluster.Kill(node); err != nil {
		return err
	}
	r.args[node].replace = r.cluster.Endpoint(through)
	return r.cluster.Wipe(node)
}

// leaveBehind overwrites a share of the records and goes on writing some of them
// until no log reaches a node that is away, whose own log ends with index last.
func (r *recovery) leaveBehind(ctx context.Context, away string, last uint64) error {
	r.seed++
	r.data.values.generation++
	if err := r.data.write(ctx, r.client, r.data.share(r.o.Percent, r.seed)); err != nil {
		return err
	}
	for {
		reached, err := r.reached(ctx, away, last)
		if err != nil || !reached {
			return err
		}
		// What was written was less than the logs hold.
		if err := r.data.write(ctx, r.client, r.data.share(min(r.o.Percent, 1), r.seed)); err != nil {
			return err
		}
	}
}

// reached tells whether the log of a node that runs still has what follows last.
func (r *recovery) reached(ctx context.Context, away string, last uint64) (bool, error) {
	for _, name := range r.cluster.Names() {
		if name == away || !r.cluster.Running(name) {
			continue
		}
		status, err := r.cluster.Status(ctx, name)
		if err != nil {
			return false, err
		}
		if groupOf(status).GetFirstIndex() <= last+1 {
			return true, nil
		}
	}
	return false, nil
}

// strike does what a case does in the middle of a transfer: leader is the leader
// of before, source the node that sends.
func (r *recovery) strike(c Case, receiver, source, leader string) error {
	switch {
	case c == CaseCut:
		if err := r.cluster.Kill(receiver); err != nil {
			return err
		}
		return r.cluster.Launch(receiver)
	case source == leader:
		return fmt.Errorf("the leader %s sends the image; this case needs a follower that does", leader)
	case c == CaseLeader:
		return r.cluster.Kill(leader)
	default:
		return r.destroy(source, leader)
	}
}

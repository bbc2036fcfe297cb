package localcluster

import (
	"context"
	"fmt"
	"syscall"
)

// Kill ends a node as a power cut ends it (SIGKILL), and waits until it is gone.
func (c *Cluster) Kill(name string) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	if !n.running() {
		return fmt.Errorf("node %s does not run", name)
	}
	n.kill()
	return nil
}

// KillAll ends all nodes at about the same moment and waits until they are gone.
func (c *Cluster) KillAll() {
	for _, n := range c.nodes {
		n.end()
	}
	for _, n := range c.nodes {
		n.kill()
	}
}

// Pause freezes a node (SIGSTOP): its connections stay, it does nothing. The
// system freezes its threads one by one, within moments of the call's return.
func (c *Cluster) Pause(name string) error { return c.freeze(name, true) }

// Resume lets a frozen node go on (SIGCONT).
func (c *Cluster) Resume(name string) error { return c.freeze(name, false) }

func (c *Cluster) freeze(name string, freeze bool) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	pause, resume, ok := freezeSignals()
	if !ok {
		return fmt.Errorf("node %s: this system cannot freeze a process", name)
	}
	if freeze {
		return n.signal(pause)
	}
	return n.signal(resume)
}

// Stop asks a node to stop (SIGTERM) and waits until it has, and returns its exit
// code. If ctx ends first the node runs on.
func (c *Cluster) Stop(ctx context.Context, name string) (exitCode int, err error) {
	n, err := c.node(name)
	if err != nil {
		return 0, err
	}
	if err := n.signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	return c.WaitExit(ctx, name)
}

// WaitExit waits until a node's process has ended and returns its exit code, -1
// if a signal ended it.
func (c *Cluster) WaitExit(ctx context.Context, name string) (exitCode int, err error) {
	n, err := c.node(name)
	if err != nil {
		return 0, err
	}
	p := n.current()
	if p == nil {
		return 0, fmt.Errorf("node %s was never started", name)
	}
	select {
	case <-p.done:
		return p.exitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("node %s does not stop: %w%s", name, context.Cause(ctx), c.LogTail(name))
	}
}

// Launch starts a node that does not run and returns at once.
func (c *Cluster) Launch(name string) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	return n.start()
}

// Restart starts a node that does not run, in its directory and at its
// addresses, and waits until it knows a leader of every group. It may lie behind
// then; see WaitCaughtUp.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	if err := c.Launch(name); err != nil {
		return err
	}
	return c.waitReady(ctx, []string{name})
}

// Wipe removes everything in the directory of a node that does not run.
func (c *Cluster) Wipe(name string) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	if n.running() {
		return fmt.Errorf("node %s runs; stop it first", name)
	}
	return n.wipe()
}

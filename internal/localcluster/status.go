package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/streamraft/streamraft/client"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// statusTimeout bounds one question to a node, which answers from memory: a
// frozen one must not hold up the others.
const statusTimeout = time.Second

// Status asks one node what it knows of itself; it is asked once.
func (c *Cluster) Status(ctx context.Context, name string) (*adminv1.StatusResponse, error) {
	n, err := c.node(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return c.client.Status(ctx, n.grpc.address)
}

// pollInterval is the pause between two looks at a node: a small part of what a
// start or an election takes.
const pollInterval = 20 * time.Millisecond

// poll calls attempt until it returns nil, and returns its last error when ctx
// ends. An ExitError ends it at once.
func poll(ctx context.Context, attempt func(ctx context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := attempt(ctx)
		var exit *ExitError
		if err == nil || errors.As(err, &exit) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

// waitReady waits until the named nodes are founded and know the leader of all
// their groups. One of them that ends is an error at once, for while a cluster
// is founded the others wait for it in vain.
func (c *Cluster) waitReady(ctx context.Context, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.StartTimeout)
	defer cancel()
	waiting := ""
	err := poll(ctx, func(ctx context.Context) error {
		for _, name := range names {
			if err := c.exited(name); err != nil {
				return err
			}
		}
		for _, name := range names {
			if err := c.ready(ctx, name); err != nil {
				waiting = name
				return err
			}
		}
		return nil
	})
	var exit *ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return fmt.Errorf("node %s is not ready: %w%s", waiting, err, c.LogTail(waiting))
}

// exited returns an *ExitError if a node was started and does not run.
func (c *Cluster) exited(name string) error {
	if p := c.byName[name].current(); p != nil && !p.running() {
		return &ExitError{Node: name, Code: p.exitCode(), Log: c.LogTail(name)}
	}
	return nil
}

func (c *Cluster) ready(ctx context.Context, name string) error {
	status, err := c.Status(ctx, name)
	switch {
	case err != nil:
		return err
	case status.GetFounding() || len(status.GetGroups()) == 0:
		return errors.New("it waits for the other founders")
	case status.GetFailure() != "":
		return errors.New(status.GetFailure())
	}
	for _, group := range status.GetGroups() {
		if group.GetLeaderNode() == "" {
			return fmt.Errorf("group %d has no leader", group.GetGroup())
		}
	}
	return nil
}

// Leader waits until a node leads the group and returns its name. Where two
// nodes say so, the one of the higher term leads.
func (c *Cluster) Leader(ctx context.Context, group uint64) (string, error) {
	var leader string
	err := poll(ctx, func(ctx context.Context) error {
		var term uint64
		leader = ""
		for _, n := range c.nodes {
			if !n.running() {
				continue
			}
			g, err := c.groupStatus(ctx, n.name, group)
			if err == nil && g.GetRole() == adminv1.Role_ROLE_LEADER && g.GetTerm() > term {
				leader, term = n.name, g.GetTerm()
			}
		}
		if leader == "" {
			return fmt.Errorf("group %d has no leader", group)
		}
		return nil
	})
	return leader, err
}

func (c *Cluster) groupStatus(ctx context.Context, name string, group uint64) (*adminv1.GroupStatus, error) {
	status, err := c.Status(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, g := range status.GetGroups() {
		if g.GetGroup() == group {
			return g, nil
		}
	}
	return nil, fmt.Errorf("node %s has no group %d", name, group)
}

// WaitCaughtUp waits until a node has applied, in the data group, all that was
// committed when the call began. progress, if not nil, is told the applied index
// and the goal now and then.
func (c *Cluster) WaitCaughtUp(ctx context.Context, name string, progress func(applied, goal uint64)) error {
	if _, err := c.node(name); err != nil {
		return err
	}
	var goal uint64
	err := poll(ctx, func(ctx context.Context) error {
		leader, err := c.Leader(ctx, client.DataGroup)
		if err != nil {
			return err
		}
		g, err := c.groupStatus(ctx, leader, client.DataGroup)
		goal = g.GetCommitIndex()
		return err
	})
	if err != nil {
		return fmt.Errorf("how far the cluster is: %w", err)
	}
	err = poll(ctx, func(ctx context.Context) error {
		if err := c.exited(name); err != nil {
			return err
		}
		g, err := c.groupStatus(ctx, name, client.DataGroup)
		if err != nil {
			return err
		}
		if progress != nil {
			progress(g.GetAppliedIndex(), goal)
		}
		if g.GetAppliedIndex() < goal {
			return fmt.Errorf("it has applied %d of %d", g.GetAppliedIndex(), goal)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("node %s did not catch up: %w", name, err)
	}
	return nil
}

// Digests has every running node digest the data group at one index and returns
// the digests in order of the nodes. Whether they are equal is for the caller to
// see.
func (c *Cluster) Digests(ctx context.Context) ([]client.Digest, error) {
	var reference client.Digest
	err := poll(ctx, func(ctx context.Context) (err error) {
		reference, err = c.client.Digest(ctx, client.DataGroup)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("digest: %w", err)
	}
	var digests []client.Digest
	for _, n := range c.nodes {
		if !n.running() {
			continue
		}
		err := poll(ctx, func(ctx context.Context) error {
			d, err := c.client.DigestAt(ctx, n.grpc.address, client.DataGroup, reference.Index)
			if err == nil {
				digests = append(digests, d)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("digest of node %s at index %d: %w", n.name, reference.Index, err)
		}
	}
	return digests, nil
}

// DigestsEqual tells whether all digests are of one index and equal.
func DigestsEqual(digests []client.Digest) bool {
	for _, d := range digests {
		if d.Index != digests[0].Index || d.Digest != digests[0].Digest || d.Records != digests[0].Records {
			return false
		}
	}
	return len(digests) > 0
}

// logTail bounds what error messages show of a log.
const logTail = 4 << 10

// LogTail returns the end of what a node printed, to be put behind a message:
// each line on its own and indented. Empty if it printed nothing.
func (c *Cluster) LogTail(name string) string {
	n := c.byName[name]
	if n == nil {
		return ""
	}
	file, err := os.Open(n.logFile)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > logTail {
		_, _ = file.Seek(-logTail, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(file, logTail))
	if strings.TrimSpace(string(text)) == "" {
		return ""
	}
	return "\n    " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n    ")
}

package localcluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

// Replace removes everything in the directory of a node that does not run, as a
// lost disk does, and starts the node to take its own place (--replace), asking
// the others. It returns at once; see WaitVoters. Later starts of the node give
// the same argument again, which does nothing once it has been taken in.
func (c *Cluster) Replace(name string) error {
	if err := c.Wipe(name); err != nil {
		return err
	}
	n := c.byName[name]
	n.mu.Lock()
	n.entry = []string{"--replace", c.others(name)}
	n.mu.Unlock()
	return n.start()
}

// Join starts one of the spare nodes of Options.Spare, which joins the founders
// (--join). It returns at once; see WaitVoters.
func (c *Cluster) Join(name string) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	if !n.spare {
		return fmt.Errorf("node %s is a founder", name)
	}
	n.mu.Lock()
	n.entry = []string{"--join", c.others(name)}
	n.mu.Unlock()
	return n.start()
}

// others returns the addresses of the founders but one.
func (c *Cluster) others(name string) string {
	var addresses []string
	for _, n := range c.nodes {
		if n.name != name && !n.spare {
			addresses = append(addresses, n.advertised())
		}
	}
	return strings.Join(addresses, ",")
}

// WaitVoters waits until every node that runs is a voter of every group, and no
// change of a node is under way. A node that ended is an *ExitError.
func (c *Cluster) WaitVoters(ctx context.Context) error {
	return poll(ctx, func(ctx context.Context) error {
		for _, n := range c.nodes {
			if err := c.exited(n.name); err != nil {
				return err
			}
		}
		members, err := c.client.Members(ctx)
		if err != nil {
			return err
		}
		voters := map[string]bool{}
		for _, m := range members {
			voters[m.GetNode()] = m.GetState() == adminv1.MemberState_MEMBER_STATE_VOTER
			if m.GetProblem() != "" {
				err = errors.Join(err, fmt.Errorf("%s: %s", m.GetNode(), m.GetProblem()))
			}
		}
		for _, n := range c.nodes {
			if n.running() && !voters[n.name] {
				return errors.Join(fmt.Errorf("node %s is not a voter yet", n.name), err)
			}
		}
		return nil
	})
}

// Transfers asks one node for the images that it receives and sends, and for
// those that ended lately; it is asked once.
func (c *Cluster) Transfers(ctx context.Context, name string) ([]*adminv1.Transfer, error) {
	n, err := c.node(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	answer, err := c.client.Transfers(ctx, n.grpc.address)
	return answer.GetTransfers(), err
}

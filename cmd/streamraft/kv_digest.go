package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
)

func newKVDigestCommand(f *kvFlags) *cobra.Command {
	var group uint64
	cmd := &cobra.Command{
		Use:   "digest",
		Short: "Check that all replicas hold the same",
		Long: `Have every replica digest its state at the same index, and compare. Exit code 1
tells that they differ, 3 that a node did not answer.`,
		Example: `  streamraft kv digest --endpoints n1:7601,n2:7601,n3:7601`,
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			first, err := c.Digest(ctx, group)
			if err != nil {
				return err
			}
			report := digestAll(ctx, c, group, first)
			if err := f.printDigests(cmd, report); err != nil {
				return err
			}
			return report.problem()
		},
	}
	cmd.Flags().Uint64Var(&group, "group", client.DataGroup, "group to digest")
	return cmd
}

// digestReport is what digest prints with --json.
type digestReport struct {
	Group uint64 `json:"group"`
	Index uint64 `json:"index"`
	// Equal: every node that answered has the same digest.
	Equal bool         `json:"equal"`
	Nodes []nodeDigest `json:"nodes"`
}

type nodeDigest struct {
	Node    string `json:"node,omitempty"`
	Address string `json:"address"`
	// Digest in hex.
	Digest  string `json:"digest,omitempty"`
	Records uint64 `json:"records"`
	Error   string `json:"error,omitempty"`
}

// digestAll asks every known node for its digest of an index.
func digestAll(ctx context.Context, c *client.Client, group uint64, first client.Digest) digestReport {
	endpoints := c.Endpoints()
	report := digestReport{Group: group, Index: first.Index, Equal: true, Nodes: make([]nodeDigest, len(endpoints))}
	var asking sync.WaitGroup
	for i, endpoint := range endpoints {
		asking.Go(func() {
			node := nodeDigest{Address: endpoint}
			d, err := awaitDigest(ctx, c, endpoint, group, first.Index)
			if err != nil {
				node.Error = err.Error()
			} else {
				node.Node, node.Digest, node.Records = d.Node, fmt.Sprintf("%016x", d.Digest), d.Records
			}
			report.Nodes[i] = node
		})
	}
	asking.Wait()
	// The same node may be known under two addresses.
	seen := map[string]bool{}
	kept := report.Nodes[:0]
	for _, node := range report.Nodes {
		if node.Node != "" && seen[node.Node] {
			continue
		}
		seen[node.Node] = true
		if node.Error == "" && node.Digest != fmt.Sprintf("%016x", first.Digest) {
			report.Equal = false
		}
		kept = append(kept, node)
	}
	report.Nodes = kept
	return report
}

// digestPoll is the time between two questions to a replica that lags.
const digestPoll = 100 * time.Millisecond

// awaitDigest asks one node, again while it has not come to the index.
func awaitDigest(ctx context.Context, c *client.Client, endpoint string, group, index uint64) (client.Digest, error) {
	ticker := time.NewTicker(digestPoll)
	defer ticker.Stop()
	for {
		d, err := c.DigestAt(ctx, endpoint, group, index)
		if err == nil || !errors.Is(err, client.ErrInvalid) {
			return d, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return d, err
		}
	}
}

func (r *digestReport) problem() error {
	if !r.Equal {
		return withExitCode(exitFailure, fmt.Errorf("digest: replicas of group %d differ at index %d; keep all data directories and see docs/operations.md", r.Group, r.Index))
	}
	for _, node := range r.Nodes {
		if node.Error != "" {
			return withExitCode(exitUnavailable, fmt.Errorf("digest: %s did not answer for index %d: %s", node.Address, r.Index, node.Error))
		}
	}
	return nil
}

func (f *kvFlags) printDigests(cmd *cobra.Command, report digestReport) error {
	if f.json {
		return printJSON(cmd.OutOrStdout(), report)
	}
	var rows [][]string
	for _, node := range report.Nodes {
		digest := node.Digest
		if node.Error != "" {
			digest = "no answer"
		}
		rows = append(rows, []string{node.Node, node.Address, fmt.Sprint(report.Index), digest, cliui.Count(node.Records)})
	}
	return cliui.Table(cmd.OutOrStdout(), []cliui.Column{
		{Name: "node"}, {Name: "address"}, {Name: "index", Number: true}, {Name: "digest"}, {Name: "entries", Number: true},
	}, rows)
}

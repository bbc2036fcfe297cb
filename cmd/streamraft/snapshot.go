package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
)

func newSnapshotCommand(g *globals) *cobra.Command {
	cmd := parent(&cobra.Command{
		Use:   "snapshot",
		Short: "Images of the state: on their way, kept, saved and restored",
		Long: `Images of the state of a group: on their way between nodes, kept by a node, and
saved in an archive, a single file from which a new cluster can be made.`,
		Example: `  streamraft snapshot transfers --watch
  streamraft snapshot save backup.srarchive`,
	})
	cmd.AddCommand(newSnapshotTransfersCommand(g), newSnapshotCreateCommand(g), newSnapshotListCommand(g),
		newSnapshotSaveCommand(g), newSnapshotInspectCommand(g), newSnapshotVerifyCommand(g), newSnapshotRestoreCommand(g))
	return cmd
}

// pickNode returns the node to ask for an image: the one that is named, by name
// or address, or one that leads nothing, so that the leaders are spared.
func (g *globals) pickNode(ctx context.Context, c *client.Client, wanted string) (nodeReport, error) {
	report := gatherStatus(ctx, c, g.timeout)
	var candidates []nodeReport
	for _, node := range report.Nodes {
		if wanted != "" && (node.Node == wanted || node.Address == wanted) {
			return node, nil
		}
		if node.Error == "" && node.Failure == "" && len(node.Groups) > 0 {
			candidates = append(candidates, node)
		}
	}
	switch {
	case wanted != "":
		return nodeReport{}, usageErrorf("--node: no node %s; these are known: %s", wanted, report.names())
	case len(candidates) == 0:
		if err := report.problem(); err != nil {
			return nodeReport{}, err
		}
		return nodeReport{}, withExitCode(exitUnavailable, fmt.Errorf("no node that answers has a replica; streamraft status shows why"))
	}
	return slices.MinFunc(candidates, func(a, b nodeReport) int {
		return cmp.Or(cmp.Compare(a.leads(), b.leads()), cmp.Compare(a.lag(), b.lag()), cmp.Compare(a.Node, b.Node))
	}), nil
}

// leads counts the groups that the node leads, lag sums up what its replicas are
// behind.
func (n *nodeReport) leads() (count int) {
	for _, g := range n.Groups {
		if g.Role == "leader" {
			count++
		}
	}
	return count
}

func (n *nodeReport) lag() (sum uint64) {
	for _, g := range n.Groups {
		sum += g.Lag
	}
	return sum
}

func (r *statusReport) names() string {
	text := ""
	for _, node := range r.Nodes {
		if text != "" {
			text += ", "
		}
		text += cmp.Or(node.Node, node.Address)
	}
	return text
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

func newSnapshotCreateCommand(g *globals) *cobra.Command {
	var node string
	var group uint64
	var keep time.Duration
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an image of a node's state and keep it there",
		Long: `Make an image of a node's replica of each group, or of one, and keep it on that
node. Replicas that need an image get it while it is kept. It costs no space at
first: it holds what is deleted or overwritten later. A node bounds what it keeps
(--snapshot-keep, --snapshot-keep-bytes); the oldest go first.

For a backup that leaves the node, see streamraft snapshot save.`,
		Example: `  streamraft snapshot create
  streamraft snapshot create --node n2 --group 2 --keep 72h`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep < time.Second {
				return usageErrorf("--keep must be at least 1s")
			}
			c, err := g.connectLazily(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			at, err := g.pickNode(cmd.Context(), c, node)
			if err != nil {
				return err
			}
			groups := []uint64{group}
			if !cmd.Flags().Changed("group") {
				groups = nil
				for _, g := range at.Groups {
					groups = append(groups, g.Group)
				}
			}
			report := snapshotsReport{Snapshots: []snapshotReport{}}
			for _, group := range groups {
				s, err := c.CreateSnapshot(cmd.Context(), at.Address, group, keep)
				if err != nil {
					return err
				}
				report.Snapshots = append(report.Snapshots, reportSnapshot(at.Node, s))
			}
			return g.printSnapshots(cmd.OutOrStdout(), report)
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "node to ask, by name or host:port (default: one that leads nothing)")
	cmd.Flags().Uint64Var(&group, "group", 0, "only this group (default: all)")
	cmd.Flags().DurationVar(&keep, "keep", 24*time.Hour, "how long to keep it")
	return cmd
}

func newSnapshotListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the images that nodes keep",
		Long: `List the images that each node keeps: those that were asked for, and those that
were made for a replica that needed one, until they expire.`,
		Example: `  streamraft snapshot ls
  streamraft snapshot ls --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.connectLazily(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			report := gatherSnapshots(cmd.Context(), c, g.timeout)
			if err := report.problem(); err != nil {
				return err
			}
			return g.printSnapshots(cmd.OutOrStdout(), report)
		},
	}
}

// snapshotsReport is what snapshot create and snapshot ls print with --json.
type snapshotsReport struct {
	Snapshots []snapshotReport `json:"snapshots"`
	Unreached []unreachedNode  `json:"unreached,omitempty"`
}

// snapshotReport is a kept image.
type snapshotReport struct {
	Node      string `json:"node"`
	Group     uint64 `json:"group"`
	Image     string `json:"image"`
	Kind      string `json:"kind"`
	FromIndex uint64 `json:"from_index,omitempty"`
	Index     uint64 `json:"index"`
	Term      uint64 `json:"term"`
	Bytes     uint64 `json:"bytes"`
	RawBytes  uint64 `json:"raw_bytes,omitempty"`
	Records   uint64 `json:"records"`
	Files     uint32 `json:"files"`
	Created   string `json:"created"`
	Expires   string `json:"expires"`
	Holders   uint32 `json:"holders,omitempty"`

	expires time.Time
}

func reportSnapshot(node string, s *adminv1.Snapshot) snapshotReport {
	r := snapshotReport{
		Node: node, Group: s.GetGroup(), Image: fmt.Sprintf("%x", s.GetImage()), Kind: enumName(s.GetKind().String(), "KIND_"),
		FromIndex: s.GetFromIndex(), Index: s.GetIndex(), Term: s.GetTerm(), Bytes: s.GetBytes(), RawBytes: s.GetRawBytes(),
		Records: s.GetRecords(), Files: s.GetFiles(), Holders: s.GetHolders(), expires: time.UnixMilli(s.GetExpiresUnixMs()),
	}
	r.Created = time.UnixMilli(s.GetCreatedUnixMs()).UTC().Format(time.RFC3339Nano)
	r.Expires = r.expires.UTC().Format(time.RFC3339Nano)
	return r
}

// gatherSnapshots asks all nodes.
func gatherSnapshots(ctx context.Context, c *client.Client, timeout time.Duration) snapshotsReport {
	report := snapshotsReport{Snapshots: []snapshotReport{}}
	ctx, cancel := statusContext(ctx, timeout)
	defer cancel()
	for _, node := range gatherStatus(ctx, c, timeout).Nodes {
		if node.Error != "" {
			report.Unreached = append(report.Unreached, unreachedNode{node.Node, node.Address, node.Error})
			continue
		}
		answer, err := c.Snapshots(ctx, node.Address)
		if err != nil {
			report.Unreached = append(report.Unreached, unreachedNode{node.Node, node.Address, problemOf(err)})
			continue
		}
		for _, s := range answer.GetSnapshots() {
			report.Snapshots = append(report.Snapshots, reportSnapshot(answer.GetNode(), s))
		}
	}
	slices.SortStableFunc(report.Snapshots, func(a, b snapshotReport) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Group, b.Group))
	})
	return report
}

// problem returns why nothing can be told, if nothing can.
func (r *snapshotsReport) problem() error {
	if len(r.Unreached) == 0 || len(r.Snapshots) > 0 {
		return nil
	}
	var errs []error
	for _, node := range r.Unreached {
		errs = append(errs, fmt.Errorf("%s: %s", node.Address, node.Error))
	}
	return withExitCode(exitUnavailable, fmt.Errorf("snapshots: these nodes did not answer: %w", errors.Join(errs...)))
}

func (g *globals) printSnapshots(w io.Writer, report snapshotsReport) error {
	if g.json {
		return printJSON(w, report)
	}
	var rows [][]string
	for _, s := range report.Snapshots {
		what := fmt.Sprintf("%s @%s", s.Kind, cliui.Count(s.Index))
		if s.Kind == "records" {
			what = fmt.Sprintf("records %s..%s", cliui.Count(s.FromIndex), cliui.Count(s.Index))
		}
		used := "-"
		if s.Holders > 0 {
			used = fmt.Sprintf("%d transfers", s.Holders)
		}
		rows = append(rows, []string{
			s.Node, fmt.Sprint(s.Group), what, cliui.Count(s.Records), cliui.Bytes(s.Bytes),
			cliui.Duration(max(time.Until(s.expires), 0).Round(time.Second)), used, s.Image,
		})
	}
	if len(rows) == 0 {
		if _, err := fmt.Fprintln(w, "no node keeps an image"); err != nil {
			return err
		}
	} else if err := cliui.Table(w, []cliui.Column{
		{Name: "node"}, {Name: "group", Number: true}, {Name: "image"}, {Name: "rows (about)", Number: true}, {Name: "bytes", Number: true},
		{Name: "kept for", Number: true}, {Name: "used by"}, {Name: "id"},
	}, rows); err != nil {
		return err
	}
	for _, node := range report.Unreached {
		if _, err := fmt.Fprintf(w, "%s does not answer: %s\n", cmp.Or(node.Node, node.Address), node.Error); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

func newMemberListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the nodes with their role per group, and changes under way",
		Long: `List the nodes: state, role and lag per group, and the change under way with why
it has not gone on. A removed node is listed until one of its name joins again.`,
		Example: `  streamraft member ls
  streamraft member ls --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			members, err := c.Members(cmd.Context())
			if err != nil {
				return err
			}
			reports := make([]memberReport, 0, len(members))
			for _, m := range members {
				reports = append(reports, reportMember(m))
			}
			if g.json {
				return printJSON(cmd.OutOrStdout(), struct {
					Members []memberReport `json:"members"`
				}{reports})
			}
			return printMembers(cmd.OutOrStdout(), reports)
		},
	}
}

// memberReport is a node as member ls shows it.
type memberReport struct {
	Node            string                `json:"node"`
	Address         string                `json:"address,omitempty"`
	NodeIncarnation string                `json:"node_incarnation,omitempty"`
	State           string                `json:"state"`
	Replicas        []memberReplicaReport `json:"replicas,omitempty"`
	Plan            *planReport           `json:"plan,omitempty"`
	Problem         string                `json:"problem,omitempty"`
}

// memberReplicaReport is one replica of a node; without its leader's answer the
// last three are absent.
type memberReplicaReport struct {
	Group          uint64  `json:"group"`
	RaftID         uint64  `json:"raft_id"`
	Role           string  `json:"role"`
	MatchIndex     *uint64 `json:"match_index,omitempty"`
	Lag            *uint64 `json:"lag,omitempty"`
	RecentlyActive *bool   `json:"recently_active,omitempty"`
}

// planReport is a change of a node.
type planReport struct {
	Node  string           `json:"node"`
	Kind  string           `json:"kind"`
	Done  bool             `json:"done"`
	Steps []planStepReport `json:"steps"`
}

// planStepReport is the part of a change in one group.
type planStepReport struct {
	Group  uint64 `json:"group"`
	Action string `json:"action"`
	Done   bool   `json:"done"`
}

func (p *planReport) finish() {
	p.Done = true
	for i := range p.Steps {
		p.Steps[i].Done = true
	}
}

func reportPlan(p *adminv1.NodePlan) *planReport {
	report := &planReport{Node: p.GetNode(), Kind: enumName(p.GetKind().String(), "PLAN_KIND_"), Done: true, Steps: []planStepReport{}}
	for _, step := range p.GetSteps() {
		report.Steps = append(report.Steps, planStepReport{step.GetGroup(), enumName(step.GetAction().String(), "STEP_ACTION_"), step.GetDone()})
		report.Done = report.Done && step.GetDone()
	}
	return report
}

func reportMember(m *adminv1.Member) memberReport {
	report := memberReport{
		Node: m.GetNode(), Address: m.GetAddress(), NodeIncarnation: m.GetNodeIncarnation(),
		State: enumName(m.GetState().String(), "MEMBER_STATE_"), Problem: m.GetProblem(),
	}
	for _, r := range m.GetReplicas() {
		replica := memberReplicaReport{Group: r.GetGroup(), RaftID: r.GetRaftId(), Role: roleName(r.GetRole())}
		if r.GetKnown() {
			replica.MatchIndex, replica.Lag, replica.RecentlyActive = new(r.GetMatchIndex()), new(r.GetLag()), new(r.GetRecentlyActive())
		}
		report.Replicas = append(report.Replicas, replica)
	}
	if m.GetPlan() != nil {
		report.Plan = reportPlan(m.GetPlan())
	}
	return report
}

// enumName returns a protobuf enum's name as JSON and tables show it.
func enumName(name, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(name, prefix))
}

// printMembers prints a table, with a line for why a change has not gone on.
func printMembers(w io.Writer, members []memberReport) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tADDRESS\tSTATE\tGROUPS\tCHANGE")
	for _, m := range members {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", m.Node, cmp.Or(m.Address, "-"), m.State, m.groups(), m.change())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, m := range members {
		if m.Problem != "" {
			if _, err := fmt.Fprintf(w, "%s: waiting: %s\n", m.Node, m.Problem); err != nil {
				return err
			}
		}
	}
	return nil
}

// groups tells the role in each group, with the lag where there is one.
func (m *memberReport) groups() string {
	var parts []string
	for _, r := range m.Replicas {
		part := fmt.Sprintf("%d %s", r.Group, r.Role)
		switch {
		case r.Lag == nil:
			part += " (leader unknown)"
		case !*r.RecentlyActive:
			part += " (silent)"
		case *r.Lag > 0:
			part += fmt.Sprintf(" (lag %d)", *r.Lag)
		}
		parts = append(parts, part)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// change tells the change under way and its next step.
func (m *memberReport) change() string {
	if m.Plan == nil || m.Plan.Done {
		return "-"
	}
	done, next := 0, ""
	for _, step := range m.Plan.Steps {
		if step.Done {
			done++
		} else if next == "" {
			next = fmt.Sprintf("%s in group %d", strings.ReplaceAll(step.Action, "_", " "), step.Group)
		}
	}
	return fmt.Sprintf("%s: %d of %d steps, next %s", m.Plan.Kind, done, len(m.Plan.Steps), next)
}

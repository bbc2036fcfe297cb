package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

func newSnapshotTransfersCommand(g *globals) *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "transfers",
		Short: "Show images on their way to a replica, and those that arrived lately",
		Long: `Show each image that is on its way to a replica that the log no longer reaches:
phase, progress, rate, how well it is compressed, remaining time, and what holds it
up; then the last ones that ended. Each node tells of its own; what the receiver
says is shown, with what only the source knows.`,
		Example: `  streamraft snapshot transfers
  streamraft snapshot transfers --watch
  streamraft snapshot transfers --watch --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval <= 0 {
				return usageErrorf("--interval must be above zero")
			}
			c, err := g.connectLazily(cmd.Context())
			if err != nil {
				return err
			}
			defer c.Close()
			if watch {
				return g.watchTransfers(cmd, c, interval)
			}
			report := gatherTransfers(cmd.Context(), c, g.timeout)
			if err := report.problem(); err != nil {
				return err
			}
			if g.json {
				return printJSON(cmd.OutOrStdout(), report)
			}
			return report.print(cmd.OutOrStdout(), cliui.IsTerminal(cmd.OutOrStdout()))
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again and again until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "time between two looks with --watch")
	return cmd
}

// watchTransfers shows the transfers until the command is interrupted.
func (g *globals) watchTransfers(cmd *cobra.Command, c *client.Client, interval time.Duration) error {
	out := cmd.OutOrStdout()
	terminal := cliui.IsTerminal(out) && !g.json
	lines := newTransferLines()
	return watchUntilInterrupted(cmd.Context(), interval, func() error {
		report := gatherTransfers(cmd.Context(), c, g.timeout)
		switch {
		case cmd.Context().Err() != nil:
			return nil // what could not be asked any more is no news
		case g.json:
			return printJSON(out, report)
		case terminal:
			if err := cliui.ClearScreen(out); err != nil {
				return err
			}
			return report.print(out, true)
		default:
			return lines.print(out, report)
		}
	})
}

// transfersReport is what snapshot transfers prints with --json, one line for
// each look.
type transfersReport struct {
	Time      string           `json:"time"`
	Running   []transferReport `json:"running"`
	Ended     []transferReport `json:"ended"`
	Unreached []unreachedNode  `json:"unreached,omitempty"`

	at time.Time
}

// unreachedNode is a node that did not answer.
type unreachedNode struct {
	Node    string `json:"node,omitempty"`
	Address string `json:"address"`
	Error   string `json:"error"`
}

// transferReport is one transfer.
type transferReport struct {
	Transfer  string `json:"transfer"`
	Group     uint64 `json:"group"`
	Source    string `json:"source,omitempty"`
	Receiver  string `json:"receiver"`
	ToldBy    string `json:"told_by"` // receiver, or source where the receiver tells nothing of it
	Attempt   uint64 `json:"attempt"`
	Phase     string `json:"phase"`
	Outcome   string `json:"outcome"`
	Position  uint32 `json:"position,omitempty"`
	Image     string `json:"image,omitempty"`
	Kind      string `json:"kind,omitempty"`
	FromIndex uint64 `json:"from_index,omitempty"`
	Index     uint64 `json:"index,omitempty"`
	Term      uint64 `json:"term,omitempty"`

	BytesDone      uint64   `json:"bytes_done"`
	BytesTotal     uint64   `json:"bytes_total"`
	Percent        float64  `json:"percent"`
	RawBytes       uint64   `json:"raw_bytes,omitempty"`
	WireBytes      uint64   `json:"wire_bytes"`
	MovedBytes     uint64   `json:"moved_bytes"`
	BytesPerSecond uint64   `json:"bytes_per_second"`
	Ratio          *float64 `json:"ratio,omitempty"`
	ETASeconds     *float64 `json:"eta_seconds,omitempty"`

	Paced             bool    `json:"paced,omitempty"`
	Problem           string  `json:"problem,omitempty"`
	RetryAfterSeconds float64 `json:"retry_after_seconds,omitempty"`
	Restarts          uint32  `json:"restarts,omitempty"`
	LastRestart       string  `json:"last_restart,omitempty"`
	AppliedIndex      uint64  `json:"applied_index,omitempty"`
	TargetIndex       uint64  `json:"target_index,omitempty"`

	Started       string             `json:"started"`
	Ended         string             `json:"ended,omitempty"`
	Seconds       float64            `json:"seconds"`
	StagesSeconds map[string]float64 `json:"stages_seconds"`

	started, ended time.Time
}

// gatherTransfers asks all nodes: the endpoints, then those that they name.
func gatherTransfers(ctx context.Context, c *client.Client, timeout time.Duration) transfersReport {
	ctx, cancel := statusContext(ctx, timeout)
	defer cancel()
	nodes := gatherStatus(ctx, c, timeout)
	var mu sync.Mutex
	var asking sync.WaitGroup
	received, sent := map[string]transferReport{}, map[string]transferReport{}
	report := transfersReport{Running: []transferReport{}, Ended: []transferReport{}, at: time.Now()}
	report.Time = report.at.UTC().Format(time.RFC3339Nano)
	for _, node := range nodes.Nodes {
		if node.Error != "" {
			report.Unreached = append(report.Unreached, unreachedNode{node.Node, node.Address, node.Error})
			continue
		}
		asking.Go(func() {
			answer, err := c.Transfers(ctx, node.Address)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				report.Unreached = append(report.Unreached, unreachedNode{node.Node, node.Address, problemOf(err)})
				return
			}
			for _, t := range answer.GetTransfers() {
				if r := reportTransfer(answer.GetNode(), t); r.ToldBy == "receiver" {
					received[r.key()] = r
				} else {
					sent[r.attemptKey()] = r
				}
			}
		})
	}
	asking.Wait()
	slices.SortFunc(report.Unreached, func(a, b unreachedNode) int { return cmp.Compare(a.Address, b.Address) })
	report.merge(received, sent)
	return report
}

// merge joins what both ends tell of a transfer: the receiver knows all of it,
// the source alone that it holds back.
func (r *transfersReport) merge(received, sent map[string]transferReport) {
	told := map[string]bool{}
	for _, t := range received {
		told[t.transferKey()] = true
		if s, ok := sent[t.attemptKey()]; ok && t.Ended == "" && s.Ended == "" {
			t.Paced = t.Paced || s.Paced
			t.Problem = cmp.Or(t.Problem, s.Problem)
		}
		r.add(t)
	}
	for _, t := range sent {
		if !told[t.transferKey()] {
			r.add(t)
		}
	}
	slices.SortFunc(r.Running, func(a, b transferReport) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Receiver, b.Receiver), a.started.Compare(b.started))
	})
	slices.SortFunc(r.Ended, func(a, b transferReport) int {
		return cmp.Or(b.ended.Compare(a.ended), cmp.Compare(a.key(), b.key()))
	})
}

func (r *transfersReport) add(t transferReport) {
	if t.Ended == "" {
		r.Running = append(r.Running, t)
	} else {
		r.Ended = append(r.Ended, t)
	}
}

// problem returns why nothing can be told, if nothing can.
func (r *transfersReport) problem() error {
	if len(r.Unreached) == 0 || len(r.Running)+len(r.Ended) > 0 {
		return nil
	}
	var errs []error
	for _, node := range r.Unreached {
		errs = append(errs, fmt.Errorf("%s: %s", node.Address, node.Error))
	}
	return withExitCode(exitUnavailable, fmt.Errorf("transfers: these nodes did not answer: %w", errors.Join(errs...)))
}

// transferKey names a transfer, whoever tells of it; key one run of it: what was
// staged by one that ended is gone on with under the same id.
func (t *transferReport) transferKey() string {
	return fmt.Sprint(t.Group, "/", t.Receiver, "/", t.Transfer)
}
func (t *transferReport) key() string { return t.transferKey() + "/" + t.Started }
func (t *transferReport) attemptKey() string {
	return fmt.Sprint(t.transferKey(), "/", t.Attempt)
}

// reportTransfer is a transfer as the named node tells it.
func reportTransfer(node string, t *adminv1.Transfer) transferReport {
	r := transferReport{
		Transfer: fmt.Sprintf("%x", t.GetTransfer()), Group: t.GetGroup(), Attempt: t.GetAttempt(),
		Phase: enumName(t.GetPhase().String(), "PHASE_"), Outcome: enumName(t.GetOutcome().String(), "OUTCOME_"), Position: t.GetPosition(),
		FromIndex: t.GetFromIndex(), Index: t.GetIndex(), Term: t.GetTerm(),
		BytesDone: t.GetBytesDone(), BytesTotal: t.GetBytesTotal(), RawBytes: t.GetRawBytes(), WireBytes: t.GetWireBytes(), MovedBytes: t.GetMovedBytes(),
		BytesPerSecond: t.GetBytesPerSecond(), Paced: t.GetPaced(), Problem: t.GetProblem(), RetryAfterSeconds: float64(t.GetRetryAfterMs()) / 1e3,
		Restarts: t.GetRestarts(), LastRestart: t.GetLastRestart(), AppliedIndex: t.GetAppliedIndex(), TargetIndex: t.GetTargetIndex(),
		StagesSeconds: map[string]float64{}, started: time.UnixMilli(t.GetStartedUnixMs()),
	}
	r.ToldBy, r.Source, r.Receiver = "receiver", t.GetPeer(), node
	if t.GetRole() == adminv1.TransferRole_TRANSFER_ROLE_SOURCE {
		r.ToldBy, r.Source, r.Receiver = "source", node, t.GetPeer()
	}
	if len(t.GetImage()) > 0 {
		r.Image, r.Kind = fmt.Sprintf("%x", t.GetImage()), enumName(t.GetKind().String(), "KIND_")
	}
	r.Started = r.started.UTC().Format(time.RFC3339Nano)
	r.ended = time.Now()
	if t.GetEndedUnixMs() > 0 {
		r.ended = time.UnixMilli(t.GetEndedUnixMs())
		r.Ended = r.ended.UTC().Format(time.RFC3339Nano)
	}
	r.Seconds = max(r.ended.Sub(r.started), 0).Seconds()
	for _, s := range t.GetStages() {
		r.StagesSeconds[s.GetStage()] = time.Duration(s.GetNanoseconds()).Seconds()
	}
	r.derive()
	return r
}

// derive computes what follows from the rest.
func (t *transferReport) derive() {
	if t.BytesTotal > 0 {
		t.Percent = min(100*float64(t.BytesDone)/float64(t.BytesTotal), 100)
	}
	if t.MovedBytes > 0 {
		// What went over the wire per byte of a file, times what a file takes per
		// byte that it holds.
		ratio := float64(t.WireBytes) / float64(t.MovedBytes)
		if t.RawBytes > 0 {
			ratio *= float64(t.BytesTotal) / float64(t.RawBytes)
		}
		t.Ratio = &ratio
	}
	if left := t.BytesTotal - min(t.BytesTotal, t.BytesDone); t.Ended == "" && t.Phase == "send" && t.BytesPerSecond > 0 {
		t.ETASeconds = new(float64(left) / float64(t.BytesPerSecond))
	}
}

// stages lists the time of each stage, in the order a transfer comes through
// them.
func (t *transferReport) stages() []string {
	var parts []string
	for _, stage := range []string{"queue", "capture", "send", "verify", "install", "catchup"} {
		if s, ok := t.StagesSeconds[stage]; ok {
			parts = append(parts, stage+" "+cliui.Duration(time.Duration(s*float64(time.Second))))
		}
	}
	return parts
}

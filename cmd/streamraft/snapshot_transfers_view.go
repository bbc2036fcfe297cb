package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/streamraft/streamraft/internal/cliui"
)

// barWidth is the width of a transfer's bar.
const barWidth = 24

// print shows the transfers as tables; with bars on a terminal.
func (r *transfersReport) print(w io.Writer, bars bool) error {
	if len(r.Running) > 0 {
		if err := r.printRunning(w, bars); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintln(w, "no image is on its way"); err != nil {
		return err
	}
	for _, t := range r.Running {
		for _, line := range t.remarks() {
			if _, err := fmt.Fprintf(w, "%s: %s\n", t.name(), line); err != nil {
				return err
			}
		}
	}
	if len(r.Ended) > 0 {
		if err := r.printEnded(w); err != nil {
			return err
		}
	}
	for _, node := range r.Unreached {
		if _, err := fmt.Fprintf(w, "%s does not answer: %s\n", cmp.Or(node.Node, node.Address), node.Error); err != nil {
			return err
		}
	}
	return nil
}

func (r *transfersReport) printRunning(w io.Writer, bars bool) error {
	columns := []cliui.Column{
		{Name: "group", Number: true}, {Name: "from"}, {Name: "to"}, {Name: "image"}, {Name: "phase"}, {Name: "progress"},
		{Name: "done", Number: true}, {Name: "rate", Number: true}, {Name: "ratio", Number: true}, {Name: "left", Number: true},
	}
	var rows [][]string
	for _, t := range r.Running {
		rows = append(rows, []string{
			fmt.Sprint(t.Group), cmp.Or(t.Source, "-"), t.Receiver, t.imageName(), t.phaseName(), t.progress(bars),
			t.done(), t.rate(), t.ratio(), t.left(),
		})
	}
	return cliui.Table(w, columns, rows)
}

func (r *transfersReport) printEnded(w io.Writer) error {
	columns := []cliui.Column{
		{Name: "group", Number: true}, {Name: "from"}, {Name: "to"}, {Name: "image"}, {Name: "outcome"},
		{Name: "bytes", Number: true}, {Name: "wire", Number: true}, {Name: "rate", Number: true}, {Name: "ratio", Number: true},
		{Name: "took", Number: true}, {Name: "ago", Number: true}, {Name: "stages"},
	}
	if _, err := fmt.Fprintln(w, "\nended:"); err != nil {
		return err
	}
	var rows [][]string
	for _, t := range r.Ended {
		rows = append(rows, []string{
			fmt.Sprint(t.Group), cmp.Or(t.Source, "-"), t.Receiver, t.imageName(), strings.ReplaceAll(t.Outcome, "_", " "),
			cliui.Bytes(t.BytesDone), cliui.Bytes(t.WireBytes), t.rate(), t.ratio(),
			cliui.Duration(durationOf(t.Seconds)), cliui.Duration(r.at.Sub(t.ended).Round(time.Second)), strings.Join(t.stages(), ", "),
		})
	}
	if err := cliui.Table(w, columns, rows); err != nil {
		return err
	}
	for _, t := range r.Ended {
		if t.Problem == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s: %s\n", t.name(), t.Problem); err != nil {
			return err
		}
	}
	return nil
}

// durationOf is a duration in seconds, as the reports have it.
func durationOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// name tells which transfer it is, in a line about it.
func (t *transferReport) name() string {
	return fmt.Sprintf("group %d, %s -> %s", t.Group, cmp.Or(t.Source, "?"), t.Receiver)
}

// imageName tells what travels: "files @1,234", "records 1,000..1,234".
func (t *transferReport) imageName() string {
	switch {
	case t.Kind == "":
		return "-"
	case t.Kind == "records":
		return fmt.Sprintf("records %s..%s", cliui.Count(t.FromIndex), cliui.Count(t.Index))
	}
	return fmt.Sprintf("%s @%s", t.Kind, cliui.Count(t.Index))
}

func (t *transferReport) phaseName() string {
	if t.Position > 0 {
		return fmt.Sprintf("queued (%d)", t.Position)
	}
	return strings.ReplaceAll(t.Phase, "_", " ")
}

// progress is the share that is done: of the bytes, or of the log while it
// follows.
func (t *transferReport) progress(bar bool) string {
	done, total := t.BytesDone, t.BytesTotal
	if t.Phase == "catch_up" {
		done, total = t.AppliedIndex-min(t.Index, t.AppliedIndex), t.TargetIndex-min(t.Index, t.TargetIndex)
	}
	if total == 0 {
		return "-"
	}
	text := fmt.Sprintf("%d %%", 100*min(done, total)/total)
	if bar {
		return cliui.Bar(done, total, barWidth) + " " + text
	}
	return text
}

func (t *transferReport) done() string {
	switch {
	case t.Phase == "catch_up":
		return fmt.Sprintf("applied %s of %s", cliui.Count(t.AppliedIndex), cliui.Count(t.TargetIndex))
	case t.BytesTotal == 0:
		return "-"
	}
	return fmt.Sprintf("%s / %s", cliui.Bytes(t.BytesDone), cliui.Bytes(t.BytesTotal))
}

func (t *transferReport) rate() string {
	if t.MovedBytes == 0 {
		return "-"
	}
	return cliui.Rate(t.BytesPerSecond, time.Second)
}

func (t *transferReport) ratio() string {
	if t.Ratio == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *t.Ratio)
}

func (t *transferReport) left() string {
	if t.ETASeconds == nil {
		return "-"
	}
	return cliui.Duration(durationOf(*t.ETASeconds))
}

// remarks say what holds a transfer up, and what it lost.
func (t *transferReport) remarks() (lines []string) {
	if t.Paced {
		lines = append(lines, "the source holds back for its foreground work")
	}
	if t.Problem != "" {
		line := "waiting: " + t.Problem
		if t.RetryAfterSeconds > 0 {
			line += fmt.Sprintf("; again in %s", cliui.Duration(durationOf(t.RetryAfterSeconds)))
		}
		lines = append(lines, line)
	}
	if t.Restarts > 0 {
		lines = append(lines, fmt.Sprintf("started over %d times, last for %s", t.Restarts, strings.ReplaceAll(t.LastRestart, "_", " ")))
	}
	return lines
}

// line tells a running transfer in one line.
func (t *transferReport) line() string {
	parts := []string{t.phaseName()}
	if p := t.progress(false); p != "-" {
		parts[0] += " " + p
	}
	if d := t.done(); d != "-" {
		parts = append(parts, d)
	}
	if t.MovedBytes > 0 {
		parts = append(parts, t.rate(), "ratio "+t.ratio())
	}
	if t.ETASeconds != nil {
		parts = append(parts, t.left()+" left")
	}
	return t.name() + ": " + strings.Join(append(parts, t.remarks()...), ", ")
}

// endLine tells an ended one.
func (t *transferReport) endLine() string {
	line := fmt.Sprintf("%s: %s, %s, %s in %s (%s)", t.name(), strings.ReplaceAll(t.Outcome, "_", " "), t.imageName(),
		cliui.Bytes(t.BytesDone), cliui.Duration(durationOf(t.Seconds)), strings.Join(t.stages(), ", "))
	if t.Problem != "" {
		line += ": " + t.Problem
	}
	return line
}

// transferLines prints a line for what changed since the last look, where no
// terminal redraws.
type transferLines struct {
	first bool
	last  map[string]string // what was told of a transfer
	ended map[string]bool
}

func newTransferLines() *transferLines {
	return &transferLines{first: true, last: map[string]string{}, ended: map[string]bool{}}
}

func (l *transferLines) print(w io.Writer, r transfersReport) error {
	var lines []string
	last, ended := map[string]string{}, map[string]bool{}
	news := func(key, line string) {
		if last[key] = line; l.last[key] != line {
			lines = append(lines, line)
		}
	}
	for _, t := range r.Running {
		news(t.key(), t.line())
	}
	for i := len(r.Ended) - 1; i >= 0; i-- { // the latest is the first
		t := &r.Ended[i]
		ended[t.key()] = true
		if !l.first && !l.ended[t.key()] { // what ended before is not news
			lines = append(lines, t.endLine())
		}
	}
	for _, node := range r.Unreached {
		news(node.Address, fmt.Sprintf("%s does not answer: %s", cmp.Or(node.Node, node.Address), node.Error))
	}
	l.first, l.last, l.ended = false, last, ended
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

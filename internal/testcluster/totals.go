package testcluster

import (
	"fmt"
	"reflect"
	"strings"
	"text/tabwriter"
)

// Totals count what happened in a run, or in many. A run that never meets a
// case proves nothing about it, so over many runs none may stay zero.
type Totals struct {
	// Operations of clients that ended, whatever their outcome.
	Operations int64 `name:"client operations"`
	// Uncertain outcomes of operations: perhaps applied.
	Uncertain int64 `name:"uncertain outcomes"`
	// Refused attempts: certainly not applied.
	Refused int64 `name:"refused attempts"`
	// FollowerReads are linearizable reads that another than the leader served.
	FollowerReads int64 `name:"reads on followers"`
	// SessionRetries are repeated writes in client sessions.
	SessionRetries int64 `name:"client session retries"`
	// Duplicates are repeated writes that were answered from the record.
	Duplicates int64 `name:"duplicates dropped"`
	// Faults that the plan injected.
	Faults int64 `name:"faults"`
	// Elections are terms with a leader.
	Elections int64 `name:"elections"`
	// LossyCrashes lost what was not synced, all or some of it.
	LossyCrashes int64 `name:"lossy crashes"`
	// TornCrashes kept some sectors of what was not synced of the log.
	TornCrashes int64 `name:"crashes with torn sectors"`
	// Kills kept what was written, as a process kill does.
	Kills int64 `name:"kills"`
	// ClusterCrashes stopped all nodes at once.
	ClusterCrashes int64 `name:"crashes of all nodes"`
	// Traps are crashes at the moment of a promise, counted above too.
	Traps int64 `name:"crashes at a promise"`
	// Cuts of links, one way or both, and isolations.
	Cuts int64 `name:"cuts"`
	// LostMessages vanished, DuplicateMessages came twice, ReorderedMessages
	// were overtaken.
	LostMessages      int64 `name:"messages lost"`
	DuplicateMessages int64 `name:"messages duplicated"`
	ReorderedMessages int64 `name:"messages reordered"`
	// Transfers of leadership that succeeded.
	Transfers int64 `name:"leader transfers"`
	// SyncErrors were met by a node, which failed.
	SyncErrors int64 `name:"sync errors"`
	// DiskFull are episodes in which a node refused writes.
	DiskFull int64 `name:"disk full episodes"`
	// ClockSkews changed a node's clock.
	ClockSkews int64 `name:"clock skews"`
	// Truncations are entries overwritten in a log by those of another leader.
	Truncations int64 `name:"log truncations"`
	// Flushes of a state machine while the log above it was needed.
	Flushes int64 `name:"state flushes"`
	// LogCuts moved the beginning of a group's log.
	LogCuts int64 `name:"log cuts"`
	// SegmentsFreed are log segments deleted or recycled.
	SegmentsFreed int64 `name:"log segments freed"`
	// MovedEntries were rewritten to free an old segment.
	MovedEntries int64 `name:"entries moved"`
	// Replayed are entries applied again after a crash.
	Replayed int64 `name:"entries applied again"`
	// ImageAttempts are attempts to get an image from a source.
	ImageAttempts int64 `name:"image attempts"`
	// FullInstalls and DeltaInstalls are images that replaced a state, or
	// continued it.
	FullInstalls  int64 `name:"full images installed"`
	DeltaInstalls int64 `name:"delta images installed"`
	// Replaced are nodes that lost their disk and became members again, Promotions
	// the replicas that took the place of others for that.
	Replaced   int64 `name:"lost disks replaced"`
	Promotions int64 `name:"learners promoted"`
	// ImageCrashes hit the source or the receiver while an image travelled,
	// InstallCrashes came right before or after the state was replaced.
	ImageCrashes   int64 `name:"crashes while an image travels"`
	InstallCrashes int64 `name:"crashes at an installation"`
}

// each calls f for every figure with its name.
func (t *Totals) each(f func(name string, value *int64)) {
	v := reflect.ValueOf(t).Elem()
	for i := range v.NumField() {
		f(v.Type().Field(i).Tag.Get("name"), v.Field(i).Addr().Interface().(*int64))
	}
}

// Add adds the figures of another run.
func (t *Totals) Add(o Totals) {
	var values []int64
	o.each(func(_ string, v *int64) { values = append(values, *v) })
	i := 0
	t.each(func(_ string, v *int64) { *v += values[i]; i++ })
}

// countCrash counts the crash of one node.
func (t *Totals) countCrash(kind crashKind) {
	switch kind {
	case crashKill:
		t.Kills++
	case crashTorn:
		t.TornCrashes++
		t.LossyCrashes++
	default:
		t.LossyCrashes++
	}
}

// Zero returns the names of the figures that are zero.
func (t *Totals) Zero() (names []string) {
	t.each(func(name string, v *int64) {
		if *v == 0 {
			names = append(names, name)
		}
	})
	return names
}

// String returns the figures as a table.
func (t *Totals) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	t.each(func(name string, v *int64) { _, _ = fmt.Fprintf(w, "%s\t%d\t\n", name, *v) })
	_ = w.Flush() // into a strings.Builder, which takes everything
	return b.String()
}

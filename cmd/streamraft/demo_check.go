package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
)

// demoCheckTimeout bounds reading everything back.
const demoCheckTimeout = 5 * time.Minute

// checkWrites reads every record back, in linearizable reads, and compares it
// with what was written: all that was acknowledged must be there.
func (d *demo) checkWrites(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoCheckTimeout)
	defer cancel()
	r := &d.report
	expected := uint64(len(d.imported.values)+len(d.churned)) + d.load.acknowledged()
	bar := cliui.StartProgress(d.progress, "checking", r.Bytes)
	failed := true
	defer func() { bar.Stop(failed) }()
	var right uint64
	for record, err := range d.client.Range(ctx, client.RangeOptions{}) {
		if err != nil {
			return fmt.Errorf("read the records back: %w", err)
		}
		bar.Add(uint64(len(record.Key) + len(record.Value)))
		acknowledged, ok := d.checkRecord(record)
		switch {
		case !ok:
			r.problem("record %s has a value that nobody wrote there", shown(record.Key))
		case acknowledged:
			right++
		}
	}
	failed = false
	r.WritesChecked, r.WritesLost = expected, expected-right
	if r.WritesLost > 0 {
		r.problem("%d of %d acknowledged writes are lost", r.WritesLost, expected)
		return nil
	}
	d.say("All %s acknowledged writes are there, read back and compared", cliui.Count(expected))
	return nil
}

// checkRecord tells whether a record is as it was written, and whether that
// write was acknowledged: one that failed may be there too.
func (d *demo) checkRecord(record client.Record) (acknowledged, ok bool) {
	if value, ok := d.churned[string(record.Key)]; ok {
		ok = bytes.Equal(record.Value, value)
		return ok, ok
	}
	rest, isLoad := strings.CutPrefix(string(record.Key), demoLoadPrefix)
	if !isLoad {
		ok = d.imported.take(record.Key, record.Value)
		return ok, ok
	}
	writer, number, _ := strings.Cut(rest, "/")
	w, err := strconv.Atoi(writer)
	if err != nil || w < 0 || w >= len(d.load.writers) {
		return false, false
	}
	i, err := strconv.Atoi(number)
	acked := d.load.writers[w].acked
	if err != nil || i < 0 || i >= len(acked) || string(record.Value) != string(demoLoadValue(w, i)) {
		return false, false
	}
	return acked[i], true
}

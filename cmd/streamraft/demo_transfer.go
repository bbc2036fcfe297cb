package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

const (
	// demoTransferSeconds is about how long the image of an uncompressed data set
	// may travel: long enough to watch it, and to cut it in the middle.
	demoTransferSeconds = 6
	// demoMinRate is the lowest rate that images are held to, in bytes a second.
	demoMinRate = 2 << 20
	// demoLook is the pause between two looks at a transfer.
	demoLook = 10 * time.Millisecond
	// demoRedraw is the pause between two drawings of its line.
	demoRedraw = 100 * time.Millisecond
	// demoBarWidth leaves room for the figures in 80 columns.
	demoBarWidth = 16
)

// demoTransferRate is the rate at which images of a data set travel.
func demoTransferRate(dataBytes uint64) uint64 {
	return max(dataBytes/demoTransferSeconds, demoMinRate)
}

// watchTransfer shows how a node gets its image until it has it and has caught
// up, and returns what the node tells of it. seen, if not nil, is told each look.
// It fails when nothing changes for demoStep, or the node ends.
func (d *demo) watchTransfer(ctx context.Context, name string, seen func(transferReport) error) (transferReport, error) {
	defer fmt.Fprint(d.progress, "\r\x1b[K")
	ticker := time.NewTicker(demoLook)
	defer ticker.Stop()
	var last transferReport
	changed, drawn := time.Now(), time.Time{}
	for {
		t, err := d.received(ctx, name)
		if err == nil {
			if t.Outcome == "installed" {
				return t, nil
			}
			if seen != nil {
				if err := seen(t); err != nil {
					return t, err
				}
			}
			if t.BytesDone != last.BytesDone || t.Phase != last.Phase || t.AppliedIndex != last.AppliedIndex {
				last, changed = t, time.Now()
			}
			if time.Since(drawn) >= demoRedraw {
				fmt.Fprint(d.progress, "\r\x1b[K", demoTransferLine(name, t))
				drawn = time.Now()
			}
		}
		if !d.cluster.Running(name) {
			return t, fmt.Errorf("node %s ended%s", name, d.cluster.LogTail(name))
		}
		if time.Since(changed) > demoStep {
			return t, fmt.Errorf("the image for node %s does not get on for %s (%s): %w%s", name, cliui.Duration(demoStep),
				demoTransferLine(name, last), cmp.Or(err, errors.New("it stands still")), d.cluster.LogTail(name))
		}
		select {
		case <-ctx.Done():
			return t, context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

var errNoTransfer = errors.New("no image is on its way")

// received returns the latest transfer by which a node gets an image.
func (d *demo) received(ctx context.Context, name string) (latest transferReport, err error) {
	transfers, err := d.cluster.Transfers(ctx, name)
	if err != nil {
		return latest, err
	}
	err = errNoTransfer
	for _, t := range transfers {
		if t.GetGroup() != client.DataGroup || t.GetRole() != adminv1.TransferRole_TRANSFER_ROLE_RECEIVER {
			continue
		}
		if r := reportTransfer(name, t); err != nil || !r.started.Before(latest.started) {
			latest, err = r, nil
		}
	}
	return latest, err
}

// demoTransferLine is one transfer in one line of a terminal.
func demoTransferLine(name string, t transferReport) string {
	if t.BytesTotal == 0 {
		return fmt.Sprintf("%s  %s", name, t.phaseName())
	}
	line := fmt.Sprintf("%s  %s %3d %%  %s of %s, %s", name, cliui.Bar(t.BytesDone, t.BytesTotal, demoBarWidth),
		100*min(t.BytesDone, t.BytesTotal)/t.BytesTotal, cliui.Bytes(t.BytesDone), cliui.Bytes(t.BytesTotal), t.rate())
	if t.ETASeconds != nil && t.Phase == "send" {
		line += ", " + t.left() + " left"
	}
	return line + ", " + t.phaseName()
}

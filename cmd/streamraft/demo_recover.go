package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	adminv1 "github.com/streamraft/streamraft/proto/streamraft/admin/v1"
)

const (
	// demoLogBudget is the log that nodes keep: little, so that a node is soon
	// left behind.
	demoLogBudget = 16 << 20
	// demoChurnPrefix keeps the keys that are overwritten apart; demoChurnKeys of
	// them, each with a value of demoChurnValue bytes that do not compress.
	demoChurnPrefix = "streamraft-demo/churn/"
	demoChurnKeys   = 32
	demoChurnValue  = 16 << 10
	// demoChurnTimeout bounds how long is written until a node is left behind.
	demoChurnTimeout = 2 * time.Minute
	// demoCutSlack is what may travel twice around a cut, beside 2 % of the image:
	// the chunk that was under way, and its successor.
	demoCutSlack = 2 << 20
)

// follower returns a node that does not lead.
func (d *demo) follower(ctx context.Context) (string, error) {
	leader, err := d.leader(ctx)
	if err != nil {
		return "", err
	}
	for _, name := range d.cluster.Names() {
		if name != leader {
			return name, nil
		}
	}
	return "", errors.New("no node follows")
}

// loseDisk kills a node, removes all it had, and starts it with --replace.
func (d *demo) loseDisk(name string) (started time.Time, err error) {
	if err := d.cluster.Kill(name); err != nil {
		return started, err
	}
	return time.Now(), d.cluster.Replace(name)
}

// awaitReplaced waits until a node whose image is installed is a voter again and
// has all that the others have.
func (d *demo) awaitReplaced(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	if err := d.cluster.WaitCaughtUp(ctx, name, nil); err != nil {
		return err
	}
	if err := d.cluster.WaitVoters(ctx); err != nil {
		return fmt.Errorf("node %s is not let in again: %w", name, err)
	}
	return nil
}

// replaceDisk destroys the disk of a node and brings the node back.
func (d *demo) replaceDisk(ctx context.Context) error {
	name, err := d.follower(ctx)
	if err != nil {
		return err
	}
	// With little data the log reaches back to the beginning, and no image is needed.
	if _, err := d.churn(ctx, "", 0); err != nil {
		return err
	}
	d.say("%s loses its disk: killed, its directory removed. It starts anew with --replace", name)
	started, err := d.loseDisk(name)
	if err != nil {
		return err
	}
	t, err := d.watchTransfer(ctx, name, nil)
	if err != nil {
		return err
	}
	if err := d.awaitReplaced(ctx, name); err != nil {
		return err
	}
	took, r := time.Since(started), &d.report
	r.Replaced, r.ReplaceSeconds, r.ReplaceBytes = name, seconds(took), t.BytesTotal
	d.say("%s is a full member again after %s: it got %s of files at %s, a limit set so that you can watch", name,
		cliui.Duration(took), cliui.Bytes(t.BytesTotal), t.rate())
	return nil
}

// fallBehind stops the node that was replaced until no log reaches it any more,
// and starts it again: it gets what changed.
func (d *demo) fallBehind(ctx context.Context) error {
	name, r := d.report.Replaced, &d.report
	status, err := d.groupStatus(ctx, name)
	if err != nil {
		return err
	}
	stop, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	if _, err := d.cluster.Stop(stop, name); err != nil {
		return err
	}
	written, err := d.churn(ctx, name, status.GetLastIndex())
	if err != nil {
		return err
	}
	d.say("%s was stopped while %s were written; the log does not reach back to it any more", name, cliui.Bytes(written))
	started := time.Now()
	start, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	if err := d.cluster.Restart(start, name); err != nil {
		return err
	}
	t, err := d.watchTransfer(ctx, name, nil)
	if err != nil {
		return err
	}
	if err := d.awaitReplaced(ctx, name); err != nil {
		return err
	}
	took := time.Since(started)
	r.BehindWritten, r.DeltaBytes, r.DeltaSeconds = written, t.BytesTotal, seconds(took)
	if t.Kind != "records" || t.BytesTotal*2 > r.ReplaceBytes {
		r.problem("%s was behind by a little and got %s of %s, though its whole state is %s", name, cliui.Bytes(t.BytesTotal), t.Kind, cliui.Bytes(r.ReplaceBytes))
		return nil
	}
	d.say("%s got only what changed: a delta of %s instead of %s, back after %s", name,
		cliui.Bytes(t.BytesTotal), cliui.Bytes(r.ReplaceBytes), cliui.Duration(took))
	return nil
}

func (d *demo) groupStatus(ctx context.Context, name string) (*adminv1.GroupStatus, error) {
	status, err := d.cluster.Status(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, g := range status.GetGroups() {
		if g.GetGroup() == client.DataGroup {
			return g, nil
		}
	}
	return nil, fmt.Errorf("node %s has no data", name)
}

// churn overwrites a few records until the log of no node but one reaches back to
// an index, and returns how much was written.
func (d *demo) churn(ctx context.Context, away string, index uint64) (written uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, demoChurnTimeout)
	defer cancel()
	if d.churned == nil {
		d.churned = map[string][]byte{}
	}
	defer fmt.Fprint(d.progress, "\r\x1b[K")
	for {
		reaches := false
		for _, name := range d.cluster.Names() {
			if name == away {
				continue
			}
			g, err := d.groupStatus(ctx, name)
			if err != nil {
				return written, err
			}
			reaches = reaches || g.GetFirstIndex() <= index+1
		}
		if !reaches {
			return written, nil
		}
		if err := d.overwrite(ctx); err != nil {
			return written, fmt.Errorf("write until the log is cut: %w", err)
		}
		written += demoChurnKeys * demoChurnValue
		if written%(4<<20) == 0 {
			fmt.Fprintf(d.progress, "\r\x1b[K%s written, the log is not cut yet", cliui.Bytes(written))
		}
	}
}

// overwrite gives each record of the churn a new value, all at a time.
func (d *demo) overwrite(ctx context.Context) error {
	var running sync.WaitGroup
	errs := make([]error, demoChurnKeys)
	for i := range demoChurnKeys {
		var seed [32]byte
		binary.LittleEndian.PutUint64(seed[:], rand.Uint64())
		key, value := fmt.Sprintf("%s%02d", demoChurnPrefix, i), make([]byte, demoChurnValue)
		_, _ = rand.NewChaCha8(seed).Read(value) // it never fails
		d.churned[key] = value
		running.Go(func() { _, errs[i] = d.client.Put(ctx, []byte(key), value) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// cutTransfer destroys the disk again and kills the node that sends the image in
// the middle of it, and with it the connection.
func (d *demo) cutTransfer(ctx context.Context) error {
	name, r := d.report.Replaced, &d.report
	if leader, err := d.leader(ctx); err != nil {
		return err
	} else if leader == name {
		if name, err = d.follower(ctx); err != nil {
			return err
		}
	}
	d.say("%s loses its disk once more", name)
	if _, err := d.loseDisk(name); err != nil {
		return err
	}
	t, err := d.watchTransfer(ctx, name, func(t transferReport) error {
		if r.CutSource != "" || t.Phase != "send" || t.BytesTotal == 0 || t.BytesDone*2 < t.BytesTotal || t.Source == "" {
			return nil
		}
		r.CutSource, r.CutAtBytes = t.Source, t.BytesDone
		fmt.Fprint(d.progress, "\r\x1b[K")
		d.say("At %d %% the sender, %s, is killed, and the connection with it; %s starts again", 100*t.BytesDone/t.BytesTotal, t.Source, t.Source)
		if err := d.cluster.Kill(t.Source); err != nil {
			return err
		}
		return d.cluster.Launch(t.Source)
	})
	if err != nil {
		return err
	}
	if err := d.awaitReplaced(ctx, name); err != nil {
		return err
	}
	if r.CutSource == "" {
		d.say("The image, %s, was there before it could be cut: import more data to see that", cliui.Bytes(t.BytesTotal))
		return nil
	}
	r.CutNode, r.CutImageBytes, r.CutReceivedBytes = name, t.BytesTotal, t.MovedBytes
	if limit := t.BytesTotal + max(t.BytesTotal/50, demoCutSlack); t.MovedBytes > limit || t.Restarts > 0 {
		r.problem("the transfer did not go on where it was: %d bytes were received for an image of %d (started over %d times: %s)",
			t.MovedBytes, t.BytesTotal, t.Restarts, t.LastRestart)
		return nil
	}
	r.CutSavedBytes = r.CutAtBytes
	d.say("The transfer went on where it was: %s received for an image of %s, the first %s not again", cliui.Bytes(t.MovedBytes),
		cliui.Bytes(t.BytesTotal), cliui.Bytes(r.CutAtBytes))
	return nil
}

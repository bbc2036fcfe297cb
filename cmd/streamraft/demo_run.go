package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/cliui"
	"github.com/streamraft/streamraft/internal/importer"
	"github.com/streamraft/streamraft/internal/localcluster"
)

// demoOptions are the flags of `streamraft demo`.
type demoOptions struct {
	data  string // file or directory; "": the sources of Go
	limit uint64 // bytes of the data set that are imported; 0: all
	nodes int
	keep  bool
	json  bool
}

const (
	// demoSteady is how long the load runs before the kill: enough writes to
	// know the longest pause without one.
	demoSteady = 1500 * time.Millisecond
	// demoAfterKill is how long the load goes on under the new leader, so that
	// the killed node has something to catch up with.
	demoAfterKill = 2500 * time.Millisecond
	// demoStep bounds each step that waits for the cluster.
	demoStep = 30 * time.Second
)

// demo is one run of the demonstration.
type demo struct {
	options demoOptions
	report  demoReport
	// say tells people what happens; bars are drawn on progress.
	say      func(format string, args ...any)
	progress io.Writer

	cluster  *localcluster.Cluster
	client   *client.Client
	imported *importCheck
	load     *demoLoad
	churned  map[string][]byte // acknowledged values by key, of demoChurnPrefix
}

// errDemoFailed is the error of a demonstration whose checks did not hold; the
// report that was printed says which.
var errDemoFailed = errors.New("the demonstration failed: see the problems above")

// runDemo runs the demonstration and prints its report to stdout. Whatever ends
// it, no process is left, and no directory unless it is asked for or needed to
// see what went wrong.
func runDemo(ctx context.Context, o demoOptions, stdout, stderr io.Writer) error {
	ctx, release := holdSignals(ctx)
	defer release()
	d := &demo{options: o, progress: io.Discard, say: func(string, ...any) {}}
	if cliui.IsTerminal(stderr) {
		d.progress = stderr
	}
	if !o.json {
		d.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	}
	source, err := openDemoData(ctx, &d.options)
	if err != nil {
		return err
	}
	defer source.Close()
	started := time.Now()
	dir, err := os.MkdirTemp("", "streamraft-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the cluster: %w", err)
	}
	err = d.run(ctx, dir, source)
	// What went wrong is worth a look; what was interrupted is not.
	kept := ctx.Err() == nil && (o.keep || len(d.report.Problems) > 0)
	var cleanup error
	if !kept {
		cleanup = os.RemoveAll(dir)
	}
	if ctx.Err() != nil {
		return withExitCode(exitInterrupted, errors.Join(errors.New("interrupted; no process is left"), cleanup))
	}
	if err := errors.Join(err, cleanup); err != nil {
		if kept {
			err = fmt.Errorf("%w\nThe cluster is kept in %s", err, dir)
		}
		return err
	}
	d.report.finish(started)
	if kept {
		d.report.Directory = dir
	}
	if err := d.print(stdout); err != nil {
		return err
	}
	if !d.report.OK {
		return errDemoFailed
	}
	return nil
}

// run starts a cluster in dir, does everything with it and ends it.
func (d *demo) run(ctx context.Context, dir string, source importer.Source) (err error) {
	d.say("Starting %d nodes, each a process of its own, in %s", d.options.nodes, dir)
	d.cluster, err = localcluster.Start(ctx, localcluster.Options{
		Dir: dir, Nodes: d.options.nodes,
		// Several nodes share this machine's memory.
		ExtraArgs: []string{
			"--cache-bytes", "64MiB", "--memtable-bytes", "64MiB",
			fmt.Sprintf("--log-budget=%d", demoLogBudget), fmt.Sprintf("--log-segment-bytes=%d", demoLogBudget/2),
			"--snapshot-pacing=off", fmt.Sprintf("--snapshot-rate=%d", demoTransferRate(source.Total())),
		},
	})
	if err != nil {
		return fmt.Errorf("start the cluster: %w", err)
	}
	defer func() { err = errors.Join(err, d.cluster.Close()) }()
	d.client, err = client.Open(ctx, client.Options{Endpoints: d.cluster.Endpoints(), RequestTimeout: demoStep})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.client.Close()) }()

	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return d.importData(ctx, source) },
		d.killLeader, d.restartKilled, d.replaceDisk, d.fallBehind, d.cutTransfer, d.checkWrites, d.compareDigests,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// importData imports the data set and keeps what is needed to check it.
func (d *demo) importData(ctx context.Context, source importer.Source) error {
	d.imported = newImportCheck(source)
	d.say("Importing %s", d.options.data)
	bar := cliui.StartProgress(d.progress, "importing", source.Total())
	summary, err := importer.Run(ctx, d.client, d.imported, importer.Options{
		SkipBad: true, OnInput: func(n int) { bar.Add(uint64(n)) },
	})
	bar.Stop(err != nil)
	if err != nil {
		return err
	}
	r := &d.report
	r.Nodes = d.options.nodes
	r.Data, r.Records, r.Bytes, r.Skipped = d.options.data, summary.Records, summary.Bytes, summary.Skipped
	r.ImportSeconds = seconds(summary.Elapsed)
	r.ImportMBPerSecond = round(cliui.MegabytesPerSecond(summary.Bytes, summary.Elapsed))
	d.say("Imported %s records, %s, in %s: %s, each write on disk on a majority of the nodes", cliui.Count(r.Records),
		cliui.Bytes(r.Bytes), cliui.Duration(summary.Elapsed), cliui.Rate(summary.Bytes, summary.Elapsed))
	return nil
}

// killLeader kills the leader while clients write and read, and measures how
// long no write is acknowledged.
func (d *demo) killLeader(ctx context.Context) (err error) {
	if d.load, err = startDemoLoad(ctx, d.client); err != nil {
		return err
	}
	defer d.load.stop()
	if err := d.load.waitWrites(ctx, 1); err != nil {
		return err
	}
	if err := pause(ctx, demoSteady); err != nil {
		return err
	}
	leader, err := d.leader(ctx)
	if err != nil {
		return err
	}
	d.say("%d writers and %d readers run; now the leader, %s, is killed (SIGKILL)", demoWriters, demoReaders, leader)
	killed := d.load.markKill()
	if err := d.cluster.Kill(leader); err != nil {
		return err
	}
	next, err := d.leader(ctx)
	if err != nil {
		return err
	}
	elected := time.Since(killed)
	if err := d.load.waitWrites(ctx, d.load.acknowledged()+1); err != nil {
		return fmt.Errorf("writes did not go on under the new leader: %w", err)
	}
	if err := pause(ctx, demoAfterKill); err != nil {
		return err
	}
	d.load.stop()
	d.report.addLoad(d.load.totals())
	d.report.Killed, d.report.NewLeader, d.report.ElectionMS = leader, next, milliseconds(elected)
	d.say("New leader: %s, after %s. Longest time without an acknowledged write: %s (before the kill: %s)", next,
		cliui.Duration(elected), cliui.Duration(fromMilliseconds(d.report.KillGapMS)), cliui.Duration(fromMilliseconds(d.report.SteadyGapMS)))
	return nil
}

func (d *demo) leader(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	return d.cluster.Leader(ctx, client.DataGroup)
}

// restartKilled starts the killed node again and waits until it has all that it
// missed.
func (d *demo) restartKilled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	killed := d.report.Killed
	started := time.Now()
	if err := d.cluster.Restart(ctx, killed); err != nil {
		return fmt.Errorf("restart the killed node: %w", err)
	}
	err := d.cluster.WaitCaughtUp(ctx, killed, func(applied, goal uint64) {
		// The line is written over until it is done.
		fmt.Fprintf(d.progress, "\r%s: %s of %s log entries applied", killed, cliui.Count(applied), cliui.Count(goal))
	})
	fmt.Fprint(d.progress, "\r\x1b[K")
	if err != nil {
		return err
	}
	caughtUp := time.Since(started)
	d.report.CatchUpSeconds = seconds(caughtUp)
	d.say("Started %s again: it had everything after %s", killed, cliui.Duration(caughtUp))
	return nil
}

// compareDigests compares the states of all nodes at one index.
func (d *demo) compareDigests(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	digests, err := d.cluster.Digests(ctx)
	if err != nil {
		return err
	}
	d.report.addDigests(digests, d.options.nodes)
	if d.report.DigestEqual {
		d.say("All %d nodes have the same state at index %d: digest %016x", len(digests), digests[0].Index, digests[0].Digest)
	}
	return nil
}

// pause lets time pass for the load.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// demoProgram is how the reader calls this program again.
func demoProgram() string {
	binary := os.Args[0]
	if filepath.Base(filepath.Dir(binary)) == "exe" { // built by `go run` and gone afterwards
		return "go run ./cmd/streamraft"
	}
	return binary
}

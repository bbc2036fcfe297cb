package testcluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaultSeeds of a plain `go test`.
const defaultSeeds = 5

// historyLimit is the real time to decide the history of one key.
const historyLimit = 60 * time.Second

// totalsFrom is the number of seeds from which on no figure may be zero.
const totalsFrom = 20

// TestSimulation runs clusters with faults, a seed each. STREAMRAFT_SIM_SEEDS is
// the number of seeds, STREAMRAFT_SIM_SEED the first one; that alone is one seed,
// with all raft messages in its trace.
func TestSimulation(t *testing.T) {
	first, count, verbose := seeds(t)
	var mu sync.Mutex
	var totals Totals
	begin, ran := time.Now(), 0
	t.Run("seeds", func(t *testing.T) {
		for i := range count {
			plan := NewPlan(first + uint64(i))
			t.Run(fmt.Sprintf("seed=%d", plan.Seed), func(t *testing.T) {
				t.Parallel()
				report := simulateSeed(t, plan, verbose)
				mu.Lock()
				defer mu.Unlock()
				totals.Add(report.Totals)
				ran++
			})
		}
	})
	t.Logf("%d seeds from %d in %.0f s:\n%s", ran, first, time.Since(begin).Seconds(), totals.String())
	if zero := totals.Zero(); ran >= totalsFrom && len(zero) > 0 {
		t.Errorf("never met in %d seeds: %s; the simulation proves nothing about them", ran, strings.Join(zero, ", "))
	}
}

// seeds reads what to run from the environment.
func seeds(t *testing.T) (first uint64, count int, verbose bool) {
	first, count = 1, defaultSeeds
	if s := os.Getenv("STREAMRAFT_SIM_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("STREAMRAFT_SIM_SEED: %v", err)
		}
		first, count = seed, 1
	}
	if s := os.Getenv("STREAMRAFT_SIM_SEEDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("STREAMRAFT_SIM_SEEDS is %q; it must be a number from 1", s)
		}
		count = n
	}
	return first, count, count == 1
}

// simulateSeed runs a plan, checks its history and saves the trace of a failure.
func simulateSeed(t *testing.T, plan *Plan, verbose bool) *Report {
	var report *Report
	synctest.Test(t, func(t *testing.T) { report = Simulate(plan, verbose) })
	for _, v := range report.Violations {
		t.Error(v)
	}
	for _, problem := range report.CheckHistory(historyLimit) {
		t.Error(problem)
	}
	if !t.Failed() {
		if n := report.Totals; n.Operations < 500 || n.Faults < 10 {
			t.Errorf("only %d operations and %d faults", n.Operations, n.Faults)
		}
	}
	if t.Failed() || verbose {
		saveTrace(t, report)
	}
	return report
}

// saveTrace writes the trace to a file that outlives the test.
func saveTrace(t *testing.T, report *Report) {
	var b bytes.Buffer
	if err := report.WriteTrace(&b); err != nil {
		t.Error(err)
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("streamraft-sim-%d-%d.trace", report.Plan.Seed, os.Getpid()))
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Error(err)
	}
	t.Logf("the trace of seed %d is in %s; repeat with STREAMRAFT_SIM_SEED=%d", report.Plan.Seed, path, report.Plan.Seed)
	if t.Failed() {
		t.Logf("the last events:\n%s", strings.Join(report.LastEvents(50), "\n"))
	}
}

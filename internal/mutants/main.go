package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case errors.Is(err, errNotCaught):
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
}

// errNotCaught is returned when the mutants could be run and not every one was
// caught.
var errNotCaught = errors.New("not every mutant was caught")

// run tries all mutants that the arguments choose and prints a table.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	root := flags.String("root", ".", "directory of the module to break")
	dir := flags.String("dir", "internal/mutants/testdata", "directory of the patches")
	choose := flags.String("run", "", "try only mutants whose name matches this regular expression")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*choose)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	mutants, err := readMutants(*dir, chosen)
	if err != nil {
		return err
	}
	if len(mutants) == 0 {
		return fmt.Errorf("%w: there is none in %s whose name matches %q", errNotCaught, *dir, *choose)
	}
	r := runner{root: *root, baseline: map[string]error{}}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MUTANT\tCAUGHT BY\tSECONDS")
	var failures []error
	for _, m := range mutants {
		start := time.Now()
		caughtBy, err := r.try(ctx, m)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			caughtBy = "NOT CAUGHT"
			failures = append(failures, fmt.Errorf("%s (%s): %w", m.name, m.breaks, err))
		}
		fmt.Fprintf(table, "%s\t%s\t%.1f\n", m.name, caughtBy, time.Since(start).Seconds())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(failures) > 0 {
		return fmt.Errorf("%w: %d of %d\n%w", errNotCaught, len(failures), len(mutants), errors.Join(failures...))
	}
	fmt.Fprintf(out, "all %d mutants were caught\n", len(mutants))
	return nil
}

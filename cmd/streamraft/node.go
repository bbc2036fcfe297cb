package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/streamraft/streamraft/server"
)

// newNodeCommand makes the command that runs a node.
func newNodeCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run a node",
		Long: `Run a node until SIGINT or SIGTERM, which make it hand its leaderships over
and stop.

A cluster is founded by starting every node of it with an empty directory and
the same --cluster list. Later starts need no list, and ignore it.

A node with an empty directory joins a cluster that exists with --join and the
address of a member: it gets the data and becomes a voter once it is caught up,
or stays a learner with --learner. With --replace it takes the place of the node
of its name, whose directory is lost. Later starts need neither, and ignore them.

Every flag but --config is also a key of the config file, with _ for -. A flag
wins over the file, the file over the default.`,
		Example: `  streamraft node --name n1 --data-dir /var/lib/streamraft --cluster n1=127.0.0.1:7601
  streamraft node --name n4 --data-dir data/n4 --listen 127.0.0.1:7604 --http-listen 127.0.0.1:7614 --join 127.0.0.1:7601
  streamraft node --name n2 --data-dir data/n2-new --replace 127.0.0.1:7601
  streamraft node --config node.yaml`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := nodeConfig(file, cmd.Flags())
			if err != nil {
				return withExitCode(exitUsage, err)
			}
			return runNode(cmd.Context(), config, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "config file (YAML)")
	addConfigFlags(cmd.Flags())
	return cmd
}

// addConfigFlags adds a flag for each key of the config. All are text, which
// the config reads itself, so that a file and a flag mean the same.
func addConfigFlags(flags *pflag.FlagSet) {
	for _, k := range server.Keys() {
		flags.String(k.Flag(), k.Default, k.Help)
		if k.IsBool() {
			flags.Lookup(k.Flag()).NoOptDefVal = "true"
		}
	}
}

// nodeConfig merges file and flags, fills in defaults and checks all of it. The
// error lists every problem of both.
func nodeConfig(file string, flags *pflag.FlagSet) (server.Config, error) {
	var config server.Config
	var problems configProblems
	if file != "" {
		var err error
		config, err = server.LoadConfig(file)
		if err := problems.add(err); err != nil {
			return config, err
		}
	}
	for _, k := range server.Keys() {
		if f := flags.Lookup(k.Flag()); f != nil && f.Changed {
			if err := problems.add(config.Set(k.Name, f.Value.String(), "flag --"+k.Flag())); err != nil {
				return config, err
			}
		}
	}
	config.EnsureDefaults()
	if err := problems.add(config.Validate()); err != nil {
		return config, err
	}
	return config, problems.err(file)
}

// configProblems collects the problems of several steps into one error.
type configProblems []server.Problem

// add takes the problems of a *server.ConfigError and returns any other error.
func (p *configProblems) add(err error) error {
	var bad *server.ConfigError
	if errors.As(err, &bad) {
		*p = append(*p, bad.Problems...)
		return nil
	}
	return err
}

func (p configProblems) err(file string) error {
	if len(p) == 0 {
		return nil
	}
	return &server.ConfigError{File: file, Problems: p}
}

// runNode runs a node until ctx ends or the node fails.
func runNode(ctx context.Context, config server.Config, stderr io.Writer) error {
	log := config.NewLogger(stderr)
	log.Info("starting", "version", buildVersion(), "config", config)
	node, err := server.Open(ctx, config, server.Options{Logger: log, Version: buildVersion()})
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			log.Info("stopped before the node was running")
			return nil
		}
		return withExitCode(openExitCode(err), err)
	}
	select {
	case <-ctx.Done():
	case <-node.Failed():
		err := node.Err()
		if closeErr := node.Close(); closeErr != nil {
			log.Warn("closing the failed node", "error", closeErr)
		}
		return withExitCode(exitNodeFailed, fmt.Errorf("the node failed: %w; repair the cause and start it again", err))
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), config.ShutdownTimeout)
	defer cancel()
	if err := node.Shutdown(stop); err != nil {
		return fmt.Errorf("stop the node: %w", err)
	}
	log.Info("stopped")
	return nil
}

// openExitCode is the exit code of a node that did not start.
func openExitCode(err error) int {
	switch server.KindOf(err) {
	case server.KindConfig:
		return exitUsage
	case server.KindRefused, server.KindVersion:
		return exitRefused
	case server.KindDamaged:
		return exitNodeFailed
	}
	return exitFailure
}

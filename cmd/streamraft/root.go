package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client"
)

// endpointsVariable is the environment variable that stands for --endpoints.
const endpointsVariable = "STREAMRAFT_ENDPOINTS"

// defaultEndpoint is where a node listens by default.
const defaultEndpoint = "127.0.0.1:7601"

// globals are the flags that every command has.
type globals struct {
	endpoints []string
	timeout   time.Duration
	json      bool
}

// newRootCommand makes the whole command tree.
func newRootCommand() (*cobra.Command, *globals) {
	g := &globals{}
	root := &cobra.Command{
		Use:   "streamraft",
		Short: "Replicated records, durable on several machines",
		Long: `streamraft keeps records identical and durable on several machines.

Start a node with "streamraft node", or see everything at once with
"streamraft demo". The other commands talk to a running cluster.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       buildVersion(),
	}
	root.SetVersionTemplate("streamraft {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringSliceVar(&g.endpoints, "endpoints", nil,
		"nodes of the cluster as host:port, separated by commas (environment "+endpointsVariable+"; default "+defaultEndpoint+")")
	flags.DurationVar(&g.timeout, "timeout", 10*time.Second, "longest time a request may take, with retries")
	flags.BoolVar(&g.json, "json", false, "print JSON, with the schema of docs/cli.md")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageErrorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(commands(g)...)
	parent(root)
	return root, g
}

// parent makes a command that only has subcommands tell what it has, and refuse
// what it has not with the exit code of wrong usage.
func parent(cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		message := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			message += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usageErrorf("%s", message)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.SuggestionsMinimumDistance = 2
	return cmd
}

// args makes a wrong number of arguments an error of usage that shows the use.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageErrorf("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

// addresses returns the endpoints to use.
func (g *globals) addresses() []string {
	if len(g.endpoints) > 0 {
		return g.endpoints
	}
	if variable := os.Getenv(endpointsVariable); variable != "" {
		return strings.Split(variable, ",")
	}
	return []string{defaultEndpoint}
}

// connect makes a client. The caller closes it.
func (g *globals) connect(ctx context.Context) (*client.Client, error) {
	return g.open(ctx, false)
}

// connectLazily makes a client that has not reached any node yet.
func (g *globals) connectLazily(ctx context.Context) (*client.Client, error) {
	return g.open(ctx, true)
}

func (g *globals) open(ctx context.Context, lazy bool) (*client.Client, error) {
	if g.timeout <= 0 {
		return nil, usageErrorf("--timeout must be above zero")
	}
	o := client.Options{Endpoints: g.addresses(), RequestTimeout: g.timeout, DialTimeout: min(3*time.Second, g.timeout), Lazy: lazy}
	for i, endpoint := range o.Endpoints {
		o.Endpoints[i] = strings.TrimSpace(endpoint)
	}
	if err := o.Validate(); err != nil {
		return nil, usageErrorf("--endpoints: %w", err)
	}
	return client.Open(ctx, o)
}

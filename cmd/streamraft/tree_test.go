package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/streamraft/streamraft/client/clienttest"
)

// TestEveryCommandHelps holds every command to a short line, an example where
// it does something itself, and to returning its error.
func TestEveryCommandHelps(t *testing.T) {
	root, _ := newRootCommand()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd != root {
			if cmd.Short == "" || strings.Contains(cmd.Short, "\n") || strings.HasSuffix(cmd.Short, ".") {
				t.Errorf("%s: Short %q is not one line without a full stop", cmd.CommandPath(), cmd.Short)
			}
			if cmd.Example == "" && !cmd.HasSubCommands() {
				t.Errorf("%s has no example", cmd.CommandPath())
			}
		}
		if cmd.RunE == nil || cmd.Run != nil {
			t.Errorf("%s does not return its error", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

func TestWatchEndsWithTheInterrupt(t *testing.T) {
	cluster, err := clienttest.New(1)
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var out, problems bytes.Buffer
	code := run(ctx, []string{"status", "--watch", "--interval", "10ms", "--json", "--endpoints", cluster.Addresses()[0]}, strings.NewReader(""), &out, &problems)
	if code != exitOK || strings.Count(out.String(), "\n") < 3 {
		t.Fatalf("exit code %d\n%s%s", code, out.String(), problems.String())
	}
}

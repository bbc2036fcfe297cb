package proctest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/internal/localcluster"
)

// binaryVariable tells the tests where the program is that TestMain built.
const binaryVariable = "STREAMRAFT_PROCTEST_BINARY"

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "streamraft-proctest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary := filepath.Join(dir, "streamraft")
	build := exec.Command("go", "build", "-o", binary, "github.com/streamraft/streamraft/cmd/streamraft")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		os.Exit(1)
	}
	os.Setenv(binaryVariable, binary)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// rounds is how often a fault is repeated.
func rounds() int {
	if os.Getenv("STREAMRAFT_LONG") != "" {
		return 20
	}
	return 3
}

// small are arguments with which many nodes fit one machine.
func small() []string {
	return []string{"--cache-bytes", "16MiB", "--memtable-bytes", "32MiB", "--log-segment-bytes", "8MiB", "--log-budget", "16MiB"}
}

// newCluster makes a cluster without starting it.
func newCluster(t *testing.T, o localcluster.Options) *localcluster.Cluster {
	t.Helper()
	o.Binary = os.Getenv(binaryVariable)
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	o.ExtraArgs = append(small(), o.ExtraArgs...)
	c, err := localcluster.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, name := range c.Names() {
				t.Logf("%s printed:%s", name, c.LogTail(name))
			}
		}
	})
	return c
}

// startCluster starts a cluster and makes a client of it.
func startCluster(t *testing.T, o localcluster.Options) (*localcluster.Cluster, *client.Client) {
	t.Helper()
	c := newCluster(t, o)
	if err := c.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, connect(t, c)
}

func connect(t *testing.T, c *localcluster.Cluster) *client.Client {
	t.Helper()
	connection, err := client.Open(t.Context(), client.Options{Endpoints: c.Endpoints(), Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	})
	return connection
}

// within bounds what a test waits for.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// await polls until a condition holds; the condition says what is missing.
func await(t *testing.T, what string, limit time.Duration, holds func() error) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := holds()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		case <-ticker.C:
		}
	}
}

// leader returns the leader of the data group.
func leader(t *testing.T, c *localcluster.Cluster) string {
	t.Helper()
	name, err := c.Leader(within(t, 20*time.Second), client.DataGroup)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// lead makes a node the leader of the data group.
func lead(t *testing.T, c *localcluster.Cluster, connection *client.Client, name string) {
	t.Helper()
	await(t, name+" leads", 20*time.Second, func() error {
		if now := leader(t, c); now == name {
			return nil
		}
		_, err := connection.TransferLeader(t.Context(), client.DataGroup, name)
		if err == nil {
			err = errors.New("handed over, not seen yet")
		}
		return err
	})
}

// sameDigests wants all running nodes to have the same state.
func sameDigests(t *testing.T, c *localcluster.Cluster) {
	t.Helper()
	digests, err := c.Digests(within(t, 30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if !localcluster.DigestsEqual(digests) {
		t.Fatalf("the states differ: %+v", digests)
	}
}

// result is how a command line ended.
type result struct {
	code           int
	stdout, stderr string
}

// command runs the program to its end.
func command(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(within(t, 60*time.Second), os.Getenv(binaryVariable), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// wantCode wants an exit code, and texts in what was printed.
func (r result) want(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.stdout, r.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			t.Errorf("%q is not in what was printed:\n%s%s", text, r.stdout, r.stderr)
		}
	}
}

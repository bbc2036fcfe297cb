//go:build unix

package localcluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamraft/streamraft/client"
)

func start(t *testing.T, o Options) *Cluster {
	t.Helper()
	o.Dir = t.TempDir()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// await polls until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := poll(ctx, func(context.Context) error {
		if !holds() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// processExists tells whether a process runs; one that has ended and waits for
// its parent to notice doesn't.
func processExists(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil && strings.Contains(string(stat), ") Z ") {
		return false
	}
	return syscall.Kill(pid, 0) == nil
}

func TestLife(t *testing.T) {
	c := start(t, Options{})
	ctx := t.Context()
	if got := strings.Join(c.Names(), " "); got != "n1 n2 n3" {
		t.Fatal(got)
	}
	if leader, err := c.Leader(ctx, client.DataGroup); err != nil || leader != "n1" {
		t.Fatalf("leader %q, %v; n3's term is lower", leader, err)
	}
	if err := c.WaitCaughtUp(ctx, "n2", nil); err != nil {
		t.Fatal(err)
	}
	pid := c.PID("n2")
	if err := c.Wipe("n2"); err == nil {
		t.Fatal("a running node was wiped")
	}
	if err := c.Kill("n2"); err != nil {
		t.Fatal(err)
	}
	if c.Running("n2") || processExists(pid) || c.Kill("n2") == nil {
		t.Fatal("n2 runs after Kill")
	}
	file := filepath.Join(c.DataDir("n2"), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Wipe("n2"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Fatalf("the wiped file: %v", err)
	}
	address := c.Endpoint("n2")
	if err := c.Restart(ctx, "n2"); err != nil {
		t.Fatal(err)
	}
	if c.Endpoint("n2") != address || !strings.Contains(c.LogTail("n2"), "n2 serves") {
		t.Fatalf("restarted at %s, was %s;%s", c.Endpoint("n2"), address, c.LogTail("n2"))
	}
	if code, err := c.Stop(ctx, "n2"); err != nil || code != 7 {
		t.Fatalf("stopped with %d, %v", code, err)
	}
	if err := c.Kill("n9"); err == nil || !strings.Contains(err.Error(), "n1, n2, n3") {
		t.Fatalf("unknown node: %v", err)
	}
}

func TestFreeze(t *testing.T) {
	c := start(t, Options{Nodes: 1})
	if err := c.Pause("n1"); err != nil {
		t.Fatal(err)
	}
	await(t, "the node answers no more", func() bool {
		_, err := c.Status(t.Context(), "n1")
		return err != nil
	})
	if err := c.Resume("n1"); err != nil {
		t.Fatal(err)
	}
	await(t, "the node answers again", func() bool {
		_, err := c.Status(t.Context(), "n1")
		return err == nil
	})
}

func TestPortsTaken(t *testing.T) {
	c := start(t, Options{Nodes: 2, NodeArgs: func(node string) []string {
		if node == "n2" {
			return []string{"--ports-taken", "2"}
		}
		return nil
	}})
	if !c.Running("n2") {
		t.Fatal("n2 does not run")
	}
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), Nodes: 1, ExtraArgs: []string{"--ports-taken", "99"}})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 1 || exit.Node != "n1" {
		t.Fatalf("got %v", err)
	}
}

func TestStartFailsAtOnce(t *testing.T) {
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), ExtraArgs: []string{"--refuse"}, StartTimeout: time.Hour})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 6 || !strings.Contains(err.Error(), "another cluster") {
		t.Fatalf("got %v", err)
	}
	if _, err := Start(t.Context(), Options{Dir: t.TempDir(), Binary: "/does/not/exist"}); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
	if _, err := New(Options{Nodes: 10}); err == nil || !strings.Contains(err.Error(), "no directory") || !strings.Contains(err.Error(), "10 nodes") {
		t.Fatalf("got %v", err)
	}
}

func TestStartIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Options{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestPortsAreHeld(t *testing.T) {
	c, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range append(c.Endpoints(), c.HTTPEndpoint("n1")) {
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			t.Errorf("%s is not held", address)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, address := range c.Endpoints() {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatalf("after Close: %v", err)
		}
		l.Close()
	}
}

// A killed parent has no chance to end its nodes.
func TestNodesDieWithTheirParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command(binary)
	parent.Env = append(os.Environ(), parentDir+"="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = parent.Process.Kill()
		_ = parent.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pids [2]int
	if _, err := fmt.Sscan(line, &pids[0], &pids[1]); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if !processExists(pids[0]) || !processExists(pids[1]) {
		t.Fatal("the nodes do not run")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "the nodes are gone", func() bool { return !processExists(pids[0]) && !processExists(pids[1]) })
}

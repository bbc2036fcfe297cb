package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/streamraft/streamraft/internal/durable"
)

// nodeOutput is what a running node writes; safe to read meanwhile.
type nodeOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *nodeOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *nodeOutput) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// runCommand runs a command line to its end.
func runCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, problems bytes.Buffer
	code = run(ctx, args, strings.NewReader(""), &out, &problems)
	return code, out.String(), problems.String()
}

// aloneArgs starts a cluster of one node; its own address is never dialled.
func aloneArgs(name, dir string, more ...string) []string {
	return append([]string{"node", "--name", name, "--data-dir", dir, "--cluster", name + "=127.0.0.1:1",
		"--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--tick-interval", "5ms",
		"--log-segment-bytes", "8MiB", "--cache-bytes", "8MiB", "--memtable-bytes", "8MiB", "--disk-reserve", "off"}, more...)
}

// startNode runs a node until stop, which returns its exit code.
func startNode(t *testing.T, args ...string) (output *nodeOutput, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	output = &nodeOutput{}
	done := make(chan int, 1)
	go func() { done <- run(ctx, args, strings.NewReader(""), output, output) }()
	stop = func() int { cancel(); return <-done }
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(15 * time.Second); !strings.Contains(output.String(), "node is running"); <-ticker.C {
		select {
		case code := <-done:
			t.Fatalf("the node ended with %d:\n%s", code, output)
		default:
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("the node does not run:\n%s", output)
		}
	}
	return output, stop
}

func TestNodeExitCodes(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "n1")
	output, stop := startNode(t, aloneArgs("n1", dir, "--log-format", "json")...)
	if log := output.String(); !strings.Contains(log, `"tick_interval":"5ms"`) || !strings.Contains(log, `"compression":"balanced"`) {
		t.Errorf("the effective config is not logged:\n%s", log)
	}
	if code, _, problems := runCommand(t, aloneArgs("n1", dir)...); code != exitFailure || !strings.Contains(problems, "in use by a running node") {
		t.Errorf("a second node in the directory: %d\n%s", code, problems)
	}
	if code := stop(); code != exitOK {
		t.Fatalf("a stopped node exits with %d\n%s", code, output)
	}
	// A later start needs no list.
	_, stop = startNode(t, append(aloneArgs("n1", dir), "--cluster", "")...)
	if code := stop(); code != exitOK {
		t.Errorf("a restarted node exits with %d", code)
	}

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	damaged := filepath.Join(base, "damaged")
	copyTree(t, dir, damaged)
	damageLog(t, damaged)
	newer := filepath.Join(base, "newer")
	copyTree(t, dir, newer)
	format := durable.Format{Magic: [8]byte([]byte("SRNODE..")), Version: 2, Limit: 1 << 10}
	if err := durable.WriteRecord(vfs.Default, filepath.Join(newer, "NODE"), format, []byte("new")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"port taken", aloneArgs("n1", dir, "--listen", taken.Addr().String()), exitFailure, "(listen)"},
		{"wrong name", aloneArgs("n2", dir), exitRefused, `belongs to node "n1"`},
		{"newer version", aloneArgs("n1", newer), exitRefused, "newer format"},
		{"damaged log", aloneArgs("n1", damaged), exitNodeFailed, "corrupt"},
		{"empty, no list", aloneArgs("n1", filepath.Join(base, "empty"), "--cluster", ""), exitRefused, "no founding list"},
		{"list without self", aloneArgs("n1", dir, "--cluster", "n2=127.0.0.1:1"), exitUsage, "not in the list"},
		{"bad value", aloneArgs("n1", dir, "--tick-interval", "25"), exitUsage, "flag --tick-interval: tick_interval \"25\""},
		{"not loopback", aloneArgs("n1", dir, "--listen", "0.0.0.0:0"), exitUsage, "insecure_listen"},
		{"unknown flag", aloneArgs("n1", dir, "--tick", "5ms"), exitUsage, "unknown flag"},
		{"no config file", []string{"node", "--config", filepath.Join(base, "none.yaml")}, exitUsage, "none.yaml"},
		{"argument", aloneArgs("n1", dir, "extra"), exitUsage, "usage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, _, problems := runCommand(t, c.args...); code != c.code || !strings.Contains(problems, c.says) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, c.code, c.says, problems)
			}
		})
	}
}

// A signal ends a node that waits for others, too.
func TestNodeStopsWhileFounding(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	stopped, stop := context.WithCancel(context.Background())
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	output := &nodeOutput{}
	args := aloneArgs("n1", filepath.Join(t.TempDir(), "n1"), "--cluster", "n1=127.0.0.1:1,n2=127.0.0.1:2")
	if code := run(stopped, args, strings.NewReader(""), output, output); code != exitOK {
		t.Errorf("exit code %d\n%s", code, output)
	}
	if !strings.Contains(output.String(), "waiting for the other founders") {
		t.Errorf("it does not say what it waits for:\n%s", output)
	}
}

// A flag wins over the file, the file over the default.
func TestConfigPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := "name: n1\ndata_dir: d\ntick_interval: 50ms\nheartbeat_ticks: 5\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := newNodeCommand()
	if err := cmd.ParseFlags([]string{"--config", file, "--tick-interval", "10ms", "--insecure-listen"}); err != nil {
		t.Fatal(err)
	}
	c, err := nodeConfig(file, cmd.Flags())
	if err != nil {
		t.Fatal(err)
	}
	if c.TickInterval != 10*time.Millisecond || c.HeartbeatTicks != 5 || c.ElectionTicks != 24 || !c.InsecureListen {
		t.Errorf("merged to %+v", c)
	}
}

func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for path, text := range map[string]string{good: "name: n1\ndata_dir: d\n", bad: "name: n1\n\nlog_levle: debug\nlog_format: xml\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, problems := runCommand(t, "config", "check", good); code != exitOK || !strings.Contains(out, "listen: 127.0.0.1:7601\n") || problems != "" {
		t.Errorf("a good file: %d\n%s%s", code, out, problems)
	}
	code, out, problems := runCommand(t, "config", "check", bad)
	if code != exitUsage || out != "" {
		t.Errorf("a bad file: %d\n%s", code, out)
	}
	for _, says := range []string{bad, "line 3: log_levle: unknown key; did you mean log_level?", `line 4: log_format "xml"`, "data_dir: missing"} {
		if !strings.Contains(problems, says) {
			t.Errorf("%q is not said:\n%s", says, problems)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "d")); err == nil {
		t.Error("the check made the data directory")
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// damageLog flips a byte of the first batch, which later batches prove synced.
func damageLog(t *testing.T, dir string) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*"))
	if err != nil || len(segments) == 0 {
		t.Fatalf("no log in %s: %v", dir, err)
	}
	for _, path := range segments {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(data, []byte("n1")); i >= 0 {
			data[i] ^= 1
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no segment holds the founding entry")
}

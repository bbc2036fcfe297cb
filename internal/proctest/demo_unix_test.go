//go:build unix

package proctest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demonstration is a running `streamraft demo` with a temporary directory of its
// own.
type demonstration struct {
	command *exec.Cmd
	temp    string
	lines   chan string // what it prints; closed at its end
}

func startDemonstration(t *testing.T, args ...string) *demonstration {
	t.Helper()
	d := &demonstration{temp: t.TempDir(), lines: make(chan string, 1000)}
	d.command = exec.Command(os.Getenv(binaryVariable), append([]string{"demo"}, args...)...)
	d.command.Env = append(os.Environ(), "TMPDIR="+d.temp)
	d.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := d.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.command.Stderr = os.Stderr
	if err := d.command.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(d.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case d.lines <- lines.Text():
			default: // a test that reads no more
			}
		}
	}()
	t.Cleanup(func() {
		_ = d.command.Process.Kill()
		<-read
		_ = d.command.Wait()
	})
	return d
}

// awaitLine waits until it prints a line that contains a text.
func (d *demonstration) awaitLine(t *testing.T, text string) {
	t.Helper()
	deadline := time.NewTimer(60 * time.Second)
	defer deadline.Stop()
	var printed []string
	for {
		select {
		case line, ok := <-d.lines:
			if printed = append(printed, line); !ok {
				t.Fatalf("it ended without printing %q:\n%s", text, strings.Join(printed, "\n"))
			}
			if strings.Contains(line, text) {
				return
			}
		case <-deadline.C:
			t.Fatalf("it did not print %q:\n%s", text, strings.Join(printed, "\n"))
		}
	}
}

// end waits for its end and returns the exit code.
func (d *demonstration) end(t *testing.T, limit time.Duration) int {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for open := true; open; {
		select {
		case _, open = <-d.lines:
		case <-deadline.C:
			t.Fatalf("it did not end within %v", limit)
		}
	}
	_ = d.command.Wait()
	return d.command.ProcessState.ExitCode()
}

// nothingLeft wants no file in its temporary directory, and no process that
// names it. The processes are waited for, since the kernel ends children a
// moment after a killed parent.
func (d *demonstration) nothingLeft(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(d.temp)
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	await(t, "no process is left", 10*time.Second, func() error { return noProcess(d.temp) })
}

// noProcess tells of a process whose command line names a directory.
func noProcess(dir string) error {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range lines {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), dir) {
			return fmt.Errorf("%s: %s", path, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return nil
}

func TestDemoIsInterrupted(t *testing.T) {
	interrupt := func(t *testing.T, d *demonstration, signals ...syscall.Signal) {
		t.Helper()
		for _, s := range signals {
			if err := d.command.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		if code := d.end(t, 10*time.Second); code != 130 {
			t.Errorf("exit code %d, want 130", code)
		}
		d.nothingLeft(t)
	}
	t.Run("first moment", func(t *testing.T) {
		t.Parallel()
		d := startDemonstration(t)
		await(t, "the directory is there", 20*time.Second, func() error {
			entries, err := os.ReadDir(d.temp)
			if err == nil && len(entries) == 0 {
				err = errors.New("no entry")
			}
			return err
		})
		interrupt(t, d, syscall.SIGINT)
	})
	t.Run("import", func(t *testing.T) {
		t.Parallel()
		d := startDemonstration(t)
		d.awaitLine(t, "Importing")
		interrupt(t, d, syscall.SIGTERM)
	})
	for _, test := range []struct{ name, line string }{
		{"start", "Starting"}, {"load", "Imported"}, {"kill", "is killed"}, {"restart", "New leader"}, {"caught up", "again: it had"},
		{"lost disk", "loses its disk"}, {"behind", "was stopped"}, {"cut", "once more"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := startDemonstration(t, "--limit", "4MiB")
			d.awaitLine(t, test.line)
			// The second one, of an impatient hand, changes nothing.
			interrupt(t, d, syscall.SIGINT, syscall.SIGINT)
		})
	}
}

// A killed demonstration cannot remove its directory, but its nodes end.
func TestDemoIsKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends children with their parent")
	}
	d := startDemonstration(t, "--limit", "1MiB")
	d.awaitLine(t, "Imported")
	if err := d.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	d.end(t, 10*time.Second)
	await(t, "no process is left", 10*time.Second, func() error { return noProcess(d.temp) })
}

func TestDemo(t *testing.T) {
	temp, data := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", temp)
	path := filepath.Join(data, "records.jsonl")
	if err := os.WriteFile(path, []byte(`{"key":"a","value":"1"}`+"\n"+`{"key":"a","value":"2"}`+"\nbad\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := command(t, "demo", "--json", "--keep", "--data", path)
	r.want(t, 0)
	var report struct {
		OK          bool `json:"ok"`
		Records     uint64
		Skipped     uint64
		Killed      string  `json:"killed_leader"`
		NewLeader   string  `json:"new_leader"`
		KillGap     float64 `json:"kill_gap_milliseconds"`
		Checked     uint64  `json:"writes_checked"`
		Lost        *uint64 `json:"writes_lost"`
		DigestEqual bool    `json:"digest_equal"`
		Digests     map[string]string
		Directory   string
		Replaced    string `json:"replaced_node"`
		Image       uint64 `json:"replace_bytes"`
		Delta       uint64 `json:"delta_bytes"`
		CutSource   string `json:"cut_source"`
		CutImage    uint64 `json:"cut_image_bytes"`
		CutReceived uint64 `json:"cut_received_bytes"`
		CutSaved    uint64 `json:"cut_saved_bytes"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || r.stderr != "" {
		t.Fatalf("%v\n%s%s", err, r.stdout, r.stderr)
	}
	if !report.OK || report.Records != 2 || report.Skipped != 1 || report.Killed == report.NewLeader || report.KillGap <= 0 ||
		report.Checked < 100 || report.Lost == nil || *report.Lost != 0 || !report.DigestEqual || len(report.Digests) != 3 ||
		!strings.HasPrefix(report.Directory, temp) {
		t.Errorf("%s", r.stdout)
	}
	if report.Replaced == "" || report.Delta == 0 || report.Delta*2 > report.Image {
		t.Errorf("the lost disk and the delta: %s", r.stdout)
	}
	// So little data may arrive before it is cut; where it was, it went on.
	if report.CutSource != "" && (report.CutSaved == 0 || report.CutReceived > report.CutImage+2<<20) {
		t.Errorf("the transfer that was cut: %s", r.stdout)
	}
	if entries, err := os.ReadDir(filepath.Join(report.Directory, "n3")); err != nil || len(entries) == 0 {
		t.Errorf("the kept cluster: %v, %v", entries, err)
	}
	command(t, "demo", "--data", "/does/not/exist").want(t, 2, "--data")
	command(t, "demo", "--nodes", "4").want(t, 2, "3 or 5")
	command(t, "demo", "--limit", "much").want(t, 2, "--limit")
}

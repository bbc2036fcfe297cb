package doccheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// executionLimit bounds the commands of one document together.
const executionLimit = 3 * time.Minute

// execute runs the executed commands of a document in one bash, in a new
// directory that has binDir as bin, and returns what is wrong.
func execute(t *testing.T, d *document, binDir string) (problems []string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(binDir, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	const marker = "doccheck-command-"
	var script strings.Builder
	var commands []command
	// Background commands are ended by the shell that has started them.
	script.WriteString("set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n")
	for _, c := range d.commands {
		if c.executed {
			fmt.Fprintf(&script, "echo; echo %s%d\n%s\n", marker, len(commands), c.text)
			commands = append(commands, c)
		}
	}
	// A file and not a pipe, so that a background command that holds it open
	// doesn't keep us waiting.
	outputPath := filepath.Join(dir, "doccheck-output")
	output, err := os.Create(outputPath)
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	ctx, cancel := context.WithTimeout(t.Context(), executionLimit)
	defer cancel()
	bash := exec.CommandContext(ctx, "bash", "-c", script.String())
	bash.Dir, bash.Stdout, bash.Stderr = dir, output, output
	bash.Env = append(os.Environ(), "PATH="+binDir+string(os.PathListSeparator)+os.Getenv("PATH"))
	// A group of its own, so that nothing it started outlives it.
	bash.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error {
		err := syscall.Kill(-bash.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	bash.Cancel = kill
	runErr := bash.Run()
	if bash.Process != nil {
		if err := kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("ending the commands of %s: %v", d.path, err)
		}
	}
	printed, err := os.ReadFile(outputPath)
	if err != nil {
		t.Fatal(err)
	}
	parts := regexp.MustCompile(`(?m)^`+marker+`\d+\n`).Split(string(printed), -1)[1:]
	if runErr != nil {
		failed, last := command{}, string(printed)
		if len(parts) > 0 {
			failed, last = commands[len(parts)-1], parts[len(parts)-1]
		}
		problems = append(problems, fmt.Sprintf("%s:%d: %q failed: %v (limit %v for the document); it printed\n%s",
			d.path, failed.line, failed.text, runErr, executionLimit, last))
		parts = parts[:max(len(parts)-1, 0)]
	}
	for i, part := range parts {
		if line := missingLine(commands[i].prints, part); line != "" {
			problems = append(problems, fmt.Sprintf("%s:%d: %q does not print %q (in this order); it printed\n%s",
				d.path, commands[i].line, commands[i].text, line, part))
		}
	}
	return problems
}

// missingLine returns the first of the lines that is not printed after those
// before it.
func missingLine(lines []string, printed string) string {
	rest := strings.Split(printed, "\n")
	for _, line := range lines {
		if strings.TrimSpace(line) == "..." {
			continue
		}
		pattern := regexp.MustCompile(`^\s*` + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), `\.\.\.`, `.*`) + `\s*$`)
		found := false
		for len(rest) > 0 && !found {
			found = pattern.MatchString(rest[0])
			rest = rest[1:]
		}
		if !found {
			return line
		}
	}
	return ""
}

package doccheck

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// binary is the built program as a cli.
type binary string

func (b binary) subcommands(commands []string) ([]string, error) {
	help, err := b.help(commands)
	if err != nil {
		return nil, err
	}
	// Completion offers arguments too, so it is asked only where the usage says
	// that commands follow.
	if !strings.Contains(help, " [command]") {
		return nil, nil
	}
	output, err := b.run(slices.Concat([]string{"__complete"}, commands, []string{""})...)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(output) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); name != "" && name[0] != ':' {
			names = append(names, name)
		}
	}
	return names, nil
}

func (b binary) help(commands []string) (string, error) {
	return b.run(append(slices.Clone(commands), "--help")...)
}

func (b binary) run(args ...string) (string, error) {
	var stderr bytes.Buffer
	command := exec.Command(string(b), args...)
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("streamraft %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return string(output), nil
}

// build makes the program. It looks at every Go file of the module first: the
// go command runs these tests again when a file changed that they have looked
// at, and does not see what go build reads.
func build(t *testing.T) binary {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			_, err = os.Stat(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(filepath.Join(t.TempDir(), "streamraft"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/streamraft")
	command.Dir, command.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go build ./cmd/streamraft: %v\n%s", err, output)
	}
	return binary(path)
}

func makeTargets(t *testing.T) (targets []string) {
	t.Helper()
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`(?m)^([a-z]+):`).FindAllSubmatch(makefile, -1) {
		targets = append(targets, string(match[1]))
	}
	return targets
}

func documents(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"README.md", "CONTRIBUTING.md", "BENCHMARKS.md", "docs/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	if !slices.Contains(paths, filepath.Join(root, "README.md")) {
		t.Fatal("there is no README.md")
	}
	return paths
}

func TestDocuments(t *testing.T) {
	paths := documents(t)
	program := build(t)
	targets := makeTargets(t)
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			d := readDocument(t, path)
			for _, problem := range checkCommands(d, program, targets) {
				t.Error(problem)
			}
			executed := slices.ContainsFunc(d.commands, func(c command) bool { return c.executed })
			if !executed {
				if filepath.Base(path) == "README.md" && filepath.Dir(path) == root {
					t.Error("README.md has no block marked \"console executed\": its quick start must be run")
				}
				return
			}
			if testing.Short() {
				t.Skip("commands are not executed with -short")
			}
			for _, problem := range execute(t, d, filepath.Dir(string(program))) {
				t.Error(problem)
			}
		})
	}
}

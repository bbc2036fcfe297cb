package doccheck

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeCLI is the help text by command.
type fakeCLI map[string]string

func (f fakeCLI) subcommands(commands []string) (below []string, err error) {
	prefix := strings.Join(append(slices.Clone(commands), ""), " ")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if rest, ok := strings.CutPrefix(name, prefix); ok && rest != "" && !strings.Contains(rest, " ") {
			below = append(below, rest)
		}
	}
	return below, nil
}

func (f fakeCLI) help(commands []string) (string, error) {
	help, ok := f[strings.Join(commands, " ")]
	if !ok {
		return "", fmt.Errorf("no command %q", commands)
	}
	return help, nil
}

func testCLI() fakeCLI {
	return fakeCLI{
		"":        "  --json",
		"node":    "      --name string   name\n  -v, --verbose\n      --peers-file",
		"kv":      "",
		"kv put":  "--lease",
		"kv get":  "",
		"version": "",
	}
}

func TestFindsWrongCommands(t *testing.T) {
	for _, c := range []struct{ text, problem string }{
		{"streamraft node --name n1 -v", ""},
		{"bin/streamraft kv put a --lease=3 >out 2>&1 &", ""},
		{"A=b streamraft version | grep streamraft && streamraft kv get -- --nonsense", ""},
		{"echo 'streamraft nonsense' \"; streamraft nonsense\" # streamraft nonsense", ""},
		{"streamraft kv put a -1 -", ""},
		{"streamraft node \\\n--name n1 \\\n-v", ""},
		{"make build demo SEEDS=3 -j2", ""},
		{"streamraft nodes", `no command "nodes"`},
		{"true | ./bin/streamraft kv del a", `no command "del"`},
		{"go run ./cmd/streamraft kv del a", `no command "del"`},
		{"streamraft node --names n1", "no flag --names"},
		{"streamraft node --peers x", "no flag --peers"},
		{"streamraft node \\\n--names n1", "no flag --names"},
		{"streamraft node -x", "no flag -x"},
		{"make build all", `no target "all"`},
	} {
		t.Run(c.text, func(t *testing.T) {
			block := "```console\n$ " + strings.ReplaceAll(c.text, "\n", "\n> ") + "\n```\n"
			problems := checkCommands(parseDocument("x.md", block), testCLI(), []string{"build", "demo"})
			if c.problem == "" {
				if len(problems) != 0 {
					t.Errorf("found %q", problems)
				}
				return
			}
			if len(problems) != 1 || !strings.Contains(problems[0], "x.md:2: ") || !strings.Contains(problems[0], c.problem) {
				t.Errorf("found %q, want one with %q", problems, c.problem)
			}
		})
	}
	problems := checkCommands(parseDocument("x.md", "Run\n`make all` first.\n"), testCLI(), []string{"build"})
	if len(problems) != 1 || !strings.Contains(problems[0], "x.md:2: ") {
		t.Errorf("found %q", problems)
	}
}

func TestExecute(t *testing.T) {
	d := readDocument(t, "testdata/commands.md")
	problems := execute(t, d, fakeBin(t))
	// The test of a background command is that nothing waits for it.
	if len(problems) != 0 {
		t.Errorf("found %q", problems)
	}
}

func TestExecuteFindsFailures(t *testing.T) {
	for text, want := range map[string]string{
		"$ false\n$ echo not reached":         `"false" failed`,
		"$ true\n$ echo said; exit 3":         "said",
		"$ echo one\ntwo":                     `does not print "two"`,
		"$ printf '1\\n2\\n'\n2\n1":           `does not print "1"`,
		"$ echo 'a b c'\na ... d":             `does not print "a ... d"`,
		"$ unknown-command-of-doccheck | cat": "failed",
	} {
		d := parseDocument("x.md", "```console executed\n"+text+"\n```\n")
		problems := execute(t, d, fakeBin(t))
		if len(problems) != 1 || !strings.Contains(problems[0], want) || !strings.HasPrefix(problems[0], "x.md:") {
			t.Errorf("%q: found %q, want one with %q", text, problems, want)
		}
	}
}

// fakeBin returns a directory with a streamraft that prints its arguments.
func fakeBin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"streamraft was given: $*\"\n"
	if err := os.WriteFile(filepath.Join(dir, "streamraft"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The tiny module that the tests break.
const (
	tinyModule = "module example.org/tiny\n\ngo 1.26.0\n"
	tinyCode   = `package tiny

import "os"

// Max returns the larger number.
func Max(a, b int) int {
	if a > b {
		return a
	}
	return b
}

// Min returns the smaller number; no test looks at it.
func Min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// Strict tells whether tests are.
func Strict() bool { return os.Getenv("TINY_STRICT") != "" }
`
	tinyTest = `package tiny

import "testing"

func TestMax(t *testing.T) {
	if Max(1, 2) != 2 || Max(2, 1) != 2 {
		t.Error("wrong")
	}
}

func TestMin(t *testing.T) {
	if Strict() && Min(1, 2) != 1 {
		t.Error("wrong")
	}
}

func TestBroken(t *testing.T) { t.Error("always") }
`
	// The paths of a diff, and hunks for it.
	tinyPaths = "--- a/tiny/tiny.go\n+++ b/tiny/tiny.go\n"
	breakMax  = tinyPaths + "@@ -6,3 +6,3 @@\n func Max(a, b int) int {\n-\tif a > b {\n+\tif a < b {\n \t\treturn a\n"
	breakMin  = tinyPaths + "@@ -14,3 +14,3 @@\n func Min(a, b int) int {\n-\tif a < b {\n+\tif a > b {\n \t\treturn a\n"
	breakText = tinyPaths + "@@ -6,3 +6,3 @@\n func Max(a, b int) int {\n-\tif a > b {\n+\tif a > c {\n \t\treturn a\n"
	outdated  = tinyPaths + "@@ -6,3 +6,3 @@\n func Max(a, b int) int {\n-\tif a >= b {\n+\tif a < b {\n \t\treturn a\n"
)

// tiny makes the module and one patch per name in it.
func tiny(t *testing.T, patches map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", tinyModule)
	write("tiny/tiny.go", tinyCode)
	write("tiny/tiny_test.go", tinyTest)
	for name, text := range patches {
		write("patches/"+name+".patch", text)
	}
	return root
}

func runTiny(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	args = append([]string{"-root", root, "-dir", filepath.Join(root, "patches")}, args...)
	err := run(t.Context(), args, &out)
	code, readErr := os.ReadFile(filepath.Join(root, "tiny/tiny.go"))
	if readErr != nil || string(code) != tinyCode {
		t.Errorf("the tree was changed: %v\n%s", readErr, code)
	}
	return out.String(), err
}

func TestCaught(t *testing.T) {
	root := tiny(t, map[string]string{
		"max": "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n" + breakMax,
		"min": "Breaks: Min\nCaught-by: go test ./tiny -run TestMax\n" +
			"Caught-by: TINY_STRICT=1 go test ./tiny -run TestMin\n\n" + breakMin,
	})
	out, err := runTiny(t, root)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out, "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "MUTANT") || lines[3] != "all 2 mutants were caught" ||
		!strings.HasPrefix(lines[1], "max     go test ./tiny -run TestMax ") ||
		!strings.HasPrefix(lines[2], "min     TINY_STRICT=1 go test ./tiny -run TestMin ") {
		t.Errorf("output:\n%s", out)
	}
}

func TestNotCaught(t *testing.T) {
	for _, c := range []struct {
		name, patch string
		want        error
		says        string
	}{
		{"survived", "Breaks: Min\nCaught-by: go test ./tiny -run TestMin\n\n" + breakMin, errSurvived, "Min"},
		{"outdated", "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n" + outdated, errPatch, "tiny/tiny.go:6"},
		{"gone", "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n" +
			strings.ReplaceAll(breakMax, "tiny.go", "gone.go"), errPatch, "gone.go"},
		{"build", "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n" + breakText, errDoesntBuild, "undefined: c"},
		{"baseline", "Breaks: Max\nCaught-by: go test ./tiny -run TestBroken\n\n" + breakMax, errBaseline, "always"},
		{"nothing", "Breaks: Max\nCaught-by: go test ./tiny -run TestGone\n\n" + breakMax, errRunsNothing, "TestGone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := runTiny(t, tiny(t, map[string]string{c.name: c.patch}))
			if !errors.Is(err, errNotCaught) || !errors.Is(err, c.want) {
				t.Fatalf("want %v, got %v", c.want, err)
			}
			if !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q and %q are not in: %v", c.name, c.says, err)
			}
			if !strings.Contains(out, "NOT CAUGHT") {
				t.Errorf("output:\n%s", out)
			}
		})
	}
}

func TestChooseMutants(t *testing.T) {
	root := tiny(t, map[string]string{
		"max": "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n" + breakMax,
		"min": "Breaks: Min\nCaught-by: go test ./tiny -run TestMin\n\n" + breakMin,
	})
	if out, err := runTiny(t, root, "-run", "^max$"); err != nil || strings.Contains(out, "min") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := runTiny(t, root, "-run", "none"); !errors.Is(err, errNotCaught) {
		t.Errorf("no mutant: %v", err)
	}
}

func TestInterrupted(t *testing.T) {
	root := tiny(t, map[string]string{"max": "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n" + breakMax})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"-root", root, "-dir", filepath.Join(root, "patches")}, new(bytes.Buffer))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestBadPatches(t *testing.T) {
	header := "Breaks: Max\nCaught-by: go test ./tiny -run TestMax\n\n"
	for name, text := range map[string]string{
		"no diff":          "Breaks: Max\nCaught-by: go test ./tiny\n",
		"no files":         header + "nothing\n",
		"no breaks":        "Caught-by: go test ./tiny -run TestMax\n\n" + breakMax,
		"no command":       "Breaks: Max\n\n" + breakMax,
		"unknown header":   "Caught: go test\n\n" + breakMax,
		"not go test":      "Breaks: Max\nCaught-by: rm -r tiny\n\n" + breakMax,
		"shell":            "Breaks: Max\nCaught-by: go test ./tiny ; true\n\n" + breakMax,
		"quoted":           "Breaks: Max\nCaught-by: go test ./tiny -run 'TestMax|TestMin'\n\n" + breakMax,
		"outside the tree": header + strings.ReplaceAll(breakMax, "tiny/", "../"),
		"renames":          header + strings.Replace(breakMax, "a/tiny", "a/huge", 1),
		"new file":         header + "--- /dev/null\n+++ b/tiny/new.go\n@@ -0,0 +1 @@\n+package tiny\n",
	} {
		if m, err := parseMutant("m", text); err == nil {
			t.Errorf("%s: accepted as %+v", name, m)
		}
	}
}

// TestPatchesOfThisModule reads the real mutants, so that a bad header is seen
// before the hours of make long. Whether they are caught is for make mutants.
func TestPatchesOfThisModule(t *testing.T) {
	entries, err := os.ReadDir("testdata")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no mutants yet")
	}
	if err != nil {
		t.Fatal(err)
	}
	r := runner{root: "../.."}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ".patch")
		if !ok {
			t.Errorf("%s: not a patch", entry.Name())
			continue
		}
		text, err := os.ReadFile(filepath.Join("testdata", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m, err := parseMutant(name, string(text))
		if err != nil {
			t.Errorf("%s: %v", entry.Name(), err)
			continue
		}
		if _, err := r.overlay(t.Context(), m, t.TempDir()); err != nil {
			t.Errorf("%s: %v", entry.Name(), err)
		}
	}
}

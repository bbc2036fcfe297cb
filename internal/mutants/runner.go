package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Why a mutant counts as not caught.
var (
	errSurvived    = errors.New("survived: every command passed; write the test that sees it")
	errPatch       = errors.New("the patch no longer applies; make it anew for the code of today")
	errDoesntBuild = errors.New("does not build, so that no test has caught it; repair the patch")
	errBaseline    = errors.New("a command fails without the mutant, so that its failure would mean nothing")
	errRunsNothing = errors.New("a command runs no test; correct its -run or its packages")
)

// runner tries mutants of one module, one after another.
type runner struct {
	root     string
	baseline map[string]error // by command: what it said without a mutant
}

// try returns the text of the command that caught a mutant.
func (r *runner) try(ctx context.Context, m *mutant) (caughtBy string, err error) {
	work, err := os.MkdirTemp("", "mutant-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	overlay, err := r.overlay(ctx, m, work)
	if err != nil {
		return "", err
	}
	for _, c := range m.commands {
		if err := r.check(ctx, c); err != nil {
			return "", err
		}
		output, passed, err := r.test(ctx, c, "-count=1", "-overlay="+overlay)
		if err != nil {
			return "", err
		}
		if passed {
			continue
		}
		if strings.Contains(output, "[build failed]") || strings.Contains(output, "[setup failed]") {
			return "", fmt.Errorf("%w\n%s", errDoesntBuild, output)
		}
		return c.text, nil
	}
	return "", errSurvived
}

// check wants a command to pass, and to run a test, without any mutant.
func (r *runner) check(ctx context.Context, c command) error {
	err, known := r.baseline[c.text]
	if known {
		return err
	}
	output, passed, err := r.test(ctx, c)
	switch {
	case err != nil:
	case !passed:
		err = fmt.Errorf("%w: %s\n%s", errBaseline, c.text, output)
	case !ranTests(output):
		err = fmt.Errorf("%w: %s", errRunsNothing, c.text)
	}
	r.baseline[c.text] = err
	return err
}

// ranTests tells whether some package of the output of a passing go test had a
// test that matched.
func ranTests(output string) bool {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "ok ") && !strings.Contains(line, "[no tests to run]") {
			return true
		}
	}
	return false
}

// test runs a command with further flags. err is for a command that could not
// be run.
func (r *runner) test(ctx context.Context, c command, flags ...string) (output string, passed bool, err error) {
	args := append(append([]string{"test"}, flags...), c.args...)
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = r.root
	command.Env = append(os.Environ(), c.environment...)
	data, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", false, fmt.Errorf("%s: %w", c.text, err)
	}
	if ctx.Err() != nil {
		return "", false, context.Cause(ctx)
	}
	return string(data), err == nil, nil
}

// overlay applies a mutant to copies in the directory work and returns the path
// of a description of them for go test -overlay.
func (r *runner) overlay(ctx context.Context, m *mutant, work string) (string, error) {
	var replace struct{ Replace map[string]string }
	replace.Replace = map[string]string{}
	tree := filepath.Join(work, "tree")
	for _, file := range m.files {
		original, err := filepath.Abs(filepath.Join(r.root, file))
		if err != nil {
			return "", err
		}
		data, err := os.ReadFile(original)
		if err != nil {
			return "", fmt.Errorf("%w: %w", errPatch, err)
		}
		mutated := filepath.Join(tree, file)
		if err := os.MkdirAll(filepath.Dir(mutated), 0o700); err != nil {
			return "", err
		}
		if err := os.WriteFile(mutated, data, 0o600); err != nil {
			return "", err
		}
		replace.Replace[original] = mutated
	}
	command := exec.CommandContext(ctx, "git", "apply", "--whitespace=nowarn", "-")
	command.Dir = tree
	// Inside a repository git would leave out files below its root silently.
	command.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+work, "GIT_DIR="+os.DevNull)
	command.Stdin = bytes.NewReader(m.diff)
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %w: %s", errPatch, err, bytes.TrimSpace(output))
	}
	description, err := json.Marshal(replace)
	if err != nil {
		return "", err
	}
	path := filepath.Join(work, "overlay.json")
	return path, os.WriteFile(path, description, 0o600)
}

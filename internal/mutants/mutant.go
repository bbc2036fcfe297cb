package main

import (
	"bufio"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is one way to break the code.
type mutant struct {
	name     string // of its file, without .patch
	breaks   string // what it breaks, for people
	commands []command
	files    []string // what it changes, below the module's root
	diff     []byte
}

// command is a test that must fail.
type command struct {
	text        string
	environment []string // NAME=value
	args        []string // of go test
}

// readMutants reads the patches of a directory whose name matches.
func readMutants(dir string, chosen *regexp.Regexp) ([]*mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	var mutants []*mutant
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".patch")
		if !chosen.MatchString(name) {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parseMutant(name, string(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

func parseMutant(name, text string) (*mutant, error) {
	header, diff, ok := strings.Cut(text, "\n\n")
	if !ok {
		return nil, fmt.Errorf("no empty line between the header and the diff")
	}
	m := &mutant{name: name, diff: []byte(diff)}
	for line := range strings.Lines(header) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Breaks":
			m.breaks = value
		case "Caught-by":
			c, err := parseCommand(value)
			if err != nil {
				return nil, err
			}
			m.commands = append(m.commands, c)
		default:
			return nil, fmt.Errorf("header line %q: want \"Breaks: ...\" or \"Caught-by: ...\"", line)
		}
	}
	if m.breaks == "" || len(m.commands) == 0 {
		return nil, fmt.Errorf("the header needs a line \"Breaks: ...\" and at least one \"Caught-by: ...\"")
	}
	if err := m.readFiles(); err != nil {
		return nil, err
	}
	return m, nil
}

// readFiles finds what the diff changes.
func (m *mutant) readFiles() error {
	scanner := bufio.NewScanner(strings.NewReader(string(m.diff)))
	old := ""
	for scanner.Scan() {
		if from, ok := strings.CutPrefix(scanner.Text(), "--- a/"); ok {
			old = from
		}
		file, ok := strings.CutPrefix(scanner.Text(), "+++ b/")
		if !ok {
			continue
		}
		if file != old || file != path.Clean(file) || !filepath.IsLocal(file) {
			return fmt.Errorf("the diff must change existing files below the module's root, not %q into %q", old, file)
		}
		m.files = append(m.files, file)
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	if len(m.files) == 0 {
		return fmt.Errorf("the diff names no file: want lines \"--- a/PATH\" and \"+++ b/PATH\"")
	}
	return nil
}

func parseCommand(text string) (command, error) {
	c := command{text: text}
	words := strings.Fields(text)
	for len(words) > 0 && strings.Contains(words[0], "=") {
		c.environment = append(c.environment, words[0])
		words = words[1:]
	}
	if len(words) < 3 || words[0] != "go" || words[1] != "test" {
		return command{}, fmt.Errorf("command %q: want [NAME=value...] go test ARGUMENT", text)
	}
	if i := strings.IndexAny(text, "'\"`;&<>\\"); i >= 0 {
		return command{}, fmt.Errorf("command %q: no shell reads it, so %q has no meaning", text, text[i])
	}
	c.args = words[2:]
	return c, nil
}

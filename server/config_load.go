package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxConfigBytes bounds a config file; it has some thirty keys.
const maxConfigBytes = 1 << 20

// ErrConfig is matched by every *ConfigError.
var ErrConfig = errors.New("invalid configuration")

// Problem is one thing that is wrong with a config.
type Problem struct {
	// Source tells where the key was set: "line 3", "flag --listen"; empty if
	// it was not.
	Source string
	// Key and Value as they are written; Key is empty if no key is at fault.
	Key, Value string
	// Reason says what is wrong and what is allowed.
	Reason string
}

// String writes the problem in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Source != "" {
		b.WriteString(p.Source + ": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key)
		if p.Value != "" {
			fmt.Fprintf(&b, " %q", p.Value)
		}
		b.WriteString(": ")
	}
	b.WriteString(p.Reason)
	return b.String()
}

// ConfigError lists everything that is wrong with a config. It matches
// ErrConfig.
type ConfigError struct {
	// File that was read, if any.
	File     string
	Problems []Problem
}

// Error lists the problems, one a line if there are several.
func (e *ConfigError) Error() string {
	head := ErrConfig.Error()
	if e.File != "" {
		head += " in " + e.File
	}
	if len(e.Problems) == 1 {
		return head + ": " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d problems:", head, len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Is makes a ConfigError match ErrConfig.
func (e *ConfigError) Is(target error) bool { return target == ErrConfig }

// oneProblem makes an error of a problem, or nil.
func oneProblem(p *Problem) error {
	if p == nil {
		return nil
	}
	return &ConfigError{Problems: []Problem{*p}}
}

// LoadConfig reads a config file. Defaults are not filled in and values are not
// checked against each other: set what else is to be set, then call
// EnsureDefaults and Validate. A *ConfigError names every key that is unknown,
// set twice or not readable, with its line; the Config then holds the others,
// so that Validate finds further problems. Other errors are those of reading.
func LoadConfig(path string) (Config, error) {
	file, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the config: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return Config{}, fmt.Errorf("read the config %s: %w", path, err)
	}
	if len(data) > maxConfigBytes {
		return Config{}, &ConfigError{File: path, Problems: []Problem{{Reason: fmt.Sprintf("the file is larger than %v; it is no config of a node", Size(maxConfigBytes))}}}
	}
	c, problems := decodeConfig(data)
	if len(problems) > 0 {
		return c, &ConfigError{File: path, Problems: problems}
	}
	return c, nil
}

// decodeConfig decodes YAML. The tree is walked here, rather than decoded into
// the struct by the library, so that every problem is found in one go and with
// its line.
func decodeConfig(data []byte) (c Config, problems []Problem) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		return c, []Problem{{Reason: strings.TrimPrefix(err.Error(), "yaml: ") + "; write one `key: value` a line"}}
	}
	if len(document.Content) == 0 {
		return c, nil // empty, or comments only
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return c, []Problem{{Source: line(root), Reason: "must be a mapping: write one `key: value` a line"}}
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(root.Content); i += 2 {
		name, value := root.Content[i], root.Content[i+1]
		k, ok := findKey(name.Value)
		if !ok {
			problems = append(problems, unknownKey(name.Value, line(name)))
			continue
		}
		if first, twice := seen[k.Name]; twice {
			problems = append(problems, Problem{Source: line(name), Key: k.Name, Reason: fmt.Sprintf("is set on line %d already", first)})
			continue
		}
		seen[k.Name] = name.Line
		text, err := scalarText(k, value)
		if err != nil {
			problems = append(problems, Problem{Source: line(name), Key: k.Name, Reason: err.Error()})
			c.setKey(k, k.Default, line(name))
			c.refused[k.Name] = true
			continue
		}
		if p := c.setKey(k, text, line(name)); p != nil {
			problems = append(problems, *p)
		}
	}
	return c, problems
}

// scalarText returns the text of a value; only cluster may be a list.
func scalarText(k Key, value *yaml.Node) (string, error) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag != "!!null":
		return value.Value, nil
	case value.Kind == yaml.SequenceNode && k.Name == "cluster":
		parts := make([]string, len(value.Content))
		for i, item := range value.Content {
			if item.Kind != yaml.ScalarNode {
				return "", fmt.Errorf("%s: must be name=host:port", line(item))
			}
			parts[i] = item.Value
		}
		return strings.Join(parts, ","), nil
	case value.Tag == "!!null":
		return "", errors.New("has no value; give it one or leave the key out")
	case k.Name == "cluster":
		return "", errors.New("must be a list of name=host:port")
	}
	return "", errors.New("must be a single value")
}

func line(n *yaml.Node) string { return fmt.Sprintf("line %d", n.Line) }

// unknownKey names the known key that is nearest.
func unknownKey(name, source string) Problem {
	nearest, distance := "", len(name)/2+2
	normal := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for _, k := range Keys() {
		if d := editDistance(normal, k.Name); d < distance {
			nearest, distance = k.Name, d
		}
	}
	p := Problem{Source: source, Key: name, Reason: "unknown key; docs/operations.md lists the known ones"}
	if nearest != "" {
		p.Reason = "unknown key; did you mean " + nearest + "?"
	}
	return p
}

// editDistance is the Levenshtein distance. Names over 64 bytes are far from
// everything.
func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

package doccheck

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is a command in a document.
type command struct {
	line     int    // of its first line
	text     string // with its continuation lines
	prints   []string
	executed bool
}

// document is what matters of one.
type document struct {
	path     string
	commands []command
	targets  map[string]int // make targets between backquotes, and a line that names each
}

func readDocument(t *testing.T, path string) *document {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parseDocument(path, string(data))
}

// makeTarget finds `make target` and its like in running text.
var makeTarget = regexp.MustCompile("`make ([a-z]+)")

func parseDocument(path, text string) *document {
	d := &document{path: path, targets: map[string]int{}}
	info, inBlock := []string(nil), false
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); ok {
			inBlock = !inBlock
			info = strings.Fields(fence)
			continue
		}
		if !inBlock {
			for _, match := range makeTarget.FindAllStringSubmatch(line, -1) {
				d.targets[match[1]] = number
			}
			continue
		}
		if len(info) == 0 || info[0] != "console" {
			continue
		}
		if text, ok := strings.CutPrefix(line, "$ "); ok {
			d.commands = append(d.commands, command{line: number, text: text, executed: slices.Contains(info, "executed")})
			continue
		}
		if len(d.commands) == 0 {
			continue
		}
		last := &d.commands[len(d.commands)-1]
		if text, ok := strings.CutPrefix(line, "> "); ok && len(last.prints) == 0 {
			last.text += "\n" + text
		} else if strings.TrimSpace(line) != "" {
			last.prints = append(last.prints, line)
		}
	}
	return d
}

// simpleCommands splits a command line at the shell's operators and returns the
// words of each part, without quotes, redirections and variables set in front.
func simpleCommands(text string) (parts [][]string) {
	var words []string
	word, has := strings.Builder{}, false
	endWord := func() {
		if has {
			words = append(words, word.String())
		}
		word.Reset()
		has = false
	}
	endPart := func() {
		endWord()
		for len(words) > 0 && variable.MatchString(words[0]) {
			words = words[1:]
		}
		if i := slices.IndexFunc(words, redirection.MatchString); i >= 0 {
			words = words[:i]
		}
		if len(words) > 0 {
			parts = append(parts, words)
		}
		words = nil
	}
	quote := rune(0)
	for i, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, has = r, true
		case r == '#' && !has:
			endPart()
			return parts
		case r == '\\' && i+1 < len(text) && text[i+1] == '\n':
			endWord()
		case r == '\n' && i > 0 && text[i-1] == '\\':
		case r == '&' && has && strings.HasSuffix(word.String(), ">"):
			word.WriteRune(r) // 2>&1
		case strings.ContainsRune("|;&\n()", r):
			endPart()
		case r == ' ' || r == '\t':
			endWord()
		default:
			word.WriteRune(r)
			has = true
		}
	}
	endPart()
	return parts
}

var (
	variable    = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*=`)
	redirection = regexp.MustCompile(`^[0-9]*[<>]`)
)

// cli answers about a command line program.
type cli interface {
	// subcommands returns the names of the commands below the given ones.
	subcommands(commands []string) ([]string, error)
	// help returns the help text of a command.
	help(commands []string) (string, error)
}

// checkCommands returns what is wrong with a document's streamraft and make
// commands.
func checkCommands(d *document, program cli, makeTargets []string) (problems []string) {
	report := func(line int, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s:%d: %s", d.path, line, fmt.Sprintf(format, args...)))
	}
	checkTarget := func(line int, target string) {
		if !slices.Contains(makeTargets, target) {
			report(line, "the Makefile has no target %q", target)
		}
	}
	for target, line := range d.targets {
		checkTarget(line, target)
	}
	for _, c := range d.commands {
		for _, words := range simpleCommands(c.text) {
			switch {
			case filepath.Base(words[0]) == "streamraft":
				words = words[1:]
			case len(words) > 3 && slices.Equal(words[:3], []string{"go", "run", "./cmd/streamraft"}):
				words = words[3:]
			case words[0] == "make":
				for _, word := range words[1:] {
					if !strings.ContainsAny(word, "=-") {
						checkTarget(c.line, word)
					}
				}
				continue
			default:
				continue
			}
			if err := checkStreamraft(words, program); err != nil {
				report(c.line, "%v", err)
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// checkStreamraft follows the words of a command line through the commands of
// the program and then looks for its flags.
func checkStreamraft(words []string, program cli) error {
	var commands []string
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		below, err := program.subcommands(commands)
		if err != nil {
			return err
		}
		if !slices.Contains(below, words[0]) {
			if len(below) > 0 {
				return fmt.Errorf("%s: there is no command %q, but %s",
					strings.Join(append([]string{"streamraft"}, commands...), " "), words[0], strings.Join(below, ", "))
			}
			break // its arguments begin
		}
		commands, words = append(commands, words[0]), words[1:]
	}
	help, err := program.help(commands)
	if err != nil {
		return err
	}
	for _, word := range words {
		if word == "--" {
			break
		}
		name, _, _ := strings.Cut(word, "=")
		if !flagName.MatchString(name) || name == "--help" {
			continue
		}
		if !regexp.MustCompile(`(?m)(^|[\s,])` + regexp.QuoteMeta(name) + `($|[^a-z0-9-])`).MatchString(help) {
			return fmt.Errorf("%s: there is no flag %s", strings.Join(append([]string{"streamraft"}, commands...), " "), name)
		}
	}
	return nil
}

// flagName tells a flag from a negative number or a dash for standard input.
var flagName = regexp.MustCompile(`^--?[a-z]`)

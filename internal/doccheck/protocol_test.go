package doccheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
)

// unknownTests returns the tests that a document names and that are none.
func unknownTests(text string, tests map[string]bool) (unknown []string) {
	for _, match := range testName.FindAllStringSubmatch(text, -1) {
		if !tests[match[1]] && !slices.Contains(unknown, match[1]) {
			unknown = append(unknown, match[1])
		}
	}
	return unknown
}

// TestProtocolNamesTests: each test that docs/protocol.md names is there, and each
// test of a case is named there.
func TestProtocolNamesTests(t *testing.T) {
	tests := make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, match := range testFunc.FindAllSubmatch(data, -1) {
			tests[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "docs/protocol.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range unknownTests(string(data), tests) {
		t.Errorf("docs/protocol.md names %s, which is no test", name)
	}
	for name := range tests {
		if strings.HasPrefix(name, "TestCase") && !strings.Contains(string(data), "`"+name+"`") {
			t.Errorf("docs/protocol.md does not name %s", name)
		}
	}
	if got := fmt.Sprint(unknownTests("`TestHere` and `TestGone`, `TestGone`", map[string]bool{"TestHere": true})); got != "[TestGone]" {
		t.Errorf("of two names one is unknown, not %s", got)
	}
}

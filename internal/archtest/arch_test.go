package archtest

import (
	"slices"
	"strings"
	"testing"
)

// rules returns every rule by name. Files of the bad module are short, so the
// limit of lines is an argument.
func rules(lines int) map[string]func([]*pkg) []finding {
	return map[string]func([]*pkg) []finding{
		"imports":   checkImports,
		"libraries": checkLibraries,
		"deps":      checkDeps,
		"doc":       checkDoc,
		"comments":  checkComments,
		"exits":     checkExits,
		"init":      checkInit,
		"sleeps":    checkSleeps,
		"lines":     checkLines(lines),
	}
}

func TestModule(t *testing.T) {
	pkgs := load(t, "../..", true)
	for name, rule := range rules(maxLines) {
		t.Run(name, func(t *testing.T) {
			for _, f := range rule(pkgs) {
				t.Error(f)
			}
		})
	}
}

// TestRulesFind runs the rules over a module that breaks each of them.
func TestRulesFind(t *testing.T) {
	pkgs := load(t, "testdata/bad", false)
	want := map[string][]string{
		"imports": {
			"client/client.go:5",      // kv, through which raft comes in
			"internal/stray",          // no row
			"kv/kv.go:9",              // a package for tests
			"raftnode/raftnode.go:10", // kv
		},
		"libraries": {
			"kv/kv.go:4",             // testing
			"kv/kv.go:8",             // cobra
			"kv/kv.go:11",            // rapid is for tests
			"raftnode/raftnode.go:8", // pebble itself
			"snapshot/snapshot.go:4", // prometheus
		},
		"deps": {"client", "client"}, // raftnode and pebble
		"doc": {
			"client/client.go:1", // a second comment
			"client/doc.go",      // none in doc.go
			"cmd/tool/doc.go",    // not "Command tool"
			"internal/stray",     // no doc.go
		},
		"comments": {
			"server/server.go:11", // function
			"server/server.go:14", // field in one line
			"server/server.go:25", // field after an empty line
			"server/server.go:33", // interface method
			"server/server.go:38", // type
			"server/server.go:45", // constant
			"server/server.go:49", // method
		},
		"exits": {
			"snapshot/exits.go:13", "snapshot/exits.go:15", "snapshot/exits.go:17",
			"snapshot/exits.go:19", "snapshot/exits.go:21", "snapshot/exits.go:25",
		},
		"init":   {"snapshot/snapshot.go:9", "snapshot/snapshot_test.go:8"},
		"sleeps": {"snapshot/snapshot_test.go:11", "snapshot/snapshot_test.go:12"},
		"lines":  {"server/server.go"},
	}
	for name, rule := range rules(40) {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range rule(pkgs) {
				got = append(got, f.where)
				if f.rule != name || !strings.Contains(f.String(), name) || len(f.what) < 20 {
					t.Errorf("not helpful: %v", f)
				}
			}
			slices.Sort(got)
			if slices.Sort(want[name]); !slices.Equal(got, want[name]) {
				t.Errorf("\nfound %q\nwant  %q", got, want[name])
			}
		})
	}
}

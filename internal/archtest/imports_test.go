package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// treeImports is a package tree and what its packages may import of the module
// besides their own tree.
type treeImports struct {
	tree  string
	trees []string // each with all below it, except packages for tests
}

// anything is what packages for tests may import.
const anything = "*"

// allowedImports is the table of DESIGN.md section 2; the first row whose tree
// holds a package decides. A package without a row fails.
//
// The generated code of proto/ is a vocabulary without behaviour; it is allowed
// where messages are made or answered.
func allowedImports() []treeImports {
	return []treeImports{
		{"proto", nil},

		// For tests, before the trees they stand in.
		{"raftnode/raftnodetest", []string{anything}},
		{"snapshot/snapshottest", []string{anything}},
		{"streammeta/worker/workertest", []string{anything}},
		{"worker/workertest", []string{anything}},
		{"internal/testcluster", []string{anything}},
		{"internal/proctest", []string{anything}},

		{"raftnode/raftlog", []string{"proto", "internal/durable", "internal/invariants"}},
		{"raftnode/transport", []string{"proto", "internal/logbridge", "internal/invariants"}},
		{"raftnode", []string{"snapshot", "proto", "internal/durable", "internal/logbridge", "internal/invariants"}},
		{"snapshot", []string{"proto", "internal/durable", "internal/invariants"}},
		{"kv", []string{"raftnode", "snapshot", "proto", "internal/durable", "internal/logbridge", "internal/invariants"}},
		{"streammeta/worker", []string{"proto", "client"}},
		{"worker", []string{"proto", "client"}},
		{"streammeta", []string{"raftnode", "snapshot", "proto", "internal/durable", "internal/invariants"}},
		{"client", []string{"proto"}},
		{"server", []string{"streammeta", "kv", "raftnode", "snapshot", "proto",
			"internal/durable", "internal/logbridge", "internal/invariants"}},
		{"bench", []string{"client", "server", "raftnode", "kv", "snapshot", "streammeta", "proto", "internal/localcluster", "internal/faultnet"}},
		{"cmd", []string{"server", "client", "bench", "snapshot", "streammeta/worker", "worker", "proto",
			"internal/cliui", "internal/importer", "internal/localcluster", "internal/logbridge"}},
		// What a user would write: no internal packages.
		{"examples", []string{"raftnode", "snapshot", "kv", "client", "server", "streammeta", "worker"}},

		// Helpers stand below everything: they import nothing of the module.
		{"internal/archtest", nil},
		{"internal/cliui", nil},
		{"internal/doccheck", nil},
		{"internal/durable", nil},
		// One of the two implementations of raftnode/transport.Transport.
		{"internal/faultnet", []string{"raftnode/transport", "proto"}},
		// Files to records and back; the CLI and the demonstration share it.
		{"internal/importer", []string{"client", "proto"}},
		{"internal/invariants", nil},
		// Knows nodes by their command line and their services only.
		{"internal/localcluster", []string{"client", "proto"}},
		{"internal/logbridge", nil},
		{"internal/mutants", nil},
	}
}

// checkImports is the rule "imports".
func checkImports(pkgs []*pkg) (findings []finding) {
	tests := map[string]bool{}
	for _, p := range pkgs {
		tests[p.path] = p.forTests()
	}
	for _, p := range pkgs {
		row := slices.IndexFunc(allowedImports(), func(r treeImports) bool { return within(p.path, r.tree) })
		if row < 0 {
			findings = append(findings, finding{"imports", p.path,
				"the package has no row in allowedImports; add one with what DESIGN.md section 2 allows it, or put it where one fits"})
			continue
		}
		allowed := allowedImports()[row]
		if slices.Contains(allowed.trees, anything) {
			continue
		}
		for _, imported := range ownImports(p) {
			inTree := slices.ContainsFunc(append(allowed.trees, allowed.tree), func(tree string) bool {
				return within(imported, tree)
			})
			if inTree && !tests[imported] {
				continue
			}
			what := fmt.Sprintf("imports %s; packages of %s may import only their own tree and %s: move the code, or pass what is needed as an argument or interface",
				imported, allowed.tree, orNone(allowed.trees))
			if tests[imported] {
				what = fmt.Sprintf("imports %s, which is for tests: move what is needed into a package of its own", imported)
			}
			findings = append(findings, finding{"imports", p.whereImported(modulePath + "/" + imported), what})
		}
	}
	return findings
}

// library is another module, or a part of it, and where it may be used.
type library struct {
	prefix string
	trees  []string // nil: anywhere
}

// libraries are the dependencies of DESIGN.md section 3; the first row that
// fits an import decides. One without a row fails.
func libraries() []library {
	return []library{
		{"github.com/cockroachdb/pebble/v2/vfs", []string{"raftnode", "snapshot", "kv", "streammeta", "server", "bench", "internal/durable"}},
		{"github.com/cockroachdb/pebble/v2", []string{"kv"}},
		{"go.etcd.io/raft/v3", []string{"raftnode"}},
		{"github.com/spf13", []string{"cmd"}},
		{"github.com/prometheus", []string{"server"}},
		{"github.com/jedib0t/go-pretty/v6", []string{"cmd", "internal/cliui", "bench"}},
		{"go.yaml.in/yaml/v3", []string{"server", "cmd", "bench"}},
		{"github.com/HdrHistogram/hdrhistogram-go", []string{"bench", "cmd"}},
		{"gonum.org/v1/plot", []string{"bench"}},
		{"github.com/klauspost/compress", []string{"snapshot", "kv", "raftnode", "bench"}},
		{"github.com/cespare/xxhash/v2", []string{"snapshot", "kv", "raftnode"}},
		{"github.com/grpc-ecosystem/grpc-gateway/v2", []string{"server", "proto"}},
		{"github.com/grpc-ecosystem/go-grpc-middleware/v2", []string{"server"}},
		{"go.opentelemetry.io", []string{"server"}},
		{"google.golang.org/grpc", nil},
		{"google.golang.org/protobuf", nil},
		{"google.golang.org/genproto/googleapis/rpc", nil},
		{"golang.org/x/time", nil},
		{"golang.org/x/sync", nil},
		{"golang.org/x/sys", nil},
		{"golang.org/x/net", nil},
		{"golang.org/x/term", nil},
	}
}

// checkLibraries is the rule "libraries". Packages for tests may use any.
func checkLibraries(pkgs []*pkg) (findings []finding) {
	for _, p := range pkgs {
		if p.forTests() {
			continue
		}
		for _, imported := range p.Imports {
			if within(imported, "testing") {
				findings = append(findings, finding{"libraries", p.whereImported(imported),
					"imports " + imported + " outside tests: move it to a _test.go file or a package whose name ends in test"})
			}
			if first, _, _ := strings.Cut(imported, "/"); within(imported, modulePath) || !strings.Contains(first, ".") {
				continue // our own, or the standard library
			}
			row := slices.IndexFunc(libraries(), func(l library) bool { return within(imported, l.prefix) })
			if row < 0 {
				findings = append(findings, finding{"libraries", p.whereImported(imported),
					"imports " + imported + ", which DESIGN.md section 3 does not list (or only for tests): use one it lists, or give the reason in the commit that adds a row to libraries"})
				continue
			}
			l := libraries()[row]
			if l.trees == nil || slices.ContainsFunc(l.trees, func(tree string) bool { return within(p.path, tree) }) {
				continue
			}
			findings = append(findings, finding{"libraries", p.whereImported(imported),
				fmt.Sprintf("imports %s, which belongs to %s: hide it behind an interface there", imported, orNone(l.trees))})
		}
	}
	return findings
}

// checkDeps is the rule "deps": what users link to talk to a node must stay
// small, so neither raft nor a database may come in through another package.
func checkDeps(pkgs []*pkg) (findings []finding) {
	clients := []string{"client", "worker", "streammeta/worker"}
	forbidden := []string{modulePath + "/raftnode", "go.etcd.io/raft/v3", "github.com/cockroachdb/pebble"}
	for _, p := range pkgs {
		if p.forTests() || !slices.ContainsFunc(clients, func(tree string) bool { return within(p.path, tree) }) {
			continue
		}
		for _, tree := range forbidden {
			i := slices.IndexFunc(p.Deps, func(dep string) bool { return within(dep, tree) })
			if i >= 0 {
				findings = append(findings, finding{"deps", p.path,
					fmt.Sprintf("links %s; find the way with `go mod why` or `go list -deps` and cut it", p.Deps[i])})
			}
		}
	}
	return findings
}

// ownImports returns what a package imports of the module, below its path.
func ownImports(p *pkg) (own []string) {
	for _, imported := range p.Imports {
		if path, ok := strings.CutPrefix(imported, modulePath+"/"); ok {
			own = append(own, path)
		}
	}
	return own
}

// whereImported returns the line of an import, or the package if its file is
// generated.
func (p *pkg) whereImported(path string) string {
	for _, f := range p.files {
		for _, spec := range f.Imports {
			if !f.test && strings.Trim(spec.Path.Value, `"`) == path {
				return f.at(spec.Pos())
			}
		}
	}
	return p.path
}

func orNone(trees []string) string {
	if len(trees) == 0 {
		return "nothing else"
	}
	return strings.Join(trees, ", ")
}

package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modulePath is the path of this module, and of the one in testdata/bad.
const modulePath = "github.com/streamraft/streamraft"

// listed is what is used of the output of go list.
type listed struct {
	ImportPath, Dir, Name                                        string
	GoFiles, CgoFiles, TestGoFiles, XTestGoFiles, IgnoredGoFiles []string
	Imports, Deps                                                []string
	Error                                                        *struct{ Err string }
}

// pkg is one package of a module with its parsed files.
type pkg struct {
	listed
	path  string // import path below the module's, such as "raftnode/raftlog"
	files []*file
}

// file is one Go file that is not generated.
type file struct {
	*ast.File
	fset  *token.FileSet
	path  string // below the module's root
	lines int
	test  bool // part of the package's tests
}

// finding is one breach of a rule.
type finding struct {
	rule  string
	where string // file:line or a directory
	what  string // what is wrong, and what to do
}

func (f finding) String() string { return fmt.Sprintf("%s: %s: %s", f.where, f.rule, f.what) }

// load returns the packages of the module in root. Packages that do not load
// are errors only where strict.
func load(t *testing.T, root string, strict bool) []*pkg {
	t.Helper()
	root, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	readDirectories(t, root)
	command := exec.CommandContext(t.Context(), "go", "list", "-e", "-json", "./...")
	command.Dir = root
	// The imports of testdata/bad are not to be looked for, and the state of the
	// repository is no matter of ours.
	command.Env = append(os.Environ(), "GOFLAGS=-mod=readonly -buildvcs=false", "GOWORK=off")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var pkgs []*pkg
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		p := new(pkg)
		err := decoder.Decode(&p.listed)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		if strict && p.Error != nil {
			t.Errorf("%s does not load: %s", p.ImportPath, p.Error.Err)
		}
		p.path = strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, modulePath), "/")
		p.parse(t, root)
		pkgs = append(pkgs, p)
	}
	if len(pkgs) == 0 {
		t.Fatalf("no package in %s", root)
	}
	return pkgs
}

// readDirectories reads every directory below root. The go command runs these
// tests again when a directory changed that they have read; what its own go list
// reads it does not see.
func readDirectories(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		// A file that other work removes meanwhile is none of ours.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() && path != root && (entry.Name()[0] == '.' || entry.Name() == "bin") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (p *pkg) parse(t *testing.T, root string) {
	t.Helper()
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
		fset := token.NewFileSet()
		path := filepath.Join(p.Dir, name)
		parsed, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if ast.IsGenerated(parsed) {
			continue
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		p.files = append(p.files, &file{
			File: parsed, fset: fset, path: filepath.ToSlash(relative),
			lines: fset.File(parsed.FileStart).LineCount(),
			test:  strings.HasSuffix(name, "_test.go"),
		})
	}
}

// generated tells whether a package has nothing but generated files.
func (p *pkg) generated() bool { return len(p.files) == 0 }

// forTests tells whether a package exists for tests alone, by its name: the
// public *test packages and the simulator.
func (p *pkg) forTests() bool {
	return strings.HasSuffix(p.path, "test") || within(p.path, "internal/testcluster")
}

func (f *file) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(pos).Line)
}

// importName returns the name under which the file imports a package, or "".
func (f *file) importName(path string) string {
	for _, spec := range f.Imports {
		if strings.Trim(spec.Path.Value, `"`) != path {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path[strings.LastIndexByte(path, '/')+1:]
	}
	return ""
}

// isCall tells whether a node is a call of a function of an imported package.
func (f *file) isCall(node ast.Node, path string, names ...string) bool {
	call, ok := node.(*ast.CallExpr)
	if !ok {
		return false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := selector.X.(*ast.Ident)
	return ok && from.Name != "" && from.Name == f.importName(path) && slices.Contains(names, selector.Sel.Name)
}

// within tells whether path is tree or below it.
func within(path, tree string) bool {
	return path == tree || strings.HasPrefix(path, tree+"/")
}

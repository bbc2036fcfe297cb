package archtest

import (
	"fmt"
	"go/ast"
	"path"
	"strings"
)

// maxLines of a file; past it there are two ideas in it.
const maxLines = 500

// checkDoc is the rule "doc".
func checkDoc(pkgs []*pkg) (findings []finding) {
	for _, p := range pkgs {
		if p.generated() {
			continue
		}
		var doc *file
		for _, f := range p.files {
			if path.Base(f.path) == "doc.go" {
				doc = f
			} else if f.Doc != nil && !f.test {
				findings = append(findings, finding{"doc", f.at(f.Doc.Pos()),
					"a second package comment: move it to doc.go, or put an empty line before the package clause"})
			}
		}
		start := "Package " + p.Name + " "
		if p.Name == "main" {
			start = "Command " + path.Base(p.path) + " "
		}
		switch {
		case doc == nil:
			findings = append(findings, finding{"doc", p.path,
				"has no doc.go: write one that says what the package promises, which goroutine calls what and what is durable when"})
		case doc.Doc == nil:
			findings = append(findings, finding{"doc", doc.path, "has no package comment: write it right above the package clause"})
		case !strings.HasPrefix(doc.Doc.Text(), start):
			findings = append(findings, finding{"doc", doc.path, fmt.Sprintf("begin the package comment with %q", start)})
		}
	}
	return findings
}

// checkExits is the rule "exits". A command may exit, and so may its tests.
func checkExits(pkgs []*pkg) (findings []finding) {
	for _, p := range pkgs {
		if p.Name == "main" {
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			ast.Inspect(f.File, func(node ast.Node) bool {
				switch {
				case f.isCall(node, "os", "Exit"), f.isCall(node, "syscall", "Exit"),
					f.isCall(node, "golang.org/x/sys/unix", "Exit"),
					f.isCall(node, "log", "Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"):
					findings = append(findings, finding{"exits", f.at(node.Pos()),
						"ends the process: return an error, only a command may exit"})
				case isPanic(node) && !f.invariantAbove(node):
					findings = append(findings, finding{"exits", f.at(node.Pos()),
						"panics: return an error; if only a bug in this package can lead here, say why in a comment `// invariant: ...` on the line above"})
				}
				return true
			})
		}
	}
	return findings
}

func isPanic(node ast.Node) bool {
	call, ok := node.(*ast.CallExpr)
	if !ok {
		return false
	}
	function, ok := call.Fun.(*ast.Ident)
	return ok && function.Name == "panic"
}

// invariantAbove tells whether a comment that ends on the line above a node has
// a line that begins with "invariant:" and a reason.
func (f *file) invariantAbove(node ast.Node) bool {
	line := f.fset.Position(node.Pos()).Line
	for _, group := range f.Comments {
		if f.fset.Position(group.End()).Line != line-1 {
			continue
		}
		for _, comment := range group.List {
			reason, ok := strings.CutPrefix(comment.Text, "// invariant:")
			if ok && strings.TrimSpace(reason) != "" {
				return true
			}
		}
	}
	return false
}

// checkInit is the rule "init".
func checkInit(pkgs []*pkg) (findings []finding) {
	for _, f := range allFiles(pkgs) {
		for _, decl := range f.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if ok && function.Recv == nil && function.Name.Name == "init" {
				findings = append(findings, finding{"init", f.at(decl.Pos()),
					"an init function: do it where the value is made, or in the Open of its owner"})
			}
		}
	}
	return findings
}

// checkSleeps is the rule "sleeps". Waiting for time.After outside a select is
// a sleep too.
func checkSleeps(pkgs []*pkg) (findings []finding) {
	for _, f := range allFiles(pkgs) {
		if !f.test {
			continue
		}
		inSelect := map[ast.Stmt]bool{}
		ast.Inspect(f.File, func(node ast.Node) bool {
			if clause, ok := node.(*ast.CommClause); ok {
				inSelect[clause.Comm] = true
			}
			wait := f.isCall(node, "time", "Sleep")
			if statement, ok := node.(*ast.ExprStmt); ok && !inSelect[statement] {
				receive, ok := statement.X.(*ast.UnaryExpr)
				wait = wait || ok && f.isCall(receive.X, "time", "After")
			}
			if wait {
				findings = append(findings, finding{"sleeps", f.at(node.Pos()),
					"a test that sleeps is slow or wrong: poll with a ticker until a deadline, or let virtual time pass in testing/synctest with a timer"})
			}
			return true
		})
	}
	return findings
}

// checkLines returns the rule "lines" for a limit.
func checkLines(limit int) func([]*pkg) []finding {
	return func(pkgs []*pkg) (findings []finding) {
		for _, f := range allFiles(pkgs) {
			if f.lines > limit {
				findings = append(findings, finding{"lines", f.path,
					fmt.Sprintf("has %d lines, more than %d: look for the second idea in it", f.lines, limit)})
			}
		}
		return findings
	}
}

func allFiles(pkgs []*pkg) (files []*file) {
	for _, p := range pkgs {
		files = append(files, p.files...)
	}
	return files
}

package archtest

import (
	"go/ast"
	"go/token"
	"strings"
)

// checkComments is the rule "comments": every exported function, method, type,
// value, interface method, and field of a struct named ...Options has a comment;
// the fields of other structs may be explained by that of the type. Values
// declared in one group may share the group's. Fields and interface methods may
// share the comment of the one on the line above, or have theirs behind them.
func checkComments(pkgs []*pkg) []finding {
	c := &commentCheck{}
	for _, p := range pkgs {
		for _, f := range p.files {
			if !f.test {
				c.file = f
				c.declarations(f.Decls)
			}
		}
	}
	return c.findings
}

type commentCheck struct {
	file     *file
	findings []finding
}

func (c *commentCheck) missing(name *ast.Ident, what string) {
	c.findings = append(c.findings, finding{"comments", c.file.at(name.Pos()),
		what + " " + name.Name + " has no comment: say its meaning, units, what is durable, who may call it, and its errors"})
}

func (c *commentCheck) declarations(decls []ast.Decl) {
	for _, decl := range decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			if decl.Name.IsExported() && decl.Doc == nil && exportedReceiver(decl.Recv) {
				c.missing(decl.Name, "function")
			}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					c.values(decl, spec)
				case *ast.TypeSpec:
					c.typeSpec(decl, spec)
				}
			}
		}
	}
}

func (c *commentCheck) values(decl *ast.GenDecl, spec *ast.ValueSpec) {
	if decl.Doc != nil || spec.Doc != nil || spec.Comment != nil {
		return
	}
	for _, name := range spec.Names {
		if name.IsExported() {
			c.missing(name, decl.Tok.String())
		}
	}
}

func (c *commentCheck) typeSpec(decl *ast.GenDecl, spec *ast.TypeSpec) {
	if !spec.Name.IsExported() {
		return
	}
	single := decl.Lparen == token.NoPos
	if spec.Doc == nil && spec.Comment == nil && !(single && decl.Doc != nil) {
		c.missing(spec.Name, "type")
	}
	switch t := spec.Type.(type) {
	case *ast.StructType:
		if strings.HasSuffix(spec.Name.Name, "Options") {
			c.fields(t.Fields, "field")
		}
	case *ast.InterfaceType:
		c.fields(t.Methods, "method")
	}
}

func (c *commentCheck) fields(list *ast.FieldList, what string) {
	lastLine, lastHas := 0, false
	for _, field := range list.List {
		has := field.Doc != nil || field.Comment != nil
		if !has && lastHas {
			has = c.file.fset.Position(field.Pos()).Line == lastLine+1
		}
		for _, name := range field.Names {
			if name.IsExported() && !has {
				c.missing(name, what)
			}
		}
		if nested, ok := field.Type.(*ast.StructType); ok && len(field.Names) > 0 && field.Names[0].IsExported() {
			c.fields(nested.Fields, what)
		}
		lastLine, lastHas = c.file.fset.Position(field.End()).Line, has
	}
}

// exportedReceiver tells whether a method can be called from outside: it has no
// receiver, or one of an exported type.
func exportedReceiver(receiver *ast.FieldList) bool {
	if receiver == nil {
		return true
	}
	expr := receiver.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.IsExported()
		default:
			return false
		}
	}
}

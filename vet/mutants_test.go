package vet_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"

	"github.com/linstock-ml/linstock/internal/retype"
	"github.com/linstock-ml/linstock/vet"
)

// TestMutantsOfTensor removes each pin, unpin and hold from package tensor, including generated code, and requires a
// report for each, except for those that an analysis of one function cannot find.
func TestMutantsOfTensor(t *testing.T) {
	t.Parallel()
	pkgs := load(t)
	pkg := pkgs[slices.IndexFunc(pkgs, func(p *packages.Package) bool { return p.ID == module+"/tensor" })]
	if got := diagnostics(t, []*analysis.Analyzer{vet.KeepAlive}, pkg); len(got) != 0 {
		t.Fatalf("the package itself: %v", got)
	}
	silent := map[string]string{
		// This is an error path of prepare: only its caller could detect the missing unpin.
		"b.unpin() in prepare": "leak tests of failing backward passes",
		// It keeps n until its cleanup has been stopped, which the analysis does not know.
		"runtime.KeepAlive(n) in native[H].drop": "no test: a collection would have to end within drop",
		// The handles go to a function, not to package cshim.
		"p.unpin() in withHandles": "leak tests of its callers",
	}
	files := map[string]*ast.File{}
	rounds := [][]*mutant{}
	for _, name := range pkg.CompiledGoFiles {
		if filepath.Base(filepath.Dir(name)) != "tensor" {
			continue
		}
		file, err := parser.ParseFile(pkg.Fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = file
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil && nameOf(fn) != "Tensor.pin" {
				i := 0
				for _, m := range mutants(fn) {
					if i == len(rounds) {
						rounds = append(rounds, nil)
					}
					rounds[i] = append(rounds[i], m)
					i++
				}
			}
		}
	}
	// Each round has one mutant in each function, so that a report in a function belongs to its mutant.
	tried, noticed := 0, 0
	for _, round := range rounds {
		for _, m := range round {
			m.swap()
		}
		mutated := retyped(t, pkg, files)
		for _, m := range round {
			m.swap()
		}
		reported := map[string]bool{}
		for _, d := range run(t, []*analysis.Analyzer{vet.KeepAlive}, mutated) {
			reported[functionAt(mutated, d.Pos)] = true
		}
		for _, m := range round {
			tried++
			_, known := silent[m.what]
			switch {
			case reported[m.fn]:
				noticed++
				if known {
					t.Errorf("%s is noticed now: take it out of the list", m.what)
				}
			case !known:
				t.Errorf("nothing notices the mutant without %s, %v", m.what, pkg.Fset.Position(m.pos))
			}
		}
	}
	t.Logf("%d of %d mutants noticed in %d rounds", noticed, tried, len(rounds))
	if tried < 150 {
		t.Errorf("%d mutants: have the pins moved?", tried)
	}
}

// mutant is a function from which one pin or unpin is removed; swap removes and restores it.
type mutant struct {
	fn, what string
	pos      token.Pos
	swap     func()
}

func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	return strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*") + "." + fn.Name.Name
}

func functionAt(pkg *packages.Package, pos token.Pos) string {
	for _, f := range pkg.Syntax {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Pos() <= pos && pos <= fn.End() {
				return nameOf(fn)
			}
		}
	}
	return ""
}

var helper = regexp.MustCompile(`^(pin|done|wrote)[123]$`)

func mutants(fn *ast.FuncDecl) (all []*mutant) {
	letsGo := func(e ast.Expr) bool {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		return ok && (sel.Sel.Name == "unpin" || sel.Sel.Name == "letGo" || sel.Sel.Name == "KeepAlive")
	}
	var stack []ast.Node
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		in := nameOf(fn)
		for _, s := range stack {
			if _, ok := s.(*ast.FuncLit); ok {
				in = "func literal of " + nameOf(fn)
			}
		}
		add := func(what string, swap func()) {
			all = append(all, &mutant{nameOf(fn), what + " in " + in, n.Pos(), swap})
		}
		switch n := n.(type) {
		case *ast.BlockStmt:
			for i, stmt := range n.List {
				var call ast.Expr
				switch stmt := stmt.(type) {
				case *ast.ExprStmt:
					call = stmt.X
				case *ast.DeferStmt:
					call = stmt.Call
				}
				if letsGo(call) {
					other := ast.Stmt(&ast.EmptyStmt{Implicit: true})
					add(types.ExprString(call), func() { n.List[i], other = other, n.List[i] })
				}
			}
		case *ast.CallExpr:
			other := *n
			sel, isMethod := n.Fun.(*ast.SelectorExpr)
			id, isFunc := n.Fun.(*ast.Ident)
			what := ""
			switch {
			case isMethod && (sel.Sel.Name == "pin" || sel.Sel.Name == "hold"):
				what = types.ExprString(n)
				other = ast.CallExpr{Fun: ast.NewIdent("bool"), Args: []ast.Expr{ast.NewIdent("true")}}
			case isFunc && helper.MatchString(id.Name):
				// Remove one operand.
				args, kind, count := n.Args, id.Name[:len(id.Name)-1], id.Name[len(id.Name)-1]
				if id.Name == "pin3" {
					args = args[:4]
				}
				what = id.Name + " of " + types.ExprString(args[len(args)-1])
				switch {
				case count == '1' && kind == "pin":
					other = ast.CallExpr{Fun: &ast.ParenExpr{X: &ast.StarExpr{X: ast.NewIdent("Tensor")}}, Args: []ast.Expr{ast.NewIdent("nil")}}
				case count == '1' && kind == "done":
					other = ast.CallExpr{Fun: ast.NewIdent("wrapResult"), Args: []ast.Expr{&ast.BasicLit{Kind: token.STRING, Value: `""`}, args[1]}}
				case count == '1':
					other = ast.CallExpr{Fun: ast.NewIdent("failed"), Args: []ast.Expr{&ast.CallExpr{Fun: ast.NewIdent("asError"), Args: args[1:2]}}}
				default:
					other = ast.CallExpr{Fun: ast.NewIdent(kind + string(count-1)), Args: args[:len(args)-1]}
				}
			}
			if what != "" {
				add(what, func() { *n, other = other, *n })
			}
		}
		return true
	})
	return all
}

// retyped returns the package with some files replaced, printed and type-checked again.
func retyped(t *testing.T, pkg *packages.Package, files map[string]*ast.File) *packages.Package {
	t.Helper()
	sources := map[string][]byte{}
	for name, f := range files {
		var b bytes.Buffer
		if err := printer.Fprint(&b, pkg.Fset, f); err != nil {
			t.Fatal(err)
		}
		sources[name] = b.Bytes()
	}
	out, err := retype.Package(pkg, sources)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// run returns what the analyzers report.
func run(t *testing.T, as []*analysis.Analyzer, pkgs ...*packages.Package) []analysis.Diagnostic {
	t.Helper()
	all, err := retype.Run(as, pkgs...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// diagnostics returns the same as text, without duplicates.
func diagnostics(t *testing.T, as []*analysis.Analyzer, pkgs ...*packages.Package) (all []string) {
	t.Helper()
	for _, d := range run(t, as, pkgs...) {
		all = append(all, fmt.Sprintf("%s: %s (%s)", pkgs[0].Fset.Position(d.Pos), d.Message, d.Category))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

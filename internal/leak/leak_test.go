package leak_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestEveryTestChecks tests that every test of every package that can reach native memory calls Check or balance.Hold,
// directly or through a function of the package.
func TestEveryTestChecks(t *testing.T) {
	leak.Check(t)
	tests, packages := 0, 0
	all, err := leak.Packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		packages++
		n, missing := unchecked(t, p)
		tests += n
		for _, m := range missing {
			t.Errorf("%s does not call leak.Check", m)
		}
	}
	t.Logf("%d tests of %d packages", tests, packages)
	if tests < 150 || packages < 10 {
		t.Errorf("only %d tests of %d packages were found", tests, packages)
	}
}

// unchecked returns the number of tests in a package and the names of those that do not check.
func unchecked(t *testing.T, p leak.Package) (tests int, missing []string) {
	t.Helper()
	set := token.NewFileSet()
	functions := map[string]*ast.FuncDecl{}
	for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
		file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Body != nil {
				functions[f.Name.Name] = f
			}
		}
	}
	for name, f := range functions {
		if strings.HasPrefix(name, "Test") && name != "TestMain" {
			if tests++; !checks(functions, f, map[string]bool{}) {
				missing = append(missing, set.Position(f.Pos()).String()+": "+name)
			}
		}
	}
	slices.Sort(missing)
	return tests, missing
}

func checks(functions map[string]*ast.FuncDecl, f *ast.FuncDecl, seen map[string]bool) (found bool) {
	if seen[f.Name.Name] {
		return false
	}
	seen[f.Name.Name] = true
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || found {
			return !found
		}
		switch fun := call.Fun.(type) {
		case *ast.SelectorExpr:
			x, ok := fun.X.(*ast.Ident)
			found = ok && (x.Name == "leak" && fun.Sel.Name == "Check" || x.Name == "balance" && fun.Sel.Name == "Hold")
		case *ast.Ident:
			if called := functions[fun.Name]; called != nil {
				found = checks(functions, called, seen)
			}
		}
		return !found
	})
	return found
}

// spy is a testing.TB that records its failure.
type spy struct {
	*testing.T
	failed  bool
	cleanup []func()
}

func (s *spy) Cleanup(f func())      { s.cleanup = append(s.cleanup, f) }
func (s *spy) Error(...any)          { s.failed = true }
func (s *spy) Errorf(string, ...any) { s.failed = true }
func (s *spy) Failed() bool          { return s.failed }

// TestLeaksAreDetected tests that each kind of leak is detected, and that what the collector frees is not a leak.
func TestLeaksAreDetected(t *testing.T) {
	leak.Check(t)
	var undo []func()
	for name, c := range map[string]struct {
		leaks bool
		do    func()
	}{
		"nothing":     {false, func() {}},
		"garbage":     {false, func() { _ = tensor.Ones([]int{1000}).Add(1) }},
		"a tensor":    {true, func() { x := tensor.Ones([]int{1000}); undo = append(undo, x.Release) }},
		"a view":      {true, func() { x := tensor.Ones([]int{1}); y := x.View(-1); x.Release(); undo = append(undo, y.Release) }},
		"a goroutine": {true, func() { end := make(chan struct{}); go func() { <-end }(); undo = append(undo, func() { close(end) }) }},
		"a file": {true, func() {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			undo = append(undo, func() { _ = f.Close() })
		}},
	} {
		if name == "a file" && runtime.GOOS != "linux" {
			continue
		}
		s := &spy{T: t}
		leak.Check(s)
		c.do()
		for _, f := range s.cleanup {
			f()
		}
		if s.failed != c.leaks {
			t.Errorf("%s: noticed %v, want %v", name, s.failed, c.leaks)
		}
		for _, f := range undo {
			f()
		}
		undo = nil
	}
}

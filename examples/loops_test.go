// Package examples holds tests of all examples.
package examples

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// TestTrainingLoopsHaveNoLifetimeCalls tests that training loops have no lifetime code, except scopes around steps that
// no loader's loop surrounds.
func TestTrainingLoopsHaveNoLifetimeCalls(t *testing.T) {
	lifetime := map[string]bool{"Release": true, "Close": true, "Keep": true, "MoveOut": true, "Adopt": true, "NewScope": true, "Tidy": true, "Flush": true}
	files, err := filepath.Glob("*/train.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		loops := 0
		ast.Inspect(file, func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			loops++
			ast.Inspect(loop.Body, func(n ast.Node) bool {
				if call, ok := n.(*ast.SelectorExpr); ok && lifetime[call.Sel.Name] {
					t.Errorf("%s: a call of %s", set.Position(call.Pos()), call.Sel.Name)
				}
				return true
			})
			return true
		})
		if loops == 0 {
			t.Errorf("%s has no loop: has the training moved to another file?", name)
		}
	}
}

// TestArgumentsAreRead tests that each command reads its arguments or refuses them: the first one ends the flags. After a
// mistake in them all end with status 2, which flag.ContinueOnError leaves to the command.
func TestArgumentsAreRead(t *testing.T) {
	reads := map[string]bool{"cli.Parse": true, "cli.ParseArgs": true, "flag.Args": true}
	files, err := filepath.Glob("*/main.go")
	if err != nil || len(files) < 10 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := s.X.(*ast.Ident); ok {
					found = found || reads[of.Name+"."+s.Sel.Name]
					if of.Name+"."+s.Sel.Name == "flag.ContinueOnError" {
						t.Errorf("%s goes on after a mistake in its flags", name)
					}
				}
			}
			return true
		})
		if !found {
			t.Errorf("%s parses flags and ignores arguments", name)
		}
	}
}

// Package examples holds what is true of all examples.
package examples

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// The training loops have no lifetime code.
func TestTrainingLoopsHaveNoLifetimeCalls(t *testing.T) {
	lifetime := map[string]bool{"Release": true, "Close": true, "Keep": true, "MoveOut": true, "Adopt": true, "NewScope": true, "WithScope": true, "Tidy": true, "Flush": true}
	files, err := filepath.Glob("*/train.go")
	if err != nil || len(files) < 2 {
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
			switch n := n.(type) {
			case *ast.RangeStmt:
				loops++
			case *ast.SelectorExpr:
				if lifetime[n.Sel.Name] {
					t.Errorf("%s: a call of %s", set.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
		if loops < 2 {
			t.Errorf("%s has %d loops: has the training moved to another file?", name, loops)
		}
	}
}

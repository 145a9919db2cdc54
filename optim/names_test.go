package optim_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
)

// TestNames tests that each public name of torch.optim in tests/golden/names/optim.txt is in this package, or listed with
// a reason.
func TestNames(t *testing.T) {
	leak.Check(t)
	have := map[string]bool{}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					of := d.Recv.List[0].Type
					if star, ok := of.(*ast.StarExpr); ok {
						of = star.X
					}
					if id, ok := of.(*ast.Ident); ok {
						name = id.Name + "." + name
					}
				}
				have["optim."+name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						have["optim."+s.Name.Name] = true
					}
				}
			}
		}
	}
	data, err := os.ReadFile(golden.Path("names/optim.txt"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		n++
		torch, where, _ := strings.Cut(line, "\t")
		if reason, ok := strings.CutPrefix(where, "- "); ok {
			if strings.TrimSpace(reason) == "" {
				t.Errorf("%s: the reason is missing", torch)
			}
			continue
		}
		if !have[where] {
			t.Errorf("%s: there is no %q", torch, where)
		}
	}
	if n < 60 {
		t.Errorf("the list has %d names", n)
	}
}

// Package names tests that every public name of PyTorch's namespaces is in Linstock, or listed with a reason why not.
package names

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	root  = "../.."
	lists = root + "/tests/golden/names"
)

// TestNames walks names.json, which tests/golden/names.py makes, and the lists beside it. A line of a list is a full name
// in PyTorch, "=" and the Go names that stand for it, or "-" and the reason why there is none:
//
//	torch.nn.Conv2d = nn.NewConv2d
//	torch.nn.Container - deprecated
//
// Another namespace is added to names.py, and its list to the folder.
func TestNames(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(lists, "names.json"))
	if err != nil {
		t.Fatal(err)
	}
	var names map[string][]string
	if err := json.Unmarshal(data, &names); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(lists, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no lists: %v", err)
	}
	declared := map[string]map[string]bool{}
	listed := map[string]bool{}
	for _, file := range files {
		walk(t, file, func(where, name, how, rest string) {
			if listed[name] {
				t.Errorf("%s: %s is listed twice", where, name)
			}
			listed[name] = true
			if how == "-" {
				return
			}
			for _, g := range strings.Fields(rest) {
				pkg, ident, _ := strings.Cut(strings.TrimSuffix(g, ","), ".")
				if declared[pkg] == nil {
					declared[pkg] = declarations(t, filepath.Join(root, pkg))
				}
				if !declared[pkg][ident] {
					t.Errorf("%s: %s does not exist in package %s", where, ident, pkg)
				}
			}
		})
	}
	for space, list := range names {
		for _, n := range list {
			if full := space + "." + n; !listed[full] {
				t.Errorf("%s is neither in Linstock nor listed with a reason: add it to a file in tests/golden/names", full)
			}
		}
		for name := range listed {
			if rest, ok := strings.CutPrefix(name, space+"."); ok && !strings.Contains(rest, ".") {
				if !contains(list, rest) {
					t.Errorf("%s is listed and not a name of PyTorch's", name)
				}
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// walk calls f for each line of a list.
func walk(t *testing.T, path string, f func(where, name, how, rest string)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		where := fmt.Sprintf("%s:%d", filepath.Base(path), n)
		words := strings.SplitN(line, " ", 3)
		if len(words) != 3 || words[1] != "=" && words[1] != "-" {
			t.Errorf("%s: want a name, = or -, and Go names or a reason", where)
			continue
		}
		f(where, words[0], words[1], words[2])
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
}

// declarations returns the exported names of a package, methods as Type.Method.
func declarations(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("there is no package %s: %v", dir, err)
	}
	out := map[string]bool{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					recv := d.Recv.List[0].Type
					if star, ok := recv.(*ast.StarExpr); ok {
						recv = star.X
					}
					if generic, ok := recv.(*ast.IndexExpr); ok {
						recv = generic.X
					}
					if id, ok := recv.(*ast.Ident); ok {
						name = id.Name + "." + name
					}
				}
				out[name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						out[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							out[n.Name] = true
						}
					}
				}
			}
		}
	}
	return out
}

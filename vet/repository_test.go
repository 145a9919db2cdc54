package vet_test

import (
	"go/types"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"

	"github.com/linstock-ml/linstock/vet"
)

const module = "github.com/linstock-ml/linstock"

func load(t *testing.T, tests bool, patterns ...string) []*packages.Package {
	t.Helper()
	pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Tests: tests, Dir: ".."}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	var good []*packages.Package
	for _, p := range pkgs {
		for _, e := range p.Errors {
			t.Errorf("%s: %v", p.ID, e)
		}
		if !strings.HasSuffix(p.PkgPath, ".test") {
			good = append(good, p)
		}
	}
	if len(good) == 0 || t.Failed() {
		t.Fatalf("no packages for %v", patterns)
	}
	return good
}

// The repository is clean: the library, what is generated, the examples, and the tests but for those of tensor, which
// misuse lifetimes on purpose.
func TestRepository(t *testing.T) {
	checked := map[string]bool{}
	for _, p := range load(t, true, "./...") {
		if strings.HasPrefix(p.PkgPath, module+"/tensor") && p.ID != module+"/tensor" {
			continue
		}
		checked[strings.TrimPrefix(p.PkgPath, module)] = true
		for _, d := range diagnostics(t, vet.Analyzers(), p) {
			t.Error(d)
		}
	}
	for _, want := range []string{"/tensor", "/cshim", "/nn", "/nn_test", "/optim", "/data", "/data_test", "/autograd", "/checkpoint", "/examples/chargpt", "/examples/mnist", "/examples/serve"} {
		if !checked[want] {
			t.Errorf("%s was not checked", want)
		}
	}
}

// What the analyzers know by name is there, and no exported iterator that opens scopes is missing from the list.
func TestNames(t *testing.T) {
	var paths []string
	for _, p := range []string{"tensor", "nn", "optim", "data", "autograd", "checkpoint", "vram", "cshim"} {
		paths = append(paths, module+"/"+p)
	}
	pkgs := load(t, false, paths...)
	byName := map[string]*types.Package{}
	for _, p := range pkgs {
		byName[strings.TrimPrefix(p.PkgPath, module+"/")] = p.Types
	}
	for _, name := range vet.Names() {
		parts := strings.Split(name, ".")
		pkg := byName[parts[0]]
		if pkg == nil {
			t.Errorf("%s: no such package", name)
			continue
		}
		obj := pkg.Scope().Lookup(parts[1])
		if obj != nil && len(parts) == 3 {
			obj, _, _ = types.LookupFieldOrMethod(obj.Type(), true, pkg, parts[2])
		}
		if obj == nil {
			t.Errorf("%s does not exist", name)
		}
	}
	for _, missing := range diagnostics(t, []*analysis.Analyzer{vet.ScopedIterators}, pkgs...) {
		t.Errorf("scopedIterators lacks %s", missing)
	}
}

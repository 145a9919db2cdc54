package vet_test

import (
	"go/types"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"

	"github.com/linstock-ml/linstock/vet"
)

const module = "github.com/linstock-ml/linstock"

// repository holds all packages of the repository with their tests. Loading it takes most of the time of these tests.
var repository = sync.OnceValues(func() ([]*packages.Package, error) {
	return packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Tests: true, Dir: ".."}, "./...")
})

// load returns the packages of the repository that want selects by ID. Test variants have an ID of their own.
func load(t *testing.T, want func(id string) bool) []*packages.Package {
	t.Helper()
	pkgs, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	var good []*packages.Package
	for _, p := range pkgs {
		if strings.HasSuffix(p.PkgPath, ".test") || !want(p.ID) {
			continue
		}
		for _, e := range p.Errors {
			t.Errorf("%s: %v", p.ID, e)
		}
		good = append(good, p)
	}
	if len(good) == 0 || t.Failed() {
		t.Fatal("no packages")
	}
	return good
}

// TestRepository tests that there are no reports for the library, generated code, the examples and the tests.
func TestRepository(t *testing.T) {
	t.Parallel()
	checked := map[string]bool{}
	for _, p := range load(t, func(string) bool { return true }) {
		checked[strings.TrimPrefix(p.PkgPath, module)] = true
		for _, d := range diagnostics(t, vet.Analyzers(), p) {
			t.Error(d)
		}
	}
	for _, want := range []string{"/tensor", "/tensor_test", "/cshim", "/nn", "/nn_test", "/optim", "/data", "/data_test", "/distributions", "/distributions_test", "/autograd", "/checkpoint", "/examples/chargpt", "/examples/mnist", "/examples/serve"} {
		if !checked[want] {
			t.Errorf("%s was not checked", want)
		}
	}
}

// TestNames tests that every name that the analyzers know exists, and that their list of scoped iterators is complete.
func TestNames(t *testing.T) {
	t.Parallel()
	names := []string{"tensor", "nn", "optim", "data", "autograd", "checkpoint", "vram", "cshim"}
	pkgs := load(t, func(id string) bool { return slices.Contains(names, strings.TrimPrefix(id, module+"/")) })
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

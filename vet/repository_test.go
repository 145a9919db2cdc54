package vet_test

import (
	"go/token"
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

// library holds the packages that the analyzers know by name. Loading them takes most of the time of these tests.
var library = sync.OnceValues(func() ([]*packages.Package, error) {
	names := []string{"./tensor", "./nn", "./optim", "./data", "./autograd", "./checkpoint", "./vram", "./vram/plan", "./dist", "./dist/dcp", "./cshim"}
	return packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Dir: ".."}, names...)
})

// load returns the packages of library.
func load(t *testing.T) []*packages.Package {
	t.Helper()
	pkgs, err := library()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pkgs {
		for _, e := range p.Errors {
			t.Errorf("%s: %v", p.ID, e)
		}
	}
	if len(pkgs) == 0 || t.Failed() {
		t.Fatal("no packages")
	}
	return pkgs
}

// TestNames tests that every name that the analyzers know exists, and that their lists of scoped iterators and of functions
// that take modules are complete.
func TestNames(t *testing.T) {
	t.Parallel()
	pkgs := load(t)
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
	values := []string{"nn.String", "nn.IsParametrized", "checkpoint.SavePyTorch"} // their value need not be a module
	for _, path := range []string{"nn", "checkpoint", "dist", "dist/dcp", "vram/plan"} {
		scope := byName[path].Scope()
		for _, f := range scope.Names() {
			sig, ok := scope.Lookup(f).Type().(*types.Signature)
			if name := path + "." + f; ok && token.IsExported(f) && !slices.Contains(values, name) {
				want := slices.IndexFunc(slices.Collect(sig.Params().Variables()), func(p *types.Var) bool {
					return types.Identical(p.Type(), types.Universe.Lookup("any").Type())
				})
				if at, takes := vet.TakesModule(name); takes != (want >= 0) || takes && at != want {
					t.Errorf("takeModules has %v, %d for %s, whose parameter %d has any type", takes, at, name, want)
				}
			}
		}
	}
}

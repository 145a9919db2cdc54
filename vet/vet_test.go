package vet_test

import (
	"slices"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/linstock-ml/linstock/vet"
)

// TestAnalyzers runs each analyzer on its folder of testdata. All folders are loaded at once, which takes most of the
// time.
func TestAnalyzers(t *testing.T) {
	t.Parallel()
	if err := analysis.Validate(vet.Analyzers()); err != nil {
		t.Fatal(err)
	}
	cases := map[string]*analysis.Analyzer{
		module + "/tensor": vet.KeepAlive,
		"alive":            vet.KeepAlive,
		"alivecgo":         vet.KeepAlive,
		"escape":           vet.ScopeEscape,
		"scope":            vet.ScopeClose,
		"sink":             vet.SinkErr,
		"pull":             vet.IterPull,
		"module":           vet.Module,
		"reclaimers":       vet.ReclaimLock,
		"unused":           vet.UnusedResult,
		"layers":           vet.LayerContract,
	}
	each := &analysis.Analyzer{
		Name: "each", Doc: "run the analyzer whose cases a package has",
		Run: func(pass *analysis.Pass) (any, error) {
			one := *pass
			one.Analyzer = cases[pass.Pkg.Path()]
			return one.Analyzer.Run(&one)
		},
	}
	var pkgs []string
	for pkg, a := range cases {
		pkgs = append(pkgs, pkg)
		for _, r := range a.Requires {
			if !slices.Contains(each.Requires, r) {
				each.Requires = append(each.Requires, r)
			}
		}
	}
	slices.Sort(pkgs)
	analysistest.RunWithSuggestedFixes(t, analysistest.TestData(), each, pkgs...)
}

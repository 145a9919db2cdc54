package vet_test

import (
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/linstock-ml/linstock/vet"
)

func TestAnalyzers(t *testing.T) {
	if err := analysis.Validate(vet.Analyzers()); err != nil {
		t.Fatal(err)
	}
	for pkg, a := range map[string]*analysis.Analyzer{
		module + "/tensor": vet.KeepAlive,
		"alive":            vet.KeepAlive,
		"alivecgo":         vet.KeepAlive,
		"escape":           vet.ScopeEscape,
		"scope":            vet.ScopeClose,
		"sink":             vet.SinkErr,
		"pull":             vet.IterPull,
	} {
		t.Run(a.Name+"/"+pkg, func(t *testing.T) { analysistest.RunWithSuggestedFixes(t, analysistest.TestData(), a, pkg) })
	}
}

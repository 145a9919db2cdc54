package vet

import (
	"go/types"
	"maps"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// Names returns the names of all functions and types of the module that the analyzers know.
func Names() []string {
	all := map[name]bool{newScope: true, closeScope: true, adopt: true, replace: true, keep: true, moveOut: true, hook: true, handleOf: true,
		"autograd.Grad": true, "autograd.Apply": true, "autograd.Context": true, "checkpoint.File.Tensor": true, "data.Batch": true, "cshim.Handle": true, "cshim.Value": true}
	for _, m := range []map[name]bool{bodies, scopedIterators, notFresh, pinners, unpinners, primitives} {
		for n := range m {
			all[n] = true
		}
	}
	for n := range takeModules {
		all[n] = true
	}
	var names []string
	for _, n := range slices.Sorted(maps.Keys(all)) {
		names = append(names, string(n))
	}
	return names
}

// TakesModule returns the index of the parameter of a function that the analyzers know to be a module.
func TakesModule(n string) (at int, takes bool) {
	at, takes = takeModules[name(n)]
	return at, takes
}

// ScopedIterators reports functions of a package that return scoped iterators and are not in the analyzers' list.
var ScopedIterators = &analysis.Analyzer{
	Name:     "scopediterators",
	Doc:      "for a test",
	Requires: []*analysis.Analyzer{sourceAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		s := pass.ResultOf[sourceAnalyzer].(*source)
		for fn := range s.iters {
			if f := fn.Object(); f != nil && f.Exported() && !scopedIterators[nameOfSSA(fn)] {
				pass.Reportf(fn.Pos(), "%s", fn.Name())
			}
		}
		for listed := range scopedIterators {
			for _, fn := range s.fns {
				if nameOfSSA(fn) == listed && !s.iters[fn] {
					pass.Reportf(fn.Pos(), "the means to see that %s opens scopes", fn.Name())
				}
			}
		}
		return nil, nil
	},
}

func nameOfSSA(fn *ssa.Function) name {
	f, _ := fn.Object().(*types.Func)
	return nameOf(f)
}

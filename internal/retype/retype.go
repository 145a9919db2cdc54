// Package retype runs analyzers on packages with changed sources: mutants.
package retype

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/types"
	"maps"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"
)

// Package returns pkg, which was loaded with packages.LoadAllSyntax, with other sources for the given files. It ignores
// errors about unused variables and imports, which a mutant may leave.
func Package(pkg *packages.Package, sources map[string][]byte) (*packages.Package, error) {
	out := *pkg
	out.Syntax = slices.Clone(pkg.Syntax)
	for i, f := range pkg.Syntax {
		name := pkg.Fset.File(f.FileStart).Name()
		source, ok := sources[name]
		if !ok {
			continue
		}
		var err error
		if out.Syntax[i], err = parser.ParseFile(pkg.Fset, name, source, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return nil, err
		}
	}
	info := *pkg.TypesInfo
	info.Types, info.Defs, info.Uses = map[ast.Expr]types.TypeAndValue{}, map[*ast.Ident]types.Object{}, map[*ast.Ident]types.Object{}
	info.Implicits, info.Selections, info.Scopes = map[ast.Node]types.Object{}, map[*ast.SelectorExpr]*types.Selection{}, map[ast.Node]*types.Scope{}
	info.Instances, info.FileVersions, info.InitOrder = map[*ast.Ident]types.Instance{}, map[*ast.File]string{}, nil
	out.TypesInfo = &info
	imports := map[string]*types.Package{"unsafe": types.Unsafe}
	for path, p := range pkg.Imports {
		imports[path] = p.Types
	}
	var wrong error
	config := types.Config{Importer: importer(imports), Sizes: pkg.TypesSizes, Error: func(err error) {
		if wrong == nil && !strings.Contains(err.Error(), "declared and not used") && !strings.Contains(err.Error(), "imported and not used") {
			wrong = err
		}
	}}
	out.Types, _ = config.Check(pkg.PkgPath, pkg.Fset, out.Syntax, &info)
	return &out, wrong
}

type importer map[string]*types.Package

func (i importer) Import(path string) (*types.Package, error) {
	if p := i[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no package %s among %v", path, slices.Sorted(maps.Keys(i)))
}

// Run returns what the analyzers report.
func Run(as []*analysis.Analyzer, pkgs ...*packages.Package) (all []analysis.Diagnostic, err error) {
	graph, err := checker.Analyze(as, pkgs, &checker.Options{Sequential: true})
	if err != nil {
		return nil, err
	}
	for _, act := range graph.Roots {
		if act.Err != nil {
			return nil, fmt.Errorf("%v: %w", act, act.Err)
		}
		all = append(all, act.Diagnostics...)
	}
	return all, nil
}

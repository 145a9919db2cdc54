package lastuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

// ExplainOptions selects what Explain prints.
type ExplainOptions struct {
	Left   bool // only values that are left to scopes
	Tests  bool // include test files
	Source bool // print the rewritten sources instead
}

// Explain prints what the rewrite does with each value in the packages that match patterns. It returns when ctx ends, with
// the cause.
func Explain(ctx context.Context, w io.Writer, patterns []string, o ExplainOptions) error {
	pkgs, err := packages.Load(&packages.Config{Context: ctx, Mode: packages.LoadAllSyntax, Tests: o.Tests}, patterns...)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if packages.PrintErrors(pkgs) > 0 {
		return errors.New("the packages have errors")
	}
	named := map[*packages.Package]bool{}
	for _, p := range pkgs {
		named[p] = true
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	printed := map[string]bool{}
	facts := map[*packages.Package]Facts{} // including those of the imports
	var failed error
	packages.Visit(pkgs, nil, func(pkg *packages.Package) {
		if ctx.Err() != nil {
			failed = context.Cause(ctx)
			return
		}
		all, sees := Facts{}, false
		importsTensor := false
		for path, dep := range pkg.Imports {
			if Core(dep.PkgPath) {
				sees = true
			}
			importsTensor = importsTensor || path == tensorPath
			for name, f := range facts[dep] {
				all[name] = f
				sees = true
			}
			if facts[dep] != nil {
				sees = true
			}
		}
		if !sees || Core(pkg.PkgPath) || failed != nil {
			return
		}
		p := &Package{Fset: pkg.Fset, Types: pkg.Types, Info: pkg.TypesInfo, Imports: all}
		for _, f := range pkg.Syntax {
			src, err := os.ReadFile(pkg.Fset.File(f.FileStart).Name())
			if err != nil {
				failed = err
				return
			}
			p.Files, p.Sources = append(p.Files, f), append(p.Sources, src)
		}
		for name, f := range p.Analyze() {
			all[name] = f
		}
		facts[pkg] = all
		if !named[pkg] {
			return
		}
		sources, notes := p.Rewrite(importsTensor)
		if o.Source {
			for i, src := range sources {
				if src != nil {
					fmt.Fprintf(w, "-- %s --\n%s", shorten(dir, pkg.Fset.File(p.Files[i].FileStart).Name()), src)
				}
			}
			return
		}
		for _, n := range notes {
			if o.Left && n.Released {
				continue
			}
			at := pkg.Fset.Position(n.Pos)
			line := fmt.Sprintf("%s:%d:%d: %s\n", shorten(dir, at.Filename), at.Line, at.Column, n)
			if !printed[line] {
				printed[line] = true
				fmt.Fprint(w, line)
			}
		}
	})
	return failed
}

func shorten(dir, file string) string {
	if rel, err := filepath.Rel(dir, file); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return file
}

package main

import (
	"fmt"
	"path/filepath"

	"golang.org/x/tools/go/packages"

	"github.com/linstock-ml/linstock/internal/retype"
	"github.com/linstock-ml/linstock/vet"
)

// analyze runs the analyzers of lifetimes on each mutant that no test has detected.
func (r *runner) analyze(results []result) error {
	loaded := map[string]*packages.Package{}
	for i := range results {
		m := &results[i]
		if m.dynamic || len(m.removed) == 0 {
			continue
		}
		pkg := loaded[m.pkg]
		if pkg == nil {
			progress("loading %s for the analyzers", m.pkg)
			pkgs, err := packages.Load(&packages.Config{Mode: packages.LoadAllSyntax, Dir: r.b.root}, "./"+m.pkg)
			if err != nil {
				return err
			}
			pkg, loaded[m.pkg] = pkgs[0], pkgs[0]
			if got, err := retype.Run(vet.Analyzers(), pkg); err != nil || len(got) != 0 {
				return fmt.Errorf("linstockvet of %s itself: %v, %v", m.pkg, got, err)
			}
		}
		name := filepath.Join(r.b.root, m.file)
		source := r.b.c.source(m.file)
		mutated, err := retype.Package(pkg, map[string][]byte{name: apply(source, m.removed)})
		if err != nil {
			return fmt.Errorf("%s: %w", m.key, err)
		}
		got, err := retype.Run(vet.Analyzers(), mutated)
		if err != nil {
			return fmt.Errorf("%s: %w", m.key, err)
		}
		if len(got) != 0 {
			m.static, m.by = true, "linstockvet: "+got[0].Message
		}
	}
	return nil
}

func (c *collector) source(name string) []byte {
	for _, f := range c.files {
		if f.name == name {
			return f.source
		}
	}
	return nil
}

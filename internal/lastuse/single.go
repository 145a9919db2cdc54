package lastuse

import (
	"fmt"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"sync"

	"golang.org/x/tools/go/packages"
)

// fault is a deliberate fault of the rewrite, which tests must detect.
type fault int

const (
	noFault        fault = iota
	forgetLinks          // places that may hold the same handle are not compared
	forgetEscapes        // a handle that escapes stays owned
	forgetFlags          // maybe owned counts as owned
	forgetHeaders        // a slice is not read by the loop over it
	forgetResults        // a result is always new
	forgetCaptures       // a function literal reads nothing
	forgetReturns        // a return statement reads nothing
	forgetAssigned       // the new handle of a place is not compared with the old
	forgetTwins          // two results are never the same handle
	forgetNames          // a name refers to the place in every scope
	forgetUnless         // a temporary is never the handle of a variable
	forgetBlanks         // a result that is assigned to _ is always new
	forgetFields         // the handle in a field is always new
	forgetSiblings       // a field that is assigned is not compared with the other fields
	forgetElements       // a release does not compare with the elements of slices
	forgetArrays         // two slices never share an array
	faults
)

var faultNames = [...]string{"", "links", "escapes", "flags", "headers", "results", "captures", "returns", "assigned", "twins", "names", "unless", "blanks", "fields", "siblings", "elements", "arrays"}

// Faults are the names of the faults that RewriteFile accepts.
func Faults() []string { return faultNames[1:] }

var imports struct {
	sync.Once
	packages map[string]*types.Package
	err      error
}

type loaded map[string]*types.Package

func (l loaded) Import(path string) (*types.Package, error) {
	if p := l[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no package %q", path)
}

// RewriteFile rewrites a package that consists of one file and imports only the library and a few standard
// packages. Tests of the rewrite use it. name is the file's name; fault is one of Faults or "". It also returns
// the number of inserted releases.
func RewriteFile(name string, src []byte, fault string) ([]byte, int, error) {
	imports.Do(func() {
		pkgs, err := packages.Load(&packages.Config{Mode: packages.NeedTypes | packages.NeedImports | packages.NeedDeps | packages.NeedName},
			tensorPath, Module+"/nn", Module+"/autograd", Module+"/vram", "fmt", "errors", "strings")
		imports.err = err
		imports.packages = map[string]*types.Package{}
		packages.Visit(pkgs, nil, func(p *packages.Package) { imports.packages[p.PkgPath] = p.Types })
	})
	if imports.err != nil {
		return nil, 0, imports.err
	}
	p := &Package{Fset: token.NewFileSet(), Info: NewInfo(), Sources: [][]byte{src}, Imports: Facts{}}
	at := slices.Index(faultNames[:], fault)
	if at < 0 {
		return nil, 0, fmt.Errorf("no fault %q", fault)
	}
	p.fault = faultOf(at)
	f, err := parser.ParseFile(p.Fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, 0, err
	}
	p.Files = append(p.Files, f)
	conf := types.Config{Importer: loaded(imports.packages)}
	if p.Types, err = conf.Check("example.com/generated", p.Fset, p.Files, p.Info); err != nil {
		return nil, 0, err
	}
	p.Analyze()
	sources, notes := p.Rewrite(true)
	releases := 0
	for _, n := range notes {
		if n.Released {
			releases++
		}
	}
	if sources[0] == nil {
		return src, releases, nil
	}
	return sources[0], releases, nil
}

func faultOf(i int) fault { return fault(i) }

package vet

import (
	"os"

	"golang.org/x/tools/go/analysis"

	"github.com/linstock-ml/linstock/internal/lastuse"
)

// LayerContract reports layers that keep their argument or return a tensor that they keep.
var LayerContract = &analysis.Analyzer{
	Name: "layercontract",
	Doc: `report layers that keep their argument or return a tensor that they keep

The contract of nn.Layer: Forward borrows its argument, and returns a new tensor or
its argument. "linstock go" releases tensors by it, so that a layer which breaks it
makes a later use fail with ErrReleased. Reported is a method Forward that stores its
argument in the layer or a package variable, sends it, gives it to a goroutine, or
returns a tensor from a field of the layer or a package variable. Alias makes a handle that may be kept or returned.`,
	Run: func(pass *analysis.Pass) (any, error) {
		if !uses(pass.Pkg) {
			return nil, nil
		}
		p := &lastuse.Package{Fset: pass.Fset, Types: pass.Pkg, Info: pass.TypesInfo}
		for _, f := range pass.Files {
			src, err := os.ReadFile(pass.Fset.File(f.FileStart).Name())
			if err != nil {
				return nil, err
			}
			p.Files, p.Sources = append(p.Files, f), append(p.Sources, src)
		}
		p.Analyze()
		for _, b := range p.Breaches() {
			message := "Forward keeps its argument (" + b.What + "), which a layer only borrows; keep x.Alias() instead"
			if b.Returned {
				message = "Forward returns the tensor in " + b.What + ", which the layer keeps; a layer returns a new tensor or its argument: return its Alias() instead"
			}
			report(pass, analysis.Diagnostic{Pos: b.Pos, Message: message})
		}
		return nil, nil
	},
}

package vet

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// UnusedResult reports calls of operators, and of constructors and wrappers of layers, whose result is not used.
var UnusedResult = &analysis.Analyzer{
	Name: "unusedresult",
	Doc: `report results of operators that are not used

Operators return a new tensor; those whose name ends in an underscore write into their
receiver. "x.Add(y)" alone has no effect; "x.Add_(y)" or "x = x.Add(y)" was meant. The
analyzer reports call statements, also with go and defer, of the methods of tensors and
of the functions of packages tensor and nn that return tensors. "_ = x.Add(y)" is
deliberate and allowed.

It also reports functions of package nn that return a layer: "nn.WeightNorm(l, "weight")"
alone leaves a layer without its weight; "m.L = nn.WeightNorm(l, "weight")" was meant.`,
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		if !uses(pass.Pkg) {
			return nil, nil
		}
		in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
		in.Preorder([]ast.Node{(*ast.ExprStmt)(nil), (*ast.GoStmt)(nil), (*ast.DeferStmt)(nil)}, func(n ast.Node) {
			var e ast.Expr
			switch n := n.(type) {
			case *ast.ExprStmt:
				e = n.X
			case *ast.GoStmt:
				e = n.Call
			case *ast.DeferStmt:
				e = n.Call
			}
			call, ok := ast.Unparen(e).(*ast.CallExpr)
			if !ok {
				return
			}
			f, _ := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
			if f == nil || !operator(f) {
				return
			}
			message := "the result of " + label(f) + " is not used"
			if inPlace := sibling(f); inPlace != "" {
				message += "; " + inPlace + " writes into the receiver"
			}
			if wraps(f) {
				message += "; it takes the place of the layer"
			}
			report(pass, analysis.Diagnostic{Pos: call.Pos(), End: call.End(), Message: message})
		})
		return nil, nil
	},
}

// effects lists functions that return a tensor but are called for their effect.
var effects = map[name]bool{keep: true, moveOut: true, "tensor.Tidy": true, "nn.NewParameter": true}

// operator reports whether f is an operator, or another function of the library, that only makes tensors or layers.
// Sinkerr checks those that also return an error.
func operator(f *types.Func) bool {
	pkg, in := packageOf(f.Pkg())
	if !in || pkg != "tensor" && pkg != "nn" || !f.Exported() || strings.HasSuffix(f.Name(), "_") || effects[nameOf(f)] {
		return false
	}
	if recv := f.Signature().Recv(); recv != nil && !isTensor(recv.Type()) {
		return false
	}
	results := f.Signature().Results()
	if results.Len() == 0 {
		return false
	}
	for v := range results.Variables() {
		if !holdsTensors(v.Type()) && !ofNN(v.Type()) {
			return false
		}
	}
	return true
}

// ofNN reports whether t is a pointer to a type of package nn.
func ofNN(t types.Type) bool {
	_, pointer := types.Unalias(t).(*types.Pointer)
	n := namedOf(t)
	if !pointer || n == nil {
		return false
	}
	pkg, in := packageOf(n.Obj().Pkg())
	return in && pkg == "nn"
}

// wraps reports whether f makes a layer around another one.
func wraps(f *types.Func) bool {
	params, results := f.Signature().Params(), f.Signature().Results()
	return params.Len() > 0 && is(params.At(0).Type(), "nn", "Layer") && results.Len() == 1 && ofNN(results.At(0).Type())
}

// sibling returns the method that does in place what f does, or "" if there is none.
func sibling(f *types.Func) string {
	recv := f.Signature().Recv()
	if recv == nil {
		return ""
	}
	if m, _, _ := types.LookupFieldOrMethod(recv.Type(), true, f.Pkg(), f.Name()+"_"); m != nil {
		return m.Name()
	}
	return ""
}

package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// SinkErr reports errors of the library that are not read.
var SinkErr = &analysis.Analyzer{
	Name: "sinkerr",
	Doc: `report errors of Linstock that are dropped

Operators pass errors on from tensor to tensor; functions such as Item, Data, Backward,
Step and Save return them. The analyzer reports a call whose error is not used, a value
whose error is assigned to _, and a loop over a loader's batches without the error
variable. "_ = f()" is deliberate and allowed, and so is a deferred Close.`,
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		if !uses(pass.Pkg) {
			return nil, nil
		}
		in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
		kinds := []ast.Node{(*ast.ExprStmt)(nil), (*ast.GoStmt)(nil), (*ast.DeferStmt)(nil), (*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil), (*ast.RangeStmt)(nil)}
		in.WithStack(kinds, func(n ast.Node, push bool, stack []ast.Node) bool {
			if !push {
				return true
			}
			switch n := n.(type) {
			case *ast.ExprStmt:
				if call, f := sink(pass, n.X); f != nil {
					dropped(pass, call, f, handled(pass, n, call, f, stack))
				}
			case *ast.GoStmt:
				if call, f := sink(pass, n.Call); f != nil {
					dropped(pass, call, f, nil)
				}
			case *ast.DeferStmt:
				if call, f := sink(pass, n.Call); f != nil && f.Name() != "Close" {
					dropped(pass, call, f, nil)
				}
			case *ast.AssignStmt:
				if len(n.Rhs) == 1 && len(n.Lhs) > 1 {
					blank(pass, n.Rhs[0], n.Lhs)
				}
			case *ast.ValueSpec:
				if len(n.Values) == 1 && len(n.Names) > 1 {
					var lhs []ast.Expr
					for _, name := range n.Names {
						lhs = append(lhs, name)
					}
					blank(pass, n.Values[0], lhs)
				}
			case *ast.RangeStmt:
				call, ok := ast.Unparen(n.X).(*ast.CallExpr)
				if !ok || n.Value != nil && !isBlank(n.Value) {
					break
				}
				if f := typeutil.StaticCallee(pass.TypesInfo, call); f != nil && scopedIterators[nameOf(f)] {
					report(pass, analysis.Diagnostic{Pos: n.X.Pos(), End: n.X.End(), Message: "the error of " + f.Name() + " is dropped: " +
						"it ends the loop, and reports the errors of operators in the body"})
				}
			}
			return true
		})
		return nil, nil
	},
}

// sink returns the call of an exported function of the library whose last result is an error.
func sink(pass *analysis.Pass, e ast.Expr) (*ast.CallExpr, *types.Func) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return nil, nil
	}
	f, _ := typeutil.Callee(pass.TypesInfo, call).(*types.Func)
	if f == nil || !f.Exported() || !librarys(f) {
		return nil, nil
	}
	results := f.Signature().Results()
	if n := results.Len(); n == 0 || !types.Identical(results.At(n-1).Type(), types.Universe.Lookup("error").Type()) {
		return nil, nil
	}
	return call, f
}

// library lists the packages of the module whose errors are checked.
var library = map[string]bool{"tensor": true, "autograd": true, "nn": true, "optim": true, "data": true, "checkpoint": true, "vram": true,
	"distributions": true, "distributions/constraints": true, "dist": true, "dist/dcp": true, "profiler": true, "serve": true, "cuda": true,
	"vram/plan": true, "vram/pprof": true}

func librarys(f *types.Func) bool {
	pkg, in := packageOf(f.Pkg())
	return in && library[pkg]
}

func label(f *types.Func) string {
	n := string(nameOf(f))
	if recv := f.Signature().Recv(); recv != nil || n == "" {
		return f.Name()
	}
	return n
}

func dropped(pass *analysis.Pass, call *ast.CallExpr, f *types.Func, fixes []analysis.SuggestedFix) {
	report(pass, analysis.Diagnostic{Pos: call.Pos(), End: call.End(), Message: "the error of " + label(f) + " is dropped", SuggestedFixes: fixes})
}

// blank reports an error that is assigned to _ while another result is used. Assigning all results to _ is deliberate.
func blank(pass *analysis.Pass, rhs ast.Expr, lhs []ast.Expr) {
	call, f := sink(pass, rhs)
	if f == nil || len(lhs) != f.Signature().Results().Len() || !isBlank(lhs[len(lhs)-1]) {
		return
	}
	for _, l := range lhs[:len(lhs)-1] {
		if !isBlank(l) {
			report(pass, analysis.Diagnostic{Pos: lhs[len(lhs)-1].Pos(), End: call.End(), Message: "the error of " + label(f) +
				" is dropped: " + types.ExprString(l) + " is valid only if it is nil"})
			return
		}
	}
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// handled returns a fix that returns the error, if the enclosing function returns only an error.
func handled(pass *analysis.Pass, stmt *ast.ExprStmt, call *ast.CallExpr, f *types.Func, stack []ast.Node) []analysis.SuggestedFix {
	if f.Signature().Results().Len() != 1 {
		return nil
	}
	var results *ast.FieldList
	for _, n := range stack {
		switch n := n.(type) {
		case *ast.FuncDecl:
			results = n.Type.Results
		case *ast.FuncLit:
			results = n.Type.Results
		}
	}
	if results == nil || results.NumFields() != 1 || !types.Identical(pass.TypesInfo.TypeOf(results.List[0].Type), types.Universe.Lookup("error").Type()) {
		return nil
	}
	indent := strings.Repeat("\t", max(0, pass.Fset.Position(stmt.Pos()).Column-1))
	return []analysis.SuggestedFix{{Message: "return the error", TextEdits: []analysis.TextEdit{
		{Pos: call.Pos(), End: token.NoPos, NewText: []byte("if err := ")},
		{Pos: call.End(), End: token.NoPos, NewText: []byte("; err != nil {\n" + indent + "\treturn err\n" + indent + "}")},
	}}}
}

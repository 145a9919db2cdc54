package vet

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// ReclaimLock reports reclaimers that lock a mutex.
var ReclaimLock = &analysis.Analyzer{
	Name: "reclaimlock",
	Doc: `report functions of a vram.Reclaimer that lock a mutex

Reclaim and Prepare are called while a goroutine waits for memory. If that goroutine, or
one that it waits for, holds the mutex, the call cannot return: the sweep continues
without it after a second, and the allocation fails. TryLock is allowed.

The analyzer reports each Lock and RLock of package sync in a function of a
vram.Reclaimer, and in the functions of the same package that it calls.`,
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
		r := reclaimLocks{pass: pass, bodies: map[*types.Func]*ast.BlockStmt{}, seen: map[*ast.BlockStmt]bool{}}
		in.Preorder([]ast.Node{(*ast.FuncDecl)(nil)}, func(n ast.Node) {
			d := n.(*ast.FuncDecl)
			if f, ok := pass.TypesInfo.Defs[d.Name].(*types.Func); ok && d.Body != nil {
				r.bodies[f] = d.Body
			}
		})
		in.Preorder([]ast.Node{(*ast.CompositeLit)(nil), (*ast.AssignStmt)(nil)}, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.CompositeLit:
				for i, e := range n.Elts {
					field, value := setField(pass, n, i, e)
					r.given(field, value)
				}
			case *ast.AssignStmt:
				if len(n.Lhs) != len(n.Rhs) {
					return
				}
				for i, l := range n.Lhs {
					if s, ok := ast.Unparen(l).(*ast.SelectorExpr); ok && isReclaimer(pass.TypesInfo.TypeOf(s.X)) {
						r.given(s.Sel.Name, n.Rhs[i])
					}
				}
			}
		})
		return nil, nil
	},
}

// setField returns the field of a vram.Reclaimer that element i of a literal sets, or "" for other types.
func setField(pass *analysis.Pass, lit *ast.CompositeLit, i int, e ast.Expr) (field string, value ast.Expr) {
	t := pass.TypesInfo.TypeOf(lit)
	if !isReclaimer(t) {
		return "", nil
	}
	if kv, ok := e.(*ast.KeyValueExpr); ok {
		if id, ok := kv.Key.(*ast.Ident); ok {
			return id.Name, kv.Value
		}
		return "", nil
	}
	return namedOf(t).Underlying().(*types.Struct).Field(i).Name(), e
}

func isReclaimer(t types.Type) bool {
	if t == nil {
		return false
	}
	n := namedOf(t)
	if n == nil || n.Obj().Name() != "Reclaimer" || n.Obj().Pkg() == nil {
		return false
	}
	pkg, in := packageOf(n.Obj().Pkg())
	return in && pkg == "vram"
}

type reclaimLocks struct {
	pass   *analysis.Pass
	bodies map[*types.Func]*ast.BlockStmt // of the package
	seen   map[*ast.BlockStmt]bool
}

// given checks the value that a field is set to.
func (r *reclaimLocks) given(field string, value ast.Expr) {
	if field != "Reclaim" && field != "Prepare" {
		return
	}
	switch v := ast.Unparen(value).(type) {
	case *ast.FuncLit:
		r.look(field, v.Body)
	case *ast.Ident:
		r.function(field, r.pass.TypesInfo.Uses[v])
	case *ast.SelectorExpr:
		r.function(field, r.pass.TypesInfo.Uses[v.Sel])
	}
}

func (r *reclaimLocks) function(field string, o types.Object) {
	if f, ok := o.(*types.Func); ok {
		r.look(field, r.bodies[f.Origin()])
	}
}

// look reports locks in a body and in the functions of the package that it calls. It skips go statements, because the
// reclaimer does not wait for them.
func (r *reclaimLocks) look(field string, body *ast.BlockStmt) {
	if body == nil || r.seen[body] {
		return
	}
	r.seen[body] = true
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.GoStmt); ok {
			return false
		}
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f, _ := typeutil.Callee(r.pass.TypesInfo, call).(*types.Func)
		if f == nil || f.Pkg() == nil {
			return true
		}
		if f.Pkg().Path() == "sync" && (f.Name() == "Lock" || f.Name() == "RLock") {
			report(r.pass, analysis.Diagnostic{Pos: call.Pos(), End: call.End(), Message: field + " of a vram.Reclaimer locks a mutex: " +
				"a goroutine that holds the mutex and allocates waits for this call; use TryLock, and return if it fails"})
			return true
		}
		r.function(field, f)
		return true
	})
}

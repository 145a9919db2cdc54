package lastuse

import (
	"go/ast"
	"go/types"
	"slices"
)

// callee returns the facts of the called function, or nil.
func (p *Package) callee(b *body, call *ast.CallExpr) *Func {
	if lit := p.literal(b, call.Fun); lit != nil {
		return p.factsOfLiteral(lit)
	}
	if fn, _ := p.declared(call.Fun); fn != nil {
		return p.resolved(b, p.factsOf(fn), call)
	}
	return nil
}

// literal returns the function literal that f is, or that the variable f holds, or nil.
func (p *Package) literal(b *body, f ast.Expr) *ast.FuncLit {
	switch f := ast.Unparen(f).(type) {
	case *ast.FuncLit:
		return f
	case *ast.Ident:
		if v, ok := p.Info.Uses[f].(*types.Var); ok && b != nil {
			if pl := b.byVar[v]; pl != nil && pl.kind == closure {
				return pl.lit
			}
		}
	}
	return nil
}

// declared returns the function or method that f names, or nil, and whether f has its receiver.
func (p *Package) declared(f ast.Expr) (fn *types.Func, bound bool) {
	f = ast.Unparen(f)
	switch i := f.(type) {
	case *ast.IndexExpr:
		f = i.X
	case *ast.IndexListExpr:
		f = i.X
	}
	switch f := f.(type) {
	case *ast.Ident:
		fn, _ = p.Info.Uses[f].(*types.Func)
	case *ast.SelectorExpr:
		sel, ok := p.Info.Selections[f]
		if !ok {
			fn, _ = p.Info.Uses[f.Sel].(*types.Func)
			return fn, false
		}
		if _, param := types.Unalias(sel.Recv()).(*types.TypeParam); param || sel.Kind() != types.MethodVal {
			return nil, false
		}
		fn, bound = sel.Obj().(*types.Func)
	}
	return fn, bound
}

// factsOfValue returns the facts of the function that f is, or nil. If f is a method value, its receiver is not a
// parameter.
func (p *Package) factsOfValue(b *body, f ast.Expr) *Func {
	if lit := p.literal(b, f); lit != nil {
		return p.factsOfLiteral(lit)
	}
	fn, bound := p.declared(f)
	if fn == nil {
		return nil
	}
	fact := p.factsOf(fn)
	if fact == nil || !bound {
		return fact
	}
	g := &Func{Retains: fact.Retains[1:], Results: make([]Result, len(fact.Results))}
	for i, r := range fact.Results {
		g.Results[i] = Result{Other: r.Other || slices.Contains(r.From, 0), Old: r.Old}
		for _, k := range r.From {
			if k > 0 {
				g.Results[i].addFrom(k - 1)
			}
		}
	}
	return g
}

// resolved returns f, with the results of the call's function argument if f says that the results are those.
func (p *Package) resolved(b *body, f *Func, call *ast.CallExpr) *Func {
	if f == nil || !f.resultsOfArg || len(call.Args) == 0 {
		return f
	}
	g := *f
	g.Results = make([]Result, len(f.Results))
	g.Retains = slices.Clone(f.Retains)
	arg := call.Args[len(call.Args)-1]
	if f.calledWith {
		arg = call.Args[0]
	}
	known := p.factsOfValue(b, arg)
	for i := range g.Results {
		g.Results[i] = Result{Other: true}
		if known != nil {
			g.Results[i] = known.result(i)
		}
		if f.calledWith && (known == nil || len(g.Results[i].From) > 0) {
			g.Results[i].From = []int{len(f.Retains) - 1} // its parameters are the call's other arguments
		}
	}
	if f.calledWith && (known == nil || slices.Contains(known.Retains, true)) {
		g.Retains[len(g.Retains)-1] = true
	}
	return &g
}

// index returns the index of e among the parameters of the called function; the receiver is the first.
func (p *Package) index(call *ast.CallExpr, e ast.Expr) int {
	recv := 0
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		if s, ok := p.Info.Selections[sel]; ok && s.Kind() == types.MethodVal {
			if sel.X == e {
				return 0
			}
			recv = 1
		}
	}
	for i, a := range call.Args {
		if a == e {
			return recv + i
		}
	}
	return -1
}

package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// argument returns the val of what a call passes for a parameter of its facts. With extended, the result of the call may be
// a slice argument to which it has appended.
func (b *body) argument(call *ast.CallExpr, fact *Func, i int, extended bool) (v val) {
	add := func(e ast.Expr) {
		w := b.val(e)
		if extended && b.unknown(e) {
			w.appended, w.unknown = true, true
		}
		v.add(w)
	}
	last := len(fact.Retains) - 1 // stands for all further arguments
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		if s, ok := b.pkg.Info.Selections[sel]; ok && s.Kind() == types.MethodVal {
			if i == 0 {
				add(sel.X)
				return v
			}
			i, last = i-1, last-1
		}
	}
	if len(call.Args) == 1 {
		if all, ok := b.pkg.Info.TypeOf(call.Args[0]).(*types.Tuple); ok { // f(g())
			for k := i; k < all.Len() && (k == i || i == last); k++ {
				w := b.resultVal(call.Args[0], k)
				w.unknown = extended && w.other && b.pkg.maySlice(all.At(k).Type())
				w.appended = w.appended || w.unknown
				v.add(w)
			}
			return v
		}
	}
	for k := i; k < len(call.Args) && (k == i || i == last); k++ {
		add(call.Args[k])
	}
	return v
}

// resultVal returns the val of e, or if e has several values of the k-th.
func (b *body) resultVal(e ast.Expr, k int) val {
	if _, several := b.pkg.Info.TypeOf(e).(*types.Tuple); !several {
		return b.val(e)
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		return b.callVal(e, k)
	case *ast.TypeAssertExpr:
		if k == 0 {
			return b.val(e)
		}
	}
	return val{other: true}
}

// val describes where the handles in an expression's value come from.
type val struct {
	other    bool // other handles
	fresh    bool // new handles, made by a call
	appended bool // they may be in the array of a slice that append extended
	unknown  bool // with appended: that array may be one of which no place is known
	places   []*place
}

func (v *val) add(w val) {
	v.other = v.other || w.other
	v.fresh = v.fresh || w.fresh
	v.appended = v.appended || w.appended
	v.unknown = v.unknown || w.unknown
	v.places = append(v.places, w.places...)
}

func (b *body) val(e ast.Expr) val {
	e = ast.Unparen(e)
	p := b.pkg
	if tv, ok := p.Info.Types[e]; ok && (tv.IsNil() || tv.Value != nil) {
		return val{}
	}
	switch e := e.(type) {
	case *ast.Ident:
		if pl := b.placeOf(e); pl != nil {
			return val{places: []*place{pl}}
		}
	case *ast.CallExpr:
		if tv, ok := p.Info.Types[e.Fun]; ok && tv.IsType() {
			return b.val(e.Args[0])
		}
		switch p.builtin(e) {
		case "":
			return b.callVal(e, 0)
		case "append":
			v := val{unknown: b.unknown(e.Args[0])}
			if _, literal := ast.Unparen(e.Args[0]).(*ast.CompositeLit); !literal { // that is a new array
				first := b.resultVal(e.Args[0], 0)
				v.unknown = v.unknown || first.other && !b.single(e.Args[0])
				v.appended = v.unknown || slices.ContainsFunc(first.places, func(pl *place) bool { return pl.kind != oneTensor })
			}
			for _, a := range e.Args {
				if all, ok := p.Info.TypeOf(a).(*types.Tuple); ok {
					for k := range all.Len() {
						v.add(b.resultVal(a, k))
					}
					continue
				}
				v.add(b.val(a))
			}
			return v
		case "make":
			// A function that borrows the slice may put new handles into it.
			n, is := p.Info.Types[e.Args[min(1, len(e.Args)-1)]]
			return val{fresh: is && len(e.Args) > 1 && (n.Value == nil || n.Value.ExactString() != "0")}
		case "len", "cap":
			return val{}
		}
	case *ast.IndexExpr, *ast.SelectorExpr:
		if pl := b.base(e); pl != nil {
			if pl.kind == structure && p.fault == forgetFields {
				return val{fresh: true}
			}
			return val{places: []*place{pl}}
		}
		if x := operandOf(e); p.holds(p.Info.TypeOf(x)) { // a part of a value that is followed
			if sel, field := e.(*ast.SelectorExpr); !field || p.isField(sel) {
				return b.val(x)
			}
		}
	case *ast.SliceExpr:
		return b.val(e.X)
	case *ast.TypeAssertExpr:
		return b.val(e.X)
	case *ast.CompositeLit:
		if t := p.Info.TypeOf(e); p.holds(t) {
			v := val{}
			if _, param := types.Unalias(t).(*types.TypeParam); param {
				v.other = len(e.Elts) > 0
			}
			for _, x := range e.Elts {
				if !p.element(e, x) {
					continue
				}
				if kv, ok := x.(*ast.KeyValueExpr); ok {
					x = kv.Value
				}
				v.add(b.val(x))
			}
			return v
		}
	case *ast.FuncLit:
		return val{places: b.captures[e]}
	case *ast.UnaryExpr:
		if _, literal := ast.Unparen(e.X).(*ast.CompositeLit); literal && e.Op == token.AND && isTensor(p.Info.TypeOf(e)) {
			return val{fresh: true}
		}
	}
	if t := p.Info.TypeOf(e); t != nil {
		if basic, ok := t.Underlying().(*types.Basic); ok && basic.Kind() != types.UnsafePointer && basic.Kind() != types.Uintptr {
			return val{} // it cannot be converted to a handle
		}
	}
	return val{other: true}
}

// callVal returns the val of a call's k-th result.
func (b *body) callVal(call *ast.CallExpr, k int) val {
	fact := b.pkg.callee(b, call)
	if fact == nil {
		return val{other: true}
	}
	r := fact.result(k)
	v := val{other: r.Other, fresh: !r.Old}
	if b.pkg.fault == forgetResults {
		return val{fresh: true}
	}
	slices := b.pkg.maySlice(b.resultType(call, k))
	for _, i := range r.From {
		v.add(b.argument(call, fact, i, slices))
	}
	// The function may have appended to a slice argument and returned it.
	for _, pl := range v.places {
		if pl.kind != oneTensor && slices {
			v.appended = true
		}
	}
	return v
}

// unknown reports whether e may be a slice, or hold one, whose array no place is known to hold.
func (b *body) unknown(e ast.Expr) bool {
	e = ast.Unparen(e)
	if !b.pkg.maySlice(b.pkg.Info.TypeOf(e)) {
		return false
	}
	switch e := e.(type) {
	case *ast.CallExpr:
		if b.pkg.builtin(e) == "append" {
			return b.val(e).unknown
		}
	case *ast.CompositeLit: // a new array
		return slices.ContainsFunc(e.Elts, func(x ast.Expr) bool {
			if kv, ok := x.(*ast.KeyValueExpr); ok {
				x = kv.Value
			}
			return b.unknown(x)
		})
	case *ast.SliceExpr:
		if b.pkg.maySlice(b.pkg.Info.TypeOf(e.X)) {
			return b.unknown(e.X)
		}
	}
	return b.val(e).other
}

// maySlice reports whether a value of type t may be a slice of handles, or hold one.
func (p *Package) maySlice(t types.Type) bool {
	return isTensors(t) || carries(t) || p.isStruct(t) && p.hasSlices(t)
}

// resultType returns the type of a call's k-th result.
func (b *body) resultType(call *ast.CallExpr, k int) types.Type {
	t := b.pkg.Info.TypeOf(call)
	if tuple, ok := t.(*types.Tuple); ok {
		return tuple.At(k).Type()
	}
	return t
}

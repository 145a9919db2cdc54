package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// ScopeEscape reports tensors that are stored where they outlive their scope.
var ScopeEscape = &analysis.Analyzer{
	Name: "scopeescape",
	Doc: `report tensors that leave their scope without Keep or MoveOut

A tensor that is made in a scope (in tensor.WithScope, tensor.Tidy, the body of a loop
over loader.Batches, or between tensor.NewScope and Close) is freed when the scope
closes. The analyzer reports such a tensor, or a list, map or struct that holds
one, if it is stored in a variable or field from outside the scope, sent to a channel
from outside, or returned, and Keep, MoveOut, Adopt or Replace is not called on it.`,
	Requires: []*analysis.Analyzer{sourceAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		s := pass.ResultOf[sourceAnalyzer].(*source)
		summaries := map[*ssa.Function][]bool{}
		for _, fn := range s.fns {
			said := map[token.Pos]bool{}
			if kind := s.body[fn]; kind != noBody {
				r := &region{pass: pass, src: s, base: fn, kind: kind, summaries: summaries, said: said}
				r.collect(fn)
				r.check()
			}
			// What runs in a scope can open another one.
			if r := (&region{pass: pass, src: s, base: fn, summaries: summaries, said: said}); r.opened() {
				r.collect(fn)
				r.check()
			}
		}
		return nil, nil
	},
}

// region is the code that runs in one scope: a function, and its literals that no inner scope runs.
type region struct {
	pass      *analysis.Pass
	src       *source
	base      *ssa.Function
	kind      bodyKind
	open      *opening               // where base opens it; nil for the body of WithScope and the like
	literals  map[*ssa.Function]bool // whether the literals of base run while it is open
	fns       []*ssa.Function
	kept      map[ssa.Value]bool
	fresh     map[ssa.Value]bool
	summaries map[*ssa.Function][]bool // for each result of a function of the package, whether it makes it
	said      map[token.Pos]bool       // where base has a report
}

// opened reports whether a function opens and closes a scope itself, and records where.
func (r *region) opened() bool {
	var opened *ssa.Call
	closes := false
	instructions(r.base, func(i ssa.Instruction) {
		call, ok := i.(ssa.CallInstruction)
		if !ok {
			return
		}
		switch called(call.Common()) {
		case newScope:
			if c, ok := i.(*ssa.Call); ok && opened == nil {
				opened = c
			}
		case closeScope:
			closes = true
		}
		if d, ok := i.(*ssa.Defer); ok && literal(d.Call.Value) != nil {
			instructions(literal(d.Call.Value), func(i ssa.Instruction) {
				if c, ok := i.(ssa.CallInstruction); ok && called(c.Common()) == closeScope {
					closes = true
				}
			})
		}
	})
	if opened == nil || !closes {
		return false
	}
	r.open, r.literals = openAfter(opened), map[*ssa.Function]bool{}
	return true
}

func (r *region) collect(fn *ssa.Function) {
	r.fns = append(r.fns, fn)
	elsewhere := map[*ssa.Function]bool{}
	instructions(fn, func(i ssa.Instruction) {
		// Another goroutine runs in no scope.
		if g, ok := i.(*ssa.Go); ok {
			elsewhere[literal(g.Call.Value)] = true
		} else if c, ok := i.(*ssa.Call); ok && spawns(callee(&c.Call)) {
			for _, a := range c.Call.Args {
				elsewhere[literal(a)] = true
			}
		}
	})
	for _, a := range fn.AnonFuncs {
		if r.src.body[a] == noBody && !elsewhere[a] {
			r.collect(a)
		}
	}
}

func (r *region) each(f func(ssa.Instruction)) {
	for _, fn := range r.fns {
		instructions(fn, f)
	}
}

func (r *region) has(fn *ssa.Function) bool {
	for _, f := range r.fns {
		if f == fn {
			return true
		}
	}
	return false
}

// receiver returns the receiver of base, which is from outside the scope, and nil if base has none.
func (r *region) receiver() *ssa.Parameter {
	if r.base.Signature.Recv() == nil {
		return nil
	}
	return r.base.Params[0]
}

// in reports whether an instruction runs while the scope is open.
func (r *region) in(i ssa.Instruction) bool {
	switch {
	case r.open == nil:
		return true
	case i.Parent() != r.base:
		return r.runsIn(i.Parent())
	}
	return r.open.at(i)
}

// runsIn reports whether a literal is made, called and passed on only where the scope is open, and not returned.
func (r *region) runsIn(fn *ssa.Function) bool {
	in, known := r.literals[fn]
	if known {
		return in
	}
	in = true
	use := func(i ssa.Instruction) {
		_, returned := i.(*ssa.Return)
		in = in && !returned && r.in(i)
	}
	instructions(fn.Parent(), func(i ssa.Instruction) {
		for _, o := range i.Operands(nil) {
			if *o == nil || literal(*o) != fn {
				continue
			}
			use(i)
			if st, ok := i.(*ssa.Store); ok && st.Val == *o {
				if a, ok := st.Addr.(*ssa.Alloc); ok { // a variable that other literals capture
					for _, read := range *a.Referrers() {
						if _, ok := read.(*ssa.UnOp); ok {
							use(read)
						}
					}
				}
			}
		}
	})
	r.literals[fn] = in
	return in
}

// findFresh marks the values that hold tensors made in the scope.
func (r *region) findFresh() {
	r.kept, r.fresh = map[ssa.Value]bool{}, map[ssa.Value]bool{}
	r.each(func(i ssa.Instruction) {
		call, ok := i.(ssa.CallInstruction)
		if !ok {
			return
		}
		args := arguments(call.Common())
		switch called(call.Common()) {
		case keep, moveOut:
			r.keeps(args[0])
		case replace:
			r.keeps(args[1])
		case adopt:
			for _, a := range args[1:] {
				r.keeps(a)
				r.keepsElements(a, nil)
			}
		}
	})
	if r.kind == bodyLoop || r.kind == bodyTidy || r.kind == bodyOperate {
		for _, p := range r.base.Params {
			if holdsTensors(p.Type()) && p != r.receiver() {
				r.mark(p)
			}
		}
	}
	for grown := -1; grown != len(r.fresh); {
		grown = len(r.fresh)
		r.each(func(i ssa.Instruction) {
			switch i := i.(type) {
			case *ssa.Store:
				if r.fresh[i.Val] {
					r.contain(i.Addr)
				}
			case *ssa.MapUpdate:
				if r.fresh[i.Value] || r.fresh[i.Key] {
					r.contain(i.Map)
				}
			case ssa.Value:
				if r.isFresh(i) {
					r.mark(i)
				}
			}
		})
	}
}

func (r *region) mark(v ssa.Value) {
	if !r.kept[v] {
		r.fresh[v] = true
	}
}

// contain marks the local variable that contains an address.
func (r *region) contain(addr ssa.Value) {
	for {
		switch a := addr.(type) {
		case *ssa.FieldAddr:
			addr = a.X
			continue
		case *ssa.IndexAddr:
			addr = a.X
			continue
		case *ssa.UnOp:
			addr = a.X
			continue
		case *ssa.FreeVar:
			if o := origin(a); o != a {
				addr = o
				continue
			}
		case *ssa.Alloc:
			if r.has(a.Parent()) {
				r.mark(a)
			}
		case *ssa.MakeMap, *ssa.MakeSlice, *ssa.Slice, *ssa.Call, *ssa.Phi, *ssa.Extract:
			r.mark(a)
		}
		return
	}
}

func (r *region) isFresh(v ssa.Value) bool {
	switch v := v.(type) {
	case *ssa.Call:
		return r.in(v) && r.freshCall(&v.Call)
	case *ssa.Extract:
		return r.fresh[v.Tuple] && mayHold(v.Type()) && r.freshResult(v)
	case *ssa.Phi:
		for _, e := range v.Edges {
			if r.fresh[e] {
				return true
			}
		}
	case *ssa.UnOp:
		if v.Op != token.MUL || !mayHold(v.Type()) {
			return false
		}
		return r.fresh[v.X] || r.fresh[origin(v.X)]
	case *ssa.FieldAddr:
		return r.fresh[v.X] || r.fresh[origin(v.X)]
	case *ssa.IndexAddr:
		return r.fresh[v.X]
	case *ssa.Field:
		return r.fresh[v.X] && mayHold(v.Type())
	case *ssa.Index:
		return r.fresh[v.X] && mayHold(v.Type())
	case *ssa.Lookup:
		return r.fresh[v.X]
	case *ssa.Range:
		return r.fresh[v.X]
	case *ssa.Next:
		return r.fresh[v.Iter]
	case *ssa.Slice:
		return r.fresh[v.X]
	case *ssa.ChangeType:
		return r.fresh[v.X]
	case *ssa.MakeInterface:
		return r.fresh[v.X]
	case *ssa.ChangeInterface:
		return r.fresh[v.X]
	case *ssa.TypeAssert:
		return r.fresh[v.X] && (mayHold(v.AssertedType) || v.CommaOk)
	}
	return false
}

// mayHold reports whether a value of type t can hold a tensor, for the purpose of marking containers. An error cannot.
func mayHold(t types.Type) bool { return mayHoldIn(t, map[types.Type]bool{}) }

func mayHoldIn(t types.Type, seen map[types.Type]bool) bool {
	if holdsTensors(t) {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			if mayHoldIn(f.Type(), seen) {
				return true
			}
		}
	case *types.Pointer:
		if s, ok := u.Elem().Underlying().(*types.Struct); ok {
			for f := range s.Fields() {
				if holdsTensors(f.Type()) {
					return true
				}
			}
		}
		return holdsTensors(u.Elem())
	case *types.Slice:
		return mayHoldIn(u.Elem(), seen)
	case *types.Array:
		return mayHoldIn(u.Elem(), seen)
	case *types.Map:
		return mayHoldIn(u.Elem(), seen)
	case *types.Interface:
		return !types.Identical(t, types.Universe.Lookup("error").Type())
	}
	return false
}

// freshCall reports whether a call returns a tensor that the current scope owns. If that is not known, a function with
// tensor arguments is assumed to compute new tensors, and any other function to return existing ones.
func (r *region) freshCall(c *ssa.CallCommon) bool {
	if b, ok := c.Value.(*ssa.Builtin); ok {
		if b.Name() == "append" {
			for _, a := range c.Args {
				if r.fresh[a] {
					return true
				}
			}
		}
		return false
	}
	results := c.Signature().Results()
	gives := false
	for v := range results.Variables() {
		gives = gives || holdsTensors(v.Type())
	}
	if !gives {
		return false
	}
	f := callee(c)
	n := nameOf(f)
	if pkg, in := packageOf(pkgOf(f)); in {
		switch {
		case notFresh[n]:
			return false
		case strings.HasSuffix(f.Name(), "_"):
			args := arguments(c)
			return len(args) > 0 && r.fresh[args[0]]
		case pkg == "tensor" || n == "autograd.Grad" || n == "autograd.Apply" || n == "checkpoint.File.Tensor":
			return f.Exported() && n != "tensor.Scope.Entries"
		case pkg == "nn":
			return givenTensors(c, f)
		}
	}
	if fn := static(c); fn != nil && len(fn.Blocks) != 0 {
		return slices.Contains(r.returnsFresh(fn), true)
	}
	return givenTensors(c, f)
}

// freshResult reports whether one of several results of a call is what the function makes: it may return a tensor that it
// keeps beside new ones.
func (r *region) freshResult(v *ssa.Extract) bool {
	call, ok := v.Tuple.(*ssa.Call)
	if !ok {
		return true
	}
	fresh, known := r.summaries[static(&call.Call)]
	return !known || fresh[v.Index]
}

func pkgOf(f *types.Func) *types.Package {
	if f == nil {
		return nil
	}
	return f.Pkg()
}

func givenTensors(c *ssa.CallCommon, f *types.Func) bool {
	args := arguments(c)
	if f != nil && f.Signature().Recv() != nil {
		args = args[1:]
	}
	for _, a := range args {
		if holdsTensors(a.Type()) {
			return true
		}
	}
	return false
}

// returnsFresh reports for each result of a function of the package whether it is a tensor that the function makes, in
// its caller's scope.
func (r *region) returnsFresh(fn *ssa.Function) []bool {
	if known, ok := r.summaries[fn]; ok {
		return known
	}
	fresh := make([]bool, fn.Signature.Results().Len())
	r.summaries[fn] = fresh // in case it calls itself
	inner := &region{pass: r.pass, src: r.src, base: fn, summaries: r.summaries}
	inner.collect(fn)
	inner.findFresh()
	instructions(fn, func(i ssa.Instruction) {
		ret, ok := i.(*ssa.Return)
		if !ok {
			return
		}
		for i, v := range ret.Results {
			if holdsTensors(v.Type()) && inner.makes(v) {
				fresh[i] = true
			}
		}
	})
	return fresh
}

// makes reports whether a result is fresh. Of the stores of its function in a variable, the last one counts.
func (r *region) makes(result ssa.Value) bool {
	a := variable(result)
	if a == nil || !isTensor(result.Type()) || literalsStore(a) {
		return r.fresh[result]
	}
	return slices.ContainsFunc(lastStored(a, result, map[ssa.Value]bool{}), func(st *ssa.Store) bool { return r.fresh[st.Val] })
}

// keeps marks the values on which Keep and the like were called, back to their origin.
func (r *region) keeps(v ssa.Value) {
	if v == nil || r.kept[v] {
		return
	}
	r.kept[v] = true
	switch v := v.(type) {
	case *ssa.Phi:
		for _, e := range v.Edges {
			r.keeps(e)
		}
	case *ssa.Extract:
		switch t := v.Tuple.(type) {
		case *ssa.Next:
			r.keeps(t)
		case *ssa.Lookup:
			r.keeps(t.X)
		case *ssa.TypeAssert:
			r.keeps(t.X)
		}
	case *ssa.Next:
		r.keeps(v.Iter)
	case *ssa.Range:
		r.keeps(v.X)
		r.keepsElements(v.X, nil)
	case *ssa.Lookup:
		r.keeps(v.X)
		r.keepsElements(v.X, v.Index)
	case *ssa.UnOp:
		r.keeps(v.X)
		r.keepsVariable(v)
	case *ssa.FieldAddr:
		// Other fields hold other tensors.
		r.keepsField(v)
	case *ssa.IndexAddr:
		r.keeps(v.X)
		r.keepsElements(v.X, v.Index)
	case *ssa.Slice:
		r.keeps(v.X)
	case *ssa.ChangeType:
		r.keeps(v.X)
	case *ssa.MakeInterface:
		r.keeps(v.X)
	case *ssa.TypeAssert:
		r.keeps(v.X)
	case *ssa.FreeVar:
		if o := origin(v); o != v {
			r.keeps(o)
		}
	case *ssa.Call:
		if b, ok := v.Call.Value.(*ssa.Builtin); ok && b.Name() == "append" {
			for _, a := range v.Call.Args {
				r.keeps(a)
			}
		}
	case *ssa.Alloc:
		for _, use := range *v.Referrers() {
			switch use := use.(type) {
			case *ssa.Store:
				if use.Addr == v {
					r.keeps(use.Val)
				}
			case *ssa.IndexAddr:
				for _, at := range *use.Referrers() {
					if st, ok := at.(*ssa.Store); ok && st.Addr == use {
						r.keeps(st.Val)
					}
				}
			}
		}
	}
}

// keepsVariable marks the values that a read of a captured or package variable may return: the last ones that its own
// function stores before it, and those that other functions of the region store.
func (r *region) keepsVariable(read *ssa.UnOp) {
	switch read.X.(type) {
	case *ssa.FreeVar, *ssa.Global:
	default:
		return
	}
	last, _ := lastStores(read.X, read)
	r.each(func(i ssa.Instruction) {
		st, ok := i.(*ssa.Store)
		if ok && origin(st.Addr) == origin(read.X) && (st.Parent() != read.Parent() || slices.Contains(last, st)) {
			r.keeps(st.Val)
		}
	})
}

// keepsElements marks the values stored in a list or a map where index may be, or anywhere if index is nil.
func (r *region) keepsElements(of, index ssa.Value) {
	apart := func(at ssa.Value) bool {
		_, constant := at.(*ssa.Const)
		_, both := index.(*ssa.Const)
		return constant && both && keyOf(at) != keyOf(index)
	}
	r.each(func(i ssa.Instruction) {
		switch i := i.(type) {
		case *ssa.Store:
			if e, ok := i.Addr.(*ssa.IndexAddr); ok && same(e.X, of) && !apart(e.Index) {
				r.keeps(i.Val)
			}
		case *ssa.MapUpdate:
			if same(i.Map, of) && !apart(i.Key) {
				r.keeps(i.Value)
			}
		}
	})
}

// keepsField marks the values stored in the same field of the same variable.
func (r *region) keepsField(f *ssa.FieldAddr) {
	r.each(func(i ssa.Instruction) {
		if st, ok := i.(*ssa.Store); ok {
			if o, ok := st.Addr.(*ssa.FieldAddr); ok && same(o, f) {
				r.keeps(st.Val)
			}
		}
	})
}

// same reports whether two values are reads of the same variable or field, also in different functions of the region.
func same(a, b ssa.Value) bool {
	switch a := a.(type) {
	case *ssa.UnOp:
		if b, ok := b.(*ssa.UnOp); ok && a.Op == token.MUL && b.Op == token.MUL {
			return same(a.X, b.X)
		}
	case *ssa.FieldAddr:
		if b, ok := b.(*ssa.FieldAddr); ok {
			return a.Field == b.Field && same(a.X, b.X)
		}
	}
	return keyOf(origin(a)) == keyOf(origin(b))
}

// check reports the tensors that leave the region.
func (r *region) check() {
	r.findFresh()
	say := func(pos token.Pos, how string, fix string) {
		if !pos.IsValid() || r.said[pos] {
			return
		}
		r.said[pos] = true
		if stmt, ok := within[ast.Stmt](r.pass, pos); ok && how != "sent to a channel" {
			if _, ok := stmt.(*ast.ReturnStmt); ok {
				how, fix = "returned", "MoveOut"
			}
		}
		report(r.pass, analysis.Diagnostic{Pos: pos, SuggestedFixes: keeping(r.pass, pos, fix),
			Message: "a tensor of the scope is " + how + ", and freed when the scope closes: call Keep or MoveOut on it"})
	}
	r.each(func(i ssa.Instruction) {
		if !r.in(i) {
			return
		}
		switch i := i.(type) {
		case *ssa.Store:
			if r.fresh[i.Val] && !r.overwritten(i) {
				if how, fix := r.outer(i.Addr); how != "" {
					say(i.Pos(), how, fix)
				}
			}
		case *ssa.MapUpdate:
			if r.fresh[i.Value] || r.fresh[i.Key] {
				if how, _ := r.outer(i.Map); how != "" {
					say(i.Pos(), "put in a map from outside", "Keep")
				}
			}
		case *ssa.Send:
			if r.fresh[i.X] && !r.local(i.Chan, map[ssa.Value]bool{}) {
				say(i.Pos(), "sent to a channel", "Keep")
			}
		case *ssa.Select:
			for _, st := range i.States {
				if st.Dir == types.SendOnly && r.fresh[st.Send] && !r.local(st.Chan, map[ssa.Value]bool{}) {
					say(st.Pos, "sent to a channel", "Keep")
				}
			}
		case *ssa.Return:
			if i.Parent() == r.base && r.open != nil {
				for _, v := range i.Results {
					r.returned(i, v, say)
				}
			}
		case ssa.CallInstruction:
			args := arguments(i.Common())
			if f := callee(i.Common()); stores(f) && len(args) > 1 {
				for _, a := range args[1:] {
					if how, _ := r.outer(args[0]); how != "" && r.fresh[a] {
						say(i.Pos(), "stored in a "+namedOf(f.Signature().Recv().Type()).Obj().Name()+" from outside", "")
					}
				}
			}
		}
	})
}

// stores reports whether a method of the standard library stores its arguments.
func stores(f *types.Func) bool {
	if f == nil || f.Pkg() == nil || f.Signature().Recv() == nil || namedOf(f.Signature().Recv().Type()) == nil {
		return false
	}
	switch f.Pkg().Path() + "." + namedOf(f.Signature().Recv().Type()).Obj().Name() {
	case "sync/atomic.Pointer", "sync/atomic.Value", "sync.Map":
		return f.Name() == "Store" || f.Name() == "Swap" || f.Name() == "CompareAndSwap" || f.Name() == "LoadOrStore"
	case "sync.Pool":
		return f.Name() == "Put"
	case "container/list.List":
		return strings.HasPrefix(f.Name(), "Push") || strings.HasPrefix(f.Name(), "Insert")
	}
	return false
}

// returned reports a fresh value that is returned by a function that opens a scope.
func (r *region) returned(ret *ssa.Return, v ssa.Value, say func(token.Pos, string, string)) {
	if a := variable(v); a != nil {
		last := lastStored(a, v, map[ssa.Value]bool{})
		r.each(func(i ssa.Instruction) {
			st, ok := i.(*ssa.Store)
			// The body of a range over a function stores what the loop returns.
			if ok && r.fresh[st.Val] && r.in(st) && (slices.Contains(last, st) || st.Addr != a && origin(st.Addr) == a && st.Pos() == ret.Pos()) {
				say(st.Pos(), "returned", "MoveOut")
			}
		})
		return
	}
	if r.fresh[v] && mayHold(v.Type()) {
		say(ret.Pos(), "returned", "MoveOut")
	}
}

// variable returns the local variable that a value is read from, or nil.
func variable(v ssa.Value) *ssa.Alloc {
	if load, ok := v.(*ssa.UnOp); ok && load.Op == token.MUL {
		if a, ok := load.X.(*ssa.Alloc); ok {
			return a
		}
	}
	return nil
}

// lastStored returns the last stores in a variable before a read of it. If a function returns y, a tensor that is its
// result, it stores y in itself: this stands for the stores before, unless literals also store in y.
func lastStored(a *ssa.Alloc, read ssa.Value, seen map[ssa.Value]bool) (all []*ssa.Store) {
	seen[read] = true
	last, _ := lastStores(a, read.(*ssa.UnOp))
	for _, st := range last {
		if variable(st.Val) == a && isTensor(st.Val.Type()) && !seen[st.Val] && !literalsStore(a) {
			all = append(all, lastStored(a, st.Val, seen)...)
		} else {
			all = append(all, st)
		}
	}
	return all
}

// local reports whether a channel is made in the region.
func (r *region) local(v ssa.Value, seen map[ssa.Value]bool) bool {
	if seen[v] {
		return false
	}
	seen[v] = true
	switch v := v.(type) {
	case *ssa.MakeChan:
		return true
	case *ssa.ChangeType:
		return r.local(v.X, seen)
	case *ssa.UnOp:
		if a, ok := origin(v.X).(*ssa.Alloc); ok && r.has(a.Parent()) {
			for _, val := range storedIn(a) {
				if r.local(val, seen) {
					return true
				}
			}
		}
	}
	return false
}

// outer returns how an address outlives the region, or "" if it does not or that is not known.
func (r *region) outer(addr ssa.Value) (how, fix string) {
	field := ""
	for depth := 0; depth < 32; depth++ {
		switch a := addr.(type) {
		case *ssa.FieldAddr:
			if field == "" {
				field = "stored in a field of something from outside"
			}
			addr = a.X
		case *ssa.IndexAddr:
			if field == "" {
				field = "stored in a list from outside"
			}
			addr = a.X
		case *ssa.UnOp:
			addr = a.X
		case *ssa.ChangeType:
			addr = a.X
		case *ssa.Slice:
			addr = a.X
		case *ssa.Global:
			if field == "" {
				field = "stored in a package variable"
			}
			return field, "Keep"
		case *ssa.FreeVar:
			o := origin(a)
			if o == a {
				return "", ""
			}
			addr = o
		case *ssa.Alloc:
			if !r.has(a.Parent()) {
				if field == "" && !r.readElsewhere(a, map[ssa.Value]bool{}) {
					return "", ""
				}
				if field == "" {
					return "stored in a variable from outside", "MoveOut"
				}
				return field, "Keep"
			}
			// A local variable: use the value that it points to, if only one was stored in it.
			vals := storedIn(a)
			if len(vals) != 1 || field == "" {
				return "", ""
			}
			if _, pointer := vals[0].Type().Underlying().(*types.Pointer); !pointer {
				return "", ""
			}
			addr = vals[0]
		case *ssa.Parameter:
			if r.kind == noBody && a.Parent() == r.base || a == r.receiver() || !r.has(a.Parent()) {
				return field, "Keep"
			}
			return "", ""
		default:
			return "", ""
		}
	}
	return "", ""
}

// overwritten reports whether other stores to the same variable from outside follow a store on all paths, in the scope.
func (r *region) overwritten(st *ssa.Store) bool {
	_, captured := st.Addr.(*ssa.FreeVar)
	return captured && open(st, nil, nil, func(i ssa.Instruction) bool {
		next, ok := i.(*ssa.Store)
		return ok && next.Addr == st.Addr && r.in(next)
	}) == nil
}

// readElsewhere reports whether a variable is read outside the region, or inside it before it is written.
func (r *region) readElsewhere(v ssa.Value, seen map[ssa.Value]bool) bool {
	if seen[v] {
		return false
	}
	seen[v] = true
	for _, use := range *v.Referrers() {
		switch use := use.(type) {
		case *ssa.Store, *ssa.DebugRef:
		case *ssa.MakeClosure:
			for k, b := range use.Bindings {
				if b == v && r.readElsewhere(use.Fn.(*ssa.Function).FreeVars[k], seen) {
					return true
				}
			}
		default:
			_, written := lastStores(v, use)
			if !(written && r.has(use.Parent())) && !empties(use) {
				return true
			}
		}
	}
	return false
}

// empties reports whether a list is read only for its memory, as in list[:0].
func empties(read ssa.Instruction) bool {
	load, ok := read.(*ssa.UnOp)
	return ok && !slices.ContainsFunc(*load.Referrers(), func(use ssa.Instruction) bool {
		cut, ok := use.(*ssa.Slice)
		if !ok {
			return true
		}
		end, ok := cut.High.(*ssa.Const)
		return !ok || end.Int64() != 0
	})
}

// keeping returns a fix that calls a method on the tensor of the statement at pos.
func keeping(pass *analysis.Pass, pos token.Pos, method string) []analysis.SuggestedFix {
	if method == "" {
		return nil
	}
	var e ast.Expr
	stmt, _ := within[ast.Stmt](pass, pos)
	switch n := stmt.(type) {
	case *ast.AssignStmt:
		if len(n.Lhs) == len(n.Rhs) {
			for k, l := range n.Lhs {
				if l.Pos() <= pos && pos <= l.End() {
					e = n.Rhs[k]
				}
			}
		}
	case *ast.SendStmt:
		e = n.Value
	case *ast.ReturnStmt:
		for _, v := range n.Results {
			if t := pass.TypesInfo.TypeOf(v); t != nil && isTensor(t) {
				if e != nil {
					return nil
				}
				e = v
			}
		}
	}
	if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 2 && !call.Ellipsis.IsValid() {
		if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "append" {
			e = call.Args[1]
		}
	}
	if e == nil || pass.TypesInfo.TypeOf(e) == nil || !isTensor(pass.TypesInfo.TypeOf(e)) {
		return nil
	}
	return insert("call "+method, e.End(), "."+method+"()")
}

package vet

import (
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// releases reports whether a function unpins the tensors that depend on v.
func releases(fn *ssa.Function, v ssa.Value) bool {
	found := false
	instructions(fn, func(i ssa.Instruction) {
		call, ok := i.(ssa.CallInstruction)
		if !ok {
			return
		}
		c := call.Common()
		f := callee(c)
		if f == nil || !unpinners[nameOf(f)] && !(letGo[f.Name()] && holder(c)) && f.Name() != "KeepAlive" {
			return
		}
		for _, a := range arguments(c) {
			found = found || hangsOn(a, v, 0)
		}
	})
	return found
}

// hangsOn reports whether a value was derived from another.
func hangsOn(v, from ssa.Value, depth int) bool {
	if v == from {
		return true
	}
	if depth > 12 {
		return false
	}
	switch v := v.(type) {
	case *ssa.UnOp:
		return hangsOn(v.X, from, depth+1)
	case *ssa.FieldAddr:
		return hangsOn(v.X, from, depth+1)
	case *ssa.IndexAddr:
		return hangsOn(v.X, from, depth+1)
	case *ssa.Index:
		return hangsOn(v.X, from, depth+1)
	case *ssa.Field:
		return hangsOn(v.X, from, depth+1)
	case *ssa.Extract:
		return hangsOn(v.Tuple, from, depth+1)
	case *ssa.Next:
		return hangsOn(v.Iter, from, depth+1)
	case *ssa.Range:
		return hangsOn(v.X, from, depth+1)
	case *ssa.Slice:
		return hangsOn(v.X, from, depth+1)
	case *ssa.MakeInterface:
		return hangsOn(v.X, from, depth+1)
	case *ssa.Phi:
		for _, e := range v.Edges {
			if hangsOn(e, from, depth+1) {
				return true
			}
		}
	case *ssa.Alloc:
		for _, val := range storedIn(v) {
			if val == from {
				return true
			}
		}
	}
	return false
}

// holder reports whether a call is a method of a holder: a struct with lists of pinned tensors.
func holder(c *ssa.CallCommon) bool {
	args := arguments(c)
	return len(args) > 0 && holderType(args[0].Type()) != nil
}

func holderType(t types.Type) *types.Named {
	n := namedOf(t)
	if n == nil || isTensor(types.NewPointer(n)) {
		return nil
	}
	if _, ok := n.Underlying().(*types.Struct); !ok {
		return nil
	}
	for m := range n.Methods() {
		if letGo[m.Name()] {
			return n
		}
	}
	return nil
}

// holders checks that a holder whose handles or values are passed to a native call is unpinned after the call.
func (k *keeper) holders(fn *ssa.Function) {
	instructions(fn, func(i ssa.Instruction) {
		call, ok := i.(*ssa.Call)
		if !ok || !native(&call.Call) {
			return
		}
		for _, a := range call.Call.Args {
			root := heldBy(a, 0)
			if root == nil || k.later(call, root) {
				continue
			}
			report(k.pass, analysis.Diagnostic{Pos: call.Pos(), Message: "the list that pins the arguments of a native call is not unpinned after it: " +
				"its tensors stay pinned, or are freed meanwhile; defer its unpin before the call"})
			return
		}
	})
}

// undone checks that a list of pinned tensors is unpinned or passed on, on every path.
func (k *keeper) undone(fn *ssa.Function) {
	check := func(from ssa.Instruction, held, failure ssa.Value) {
		end := open(from, held, failure, func(i ssa.Instruction) bool {
			if _, again := i.(*ssa.Store); again && i == from {
				return true
			}
			switch i := i.(type) {
			case ssa.CallInstruction:
				c := i.Common()
				if letsGo(c, held) {
					return true
				}
				if lit, ok := c.Value.(*ssa.MakeClosure); ok {
					for n, b := range lit.Bindings {
						if (b == held || heldIn(b, held)) && releases(lit.Fn.(*ssa.Function), lit.Fn.(*ssa.Function).FreeVars[n]) {
							return true
						}
					}
				}
			case *ssa.Store:
				_, local := i.Addr.(*ssa.Alloc)
				return i.Val == held && !local
			case *ssa.Return:
				for _, v := range i.Results {
					if rootOf(v) == held || heldIn(rootOf(v), held) {
						return true
					}
				}
			}
			return false
		})
		if end != nil {
			pos := where(end, held)
			report(k.pass, analysis.Diagnostic{Pos: pos, Message: "tensors stay pinned here: their list is neither unpinned nor returned"})
		}
	}
	instructions(fn, func(i ssa.Instruction) {
		switch i := i.(type) {
		case *ssa.Store:
			// Tensors are stored in a list made here.
			f, ok := i.Addr.(*ssa.FieldAddr)
			if !ok || !holdsTensors(i.Val.Type()) || holderType(f.X.Type()) == nil {
				return
			}
			if call, ok := i.Val.(*ssa.Call); !ok || !hasPinned(call) {
				return
			}
			switch list := rootOf(f.X).(type) {
			case *ssa.Alloc, *ssa.Call:
				check(i, list, nil)
			}
		case *ssa.Extract:
			if holderType(i.Type()) == nil {
				return
			}
			var failure ssa.Value
			for _, use := range *i.Tuple.Referrers() {
				if e, ok := use.(*ssa.Extract); ok && e != i {
					failure = e
				}
			}
			check(i, i, failure)
		}
	})
}

// hasPinned reports whether a call appends individual tensors.
func hasPinned(c *ssa.Call) bool {
	b, ok := c.Call.Value.(*ssa.Builtin)
	return ok && b.Name() == "append" && len(appended(&c.Call)) != 0
}

// heldIn reports whether a variable holds a value.
func heldIn(variable, v ssa.Value) bool {
	for _, val := range storedIn(variable) {
		if val == v {
			return true
		}
	}
	return false
}

// heldBy returns the holder from which a list of handles or values comes.
func heldBy(v ssa.Value, depth int) ssa.Value {
	if depth > 12 {
		return nil
	}
	switch v := v.(type) {
	case *ssa.Call:
		if f := callee(&v.Call); f != nil && f.Signature().Recv() != nil && holder(&v.Call) {
			return rootOf(arguments(&v.Call)[0])
		}
	case *ssa.UnOp:
		if f, ok := v.X.(*ssa.FieldAddr); ok && holderType(f.X.Type()) != nil && carries(v.Type()) {
			return rootOf(f.X)
		}
	case *ssa.Slice:
		return heldBy(v.X, depth+1)
	}
	return nil
}

// carries reports whether a value of type t can pass handles to native code.
func carries(t types.Type) bool {
	s, ok := t.Underlying().(*types.Slice)
	return ok && (isHandle(s.Elem()) || is(s.Elem(), "cshim", "Value"))
}

func rootOf(v ssa.Value) ssa.Value {
	for {
		switch x := v.(type) {
		case *ssa.UnOp:
			v = x.X
		case *ssa.FieldAddr:
			v = x.X
		case *ssa.IndexAddr:
			v = x.X
		default:
			return v
		}
	}
}

// later reports whether root is unpinned after a call, on every path or by an earlier defer.
func (k *keeper) later(call *ssa.Call, root ssa.Value) bool {
	lets := func(i ssa.Instruction) bool {
		switch i := i.(type) {
		case *ssa.Defer:
			if c, ok := i.Call.Value.(*ssa.MakeClosure); ok {
				for n, b := range c.Bindings {
					if b == root && releases(c.Fn.(*ssa.Function), c.Fn.(*ssa.Function).FreeVars[n]) {
						return true
					}
				}
				return false
			}
			return letsGo(&i.Call, root)
		case *ssa.Call:
			return letsGo(&i.Call, root)
		}
		return false
	}
	deferred := false
	instructions(call.Parent(), func(i ssa.Instruction) {
		if _, ok := i.(*ssa.Defer); ok && lets(i) && before(i, call) {
			deferred = true
		}
	})
	return deferred || onEveryPath(call, lets)
}

func letsGo(c *ssa.CallCommon, root ssa.Value) bool {
	f, args := callee(c), arguments(c)
	if f == nil || !letGo[f.Name()] || len(args) == 0 {
		return false
	}
	got := rootOf(args[0])
	return got == root || heldIn(got, root)
}

// onEveryPath reports whether every path from an instruction to the end of the function contains a wanted one.
func onEveryPath(from ssa.Instruction, wanted func(ssa.Instruction) bool) bool {
	seen := map[*ssa.BasicBlock]bool{}
	var walk func(b *ssa.BasicBlock, at int) bool
	walk = func(b *ssa.BasicBlock, at int) bool {
		for _, i := range b.Instrs[at:] {
			if wanted(i) {
				return true
			}
			if _, ok := i.(*ssa.Return); ok {
				return false
			}
		}
		for _, next := range b.Succs {
			if !seen[next] {
				seen[next] = true
				if !walk(next, 0) {
					return false
				}
			}
		}
		return true
	}
	for at, i := range from.Block().Instrs {
		if i == from {
			return walk(from.Block(), at+1)
		}
	}
	return false
}

// complete checks that the unpin method of a holder reaches everything that it holds.
func (k *keeper) complete(fn *ssa.Function) {
	obj, ok := fn.Object().(*types.Func)
	if !ok || !letGo[obj.Name()] || fn.Signature.Recv() == nil || len(fn.Blocks) == 0 {
		return
	}
	n := holderType(fn.Signature.Recv().Type())
	if n == nil {
		return
	}
	st := n.Underlying().(*types.Struct)
	for f := range st.NumFields() {
		t := st.Field(f).Type()
		if _, list := t.Underlying().(*types.Slice); !list {
			if _, array := t.Underlying().(*types.Array); !array && holderType(t) == nil {
				continue
			}
		}
		if !holdsTensors(t) && holderType(t) == nil {
			continue
		}
		reached := false
		instructions(fn, func(i ssa.Instruction) {
			if a, ok := i.(*ssa.FieldAddr); ok && a.Field == f && hangsOn(a.X, fn.Params[0], 0) && releases(fn, a) {
				reached = true
			}
		})
		if !reached {
			report(k.pass, analysis.Diagnostic{Pos: fn.Pos(), Message: fn.Name() + " does not unpin " + st.Field(f).Name()})
		}
	}
}

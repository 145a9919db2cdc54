package vet

import (
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// handleRead returns the owner of a handle that is read from a tensor by t.h or t.handle().
func handleRead(v ssa.Value) (owner ssa.Value) {
	switch v := v.(type) {
	case *ssa.UnOp:
		if f, ok := v.X.(*ssa.FieldAddr); ok && v.Op == token.MUL && isTensor(f.X.Type()) && isHandle(v.Type()) {
			return f.X
		}
	case *ssa.Call:
		if called(&v.Call) == handleOf {
			return arguments(&v.Call)[0]
		}
	}
	return nil
}

// state is the set of states that a tensor may be in.
type state uint8

const (
	free   state = 1 << iota // not pinned
	pinned                   // this function must unpin it
	handed                   // pinned, and other code or a deferred call will unpin it
	none                     // nil
)

type states map[string]state

func (s states) of(v ssa.Value) state {
	if st, ok := s[keyOf(v)]; ok {
		return st
	}
	return free
}

func (s states) set(v ssa.Value, st state) { s[keyOf(v)] = st }

// keyOf returns a key for a value, the same for two reads of the same variable or field.
func keyOf(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.UnOp:
		if v.Op == token.MUL {
			switch v.X.(type) {
			case *ssa.Alloc, *ssa.FreeVar, *ssa.IndexAddr, *ssa.FieldAddr, *ssa.Global:
				return "*" + keyOf(v.X)
			}
		}
	case *ssa.IndexAddr:
		return keyOf(v.X) + "[" + keyOf(v.Index) + "]"
	case *ssa.FieldAddr:
		return fmt.Sprintf("%s.%d", keyOf(v.X), v.Field)
	case *ssa.BinOp:
		return "(" + keyOf(v.X) + v.Op.String() + keyOf(v.Y) + ")"
	case *ssa.Const:
		return v.String()
	}
	return fmt.Sprintf("%p", v)
}

// pins checks the pins of a function.
func (k *keeper) pins(fn *ssa.Function) {
	if len(fn.Blocks) == 0 {
		return
	}
	obj, _ := fn.Object().(*types.Func)
	own := nameOf(obj)
	_, pins := pinners[own]
	entry := states{}
	if unpinners[own] {
		for _, p := range fn.Params {
			if isTensor(p.Type()) {
				entry.set(p, pinned)
			}
		}
	}
	in := map[*ssa.BasicBlock]states{fn.Blocks[0]: entry}
	work := []*ssa.BasicBlock{fn.Blocks[0]}
	for len(work) > 0 {
		b := work[0]
		work = work[1:]
		s := states{}
		for key, st := range in[b] {
			s[key] = st
		}
		for _, i := range b.Instrs {
			k.step(i, s)
		}
		for n, next := range b.Succs {
			out := states{}
			for key, st := range s {
				out[key] = st
			}
			if cond, ok := b.Instrs[len(b.Instrs)-1].(*ssa.If); ok {
				learn(cond.Cond, n == 0, out)
			}
			if merge(in, next, out) {
				work = append(work, next)
			}
		}
	}
	said := map[string]bool{}
	say := func(pos token.Pos, format string, args ...any) {
		if m := fmt.Sprintf(format, args...); pos.IsValid() && !said[fmt.Sprint(pos, m)] {
			said[fmt.Sprint(pos, m)] = true
			report(k.pass, analysis.Diagnostic{Pos: pos, Message: m})
		}
	}
	for _, b := range fn.Blocks {
		s := in[b]
		if s == nil || b == fn.Recover {
			continue
		}
		s = states{}
		for key, st := range in[b] {
			s[key] = st
		}
		for _, i := range b.Instrs {
			k.uses(i, func(owner ssa.Value) {
				if s.of(owner)&free != 0 {
					say(where(i, owner), "the handle of %s is used without a pin: it can be freed meanwhile", k.text(owner))
				}
			})
			if call, ok := i.(ssa.CallInstruction); ok && unpinners[called(call.Common())] && !letGo[fn.Name()] {
				for _, t := range tensorsIn(arguments(call.Common())) {
					// The function around a literal has pinned what the literal captures.
					if _, captured := rootOf(t).(*ssa.FreeVar); !captured && s.of(t)&free != 0 {
						say(where(i, t), "%s is unpinned without a pin: it can be freed while it is in use", k.text(t))
					}
				}
			}
			if ret, ok := i.(*ssa.Return); ok {
				success := pins && succeeds(ret)
				if success {
					for _, p := range fn.Params {
						if isTensor(p.Type()) && s.of(p)&free != 0 {
							say(ret.Pos(), "%s succeeds without a pin of %s", fn.Name(), p.Name())
						}
					}
				}
				for key, st := range s {
					if st&pinned != 0 && !success {
						say(ret.Pos(), "a tensor stays pinned (%s): it is never freed; unpin it", k.named(fn, key))
					}
				}
			}
			k.step(i, s)
		}
	}
}

func merge(in map[*ssa.BasicBlock]states, b *ssa.BasicBlock, out states) bool {
	old, there := in[b]
	if !there {
		in[b] = out
		return true
	}
	grown := false
	for key := range out {
		if _, ok := old[key]; !ok {
			old[key] = free
			grown = true
		}
	}
	for key, st := range old {
		new, ok := out[key]
		if !ok {
			new = free
		}
		if st|new != st {
			old[key] = st | new
			grown = true
		}
	}
	return grown
}

func tensorsIn(args []ssa.Value) (ts []ssa.Value) {
	for _, a := range args {
		if isTensor(a.Type()) {
			ts = append(ts, a)
		}
	}
	return ts
}

// step applies an instruction to the states.
func (k *keeper) step(i ssa.Instruction, s states) {
	switch i := i.(type) {
	case *ssa.Defer:
		if unpinners[called(&i.Call)] {
			for _, t := range tensorsIn(arguments(&i.Call)) {
				hand(s, t)
			}
		} else if c, ok := i.Call.Value.(*ssa.MakeClosure); ok {
			for n, b := range c.Bindings {
				if releases(c.Fn.(*ssa.Function), c.Fn.(*ssa.Function).FreeVars[n]) {
					for key, st := range s {
						if st&pinned != 0 && (key == "*"+keyOf(b) || key == keyOf(b)) {
							s[key] = st&^pinned | handed
						}
					}
				}
			}
		}
	case *ssa.Call:
		if unpinners[called(&i.Call)] {
			for _, t := range tensorsIn(arguments(&i.Call)) {
				if s.of(t) != none {
					s.set(t, free)
				}
			}
		}
		if b, ok := i.Call.Value.(*ssa.Builtin); ok && b.Name() == "append" {
			for _, t := range appended(&i.Call) {
				hand(s, t)
			}
		}
	case *ssa.Store:
		switch i.Addr.(type) {
		case *ssa.IndexAddr, *ssa.FieldAddr:
			if isTensor(i.Val.Type()) && !variadic(i.Addr) {
				hand(s, i.Val)
			}
		case *ssa.Alloc:
			if isTensor(i.Val.Type()) {
				s["*"+keyOf(i.Addr)] = s.of(i.Val)
			}
		}
	}
	// In a loop, the instruction yields a different tensor each time.
	if v, ok := i.(ssa.Value); ok && isTensor(v.Type()) {
		if key := fmt.Sprintf("%p", v); keyOf(v) == key {
			delete(s, key)
		}
	}
	if phi, ok := i.(*ssa.Phi); ok && !isTensor(phi.Type()) {
		// The index changes from one iteration to the next.
		self := fmt.Sprintf("%p", phi)
		for key := range s {
			if strings.Contains(key, self) {
				s[key] |= free
				if s[key]&pinned == 0 {
					delete(s, key)
				}
			}
		}
	}
}

func hand(s states, t ssa.Value) {
	if st := s.of(t); st&pinned != 0 {
		s.set(t, st&^pinned|handed)
	}
}

// variadic reports whether an address is in the array that holds the variadic arguments of a call.
func variadic(addr ssa.Value) bool {
	at, ok := addr.(*ssa.IndexAddr)
	if !ok {
		return false
	}
	a, ok := at.X.(*ssa.Alloc)
	return ok && (a.Comment == "varargs" || a.Comment == "slicelit")
}

// appended returns the individual elements passed to append.
func appended(c *ssa.CallCommon) (vals []ssa.Value) {
	if len(c.Args) != 2 {
		return nil
	}
	slice, ok := c.Args[1].(*ssa.Slice)
	if !ok {
		return nil
	}
	array, ok := slice.X.(*ssa.Alloc)
	if !ok {
		return nil
	}
	for _, use := range *array.Referrers() {
		if at, ok := use.(*ssa.IndexAddr); ok {
			for _, st := range *at.Referrers() {
				if st, ok := st.(*ssa.Store); ok && isTensor(st.Val.Type()) {
					vals = append(vals, st.Val)
				}
			}
		}
	}
	return vals
}

// learn updates the states for a condition that has the value so.
func learn(cond ssa.Value, so bool, s states) {
	switch c := cond.(type) {
	case *ssa.UnOp:
		if c.Op == token.NOT {
			learn(c.X, !so, s)
		}
	case *ssa.Call:
		if hands, ok := pinners[called(&c.Call)]; ok && so {
			pinAll(c, hands, s)
		}
	case *ssa.BinOp:
		if c.Op != token.EQL && c.Op != token.NEQ {
			return
		}
		x, y := c.X, c.Y
		if k, ok := x.(*ssa.Const); ok && k.IsNil() {
			x, y = y, x
		}
		if k, ok := y.(*ssa.Const); !ok || !k.IsNil() || !isTensor(x.Type()) {
			return
		}
		isNil := so == (c.Op == token.EQL)
		if call, ok := x.(*ssa.Call); ok && isNil {
			if hands, ok := pinners[called(&call.Call)]; ok {
				pinAll(call, hands, s)
				return
			}
		}
		if isNil {
			s.set(x, none)
		} else if st := s.of(x) &^ none; st != 0 {
			s.set(x, st)
		}
	}
}

func pinAll(c *ssa.Call, hands bool, s states) {
	for _, t := range tensorsIn(arguments(&c.Call)) {
		if hands {
			s.set(t, handed)
		} else {
			s.set(t, pinned)
		}
	}
}

// succeeds reports whether a return of a pinner reports success.
func succeeds(ret *ssa.Return) bool {
	c, ok := ret.Results[0].(*ssa.Const)
	return ok && (c.IsNil() || c.Value != nil && c.Value.Kind() == constant.Bool && constant.BoolVal(c.Value))
}

// uses calls f with the owner of each handle that the instruction uses, other than to inspect it.
func (k *keeper) uses(i ssa.Instruction, f func(owner ssa.Value)) {
	given := func(v ssa.Value) {
		for _, o := range ownersOf(v, 0) {
			f(o)
		}
	}
	switch i := i.(type) {
	case ssa.CallInstruction:
		c := i.Common()
		if b, ok := c.Value.(*ssa.Builtin); ok && b.Name() != "append" {
			return
		}
		if fn := callee(c); fn != nil && fn.Pkg() != nil && fn.Pkg().Path() == "sync/atomic" {
			return
		}
		for _, a := range c.Args {
			given(a)
		}
	case *ssa.Store:
		given(i.Val)
	case *ssa.Send:
		given(i.X)
	case *ssa.MapUpdate:
		given(i.Value)
	case *ssa.Return:
		for _, v := range i.Results {
			given(v)
		}
	}
}

// ownersOf returns the owners of the handles from which a value was converted.
func ownersOf(v ssa.Value, depth int) []ssa.Value {
	if depth > 8 {
		return nil
	}
	if o := handleRead(v); o != nil {
		return []ssa.Value{o}
	}
	switch v := v.(type) {
	case *ssa.Convert:
		return ownersOf(v.X, depth+1)
	case *ssa.ChangeType:
		return ownersOf(v.X, depth+1)
	case *ssa.MakeInterface:
		return ownersOf(v.X, depth+1)
	case *ssa.Phi:
		var all []ssa.Value
		for _, e := range v.Edges {
			all = append(all, ownersOf(e, depth+1)...)
		}
		return all
	}
	return nil
}

func where(i ssa.Instruction, v ssa.Value) token.Pos {
	if i.Pos().IsValid() {
		return i.Pos()
	}
	if v.Pos().IsValid() {
		return v.Pos()
	}
	return i.Parent().Pos()
}

func (k *keeper) text(v ssa.Value) string {
	switch v := v.(type) {
	case *ssa.Parameter, *ssa.FreeVar:
		return v.Name()
	case *ssa.UnOp:
		return k.text(v.X)
	case *ssa.Alloc:
		return v.Comment
	case *ssa.FieldAddr:
		return k.text(v.X) + "." + fieldOf(v).Name()
	}
	t := types.Unalias(v.Type())
	for p, ok := t.(*types.Pointer); ok; p, ok = t.(*types.Pointer) {
		t = types.Unalias(p.Elem())
	}
	if n, ok := t.(*types.Named); ok && !is(t, "tensor", "Tensor") {
		return "the " + n.Obj().Name()
	}
	return "a tensor"
}

func (k *keeper) named(fn *ssa.Function, key string) string {
	for _, p := range fn.Params {
		if keyOf(p) == key {
			return p.Name()
		}
	}
	for _, b := range fn.Blocks {
		for _, i := range b.Instrs {
			if a, ok := i.(*ssa.Alloc); ok && "*"+keyOf(a) == key {
				return a.Comment
			}
		}
	}
	return "a local value"
}

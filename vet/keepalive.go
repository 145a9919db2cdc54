package vet

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// KeepAlive reports native handles that are used without anything that keeps their owner from being freed.
var KeepAlive = &analysis.Analyzer{
	Name: "keepalive",
	Doc: `report native handles used while their owner may be freed

Three rules. What a type with a cleanup or a finalizer holds for native code (a
handle, a pointer) is passed to it only where the owner is used later on every
path, by runtime.KeepAlive say. In Linstock itself a tensor's handle is used only
between a pin that succeeded and its unpin, and every pin is undone on every
path. What holds several pinned tensors is let go of after the native call, and
lets all of them go.`,
	Requires: []*analysis.Analyzer{sourceAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		s := pass.ResultOf[sourceAnalyzer].(*source)
		k := &keeper{pass: pass, owners: cleaned(s)}
		for _, fn := range s.fns {
			if k.pinning(fn) {
				k.pins(fn)
				k.holders(fn)
				k.undone(fn)
			}
			k.complete(fn)
			k.alive(fn)
		}
		return nil, nil
	},
}

type keeper struct {
	pass   *analysis.Pass
	owners map[*types.Named]bool // with a cleanup
}

// pinning says whether fn deals with handles at all.
func (k *keeper) pinning(fn *ssa.Function) bool {
	if obj, ok := fn.Object().(*types.Func); ok && primitives[nameOf(obj)] {
		return false
	}
	found := false
	instructions(fn, func(i ssa.Instruction) {
		switch i := i.(type) {
		case ssa.CallInstruction:
			n := called(i.Common())
			_, pins := pinners[n]
			found = found || pins || unpinners[n] || n == handleOf || native(i.Common())
		case *ssa.FieldAddr:
			found = found || isHandle(fieldOf(i).Type())
		}
	})
	if obj, ok := fn.Object().(*types.Func); ok {
		_, pins := pinners[nameOf(obj)]
		found = found || pins || unpinners[nameOf(obj)]
	}
	return found
}

func isHandle(t types.Type) bool { return is(t, "cshim", "Handle") }

func fieldOf(f *ssa.FieldAddr) *types.Var {
	return f.X.Type().Underlying().(*types.Pointer).Elem().Underlying().(*types.Struct).Field(f.Field)
}

// native says whether a call leaves Go: into the shim, or into C.
func native(c *ssa.CallCommon) bool {
	f := callee(c)
	if f == nil || f.Pkg() == nil {
		return false
	}
	pkg, in := packageOf(f.Pkg())
	return in && pkg == "cshim" || strings.HasPrefix(f.Name(), "_Cfunc_") || f.Pkg().Path() == "syscall" && strings.Contains(f.Name(), "yscall")
}

// handleRead is a tensor's handle, read from it: t.h, or t.handle().
func handleRead(v ssa.Value) (owner ssa.Value) {
	switch v := v.(type) {
	case *ssa.UnOp:
		if f, ok := v.X.(*ssa.FieldAddr); ok && v.Op == token.MUL && isTensor(f.X.Type()) && isHandle(v.Type()) {
			return f.X
		}
	case *ssa.Call:
		if called(&v.Call) == handleOf {
			return v.Call.Args[0]
		}
	}
	return nil
}

// The states that a tensor can be in, as a set: it is one of these.
type state uint8

const (
	free   state = 1 << iota // nobody holds it
	pinned                   // this function must unpin it
	handed                   // pinned, and somebody else, or a deferred call, will unpin it
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

// keyOf names a value so that two reads of the same place have the same name.
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

// pins follows the pins of a function.
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
				for _, t := range tensorsIn(call.Common().Args) {
					// What a literal has captured, the function around it has pinned.
					if _, captured := rootOf(t).(*ssa.FreeVar); !captured && s.of(t)&free != 0 {
						say(where(i, t), "%s is unpinned without a pin: it can be freed while somebody uses it", k.text(t))
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

// step is what an instruction does to the states.
func (k *keeper) step(i ssa.Instruction, s states) {
	switch i := i.(type) {
	case *ssa.Defer:
		if unpinners[called(&i.Call)] {
			for _, t := range tensorsIn(i.Call.Args) {
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
			for _, t := range tensorsIn(i.Call.Args) {
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
	// A loop comes to it again: it is another tensor.
	if v, ok := i.(ssa.Value); ok && isTensor(v.Type()) {
		if key := fmt.Sprintf("%p", v); keyOf(v) == key {
			delete(s, key)
		}
	}
	if phi, ok := i.(*ssa.Phi); ok && !isTensor(phi.Type()) {
		// An index that moves on.
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

// variadic says whether an address is in the array that a call's last arguments are put in.
func variadic(addr ssa.Value) bool {
	at, ok := addr.(*ssa.IndexAddr)
	if !ok {
		return false
	}
	a, ok := at.X.(*ssa.Alloc)
	return ok && (a.Comment == "varargs" || a.Comment == "slicelit")
}

// appended are the elements that append is given one by one.
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

// learn is what a condition, being so, says about the states.
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
	for _, t := range tensorsIn(c.Call.Args) {
		if hands {
			s.set(t, handed)
		} else {
			s.set(t, pinned)
		}
	}
}

// succeeds says whether a pinner's return says that it has pinned.
func succeeds(ret *ssa.Return) bool {
	c, ok := ret.Results[0].(*ssa.Const)
	return ok && (c.IsNil() || c.Value != nil && c.Value.Kind() == constant.Bool && constant.BoolVal(c.Value))
}

// uses calls f with the owner of each handle that the instruction puts to use, beyond looking at it.
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

// ownersOf are the owners of the handles that a value was converted from.
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

// releases says whether a function lets go of what hangs on v.
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
		for _, a := range c.Args {
			found = found || hangsOn(a, v, 0)
		}
	})
	return found
}

// hangsOn says whether a value was reached from another.
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

// holder says whether a call is a method of what holds pinned tensors: a struct with lists of them.
func holder(c *ssa.CallCommon) bool {
	return len(c.Args) > 0 && holderType(c.Args[0].Type()) != nil
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

// holders: where a native call is given the handles or values of a holder, the holder is let go of afterwards.
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
			report(k.pass, analysis.Diagnostic{Pos: call.Pos(), Message: "what holds the arguments of a native call is not let go of after it: " +
				"its tensors stay pinned, or are freed meanwhile; defer its unpin before the call"})
			return
		}
	})
}

// undone: a list of pinned tensors is let go of, or given on, on every path.
func (k *keeper) undone(fn *ssa.Function) {
	check := func(from ssa.Instruction, held, failure ssa.Value) {
		end := open(from, failure, func(i ssa.Instruction) bool {
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
			report(k.pass, analysis.Diagnostic{Pos: pos, Message: "tensors stay pinned here: what holds them is neither let go of nor returned"})
		}
	}
	instructions(fn, func(i ssa.Instruction) {
		switch i := i.(type) {
		case *ssa.Store:
			// Tensors are handed to a local list.
			f, ok := i.Addr.(*ssa.FieldAddr)
			if !ok || !holdsTensors(i.Val.Type()) || holderType(f.X.Type()) == nil {
				return
			}
			if call, ok := i.Val.(*ssa.Call); !ok || !hasPinned(call) {
				return
			}
			if a, ok := rootOf(f.X).(*ssa.Alloc); ok {
				check(i, a, nil)
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

// hasPinned says whether a call is append of tensors one by one.
func hasPinned(c *ssa.Call) bool {
	b, ok := c.Call.Value.(*ssa.Builtin)
	return ok && b.Name() == "append" && len(appended(&c.Call)) != 0
}

// heldIn says whether a variable holds a value.
func heldIn(variable, v ssa.Value) bool {
	for _, val := range storedIn(variable) {
		if val == v {
			return true
		}
	}
	return false
}

// heldBy is the holder that a list of handles or values comes from.
func heldBy(v ssa.Value, depth int) ssa.Value {
	if depth > 12 {
		return nil
	}
	switch v := v.(type) {
	case *ssa.Call:
		if f := callee(&v.Call); f != nil && f.Signature().Recv() != nil && holder(&v.Call) {
			return rootOf(v.Call.Args[0])
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

// carries says whether a list of t gives handles to native code.
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

// later says whether root is let go of behind a call on every path, or by what was deferred before it.
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
	f := callee(c)
	if f == nil || !letGo[f.Name()] || len(c.Args) == 0 {
		return false
	}
	got := rootOf(c.Args[0])
	return got == root || heldIn(got, root)
}

// onEveryPath says whether every path from an instruction to the function's end passes one that is wanted.
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

// complete: the method with which a holder lets go reaches all that it holds.
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
			report(k.pass, analysis.Diagnostic{Pos: fn.Pos(), Message: fn.Name() + " does not let go of " + st.Field(f).Name()})
		}
	}
}

// cleaned are the types that the package gives a cleanup or a finalizer, but for tensors, which are pinned.
func cleaned(s *source) map[*types.Named]bool {
	types_ := map[*types.Named]bool{}
	for _, fn := range s.fns {
		instructions(fn, func(i ssa.Instruction) {
			call, ok := i.(ssa.CallInstruction)
			if !ok {
				return
			}
			f := callee(call.Common())
			if f == nil || f.Pkg() == nil || f.Pkg().Path() != "runtime" || f.Name() != "AddCleanup" && f.Name() != "SetFinalizer" {
				return
			}
			arg := call.Common().Args[0]
			if m, ok := arg.(*ssa.MakeInterface); ok {
				arg = m.X
			}
			if n := namedOf(arg.Type()); n != nil && !isTensor(arg.Type()) {
				types_[n.Origin()] = true
			}
		})
	}
	return types_
}

// alive: what a type with a cleanup holds for native code is passed to it only where the owner is used later.
func (k *keeper) alive(fn *ssa.Function) {
	if len(k.owners) == 0 {
		return
	}
	instructions(fn, func(i ssa.Instruction) {
		call, ok := i.(*ssa.Call)
		if !ok || !native(&call.Call) {
			return
		}
		for _, a := range call.Call.Args {
			owner := k.ownerOf(a, 0)
			if owner == nil || used(call, owner) {
				continue
			}
			d := analysis.Diagnostic{Pos: call.Pos(), Message: "the cleanup of " + k.text(owner) + " can run during this call: its owner is not used afterwards; " +
				"call runtime.KeepAlive behind it"}
			if stmt, ok := within[ast.Stmt](k.pass, call.Pos()); ok && (owner.Name() == k.text(owner)) {
				if _, returns := stmt.(*ast.ReturnStmt); !returns {
					indent := strings.Repeat("\t", max(0, k.pass.Fset.Position(stmt.Pos()).Column-1))
					d.SuggestedFixes = insert("keep it alive", stmt.End(), "\n"+indent+"runtime.KeepAlive("+owner.Name()+")")
				}
			}
			report(k.pass, d)
		}
	})
}

// ownerOf is the thing with a cleanup that a native argument was read from.
func (k *keeper) ownerOf(v ssa.Value, depth int) ssa.Value {
	if depth > 8 {
		return nil
	}
	switch v := v.(type) {
	case *ssa.Convert:
		return k.ownerOf(v.X, depth+1)
	case *ssa.ChangeType:
		return k.ownerOf(v.X, depth+1)
	case *ssa.UnOp:
		f, ok := v.X.(*ssa.FieldAddr)
		if !ok || v.Op != token.MUL {
			return nil
		}
		if n := namedOf(f.X.Type()); n == nil || !k.owners[n.Origin()] {
			return nil
		}
		switch u := v.Type().Underlying().(type) {
		case *types.Basic:
			if u.Kind() != types.Uintptr && u.Kind() != types.UnsafePointer && u.Kind() != types.Uint64 {
				return nil
			}
		case *types.Pointer:
			// Memory of C's; what is Go's is kept by the pointer itself.
			if n := namedOf(u.Elem()); n == nil || !strings.HasPrefix(n.Obj().Name(), "_C") {
				return nil
			}
		default:
			return nil
		}
		return f.X
	}
	return nil
}

// used says whether owner is used behind a call on every path, or by what was deferred before it.
func used(call *ssa.Call, owner ssa.Value) bool {
	by := func(i ssa.Instruction) bool {
		for _, o := range i.Operands(nil) {
			if *o == nil {
				continue
			}
			if *o == owner || keyOf(*o) == keyOf(owner) {
				return true
			}
			// A call of an interface, runtime.KeepAlive's.
			if m, ok := (*o).(*ssa.MakeInterface); ok && (m.X == owner || keyOf(m.X) == keyOf(owner)) {
				return true
			}
		}
		return false
	}
	deferred := false
	instructions(call.Parent(), func(i ssa.Instruction) {
		if d, ok := i.(*ssa.Defer); ok && by(d) && before(i, call) {
			deferred = true
		}
	})
	return deferred || onEveryPath(call, by)
}

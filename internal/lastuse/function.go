package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/go/cfg"
)

// kind is the kind of a place.
type kind int

const (
	oneTensor   kind = iota // *tensor.Tensor
	manyTensors             // []*tensor.Tensor: its elements
	structure               // a struct: its fields
	carrier                 // a value that can carry a handle; never released
	closure                 // a variable that holds one function literal; reading it reads what the literal captures
)

// place is a variable that can hold handles; see the package comment.
type place struct {
	id    int
	v     *types.Var // nil for the header of a range loop; if loop is set, a new variable
	kind  kind
	param int // index in the facts; -1 for others
	lit   *ast.FuncLit
	loop  *ast.RangeStmt // over the slice that a call returns, which is stored in a new variable

	flagged bool // has a drop flag
	flag    string
	noFlag  bool // the flag cannot be updated at each assignment
}

// temp is a temporary that is released after the call of which it is an operand, or a discarded result.
type temp struct {
	call     *ast.CallExpr
	consumer *ast.CallExpr // nil: discarded
	inside   bool          // released inside the expression, when the consumer has returned
	places   []*place      // places whose handle it may be; then it is not released
	from     []ast.Expr    // instead, if these are not all variables: the operands that it may be
	name     string

	old     *place // instead of call: a place whose previous handle is released
	event   *event
	allowed bool // the final states allow old to be released
	unless  unless
}

// maxLinks bounds the links in the states of a function, places² × blocks: 64 MiB. Hand-written functions have 1 % of
// that; generated ones may have much more, and the analysis would then take minutes.
const maxLinks = 1 << 29

// body is a function or a function literal.
type body struct {
	pkg    *Package
	decl   *ast.FuncDecl // nil for a literal
	lit    *ast.FuncLit
	block  *ast.BlockStmt
	sig    *types.Signature
	params []*types.Var // the receiver first
	name   string

	leave        string // why the function is not rewritten; "" if it is
	withoutTemps bool
	defers       bool // it defers calls
	places       []*place
	byVar        map[*types.Var]*place
	headers      map[*ast.RangeStmt]*place
	captures     map[*ast.FuncLit][]*place
	untaken      map[*types.Var]string // variables that hold handles but are not places, and why
	temps        map[*ast.CallExpr]*temp
	order        []*temp
	consumed     map[*ast.CallExpr][]*temp // temporaries by consumer
	unstable     map[types.Object]bool     // variables that a call may change
	lits         []*ast.FuncLit            // literals directly inside
	graph        *cfg.CFG
	fact         *Func

	watched int // the parameter that breach checks
	breach  func(pos token.Pos, returned bool, what string)
}

func (b *body) node() ast.Node {
	if b.decl != nil {
		return b.decl
	}
	return b.lit
}

// each calls f for the nodes of n and for the function literals in n, but not for nodes inside those.
func each(n ast.Node, f func(ast.Node) bool) {
	ast.Inspect(n, func(m ast.Node) bool {
		if m == nil {
			return true
		}
		more := f(m)
		if _, ok := m.(*ast.FuncLit); ok && m != n {
			return false
		}
		return more
	})
}

// newBody finds the places of a function.
func (p *Package) newBody(decl *ast.FuncDecl, lit *ast.FuncLit, sig *types.Signature) *body {
	b := &body{pkg: p, decl: decl, lit: lit, sig: sig, byVar: map[*types.Var]*place{}, headers: map[*ast.RangeStmt]*place{},
		captures: map[*ast.FuncLit][]*place{}, untaken: map[*types.Var]string{}}
	if decl != nil {
		b.block, b.name = decl.Body, decl.Name.Name
		if sig.Recv() != nil {
			b.params = append(b.params, sig.Recv())
		}
	} else {
		b.block, b.name = lit.Body, "func literal"
	}
	for v := range sig.Params().Variables() {
		b.params = append(b.params, v)
	}
	params := map[*types.Var]int{}
	for i, v := range b.params {
		params[v] = i
	}
	b.fact = &Func{Retains: make([]bool, len(b.params)), Results: make([]Result, sig.Results().Len())}
	each(b.node(), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BranchStmt:
			if n.Tok == token.GOTO {
				b.leave = "the function has a goto"
			}
		case *ast.ExprStmt: // which the control-flow graph does not see
			if call, ok := ast.Unparen(n.X).(*ast.CallExpr); ok && ast.Expr(call) != n.X && p.isPanic(call) {
				b.leave = "a call of panic is in parentheses"
			}
		case *ast.FuncLit:
			if n != b.lit {
				b.lits = append(b.lits, n)
			}
		}
		return true
	})
	declare := func(id *ast.Ident) {
		v, ok := p.Info.Defs[id].(*types.Var)
		if !ok || v.IsField() || b.byVar[v] != nil {
			return
		}
		pl := &place{id: len(b.places), v: v, param: -1}
		switch t := v.Type(); {
		case isTensor(t):
			pl.kind = oneTensor
		case isTensors(t):
			pl.kind = manyTensors
		case p.isStruct(t):
			pl.kind = structure
		case carries(t):
			pl.kind = carrier
		default:
			return
		}
		if i, ok := params[v]; ok {
			pl.param = i
		}
		b.byVar[v] = pl
		b.places = append(b.places, pl)
	}
	each(b.node(), func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			declare(id)
		}
		return true
	})
	if len(b.params) > maxParams {
		b.leave = "it has too many parameters"
	}
	if p.shadows {
		b.leave = "the package declares bool, true or false"
	}
	b.findUnstable()
	b.exclude()
	// A parameter that is not a place is retained.
	for i, v := range b.params {
		if b.byVar[v] == nil && v.Name() != "" && v.Name() != "_" {
			b.fact.Retains[i] = true
		}
	}
	for _, pl := range b.places {
		pl.id = -1
	}
	b.places = b.places[:0]
	add := func(pl *place) {
		pl.id = len(b.places)
		b.places = append(b.places, pl)
	}
	each(b.node(), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if v, ok := p.Info.Defs[n].(*types.Var); ok && b.byVar[v] != nil && b.byVar[v].id < 0 {
				add(b.byVar[v])
			}
		case *ast.RangeStmt:
			// A loop over the indices of a slice reads no element.
			if t := p.Info.TypeOf(n.X); t != nil && (isTensors(t) && n.Value != nil || carries(t)) {
				h := &place{kind: carrier, param: -1}
				if b.storesLoop(n) {
					h.kind, h.loop = manyTensors, n
					h.v = types.NewVar(n.X.Pos(), p.Types, prefix+"l"+strconv.Itoa(len(b.headers)+1), t)
				}
				b.headers[n] = h
				add(h)
			}
		}
		return true
	})
	if b.leave == "" {
		b.graph = cfg.New(b.block, func(c *ast.CallExpr) bool { return !p.isPanic(c) })
		// The links of all places at the start of all blocks are a bit each.
		if n := len(b.places); n > 0 && len(b.graph.Blocks) > maxLinks/n/n {
			b.leave = "it is too large"
		}
	}
	return b
}

// storesLoop reports whether the slice that r is over is stored before the loop: it is the result of a call, and its elements
// go only into a place.
func (b *body) storesLoop(r *ast.RangeStmt) bool {
	p := b.pkg
	call, ok := ast.Unparen(r.X).(*ast.CallExpr)
	if !ok || p.builtin(call) != "" || p.Info.Types[call.Fun].IsType() || !isTensors(p.Info.TypeOf(r.X)) || p.listOf(r) == nil {
		return false
	}
	if _, name := r.Key.(*ast.Ident); !name || b.placeOf(r.Value) == nil {
		return false
	}
	_, labelled := p.parent[r].(*ast.LabeledStmt) // the label is the loop's
	return !labelled && !strings.Contains(p.source(r.For, r.X.Pos()), "\n")
}

func (p *Package) isPanic(c *ast.CallExpr) bool { return p.builtin(c) == "panic" }

// builtin returns the name of the built-in function that c calls, or "".
func (p *Package) builtin(c *ast.CallExpr) string {
	if id, ok := ast.Unparen(c.Fun).(*ast.Ident); ok {
		if b, ok := p.Info.Uses[id].(*types.Builtin); ok {
			return b.Name()
		}
	}
	return ""
}

// findUnstable finds the variables that a call may change: those whose address is taken or that a function
// literal names.
func (b *body) findUnstable() {
	b.unstable = map[types.Object]bool{}
	note := func(e ast.Expr) {
		if id, ok := ast.Unparen(e).(*ast.Ident); ok {
			b.unstable[b.pkg.Info.ObjectOf(id)] = true
		}
	}
	each(b.block, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				note(n.X)
			}
		case *ast.SelectorExpr:
			if s, ok := b.pkg.Info.Selections[n]; ok && s.Kind() == types.MethodVal {
				_, pointer := s.Recv().Underlying().(*types.Pointer)
				if !pointer {
					note(n.X)
				}
			}
		case *ast.FuncLit:
			ast.Inspect(n, func(m ast.Node) bool {
				if id, ok := m.(*ast.Ident); ok {
					b.unstable[b.pkg.Info.ObjectOf(id)] = true
				}
				return true
			})
		}
		return true
	})
	if b.lit != nil {
		// Variables that a literal shares with the enclosing function.
		ast.Inspect(b.lit, func(m ast.Node) bool {
			if id, ok := m.(*ast.Ident); ok {
				if v, ok := b.pkg.Info.Uses[id].(*types.Var); ok && !(b.lit.Pos() <= v.Pos() && v.Pos() < b.lit.End()) {
					b.unstable[v] = true
				}
			}
			return true
		})
	}
}

// plain returns the variable that e names, if any, and whether e is a constant or nil.
func (b *body) plain(e ast.Expr) (v *types.Var, constant bool) {
	e = ast.Unparen(e)
	if tv, ok := b.pkg.Info.Types[e]; ok && (tv.Value != nil || tv.IsNil()) {
		return nil, true
	}
	if id, ok := e.(*ast.Ident); ok {
		v, _ = b.pkg.Info.Uses[id].(*types.Var)
	}
	return v, false
}

// stable reports whether e is a constant or a local variable that no call can change.
func (b *body) stable(e ast.Expr) bool {
	v, constant := b.plain(e)
	return constant || v != nil && !b.unstable[v] && v.Pkg() != nil && v.Parent() != v.Pkg().Scope()
}

// steady reports whether e has the same value after the calls of its statement: it is computed from constants, stable
// variables and the lengths of stable slices.
func (b *body) steady(e ast.Expr) bool {
	if b.stable(e) {
		return true
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		return b.steady(e.X) && b.steady(e.Y)
	case *ast.UnaryExpr:
		return e.Op != token.AND && e.Op != token.ARROW && b.steady(e.X)
	case *ast.CallExpr:
		if len(e.Args) != 1 {
			return false
		}
		t := b.pkg.Info.TypeOf(e.Args[0]).Underlying()
		if name := b.pkg.builtin(e); name == "len" || name == "cap" {
			_, slice := t.(*types.Slice)
			return slice && b.stable(e.Args[0])
		}
		_, basic := t.(*types.Basic)
		return basic && b.pkg.Info.Types[e.Fun].IsType() && b.steady(e.Args[0])
	}
	return false
}

// exclude removes the variables that are not places.
func (b *body) exclude() {
	for _, pl := range b.places {
		if pl.v != nil && pl.v.Name() == "_" {
			delete(b.byVar, pl.v)
		}
	}
	b.excludeAddressed()
	b.findClosures()
	b.excludeCaptured()
}

// untake removes v from the places.
func (b *body) untake(v *types.Var, why string) {
	if b.byVar[v] != nil {
		delete(b.byVar, v)
		b.untaken[v] = why
	}
}

// untakeRoot removes the variable that is e or that e is a part of.
func (b *body) untakeRoot(e ast.Expr, why string) {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.SelectorExpr:
			e = x.X
			continue
		case *ast.IndexExpr:
			e = x.X
			continue
		case *ast.Ident:
			if v, ok := b.pkg.Info.Uses[x].(*types.Var); ok {
				b.untake(v, why)
			}
		}
		return
	}
}

// excludeAddressed removes the variables whose reads or assignments the events do not show: through an address, by a
// deferred call, by a select statement or by the header of a range loop.
func (b *body) excludeAddressed() {
	p := b.pkg
	each(b.node(), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.DeferStmt:
			b.defers = true
			for _, v := range b.results() {
				b.untake(v, "a deferred call may recover from a panic, and the function then returns what it holds")
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				b.untakeRoot(n.X, "its address is taken")
			}
		case *ast.SelectorExpr:
			if s := p.Info.Selections[n]; s != nil && s.Kind() == types.MethodVal && p.isStruct(s.Recv()) {
				_, pointer := s.Obj().(*types.Func).Signature().Recv().Type().(*types.Pointer)
				if pointer || len(s.Index()) > 1 {
					b.untakeRoot(n.X, "its address is taken by a method")
				}
			}
		case *ast.CommClause:
			if as, ok := n.Comm.(*ast.AssignStmt); ok && as.Tok == token.ASSIGN {
				for _, l := range as.Lhs {
					b.untakeRoot(l, "a select statement assigns it")
				}
			}
		case *ast.RangeStmt:
			for _, l := range []ast.Expr{n.Key, n.Value} {
				if l == nil {
					continue
				}
				if _, name := ast.Unparen(l).(*ast.Ident); !name {
					b.untakeRoot(l, "a range loop assigns a part of it")
				}
			}
		}
		return true
	})
}

// findClosures finds the variables that hold one function literal.
func (b *body) findClosures() {
	defs := map[*types.Var]int{}
	assigned := func(l, r ast.Expr) {
		id, ok := ast.Unparen(l).(*ast.Ident)
		if !ok {
			return
		}
		v, _ := b.pkg.Info.ObjectOf(id).(*types.Var)
		if v == nil {
			return
		}
		defs[v]++
		pl := b.byVar[v]
		if r == nil || pl == nil {
			return
		}
		if lit, ok := ast.Unparen(r).(*ast.FuncLit); ok {
			pl.lit = lit
		}
	}
	each(b.node(), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				var r ast.Expr
				if len(n.Lhs) == len(n.Rhs) {
					r = n.Rhs[i]
				}
				assigned(l, r)
			}
		case *ast.ValueSpec:
			for i, id := range n.Names {
				var r ast.Expr
				if i < len(n.Values) {
					r = n.Values[i]
				}
				assigned(id, r)
			}
		case *ast.RangeStmt:
			if n.Key != nil {
				assigned(n.Key, nil)
			}
			if n.Value != nil {
				assigned(n.Value, nil)
			}
		}
		return true
	})
	for v, pl := range b.byVar {
		if pl.lit == nil {
			continue
		}
		if defs[v] == 1 && pl.param < 0 {
			pl.kind = closure
		} else {
			pl.lit = nil
		}
	}
}

// excludeCaptured finds what each literal captures, and removes the variables for which the events do not show what it
// does with them. A literal that captures a closure could run it at any time, so the closure's variable is removed.
func (b *body) excludeCaptured() {
	for changed := true; changed; {
		changed = false
		for _, lit := range b.lits {
			stays := b.literalStays(lit)
			caught := map[*types.Var]bool{}
			ast.Inspect(lit, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				v, _ := b.pkg.Info.Uses[id].(*types.Var)
				if v == nil || b.byVar[v] == nil {
					return true
				}
				switch {
				case !stays:
					b.untake(v, "a function literal that is kept captures it")
					changed = true
				case b.byVar[v].kind == closure:
					b.untake(v, "a function literal captures it")
					changed = true
				case !b.onlyRead(id, lit):
					b.untake(v, "a function literal that captures it assigns it or passes it on")
					changed = true
				default:
					caught[v] = true
				}
				return true
			})
			b.captures[lit] = nil
			for _, pl := range b.places {
				if pl.v != nil && caught[pl.v] && b.byVar[pl.v] == pl {
					b.captures[lit] = append(b.captures[lit], pl)
				}
			}
		}
	}
}

// literalStays reports whether lit runs only where the enclosing function runs it: it is called, passed to a
// function that borrows it, or is the only value of a local variable that is only called or passed in this way.
// An iterator does not stay: it goes on after the loop's body, which may have assigned what it captures.
func (b *body) literalStays(lit *ast.FuncLit) bool {
	switch f := b.fate(lit); {
	case f.escapes, f.returned, f.ranged:
		return false
	case len(f.into) == 0:
		return true
	case len(f.into) == 1 && f.into[0].kind == closure:
		v, ok := f.into[0].v, true
		ast.Inspect(b.block, func(n ast.Node) bool {
			if id, is := n.(*ast.Ident); is && b.pkg.Info.Uses[id] == types.Object(v) {
				f := b.fate(id)
				ok = ok && !f.escapes && !f.returned && !f.ranged && len(f.into) == 0
			}
			return ok
		})
		return ok
	}
	return false
}

// onlyRead reports whether lit, at one use of a captured variable, neither assigns it nor passes its handles
// on.
func (b *body) onlyRead(id *ast.Ident, lit *ast.FuncLit) bool {
	f := b.fate(id)
	if f.escapes || f.returned || len(f.into) != 0 || f.assigned || f.part {
		return false
	}
	// A literal inside lit must also stay.
	for n := b.pkg.parent[ast.Node(id)]; n != nil && n != ast.Node(lit); n = b.pkg.parent[n] {
		if inner, ok := n.(*ast.FuncLit); ok {
			if f := b.fate(inner); f.escapes || f.returned || len(f.into) != 0 {
				return false
			}
		}
	}
	return true
}

// fate describes what happens to the handles in an expression's value.
type fate struct {
	escapes  bool
	returned bool
	assigned bool // it is the left side of an assignment, so it is not read
	part     bool // an element or field of it is assigned
	into     []*place
	consumer *ast.CallExpr // the call of which it is an operand
	stored   bool          // it escapes: stored, sent, or passed to a goroutine or to panic
	ranged   bool          // a range loop may call it, or what it carries, between its iterations
	why      string
}

func (f *fate) add(g fate) {
	f.escapes = f.escapes || g.escapes
	f.returned = f.returned || g.returned
	f.stored = f.stored || g.stored
	f.ranged = f.ranged || g.ranged
	f.into = append(f.into, g.into...)
	if f.why == "" {
		f.why = g.why
	}
}

func escape(why string) fate { return fate{escapes: true, why: why} }

func stored(why string) fate { return fate{escapes: true, stored: true, why: why} }

// placeOf returns the place to which an identifier refers, or nil.
func (b *body) placeOf(e ast.Expr) *place {
	id, ok := ast.Unparen(e).(*ast.Ident)
	if !ok {
		return nil
	}
	v, _ := b.pkg.Info.ObjectOf(id).(*types.Var)
	if v == nil {
		return nil
	}
	return b.byVar[v]
}

// base returns the place of which e is an element or field, or nil.
func (b *body) base(e ast.Expr) *place {
	var in ast.Expr
	switch e := ast.Unparen(e).(type) {
	case *ast.IndexExpr:
		if pl := b.placeOf(e.X); pl != nil && pl.kind != closure && pl.kind != structure {
			return pl
		}
		if t := b.pkg.Info.TypeOf(e.X); t == nil || !isTensors(t) {
			return nil
		}
		in = e.X
	case *ast.SelectorExpr:
		if !b.pkg.isField(e) {
			return nil
		}
		if pl := b.placeOf(e.X); pl != nil {
			return pl
		}
		in = e.X
	default:
		return nil
	}
	return b.base(in)
}

// target returns the fate of a value that is assigned to l.
func (b *body) target(l ast.Expr) fate {
	l = ast.Unparen(l)
	if id, ok := l.(*ast.Ident); ok && id.Name == "_" {
		return fate{}
	}
	if pl := b.placeOf(l); pl != nil {
		return fate{into: []*place{pl}}
	}
	if pl := b.base(l); pl != nil {
		return fate{into: []*place{pl}}
	}
	switch l := l.(type) {
	case *ast.IndexExpr:
		return stored("it is stored in an element")
	case *ast.SelectorExpr:
		return stored("it is stored in a field or package variable")
	case *ast.Ident:
		if v, ok := b.pkg.Info.ObjectOf(l).(*types.Var); ok {
			if why := b.untaken[v]; why != "" {
				return escape("it is stored in " + l.Name + ": " + why)
			}
			if v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
				return stored("it is stored in a package variable")
			}
		}
	}
	return escape("it is stored in a variable that is not a place")
}

func (b *body) fate(e ast.Expr) fate {
	switch p := b.pkg.parent[e].(type) {
	case *ast.ParenExpr:
		return b.fate(p)
	case *ast.CallExpr:
		return b.operand(p, e)
	case *ast.SelectorExpr:
		if s := b.pkg.Info.Selections[p]; s != nil && s.Kind() == types.FieldVal && b.pkg.isStruct(s.Recv()) {
			switch {
			case !b.pkg.isField(p):
				return fate{}
			case b.isTarget(p):
				return b.partAssigned(p)
			}
			return b.fate(p)
		}
		if s := b.pkg.Info.Selections[p]; s != nil && s.Kind() == types.FieldVal && isTensor(s.Recv()) {
			return fate{} // package tensor reads its own fields, none of which holds a handle
		}
		if call, ok := b.pkg.parent[p].(*ast.CallExpr); ok && call.Fun == ast.Expr(p) && p.X == e {
			return b.operand(call, e)
		}
		return escape("a method of it is used as a value")
	case *ast.CompositeLit:
		if b.pkg.element(p, e) {
			return b.fate(p)
		}
		return stored("it is stored in a struct, map or array")
	case *ast.KeyValueExpr:
		if lit, ok := b.pkg.parent[p].(*ast.CompositeLit); ok && b.pkg.element(lit, p) {
			return b.fate(lit)
		}
		return stored("it is stored in a struct, map or array")
	case *ast.UnaryExpr:
		if _, ok := e.(*ast.CompositeLit); ok && p.Op == token.AND {
			return stored("it is stored in a struct, map or array")
		}
	case *ast.IndexExpr:
		if p.X != e {
			return escape("it is a key")
		}
		if b.isTarget(p) {
			return b.partAssigned(p)
		}
		return b.fateIn(p, b.pkg.Info.TypeOf(p))
	case *ast.SliceExpr:
		if p.X == e {
			f := b.fate(p)
			if p.High != nil && !p.Slice3 && (len(f.into) != 0 || b.extended(p)) && b.popped(p) == nil {
				return escape("a part of it is kept, and an append to that part writes into it")
			}
			return f
		}
	case *ast.BinaryExpr:
		return fate{}
	case *ast.TypeAssertExpr:
		return b.fateIn(p, b.pkg.Info.TypeOf(p.Type))
	case *ast.AssignStmt:
		for _, l := range p.Lhs {
			if l == e {
				return fate{assigned: true}
			}
		}
		if len(p.Lhs) == len(p.Rhs) {
			for i, r := range p.Rhs {
				if r == e {
					return b.target(p.Lhs[i])
				}
			}
		}
		if ta, ok := ast.Unparen(e).(*ast.TypeAssertExpr); ok && ta.Type != nil && len(p.Lhs) == 2 {
			return b.target(p.Lhs[0])
		}
	case *ast.ValueSpec:
		for i, r := range p.Values {
			if r == e && len(p.Names) == len(p.Values) {
				return b.target(p.Names[i])
			}
		}
		for _, id := range p.Names {
			if ast.Expr(id) == e {
				return fate{assigned: true}
			}
		}
	case *ast.ReturnStmt:
		return fate{returned: true, why: "it is returned"}
	case *ast.RangeStmt:
		switch e {
		case p.Key, p.Value:
			if _, name := ast.Unparen(e).(*ast.Ident); !name {
				return escape("a range loop assigns a part of it")
			}
			return fate{assigned: true}
		}
		t := b.pkg.Info.TypeOf(p.X)
		f := fate{ranged: t != nil && carries(t)}
		if h := b.headers[p]; h != nil {
			f.into = append(f.into, h)
		}
		if p.Value != nil {
			f.add(b.target(p.Value))
		}
		if p.Key != nil && f.ranged {
			f.add(b.target(p.Key)) // an iterator
		}
		return f
	case *ast.ExprStmt:
		return fate{}
	case *ast.IfStmt, *ast.ForStmt, *ast.SwitchStmt, *ast.CaseClause:
		return fate{}
	case *ast.SendStmt:
		return stored("it is sent to a channel")
	}
	return escape("it is used in an unknown way")
}

// popped returns s if e is s[:len(s)-1] in a statement that assigns it to s, where s is a variable whose array nothing
// else can see: s is only made, indexed, appended to, ranged over and shortened in this way.
func (b *body) popped(e *ast.SliceExpr) *place {
	pl := b.placeOf(e.X)
	if b.withoutTemps || pl == nil || pl.kind != manyTensors || pl.param >= 0 || slices.Contains(b.results(), pl.v) ||
		!b.shortens(e, pl.v) {
		return nil
	}
	p := b.pkg
	alone := true
	is := func(x ast.Expr) bool {
		id, ok := x.(*ast.Ident)
		return ok && p.Info.ObjectOf(id) == types.Object(pl.v)
	}
	// made reports whether r is a new array, or s itself.
	made := func(r ast.Expr) bool {
		switch r := ast.Unparen(r).(type) {
		case *ast.CompositeLit:
			return true
		case *ast.CallExpr:
			return p.builtin(r) == "make" || p.builtin(r) == "append" && is(r.Args[0])
		case *ast.SliceExpr:
			return b.shortens(r, pl.v)
		}
		return p.Info.Types[r].IsNil()
	}
	each(b.block, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			ast.Inspect(n, func(m ast.Node) bool {
				id, ok := m.(*ast.Ident)
				alone = alone && !(ok && is(id))
				return true
			})
			return false
		case *ast.Ident:
			if !is(n) {
				return true
			}
			switch use := p.parent[n].(type) {
			case *ast.IndexExpr:
				alone = alone && use.X == ast.Expr(n)
			case *ast.CallExpr:
				extends := p.builtin(use) == "append" && use.Args[0] == ast.Expr(n) && b.assignedTo(use, is)
				alone = alone && (extends || p.builtin(use) == "len")
			case *ast.SliceExpr:
				alone = alone && b.shortens(use, pl.v)
			case *ast.RangeStmt:
				alone = alone && use.X == ast.Expr(n) && !(use.Body.Pos() <= e.Pos() && e.Pos() < use.Body.End())
			case *ast.AssignStmt:
				i := slices.Index(use.Lhs, ast.Expr(n))
				alone = alone && i >= 0 && len(use.Lhs) == len(use.Rhs) && made(use.Rhs[i])
			case *ast.ValueSpec:
				i := slices.Index(use.Names, n)
				alone = alone && (len(use.Values) == 0 || i >= 0 && len(use.Names) == len(use.Values) && made(use.Values[i]))
			default:
				alone = false
			}
		}
		return true
	})
	if !alone {
		return nil
	}
	return pl
}

// shortens reports whether e is s[:len(s)-1] in a statement, in a list of statements, that assigns it to s.
func (b *body) shortens(e *ast.SliceExpr, s *types.Var) bool {
	p := b.pkg
	is := func(x ast.Expr) bool {
		id, ok := x.(*ast.Ident)
		return ok && p.Info.Uses[id] == types.Object(s)
	}
	minus, ok := e.High.(*ast.BinaryExpr)
	if !ok || minus.Op != token.SUB || e.Low != nil || e.Slice3 || !is(e.X) || p.text(minus.Y) != "1" {
		return false
	}
	n, ok := minus.X.(*ast.CallExpr)
	return ok && p.builtin(n) == "len" && is(n.Args[0]) && b.assignedTo(e, is) && p.listOf(p.parent[e]) != nil
}

// assignedTo reports whether e is a value that a statement assigns to a variable.
func (b *body) assignedTo(e ast.Expr, variable func(ast.Expr) bool) bool {
	as, ok := b.pkg.parent[e].(*ast.AssignStmt)
	if !ok || as.Tok != token.ASSIGN || len(as.Lhs) != len(as.Rhs) {
		return false
	}
	i := slices.Index(as.Rhs, e)
	return i >= 0 && variable(as.Lhs[i])
}

// fateIn is fate of e, an expression of type t into which the handles go. In a type that is not followed they escape.
func (b *body) fateIn(e ast.Expr, t types.Type) fate {
	if t != nil && !b.pkg.holds(t) {
		if _, basic := t.Underlying().(*types.Basic); !basic {
			return escape("it goes into a value that is not followed")
		}
	}
	return b.fate(e)
}

// element reports whether an element of a composite literal is followed: in a slice, or a field of a struct.
func (p *Package) element(lit *ast.CompositeLit, e ast.Expr) bool {
	switch t := types.Unalias(p.Info.TypeOf(lit)).Underlying().(type) {
	case *types.Slice:
		return isTensors(p.Info.TypeOf(lit)) || carries(p.Info.TypeOf(lit))
	case *types.Struct:
		if !p.isStruct(p.Info.TypeOf(lit)) {
			return false
		}
		for i, x := range lit.Elts {
			if x != e {
				continue
			}
			if kv, ok := x.(*ast.KeyValueExpr); ok {
				f, ok := p.Info.Uses[kv.Key.(*ast.Ident)].(*types.Var)
				return ok && p.follows(f)
			}
			return p.follows(t.Field(i))
		}
	}
	return false
}

// extended reports whether e is the slice that a call of append extends.
func (b *body) extended(e ast.Expr) bool {
	call, ok := b.pkg.parent[e].(*ast.CallExpr)
	return ok && b.pkg.builtin(call) == "append" && call.Args[0] == e
}

// partAssigned returns the fate of a value of which an element or field, e, is assigned.
func (b *body) partAssigned(e ast.Expr) fate {
	if b.base(e) == nil {
		return escape("an element or field of it is assigned through another expression")
	}
	return fate{part: true}
}

// operandOf returns the expression of which e is an element or field.
func operandOf(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.IndexExpr:
		return e.X
	case *ast.SelectorExpr:
		return e.X
	}
	return nil
}

// isTarget reports whether e is assigned.
func (b *body) isTarget(e ast.Expr) bool {
	as, ok := b.pkg.parent[e].(*ast.AssignStmt)
	if !ok {
		return false
	}
	for _, l := range as.Lhs {
		if l == e {
			return true
		}
	}
	return false
}

// operand returns the fate of e, which is an argument or the receiver of call, or the function value that it
// calls.
func (b *body) operand(call *ast.CallExpr, e ast.Expr) fate {
	switch b.pkg.parent[call].(type) {
	case *ast.GoStmt:
		return stored("it is passed to a goroutine")
	case *ast.DeferStmt:
		return escape("it is passed to a deferred call")
	}
	if call.Fun == e { // a function value
		return fate{consumer: call}
	}
	p := b.pkg
	if tv, ok := p.Info.Types[call.Fun]; ok && tv.IsType() {
		if p.holds(p.Info.TypeOf(call)) {
			return b.fate(call)
		}
		return escape("it is converted")
	}
	switch p.builtin(call) {
	case "":
	case "len", "cap", "print", "println":
		return fate{consumer: call}
	case "append":
		f := b.fateIn(call, p.Info.TypeOf(call))
		f.add(b.extension(call, 0))
		return f
	case "panic":
		return stored("it is passed to panic")
	default:
		return escape("it is passed to a built-in function")
	}
	fact := p.callee(b, call)
	if fact == nil {
		return escape("it is passed to a function without facts")
	}
	i := p.index(call, e)
	if i < 0 || fact.retains(i) || p.prints(call) && (p.hasText(p.Info.TypeOf(e)) || i == 0 && strings.HasPrefix(calleeName(call), "Fprint")) {
		return escape(calleeName(call) + " keeps it" + b.replaced(call))
	}
	f := fate{consumer: call}
	for k, r := range fact.Results {
		for _, from := range r.From {
			if from == i || i >= len(fact.Retains)-1 && from == len(fact.Retains)-1 {
				f.add(b.resultFate(call, k))
				f.add(b.extension(call, k))
				break
			}
		}
	}
	return f
}

// prints reports whether the call formats its arguments, with their own methods if they have any.
func (p *Package) prints(call *ast.CallExpr) bool {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok {
		return false
	}
	fn, ok := p.Info.Uses[sel.Sel].(*types.Func)
	return ok && fn.Pkg() != nil && borrowing[fn.Pkg().Path()+"."+fn.Name()]
}

// hasText reports whether a value of type t, or a part of it, may have a method of the program's that fmt calls.
func (p *Package) hasText(t types.Type) bool {
	if t == nil || isTensor(t) || isTensors(t) {
		return false
	}
	if _, basic := t.Underlying().(*types.Basic); basic {
		return false
	}
	if types.IsInterface(t) || carries(t) {
		return true
	}
	for _, name := range []string{"String", "Error", "Format", "GoString"} {
		if o, _, _ := types.LookupFieldOrMethod(t, true, p.Types, name); o != nil {
			return true
		}
	}
	if s, ok := t.Underlying().(*types.Struct); ok {
		for f := range s.Fields() {
			if p.follows(f) && p.hasText(f.Type()) {
				return true
			}
		}
	}
	return false
}

// replaced returns what to write instead of a call of Keep whose result replaces another tensor, which no scope then frees.
func (b *body) replaced(call *ast.CallExpr) string {
	as, ok := b.pkg.parent[call].(*ast.AssignStmt)
	if !ok || as.Tok != token.ASSIGN || len(as.Lhs) != len(as.Rhs) || calleeName(call) != "Keep" || !isTensor(b.pkg.Info.TypeOf(call)) {
		return ""
	}
	to := b.pkg.text(as.Lhs[slices.Index(as.Rhs, ast.Expr(call))])
	if to == "_" || strings.Contains(to, "\n") {
		return ""
	}
	return ", and what " + to + " held before stays: tensor.Replace releases it"
}

func calleeName(call *ast.CallExpr) string {
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return "a function"
}

// resultFate returns the fate of a call's k-th result.
func (b *body) resultFate(call *ast.CallExpr, k int) fate {
	if t := b.resultType(call, k); !b.pkg.holds(t) {
		return escape("a result that is not followed may hold it")
	}
	if _, ok := b.pkg.Info.TypeOf(call).(*types.Tuple); !ok {
		return b.fate(call)
	}
	switch p := b.pkg.parent[call].(type) {
	case *ast.AssignStmt:
		if len(p.Rhs) == 1 && k < len(p.Lhs) {
			return b.target(p.Lhs[k])
		}
	case *ast.ValueSpec:
		if len(p.Values) == 1 && k < len(p.Names) {
			return b.target(p.Names[k])
		}
	case *ast.ReturnStmt:
		return fate{returned: true, why: "it is returned"}
	case *ast.ExprStmt:
		return fate{}
	}
	return escape("a result that may be the same tensor is used in an unknown way")
}

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

// findTemps finds the temporaries to release.
func (b *body) findTemps() {
	b.order = nil
	b.temps, b.consumed = map[*ast.CallExpr]*temp{}, map[*ast.CallExpr][]*temp{}
	if b.leave != "" || b.withoutTemps {
		return
	}
	each(b.block, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok && b.pkg.Info.Types[e].Value != nil {
			return false // a constant: unsafe.Sizeof does not evaluate its operand
		}
		call, ok := n.(*ast.CallExpr)
		if !ok || !isTensor(b.pkg.Info.TypeOf(call)) || b.pkg.builtin(call) != "" {
			return true
		}
		if tv, ok := b.pkg.Info.Types[call.Fun]; ok && tv.IsType() {
			return true
		}
		v := b.val(call)
		if v.other {
			return true
		}
		consumer := b.consumer(call)
		t := &temp{call: call, consumer: consumer, places: v.places}
		for _, pl := range v.places {
			if pl.kind == oneTensor || t.from != nil {
				continue
			}
			if t.from, ok = b.origins(call); !ok || !v.fresh {
				return true
			}
		}
		f := b.fate(call)
		dropped := len(f.into) == 0 && !f.escapes && !f.returned
		switch {
		case consumer == nil:
			if !dropped || f.consumer != nil || b.pkg.callee(b, call).result(0).Old {
				return true
			}
		case isTensor(b.pkg.Info.TypeOf(consumer)) && !b.discarded(consumer):
			t.inside = true
		case !dropped:
			return true // a result that is not a tensor may hold it
		case b.followed(consumer):
			return true // it would be held through the next call
		case b.single(consumer) && !b.discarded(consumer):
			t.consumer = b.released(call, consumer)
			t.inside = t.consumer != nil
			if !t.inside && b.enclosed(consumer) {
				return true // as above
			}
		}
		b.temps[call] = t
		if t.inside {
			b.consumed[t.consumer] = append(b.consumed[t.consumer], t)
		}
		b.order = append(b.order, t)
		return true
	})
}

// origins returns the tensors among the operands of call, and of calls that are operands, that its result may be. ok is
// false if there are others, or if an operand cannot be stored where it is evaluated, because a call after it might
// assign it.
func (b *body) origins(call *ast.CallExpr) (list []ast.Expr, ok bool) {
	p := b.pkg
	fact := p.callee(b, call)
	var operands []ast.Expr
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		if s, ok := p.Info.Selections[sel]; ok && s.Kind() == types.MethodVal {
			operands = append(operands, sel.X)
		}
	}
	operands = append(operands, call.Args...)
	for i, e := range operands {
		if _, several := p.Info.TypeOf(e).(*types.Tuple); several || fact == nil {
			return nil, false
		}
		if _, constant := b.plain(e); constant || !slices.Contains(fact.result(0).From, min(i, len(fact.Retains)-1)) {
			continue
		}
		if !isTensor(p.Info.TypeOf(e)) {
			return nil, false
		}
		switch x := ast.Unparen(e).(type) {
		case *ast.Ident, *ast.IndexExpr, *ast.SelectorExpr:
			if slices.ContainsFunc(operands[i+1:], calls) {
				return nil, false
			}
			list = append(list, x)
		case *ast.CallExpr:
			if tv, ok := p.Info.Types[x.Fun]; ok && tv.IsType() || p.builtin(x) != "" {
				return nil, false
			}
			in, ok := b.origins(x)
			if !ok {
				return nil, false
			}
			list = append(list, in...)
		default:
			return nil, false
		}
	}
	return list, len(list) > 0
}

// calls reports whether the evaluation of e may run other functions.
func calls(e ast.Expr) (found bool) {
	each(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			found = true
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		}
		return true
	})
	return found
}

// blank is a result that nothing holds, of a call with several: it is assigned to _, or the call is a
// statement.
type blank struct {
	call *ast.CallExpr
	id   *ast.Ident // nil: the call is a statement
	i    int        // index of the result
}

// findBlanks finds the results to release in statements that are calls with several results.
func (b *body) findBlanks(n ast.Node) (list []*blank) {
	if b.withoutTemps {
		return nil
	}
	var call *ast.CallExpr
	var left []ast.Expr
	switch n := n.(type) {
	case *ast.ExprStmt:
		call, _ = ast.Unparen(n.X).(*ast.CallExpr)
	case *ast.AssignStmt:
		if len(n.Rhs) == 1 && len(n.Lhs) > 1 {
			call, _ = ast.Unparen(n.Rhs[0]).(*ast.CallExpr)
			left = n.Lhs
		}
	}
	if call == nil {
		return nil
	}
	results, ok := b.pkg.Info.TypeOf(call).(*types.Tuple)
	if !ok {
		return nil
	}
	for i := range results.Len() {
		if !isTensor(results.At(i).Type()) {
			continue
		}
		bl := &blank{call: call, i: i}
		if left != nil {
			if bl.id, ok = left[i].(*ast.Ident); !ok || bl.id.Name != "_" {
				continue
			}
		}
		// The result is compared with no variable: another may be assigned in the same statement.
		v := b.callVal(call, i)
		if v.fresh && !v.other && len(v.places) == 0 || b.pkg.fault == forgetBlanks {
			list = append(list, bl)
		}
	}
	return list
}

func (b *body) discarded(e ast.Expr) bool {
	for {
		switch p := b.pkg.parent[e].(type) {
		case *ast.ParenExpr:
			e = p
			continue
		case *ast.ExprStmt:
			return true
		}
		return false
	}
}

// single reports whether e has one value: it is not a call with several results or with none.
func (b *body) single(e ast.Expr) bool {
	_, several := b.pkg.Info.TypeOf(e).(*types.Tuple)
	return !several
}

// released returns the call after which the value of call, which consumer borrows, can be released: consumer, or if its
// result may hold the value, the call that borrows that. It returns nil if no call with one result does.
func (b *body) released(call, consumer *ast.CallExpr) *ast.CallExpr {
	for {
		var operand ast.Expr = call
		for p := b.pkg.parent[operand]; p != ast.Node(consumer) && p != ast.Node(consumer.Fun); p = b.pkg.parent[operand] {
			operand = p.(ast.Expr)
		}
		fact, i := b.pkg.callee(b, consumer), b.pkg.index(consumer, operand)
		last := len(fact.Retains) - 1
		if from := fact.result(0).From; !slices.Contains(from, i) && (i < last || !slices.Contains(from, last)) {
			return consumer
		}
		call = consumer
		if consumer = b.consumer(call); consumer == nil || !b.single(consumer) || b.discarded(consumer) {
			return nil
		}
		if isTensor(b.pkg.Info.TypeOf(consumer)) {
			return consumer // its result is compared
		}
	}
}

// enclosed reports whether a call is in an operand of another one that may run for long.
func (b *body) enclosed(call *ast.CallExpr) bool {
	for n, ok := b.pkg.parent[call].(ast.Expr); ok; n, ok = b.pkg.parent[n].(ast.Expr) {
		outer, is := n.(*ast.CallExpr)
		if is && b.pkg.builtin(outer) == "" && !b.pkg.Info.Types[outer.Fun].IsType() && !b.pkg.prints(outer) {
			return true
		}
	}
	return false
}

// followed reports whether another call of the statement may follow a call with several results. The temporaries that it
// borrows can only be released after the statement, and one that is held until then is memory that a sweep cannot free.
// Calls that print end soon.
func (b *body) followed(call *ast.CallExpr) bool {
	if b.single(call) {
		return false
	}
	calls := func(nodes ...ast.Node) (found bool) {
		for _, n := range nodes {
			each(n, func(m ast.Node) bool {
				c, ok := m.(*ast.CallExpr)
				found = found || ok && b.pkg.builtin(c) == ""
				return !found
			})
		}
		return found
	}
	if b.enclosed(call) {
		return true
	}
	n := b.pkg.parent[call]
	outer, printed := n.(*ast.CallExpr)
	if printed {
		n = b.pkg.parent[outer]
	}
	switch s := n.(type) {
	case *ast.AssignStmt:
		header, ok := b.pkg.parent[s].(*ast.IfStmt)
		if !ok || header.Init != ast.Stmt(s) {
			return len(s.Rhs) > 1
		}
		for header != nil {
			if calls(header.Cond) {
				return true
			}
			if header, _ = header.Else.(*ast.IfStmt); header != nil && header.Init != nil {
				return true
			}
		}
		return len(s.Rhs) > 1
	case *ast.ReturnStmt:
		return len(s.Results) > 1
	}
	return printed && !b.discarded(outer)
}

// consumer returns the call that borrows the value of call, directly or in a list, a struct or an option, or nil.
func (b *body) consumer(call *ast.CallExpr) *ast.CallExpr {
	var e ast.Expr = call
	for {
		switch p := b.pkg.parent[e].(type) {
		case *ast.ParenExpr:
			e = p
		case *ast.KeyValueExpr:
			lit, ok := b.pkg.parent[p].(*ast.CompositeLit)
			if !ok || !b.pkg.element(lit, p) || carries(b.pkg.Info.TypeOf(lit)) {
				return nil
			}
			e = lit
		case *ast.CompositeLit:
			if !b.pkg.element(p, e) || carries(b.pkg.Info.TypeOf(p)) {
				return nil
			}
			e = p
		case *ast.SelectorExpr:
			outer, ok := b.pkg.parent[p].(*ast.CallExpr)
			if !ok || outer.Fun != ast.Expr(p) {
				return nil
			}
			return b.borrower(outer, e)
		case *ast.CallExpr:
			outer := b.borrower(p, e)
			if outer == nil {
				return nil
			}
			t := b.pkg.Info.TypeOf(outer)
			if !carries(t) {
				return outer
			}
			e = outer // an option: continue with the call that takes it
		default:
			return nil
		}
	}
}

// borrower returns call if it borrows its operand e.
func (b *body) borrower(call *ast.CallExpr, e ast.Expr) *ast.CallExpr {
	switch b.pkg.parent[call].(type) {
	case *ast.GoStmt, *ast.DeferStmt:
		return nil
	}
	if call.Fun == e || b.pkg.builtin(call) != "" {
		return nil
	}
	if tv, ok := b.pkg.Info.Types[call.Fun]; ok && tv.IsType() {
		return nil
	}
	fact := b.pkg.callee(b, call)
	i := b.pkg.index(call, e)
	if fact == nil || i < 0 || fact.retains(i) {
		return nil
	}
	return call
}

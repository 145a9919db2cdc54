package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
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

// findUnstable finds the variables that a call may change: those whose address, or that of a part, is taken or that a
// function literal names.
func (b *body) findUnstable() {
	b.unstable = map[types.Object]bool{}
	array := func(e ast.Expr) bool {
		_, is := b.pkg.Info.TypeOf(e).Underlying().(*types.Array)
		return is
	}
	var note func(e ast.Expr)
	note = func(e ast.Expr) {
		switch e := ast.Unparen(e).(type) {
		case *ast.Ident:
			b.unstable[b.pkg.Info.ObjectOf(e)] = true
		case *ast.SelectorExpr:
			if s := b.pkg.Info.Selections[e]; s != nil && !s.Indirect() {
				note(e.X)
			}
		case *ast.IndexExpr:
			if array(e.X) {
				note(e.X)
			}
		}
	}
	each(b.block, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				note(n.X)
			}
		case *ast.SliceExpr:
			if array(n.X) {
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

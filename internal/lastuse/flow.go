package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
	"math/bits"
	"slices"

	"golang.org/x/tools/go/cfg"
)

// owned states whether a place is owned at a point.
type owned uint8

const (
	no owned = iota
	yes
	maybe
)

// set is a set of places, by ID.
type set []uint64

func (s set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s set) put(i int)      { s[i/64] |= 1 << (i % 64) }
func (s set) drop(i int)     { s[i/64] &^= 1 << (i % 64) }

func (s set) union(t set) {
	for i := range s {
		s[i] |= t[i]
	}
}

func (s set) meets(t set) bool {
	for i := range s {
		if s[i]&t[i] != 0 {
			return true
		}
	}
	return false
}

func (s set) equal(t set) bool {
	for i := range s {
		if s[i] != t[i] {
			return false
		}
	}
	return true
}

func (s set) each(f func(i int)) {
	for k, w := range s {
		for ; w != 0; w &= w - 1 {
			f(k*64 + bits.TrailingZeros64(w))
		}
	}
}

func (b *body) newSet() set { return make(set, (len(b.places)+63)/64) }

// The bits in sources: one for each parameter's handles, from bit 0; open, for a slice that other functions may
// access, so that a handle stored in it escapes; and others, for handles of unknown origin.
const (
	open      = 1 << 62
	others    = 1 << 63
	maxParams = 62
)

// state holds the facts at a point of the function.
type state struct {
	own     []owned
	sources []uint64 // origin of the handles in a place that is not owned
	links   []set
	held    set            // places that were assigned something other than nil since their release
	pending map[*temp]bool // temporaries whose consumer has returned
}

func (b *body) newState() *state {
	s := &state{own: make([]owned, len(b.places)), sources: make([]uint64, len(b.places)), links: make([]set, len(b.places)), held: b.newSet(), pending: map[*temp]bool{}}
	for i, pl := range b.places {
		s.links[i] = b.newSet()
		if pl.param >= 0 {
			s.sources[i] = 1 << pl.param
			if pl.kind != oneTensor && (pl.kind != structure || b.pkg.hasSlices(pl.v.Type())) {
				s.sources[i] |= open
			}
		} else {
			s.own[i] = yes // of nothing
		}
	}
	return s
}

func (b *body) clone(s *state) *state {
	c := b.newState()
	copy(c.own, s.own)
	copy(c.sources, s.sources)
	copy(c.held, s.held)
	for i := range s.links {
		copy(c.links[i], s.links[i])
	}
	for t := range s.pending {
		c.pending[t] = true
	}
	return c
}

// join merges the state on another path to the same point into s. It reports whether s changed.
func (b *body) join(s, t *state) bool {
	changed := false
	for i, pl := range b.places {
		own := s.own[i]
		if own != t.own[i] {
			own = maybe
			if pl.noFlag || pl.kind == carrier || pl.kind == closure {
				own = no
			}
			if b.pkg.fault == forgetFlags && pl.loop == nil { // the variable of a loop is out of scope after it
				own = yes
			}
		}
		if own != s.own[i] {
			s.own[i], changed = own, true
		}
		if m := s.sources[i] | t.sources[i]; m != s.sources[i] {
			s.sources[i], changed = m, true
		}
		if !s.links[i].equal(t.links[i]) {
			before := append(set(nil), s.links[i]...)
			s.links[i].union(t.links[i])
			changed = changed || !before.equal(s.links[i])
		}
	}
	for i, w := range t.held {
		if s.held[i]|w != s.held[i] {
			s.held[i] |= w
			changed = true
		}
	}
	for p := range t.pending {
		if !s.pending[p] {
			s.pending[p], changed = true, true
		}
	}
	return changed
}

// link adds that two places may hold the same handle.
func (s *state) link(i, k int) {
	s.links[i].put(k)
	s.links[k].put(i)
}

// unlink removes i from the relation.
func (s *state) unlink(i int) {
	s.links[i].each(func(k int) { s.links[k].drop(i) })
	clear(s.links[i])
}

// use is a read of a place.
type use struct {
	pl   *place
	fate fate
	pos  token.Pos
}

// def is an assignment to a place.
type def struct {
	pl      *place
	val     val
	weak    bool // assigns an element or field
	declare bool
	part    ast.Expr // path of the element or field
	rhs     ast.Expr
}

// event is a node of the control-flow graph, or the start of a block.
type event struct {
	node   ast.Node
	uses   []use
	defs   []def
	temps  []*temp // set if released by a statement
	ret    *ast.ReturnStmt
	before token.Pos // where a statement can be inserted before it; invalid if nowhere
	after  token.Pos
	scope  *types.Scope     // the scope at both positions
	live   set              // where a statement can be inserted after it
	done   bool             // after is the end of a statement although node is nil
	old    map[*place]*temp // the handles that an assignment in the header of an if or switch statement overwrites
	blanks []*blank
}

// replaces reports whether ev also assigns the whole variable of which e assigns an element or field: its name may then
// mean another array than the one in which e put its handle.
func (ev *event) replaces(e def) bool {
	return e.weak && slices.ContainsFunc(ev.defs, func(d def) bool { return !d.weak && d.pl == e.pl })
}

// block is a basic block of the graph. The first of its events is its start.
type block struct {
	*cfg.Block
	events []*event
	in     *state
}

// listOf returns the scope of the statement list that contains s, or nil.
func (p *Package) listOf(s ast.Node) *types.Scope {
	in := func(list []ast.Stmt) bool {
		for _, x := range list {
			if ast.Node(x) == s {
				return true
			}
		}
		return false
	}
	switch parent := p.parent[s].(type) {
	case *ast.BlockStmt:
		return p.scopeOf(parent)
	case *ast.CaseClause:
		if in(parent.Body) {
			return p.Info.Scopes[parent]
		}
	case *ast.CommClause:
		if in(parent.Body) {
			return p.Info.Scopes[parent]
		}
	case *ast.LabeledStmt:
		return p.listOf(parent)
	}
	return nil
}

// scopeOf returns the scope of a block; for a function's body that is the function's.
func (p *Package) scopeOf(block *ast.BlockStmt) *types.Scope {
	switch f := p.parent[block].(type) {
	case *ast.FuncDecl:
		return p.Info.Scopes[f.Type]
	case *ast.FuncLit:
		return p.Info.Scopes[f.Type]
	}
	return p.Info.Scopes[block]
}

// entry returns the position where statements can be inserted at the start of a block, and the scope there.
func (b *body) entry(bl *cfg.Block) (token.Pos, *types.Scope) {
	p := b.pkg
	inside := func(block *ast.BlockStmt) (token.Pos, *types.Scope) { return block.Lbrace + 1, p.scopeOf(block) }
	switch bl.Kind {
	case cfg.KindForBody:
		return inside(bl.Stmt.(*ast.ForStmt).Body)
	case cfg.KindRangeBody:
		return inside(bl.Stmt.(*ast.RangeStmt).Body)
	case cfg.KindIfThen:
		return inside(bl.Stmt.(*ast.IfStmt).Body)
	case cfg.KindIfElse:
		if e, ok := bl.Stmt.(*ast.IfStmt).Else.(*ast.BlockStmt); ok {
			return inside(e)
		}
	case cfg.KindForDone, cfg.KindRangeDone, cfg.KindIfDone, cfg.KindSwitchDone, cfg.KindSelectDone:
		if s := p.listOf(bl.Stmt); s != nil {
			return bl.Stmt.End(), s
		}
	case cfg.KindSwitchCaseBody:
		if c, ok := bl.Stmt.(*ast.CaseClause); ok {
			return c.Colon + 1, p.Info.Scopes[c]
		}
	case cfg.KindSelectCaseBody:
		if c, ok := bl.Stmt.(*ast.CommClause); ok {
			return c.Colon + 1, p.Info.Scopes[c]
		}
	}
	return token.NoPos, nil
}

// blocks returns the blocks of the graph with their events.
func (b *body) blocks() []*block {
	var list []*block
	for _, g := range b.graph.Blocks {
		bl := &block{Block: g}
		start := &event{}
		start.after, start.scope = b.entry(g)
		switch g.Kind {
		case cfg.KindForDone, cfg.KindRangeDone, cfg.KindIfDone, cfg.KindSwitchDone, cfg.KindSelectDone:
			start.done = true
		}
		if r, ok := g.Stmt.(*ast.RangeStmt); ok {
			if h := b.headers[r]; h != nil && b.pkg.fault != forgetHeaders {
				switch g.Kind {
				case cfg.KindRangeLoop:
					start.uses = append(start.uses, use{pl: h})
				}
			}
			if g.Kind == cfg.KindRangeBody {
				for _, l := range []ast.Expr{r.Key, r.Value} {
					if l == nil {
						continue
					}
					if _, name := ast.Unparen(l).(*ast.Ident); !name {
						b.read(start, l) // evaluated in each iteration
					}
					if pl := b.placeOf(l); pl != nil {
						v := val{other: true}
						if h := b.headers[r]; h != nil {
							v.places = []*place{h}
							_, elements := b.pkg.Info.TypeOf(r.X).Underlying().(*types.Slice)
							v.other = !elements // what a function yields is unknown
						}
						start.defs = append(start.defs, def{pl: pl, val: v, declare: r.Tok == token.DEFINE})
					}
				}
			}
		}
		bl.events = append(bl.events, start)
		for _, n := range g.Nodes {
			if r, ok := b.pkg.parent[n].(*ast.RangeStmt); ok && (n == ast.Node(r.Key) || n == ast.Node(r.Value)) {
				continue
			}
			if as, ok := b.pkg.parent[n].(*ast.AssignStmt); ok && g.Kind == cfg.KindSelectCaseBody && n == ast.Node(as.Lhs[0]) {
				continue
			}
			bl.events = append(bl.events, b.event(n))
		}
		list = append(list, bl)
	}
	return list
}

func (b *body) event(n ast.Node) *event {
	p := b.pkg
	ev := &event{node: n}
	if s, ok := n.(ast.Stmt); ok {
		if _, ret := s.(*ast.ReturnStmt); ret {
			ev.ret = s.(*ast.ReturnStmt)
			if ev.scope = p.listOf(n); ev.scope != nil {
				ev.before = s.Pos()
			}
		} else if ev.scope = p.listOf(n); ev.scope != nil {
			ev.before, ev.after = s.Pos(), s.End()
			if x, ok := s.(*ast.ExprStmt); ok {
				if c, ok := ast.Unparen(x.X).(*ast.CallExpr); ok && p.isPanic(c) {
					ev.after = token.NoPos
				}
			}
		}
	}
	if spec, ok := n.(*ast.ValueSpec); ok {
		if d, ok := p.parent[n].(*ast.GenDecl); ok {
			if s, ok := p.parent[d].(*ast.DeclStmt); ok && d.Specs[len(d.Specs)-1] == ast.Spec(spec) {
				if ev.scope = p.listOf(s); ev.scope != nil {
					ev.after = s.End()
				}
			}
		}
	}
	// An assignment in the header of a statement: the old value is saved before the statement.
	switch s := p.parent[n].(type) {
	case *ast.IfStmt:
		if ast.Node(s.Init) == n {
			ev.scope = p.listOf(s)
		}
	case *ast.SwitchStmt:
		if ast.Node(s.Init) == n {
			ev.scope = p.listOf(s)
		}
	}
	if !ev.after.IsValid() && ev.scope != nil && ev.ret == nil {
		if s, ok := p.parent[n].(ast.Stmt); ok {
			_, labelled := p.parent[s].(*ast.LabeledStmt) // the label is the statement's
			switch s.(type) {
			case *ast.IfStmt, *ast.SwitchStmt:
				if !labelled {
					ev.before, ev.old = s.Pos(), map[*place]*temp{}
				}
			}
		}
	}
	b.read(ev, n)
	assign := func(l ast.Expr, v val, rhs ast.Expr, declare bool) {
		l = ast.Unparen(l)
		if pl := b.placeOf(l); pl != nil {
			ev.defs = append(ev.defs, def{pl: pl, val: v, rhs: rhs, declare: declare})
			return
		}
		if pl := b.base(l); pl != nil {
			ev.defs = append(ev.defs, def{pl: pl, val: v, weak: true, part: l, rhs: rhs})
		}
	}
	declared := func(l ast.Expr) bool {
		id, ok := l.(*ast.Ident)
		return ok && p.Info.Defs[id] != nil
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.ASSIGN && n.Tok != token.DEFINE {
			break
		}
		for i, l := range n.Lhs {
			assign(l, b.nthVal(n.Rhs, len(n.Lhs), i), n.Rhs[min(i, len(n.Rhs)-1)], declared(l))
		}
	case *ast.ValueSpec:
		for i, id := range n.Names {
			v := val{}
			if len(n.Values) > 0 {
				v = b.nthVal(n.Values, len(n.Names), i)
			}
			assign(id, v, nil, true)
		}
	case ast.Expr:
		if r, ok := p.parent[n].(*ast.RangeStmt); ok && r.X == n && b.headers[r] != nil {
			ev.defs = append(ev.defs, def{pl: b.headers[r], val: b.val(n), declare: true})
		}
	}
	ev.blanks = b.findBlanks(n)
	return ev
}

// read adds the uses of places in n to ev, and its temporaries.
func (b *body) read(ev *event, n ast.Node) {
	p := b.pkg
	each(n, func(m ast.Node) bool {
		switch m := m.(type) {
		case *ast.Ident:
			pl := b.placeOf(m)
			if pl == nil || p.Info.Uses[m] == nil {
				return true
			}
			f := b.fate(m)
			if f.assigned {
				return true
			}
			ev.uses = append(ev.uses, use{pl, f, m.Pos()})
			if pl.kind == closure {
				for _, c := range b.captures[pl.lit] {
					if p.fault == forgetCaptures {
						break
					}
					ev.uses = append(ev.uses, use{c, fate{}, m.Pos()})
				}
			}
		case *ast.FuncLit:
			for _, c := range b.captures[m] {
				if p.fault == forgetCaptures {
					break
				}
				ev.uses = append(ev.uses, use{c, fate{}, m.Pos()})
			}
		case *ast.CallExpr:
			if t := b.temps[m]; t != nil && !t.inside {
				ev.temps = append(ev.temps, t)
			}
			ev.uses = append(ev.uses, b.appends(m)...)
		}
		return true
	})
}

// appends returns uses by which the handles of a call escape that may append to a slice.
func (b *body) appends(call *ast.CallExpr) (uses []use) {
	n := 1
	if all, ok := b.pkg.Info.TypeOf(call).(*types.Tuple); ok {
		n = all.Len()
	}
	for k := range n {
		f := b.extension(call, k)
		if !f.escapes {
			continue
		}
		for _, pl := range b.resultVal(call, k).places {
			uses = append(uses, use{pl, f, call.Pos()})
		}
	}
	return uses
}

// extension returns the fate of handles that a call may append to a slice, which its k-th result then is. They escape if
// that is neither assigned to a variable nor returned: the write into the slice's array is seen by all who share that.
func (b *body) extension(call *ast.CallExpr, k int) fate {
	if !b.resultVal(call, k).appended || b.keeps(call, k) {
		return fate{}
	}
	return escape("it may be in the array of a slice that others hold")
}

// keeps reports whether the k-th result of a call is assigned to a variable or returned, directly or by an append.
func (b *body) keeps(call *ast.CallExpr, k int) bool {
	var e ast.Expr = call
	for {
		switch p := b.pkg.parent[e].(type) {
		case *ast.ParenExpr:
			e = p
		case *ast.CallExpr:
			if b.pkg.builtin(p) != "append" || p.Args[0] != e {
				return false
			}
			e = p
		case *ast.AssignStmt:
			if len(p.Lhs) != len(p.Rhs) {
				return len(p.Rhs) == 1 && k < len(p.Lhs) && b.isPlace(p.Lhs[k])
			}
			for i, r := range p.Rhs {
				if r == e {
					return b.isPlace(p.Lhs[i])
				}
			}
			return false
		case *ast.ValueSpec:
			if len(p.Names) != len(p.Values) {
				return k < len(p.Names) && b.isPlace(p.Names[k])
			}
			for i, r := range p.Values {
				if r == e {
					return b.isPlace(p.Names[i])
				}
			}
			return false
		case *ast.ReturnStmt:
			return true
		default:
			return false
		}
	}
}

// isPlace reports whether l is a place, or an element or field of one.
func (b *body) isPlace(l ast.Expr) bool { return b.placeOf(l) != nil || b.base(ast.Unparen(l)) != nil }

func (b *body) nthVal(rhs []ast.Expr, n, i int) val {
	if len(rhs) == n {
		return b.val(rhs[i])
	}
	return b.resultVal(rhs[0], i)
}

// liveness computes the live places after each event.
func (b *body) liveness(list []*block) {
	in := make([]set, len(list))
	for i := range in {
		in[i] = b.newSet()
	}
	for changed := true; changed; {
		changed = false
		for i := len(list) - 1; i >= 0; i-- {
			bl := list[i]
			live := b.newSet()
			for _, s := range bl.Succs {
				live.union(in[s.Index])
			}
			for k := len(bl.events) - 1; k >= 0; k-- {
				ev := bl.events[k]
				ev.live = append(ev.live[:0], live...)
				for _, d := range ev.defs {
					if !d.weak {
						live.drop(d.pl.id)
					}
				}
				for _, u := range ev.uses {
					if ev.ret == nil || b.pkg.fault != forgetReturns {
						live.put(u.pl.id)
					}
				}
				if ev.ret != nil && len(ev.ret.Results) == 0 {
					for _, pl := range b.namedResults() {
						if pl != nil {
							live.put(pl.id)
						}
					}
				}
			}
			if !live.equal(in[i]) {
				in[i], changed = live, true
			}
		}
	}
}

// namedResults returns the places of the results, nil for results without one.
func (b *body) namedResults() (list []*place) {
	for v := range b.sig.Results().Variables() {
		list = append(list, b.byVar[v])
	}
	return list
}

// flow analyses the function to a fixed point. A last pass with out writes the text to insert and computes the
// facts.
func (b *body) flow(out *output) {
	if b.leave != "" {
		for i := range b.fact.Retains {
			b.fact.Retains[i] = true
		}
		for i := range b.fact.Results {
			b.fact.Results[i].Other = true
		}
		return
	}
	// A result variable that is not a place may hold any handle.
	for i, v := range b.results() {
		if v.Name() != "" && v.Name() != "_" && b.byVar[v] == nil && b.pkg.holds(v.Type()) {
			b.fact.Results[i].Other = true
		}
	}
	b.findTemps()
	list := b.blocks()
	b.liveness(list)
	for {
		b.fixpoint(list)
		dry := &output{body: b, dry: true}
		b.emit(list, dry)
		if !dry.again {
			break
		}
	}
	if out != nil {
		out.body = b
		b.emit(list, out)
	}
}

func (b *body) results() (list []*types.Var) {
	for v := range b.sig.Results().Variables() {
		list = append(list, v)
	}
	return list
}

func (b *body) fixpoint(list []*block) {
	for _, bl := range list {
		bl.in = nil
	}
	list[0].in = b.newState()
	work := []*block{list[0]}
	queued := map[*block]bool{list[0]: true}
	for len(work) > 0 {
		bl := work[0]
		work = work[1:]
		queued[bl] = false
		st := b.clone(bl.in)
		for _, ev := range bl.events {
			b.step(st, ev, nil)
		}
		for _, s := range bl.Succs {
			to := list[s.Index]
			changed := to.in == nil
			if changed {
				to.in = b.clone(st)
			} else {
				changed = b.join(to.in, st)
			}
			if changed && !queued[to] {
				queued[to] = true
				work = append(work, to)
			}
		}
	}
}

func (b *body) emit(list []*block, out *output) {
	for _, bl := range list {
		if bl.in == nil {
			continue
		}
		st := b.clone(bl.in)
		for _, ev := range bl.events {
			b.step(st, ev, out)
		}
	}
}

// reach returns the places that may hold a handle of v: v itself and those linked to it.
func (b *body) reach(st *state, v val) set {
	s := b.newSet()
	for _, pl := range v.places {
		s.put(pl.id)
		s.union(st.links[pl.id])
	}
	return s
}

// retain records that a place's handles escape.
func (b *body) retain(st *state, pl *place) {
	s := b.newSet()
	s.put(pl.id)
	s.union(st.links[pl.id])
	for i, v := range b.params {
		if b.byVar[v] != nil && st.sources[pl.id]&(1<<i) != 0 {
			b.fact.Retains[i] = true
		}
	}
	if b.pkg.fault == forgetEscapes {
		return
	}
	s.each(func(i int) {
		st.own[i] = no
		st.sources[i] |= others
	})
}

// step applies an event to a state. With out, it also writes the text to insert.
func (b *body) step(st *state, ev *event, out *output) {
	var was []owned
	if out != nil {
		was = append(was, st.own...)
	}
	// The uses.
	for _, u := range ev.uses {
		if !u.fate.escapes {
			continue
		}
		if out != nil && st.own[u.pl.id] != no {
			out.left(u)
		}
		if b.breach != nil && u.fate.stored && st.own[u.pl.id] != yes && st.sources[u.pl.id]&(1<<b.watched) != 0 {
			b.breach(u.pos, false, u.fate.why)
		}
		b.retain(st, u.pl)
	}
	if ev.ret != nil {
		b.leaveBy(st, ev, out)
		return
	}
	// The assignments, all computed from the state before.
	if len(ev.defs) > 0 {
		b.assign(st, ev, out)
	}
	if out != nil {
		out.pop(ev)
		out.loop(st, ev)
		out.flags(st, ev, was)
	}
	if out != nil && !out.dry {
		out.releaseBlanks(ev)
	}
	for _, t := range ev.temps {
		st.pending[t] = true
	}
	if ev.after.IsValid() {
		b.release(st, ev, out)
	}
}

// assignment is the assignments of an event in a state.
type assignment struct {
	*body
	st      *state
	ev      *event
	out     *output
	defined set      // the places that are assigned as a whole
	res     []result // for each of ev.defs
}

// result is what an assignment gives to its place.
type result struct {
	own     owned
	sources uint64
	reach   set
	dynamic string // if own is maybe: the value of the place's flag
}

func (b *body) assign(st *state, ev *event, out *output) {
	a := &assignment{b, st, ev, out, b.newSet(), make([]result, len(ev.defs))}
	for _, d := range ev.defs {
		if !d.weak {
			a.defined.put(d.pl.id)
		}
	}
	for i, d := range ev.defs {
		a.res[i] = a.result(d)
		if d.weak || d.val.appended {
			a.escapeInto(d, &a.res[i])
		}
	}
	if out != nil {
		for i, d := range ev.defs {
			if a.res[i].own != yes {
				out.mixed(st, d)
			}
		}
	}
	arrays := make([]set, len(ev.defs))
	for i, d := range ev.defs {
		arrays[i] = b.arrays(st, d)
	}
	for _, d := range ev.defs {
		switch {
		case !d.weak:
			a.overwrite(d, arrays)
		case out != nil && d.pl.kind == structure:
			out.overwriteField(st, ev, d, a.res)
		}
	}
	if out != nil {
		out.overwriteElements(st, ev, a.res)
	}
	a.relink()
	if b.pkg.fault != forgetArrays {
		a.shareArrays(arrays)
	}
}

// result computes the result of d from the state before the event.
func (a *assignment) result(d def) result {
	st, ev, out := a.st, a.ev, a.out
	r := result{own: yes, reach: a.reach(st, d.val)}
	if d.val.other {
		r.own, r.sources = no, others
	}
	var one *place
	same := len(d.val.places) > 0
	for _, w := range d.val.places {
		if st.own[w.id] != yes {
			r.sources |= st.sources[w.id]
			r.own = no
		}
		if one != nil && one != w {
			same = false
		}
		one = w
	}
	if r.own != no || !same || d.val.other || d.pl.kind != oneTensor || one.kind != oneTensor || d.pl.noFlag || d.weak || !ev.after.IsValid() {
		return r
	}
	switch {
	case !d.val.fresh && one != d.pl:
		if st.own[one.id] == maybe && !a.defined.has(one.id) {
			r.own, r.dynamic = maybe, out.flagOf(one)
		}
	case !d.val.fresh:
		r.own, r.dynamic = st.own[one.id], out.flagOf(d.pl)
	case one == d.pl:
		if ev.before.IsValid() && !d.declare {
			r.own = maybe
			if out != nil {
				r.dynamic = d.pl.v.Name() + " != " + out.save(ev, d.pl)
				if st.own[one.id] == maybe {
					r.dynamic = out.flagOf(d.pl) + " || " + r.dynamic
				}
			}
		}
	case !a.defined.has(one.id) && a.names(one, ev, ev.after):
		r.own = maybe
		if out != nil {
			r.dynamic = d.pl.v.Name() + " != " + one.v.Name()
			if st.own[one.id] == maybe {
				r.dynamic = out.flagOf(one) + " || " + r.dynamic
			}
		}
	}
	return r
}

// escapeInto lets the handles of d escape, which assigns an element or field or appends, if it puts them where other
// functions may see them.
func (a *assignment) escapeInto(d def, r *result) {
	st := a.st
	seen := d.weak && st.own[d.pl.id] != yes && st.sources[d.pl.id]&(open|others) != 0
	if !seen && !a.extends(st, d.val, open|others) {
		return
	}
	r.own = no
	r.sources |= others
	// The slice may now hold handles that others hold too, so no caller may release its elements.
	mixed := d.val.other
	for _, w := range d.val.places {
		mixed = mixed || w != d.pl
	}
	if d.weak && mixed && a.pkg.fault != forgetArrays {
		a.retain(st, d.pl)
	}
	for _, w := range d.val.places {
		if w == d.pl && !d.val.appended {
			continue
		}
		if a.out != nil && st.own[w.id] != no {
			a.out.left(use{w, stored("it is stored in a slice that other functions may hold"), a.ev.node.Pos()})
		}
		a.retain(st, w)
	}
}

// overwrite releases the value that d overwrites, of a whole place. arrays has the other places that may see what each
// assignment of the event writes into an array.
func (a *assignment) overwrite(d def, arrays []set) {
	st, ev, pl := a.st, a.ev, d.pl
	own := st.own[pl.id]
	if own == no || !st.held.has(pl.id) || d.declare {
		return
	}
	for k, e := range ev.defs {
		if _, element := e.part.(*ast.IndexExpr); element && (e.pl == pl || arrays[k].has(pl.id)) {
			return // the old slice may now hold a handle that is in use
		}
	}
	if ev.old != nil && pl.kind == oneTensor && own == yes && a.names(pl, ev, ev.before) {
		a.overwriteInHeader(pl)
		return
	}
	if a.out == nil || pl.kind == carrier || pl.kind == closure || !ev.before.IsValid() || !ev.after.IsValid() || !a.names(pl, ev, ev.before) {
		return
	}
	if u, ok := a.holders(pl, ev.after); ok {
		a.out.overwrite(st, ev, pl, u)
	}
}

// overwriteInHeader is overwrite for the header of a statement, which makes the old value a temporary.
func (a *assignment) overwriteInHeader(pl *place) {
	ev := a.ev
	u, ok := a.holders(pl, ev.before)
	// Another header between this one and the release could assign the places to compare with.
	if s, is := a.pkg.parent[ev.node].(*ast.IfStmt); is && !u.empty() {
		_, chain := s.Else.(*ast.IfStmt)
		ok = ok && !chain
	}
	if ok {
		t := ev.old[pl]
		if t == nil {
			t = &temp{old: pl, event: ev}
			ev.old[pl] = t
			a.order = append(a.order, t)
		}
		a.st.pending[t] = true
	}
	// The states of earlier rounds of the fixed point had fewer links; the final state decides.
	if t := ev.old[pl]; t != nil && a.out != nil {
		t.allowed, t.unless = ok, u
	}
}

// holders returns the variables that may hold pl's old value after the event. ok is false if the release cannot compare
// with one of them, whose name is needed at pos.
func (a *assignment) holders(pl *place, pos token.Pos) (u unless, ok bool) {
	ok = true
	compare := func(w *place) { ok = ok && a.names(w, a.ev, pos) && u.add(a.pkg, w) }
	for k, e := range a.ev.defs {
		if a.res[k].reach.has(pl.id) && a.pkg.fault != forgetAssigned {
			compare(e.pl)
			ok = ok && !a.ev.replaces(e)
		}
	}
	a.st.links[pl.id].each(func(w int) {
		if !a.defined.has(w) && a.ev.live.has(w) {
			compare(a.places[w])
		}
	})
	return u, ok
}

// relink gives the places their results and links.
func (a *assignment) relink() {
	st, ev := a.st, a.ev
	links := make([]set, len(ev.defs))
	for i, d := range ev.defs {
		links[i] = a.newSet()
		links[i].union(a.res[i].reach)
		a.defined.each(func(k int) { links[i].drop(k) })
		for k, e := range ev.defs {
			if k != i && e.pl != d.pl && a.res[i].reach.meets(a.res[k].reach) {
				links[i].put(e.pl.id)
			}
		}
		if d.weak {
			links[i].drop(d.pl.id)
		}
	}
	for _, d := range ev.defs {
		if !d.weak {
			st.unlink(d.pl.id)
		}
	}
	for i, d := range ev.defs {
		id := d.pl.id
		r := a.res[i]
		if d.weak {
			r.sources |= st.sources[id]
			if st.own[id] != yes {
				r.own = no
			}
			links[i].union(st.links[id])
			// The places that s is linked to may hold the same array, so they are linked to the new element too.
			group := append(set(nil), links[i]...)
			group.each(func(k int) { links[i].union(st.links[k]) })
			links[i].drop(id)
		}
		if r.own == yes {
			r.sources = 0
		}
		st.own[id], st.sources[id] = r.own, r.sources
		if d.val.other || d.val.fresh || len(d.val.places) > 0 {
			st.held.put(id)
		} else if !d.weak {
			st.held.drop(id)
		}
		links[i].each(func(k int) {
			if k != id {
				st.link(id, k)
			}
		})
		if a.out != nil {
			a.out.defined(ev, d, r.own, r.dynamic)
		}
	}
}

// shareArrays gives the results to the places that may hold the arrays of the slices that are written: arrays has those
// of each assignment.
func (a *assignment) shareArrays(arrays []set) {
	st := a.st
	for i, r := range a.res {
		arrays[i].each(func(k int) {
			if a.defined.has(k) {
				return
			}
			if r.own != yes {
				st.own[k] = no
				st.sources[k] |= r.sources
			}
			st.held.put(k)
			r.reach.each(func(j int) {
				if j != k && !a.defined.has(j) {
					st.link(k, j)
				}
			})
			if id := a.ev.defs[i].pl.id; id != k {
				st.link(k, id)
			}
		})
	}
}

// extends reports whether v may be in the array of a slice that append extended, and that array is unknown or of a place
// that is not owned and has one of the sources.
func (b *body) extends(st *state, v val, sources uint64) bool {
	for _, w := range v.places {
		if v.appended && w.kind != oneTensor && st.own[w.id] != yes && st.sources[w.id]&sources != 0 {
			return true
		}
	}
	return v.unknown
}

// arrays returns the other places that may see what d writes into the array of a slice: d assigns an element,
// or appends.
func (b *body) arrays(st *state, d def) set {
	s := b.newSet()
	see := func(pl *place) {
		if pl.kind == oneTensor {
			return
		}
		s.put(pl.id)
		st.links[pl.id].each(func(k int) {
			if b.places[k].kind != oneTensor {
				s.put(k)
			}
		})
	}
	if _, element := d.part.(*ast.IndexExpr); element {
		see(d.pl)
	}
	if d.val.appended {
		for _, w := range d.val.places {
			see(w)
		}
	}
	s.drop(d.pl.id)
	return s
}

// names reports whether pl's name refers to pl at pos, in the scope of ev's list.
func (b *body) names(pl *place, ev *event, pos token.Pos) bool {
	if pl.v == nil || !pos.IsValid() || ev.scope == nil {
		return false
	}
	if pl.loop != nil {
		return !b.withoutTemps
	}
	_, o := ev.scope.LookupParent(pl.v.Name(), pos)
	if b.pkg.fault == forgetNames && o != nil {
		return types.Identical(o.Type(), pl.v.Type())
	}
	return o == types.Object(pl.v)
}

// ended reports whether pl's variable is out of scope in ev's list.
func (pl *place) ended(ev *event) bool {
	if pl.v == nil || pl.v.Parent() == nil {
		return false
	}
	for s := ev.scope; s != nil; s = s.Parent() {
		if s == pl.v.Parent() {
			return false
		}
	}
	return true
}

// release releases the places that may be released after an event.
func (b *body) release(st *state, ev *event, out *output) {
	pos := ev.after
	if out != nil {
		for _, t := range b.order {
			if st.pending[t] {
				out.releaseTemp(ev, t)
			}
		}
	}
	clear(st.pending)
	for i, pl := range b.places {
		if ev.live.has(i) {
			continue
		}
		if pl.ended(ev) {
			if st.own[i] != no && st.held.has(i) && out != nil && !st.links[i].meets(ev.live) {
				out.ended(pl)
			}
			st.own[i], st.sources[i] = no, 0
			st.held.drop(i)
			st.unlink(i)
			continue
		}
		if st.own[i] == no || !st.held.has(i) || pl.kind == carrier || pl.kind == closure {
			st.unlink(i)
			continue
		}
		var u unless
		ok := b.names(pl, ev, pos)
		st.links[i].each(func(k int) {
			if ev.live.has(k) && b.pkg.fault != forgetLinks {
				ok = ok && b.names(b.places[k], ev, pos) && u.add(b.pkg, b.places[k])
			}
		})
		if !ok {
			continue
		}
		if out != nil {
			out.releasePlace(ev, pl, st.own[i], u)
		}
		st.own[i], st.sources[i] = no, 0
		st.held.drop(i)
		st.unlink(i)
	}
}

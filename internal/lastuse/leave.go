package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"
)

// leaveBy is step for a return statement: it updates the facts of the results and releases the owned places
// whose handles are not returned.
func (b *body) leaveBy(st *state, ev *event, out *output) {
	vals := b.returned(ev)
	for _, v := range vals {
		all := b.extends(st, v, others) // handles were put into an array of which the caller does not know
		for _, pl := range v.places {
			// A handle of unknown origin was put into the array of a slice that others may hold.
			if all || v.appended && v.other && pl.kind != oneTensor {
				if out != nil && all && st.own[pl.id] != no {
					out.left(use{pl, stored("it is stored in a slice that other functions may hold"), ev.node.Pos()})
				}
				b.retain(st, pl)
			}
		}
	}
	b.resultFacts(st, vals)
	if b.breach != nil {
		for _, e := range ev.ret.Results {
			if name := b.keptIn(e); name != "" {
				b.breach(e.Pos(), true, name)
			}
		}
	}
	if out != nil && ev.before.IsValid() {
		out.leave(st, ev, vals)
	}
}

// keptIn returns the name of the field or variable in which a layer keeps e: a field of the receiver, a package
// variable, or what one of them holds. It returns "" for all others: what a local variable holds may have been made in
// this call.
func (b *body) keptIn(e ast.Expr) (name string) {
	switch of, field := b.root(e); {
	case isPackage(of) || of == types.Object(b.params[0]):
		return field
	case global(of) && field == "":
		return of.Name()
	case global(of):
		return field
	}
	return ""
}

// root returns the variable of which e is a part, or the package of another package's variable, and the name of the last
// field on the way. The variable is nil for all others.
func (b *body) root(e ast.Expr) (of types.Object, field string) {
	for {
		switch x := ast.Unparen(e).(type) {
		case *ast.SelectorExpr:
			if field == "" {
				field = x.Sel.Name
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.Ident:
			return b.pkg.Info.ObjectOf(x), field
		default:
			return nil, ""
		}
	}
}

func isPackage(o types.Object) bool {
	_, ok := o.(*types.PkgName)
	return ok
}

// global reports whether o is a package variable.
func global(o types.Object) bool {
	v, ok := o.(*types.Var)
	return ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope()
}

// returned returns the vals of the results.
func (b *body) returned(ev *event) []val {
	n := b.sig.Results().Len()
	vals := make([]val, n)
	exprs := ev.ret.Results
	for i, v := range b.results() {
		switch {
		case len(exprs) == 0:
			if pl := b.byVar[v]; pl != nil {
				vals[i].places = []*place{pl}
			}
		case len(exprs) == n:
			vals[i] = b.val(exprs[i])
		default:
			vals[i] = b.callVal(ast.Unparen(exprs[0]).(*ast.CallExpr), i)
		}
	}
	return vals
}

func (b *body) resultFacts(st *state, vals []val) {
	reach := make([]set, len(vals))
	for i, v := range vals {
		reach[i] = b.reach(st, v)
	}
	for i, v := range vals {
		r := &b.fact.Results[i]
		if v.other {
			r.Other = true
		}
		for _, pl := range v.places {
			if st.own[pl.id] == yes {
				continue
			}
			src := st.sources[pl.id]
			if src&others != 0 {
				r.Other = true
			}
			for k := range b.params {
				if src&(1<<k) != 0 {
					r.addFrom(k)
				}
			}
		}
		for k := range vals {
			if k != i && reach[i].meets(reach[k]) && b.pkg.fault != forgetTwins {
				r.Other = true
			}
		}
	}
}

func (r *Result) addFrom(k int) {
	for i, f := range r.From {
		if f == k {
			return
		}
		if f > k {
			r.From = append(r.From[:i], append([]int{k}, r.From[i:]...)...)
			return
		}
	}
	r.From = append(r.From, k)
}

// returning is a return statement that releases places.
type returning struct {
	ev     *event
	vals   []val
	tuple  bool            // one call has all results
	direct map[*place]bool // returned by name
	stored []int           // results that need a variable
	names  []string        // for each of vals: the variable of the result, "" if there is none
}

// leaving is a place that a return statement releases.
type leaving struct {
	pl     *place
	unless unless
}

// leave releases the owned places whose handles the function does not return: before the statement if the
// results are names and constants, and otherwise after their evaluation and before the return.
func (o *output) leave(st *state, ev *event, vals []val) {
	b := o.body
	r := b.returning(ev, vals)
	jobs := o.leaving(st, r)
	if o.dry || len(jobs) == 0 && len(ev.temps) == 0 {
		return
	}
	why := ""
	switch {
	case len(r.stored) == 0:
	case !b.storable(ev, r.tuple):
		why = "the results of line %d cannot be stored without a change of order"
	case b.defers && o.line(ev.before) != o.line(ev.ret.End()):
		why = "a deferred call would see another line than %d, where the return statement begins"
	}
	if why != "" {
		for _, j := range jobs {
			o.note(j.pl.v.Pos(), j.pl.v.Name(), false, why, o.line(ev.before))
		}
		return
	}
	var texts []string
	at := o.at(ev.before)
	if len(r.stored) > 0 {
		at = o.at(ev.ret.End() - 1)
	}
	for _, t := range ev.temps {
		texts = append(texts, o.hold(t)+".LastUse("+at+")")
		o.note(t.call.Pos(), "result of "+calleeName(t.call), true, "released before the return in line %d", o.line(ev.before))
	}
	for _, j := range jobs {
		text := o.releaseText(j.pl, j.pl.v.Name(), at, j.unless)
		texts = append(texts, o.guarded(j.pl, st.own[j.pl.id], text, false))
		when := ""
		if st.own[j.pl.id] == maybe {
			when = ", if its flag is set"
		}
		o.note(j.pl.v.Pos(), j.pl.v.Name(), true, "released before the return in line %d%s", o.line(ev.before), when)
	}
	release := strings.Join(texts, "; ") + "; "
	if len(r.stored) == 0 {
		o.insert(ev.before, 2, release)
		return
	}
	o.storeResults(r, release)
}

func (b *body) returning(ev *event, vals []val) *returning {
	exprs := ev.ret.Results
	r := &returning{ev: ev, vals: vals, tuple: len(exprs) == 1 && len(vals) > 1, direct: map[*place]bool{}, names: make([]string, len(vals))}
	for i, e := range exprs {
		if pl := b.placeOf(e); pl != nil {
			r.direct[pl] = true
		}
		if !b.simple(e) {
			r.stored = append(r.stored, i)
		}
	}
	if len(exprs) == 0 {
		for _, pl := range b.namedResults() {
			if pl != nil {
				r.direct[pl] = true
			}
		}
	}
	return r
}

// leaving returns the places to release. It names the results with which the releases compare.
func (o *output) leaving(st *state, r *returning) (jobs []leaving) {
	b, ev, exprs := o.body, r.ev, r.ev.ret.Results
	for _, pl := range b.places {
		if st.own[pl.id] == no || !st.held.has(pl.id) || r.direct[pl] || pl.kind >= carrier || !b.names(pl, ev, ev.before) {
			continue
		}
		j := leaving{pl: pl}
		ok := true
		st.links[pl.id].each(func(k int) {
			if w := b.places[k]; r.direct[w] {
				ok = ok && j.unless.add(b.pkg, w)
			}
		})
		for i, v := range r.vals {
			if len(exprs) == 0 || !r.tuple && b.placeOf(exprs[i]) != nil || !b.reach(st, v).has(pl.id) {
				continue
			}
			if !isTensor(b.returnType(ev, i)) {
				ok = false
				break
			}
			j.unless.name(o.resultName(r, i))
		}
		if ok {
			jobs = append(jobs, j)
			if st.own[pl.id] == maybe {
				o.flagOf(pl)
			}
		}
	}
	return jobs
}

// resultName returns the name of the variable of the i-th result.
func (o *output) resultName(r *returning, i int) string {
	if r.names[i] == "" {
		r.names[i] = o.name("r")
	}
	return r.names[i]
}

// storeResults stores the results in variables, which the statement returns after the text release.
func (o *output) storeResults(r *returning, release string) {
	b, ev := o.body, r.ev
	var left, right []string
	if r.tuple {
		for i := range r.vals {
			left = append(left, o.resultName(r, i))
		}
		right = left
	} else {
		for i, e := range ev.ret.Results {
			if b.simple(e) {
				left = append(left, "_")
				right = append(right, b.pkg.text(e))
				// nil has no type of its own here, and a constant perhaps one in which it does not fit.
				if tv := b.pkg.Info.Types[e]; tv.IsNil() || tv.Value != nil {
					o.edits = append(o.edits, edit{e.Pos(), e.End(), 0, len(o.edits), "0"})
				}
				continue
			}
			left = append(left, o.resultName(r, i))
			right = append(right, o.resultName(r, i))
		}
	}
	o.edits = append(o.edits, edit{ev.before, ev.before + token.Pos(len("return")), 3, len(o.edits), strings.Join(left, ", ") + " :="})
	o.insert(ev.ret.End(), 1, "; "+release+"return "+strings.Join(right, ", "))
}

// instance reports whether e is a generic function that is not called: its type arguments may come from the result.
func (b *body) instance(e ast.Expr) bool {
	if index, ok := e.(*ast.IndexExpr); ok {
		e = ast.Unparen(index.X)
	}
	id, _ := e.(*ast.Ident)
	if sel, ok := e.(*ast.SelectorExpr); ok {
		id = sel.Sel
	}
	_, is := b.pkg.Info.Instances[id]
	return is
}

func (b *body) returnType(ev *event, i int) types.Type {
	if len(ev.ret.Results) == b.sig.Results().Len() {
		return b.pkg.Info.TypeOf(ev.ret.Results[i])
	}
	if t, ok := b.pkg.Info.TypeOf(ev.ret.Results[0]).(*types.Tuple); ok {
		return t.At(i).Type()
	}
	return nil
}

// simple reports whether e is a constant, nil or a variable: a release does not change its value.
func (b *body) simple(e ast.Expr) bool {
	v, constant := b.plain(e)
	return constant || v != nil
}

// storable reports whether the results can be stored in variables before the return: calls in some results do
// not change the simple ones, and a short variable declaration gives the others the right types.
func (b *body) storable(ev *event, tuple bool) bool {
	if tuple {
		return true
	}
	for i, e := range ev.ret.Results {
		e = ast.Unparen(e)
		if b.simple(e) {
			literal := false // in a constant, as an operand of unsafe.Sizeof: it is rewritten itself
			each(e, func(n ast.Node) bool {
				_, is := n.(*ast.FuncLit)
				literal = literal || is
				return true
			})
			if literal || !b.stable(e) || strings.Contains(b.pkg.text(e), "\n") {
				return false
			}
			continue
		}
		// The type of an untyped constant that is shifted is that of the result, which a short declaration does not give.
		shifts := false
		each(e, func(n ast.Node) bool {
			x, ok := n.(*ast.BinaryExpr)
			shifts = shifts || ok && (x.Op == token.SHL || x.Op == token.SHR)
			return true
		})
		if shifts {
			return false
		}
		if b.instance(e) {
			return false
		}
		switch e := e.(type) {
		case *ast.CallExpr, *ast.IndexExpr, *ast.SelectorExpr, *ast.CompositeLit, *ast.SliceExpr, *ast.StarExpr, *ast.TypeAssertExpr, *ast.FuncLit:
		case *ast.UnaryExpr:
			if e.Op == token.NOT || e.Op == token.ARROW {
				return false
			}
		case *ast.BinaryExpr:
			switch e.Op {
			case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ, token.LAND, token.LOR:
				if !types.Identical(b.sig.Results().At(i).Type(), types.Typ[types.Bool]) {
					return false
				}
			}
		default:
			return false
		}
		// No call has an untyped boolean or number as its result; min and max of constants are constants.
		if t, ok := b.pkg.Info.TypeOf(e).(*types.Basic); ok && t.Info()&types.IsUntyped != 0 {
			return false
		}
	}
	return true
}

package lastuse

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

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

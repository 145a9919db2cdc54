package vet

import (
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ssa"
)

// IterPull reports calls of iter.Pull with an iterator that opens a scope around each iteration of the loop's body.
var IterPull = &analysis.Analyzer{
	Name: "iterpull",
	Doc: `report iter.Pull over a scoped iterator

A scoped iterator, such as loader.Batches, opens a scope on the goroutine that runs
it, around each iteration of the loop's body, which locks the goroutine to its OS
thread. iter.Pull runs the iterator as a coroutine, and Go ends the process if the lock
differs from that at the call of iter.Pull: "fatal error: coro: OS thread locking must
match locking at coroutine creation". Range over the iterator instead.`,
	Requires: []*analysis.Analyzer{sourceAnalyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		s := pass.ResultOf[sourceAnalyzer].(*source)
		// Functions that pull from a parameter, with the index of the parameter.
		pulls := map[*ssa.Function]map[int]bool{}
		pulled := func(c *ssa.CallCommon) (vals []ssa.Value) {
			if f := callee(c); f != nil && f.Pkg() != nil && f.Pkg().Path() == "iter" && (f.Name() == "Pull" || f.Name() == "Pull2") {
				return c.Args[:1]
			}
			for k := range pulls[static(c)] {
				vals = append(vals, c.Args[k])
			}
			return vals
		}
		each := func(f func(fn *ssa.Function, call ssa.CallInstruction, v ssa.Value)) {
			for _, fn := range s.fns {
				instructions(fn, func(i ssa.Instruction) {
					if call, ok := i.(ssa.CallInstruction); ok {
						for _, v := range pulled(call.Common()) {
							f(fn, call, v)
						}
					}
				})
			}
		}
		for grown := true; grown; {
			grown = false
			each(func(fn *ssa.Function, _ ssa.CallInstruction, v ssa.Value) {
				if c, ok := v.(*ssa.ChangeType); ok {
					v = c.X
				}
				for k, p := range fn.Params {
					if p == v && !pulls[fn][k] {
						if pulls[fn] == nil {
							pulls[fn] = map[int]bool{}
						}
						pulls[fn][k], grown = true, true
					}
				}
			})
		}
		each(func(_ *ssa.Function, call ssa.CallInstruction, v ssa.Value) {
			if s.scopedIterator(v) {
				what := "this function"
				if f := callee(call.Common()); f != nil { // it is no literal
					what = f.Name()
				}
				report(pass, analysis.Diagnostic{Pos: call.Pos(), Message: what +
					" runs a scoped iterator on another goroutine: its scopes do not hold what is made here; range over it instead"})
			}
		})
		return nil, nil
	},
}

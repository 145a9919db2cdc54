package optim_test

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
)

// TestFailingOperators takes a step of each optimizer while one of its operators fails. Only errors may result.
func TestFailingOperators(t *testing.T) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			p := newProblem(c.kind)
			defer p.release()
			opt := newOptimizer(t, name, p)
			defer opt.Release()
			step := 0
			calls := leak.FailEachCall(t, func() {
				_ = p.step(opt, step)
				step++
			})
			if calls == 0 {
				t.Error("a step has made no call")
			}
		})
	}
}

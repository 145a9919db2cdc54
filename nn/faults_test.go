package nn_test

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestFailingOperators calls each module while one of its operators fails. Only errors may result.
func TestFailingOperators(t *testing.T) {
	var file map[string]torchCase
	golden.Read(t, "torch_nn.json", &file)
	total := int64(0)
	for name, want := range file {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			c := torchModules[name]
			m := c.make()
			defer nn.Release(m)
			_ = tensor.WithScope(func() error {
				var xs []*tensor.Tensor
				for _, spec := range want.In {
					xs = append(xs, draw(t, spec))
				}
				total += leak.FailEachCall(t, func() { c.run(m, xs) })
				return nil
			})
		})
	}
	if total < int64(len(file)) {
		t.Errorf("%d modules have made %d calls", len(file), total)
	}
}

package optim_test

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestSparseStepPeak tests that the temporaries of a step with sparse gradients are those of one parameter, not of all.
func TestSparseStepPeak(t *testing.T) {
	for name, make := range map[string]constructor{"SparseAdam": optim.NewSparseAdam, "Adagrad": optim.NewAdagrad} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			peak := func(n int) int64 {
				var grown int64
				err := tensor.WithScope(func() error {
					params := sparseParams(t, n)
					opt, err := make(params, 0.1)
					if err != nil {
						return err
					}
					defer opt.Release()
					if err := opt.Step(); err != nil { // makes the state
						return err
					}
					device := vram.Name(params[0].Device().String())
					if err := vram.ResetPeak(device); err != nil {
						return err
					}
					before, err := vram.Stats(device)
					if err != nil {
						return err
					}
					if err := opt.Step(); err != nil {
						return err
					}
					after, err := vram.Stats(device)
					grown = after.Peak - before.Allocated
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return grown
			}
			if one, many := peak(1), peak(16); one < 1<<20 || many > one+1<<19 {
				t.Errorf("a step takes %d bytes for one parameter and %d for 16", one, many)
			}
		})
	}
}

// sparseParams returns n parameters of 1 MiB with sparse gradients.
func sparseParams(t *testing.T, n int) (params []*tensor.Tensor) {
	t.Helper()
	for range n {
		p := tensor.Ones([]int{512, 512}).RequiresGrad_()
		g, err := tensor.Call("aten::to_sparse", tensor.Ones([]int{512, 512}))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.SetGrad(g[0].(*tensor.Tensor)); err != nil {
			t.Fatal(err)
		}
		params = append(params, p)
	}
	return params
}

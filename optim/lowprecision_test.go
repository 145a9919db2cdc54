package optim_test

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestLowPrecision compares steps of parameters of 16 bits, of sizes below, at and above those of vector registers, with
// steps in float32: libtorch's kernels for lists and its fused kernels have separate code for each.
func TestLowPrecision(t *testing.T) {
	leak.Check(t)
	for name, make := range map[string]constructor{
		"Adadelta": optim.NewAdadelta, "Adagrad": optim.NewAdagrad, "Adam": optim.NewAdam, "AdamW": optim.NewAdamW, "Adamax": optim.NewAdamax, "ASGD": optim.NewASGD,
		"NAdam": optim.NewNAdam, "RAdam": optim.NewRAdam, "RMSprop": optim.NewRMSprop, "Rprop": optim.NewRprop, "SGD": optim.NewSGD,
		"Adagrad_options": with(optim.NewAdagrad, optim.LRDecay(0.1), optim.WeightDecay(0.1), optim.Maximize(true)),
		"Adam_options":    with(optim.NewAdam, optim.AMSGrad(true), optim.WeightDecay(0.1), optim.Maximize(true)),
		"AdamW_options":   with(optim.NewAdamW, optim.AMSGrad(true), optim.Maximize(true)),
		"SGD_momentum":    with(optim.NewSGD, optim.Momentum(0.9)),
		"SGD_Nesterov":    with(optim.NewSGD, optim.Momentum(0.9), optim.Nesterov(true), optim.WeightDecay(0.1)),
		"SGD_dampening":   with(optim.NewSGD, optim.Momentum(0.9), optim.Dampening(0.5), optim.Maximize(true)),
	} {
		t.Run(name, func(t *testing.T) {
			for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
				for _, n := range []int{3, 8, 16, 33, 257} {
					steps := func(dtype tensor.DType) (*tensor.Tensor, error) {
						p := tensor.Arange(0, n, tensor.Float32).Div(n).Add(1).To(dtype).RequiresGrad_()
						opt, err := make([]*tensor.Tensor{p}, 0.05)
						if err != nil {
							return nil, err
						}
						defer opt.Release()
						for i := range 5 {
							g := tensor.Arange(0, n, tensor.Float32).Add(i).Sin().Mul(0.5).Add(0.75).To(dtype)
							if err := p.SetGrad(g); err != nil {
								return nil, err
							}
							if err := opt.Step(); err != nil {
								return nil, err
							}
						}
						return p.Detach().To(tensor.Float32), p.Err()
					}
					err := tensor.WithScope(func() error {
						want, err := steps(tensor.Float32)
						if err != nil {
							return err
						}
						got, err := steps(dtype)
						if err != nil {
							return err
						}
						most, err := got.Sub(want).Abs().Max().Item()
						if err != nil {
							return err
						}
						if !(most < 0.04) {
							t.Errorf("%v, %d elements: the parameters differ by %v from those in float32", dtype, n, most)
						}
						return nil
					})
					if err != nil {
						t.Errorf("%v, %d elements: %v", dtype, n, err)
					}
				}
			}
		})
	}
}

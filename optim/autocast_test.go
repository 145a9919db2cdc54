package optim_test

import (
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// A step within a region of autocast is seen by what follows in the region, whichever goroutine takes it.
func TestStepInAutocast(t *testing.T) {
	for name, newOptimizer := range map[string]func([]*tensor.Tensor, float64, ...optim.Option) (*optim.Optimizer, error){
		"AdamW": optim.NewAdamW, "SGD": optim.NewSGD, "Adagrad": optim.NewAdagrad,
	} {
		for _, elsewhere := range []bool{false, true} {
			leak.Check(t)
			err := tensor.WithScope(func() error {
				w, x := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{1, 4})
				opt, err := newOptimizer([]*tensor.Tensor{w}, 0.5)
				if err != nil {
					return err
				}
				defer opt.Release()
				return autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
					for range 3 {
						y := x.MatMul(w)
						fresh := x.MatMul(w.Detach()) // its cast is not kept
						if same, err := y.Equal(fresh); err != nil || !same {
							t.Errorf("%s: the product is %v, with the weight as it is %v", name, y, fresh)
						}
						if err := y.To(tensor.Float32).Sum().Backward(); err != nil {
							return err
						}
						step := make(chan error, 1)
						if elsewhere {
							go func() { step <- opt.Step() }()
						} else {
							step <- opt.Step()
						}
						if err := <-step; err != nil {
							return err
						}
					}
					return nil
				})
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// Each evaluation of a step of LBFGS within a region of autocast sees the weights as they are.
func TestLBFGSInAutocast(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w, x := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{1, 4})
		opt, err := optim.NewLBFGS([]*tensor.Tensor{w}, 0.1, optim.MaxIter(4))
		if err != nil {
			return err
		}
		defer opt.Release()
		calls := 0
		err = autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
			_, err := opt.StepClosure(func() (*tensor.Tensor, error) {
				calls++
				opt.ZeroGrad()
				y := x.MatMul(w)
				fresh := x.MatMul(w.Detach()) // its cast is not kept
				if same, err := y.Equal(fresh); err != nil || !same {
					t.Errorf("evaluation %d: the product is %v, with the weight as it is %v, %v", calls, y, fresh, err)
				}
				loss := y.To(tensor.Float32).Pow(2).Sum()
				return loss, loss.Backward()
			})
			return err
		})
		if calls < 3 {
			t.Errorf("the closure ran %d times", calls)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

package optim_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestSchedulesAtTheEdges tests schedules where rounding or a metric leaves the usual range: training goes on, as in PyTorch.
func TestSchedulesAtTheEdges(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	train := func(s optim.Schedule, steps int, metric ...float64) (rates []float64) {
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
		if err != nil {
			t.Fatal(err)
		}
		defer opt.Release()
		sched, err := optim.NewScheduler(opt, s)
		if err != nil {
			t.Fatal(err)
		}
		for range steps {
			opt.ZeroGrad()
			err := tensor.WithScope(func() error { return errors.Join(p.Mul(2).Sum().Backward(), opt.Step()) })
			if err != nil {
				t.Error(err)
			}
			sched.Step(metric...)
			if last := sched.LRs(); len(last) != 1 || last[0] != opt.LR() {
				t.Errorf("LRs returns %v, the rate is %v", last, opt.LR())
			}
			rates = append(rates, opt.LR())
		}
		return rates
	}
	// The last factor is 0 but for rounding, below 0 here.
	if rates := train(optim.LinearLR(1.0/3, 0, 5), 7); math.Abs(rates[5]) > 1e-15 {
		t.Errorf("LinearLR to 0: %v", rates)
	}
	rates := train(optim.SequentialLR([]int{2}, optim.ConstantLR(0.5, 2), optim.ExponentialLR(0.5)), 4)
	if rates[0] == rates[3] {
		t.Errorf("SequentialLR: %v", rates)
	}
	// A NaN is not an improvement.
	rates = train(optim.ReduceLROnPlateau(optim.Patience(1)), 3, math.NaN())
	if !slices.Equal(rates, []float64{0.1, 0.01, 0.01}) && !slices.Equal(rates, []float64{0.1, 0.010000000000000002, 0.010000000000000002}) {
		t.Errorf("ReduceLROnPlateau with NaN: %v", rates)
	}
	if _, err := optim.NewSGD([]*tensor.Tensor{p}, -0.1); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a negative rate: %v", err)
	}
}

// TestAdafactorOfNaN tests that an element whose gradient is NaN does not make the others NaN.
func TestAdafactorOfNaN(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{3}).RequiresGrad_()
	defer p.Release()
	opt, err := optim.NewAdafactor([]*tensor.Tensor{p}, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	err = tensor.WithScope(func() error {
		if err := p.SetGrad(tensor.FromSlice([]float32{float32(math.NaN()), 1, 2}, nil)); err != nil {
			return err
		}
		return opt.Step()
	})
	if err != nil {
		t.Fatal(err)
	}
	v, err := tensor.Data[float32](p)
	if err != nil || v[0] == v[0] || v[1] != 0.99 || v[2] != 0.99 { // PyTorch 2.15: [nan, 0.99, 0.99]
		t.Errorf("%v, %v", v, err)
	}
	opt.ZeroGrad()
}

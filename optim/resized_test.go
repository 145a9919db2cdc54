package optim_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// resize gives p, which keeps its gradient, another first size and the value 0.5.
func resize(p *tensor.Tensor, by int) error {
	requires := p.RequiresGrad()
	p.RequiresGrad_(false)
	shape := p.Shape()
	shape[0] *= by
	_, err := tensor.Call("aten::resize_", p, shape)
	return errors.Join(err, p.Fill_(0.5).Err(), p.RequiresGrad_(requires).Err())
}

// numbers returns the elements of the parameters and of the optimizer's state.
func numbers(t *testing.T, params []*tensor.Tensor, opt *optim.Optimizer) (all []float64) {
	t.Helper()
	add := func(x *tensor.Tensor) {
		err := tensor.WithScope(func() error {
			values, err := tensor.Data[float64](x.Detach().To(tensor.Float64))
			all = append(all, values...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range params {
		add(p)
	}
	state := opt.StateDict()
	for i := range params {
		var names []string
		for name := range state.State[i] {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			switch v := state.State[i][name].(type) {
			case *tensor.Tensor:
				add(v)
				v.Release()
			case float64:
				all = append(all, v)
			case int:
				all = append(all, float64(v))
			}
		}
	}
	return all
}

// TestResizedParameters tests that a step is an error that changes nothing if a parameter's gradient or state has another
// shape: fused kernels would read and write beyond them.
func TestResizedParameters(t *testing.T) {
	leak.Check(t)
	for name, c := range cases {
		if c.kind == "closure" {
			continue
		}
		p := newProblem(c.kind)
		opt := newOptimizer(t, name, p)
		refused := func(what, want string) {
			t.Helper()
			before := numbers(t, p.params, opt)
			if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 1 has shape") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
			if after := numbers(t, p.params, opt); !slices.Equal(after, before) {
				t.Errorf("%s: %s: the step has changed\n%v to\n%v", name, what, before, after)
			}
		}
		last := p.params[len(p.params)-1] // the second of its group, and of another dtype than the first
		if err := errors.Join(p.grads(0), resize(last, 9)); err != nil {
			t.Fatal(name, err)
		}
		refused("the gradient of the first step", "its gradient")
		if err := errors.Join(p.grads(0), opt.Step(), p.grads(1), opt.Step(), resize(last, 3)); err != nil {
			t.Fatal(name, err)
		}
		refused("a gradient", "its gradient")
		stateless := len(opt.StateDict().State[1]) == 0
		if err := p.grads(3); err != nil {
			t.Fatal(name, err)
		}
		if !stateless {
			refused("the state", "of an earlier step")
			opt.Release()
		}
		if err := opt.Step(); err != nil {
			t.Errorf("%s: a step from new state: %v", name, err)
		}
		opt.ZeroGrad()
		opt.Release()
		p.release()
	}
}

// TestResizedState does so for state that the program has resized, and for float32 copies.
func TestResizedState(t *testing.T) {
	leak.Check(t)
	for what, c := range map[string]struct {
		make   constructor
		dtype  tensor.DType
		option optim.Option
		state  string
	}{
		"SGD":                     {optim.NewSGD, tensor.Float32, optim.Momentum(0.9), "momentum_buffer"},
		"Adagrad":                 {optim.NewAdagrad, tensor.Float32, optim.Eps(1e-6), "sum"},
		"Adam":                    {optim.NewAdam, tensor.Float32, optim.Eps(1e-6), "exp_avg_sq"},
		"SGD with MasterWeights":  {optim.NewSGD, tensor.BFloat16, optim.MasterWeights(), "master"},
		"Adam with MasterWeights": {optim.NewAdam, tensor.BFloat16, optim.MasterWeights(), "exp_avg"},
	} {
		p := ones(c.dtype)
		opt, err := c.make([]*tensor.Tensor{p}, 0.1, c.option)
		if err != nil {
			t.Fatal(err)
		}
		setGrad(t, p, 0.5)
		if err := errors.Join(opt.Step(), opt.Step()); err != nil {
			t.Fatal(what, err)
		}
		before, err := tensor.Data[float64](tensor.Tidy(func() *tensor.Tensor { return p.Detach().To(tensor.Float64) }))
		if err != nil {
			t.Fatal(err)
		}
		state := opt.StateDict().State[0][c.state].(*tensor.Tensor)
		if _, err := tensor.Call("aten::resize_", state, []int{1}); err != nil {
			t.Fatal(err)
		}
		if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "shape") {
			t.Errorf("%s: a step with resized state: %v", what, err)
		}
		golden.Exact(t, what, p, before)
		state.Release()
		opt.ZeroGrad()
		opt.Release()
		p.Release()
	}
}

// TestResizedWithUnusedState tests that state that the settings no longer use does not prevent a step.
func TestResizedWithUnusedState(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float32)
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5, optim.Momentum(0.9))
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	setGrad(t, p, 1)
	if err := errors.Join(opt.Step(), resize(p, 2)); err != nil {
		t.Fatal(err)
	}
	group := opt.Groups()[0]
	setGrad(t, p, 1)
	group.Momentum = 0
	if err := opt.Step(); err != nil {
		t.Errorf("a step without momentum: %v", err)
	}
	golden.Exact(t, "the parameter", p, make([]float64, 6))
	group.Momentum = 0.9
	if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "momentum_buffer has shape [3], of an earlier step") {
		t.Errorf("a step with momentum: %v", err)
	}
	golden.Exact(t, "the parameter after the error", p, make([]float64, 6))
	group.Momentum = 0
	if err := opt.LoadStateDict(opt.StateDict()); err != nil { // without the buffer
		t.Errorf("a load of its own state: %v", err)
	}
	group.Momentum = 0.9
	if err := opt.Step(); err != nil {
		t.Errorf("a step with a new buffer: %v", err)
	}
	opt.ZeroGrad()
}

// TestResizedNumber tests that the error has the parameter's number in its group, also if others have another dtype.
func TestResizedNumber(t *testing.T) {
	leak.Check(t)
	for name, create := range map[string]constructor{"Adam": optim.NewAdam, "SGD": optim.NewSGD} {
		params := []*tensor.Tensor{ones(tensor.Float32), ones(tensor.Float64), ones(tensor.Float32)}
		opt, err := create(params, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range params {
			setGrad(t, p, 1)
		}
		if err := errors.Join(opt.Step(), resize(params[2], 2)); err != nil {
			t.Fatal(name, err)
		}
		before := numbers(t, params, opt)
		if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 2 has shape [6], its gradient [3]") {
			t.Errorf("%s: %v", name, err)
		}
		if after := numbers(t, params, opt); !slices.Equal(after, before) {
			t.Errorf("%s: the step has changed\n%v to\n%v", name, before, after)
		}
		opt.ZeroGrad()
		opt.Release()
		for _, p := range params {
			p.Release()
		}
	}
}

// TestResizedDimensions does so for a parameter with more dimensions than the metadata of a tensor has.
func TestResizedDimensions(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{1, 1, 1, 1, 1, 1, 1, 1, 2, 3}).RequiresGrad_().Keep()
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	setGrad(t, p, 1)
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	p.RequiresGrad_(false)
	_, err = tensor.Call("aten::resize_", p, []int{1, 1, 1, 1, 1, 1, 1, 1, 3, 2})
	if err := errors.Join(err, p.RequiresGrad_().Err()); err != nil {
		t.Fatal(err)
	}
	if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "its gradient") {
		t.Error(err)
	}
	golden.Exact(t, "the parameter", p, slices.Repeat([]float64{0.5}, 6))
	opt.ZeroGrad()
}

// TestResizedInBackward tests the same for a step in the backward pass, and for LBFGS.
func TestResizedInBackward(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float32)
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5, optim.Momentum(0.9))
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	remove, err := opt.StepInBackward()
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	backward := func() error { return tensor.WithScope(func() error { return p.Sum().Backward() }) }
	if err := errors.Join(backward(), resize(p, 2)); err != nil {
		t.Fatal(err)
	}
	if err := backward(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "of an earlier step") {
		t.Errorf("the backward pass: %v", err)
	}
	golden.Exact(t, "the parameter", p, slices.Repeat([]float64{0.5}, 6))
	opt.ZeroGrad()

	q := ones(tensor.Float32)
	defer q.Release()
	whole, err := optim.NewLBFGS([]*tensor.Tensor{q}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Release()
	_, err = whole.StepClosure(func() (*tensor.Tensor, error) {
		loss := q.Pow(2).Sum()
		return loss, errors.Join(loss.Backward(), resize(q, 2))
	})
	if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "its gradient") {
		t.Errorf("LBFGS: %v", err)
	}
	golden.Exact(t, "LBFGS: the parameter", q, slices.Repeat([]float64{0.5}, 6))
	whole.ZeroGrad()
}

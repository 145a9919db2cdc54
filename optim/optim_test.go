package optim_test

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

type file struct {
	Optimizers map[string][][][]float64
	Schedules  map[string][]float64
}

// constructor is one of the package's constructors.
type constructor func(params []*tensor.Tensor, lr float64, opts ...optim.Option) (*optim.Optimizer, error)

var cases = map[string]struct {
	make constructor
	lr   float64
	opts []optim.Option
}{
	"sgd":          {optim.NewSGD, 0.1, nil},
	"sgd_momentum": {optim.NewSGD, 0.1, []optim.Option{optim.Momentum(0.9), optim.Dampening(0.2), optim.WeightDecay(0.05)}},
	"sgd_nesterov": {optim.NewSGD, 0.1, []optim.Option{optim.Momentum(0.8), optim.Nesterov(), optim.Maximize()}},
	"adam":         {optim.NewAdam, 0.01, nil},
	"adam_amsgrad": {optim.NewAdam, 0.02, []optim.Option{optim.Betas(0.8, 0.95), optim.Eps(1e-6), optim.WeightDecay(0.1), optim.AMSGrad()}},
	"adamw":        {optim.NewAdamW, 0.01, nil},
	"adamw_options": {optim.NewAdamW, 0.02, []optim.Option{optim.Betas(0.7, 0.9), optim.Eps(1e-5), optim.WeightDecay(0.3), optim.AMSGrad(),
		optim.Maximize()}},
}

// problem holds the three parameters of modules.py.
type problem struct{ a, b, c *tensor.Tensor }

func newProblem() *problem {
	return &problem{tensor.Linspace(-1, 1, 12).Reshape(3, 4).Clone().RequiresGrad_().Keep(), tensor.Linspace(2, 3, 5).RequiresGrad_().Keep(),
		tensor.Linspace(-3, 1, 4, tensor.Float64).RequiresGrad_().Keep()}
}

func (p *problem) all() []*tensor.Tensor { return []*tensor.Tensor{p.a, p.b, p.c} }

func (p *problem) release() {
	for _, t := range p.all() {
		t.Release()
	}
}

func (p *problem) grads(step int) error {
	return tensor.WithScope(func() error {
		for i, t := range p.all() {
			if i == 1 && step == 2 {
				continue
			}
			g := tensor.Arange(0, t.Numel(), t.DType()).Sub(2).Mul(float64(step + 1)).Div(8.0).Reshape(t.Shape()...)
			if err := t.SetGrad(g); err != nil {
				return err
			}
		}
		return nil
	})
}

func newOptimizer(t *testing.T, name string, p *problem) *optim.Optimizer {
	t.Helper()
	c := cases[name]
	opt, err := c.make([]*tensor.Tensor{p.a, p.c}, c.lr, c.opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := opt.AddGroup([]*tensor.Tensor{p.b}, optim.LR(0.05), optim.WeightDecay(0.02)); err != nil {
		t.Fatal(err)
	}
	return opt
}

// TestOptimizers compares with PyTorch's fused optimizers, bit for bit.
func TestOptimizers(t *testing.T) {
	var f file
	golden.Read(t, "modules.json", &f)
	if len(f.Optimizers) != len(cases) {
		t.Errorf("%d optimizers, PyTorch has %d", len(cases), len(f.Optimizers))
	}
	for name, steps := range f.Optimizers {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			var p *problem
			_ = tensor.WithScope(func() error { p = newProblem(); return nil })
			opt := newOptimizer(t, name, p)
			for step, want := range steps {
				opt.ZeroGrad()
				if err := p.grads(step); err != nil {
					t.Fatal(err)
				}
				if err := opt.Step(); err != nil {
					t.Fatal(err)
				}
				for i, param := range p.all() {
					golden.Exact(t, "a parameter", param, want[i])
				}
			}
			opt.Release()
			p.release()
		})
	}
}

// TestResume compares training that continues from a state with uninterrupted training, bit for bit.
func TestResume(t *testing.T) {
	var f file
	golden.Read(t, "modules.json", &f)
	for name, steps := range f.Optimizers {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			first, second := newProblem(), newProblem()
			opt := newOptimizer(t, name, first)
			opt.SetLR(0.5) // loading the state must restore it
			opt.Groups()[0].LR, opt.Groups()[1].LR = cases[name].lr, 0.05
			for step := range 3 {
				opt.ZeroGrad()
				if err := errors.Join(first.grads(step), opt.Step()); err != nil {
					t.Fatal(err)
				}
			}
			// Do what a checkpoint does.
			state := opt.StateDict()
			saved := optim.State{Tensors: map[string]*tensor.Tensor{}, Numbers: map[string]float64{}}
			for k, v := range state.Tensors {
				saved.Tensors[k] = v.Clone()
			}
			for k, v := range state.Numbers {
				saved.Numbers[k] = v
			}
			err := autograd.NoGrad(func() error {
				for i, p := range second.all() {
					if err := p.Copy_(first.all()[i]).Err(); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			again := newOptimizer(t, name, second)
			again.SetLR(7)
			// Load over existing state.
			if err := errors.Join(again.LoadStateDict(saved), again.LoadStateDict(saved)); err != nil {
				t.Fatal(err)
			}
			if again.LR() != cases[name].lr || again.Groups()[1].LR != 0.05 {
				t.Errorf("learning rates %v and %v", again.LR(), again.Groups()[1].LR)
			}
			for step := 3; step < 5; step++ {
				again.ZeroGrad()
				if err := errors.Join(second.grads(step), again.Step()); err != nil {
					t.Fatal(err)
				}
				for i, param := range second.all() {
					golden.Exact(t, "a parameter", param, steps[step][i])
				}
			}
		})
	}
}

func TestLoadStateDictRefuses(t *testing.T) {
	leak.Check(t)
	p := newProblem()
	opt := newOptimizer(t, "adamw", p)
	if err := errors.Join(p.grads(0), opt.Step()); err != nil {
		t.Fatal(err)
	}
	good := opt.StateDict()
	before := len(good.Tensors)
	change := func(f func(s *optim.State)) optim.State {
		s := optim.State{Tensors: map[string]*tensor.Tensor{}, Numbers: map[string]float64{}}
		for k, v := range good.Tensors {
			s.Tensors[k] = v
		}
		for k, v := range good.Numbers {
			s.Numbers[k] = v
		}
		f(&s)
		return s
	}
	for what, f := range map[string]func(s *optim.State){
		"empty":            func(s *optim.State) { *s = optim.State{} },
		"another shape":    func(s *optim.State) { s.Tensors["state.0.exp_avg"] = tensor.Zeros([]int{2}) },
		"nil":              func(s *optim.State) { s.Tensors["state.0.exp_avg"] = nil },
		"a strange tensor": func(s *optim.State) { s.Tensors["state.9.exp_avg"] = tensor.Zeros([]int{2}) },
		"fewer parameters": func(s *optim.State) { s.Numbers["group.1.params"] = 7 },
		"another group":    func(s *optim.State) { s.Numbers["group.2.params"] = 1 },
		"not a number":     func(s *optim.State) { s.Numbers["group.0.lr"] = math.NaN() },
	} {
		if opt.LoadStateDict(change(f)) == nil {
			t.Errorf("%s: LoadStateDict accepts it", what)
		}
		if n := len(opt.StateDict().Tensors); n != before {
			t.Errorf("%s: the state has %d tensors now", what, n)
		}
	}
	// Loading its own state, which loading frees, works too.
	if err := errors.Join(opt.LoadStateDict(opt.StateDict()), opt.Step()); err != nil {
		t.Error(err)
	}
}

func TestSchedules(t *testing.T) {
	leak.Check(t)
	var f file
	golden.Read(t, "modules.json", &f)
	schedules := map[string]optim.Schedule{
		"lambda":        optim.LambdaLR(func(step int) float64 { return 1 / float64(1+step) }),
		"step":          optim.StepLR(7, 0.3),
		"cosine":        optim.CosineAnnealingLR(12, 0.01),
		"linear":        optim.LinearWarmup(9, 0.25),
		"sequential":    optim.SequentialLR([]int{5}, optim.LinearWarmup(5, 0.1), optim.StepLR(4, 0.5)),
		"warmup_cosine": optim.WarmupCosine(6, 24, 0),
	}
	p := newProblem()
	for name, want := range f.Schedules {
		opt, err := optim.NewSGD([]*tensor.Tensor{p.a}, 0.4)
		if err != nil {
			t.Fatal(err)
		}
		if err := opt.AddGroup([]*tensor.Tensor{p.b}, optim.LR(0.8)); err != nil {
			t.Fatal(err)
		}
		s, err := optim.NewScheduler(opt, schedules[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, rate := range want {
			if got := s.LR(); math.Abs(got-rate) > 1e-12 {
				t.Errorf("%s: step %d has %v, PyTorch %v", name, i, got, rate)
			}
			if i == 11 { // save and restore
				state := s.StateDict()
				opt.SetLR(3)
				if s, err = optim.NewScheduler(opt, schedules[name]); err != nil {
					t.Fatal(err)
				}
				if err := s.LoadStateDict(state); err != nil {
					t.Fatal(err)
				}
			}
			s.Step()
		}
	}
	for i, s := range []optim.Schedule{{}, optim.LambdaLR(nil), optim.StepLR(0, 1), optim.StepLR(1, math.NaN()), optim.CosineAnnealingLR(-1, 0),
		optim.CosineAnnealingLR(3, -1), optim.LinearWarmup(0, 0), optim.LinearWarmup(1, 2), optim.SequentialLR(nil), optim.SequentialLR([]int{0}, optim.StepLR(1, 1), optim.StepLR(1, 1)),
		optim.SequentialLR([]int{1}, optim.Schedule{}, optim.StepLR(1, 1)), optim.WarmupCosine(0, 5, 0), optim.WarmupCosine(5, 5, 0), optim.WarmupCosine(5, 9, -1),
		optim.WarmupStep(0, 1, 1), optim.WarmupStep(1, -1, 1)} {
		opt, err := optim.NewSGD([]*tensor.Tensor{p.a}, 0.4)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := optim.NewScheduler(opt, s); err == nil {
			t.Errorf("NewScheduler accepts schedule %d", i)
		}
	}
	if _, err := optim.NewScheduler(nil, optim.StepLR(1, 1)); err == nil {
		t.Error("NewScheduler accepts a nil optimizer")
	}
	if _, err := optim.NewScheduler(&optim.Optimizer{}, optim.StepLR(1, 1)); err != nil {
		t.Error(err)
	}
	var none *optim.Scheduler
	none.Step()
	if none.LR() != 0 || none.StateDict() != nil || none.LoadStateDict(nil) == nil || (&optim.Scheduler{}).LoadStateDict(nil) == nil {
		t.Error("a nil scheduler does something")
	}
	(&optim.Scheduler{}).Step()
	_ = (&optim.Scheduler{}).LR()
}

func TestRefused(t *testing.T) {
	leak.Check(t)
	good := newProblem()
	released := tensor.Ones([]int{2})
	released.Release()
	var noTensor *tensor.Tensor
	for _, make := range []constructor{optim.NewSGD, optim.NewAdam, optim.NewAdamW} {
		for what, params := range map[string][]*tensor.Tensor{"none": nil, "nil": {noTensor}, "empty": {{}}, "released": {released}, "failed": {tensor.Ones([]int{2}).View(5)},
			"twice": {good.a, good.a}, "integers": {tensor.Ones([]int{1}, tensor.Int64)}, "no leaf": {good.a.Mul(2)}} {
			if opt, err := make(params, 0.1); err == nil || opt != nil {
				t.Errorf("%s: the constructor accepts it", what)
			}
		}
		for _, lr := range []float64{-1, math.NaN(), math.Inf(1)} {
			if _, err := make(good.all(), lr); err == nil {
				t.Errorf("the constructor accepts a learning rate of %v", lr)
			}
		}
		for _, o := range []optim.Option{{}, optim.WeightDecay(-1)} {
			if _, err := make(good.all(), 0.1, o); err == nil {
				t.Error("the constructor accepts an invalid option")
			}
		}
		opt, err := make(good.all(), 0.1)
		if err != nil {
			t.Fatal(err)
		}
		if opt.AddGroup(nil) == nil || opt.AddGroup([]*tensor.Tensor{good.a}) == nil {
			t.Error("AddGroup accepts an invalid group")
		}
		opt.SetLR(math.NaN())
		if opt.Step() == nil {
			t.Error("Step accepts an invalid learning rate")
		}
		opt.SetLR(0.1)
		if err := opt.Step(); err != nil {
			t.Errorf("a step without gradients: %v", err)
		}
	}
	for _, o := range []optim.Option{optim.Betas(0.9, 0.99), optim.Nesterov(), optim.AMSGrad()} {
		if _, err := optim.NewSGD(good.all(), 0.1, o); err == nil {
			t.Error("SGD accepts an option of Adam")
		}
	}
	if _, err := optim.NewAdam(good.all(), 0.1, optim.Betas(1, 0.9)); err == nil {
		t.Error("Adam accepts a beta of 1")
	}
	for _, opt := range []*optim.Optimizer{nil, {}} {
		opt.ZeroGrad()
		opt.SetLR(1)
		opt.Release()
		if opt.LR() != 0 || len(opt.Groups()) != 0 || opt.Step() == nil || len(opt.StateDict().Tensors) != 0 || opt.AddGroup(good.all()) == nil {
			t.Error("a nil optimizer does something")
		}
	}
	if (*optim.Optimizer)(nil).LoadStateDict(optim.State{}) == nil {
		t.Error("a nil optimizer loads a state")
	}
}

// TestReleasedParameter tests that Step returns the error of ZeroGrad if a parameter was released, and leaks nothing.
func TestReleasedParameter(t *testing.T) {
	leak.Check(t)
	p := newProblem()
	opt := newOptimizer(t, "adam", p)
	if err := errors.Join(p.grads(0), opt.Step()); err != nil {
		t.Fatal(err)
	}
	p.c.Release()
	opt.ZeroGrad()
	if err := opt.Step(); !errors.Is(err, tensor.ErrReleased) {
		t.Errorf("Step returns %v", err)
	}
	if err := opt.Step(); !errors.Is(err, tensor.ErrReleased) {
		t.Errorf("Step returns %v", err)
	}
}

func TestConcurrentSteps(t *testing.T) {
	leak.Check(t)
	p := newProblem()
	opt := newOptimizer(t, "adamw", p)
	if err := p.grads(0); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 20 {
				if err := opt.Step(); err != nil {
					t.Error(err)
				}
				opt.SetLR(opt.LR() * 0.99)
				opt.StateDict()
			}
		}()
	}
	wg.Wait()
	if v, err := opt.StateDict().Tensors["state.0.step"].Item(); v != 320 || err != nil {
		t.Errorf("%v steps, %v", v, err)
	}
}

// BenchmarkStep measures a step of 48 small parameters.
func BenchmarkStep(b *testing.B) {
	var params []*tensor.Tensor
	for range 48 {
		p := tensor.Ones([]int{16}).RequiresGrad_()
		if err := p.SetGrad(tensor.Ones([]int{16})); err != nil {
			b.Fatal(err)
		}
		params = append(params, p)
	}
	opt, err := optim.NewAdamW(params, 1e-3)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := opt.Step(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestOnManyGoroutines uses one optimizer and its schedule from many goroutines.
func TestOnManyGoroutines(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{4}).RequiresGrad_().Keep()
	defer p.Release()
	opt, err := optim.NewAdam([]*tensor.Tensor{p}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	sched, err := optim.NewScheduler(opt, optim.StepLR(3, 0.5))
	if err != nil {
		t.Fatal(err)
	}
	if err := tensor.WithScope(func() error { return p.Sum().Backward() }); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for k := range 16 {
				err := tensor.WithScope(func() error {
					switch (g + k) % 8 {
					case 0:
						return opt.Step()
					case 1:
						opt.SetLR(0.1 * float64(k))
						_ = opt.LR()
					case 2:
						_ = opt.StateDict()
					case 3:
						more := tensor.Ones([]int{2}).RequiresGrad_().Keep()
						return opt.AddGroup([]*tensor.Tensor{more})
					case 4:
						_ = opt.Groups()
					case 5:
						sched.Step()
						_ = sched.LR()
					case 6:
						return sched.LoadStateDict(sched.StateDict())
					default:
						_ = opt.LoadStateDict(opt.StateDict()) // another goroutine may have added a group
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, g := range opt.Groups()[1:] {
		for _, p := range g.Params {
			p.Release()
		}
	}
}

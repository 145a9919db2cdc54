package optim_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// lion is an optimizer that is not PyTorch's (Chen and others, 2023).
var lion = optim.Algorithm{
	Name:     "Lion",
	Options:  []string{"betas", "clip"},
	Defaults: optim.Group{Beta1: 0.9, Beta2: 0.99, Extra: map[string]float64{"clip": 1}},
	Slots:    []optim.Slot{{Name: "exp_avg"}},
	Counts:   true,
	Step: func(g *optim.Group, b *optim.Batch) error {
		for i, p := range b.Params {
			update := b.State[0][i].Lerp(b.Grads[i], 1-g.Beta1).Sign()
			b.State[0][i].Lerp_(b.Grads[i], 1-g.Beta2)
			if err := p.Sub_(update.Mul(g.LR * g.Extra["clip"])).Err(); err != nil {
				return err
			}
		}
		return nil
	},
}

func ones(dtype tensor.DType) *tensor.Tensor {
	return tensor.Ones([]int{3}, dtype).RequiresGrad_().Keep()
}

func setGrad(t *testing.T, p *tensor.Tensor, v float64) {
	t.Helper()
	err := tensor.WithScope(func() error { return p.SetGrad(p.Detach().FullLike(v)) })
	if err != nil {
		t.Fatal(err)
	}
}

// TestAlgorithm tests an optimizer of one's own: its steps, options and state.
func TestAlgorithm(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float64)
	defer p.Release()
	opt, err := optim.New(lion, []*tensor.Tensor{p}, 0.5, optim.Set("clip", 0.5))
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	setGrad(t, p, 3)
	for range 2 {
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
	}
	golden.Exact(t, "the parameter", p, []float64{0.5, 0.5, 0.5})
	s := opt.StateDict()
	if s.State[0]["step"] != 2.0 || s.ParamGroups[0]["clip"] != 0.5 {
		t.Errorf("the state is %v", s)
	}
	s.ParamGroups[0]["clip"] = 0.25
	if err := errors.Join(opt.LoadStateDict(s), opt.Step()); err != nil {
		t.Fatal(err)
	}
	golden.Exact(t, "the parameter", p, []float64{0.375, 0.375, 0.375})

	bad := lion
	bad.Step = nil
	twice := lion
	twice.Slots = []optim.Slot{{Name: "step"}}
	none := lion
	none.Slots = []optim.Slot{{Name: "momentum", New: func(*optim.Group, *tensor.Tensor) *tensor.Tensor { return nil }}}
	for i, a := range []optim.Algorithm{{}, bad, twice} {
		if _, err := optim.New(a, []*tensor.Tensor{p}, 0.1); err == nil {
			t.Errorf("New accepts algorithm %d", i)
		}
	}
	if _, err := optim.New(lion, []*tensor.Tensor{p}, 0.1, optim.Set("other", 1)); err == nil {
		t.Error("New accepts an unknown option")
	}
	if _, err := optim.New(lion, []*tensor.Tensor{p}, 0.1, optim.Set("clip", math.NaN())); err == nil {
		t.Error("New accepts an option that is not a number")
	}
	if opt, err := optim.New(none, []*tensor.Tensor{p}, 0.1); err != nil {
		t.Error(err)
	} else if err := opt.Step(); !errors.Is(err, tensor.ErrNil) || !strings.Contains(err.Error(), "momentum") {
		t.Errorf("a slot without a tensor: %v; the error must name the slot", err)
	}
}

// TestMasterWeights tests that updates too small for bfloat16 add up in the float32 copies.
func TestMasterWeights(t *testing.T) {
	leak.Check(t)
	for name, make := range map[string]constructor{"SGD": optim.NewSGD, "Adam": optim.NewAdam, "AdamW": optim.NewAdamW, "Adamax": optim.NewAdamax, "RMSprop": optim.NewRMSprop} {
		p, plain := ones(tensor.BFloat16), ones(tensor.Float32)
		opt, err := make([]*tensor.Tensor{p}, 1e-3, optim.MasterWeights())
		if err != nil {
			t.Fatal(err)
		}
		other, err := make([]*tensor.Tensor{plain}, 1e-3)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			setGrad(t, p, 0.5)
			setGrad(t, plain, 0.5)
			if err := errors.Join(opt.Step(), other.Step()); err != nil {
				t.Fatal(name, err)
			}
		}
		state := opt.StateDict()
		want, err := tensor.Data[float32](plain.Detach())
		if err != nil {
			t.Fatal(err)
		}
		master, _ := state.State[0]["master"].(*tensor.Tensor)
		golden.Exact(t, name+": the copy", master, []float64{float64(want[0]), float64(want[1]), float64(want[2])})
		golden.Near(t, name+": the parameter", p, []float64{float64(want[0]), float64(want[1]), float64(want[2])}, 4e-3, 0)
		if err := errors.Join(opt.LoadStateDict(state), opt.Step()); err != nil {
			t.Error(name, err)
		}
		opt.Release()
		other.Release()
		p.Release()
		plain.Release()
	}
}

// TestMasterWeightsOfChangedParameter tests that a step starts from the elements that the program has set, and from the
// copy's of those that it has not changed.
func TestMasterWeightsOfChangedParameter(t *testing.T) {
	leak.Check(t)
	setData := func(p, now *tensor.Tensor) error {
		_, err := tensor.CallUnchecked("aten::set_data", p, now)
		return err
	}
	inPlace := func(p, now *tensor.Tensor) error { return p.Copy_(now).Err() }
	for what, change := range map[string]func(p, now *tensor.Tensor) error{
		"in place":               inPlace,
		"in place, after a load": inPlace,
		"replaced":               func(p, now *tensor.Tensor) error { return setData(p, now.Clone()) },
		"replaced by a view":     setData,
		"stepped by another optimizer": func(p, now *tensor.Tensor) error {
			other, err := optim.NewSGD([]*tensor.Tensor{p}, 1)
			grad := p.Grad()
			return errors.Join(err, p.SetGrad(p.Sub(now)), other.Step(), p.SetGrad(grad))
		},
		"replaced in the same memory": func(p, now *tensor.Tensor) error {
			data, err := tensor.CallUnchecked("aten::data", p)
			if err != nil {
				return err
			}
			before := data[0].(*tensor.Tensor) // with a version of its own
			return errors.Join(setData(p, now), before.Copy_(now).Err(), setData(p, before))
		},
	} {
		p := ones(tensor.BFloat16)
		rows := tensor.FromSlice([]float32{1, 1, 1, 1, 5, 1}, []int{2, 3}).To(tensor.BFloat16)
		if err := setData(p, rows.Select(0, 0)); err != nil {
			t.Fatal(err)
		}
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1.0/1024, optim.MasterWeights())
		if err != nil {
			t.Fatal(err)
		}
		setGrad(t, p, 1)
		if err := opt.Step(); err != nil {
			t.Fatal(err)
		}
		golden.Exact(t, "the parameter", p, []float64{1, 1, 1}) // rounded
		if strings.Contains(what, "load") {
			if err := opt.LoadStateDict(opt.StateDict()); err != nil {
				t.Fatal(err)
			}
		}
		err = tensor.WithScope(func() error {
			return autograd.NoGrad(func() error { return change(p, rows.Select(0, 1)) })
		})
		if err := errors.Join(err, opt.Step()); err != nil {
			t.Fatal(err)
		}
		master, _ := opt.StateDict().State[0]["master"].(*tensor.Tensor)
		golden.Exact(t, what+": the copy", master, []float64{1 - 2.0/1024, 5 - 1.0/1024, 1 - 2.0/1024})
		opt.ZeroGrad()
		opt.Release()
		p.Release()
	}
}

// TestConvertedParameters tests that a step is an error if a parameter has got another dtype since the optimizer was
// made: MasterWeights and StochasticRounding would be ignored.
func TestConvertedParameters(t *testing.T) {
	leak.Check(t)
	for what, option := range map[string]optim.Option{"MasterWeights": optim.MasterWeights(), "StochasticRounding": optim.StochasticRounding()} {
		for _, inBackward := range []bool{false, true} {
			err := tensor.WithScope(func() error {
				p := tensor.Ones([]int{3}).RequiresGrad_()
				opt, err := optim.NewSGD([]*tensor.Tensor{tensor.Ones([]int{2}).RequiresGrad_(), p}, 0.5, option)
				if err != nil {
					return err
				}
				if _, err := tensor.CallUnchecked("aten::set_data", p, p.Detach().To(tensor.BFloat16)); err != nil {
					return err
				}
				remove := func() {}
				if inBackward {
					if remove, err = opt.StepInBackward(); err != nil {
						return err
					}
				}
				defer remove()
				err = errors.Join(p.Sum().Backward(), opt.Step())
				if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 1 is bfloat16 and was float32") {
					t.Errorf("%s, in the backward pass %v: %v", what, inBackward, err)
				}
				golden.Exact(t, what+": the parameter", p, []float64{1, 1, 1})
				return nil
			})
			if err != nil {
				t.Error(what, err)
			}
		}
	}
}

// TestConvertedState tests that a step changes nothing once one of several parameters, with or without its gradient, has
// got another dtype than its state, unless the optimizer's kernels promote, and that it works once state and gradient are
// converted.
func TestConvertedState(t *testing.T) {
	leak.Check(t)
	convert := func(p *tensor.Tensor) error { return nn.To(&struct{ P *tensor.Tensor }{p}, tensor.Float64) }
	alone := func(p *tensor.Tensor) error { // leaves its gradient
		_, err := tensor.CallUnchecked("aten::set_data", p, p.Detach().To(tensor.Float64))
		return err
	}
	for name, c := range cases {
		if c.kind != "" && c.kind != "matrix" {
			continue
		}
		for what, change := range map[string]func(p *tensor.Tensor) error{"parameter": convert, "data": alone} {
			err := tensor.WithScope(func() error {
				ps := make([]*tensor.Tensor, 3)
				for i := range ps {
					ps[i] = tensor.Linspace(-1, 1, 12).Reshape(3, 4).RequiresGrad_()
				}
				opt, err := c.make(ps, c.lr, c.opts...)
				if err != nil {
					return err
				}
				defer opt.Release()
				setGrads := func() error {
					for _, p := range ps {
						if err := p.SetGrad(p.Detach().Mul(0.5)); err != nil {
							return err
						}
					}
					return nil
				}
				if err := errors.Join(setGrads(), opt.Step(), setGrads(), change(ps[1])); err != nil {
					return err
				}
				before := fmt.Sprint(ps, opt.StateDict())
				works := name == "rmsprop" || name == "rmsprop_maximize" || strings.HasPrefix(name, "adadelta") ||
					strings.HasPrefix(name, "asgd") || len(opt.StateDict().State) == 0
				for range 2 {
					err := opt.Step()
					if works && what == "parameter" {
						if err != nil {
							t.Errorf("%s, %s: %v", name, what, err)
						}
						return nil
					}
					if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 1 ") {
						t.Errorf("%s, %s: %v", name, what, err)
					}
					if after := fmt.Sprint(ps, opt.StateDict()); after != before {
						t.Errorf("%s, %s: a refused step leaves %s, before %s", name, what, after, before)
					}
				}
				return errors.Join(setGrads(), opt.LoadStateDict(opt.StateDict()), opt.Step())
			})
			if err != nil {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

// TestPromotedState compares steps with state of another dtype than the parameters, which were converted, with PyTorch's.
func TestPromotedState(t *testing.T) {
	leak.Check(t)
	var f file
	golden.Read(t, "optim.json", &f)
	for name, dtypes := range f.Converted {
		for dtype, tol := range map[tensor.DType]float64{tensor.BFloat16: 1e-2, tensor.Float64: 1e-6} { // any CPU's last bits
			p := newProblem("")
			opt := newOptimizer(t, name, p)
			for step := range 5 {
				if step == 2 {
					opt.ZeroGrad()
					if err := nn.To(&struct{ P []*tensor.Tensor }{p.params}, dtype); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.step(opt, step); err != nil {
					t.Fatalf("%s, %v: %v", name, dtype, err)
				}
			}
			for i, param := range p.params {
				what, want := fmt.Sprintf("%s, %v: parameter %d", name, dtype, i), dtypes[dtype.String()][i]
				golden.Near(t, what, param, want, tol, tol)
			}
			opt.Release()
			p.release()
		}
	}
}

// TestMasterWeightsSetLater tests that a step with MasterWeights refuses the bfloat16 state of steps without them.
func TestMasterWeightsSetLater(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.BFloat16)
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5, optim.Momentum(0.5))
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	setGrad(t, p, 1)
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	opt.Groups()[0].MasterWeights = true
	err = opt.Step()
	if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 0 needs its momentum_buffer in float32 and has it in bfloat16") {
		t.Errorf("a step with the state of plain ones: %v", err)
	}
	golden.Exact(t, "the parameter", p, []float64{0.5, 0.5, 0.5})
	if err := errors.Join(opt.LoadStateDict(opt.StateDict()), opt.Step()); err != nil {
		t.Fatal(err)
	}
	golden.Exact(t, "the parameter", p, []float64{-0.25, -0.25, -0.25})
}

// TestMasterWeightsAfterPlain continues training with MasterWeights from a state of bfloat16, as PyTorch has it.
func TestMasterWeightsAfterPlain(t *testing.T) {
	leak.Check(t)
	for name, c := range cases {
		if c.kind != "" && c.kind != "matrix" {
			continue
		}
		err := tensor.WithScope(func() error {
			p := tensor.Linspace(-1, 1, 12).Reshape(3, 4).To(tensor.BFloat16).RequiresGrad_()
			plain, err := c.make([]*tensor.Tensor{p}, c.lr, c.opts...)
			if err != nil {
				return err
			}
			defer plain.Release()
			q := p.Detach().Clone().RequiresGrad_()
			master, err := with(c.make, optim.MasterWeights())([]*tensor.Tensor{q}, c.lr, c.opts...)
			if err != nil {
				return err
			}
			defer master.Release()
			step := func(opt *optim.Optimizer, p *tensor.Tensor) error {
				return errors.Join(p.SetGrad(p.Detach().Mul(0.5)), opt.Step())
			}
			if err := errors.Join(step(plain, p), step(plain, p)); err != nil {
				return err
			}
			// The order in which optimizer and parameters are loaded does not matter.
			if err := master.LoadStateDict(plain.StateDict()); err != nil {
				return err
			}
			if err := autograd.NoGrad(func() error { return q.Copy_(p).Err() }); err != nil {
				return err
			}
			if err := errors.Join(step(plain, p), step(master, q)); err != nil {
				return err
			}
			want, err := tensor.Data[float64](p.Detach().To(tensor.Float64))
			if err != nil {
				return err
			}
			golden.Near(t, name, q, want, 2e-2, 2e-3)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFailedStepKeepsState tests that a step that fails drops the state that it made, and no other.
func TestFailedStepKeepsState(t *testing.T) {
	leak.Check(t)
	fail := false
	used := func(g *optim.Group, _ *tensor.Tensor) bool { return g.Extra["more"] != 0 }
	a := optim.Algorithm{Name: "Test", Options: []string{"more"}, Slots: []optim.Slot{{Name: "sum"}, {Name: "more", Used: used}}, Counts: true,
		Step: func(_ *optim.Group, b *optim.Batch) error {
			if fail {
				return errors.New("stop")
			}
			return b.State[0][0].Add_(b.Grads[0]).Err()
		}}
	p := ones(tensor.BFloat16)
	defer p.Release()
	opt, err := optim.New(a, []*tensor.Tensor{p}, 0.1, optim.MasterWeights())
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	setGrad(t, p, 1)
	defer opt.ZeroGrad()
	step := func(fails bool, want string) {
		t.Helper()
		fail = fails
		if err := opt.Step(); (err != nil) != fails {
			t.Fatal(err)
		}
		if got := fmt.Sprint(opt.StateDict().State); got != want {
			t.Errorf("the state is %s, want %s", got, want)
		}
	}
	state := func() string { return fmt.Sprint(opt.StateDict().State) }
	step(true, "map[]")
	fail = false
	if err := opt.Step(); err != nil {
		t.Fatal(err)
	}
	step(true, state())
	opt.Groups()[0].Extra = map[string]float64{"more": 1}
	if s := opt.StateDict().State[0]; s["step"] != 1.0 || s["sum"] == nil || s["more"] != nil {
		t.Errorf("the state is %v", s)
	}
	step(true, state())
}

func TestHooks(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float32)
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	say := func(s string) func(*optim.Optimizer) error {
		return func(o *optim.Optimizer) error {
			calls = append(calls, s)
			_ = o.LR() // hooks may call methods
			return nil
		}
	}
	change := func(s string) func(*optim.Optimizer, optim.State) (optim.State, error) {
		return func(_ *optim.Optimizer, state optim.State) (optim.State, error) {
			calls = append(calls, s)
			return state, nil
		}
	}
	removes := []func(){opt.RegisterStepPreHook(say("pre")), opt.RegisterStepPostHook(say("post")), opt.RegisterStateDictPreHook(say("state")),
		opt.RegisterStateDictPostHook(change("stated")), opt.RegisterLoadStateDictPreHook(change("load")), opt.RegisterLoadStateDictPostHook(say("loaded"))}
	closure := func() (*tensor.Tensor, error) {
		calls = append(calls, "closure")
		return tensor.ScalarTensor(1.0), nil
	}
	_, err = opt.StepClosure(closure)
	if err := errors.Join(err, opt.Step(), opt.LoadStateDict(opt.StateDict())); err != nil {
		t.Fatal(err)
	}
	want := []string{"pre", "closure", "post", "pre", "post", "state", "stated", "load", "loaded"}
	if len(calls) != len(want) {
		t.Fatalf("the hooks ran as %v, want %v", calls, want)
	}
	for i := range want {
		if calls[i] != want[i] {
			t.Errorf("the hooks ran as %v, want %v", calls, want)
		}
	}
	for _, remove := range removes {
		remove()
		remove()
	}
	stop := errors.New("stop")
	opt.RegisterStepPreHook(func(*optim.Optimizer) error { return stop })
	if err := errors.Join(opt.Step()); !errors.Is(err, stop) || len(calls) != len(want) {
		t.Errorf("Step returns %v after %v", err, calls)
	}
	if _, err := opt.StepClosure(closure); !errors.Is(err, stop) || len(calls) != len(want) {
		t.Errorf("StepClosure returns %v after %v", err, calls)
	}
	(*optim.Optimizer)(nil).RegisterStepPreHook(nil)()
	opt.RegisterLoadStateDictPreHook(nil)()
}

// TestSparseAndDense tests that optimizers refuse gradients of a layout that they cannot take.
func TestSparseAndDense(t *testing.T) {
	leak.Check(t)
	p := newProblem("sparse")
	defer p.release()
	for name, make := range map[string]constructor{"SGD": optim.NewSGD, "Adam": optim.NewAdam, "AdamW": optim.NewAdamW, "Adadelta": optim.NewAdadelta, "Adamax": optim.NewAdamax,
		"ASGD": optim.NewASGD, "NAdam": optim.NewNAdam, "RAdam": optim.NewRAdam, "RMSprop": optim.NewRMSprop, "Rprop": optim.NewRprop, "Adafactor": optim.NewAdafactor, "Muon": optim.NewMuon} {
		var opts []optim.Option
		if name == "SGD" {
			opts = []optim.Option{optim.Momentum(0.9)}
		}
		opt, err := make(p.params, 0.1, opts...)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := errors.Join(p.grads(0)); err != nil {
				t.Fatal(err)
			}
			if opt.Step() == nil {
				t.Errorf("%s accepts sparse gradients", name)
			}
			for _, q := range p.params { // so that the next step is not the first
				if err := q.SetGrad(q.Detach().OnesLike()); err != nil {
					t.Fatal(err)
				}
			}
			if err := opt.Step(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		opt.Release()
	}
	opt, err := optim.NewSparseAdam(p.params, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	if opt.Step() == nil {
		t.Error("SparseAdam accepts dense gradients")
	}
	if _, err := optim.NewMuon([]*tensor.Tensor{ones(tensor.Float32)}, 0.1); err == nil {
		t.Error("Muon accepts a vector")
	}
}

// TestRefusedGradientChangesNothing tests that a sparse gradient that the settings refuse ends a step before another
// parameter of the group has changed, of whatever dtype.
func TestRefusedGradientChangesNothing(t *testing.T) {
	leak.Check(t)
	refused := func(name string, make constructor, bad int) {
		ps := []*tensor.Tensor{ones(tensor.Float32), ones(tensor.Float64), ones(tensor.Float32)}
		opt, err := make(ps, 0.1)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			err := tensor.WithScope(func() error {
				for i, p := range ps {
					g := p.Detach().OnesLike()
					if i == bad {
						g = g.ToSparse()
					}
					if err := p.SetGrad(g); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			before := fmt.Sprint(ps, opt.StateDict())
			if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "dense") && !strings.Contains(err.Error(), "sparse") {
				t.Errorf("%s: %v", name, err)
			} else if strings.Contains(err.Error(), "Adam: Adam") {
				t.Errorf("the error names Adam twice: %v", err)
			}
			if after := fmt.Sprint(ps, opt.StateDict()); after != before {
				t.Errorf("%s: a step that failed leaves %s, before %s", name, after, before)
			}
			setGrad(t, ps[bad], 1) // so that the next step is not the first
			if err := opt.Step(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		opt.ZeroGrad()
		opt.Release()
		release(ps)
	}
	for name, make := range map[string]constructor{"SGD": with(optim.NewSGD, optim.WeightDecay(0.1)), "Adagrad": with(optim.NewAdagrad, optim.WeightDecay(0.1)),
		"Adam": optim.NewAdam, "RMSprop": optim.NewRMSprop} {
		for _, bad := range []int{1, 2} {
			refused(name, make, bad)
		}
	}
}

// TestGradScaler compares with PyTorch's GradScaler.
func TestGradScaler(t *testing.T) {
	leak.Check(t)
	var f file
	golden.Read(t, "optim.json", &f)
	p := tensor.Zeros([]int{3}).RequiresGrad_().Keep()
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := optim.NewGradScaler(optim.InitScale(1024), optim.GrowthInterval(3))
	if err != nil {
		t.Fatal(err)
	}
	if s.Step(opt) == nil {
		t.Error("a step without gradients is no error")
	}
	z := ones(tensor.Complex64)
	defer z.Release()
	ofComplex, err := optim.NewSGD([]*tensor.Tensor{z}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	setGrad(t, z, 1)
	if err := s.Step(ofComplex); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 0 is complex64") {
		t.Errorf("a complex gradient: %v", err)
	}
	ofComplex.ZeroGrad()
	opt.RegisterStepPreHook(func(*optim.Optimizer) error {
		if s.GetScale() < 1 {
			t.Errorf("the scale is %v in a step", s.GetScale())
		}
		return nil
	})
	for i, scale := range f.Scaler.Scales {
		opt.ZeroGrad()
		err := tensor.WithScope(func() error {
			if err := s.Scale(p.Mul(float64(i + 1)).Sum()).Backward(); err != nil {
				return err
			}
			if i == 4 || i == 5 || i == 9 {
				v := math.Inf(1)
				if i == 5 {
					v = math.NaN()
				}
				if err := autograd.NoGrad(func() error { return p.Grad().SetIndex(1, v) }); err != nil {
					return err
				}
			}
			if i%2 == 0 {
				if err := s.Unscale(opt); err != nil {
					return err
				}
				if s.Unscale(opt) == nil {
					t.Error("Unscale works twice")
				}
			}
			return s.Step(opt)
		})
		if err != nil {
			t.Fatal(err)
		}
		if s.Step(opt) == nil {
			t.Error("Step works twice")
		}
		s.Update()
		s.Update()
		if s.GetScale() != scale {
			t.Errorf("step %d: the scale is %v, PyTorch's %v", i, s.GetScale(), scale)
		}
		golden.Exact(t, "the parameter", p, f.Scaler.Values[i])
		again, err := optim.NewGradScaler()
		if err != nil {
			t.Fatal(err)
		}
		if err := again.LoadStateDict(s.StateDict()); err != nil {
			t.Fatal(err)
		}
		s = again
	}
	for k, v := range f.Scaler.State {
		have := s.StateDict()[k]
		if n, ok := have.(int); ok {
			have = float64(n)
		}
		if have != v {
			t.Errorf("%s is %v, PyTorch's %v", k, have, v)
		}
	}
	if err := s.LoadStateDict(f.Scaler.State); err != nil {
		t.Error(err)
	}
	for i, o := range []optim.ScalerOption{nil, optim.InitScale(0), optim.InitScale(math.NaN()), optim.InitScale(1e39), optim.InitScale(1e-60), optim.GrowthFactor(1), optim.BackoffFactor(1), optim.GrowthInterval(0)} {
		if _, err := optim.NewGradScaler(o); err == nil {
			t.Errorf("NewGradScaler accepts option %d", i)
		}
	}
	for _, state := range []map[string]any{nil, {"scale": -1.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 1, "_growth_tracker": 0}} {
		if s.LoadStateDict(state) == nil {
			t.Errorf("LoadStateDict accepts %v", state)
		}
	}
	for _, s := range []*optim.GradScaler{nil, {}} {
		s.Update()
		if s.Scale(p).Err() == nil || s.Unscale(opt) == nil || s.Step(opt) == nil || s.LoadStateDict(nil) == nil || s.GetScale() != 0 {
			t.Error("a nil scaler does something")
		}
		_ = s.StateDict()
	}
}

// TestGradScalerWithoutGradients tests a scaler of two optimizers, one of which has no gradients: Unscale takes it, Step
// does not, and the scale follows the other, as in PyTorch.
func TestGradScalerWithoutGradients(t *testing.T) {
	leak.Check(t)
	p, q := ones(tensor.Float32), ones(tensor.Float32)
	defer p.Release()
	defer q.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	idle, err := optim.NewSGD([]*tensor.Tensor{q}, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := optim.NewGradScaler(optim.InitScale(1024), optim.GrowthInterval(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Unscale(idle); err != nil {
		t.Errorf("Unscale without gradients: %v", err)
	}
	if s.Unscale(idle) == nil {
		t.Error("Unscale works twice")
	}
	if s.Update(); s.GetScale() != 1024 {
		t.Errorf("the scale is %v after an Update without gradients, want 1024", s.GetScale())
	}
	for _, c := range []struct{ grad, scale float64 }{{1, 2048}, {math.Inf(1), 1024}, {1, 2048}} {
		setGrad(t, p, c.grad)
		if err := errors.Join(s.Unscale(idle), s.Unscale(opt), s.Step(opt)); err != nil {
			t.Fatal(err)
		}
		if err := s.Step(idle); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("a step without gradients: %v", err)
		}
		if s.Update(); s.GetScale() != c.scale {
			t.Errorf("gradients of %v: the scale is %v, want %v", c.grad, s.GetScale(), c.scale)
		}
	}
	if s.Step(idle) == nil {
		t.Error("a step without gradients is no error")
	}
	setGrad(t, q, 2048)
	if err := s.Step(idle); err != nil {
		t.Errorf("a step with gradients after one without: %v", err)
	}
	golden.Exact(t, "the parameter", q, []float64{0, 0, 0})
	opt.ZeroGrad()
	idle.ZeroGrad()
}

// TestGradScalerSparse tests that a step with scaled sparse gradients is one with the gradients themselves, and that it is
// skipped if one has an infinity, as in PyTorch.
func TestGradScalerSparse(t *testing.T) {
	leak.Check(t)
	p, q := newProblem("sparse"), newProblem("sparse")
	defer p.release()
	defer q.release()
	plain, scaled := newOptimizer(t, "sparse_adam", p), newOptimizer(t, "sparse_adam", q)
	defer plain.Release()
	defer scaled.Release()
	s, err := optim.NewGradScaler(optim.InitScale(1024))
	if err != nil {
		t.Fatal(err)
	}
	for step, factor := range []float64{1024, math.Inf(1), 512, 512} {
		before := fmt.Sprint(q.params)
		err := tensor.WithScope(func() error {
			for _, t := range q.params {
				g, err := q.grad(t, step)
				if err == nil {
					err = t.SetGrad(g.Detach().Mul(factor))
				}
				if err != nil {
					return err
				}
			}
			return s.Step(scaled)
		})
		if err != nil {
			t.Fatal(err)
		}
		if s.Update(); step == 1 {
			if after := fmt.Sprint(q.params); after != before || s.GetScale() != 512 {
				t.Errorf("a step with an infinite gradient leaves %s, before %s, and the scale %v", after, before, s.GetScale())
			}
			continue
		}
		if err := errors.Join(p.grads(step), plain.Step()); err != nil {
			t.Fatal(err)
		}
		for i, want := range p.params {
			if same, err := q.params[i].Equal(want); err != nil || !same {
				t.Errorf("step %d: the parameter is %v, without a scaler %v: %v", step, q.params[i], want, err)
			}
		}
	}
	plain.ZeroGrad()
	scaled.ZeroGrad()
}

// TestGradScalerAfterError tests that a step that has failed can be tried again, with the gradients that it has unscaled.
func TestGradScalerAfterError(t *testing.T) {
	leak.Check(t)
	w := tensor.FromSlice([]float32{1}, nil).RequiresGrad_()
	defer w.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{w}, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := optim.NewGradScaler(optim.InitScale(1024))
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	remove := opt.RegisterStepPreHook(func(*optim.Optimizer) error { return stop })
	err = tensor.WithScope(func() error {
		return errors.Join(w.Mul(0.5).Backward(tensor.Gradient(tensor.FromSlice([]float32{1024}, nil))))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Step(opt); !errors.Is(err, stop) {
		t.Errorf("a step with a hook that fails: %v", err)
	}
	remove()
	if err := s.Step(opt); err != nil {
		t.Errorf("the second try: %v", err)
	}
	if got, err := tensor.Item[float32](w); got != 0.5 || err != nil {
		t.Errorf("the parameter is %v, want 0.5: %v", got, err)
	}
	if err := s.Step(opt); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a second step: %v", err)
	}
	opt.ZeroGrad()
	opt.Release()
}

// TestGradScalerWithMasterWeights tests that steps with scaled float16 gradients, which would round to 0 if they were
// unscaled in place, are those of float32 parameters with the gradients unscaled in float32.
func TestGradScalerWithMasterWeights(t *testing.T) {
	leak.Check(t)
	const scale = 65536
	values := func(x *tensor.Tensor) []float64 {
		v, err := tensor.Data[float64](x.Detach().To(tensor.Float64))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, make := range map[string]constructor{
		"SGD": with(optim.NewSGD, optim.Momentum(0.9)), "Adam": optim.NewAdam, "Adagrad": optim.NewAdagrad, "RMSprop": optim.NewRMSprop,
	} {
		err := tensor.WithScope(func() error {
			half, single := ones(tensor.Float16), ones(tensor.Float32)
			beside, want := ones(tensor.Float32), ones(tensor.Float32)
			opt, err := make([]*tensor.Tensor{half, beside}, 0.5, optim.MasterWeights())
			if err != nil {
				return err
			}
			defer opt.Release()
			other, err := make([]*tensor.Tensor{single, want}, 0.5)
			if err != nil {
				return err
			}
			defer other.Release()
			s, err := optim.NewGradScaler(optim.InitScale(scale))
			if err != nil {
				return err
			}
			for step := range 4 {
				grad := tensor.FromSlice([]float32{1e-8, -2e-8, 3.3e-9}, nil).Mul(scale).Mul(step + 1).To(tensor.Float16)
				unscaled := grad.To(tensor.Float32).Mul(1.0 / scale)
				err := errors.Join(half.SetGrad(grad), beside.SetGrad(grad.To(tensor.Float32)), single.SetGrad(unscaled), want.SetGrad(unscaled))
				if err != nil {
					return err
				}
				if err := s.Unscale(opt); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "parameter 0 is float16") {
					t.Errorf("%s: Unscale of float16: %v", name, err)
				}
				if err := errors.Join(s.Step(opt), other.Step()); err != nil {
					return err
				}
				s.Update()
				golden.Exact(t, name+": the gradient", half.Grad(), values(grad))
			}
			master, _ := opt.StateDict().State[0]["master"].(*tensor.Tensor)
			golden.Exact(t, name+": the copy", master, values(single))
			golden.Exact(t, name+": a float32 parameter", beside, values(want))
			if err := errors.Join(half.SetGrad(half.Detach().FullLike(math.Inf(1))), s.Step(opt)); err != nil {
				return err
			}
			s.Update()
			golden.Exact(t, name+": the copy after a step that was skipped", master, values(single))
			if s.GetScale() != scale/2 {
				t.Errorf("%s: the scale is %v, want %v", name, s.GetScale(), scale/2)
			}
			remove := opt.RegisterStepPreHook(func(opt *optim.Optimizer) error {
				for _, g := range opt.Groups() {
					g.MasterWeights = false
				}
				return nil
			})
			before := values(half)
			for _, says := range []string{"parameter 0 has a gradient in float16 that is still scaled", "parameter 0 is float16"} {
				setGrad(t, half, 1)
				if err := s.Step(opt); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: a step without MasterWeights: %v, want %s", name, err, says)
				}
				s.Update()
				remove()
			}
			golden.Exact(t, name+": the parameter without MasterWeights", half, before)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGradScalerPeak tests that a step with scaled float16 gradients has one float32 copy of them, as one without a scaler.
func TestGradScalerPeak(t *testing.T) {
	leak.Check(t)
	for name, layout := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"dense": func(x *tensor.Tensor) *tensor.Tensor { return x }, "sparse": func(x *tensor.Tensor) *tensor.Tensor { return x.ToSparse() },
	} {
		peak := func(scaled bool) (most int64) {
			err := tensor.WithScope(func() error {
				p := tensor.Ones([]int{512, 512}, tensor.Float16).RequiresGrad_()
				opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5, optim.MasterWeights())
				if err != nil {
					return err
				}
				defer opt.Release()
				s, err := optim.NewGradScaler()
				if err != nil {
					return err
				}
				step := func() error {
					defer s.Update()
					if scaled {
						return s.Step(opt)
					}
					return opt.Step()
				}
				if err := errors.Join(p.SetGrad(layout(p.Detach().Clone())), step()); err != nil { // makes the state
					return err
				}
				most, err = vram.Measure(vram.CPU, step)
				return err
			})
			if err != nil {
				t.Fatal(name, err)
			}
			return most
		}
		if plain, scaled := peak(false), peak(true); plain < 1<<20 || scaled > plain+1<<16 {
			t.Errorf("%s: a step takes %d bytes, with a scaler %d", name, plain, scaled)
		}
	}
}

// TestGradScalerPromotes tests the dtypes of scaled losses: the scale is a float32 tensor in PyTorch, so that a float16 loss
// of shape () does not overflow.
func TestGradScalerPromotes(t *testing.T) {
	leak.Check(t)
	s, err := optim.NewGradScaler()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		shape      []int
		dtype, out tensor.DType
		want       float64
	}{
		{[]int{}, tensor.Float16, tensor.Float32, 262144}, {[]int{}, tensor.BFloat16, tensor.Float32, 262144},
		{[]int{}, tensor.Float32, tensor.Float32, 262144}, {[]int{}, tensor.Float64, tensor.Float64, 262144},
		{[]int{1}, tensor.Float16, tensor.Float16, math.Inf(1)}, {[]int{1}, tensor.BFloat16, tensor.BFloat16, 262144},
	} {
		err := tensor.WithScope(func() error {
			x := tensor.Full(c.shape, 4, c.dtype).RequiresGrad_()
			y := s.Scale(x)
			if err := y.Backward(); err != nil {
				return err
			}
			if v, err := y.Item(); err != nil || y.DType() != c.out || v != c.want {
				t.Errorf("%v %v: %v %v (%v), want %v %v", c.dtype, c.shape, y.DType(), v, err, c.out, c.want)
			}
			if g := x.Grad(); g.DType() != c.dtype {
				t.Errorf("%v %v: the gradient is %v", c.dtype, c.shape, g.DType())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestScalarDType tests that the numbers in the states of NAdam and ASGD are float64 if that is the default dtype, and
// float32 otherwise, and that they keep their dtype and values when they are loaded. The values are PyTorch's.
func TestScalarDType(t *testing.T) {
	leak.Check(t)
	was := tensor.DefaultDType()
	setDefault := func(d tensor.DType) {
		t.Helper()
		if err := tensor.SetDefaultDType(d); err != nil {
			t.Error(err)
		}
	}
	defer setDefault(was)
	for _, c := range []struct {
		name    string
		make    func(p *tensor.Tensor) (*optim.Optimizer, error)
		numbers []string
		want    []float64
	}{
		{"NAdam", func(p *tensor.Tensor) (*optim.Optimizer, error) { return optim.NewNAdam([]*tensor.Tensor{p}, 0.1) },
			[]string{"mu_product"}, []float64{0.6030310522448095, -2.3969689524623834}},
		{"ASGD", func(p *tensor.Tensor) (*optim.Optimizer, error) {
			return optim.NewASGD([]*tensor.Tensor{p}, 0.1, optim.Lambd(0.1), optim.T0(0))
		}, []string{"mu", "eta"}, []float64{0.6683367656939607, -2.6049848507392404}},
	} {
		for _, dtypes := range [][2]tensor.DType{{tensor.Float64, tensor.Float32}, {tensor.Float32, tensor.Float64}} {
			err := tensor.WithScope(func() error {
				kept, other := dtypes[0], dtypes[1]
				setDefault(kept)
				p := tensor.FromSlice([]float64{1, -2}, nil).RequiresGrad_()
				opt, err := c.make(p)
				if err != nil {
					return err
				}
				defer opt.Release()
				steps := func(opt *optim.Optimizer, p *tensor.Tensor, from, to int) error {
					for i := from; i < to; i++ {
						if err := errors.Join(p.SetGrad(tensor.FromSlice([]float64{0.3, 0.7}, nil).Mul(i+1)), opt.Step()); err != nil {
							return err
						}
					}
					return nil
				}
				if err := steps(opt, p, 0, 2); err != nil {
					return err
				}
				setDefault(other)
				q := p.Detach().Clone().RequiresGrad_()
				again, err := c.make(q)
				if err != nil {
					return err
				}
				defer again.Release()
				if err := again.LoadStateDict(opt.StateDict()); err != nil {
					return err
				}
				if err := steps(again, q, 2, 4); err != nil {
					return err
				}
				setDefault(kept)
				if err := steps(opt, p, 2, 4); err != nil {
					return err
				}
				if kept == tensor.Float64 {
					golden.Near(t, c.name, p, c.want, 0, 1e-14)
				}
				if same, err := q.Equal(p); err != nil || !same {
					t.Errorf("%s, %v: with a loaded state %v, without %v: %v", c.name, kept, q, p, err)
				}
				first, loaded := opt.StateDict().State[0], again.StateDict().State[0]
				for _, name := range c.numbers {
					want, got := first[name].(*tensor.Tensor), loaded[name].(*tensor.Tensor)
					if same, err := got.Equal(want); err != nil || !same || want.DType() != kept || got.DType() != kept {
						t.Errorf("%s, %v: %s is a %v %v, loaded a %v %v: %v", c.name, kept, name, want.DType(), want, got.DType(), got, err)
					}
				}
				opt.ZeroGrad()
				again.ZeroGrad()
				return nil
			})
			if err != nil {
				t.Errorf("%s, %v: %v", c.name, dtypes, err)
			}
		}
	}
}

// TestClosure tests StepClosure with an optimizer that steps once, and errors of LBFGS.
func TestClosure(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float32)
	defer p.Release()
	sgd, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	closure := func() (*tensor.Tensor, error) {
		sgd.ZeroGrad()
		loss := p.Pow(2).Sum()
		return loss, loss.Backward()
	}
	if v, err := sgd.StepClosure(closure); v != 3 || err != nil {
		t.Errorf("StepClosure returns %v, %v", v, err)
	}
	golden.Near(t, "the parameter", p, []float64{0.8, 0.8, 0.8}, 1e-6, 0)
	lbfgs, err := optim.NewLBFGS([]*tensor.Tensor{p}, 1, optim.LineSearchFn("strong_wolfe"))
	if err != nil {
		t.Fatal(err)
	}
	defer lbfgs.Release()
	if lbfgs.Step() == nil || lbfgs.AddGroup([]*tensor.Tensor{ones(tensor.Float32)}) == nil {
		t.Error("LBFGS steps without a closure or has two groups")
	}
	stop, calls := errors.New("stop"), 0
	_, err = lbfgs.StepClosure(func() (*tensor.Tensor, error) {
		if calls++; calls == 3 {
			return nil, stop
		}
		return closure()
	})
	if calls < 3 && err == nil {
		calls = 0 // it converged before
	} else if !errors.Is(err, stop) {
		t.Errorf("StepClosure returns %v", err)
	}
	if _, err := lbfgs.StepClosure(closure); err != nil {
		t.Error(err)
	}
	for _, o := range []optim.Option{optim.LineSearchFn("x"), optim.MaxIter(0), optim.HistorySize(0), optim.ToleranceGrad(-1), optim.MasterWeights()} {
		if _, err := optim.NewLBFGS([]*tensor.Tensor{p}, 1, o); err == nil {
			t.Error("LBFGS accepts an invalid option")
		}
	}
	if _, err := sgd.StepClosure(nil); err == nil {
		t.Error("StepClosure accepts nil")
	}
	if _, err := (*optim.Optimizer)(nil).StepClosure(closure); err == nil {
		t.Error("a nil optimizer steps")
	}
}

// TestLBFGSLoadsOtherDTypes tests that LBFGS converts a state to the dtype of the gradients, as PyTorch does, and can step.
func TestLBFGSLoadsOtherDTypes(t *testing.T) {
	leak.Check(t)
	const single, double = tensor.Float32, tensor.Float64
	for _, c := range []struct{ from, to []tensor.DType }{
		{[]tensor.DType{single, single}, []tensor.DType{double, double}}, {[]tensor.DType{double, double}, []tensor.DType{single, single}},
		{[]tensor.DType{single, single}, []tensor.DType{single, double}}, {[]tensor.DType{double, double}, []tensor.DType{single, tensor.BFloat16}},
	} {
		stepped := func(dtypes []tensor.DType, load *optim.State) optim.State {
			ps := []*tensor.Tensor{ones(dtypes[0]), ones(dtypes[1])}
			defer release(ps)
			opt, err := optim.NewLBFGS(ps, 0.1, optim.MaxIter(3))
			if err != nil {
				t.Fatal(err)
			}
			defer opt.Release()
			if load != nil {
				if err := opt.LoadStateDict(*load); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := opt.StepClosure(func() (*tensor.Tensor, error) {
				opt.ZeroGrad()
				loss := ps[0].Pow(4).Sum().Add(ps[1].Sub(3).Pow(2).Sum())
				return loss, loss.Backward()
			}); err != nil {
				t.Errorf("%v into %v: %v", c.from, c.to, err)
			}
			opt.ZeroGrad()
			return opt.StateDict()
		}
		s := stepped(c.from, nil)
		have, want := stepped(c.to, &s), stepped(c.to, nil)
		for name, v := range want.State[0] {
			got, ok := have.State[0][name].(*tensor.Tensor)
			if want, isTensor := v.(*tensor.Tensor); isTensor && (!ok || got.DType() != want.DType()) {
				t.Errorf("%v into %v: %s is %v", c.from, c.to, name, got)
			}
		}
	}
}

// TestClosureMemory tests that LBFGS frees its temporaries between two calls of the closure, as Python does, and not when
// the step ends.
func TestClosureMemory(t *testing.T) {
	leak.Check(t)
	const history, bytes = 2, 4 << 18
	// The history, d, the last gradient and the gradient now; in a line search also the parameters and the gradients of two
	// points.
	for search, most := range map[string]int64{"": 2*history + 3, "strong_wolfe": 2*history + 6} {
		p := tensor.Full([]int{512, 512}, 3.0).Keep().RequiresGrad_()
		opt, err := optim.NewLBFGS([]*tensor.Tensor{p}, 1e-3, optim.HistorySize(history), optim.ToleranceGrad(0),
			optim.ToleranceChange(0), optim.LineSearchFn(search))
		if err != nil {
			t.Fatal(err)
		}
		var before, peak int64
		calls := 0
		live := func() int64 {
			m, err := vram.Stats(p.Device())
			if err != nil {
				t.Fatal(err)
			}
			return m.Allocated
		}
		before = live()
		if _, err := opt.StepClosure(func() (*tensor.Tensor, error) {
			opt.ZeroGrad()
			calls++
			peak = max(peak, live()-before)
			loss := p.T().Sub(tensor.Arange(0, 512)).Pow(4).Mean()
			return loss, loss.Backward()
		}); err != nil {
			t.Error(err)
		}
		if calls < 15 || peak > most*bytes+bytes/2 {
			t.Errorf("%q: in %d calls up to %.1f copies of the parameters are live, want %d at most", search, calls, float64(peak)/bytes, most)
		}
		opt.Release()
		p.Release()
	}
}

// TestLBFGSOfNaN tests that a line search that meets a loss of NaN moves on as PyTorch's does, and does not hide it at the
// point where it began. A point of NaN that is flat enough is an IndexError in PyTorch; here it is the result.
func TestLBFGSOfNaN(t *testing.T) {
	leak.Check(t)
	log := (*tensor.Tensor).Log
	square := func(p *tensor.Tensor) *tensor.Tensor { return p.Pow(2).Mul(tensor.Where(p.Lt(0), math.NaN(), 1.0)) }
	squareOr := func(limit float64) func(p *tensor.Tensor) *tensor.Tensor {
		return func(p *tensor.Tensor) *tensor.Tensor {
			return p.Pow(2).Add(tensor.Where(p.Lt(limit), math.NaN(), 0.0))
		}
	}
	for _, c := range []struct {
		name string
		lr   float64
		eval int
		loss func(p *tensor.Tensor) *tensor.Tensor
		want float64
	}{
		{"log", 2, 1, log, -1}, {"log, a long search", 2, 12, log, -0.0009765625}, {"square", 2, 12, square, -280959580.77518857},
		{"square, the search ends before", 8, 12, squareOr(0), 0}, {"log, flat enough", 3, 12, log, -2}, {"square, flat enough", 1, 12, squareOr(0.2), 0},
	} {
		p := tensor.Ones([]int{1}, tensor.Float64).RequiresGrad_().Keep()
		opt, err := optim.NewLBFGS([]*tensor.Tensor{p}, c.lr, optim.MaxIter(1), optim.MaxEval(c.eval), optim.LineSearchFn("strong_wolfe"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opt.StepClosure(func() (*tensor.Tensor, error) {
			opt.ZeroGrad()
			loss := c.loss(p).Sum()
			return loss, loss.Backward()
		}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		golden.Exact(t, c.name, p, []float64{c.want})
		opt.ZeroGrad()
		opt.Release()
		p.Release()
	}
}

// TestClosureAbuse tests closures that panic, end their goroutine, or call the optimizer whose step they are. The optimizer
// can be used afterwards.
func TestClosureAbuse(t *testing.T) {
	leak.Check(t)
	for _, search := range []string{"", "strong_wolfe"} {
		for _, at := range []int{1, 2, 3} {
			p := ones(tensor.Float32)
			opt, err := optim.NewLBFGS([]*tensor.Tensor{p}, 0.01, optim.LineSearchFn(search))
			if err != nil {
				t.Fatal(err)
			}
			loss := func() (*tensor.Tensor, error) {
				opt.ZeroGrad()
				loss := p.Pow(4).Sum()
				return loss, loss.Backward()
			}
			run := func(f func() error) (err error) {
				calls := 0
				if err := autograd.NoGrad(func() error { return p.Fill_(1).Err() }); err != nil {
					t.Fatal(err)
				}
				_, err = opt.StepClosure(func() (*tensor.Tensor, error) {
					if calls++; calls == at {
						if err := f(); err != nil {
							return nil, err
						}
					}
					return loss()
				})
				return err
			}
			usable := func(what string) {
				t.Helper()
				if _, err := opt.StepClosure(loss); err != nil {
					t.Errorf("%q, call %d, %s: the next step: %v", search, at, what, err)
				}
			}
			usable("nothing")
			func() {
				defer func() {
					if v := recover(); v != "stop" {
						t.Errorf("recovered %v", v)
					}
				}()
				_ = run(func() error { panic("stop") })
			}()
			usable("a panic")
			ended := make(chan bool)
			go func() {
				defer close(ended)
				_ = run(func() error { runtime.Goexit(); return nil })
			}()
			<-ended
			usable("Goexit")
			if err := run(func() error { _, err := opt.StepClosure(loss); return err }); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "a step of the optimizer is running") {
				t.Errorf("a nested step: %v", err)
			}
			usable("a nested step")
			state := opt.StateDict()
			if err := run(func() error { return opt.LoadStateDict(state) }); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "a step of the optimizer is running") {
				t.Errorf("LoadStateDict: %v", err)
			}
			usable("LoadStateDict")
			if err := run(func() error { opt.Release(); return nil }); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "released") {
				t.Errorf("Release: %v", err)
			}
			usable("Release")
			opt.ZeroGrad()
			opt.Release()
			p.Release()
		}
	}
}

// TestStrides tests that a step does not depend on how a gradient lies in memory, and that the fused kernels' optimizers refuse
// parameters with gaps and parameters whose strides have changed.
func TestStrides(t *testing.T) {
	leak.Check(t)
	for name, make := range map[string]constructor{
		"SGD": optim.NewSGD, "SGD, momentum": with(optim.NewSGD, optim.Momentum(0.9)), "Adam": optim.NewAdam, "Adam, AMSGrad": with(optim.NewAdam, optim.AMSGrad(true)),
		"AdamW": optim.NewAdamW, "Adagrad": optim.NewAdagrad, "RMSprop": optim.NewRMSprop,
	} {
		for _, opts := range [][]optim.Option{nil, {optim.MasterWeights()}} {
			dtype := tensor.Float32
			if opts != nil {
				dtype = tensor.BFloat16
			}
			err := tensor.WithScope(func() error {
				grad := tensor.Arange(0, 6, tensor.Float32).Reshape(2, 3).To(dtype)
				column := grad.T().Contiguous().T()
				step := func(p, grad *tensor.Tensor) (*optim.Optimizer, error) {
					opt, err := make([]*tensor.Tensor{p.RequiresGrad_()}, 0.1, opts...)
					if err != nil {
						return nil, err
					}
					for range 3 {
						if err := errors.Join(p.SetGrad(grad), opt.Step()); err != nil {
							opt.Release()
							return nil, err
						}
					}
					return opt, nil
				}
				rows := tensor.Ones([]int{2, 3}, dtype)
				for what, p := range map[string]*tensor.Tensor{
					"a gradient by columns": tensor.Ones([]int{2, 3}, dtype), "all by columns": tensor.Ones([]int{3, 2}, dtype).T().Detach(),
				} {
					want := rows.Clone()
					a, err := step(want, grad)
					if err != nil {
						return err
					}
					b, err := step(p, column)
					if err != nil {
						return fmt.Errorf("%s: %w", what, err)
					}
					if same, err := p.Equal(want); err != nil || !same {
						t.Errorf("%s, %v, %s: got %v, want %v (%v)", name, dtype, what, p, want, err)
					}
					a.Release()
					b.Release()
				}
				if name == "RMSprop" || opts != nil {
					return nil
				}
				turned := rows.Clone()
				opt, err := step(turned, grad)
				if err != nil {
					return err
				}
				defer opt.Release()
				if _, err := tensor.CallUnchecked("aten::set_data", turned, turned.Detach().T().Contiguous().T()); err != nil {
					return err
				}
				fused := name != "Adagrad" || !testdevice.On // on a GPU it runs the kernels for lists, which take any strides
				if err := errors.Join(turned.SetGrad(grad), opt.Step()); err == nil && name != "SGD" && fused {
					t.Errorf("%s accepts a parameter whose strides have changed", name)
				}
				gaps := tensor.Ones([]int{2, 6}, dtype)
				if _, err := step(gaps.Narrow(1, 0, 3).Detach(), grad); err == nil && fused {
					t.Errorf("%s accepts a parameter with gaps", name)
				}
				if sum, err := gaps.Sum().Item(); fused && (err != nil || sum != 12) {
					t.Errorf("%s has written to it: %v, %v", name, gaps, err)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s, %v: %v", name, dtype, err)
			}
		}
	}
}

// TestGradScalerNotEnabled tests that a scaler with Enabled(false) leaves a program as it is without one.
func TestGradScalerNotEnabled(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float32)
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	s, err := optim.NewGradScaler(optim.InitScale(0), optim.Enabled(false)) // a scale that is not used is not checked
	if err != nil {
		t.Fatal(err)
	}
	on, err := optim.NewGradScaler(optim.Enabled(true))
	if err != nil {
		t.Fatal(err)
	}
	if s.IsEnabled() || !on.IsEnabled() || (*optim.GradScaler)(nil).IsEnabled() {
		t.Error("IsEnabled is wrong")
	}
	err = tensor.WithScope(func() error {
		loss := p.Mul(3).Sum()
		scaled := s.Scale(loss)
		if err := scaled.Backward(); err != nil {
			return err
		}
		want := float64(3 * p.Numel())
		if v, err := scaled.Item(); v != want || err != nil {
			t.Errorf("the scaled loss is %v, %v, want %v", v, err, want)
		}
		scaled.Release()
		if v, err := loss.Item(); v != want || err != nil {
			t.Errorf("the loss is %v, %v after what Scale returned is released", v, err)
		}
		for range 2 { // as often as the program likes
			if err := errors.Join(s.Unscale(opt), s.Step(opt)); err != nil {
				return err
			}
		}
		s.Update()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	golden.Exact(t, "the parameter", p, slices.Repeat([]float64{1 - 2*0.5*3}, p.Numel()))
	if err := errors.Join(s.LoadStateDict(on.StateDict()), s.LoadStateDict(s.StateDict())); err != nil {
		t.Error(err)
	}
	if state := s.StateDict(); s.GetScale() != 1 || state == nil || len(state) != 0 {
		t.Errorf("the scale is %v, the state %v", s.GetScale(), state)
	}
	if err := on.LoadStateDict(s.StateDict()); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("an empty state loads: %v", err)
	}
	setGrad(t, p, math.Inf(1))
	if err := s.Step(opt); err != nil {
		t.Error(err)
	}
	if v, err := p.Sum().Item(); !math.IsInf(v, -1) || err != nil {
		t.Errorf("the sum of the parameter is %v, %v after a step with infinite gradients", v, err)
	}
	opt.ZeroGrad()
	if s.Scale(nil).Err() == nil || s.Unscale(nil) == nil || s.Step(nil) == nil {
		t.Error("a nil argument is no error")
	}
}

// TestGradScalerRoundsTheScale tests that the scale is a float32 from the start. The values are PyTorch's.
func TestGradScalerRoundsTheScale(t *testing.T) {
	leak.Check(t)
	p := ones(tensor.Float32)
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := optim.NewGradScaler(optim.InitScale(0.001), optim.BackoffFactor(0.9))
	if err != nil {
		t.Fatal(err)
	}
	again, err := optim.NewGradScaler()
	if err != nil {
		t.Fatal(err)
	}
	state := s.StateDict()
	state["scale"] = 0.001
	if err := again.LoadStateDict(state); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{float64(float32(0.001)), 0.00090000004274770617, 0.00081000005593523383, 0.0007290000794455409} {
		for _, s := range []*optim.GradScaler{s, again} {
			if s.GetScale() != want {
				t.Errorf("after %d steps the scale is %v, PyTorch's %v", i, s.GetScale(), want)
			}
			setGrad(t, p, math.Inf(1))
			if err := s.Step(opt); err != nil {
				t.Fatal(err)
			}
			s.Update()
		}
	}
	opt.ZeroGrad()
}

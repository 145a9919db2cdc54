package optim_test

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// layers returns n square weights and the loss of a network of them.
func layers(n, width int, dtype tensor.DType) (ws []*tensor.Tensor, loss func() *tensor.Tensor) {
	for i := range n {
		w := tensor.Eye(width).Add(tensor.Linspace(-0.1, 0.1, width*width).Reshape(width, width).Mul(i + 1)).To(dtype)
		ws = append(ws, w.Detach().RequiresGrad_().Keep())
	}
	return ws, func() *tensor.Tensor {
		x := tensor.Ones([]int{2, width}, dtype)
		for _, w := range ws {
			x = x.MatMul(w).Tanh()
		}
		return x.Pow(2).Mean()
	}
}

func release(ts []*tensor.Tensor) {
	for _, t := range ts {
		t.Release()
	}
}

// TestStepInBackward compares parameters with those of Step.
func TestStepInBackward(t *testing.T) {
	for name, make := range map[string]constructor{"SGD": optim.NewSGD, "AdamW": optim.NewAdamW, "RMSprop": optim.NewRMSprop, "Adafactor": optim.NewAdafactor} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			var all [2][]*tensor.Tensor
			for k, inBackward := range []bool{false, true} {
				ws, loss := layers(3, 4, tensor.Float32)
				all[k] = ws
				opt, err := make(ws[:1], 0.05)
				if err != nil {
					t.Fatal(err)
				}
				if err := opt.AddGroup(ws[1:], optim.LR(0.01)); err != nil {
					t.Fatal(err)
				}
				defer opt.Release()
				remove := func() {}
				if inBackward {
					if remove, err = opt.StepInBackward(); err != nil {
						t.Fatal(err)
					}
				}
				for step := range 6 {
					if step == 4 {
						remove()
					}
					err := tensor.WithScope(func() error {
						opt.ZeroGrad()
						if err := loss().Backward(); err != nil {
							return err
						}
						for _, w := range ws {
							if has := w.Grad() != nil; has != (!inBackward || step >= 4) {
								t.Errorf("step %d: a gradient is left: %v", step, has)
							}
						}
						return opt.Step()
					})
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			for i, w := range all[0] {
				if same, err := w.Detach().Equal(all[1][i].Detach()); err != nil || !same {
					t.Errorf("parameter %d is %v, with Step %v", i, all[1][i], w)
				}
			}
			release(append(all[0], all[1]...))
		})
	}
}

func TestStepInBackwardFails(t *testing.T) {
	leak.Check(t)
	ws, loss := layers(1, 2, tensor.Float32)
	defer release(ws)
	opt, err := optim.NewAdamW(ws, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	remove, err := opt.StepInBackward()
	if err != nil {
		t.Fatal(err)
	}
	opt.SetLR(math.NaN())
	if err := tensor.WithScope(func() error { return loss().Backward() }); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a step with a rate that is no number returns %v", err)
	}
	remove()
	remove()
	whole, err := optim.NewLBFGS(ws, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := whole.StepInBackward(); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("LBFGS returns %v", err)
	}
	for _, o := range []*optim.Optimizer{nil, {}} {
		if remove, err := o.StepInBackward(); err == nil || remove == nil {
			t.Errorf("%v has no error", o)
		} else {
			remove()
		}
	}
	ws[0].RequiresGrad_(false)
	if _, err := opt.StepInBackward(); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a parameter without gradients returns %v", err)
	}
}

// A parameter keeps the optimizer until the hooks are removed, and both can be collected together.
func TestStepInBackwardIsCollected(t *testing.T) {
	const one, alias, removed, both = "a parameter is left", "an alias is left", "the hooks are removed", "nothing is left"
	for _, which := range []string{one, alias, removed, both} {
		t.Run(which, func(t *testing.T) {
			leak.Check(t)
			collected := make(chan bool, 1)
			w, remove := func() (*tensor.Tensor, func()) {
				ws, _ := layers(2, 2, tensor.Float32)
				opt, err := optim.NewSGD(ws, 0.1)
				if err != nil {
					t.Fatal(err)
				}
				remove, err := opt.StepInBackward()
				if err != nil {
					t.Fatal(err)
				}
				runtime.AddCleanup(opt, func(c chan bool) { c <- true }, collected)
				if which == alias {
					return ws[1].Alias().Keep(), nil
				}
				return ws[1], remove
			}()
			if which == removed {
				remove()
			}
			if which == both {
				w = nil
			}
			remove = nil
			gone := false
			for range 10 {
				runtime.GC()
				select {
				case gone = <-collected:
				case <-time.After(10 * time.Millisecond):
				}
			}
			if gone == (which == one) {
				t.Errorf("the optimizer is collected: %v", gone)
			}
			if w == nil {
				return
			}
			defer w.Release()
			before, err := w.Detach().Sum().Item()
			if err != nil {
				t.Fatal(err)
			}
			err = tensor.WithScope(func() error { return w.Mul(2).Sum().Backward() })
			if errors.Is(err, tensor.ErrArgument) != (which == alias) || err != nil && which != alias {
				t.Errorf("the backward pass returns %v", err)
			}
			after, err := w.Detach().Sum().Item()
			if err != nil || (after != before) != (which == one) || (w.Grad() == nil) != (which == one) {
				t.Errorf("the sum of the parameter was %v, is %v, %v; its gradient is %v", before, after, err, w.Grad())
			}
			_ = w.SetGrad(nil)
		})
	}
}

// mean returns the mean of a tensor.
func mean(t *testing.T, x *tensor.Tensor) (m float64) {
	t.Helper()
	err := tensor.WithScope(func() (err error) {
		m, err = x.Detach().To(tensor.Float64).Mean().Item()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestStochasticRounding checks that the mean of many rounded elements is the value, and that rounding to nearest would
// not change them at all.
func TestStochasticRounding(t *testing.T) {
	for name, make := range map[string]constructor{"SGD": optim.NewSGD, "AdamW": optim.NewAdamW, "Adamax": optim.NewAdamax} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			if err := tensor.ManualSeed(7); err != nil {
				t.Fatal(err)
			}
			const n, steps, rate = 1 << 16, 40, 1e-4
			// Two parameters, one with an odd number of elements.
			parameter := func(dtype tensor.DType, n int) *tensor.Tensor {
				return tensor.Ones([]int{n}, dtype).RequiresGrad_().Keep()
			}
			rounded := []*tensor.Tensor{parameter(tensor.BFloat16, n), parameter(tensor.BFloat16, 4097)}
			exact, nearest := parameter(tensor.Float32, 1), parameter(tensor.BFloat16, 1)
			defer release(append(rounded, exact, nearest))
			var opts []*optim.Optimizer
			for _, c := range []struct {
				ps   []*tensor.Tensor
				opts []optim.Option
			}{{rounded, []optim.Option{optim.StochasticRounding()}}, {[]*tensor.Tensor{exact}, nil}, {[]*tensor.Tensor{nearest}, nil}} {
				opt, err := make(c.ps, rate, append(c.opts, optim.WeightDecay(0))...)
				if err != nil {
					t.Fatal(err)
				}
				defer opt.Release()
				opts = append(opts, opt)
			}
			for range steps {
				for _, p := range append(rounded, exact, nearest) {
					err := tensor.WithScope(func() error { return p.SetGrad(p.Detach().OnesLike()) })
					if err != nil {
						t.Fatal(err)
					}
				}
				for _, opt := range opts {
					if err := opt.Step(); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := mean(t, exact)
			if !(math.Abs(want-(1-steps*rate)) <= 1e-5) {
				t.Errorf("float32 is at %v", want)
			}
			for _, p := range rounded {
				// The spacing of bfloat16 below 1 is 2^-8, so the error of an element has a standard deviation below
				// sqrt(steps*rate*2^-8) in all.
				bound := 5 * math.Sqrt(steps*rate/256/float64(p.Numel()))
				if got := mean(t, p); !(math.Abs(got-want) <= bound) {
					t.Errorf("the mean of %d elements is %v, want %v within %.2g", p.Numel(), got, want, bound)
				}
				if p.DType() != tensor.BFloat16 {
					t.Errorf("the parameter is %v", p.DType())
				}
			}
			if got := mean(t, nearest); got != 1 {
				t.Errorf("rounding to nearest changes the parameter to %v", got)
			}
			state := opts[0].StateDict()
			for k, v := range state.State[0] {
				if x, ok := v.(*tensor.Tensor); ok && x.DType() != tensor.Float32 {
					t.Errorf("the state %s is %v", k, x.DType())
				}
			}
			if state.ParamGroups[0]["stochastic_rounding"] != true {
				t.Error("the state does not have the option")
			}
			if err := errors.Join(opts[0].LoadStateDict(state), opts[0].Step()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Every element moves in the end: none is stuck.
func TestStochasticRoundingSticksNowhere(t *testing.T) {
	leak.Check(t)
	if err := tensor.ManualSeed(8); err != nil {
		t.Fatal(err)
	}
	p := tensor.Linspace(0.5, 2, 3001).To(tensor.BFloat16).RequiresGrad_().Keep()
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1e-3, optim.StochasticRounding())
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	err = tensor.WithScope(func() error {
		first := p.Detach().Clone()
		for range 100 {
			if err := p.SetGrad(p.Detach().OnesLike()); err != nil {
				return err
			}
			if err := opt.Step(); err != nil {
				return err
			}
		}
		change := first.To(tensor.Float32).Sub(p.Detach())
		least, err := change.Min().Item()
		if least <= 0 {
			t.Errorf("an element has changed by %v", -least)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Numbers that bfloat16 has stay, as do infinities and NaN; the same seed gives the same bits with any number of threads.
func TestStochasticRoundingOfSpecialNumbers(t *testing.T) {
	leak.Check(t)
	threads := tensor.NumThreads()
	defer func() { _ = tensor.SetNumThreads(threads) }()
	run := func(n int) (out []float32) {
		if err := errors.Join(tensor.SetNumThreads(n), tensor.ManualSeed(9)); err != nil {
			t.Fatal(err)
		}
		special := []float32{0, -1.5, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 3e38, -1e-40}
		err := tensor.WithScope(func() (err error) {
			p := tensor.Cat([]*tensor.Tensor{tensor.FromSlice(special, nil), tensor.Linspace(-1, 1, 1<<17)}).To(tensor.BFloat16).RequiresGrad_()
			opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1e-3, optim.StochasticRounding())
			if err != nil {
				return err
			}
			defer opt.Release()
			g := p.Detach().OnesLike()
			g.Narrow(0, 0, len(special)).Zero_()
			before, err := tensor.Data[float32](p.Detach().To(tensor.Float32))
			if err != nil {
				return err
			}
			if err := errors.Join(p.SetGrad(g), opt.Step()); err != nil {
				return err
			}
			out, err = tensor.Data[float32](p.Detach().To(tensor.Float32))
			for i := range special {
				if math.Float32bits(out[i]) != math.Float32bits(before[i]) && !(out[i] != out[i] && before[i] != before[i]) {
					t.Errorf("%v becomes %v", before[i], out[i])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if one, two := fmt.Sprint(run(1)), fmt.Sprint(run(2)); one != two {
		t.Error("the bits depend on the number of threads")
	}
	p := tensor.Ones([]int{1}, tensor.BFloat16).RequiresGrad_()
	defer p.Release()
	if _, err := optim.NewSGD([]*tensor.Tensor{p}, 1, optim.StochasticRounding(), optim.MasterWeights()); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("both options return %v", err)
	}
}

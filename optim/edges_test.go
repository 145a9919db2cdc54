package optim_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestSchedulesAtTheEdges tests schedules where rounding or a metric leaves the usual range: training continues, as in
// PyTorch.
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
	// The last factor would be 0 without rounding; here it is below 0.
	if rates := train(optim.LinearLR(1.0/3, 0, 5), 7); !(math.Abs(rates[5]) <= 1e-15) {
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

// TestSchedulesUseTheirOptimizer tests that the functions of a schedule may call the optimizer and the scheduler.
func TestSchedulesUseTheirOptimizer(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	for name, schedule := range map[string]func(f func(float64) float64) optim.Schedule{
		"LambdaLR": func(f func(float64) float64) optim.Schedule {
			return optim.LambdaLR(func(step int) float64 { return f(float64(step)) })
		},
		"MultiplicativeLR": func(f func(float64) float64) optim.Schedule {
			return optim.MultiplicativeLR(func(step int) float64 { return f(float64(step)) })
		},
		"CyclicLR": func(f func(float64) float64) optim.Schedule {
			return optim.CyclicLR([]float64{0.1}, []float64{0.2}, 2, optim.ScaleFn(f, true), optim.CycleMomentum(false))
		},
		"SequentialLR": func(f func(float64) float64) optim.Schedule {
			return optim.SequentialLR([]int{1}, optim.ConstantLR(0.5, 1), optim.LambdaLR(func(step int) float64 { return f(float64(step)) }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
			if err != nil {
				t.Fatal(err)
			}
			var sched *optim.Scheduler
			var nested bool
			rates := []float64{0}
			sched, err = optim.NewScheduler(opt, schedule(func(float64) float64 {
				rates = append(rates, opt.LR(), opt.Groups()[0].LR)
				opt.SetLR(opt.LR())
				opt.ZeroGrad()
				opt.StateDict()
				if last := sched.LRs(); sched != nil && len(last) != 1 || sched != nil && sched.StateDict() == nil {
					t.Errorf("LRs returns %v", last)
				}
				if nested {
					sched.Step()
				}
				return 0.5
			}))
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				sched.Step()
			}
			if err := opt.Step(); err != nil || len(rates) < 5 {
				t.Errorf("the functions have seen %v: %v", rates, err)
			}
			nested = true
			sched.Step()
			if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("Step in Step: %v", err)
			}
			nested = false
			sched.Step()
			if err := opt.Step(); err != nil {
				t.Error(err)
			}
			state := sched.StateDict()
			for _, last := range []any{[]any{}, []any{0.1, 0.2}} {
				state["_last_lr"] = last
				if err := sched.LoadStateDict(state); !errors.Is(err, tensor.ErrArgument) || len(sched.LRs()) != 1 {
					t.Errorf("a state with the rates %v: %v", last, err)
				}
			}
		})
	}
}

// TestSchedulesOfALaterGroup tests that schedules that multiply the current rate apply to a group that is added after
// NewScheduler, with PyTorch's rates, and that the others are errors, as in PyTorch.
func TestSchedulesOfALaterGroup(t *testing.T) {
	leak.Check(t)
	p, q := tensor.Ones([]int{2}).RequiresGrad_(), tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	defer q.Release()
	add := func(schedule optim.Schedule) (*optim.Optimizer, *optim.Scheduler) {
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1, optim.Momentum(0.5))
		if err != nil {
			t.Fatal(err)
		}
		s, err := optim.NewScheduler(opt, schedule)
		if err == nil {
			err = opt.AddGroup([]*tensor.Tensor{q}, optim.LR(1))
		}
		if err != nil {
			t.Fatal(err)
		}
		return opt, s
	}
	for what, c := range map[string]struct {
		schedule optim.Schedule
		want     []float64 // PyTorch's rates of the group after each step
	}{
		"StepLR":            {optim.StepLR(2, 0.5), []float64{1, 0.5, 0.5, 0.25, 0.25, 0.125}},
		"MultiStepLR":       {optim.MultiStepLR([]int{1, 3, 4}, 0.5), []float64{0.5, 0.5, 0.25, 0.125, 0.125, 0.125}},
		"ConstantLR":        {optim.ConstantLR(0.5, 4), []float64{1, 1, 1, 2, 2, 2}},
		"LinearLR":          {optim.LinearLR(0.5, 1, 4), []float64{1.25, 1.5, 1.75, 2, 2, 2}},
		"ExponentialLR":     {optim.ExponentialLR(0.5), []float64{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625}},
		"PolynomialLR":      {optim.PolynomialLR(5, 2), []float64{0.6400000000000001, 0.36, 0.16000000000000003, 0.03999999999999999, 0, 0}},
		"CosineAnnealingLR": {optim.CosineAnnealingLR(10, 0.1), []float64{0.9779754323328191, 0.9140576474687263, 0.8145033635316129, 0.6890576474687263, 0.55, 0.41094235253127376}},
		"ChainedScheduler":  {optim.ChainedScheduler(optim.ConstantLR(0.5, 2), optim.ExponentialLR(0.5)), []float64{0.5, 0.5, 0.25, 0.125, 0.0625, 0.03125}},
	} {
		opt, s := add(c.schedule)
		var got []float64
		for range c.want {
			s.Step()
			got = append(got, opt.Groups()[1].LR)
		}
		if err := opt.Step(); err != nil || !slices.Equal(got, c.want) || s.LRs()[1] != got[len(got)-1] {
			t.Errorf("%s: the rates are %v, PyTorch's %v: %v", what, got, c.want, err)
		}
		if err := s.LoadStateDict(s.StateDict()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	// whole returns an optimizer that has both groups before its scheduler is made, as a program does that continues.
	whole := func(schedule optim.Schedule) (*optim.Optimizer, *optim.Scheduler) {
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1, optim.Momentum(0.5))
		if err != nil {
			t.Fatal(err)
		}
		if err := opt.AddGroup([]*tensor.Tensor{q}, optim.LR(1)); err != nil {
			t.Fatal(err)
		}
		s, err := optim.NewScheduler(opt, schedule)
		if err != nil {
			t.Fatal(err)
		}
		return opt, s
	}
	for what, schedule := range map[string]optim.Schedule{
		"StepLR":            optim.StepLR(2, 0.5),
		"ConstantLR":        optim.ConstantLR(0.5, 4),
		"LinearLR":          optim.LinearLR(0.5, 1, 4),
		"CosineAnnealingLR": optim.CosineAnnealingLR(10, 0.1),
		"ChainedScheduler":  optim.ChainedScheduler(optim.ConstantLR(0.5, 2), optim.ExponentialLR(0.5)),
	} {
		opt, s := add(schedule)
		s.Step()
		again, s2 := whole(schedule)
		if err := errors.Join(again.LoadStateDict(opt.StateDict()), s2.LoadStateDict(s.StateDict())); err != nil {
			t.Errorf("%s: the state of a run to which AddGroup added a group: %v", what, err)
			continue
		}
		for range 5 {
			s.Step()
			s2.Step()
			if !slices.Equal(s2.LRs(), s.LRs()) || again.LR() != opt.LR() || again.Groups()[1].LR != opt.Groups()[1].LR {
				t.Errorf("%s: the rates are %v, without loading %v", what, s2.LRs(), s.LRs())
			}
		}
		_, s2 = whole(schedule)
		_, s = add(schedule)
		if err := s.LoadStateDict(s2.StateDict()); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%s: the state has a rate for a group that the scheduler does not: %v", what, err)
		}
	}
	one := []float64{1}
	for what, schedule := range map[string]optim.Schedule{
		"LambdaLR":                    optim.LambdaLR(func(int) float64 { return 1 }),
		"MultiplicativeLR":            optim.MultiplicativeLR(func(int) float64 { return 1 }),
		"CosineAnnealingLR, its turn": optim.CosineAnnealingLR(3, 0.1),
		"SequentialLR":                optim.SequentialLR([]int{4}, optim.ConstantLR(0.5, 2), optim.ExponentialLR(0.5)),
		"SequentialLR of a cosine":    optim.SequentialLR([]int{4}, optim.ConstantLR(0.5, 2), optim.CosineAnnealingLR(10, 0)),
		"CyclicLR":                    optim.CyclicLR([]float64{0.1}, one, 3),
		"OneCycleLR":                  optim.OneCycleLR(one, 10),
		"SWALR":                       optim.SWALR(one, 3),
		"CosineAnnealingWarmRestarts": optim.CosineAnnealingWarmRestarts(3),
		"WarmupCosine":                optim.WarmupCosine(1, 5, 0),
	} {
		opt, s := add(schedule)
		for range 6 {
			s.Step()
		}
		if err := opt.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "AddGroup") {
			t.Errorf("%s: %v", what, err)
		}
		_, s = add(schedule)
		again, s2 := whole(schedule)
		if err := s2.LoadStateDict(s.StateDict()); err != nil {
			t.Errorf("%s: the state of a run to which AddGroup added a group: %v", what, err)
		}
		for range 6 {
			s2.Step()
		}
		if err := again.Step(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "AddGroup") {
			t.Errorf("%s, continued: %v", what, err)
		}
	}
}

// TestSchedulesReadTheGroup tests that CyclicLR begins at the rate of the schedule before it, and that SWALR moves to the
// rate of the state that was loaded, as in PyTorch.
func TestSchedulesReadTheGroup(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	add := func(schedule optim.Schedule) (*optim.Optimizer, *optim.Scheduler) {
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.4, optim.Momentum(0.5))
		if err != nil {
			t.Fatal(err)
		}
		s, err := optim.NewScheduler(opt, schedule)
		if err != nil {
			t.Fatal(err)
		}
		return opt, s
	}
	opt, s := add(optim.ChainedScheduler(optim.StepLR(2, 0.5), optim.CyclicLR([]float64{0.125}, []float64{1}, 4)))
	got := []float64{opt.LR()}
	for range 4 {
		s.Step()
		got = append(got, opt.LR())
	}
	if want := []float64{0.4, 0.34375, 0.5625, 0.78125, 1.0}; !slices.Equal(got, want) {
		t.Errorf("CyclicLR: the rates are %v, PyTorch's %v", got, want)
	}
	swa := func(to float64) optim.Schedule {
		return optim.SWALR([]float64{to}, 4, optim.AnnealStrategy("linear"))
	}
	opt, s = add(swa(0.05))
	s.Step()
	s.Step()
	again, s2 := add(swa(0.2))
	if err := errors.Join(again.LoadStateDict(opt.StateDict()), s2.LoadStateDict(s.StateDict())); err != nil {
		t.Fatal(err)
	}
	got = nil
	for range 4 {
		s2.Step()
		got = append(got, again.LR())
	}
	if want := []float64{0.1375, 0.05, 0.05, 0.05}; !slices.Equal(got, want) {
		t.Errorf("SWALR: the rates are %v, PyTorch's %v", got, want)
	}
}

// TestPlateauWithAddedGroup tests that a group without a MinLR of its own is an error where there is one for each.
func TestPlateauWithAddedGroup(t *testing.T) {
	leak.Check(t)
	p, q, r := tensor.Ones([]int{2}).RequiresGrad_(), tensor.Ones([]int{2}).RequiresGrad_(), tensor.Ones([]int{2}).RequiresGrad_()
	for _, x := range []*tensor.Tensor{p, q, r} {
		defer x.Release()
	}
	for _, least := range [][]float64{{0.25}, {0.25, 0.5}} {
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := opt.AddGroup([]*tensor.Tensor{q}); err != nil {
			t.Fatal(err)
		}
		s, err := optim.NewScheduler(opt, optim.ReduceLROnPlateau(optim.Patience(0), optim.MinLR(least...)))
		if err != nil {
			t.Fatal(err)
		}
		if err := opt.AddGroup([]*tensor.Tensor{r}); err != nil {
			t.Fatal(err)
		}
		s.Step(1)
		s.Step(1)
		err = opt.Step()
		if len(least) == 1 {
			if g := opt.Groups(); err != nil || g[0].LR != 0.25 || g[2].LR != 0.25 {
				t.Errorf("one MinLR: the rates are %v and %v, want 0.25: %v", g[0].LR, g[2].LR, err)
			}
			continue
		}
		if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "MinLR has 2 numbers for 3 groups") || opt.LR() != 1 {
			t.Errorf("two MinLR for three groups: the rate is %v: %v", opt.LR(), err)
		}
	}
}

// TestSchedulesLoadAtTheEdges tests states that schedules in others have, and one that would divide by 0.
func TestSchedulesLoadAtTheEdges(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	opt, err := optim.NewSGD([]*tensor.Tensor{p}, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	nested := func() *optim.Scheduler {
		inner := optim.SequentialLR([]int{3}, optim.ConstantLR(0.5, 2), optim.ExponentialLR(0.5))
		s, err := optim.NewScheduler(opt, optim.SequentialLR([]int{5}, inner, optim.ExponentialLR(0.9)))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s, again := nested(), nested()
	s.Step()
	state := s.StateDict()
	waits := state["_schedulers"].([]any)[0].(map[string]any)["_schedulers"].([]any)[1].(map[string]any)
	if waits["last_epoch"] != -1 {
		t.Errorf("the schedule that waits has taken %v steps", waits["last_epoch"])
	}
	waits["last_epoch"] = -2 // as in PyTorch
	if err := again.LoadStateDict(state); err != nil {
		t.Fatal(err)
	}
	for range 6 {
		opt.SetLR(again.LRs()[0])
		s.Step()
		want := s.LRs()
		opt.SetLR(again.LRs()[0])
		again.Step()
		if !slices.Equal(again.LRs(), want) {
			t.Errorf("the rates are %v, without loading %v", again.LRs(), want)
		}
	}
	restarts, err := optim.NewScheduler(opt, optim.CosineAnnealingWarmRestarts(5))
	if err != nil {
		t.Fatal(err)
	}
	state = restarts.StateDict()
	state["T_i"] = 0
	if err := restarts.LoadStateDict(state); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a cycle of no steps: %v", err)
	}
	restarts.Step()
	for _, at := range []any{-2, math.Inf(1), math.NaN(), "x", nil} {
		state := restarts.StateDict()
		state["T_cur"] = at
		if err := restarts.LoadStateDict(state); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("T_cur of %v: %v", at, err)
		}
	}
	// PyTorch's CosineAnnealingWarmRestarts(opt, 3, 2, 0.01) of base rate 0.1 after step(1.75).
	if restarts, err = optim.NewScheduler(opt, optim.CosineAnnealingWarmRestarts(3, optim.TMult(2), optim.EtaMin(0.01))); err != nil {
		t.Fatal(err)
	}
	err = restarts.LoadStateDict(map[string]any{"T_0": 3, "T_i": 3, "T_mult": 2, "eta_min": 0.01, "T_cur": 1.75, "base_lrs": []any{0.1},
		"last_epoch": 1, "_step_count": 0, "_last_lr": []any{0.04335314297038658}})
	if err != nil {
		t.Fatal(err)
	}
	got := restarts.LRs()
	for range 4 {
		restarts.Step()
		got = append(got, opt.LR())
	}
	if want := []float64{0.04335314297038658, 0.011533337816991932, 0.0965745789630079, 0.08239426430539243, 0.06087367864990234}; !slices.Equal(got, want) {
		t.Errorf("the rates after a step of 1.75 are %v, PyTorch's %v", got, want)
	}
	if at := restarts.StateDict()["T_cur"]; at != 2.75 {
		t.Errorf("T_cur is %v, PyTorch's 2.75", at)
	}
}

// TestSchedulesResume tests that a run which loads the states of the optimizer and the schedule, in any order, has the rates,
// momentum and beta1 of one that was not interrupted, also if the program has set a rate between.
func TestSchedulesResume(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	cyclic := optim.CyclicLR([]float64{0.01}, []float64{0.1}, 4)
	cycle := optim.OneCycleLR([]float64{0.1}, 12)
	for name, schedule := range map[string]optim.Schedule{
		"CyclicLR": cyclic, "OneCycleLR": cycle, "StepLR": optim.StepLR(3, 0.5),
		"scaled":     optim.CyclicLR([]float64{0.01}, []float64{0.1}, 4, optim.ScaleFn(func(x float64) float64 { return 1 / x }, false)),
		"in a chain": optim.ChainedScheduler(cyclic, optim.ConstantLR(0.5, 2)),
		"then":       optim.SequentialLR([]int{4}, optim.OneCycleLR([]float64{0.1}, 6), optim.ExponentialLR(0.9)),
		"at last":    optim.SequentialLR([]int{4}, optim.ExponentialLR(0.9), cyclic),
	} {
		for _, make := range []constructor{with(optim.NewSGD, optim.Momentum(0.5)), optim.NewAdam} {
			start := func() (*optim.Optimizer, *optim.Scheduler) {
				opt, err := make([]*tensor.Tensor{p}, 0.1)
				if err != nil {
					t.Fatal(err)
				}
				s, err := optim.NewScheduler(opt, schedule)
				if err != nil {
					t.Fatal(err)
				}
				return opt, s
			}
			opt, s := start()
			for step := range 11 {
				if step%4 == 3 {
					opt.SetLR(opt.LR() / 2)
				}
				for _, first := range []bool{false, true} {
					opt2, again := start()
					optState, state := opt.StateDict(), s.StateDict()
					err := errors.Join(opt2.LoadStateDict(optState), again.LoadStateDict(state))
					if first {
						opt2, again = start()
						err = errors.Join(again.LoadStateDict(state), opt2.LoadStateDict(optState))
					}
					if err != nil {
						t.Fatal(err)
					}
					if g, h := opt.Groups()[0], opt2.Groups()[0]; h.Momentum != g.Momentum || h.Beta1 != g.Beta1 || h.LR != g.LR {
						t.Errorf("%s, step %d: momentum %v, beta1 %v and rate %v, want %v, %v and %v", name, step, h.Momentum, h.Beta1, h.LR, g.Momentum, g.Beta1, g.LR)
					}
				}
				s.Step()
			}
		}
	}
}

// TestTwoSchedulersResume tests that two schedulers of one optimizer continue at its rate, in whatever order their states
// are loaded.
func TestTwoSchedulersResume(t *testing.T) {
	leak.Check(t)
	p := tensor.Ones([]int{2}).RequiresGrad_()
	defer p.Release()
	start := func() (*optim.Optimizer, []*optim.Scheduler) {
		opt, err := optim.NewSGD([]*tensor.Tensor{p}, 1)
		if err != nil {
			t.Fatal(err)
		}
		a, err := optim.NewScheduler(opt, optim.ExponentialLR(0.5))
		if err != nil {
			t.Fatal(err)
		}
		b, err := optim.NewScheduler(opt, optim.StepLR(2, 0.5))
		if err != nil {
			t.Fatal(err)
		}
		return opt, []*optim.Scheduler{a, b}
	}
	opt, ss := start()
	for step := range 5 {
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			again, ss2 := start()
			err := again.LoadStateDict(opt.StateDict())
			for _, i := range order {
				err = errors.Join(err, ss2[i].LoadStateDict(ss[i].StateDict()))
			}
			if err != nil || again.LR() != opt.LR() {
				t.Errorf("step %d, order %v: the rate is %v, want %v: %v", step, order, again.LR(), opt.LR(), err)
			}
		}
		ss[0].Step()
		ss[1].Step()
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

// TestZerosOfSchedules tests that schedules may set values that the constructors refuse, as in PyTorch: a rate of 0 for
// SparseAdam, and a momentum of 0 with Nesterov.
func TestZerosOfSchedules(t *testing.T) {
	leak.Check(t)
	p := newProblem("sparse")
	defer p.release()
	if _, err := optim.NewSparseAdam(p.params, 0); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("NewSparseAdam with a rate of 0: %v", err)
	}
	opt, err := optim.NewSparseAdam(p.params, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	if err := opt.AddGroup(nil, optim.LR(0)); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "SparseAdam") {
		t.Errorf("AddGroup with a rate of 0: %v", err)
	}
	sched, err := optim.NewScheduler(opt, optim.WarmupCosine(1, 4, 0))
	if err != nil {
		t.Fatal(err)
	}
	for step := range 2 {
		before := fmt.Sprint(p.params)
		if err := errors.Join(p.grads(step), opt.Step(), opt.LoadStateDict(opt.StateDict())); err != nil {
			t.Errorf("SparseAdam with a rate of %v: %v", opt.LR(), err)
		}
		if changed := fmt.Sprint(p.params) != before; changed != (opt.LR() != 0) {
			t.Errorf("with a rate of %v the parameters change: %v", opt.LR(), changed)
		}
		sched.Step()
	}
	opt.ZeroGrad()

	w := ones(tensor.Float32)
	defer w.Release()
	if _, err := optim.NewSGD([]*tensor.Tensor{w}, 0.1, optim.Nesterov()); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("NewSGD with Nesterov and a momentum of 0: %v", err)
	}
	sgd, err := optim.NewSGD([]*tensor.Tensor{w}, 0.1, optim.Momentum(0.5), optim.Nesterov())
	if err != nil {
		t.Fatal(err)
	}
	defer sgd.Release()
	sched, err = optim.NewScheduler(sgd, optim.CyclicLR([]float64{0.1}, []float64{0.1}, 1, optim.BaseMomentum(0), optim.MaxMomentum(0.5)))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []float64{0.85, 0.75, 0.575} { // PyTorch 2.15
		setGrad(t, w, 1)
		if err := errors.Join(sgd.Step(), sgd.LoadStateDict(sgd.StateDict())); err != nil {
			t.Errorf("Nesterov with a momentum of %v: %v", sgd.Groups()[0].Momentum, err)
		}
		golden.Near(t, "the parameter", w, []float64{want, want, want}, 1e-6, 0)
		sched.Step()
	}
	sgd.ZeroGrad()
}

package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/cshim"
)

// simple returns a schedule without state of its own.
func simple(settings map[string]any, rate func(c *course, i int, g *Group) (float64, error), closed func(c *course, base float64) float64) Schedule {
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		return start(opt, &course{rate: rate, closed: closed, settings: settings})
	}}
}

// LambdaLR multiplies the base rate by f(step): one function for all groups, or one for each. PyTorch:
// torch.optim.lr_scheduler.LambdaLR.
func LambdaLR(fs ...func(step int) float64) Schedule { return lambda("LambdaLR", false, fs) }

// MultiplicativeLR multiplies the rate by f(step) at each step: one function for all groups, or one for each. PyTorch:
// torch.optim.lr_scheduler.MultiplicativeLR.
func MultiplicativeLR(fs ...func(step int) float64) Schedule {
	return lambda("MultiplicativeLR", true, fs)
}

func lambda(op string, multiply bool, fs []func(step int) float64) Schedule {
	if len(fs) == 0 {
		return badSchedule(op, "a function is needed")
	}
	for _, f := range fs {
		if f == nil {
			return badSchedule(op, "a function is needed, got nil")
		}
	}
	fs = slices.Clone(fs)
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		if len(fs) != 1 && len(fs) != len(opt.groups) {
			return nil, fmt.Errorf("%s has %d functions for %d groups", op, len(fs), len(opt.groups))
		}
		none := make([]any, len(opt.groups))
		return start(opt, &course{settings: map[string]any{"lr_lambdas": none}, rate: func(c *course, i int, g *Group) (float64, error) {
			base, err := c.base(i)
			if err != nil {
				return 0, err
			}
			f, rate := fs[min(i, len(fs)-1)], g.LR
			switch {
			case !multiply:
				return base * callUser(c, f, c.epoch), nil
			case c.initial:
				return rate, nil
			}
			return rate * callUser(c, f, c.epoch), nil
		}})
	}}
}

// StepLR multiplies the rate by gamma every size steps. PyTorch: torch.optim.lr_scheduler.StepLR.
func StepLR(size int, gamma float64) Schedule {
	if size < 1 || finite(gamma) != "" {
		return badSchedule("StepLR", "size must be at least 1 and gamma finite, got %d and %v", size, gamma)
	}
	return simple(map[string]any{"step_size": size, "gamma": gamma}, func(c *course, _ int, g *Group) (float64, error) {
		if c.epoch == 0 || c.epoch%size != 0 {
			return g.LR, nil
		}
		return g.LR * gamma, nil
	}, func(c *course, base float64) float64 { return base * cshim.Pow(gamma, float64(c.epoch/size)) })
}

// MultiStepLR multiplies the rate by gamma at each of the milestones. PyTorch: torch.optim.lr_scheduler.MultiStepLR.
func MultiStepLR(milestones []int, gamma float64) Schedule {
	if finite(gamma) != "" {
		return badSchedule("MultiStepLR", "gamma must be finite, got %v", gamma)
	}
	times := map[int]int{}
	for _, m := range milestones {
		times[m]++
	}
	return simple(map[string]any{"gamma": gamma}, func(c *course, _ int, g *Group) (float64, error) {
		if times[c.epoch] == 0 {
			return g.LR, nil
		}
		return g.LR * cshim.Pow(gamma, float64(times[c.epoch])), nil
	}, func(c *course, base float64) float64 {
		n := 0
		for m, k := range times {
			if m <= c.epoch {
				n += k
			}
		}
		return base * cshim.Pow(gamma, float64(n))
	})
}

// ConstantLR multiplies the rate by factor, in (0, 1], for the given number of steps; PyTorch's defaults are 1/3 and 5.
// PyTorch: torch.optim.lr_scheduler.ConstantLR.
func ConstantLR(factor float64, iters int) Schedule {
	if !(factor > 0 && factor <= 1) || iters < 0 {
		return badSchedule("ConstantLR", "factor must be in (0, 1] and iters at least 0, got %v and %d", factor, iters)
	}
	return simple(map[string]any{"factor": factor, "total_iters": iters}, func(c *course, _ int, g *Group) (float64, error) {
		switch c.epoch {
		case 0:
			return g.LR * factor, nil
		case iters:
			return g.LR * (1 / factor), nil
		}
		return g.LR, nil
	}, func(c *course, base float64) float64 {
		if c.epoch >= iters {
			return base * (factor + (1 - factor))
		}
		return base * factor
	})
}

// LinearLR changes the rate linearly from start, in (0, 1], times the base rate to end, in [0, 1], times the base rate
// over the given number of steps; PyTorch's defaults are 1/3, 1 and 5. PyTorch: torch.optim.lr_scheduler.LinearLR.
func LinearLR(start, end float64, iters int) Schedule {
	if !(start > 0 && start <= 1) || !(end >= 0 && end <= 1) || iters < 1 {
		return badSchedule("LinearLR", "start must be in (0, 1], end in [0, 1] and iters at least 1, got %v, %v and %d", start, end, iters)
	}
	total := float64(iters)
	return simple(map[string]any{"start_factor": start, "end_factor": end, "total_iters": iters}, func(c *course, _ int, g *Group) (float64, error) {
		switch {
		case c.epoch == 0:
			return g.LR * start, nil
		case c.initial || c.epoch > iters:
			return g.LR, nil
		}
		return g.LR * (1 + (end-start)/(float64(total*start)+float64(float64(c.epoch-1)*(end-start)))), nil
	}, func(c *course, base float64) float64 {
		return base * (start + float64((end-start)*float64(min(iters, c.epoch)))/total)
	})
}

// ExponentialLR multiplies the rate by gamma at each step. PyTorch: torch.optim.lr_scheduler.ExponentialLR.
func ExponentialLR(gamma float64) Schedule {
	if finite(gamma) != "" {
		return badSchedule("ExponentialLR", "gamma must be finite, got %v", gamma)
	}
	return simple(map[string]any{"gamma": gamma}, func(c *course, _ int, g *Group) (float64, error) {
		if c.initial {
			return g.LR, nil
		}
		return g.LR * gamma, nil
	}, func(c *course, base float64) float64 { return base * cshim.Pow(gamma, float64(c.epoch)) })
}

// PolynomialLR lowers the rate to 0 over the given number of steps, as a polynomial; PyTorch's defaults are 5 and 1.
// PyTorch: torch.optim.lr_scheduler.PolynomialLR.
func PolynomialLR(iters int, power float64) Schedule {
	if iters < 1 || finite(power) != "" {
		return badSchedule("PolynomialLR", "iters must be at least 1 and power finite, got %d and %v", iters, power)
	}
	total := float64(iters)
	return simple(map[string]any{"total_iters": iters, "power": power}, func(c *course, _ int, g *Group) (float64, error) {
		if c.initial || c.epoch > iters {
			return g.LR, nil
		}
		return g.LR * cshim.Pow((1-float64(c.epoch)/total)/(1-float64(c.epoch-1)/total), power), nil
	}, func(c *course, base float64) float64 {
		return base * cshim.Pow(1-float64(min(iters, c.epoch))/total, power)
	})
}

// CosineAnnealingLR lowers the rate from the base rate to low along half a cosine over the given number of steps; after
// that the rate rises again along the cosine. PyTorch: torch.optim.lr_scheduler.CosineAnnealingLR.
func CosineAnnealingLR(steps int, low float64) Schedule {
	if steps < 1 || atLeast0(low) != "" {
		return badSchedule("CosineAnnealingLR", "steps must be at least 1 and low finite and at least 0, got %d and %v", steps, low)
	}
	total := float64(steps)
	cos := func(epoch int) float64 { return cshim.Cos(float64(math.Pi*float64(epoch)) / total) }
	closed := func(c *course, base float64) float64 { return low + float64((base-low)*(1+cos(c.epoch)))/2 }
	return simple(map[string]any{"T_max": steps, "eta_min": low}, func(c *course, i int, g *Group) (float64, error) {
		switch {
		case c.initial:
			return g.LR, nil
		case c.count == 1 && c.epoch > 0:
			base, err := c.base(i)
			return closed(c, base), err
		case (c.epoch-1-steps)%(2*steps) == 0:
			base, err := c.base(i)
			return g.LR + float64((base-low)*(1-cshim.Cos(math.Pi/total)))/2, err
		}
		return float64((1+cos(c.epoch))/(1+cos(c.epoch-1))*(g.LR-low)) + low, nil
	}, closed)
}

// SequentialLR follows each schedule until its milestone, then the next one, which starts at its own step 0. There is
// one milestone fewer than schedules. It begins with the one after all milestones of 0, and of those with equal milestones
// follows the last. As in PyTorch, a SequentialLR that another begins with begins at its step 1, the parts of a
// ChainedScheduler there have taken a step at step 0, and it cannot change to a ChainedScheduler later. PyTorch:
// torch.optim.lr_scheduler.SequentialLR.
func SequentialLR(milestones []int, schedules ...Schedule) Schedule {
	const op = "SequentialLR"
	if len(schedules) == 0 || len(milestones) != len(schedules)-1 {
		return badSchedule(op, "%d schedules need %d milestones, got %d", len(schedules), max(0, len(schedules)-1), len(milestones))
	}
	if len(milestones) > 0 && milestones[0] < 0 || !slices.IsSorted(milestones) {
		return badSchedule(op, "milestones must be at least 0 and must not fall, got %v", milestones)
	}
	milestones = slices.Clone(milestones)
	return composed(op, schedules, func(opt *Optimizer, c *course) error {
		c.milestones = milestones
		first := c.turn(0)
		for i := first + 1; i < len(c.parts); i++ {
			begins := i == len(milestones) || milestones[i-1] < milestones[i] // of equal milestones the last part does
			if begins && c.parts[i].beginsChained() {
				return fmt.Errorf("schedule %d: %s cannot start a ChainedScheduler at a milestone, put it first", i, op)
			}
		}
		for _, g := range opt.groups {
			g.LR = g.Extra["initial_lr"]
		}
		c.undo()
		return c.parts[first].begin()
	})
}

// ChainedScheduler applies all schedules at each step, each to the rate that the one before it set. PyTorch:
// torch.optim.lr_scheduler.ChainedScheduler.
func ChainedScheduler(schedules ...Schedule) Schedule {
	const op = "ChainedScheduler"
	if len(schedules) == 0 {
		return badSchedule(op, "a schedule is needed")
	}
	return composed(op, schedules, func(_ *Optimizer, c *course) error {
		c.chained = true
		c.remember()
		return nil
	})
}

func composed(op string, schedules []Schedule, finish func(opt *Optimizer, c *course) error) Schedule {
	for i, s := range schedules {
		if s.err != nil {
			return s
		}
		if s.apply == nil {
			return badSchedule(op, "schedule %d is empty", i)
		}
	}
	schedules = slices.Clone(schedules)
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		c := &course{opt: opt}
		for i, s := range schedules {
			p, err := s.apply(opt)
			if err != nil {
				return nil, fmt.Errorf("schedule %d: %w", i, err)
			}
			if p.measure != nil {
				return nil, fmt.Errorf("schedule %d: ReduceLROnPlateau, which needs a metric, cannot be part of %s", i, op)
			}
			c.parts = append(c.parts, p)
		}
		return c, finish(opt, c)
	}}
}

// ReduceLROnPlateau multiplies the rate by Factor when the metric that Step is given has not improved for more than
// Patience steps. Options: Mode, Factor, Patience, Threshold, Cooldown, MinLR, ReduceEps. PyTorch:
// torch.optim.lr_scheduler.ReduceLROnPlateau.
func ReduceLROnPlateau(opts ...ScheduleOption) Schedule {
	const op = "ReduceLROnPlateau"
	o := scheduleOptions{mode: "min", factor: 0.1, patience: 10, threshold: 1e-4, thresholdMode: "rel", minLR: []float64{0}, eps: 1e-8}
	if err := o.setOptions(op, []string{"Mode", "Factor", "Patience", "Threshold", "Cooldown", "MinLR", "ReduceEps"}, opts); err != nil {
		return Schedule{err: err}
	}
	switch {
	case !(o.factor >= 0 && o.factor < 1):
		return badSchedule(op, "Factor must be in [0, 1), got %v", o.factor)
	case o.mode != "min" && o.mode != "max":
		return badSchedule(op, "Mode must be min or max, got %q", o.mode)
	case o.thresholdMode != "rel" && o.thresholdMode != "abs" || finite(o.threshold) != "":
		return badSchedule(op, "Threshold must be finite and rel or abs, got %v and %q", o.threshold, o.thresholdMode)
	case o.patience < 0 || o.cooldown < 0 || atLeast0(o.eps) != "":
		return badSchedule(op, "Patience, Cooldown and ReduceEps must be at least 0, got %d, %d and %v", o.patience, o.cooldown, o.eps)
	}
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		least, err := forGroups("MinLR", o.minLR, opt)
		if err != nil {
			return nil, err
		}
		worst := math.Inf(1)
		if o.mode == "max" {
			worst = math.Inf(-1)
		}
		best, bad, cooling := worst, 0, 0
		better := func(v float64) bool {
			switch {
			case o.mode == "min" && o.thresholdMode == "rel":
				return v < best*(1-o.threshold)
			case o.mode == "min":
				return v < best-o.threshold
			case o.thresholdMode == "rel":
				return v > best*(o.threshold+1)
			}
			return v > best+o.threshold
		}
		c := &course{
			settings: map[string]any{"factor": o.factor, "min_lrs": anys(least), "patience": o.patience, "cooldown": o.cooldown,
				"eps": o.eps, "mode": o.mode, "threshold": o.threshold, "threshold_mode": o.thresholdMode, "mode_worse": worst},
			numbers: map[string]*int{"cooldown_counter": &cooling, "num_bad_epochs": &bad},
			floats:  map[string]*float64{"best": &best},
			measure: func(c *course, v float64) error {
				if better(v) {
					best, bad = v, 0
				} else {
					bad++
				}
				if cooling > 0 {
					cooling--
					bad = 0
				}
				if bad <= o.patience {
					return nil
				}
				if n := len(c.opt.groups); len(o.minLR) > 1 && len(least) != n {
					return fmt.Errorf("MinLR has %d numbers for %d groups: call NewScheduler after the last AddGroup", len(least), n)
				}
				cooling, bad = o.cooldown, 0
				for i, g := range c.opt.groups {
					rate := max(g.LR*o.factor, least[min(i, len(least)-1)])
					if g.LR-rate > o.eps {
						g.LR = rate
					}
				}
				return nil
			},
		}
		c.opt = opt
		if len(opt.groups) == 0 {
			return nil, errors.New("the optimizer has no groups")
		}
		c.remember()
		return c, nil
	}}
}

// momenta sets the momentum, or beta1, of the groups.
type momenta struct {
	beta1     bool
	base, max []float64
}

// newMomenta returns nil if the momentum is not cycled.
func newMomenta(o *scheduleOptions, opt *Optimizer, settings map[string]any) (m *momenta, err error) {
	settings["cycle_momentum"] = o.cycleMomentum
	if !o.cycleMomentum {
		return nil, nil
	}
	m = &momenta{}
	if opt.kind != nil {
		m.beta1 = slices.Contains(opt.kind.Options, "betas")
	}
	if opt.kind == nil || !m.beta1 && !slices.Contains(opt.kind.Options, "momentum") {
		return nil, errors.New("the optimizer has neither momentum nor betas: set CycleMomentum(false)")
	}
	if m.base, err = forGroups("BaseMomentum", o.baseMomentum, opt); err != nil {
		return nil, err
	}
	if m.max, err = forGroups("MaxMomentum", o.maxMomentum, opt); err != nil {
		return nil, err
	}
	settings["use_beta1"] = m.beta1
	for i, g := range opt.groups {
		m.set(g, m.max[i])
		g.note("max_momentum", m.max[i])
		g.note("base_momentum", m.base[i])
	}
	return m, nil
}

func (m *momenta) set(g *Group, v float64) {
	if m.beta1 {
		g.Beta1 = v
	} else {
		g.Momentum = v
	}
}

// CyclicLR moves the rate between base and most, one number for all groups or one for each: up in stepSizeUp steps, which
// is 2000 in PyTorch by default, and down in StepSizeDown. Options: StepSizeDown, Mode, Gamma, ScaleFn, CycleMomentum,
// BaseMomentum, MaxMomentum. PyTorch: torch.optim.lr_scheduler.CyclicLR.
func CyclicLR(base, most []float64, stepSizeUp int, opts ...ScheduleOption) Schedule {
	const op = "CyclicLR"
	o := scheduleOptions{stepSizeDown: stepSizeUp, mode: "triangular", gamma: 1, cycleMomentum: true, baseMomentum: []float64{0.8},
		maxMomentum: []float64{0.9}}
	if err := o.setOptions(op, []string{"StepSizeDown", "Mode", "Gamma", "ScaleFn", "CycleMomentum", "BaseMomentum", "MaxMomentum"}, opts); err != nil {
		return Schedule{err: err}
	}
	if stepSizeUp < 1 || o.stepSizeDown < 1 || finite(o.gamma) != "" {
		return badSchedule(op, "the step sizes must be at least 1 and Gamma finite, got %d, %d and %v", stepSizeUp, o.stepSizeDown, o.gamma)
	}
	scale, scaleMode := o.scaleFn, o.scaleMode
	if scale == nil {
		switch o.mode {
		case "triangular":
			scale, scaleMode = func(float64) float64 { return 1 }, "cycle"
		case "triangular2":
			scale, scaleMode = func(x float64) float64 { return 1 / cshim.Pow(2, x-1) }, "cycle"
		case "exp_range":
			scale, scaleMode = func(x float64) float64 { return cshim.Pow(o.gamma, x) }, "iterations"
		default:
			return badSchedule(op, "Mode must be triangular, triangular2 or exp_range, got %q", o.mode)
		}
	}
	base, most = slices.Clone(base), slices.Clone(most)
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		bases, err := forGroups("base", base, opt)
		if err != nil {
			return nil, err
		}
		maxs, err := forGroups("max", most, opt)
		if err != nil {
			return nil, err
		}
		total := float64(stepSizeUp) + float64(o.stepSizeDown)
		ratio := float64(stepSizeUp) / total
		settings := map[string]any{"max_lrs": anys(maxs), "total_size": total, "step_ratio": ratio, "mode": o.mode, "gamma": o.gamma,
			"scale_mode": scaleMode, "_scale_fn_custom": nil}
		for i, g := range opt.groups {
			g.LR = bases[i]
		}
		m, err := newMomenta(&o, opt, settings)
		if err != nil {
			return nil, err
		}
		if m != nil {
			settings["base_momentums"], settings["max_momentums"] = anys(m.base), anys(m.max)
		}
		c, err := start(opt, &course{settings: settings, rate: func(c *course, i int, g *Group) (float64, error) {
			low, err := c.base(i) // of step 0, as in PyTorch, the group's initial rate, which another schedule may have set
			if err != nil {
				return 0, err
			}
			at := float64(c.epoch) / total
			cycle := math.Floor(1 + at)
			x := 1 + at - cycle
			factor := x / ratio
			if x > ratio {
				factor = (x - 1) / (ratio - 1)
			}
			scaled := cycle
			if scaleMode != "cycle" {
				scaled = float64(c.epoch)
			}
			amplitude := callUser(c, scale, scaled)
			if m != nil {
				m.set(g, m.max[i]-float64((m.max[i]-m.base[i])*factor*amplitude))
			}
			return low + float64((maxs[i]-low)*factor*amplitude), nil
		}})
		if err != nil {
			return nil, err
		}
		c.bases = slices.Clone(bases)
		return c, nil
	}}
}

// CosineAnnealingWarmRestarts lowers the rate along half a cosine over steps steps and starts again, each cycle TMult
// times as long. Options: TMult, EtaMin. PyTorch: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.
func CosineAnnealingWarmRestarts(steps int, opts ...ScheduleOption) Schedule {
	const op = "CosineAnnealingWarmRestarts"
	o := scheduleOptions{mult: 1}
	if err := o.setOptions(op, []string{"TMult", "EtaMin"}, opts); err != nil {
		return Schedule{err: err}
	}
	if steps < 1 || o.mult < 1 || finite(o.etaMin) != "" {
		return badSchedule(op, "steps and TMult must be at least 1 and EtaMin finite, got %d, %d and %v", steps, o.mult, o.etaMin)
	}
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		at, length := -1.0, steps // PyTorch's step(epoch) takes parts of steps
		return start(opt, &course{
			settings: map[string]any{"T_0": steps, "T_mult": o.mult, "eta_min": o.etaMin},
			numbers:  map[string]*int{"T_i": &length},
			floats:   map[string]*float64{"T_cur": &at},
			least:    map[string]float64{"T_cur": -1},
			before: func(c *course) {
				c.count = 0 // as in PyTorch, which does not count these
				if c.epoch == 0 {
					at, length = 0, steps
					return
				}
				if at++; at >= float64(length) {
					at = math.Mod(at, float64(length))
					if length <= math.MaxInt/2/o.mult {
						length *= o.mult
					}
				}
			},
			rate: func(c *course, i int, _ *Group) (float64, error) {
				base, err := c.base(i)
				return o.etaMin + float64((base-o.etaMin)*(1+cshim.Cos(float64(math.Pi*at)/float64(length))))/2, err
			},
		})
	}}
}

// OneCycleLR raises the rate from most / DivFactor to most, one number for all groups or one for each, lowers it to its
// first rate over FinalDivFactor, and moves the momentum the other way, in totalSteps steps. A step beyond them is an
// error. Options: PctStart, AnnealStrategy, CycleMomentum, BaseMomentum, MaxMomentum, DivFactor, FinalDivFactor,
// ThreePhase. PyTorch: torch.optim.lr_scheduler.OneCycleLR.
func OneCycleLR(most []float64, totalSteps int, opts ...ScheduleOption) Schedule {
	const op = "OneCycleLR"
	o := scheduleOptions{pctStart: 0.3, anneal: "cos", cycleMomentum: true, baseMomentum: []float64{0.85}, maxMomentum: []float64{0.95},
		divFactor: 25, finalDivFactor: 1e4}
	known := []string{"PctStart", "AnnealStrategy", "CycleMomentum", "BaseMomentum", "MaxMomentum", "DivFactor", "FinalDivFactor", "ThreePhase"}
	if err := o.setOptions(op, known, opts); err != nil {
		return Schedule{err: err}
	}
	switch {
	case totalSteps < 1:
		return badSchedule(op, "totalSteps must be at least 1, got %d", totalSteps)
	case upTo1(o.pctStart) != "":
		return badSchedule(op, "PctStart must be in [0, 1], got %v", o.pctStart)
	case o.anneal != "cos" && o.anneal != "linear":
		return badSchedule(op, "AnnealStrategy must be cos or linear, got %q", o.anneal)
	case positive(o.divFactor) != "" || positive(o.finalDivFactor) != "":
		return badSchedule(op, "DivFactor and FinalDivFactor must be finite and larger than 0, got %v and %v", o.divFactor, o.finalDivFactor)
	}
	type phase struct {
		end                          float64
		startLR, endLR, startM, endM string
	}
	first := float64(o.pctStart*float64(totalSteps)) - 1
	phases := []phase{{first, "initial_lr", "max_lr", "max_momentum", "base_momentum"}}
	if o.threePhase {
		phases = append(phases, phase{float64(2*o.pctStart*float64(totalSteps)) - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"},
			phase{float64(totalSteps - 1), "initial_lr", "min_lr", "max_momentum", "max_momentum"})
	} else {
		phases = append(phases, phase{float64(totalSteps - 1), "max_lr", "min_lr", "base_momentum", "max_momentum"})
	}
	anneal := func(from, to, part float64) float64 {
		if o.anneal == "linear" {
			return float64((to-from)*part) + from
		}
		return to + float64((from-to)/2*(cshim.Cos(math.Pi*part)+1))
	}
	most = slices.Clone(most)
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		maxs, err := forGroups("max", most, opt)
		if err != nil {
			return nil, err
		}
		for i, g := range opt.groups {
			initial := maxs[i] / o.divFactor
			g.note("initial_lr", initial)
			g.note("max_lr", maxs[i])
			g.note("min_lr", initial/o.finalDivFactor)
		}
		settings := map[string]any{"total_steps": totalSteps, "_anneal_func_type": o.anneal}
		m, err := newMomenta(&o, opt, settings)
		if err != nil {
			return nil, err
		}
		return start(opt, &course{settings: settings, rate: func(c *course, i int, g *Group) (float64, error) {
			step := float64(c.epoch)
			if _, err := c.base(i); err != nil {
				return 0, err
			}
			if c.epoch > totalSteps {
				return 0, fmt.Errorf("OneCycleLR has %d steps, this is step %d", totalSteps, c.epoch)
			}
			from := 0.0
			for k, p := range phases {
				if step > p.end && k < len(phases)-1 {
					from = p.end
					continue
				}
				part := 1.0
				if p.end != from {
					part = (step - from) / (p.end - from)
				}
				if err := c.needs(i, p.startLR, p.endLR); err != nil {
					return 0, err
				}
				if m != nil {
					if err := c.needs(i, p.startM, p.endM); err != nil {
						return 0, err
					}
					m.set(g, anneal(g.Extra[p.startM], g.Extra[p.endM], part))
				}
				return anneal(g.Extra[p.startLR], g.Extra[p.endLR], part), nil
			}
			return g.LR, nil
		}})
	}}
}

// SWALR moves the rate to swaLR, one number for all groups or one for each, over the given number of steps, 10 in PyTorch
// by default, and keeps it there, for an average of weights (AveragedModel). Options: AnnealStrategy. PyTorch:
// torch.optim.swa_utils.SWALR.
func SWALR(swaLR []float64, steps int, opts ...ScheduleOption) Schedule {
	const op = "SWALR"
	o := scheduleOptions{anneal: "cos"}
	if err := o.setOptions(op, []string{"AnnealStrategy"}, opts); err != nil {
		return Schedule{err: err}
	}
	if steps < 0 || o.anneal != "cos" && o.anneal != "linear" {
		return badSchedule(op, "steps must be at least 0 and AnnealStrategy cos or linear, got %d and %q", steps, o.anneal)
	}
	anneal := func(t float64) float64 {
		if o.anneal == "linear" {
			return t
		}
		return (1 - cshim.Cos(math.Pi*t)) / 2
	}
	swaLR = slices.Clone(swaLR)
	return Schedule{apply: func(opt *Optimizer) (*course, error) {
		rates, err := forGroups("swaLR", swaLR, opt)
		if err != nil {
			return nil, err
		}
		for i, g := range opt.groups {
			g.note("swa_lr", rates[i])
		}
		return start(opt, &course{settings: map[string]any{"anneal_epochs": steps, "_anneal_strategy": o.anneal},
			rate: func(c *course, i int, g *Group) (float64, error) {
				if _, err := c.base(i); err != nil {
					return 0, err
				}
				if err := c.needs(i, "swa_lr"); err != nil {
					return 0, err
				}
				step, to := c.count-1, g.Extra["swa_lr"]
				if steps == 0 {
					step = max(1, step)
				}
				part := func(step int) float64 { return anneal(max(0, min(1, float64(step)/float64(max(1, steps))))) }
				before, now := part(step-1), part(step)
				rate := to
				if before != 1 {
					rate = (g.LR - float64(before*to)) / (1 - before)
				}
				return float64(to*now) + float64(rate*(1-now)), nil
			}})
	}}
}

// closedForm returns a schedule whose rate is a function of step and base rate.
func closedForm(f func(step int, base float64) float64) Schedule {
	return simple(nil, func(c *course, i int, _ *Group) (float64, error) {
		base, err := c.base(i)
		return f(c.epoch, base), err
	}, func(c *course, base float64) float64 { return f(c.epoch, base) })
}

// warm returns the rate of a linear rise from 0 over warmup steps.
func warm(step, warmup int, base float64) float64 { return base * (float64(step) / float64(warmup)) }

// WarmupCosine raises the rate linearly from 0 to the base rate over warmup steps, lowers it to low along half a cosine
// until step total, and keeps it there.
func WarmupCosine(warmup, total int, low float64) Schedule {
	if warmup < 1 || total <= warmup || atLeast0(low) != "" {
		return badSchedule("WarmupCosine", "warmup must be at least 1, total larger and low finite and at least 0, got %d, %d and %v", warmup, total, low)
	}
	return closedForm(func(step int, base float64) float64 {
		switch {
		case step < warmup:
			return warm(step, warmup, base)
		case step >= total:
			return low
		}
		return low + float64((base-low)*(1+cshim.Cos(float64(math.Pi*float64(step-warmup))/float64(total-warmup))))/2
	})
}

// WarmupStep raises the rate linearly from 0 to the base rate over warmup steps, then multiplies it by gamma every size
// steps.
func WarmupStep(warmup, size int, gamma float64) Schedule {
	if warmup < 1 || size < 1 || finite(gamma) != "" {
		return badSchedule("WarmupStep", "warmup and size must be at least 1 and gamma finite, got %d, %d and %v", warmup, size, gamma)
	}
	return closedForm(func(step int, base float64) float64 {
		if step < warmup {
			return warm(step, warmup, base)
		}
		return base * cshim.Pow(gamma, float64((step-warmup)/size))
	})
}

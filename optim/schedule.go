package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Schedule describes learning rates by step. LambdaLR, CosineAnnealingLR and the other functions return schedules, and
// NewScheduler applies one to an optimizer.
type Schedule struct {
	apply func(opt *Optimizer) (*course, error) // opt is locked
	err   error
}

func badSchedule(op, format string, args ...any) Schedule {
	return Schedule{err: refuse.Error(op, tensor.ErrArgument, format, args...)}
}

// course is a schedule applied to an optimizer. It follows PyTorch's computation, in which most schedules multiply the
// current rate, so that the rates have the same bits.
type course struct {
	opt     *Optimizer
	bases   []float64 // by group
	epoch   int
	count   int // of steps
	initial bool
	last    []float64 // the rates of the last step

	// rate returns the rate of a group at c.epoch, as PyTorch's get_lr does.
	rate func(c *course, i int, g *Group) (float64, error)
	// closed returns the rate computed from the base rate, as _get_closed_form_lr does. A schedule that starts after
	// another begins with it. Nil means rate.
	closed func(c *course, base float64) float64
	// before changes the schedule's own state before a step.
	before func(c *course)
	// measure replaces a step by one with a metric.
	measure func(c *course, metric float64) error

	parts      []*course
	milestones []int // of the parts in turn; nil if the parts are applied together
	chained    bool

	settings map[string]any      // PyTorch's attributes that do not change
	numbers  map[string]*int     // and those that do
	floats   map[string]*float64 // likewise
	least    map[string]float64  // of the floats that are finite
}

// callUser calls a function of the user without the optimizer's lock, so that it may use the optimizer.
func callUser[T any](c *course, f func(T) float64, v T) float64 {
	c.opt.mu.Unlock()
	defer c.opt.mu.Lock()
	return f(v)
}

// start returns a course whose base rates are the groups' initial rates.
func start(opt *Optimizer, c *course) (*course, error) {
	c.opt, c.epoch = opt, -1
	for _, g := range opt.groups {
		base, ok := g.Extra["initial_lr"]
		if !ok {
			base = g.LR
			g.note("initial_lr", base)
		}
		c.bases = append(c.bases, base)
	}
	return c, c.begin()
}

// begin takes the first step, as PyTorch's _initial_step does. For a schedule with parts it is a step like any other.
func (c *course) begin() error {
	if c.parts != nil {
		return c.step(nil)
	}
	c.count = 0
	c.initial = true
	defer func() { c.initial = false }()
	return c.step(nil)
}

// undo undoes the first step, as PyTorch's recursive_undo does: a SequentialLR in another keeps its own epoch, so that
// it is one step ahead of its parts.
func (c *course) undo() {
	if c.parts == nil {
		c.epoch = max(c.epoch-1, -1)
	}
	for _, p := range c.parts {
		p.undo()
	}
}

func (c *course) step(metric []float64) error {
	if c.measure != nil {
		if c.initial {
			c.epoch = 0
			c.remember()
			return nil
		}
		if len(metric) == 0 {
			return errors.New("the schedule needs a metric: call Step(metric)")
		}
		c.epoch++
		err := c.measure(c, metric[0])
		c.remember()
		return err
	}
	if c.chained {
		for _, p := range c.parts {
			if err := p.step(nil); err != nil {
				return err
			}
		}
		c.remember()
		return nil
	}
	if c.parts != nil {
		c.epoch++
		i := c.turn(c.epoch)
		p := c.parts[i]
		if i > 0 && c.milestones[i-1] == c.epoch {
			return p.restart()
		}
		return p.step(nil)
	}
	c.count++
	c.epoch++
	if c.before != nil {
		c.before(c)
	}
	return c.update(false)
}

// turn returns the index of the part that is followed at an epoch.
func (c *course) turn(epoch int) int {
	i := 0
	for i < len(c.milestones) && c.milestones[i] <= epoch {
		i++
	}
	return i
}

// restart sets the rates of step 0.
func (c *course) restart() error {
	c.epoch = 0
	if c.parts != nil {
		return c.parts[c.turn(0)].restart()
	}
	return c.update(c.closed != nil)
}

// beginsChained reports whether the course begins with parts that are applied together, which restart cannot do.
func (c *course) beginsChained() bool {
	return c.chained || c.parts != nil && c.parts[c.turn(0)].beginsChained()
}

// update sets the rates of the groups.
func (c *course) update(closed bool) error {
	var rates []float64
	for i := 0; i < len(c.opt.groups); i++ {
		rate, err := c.rateOf(i, closed)
		if err != nil {
			return err
		}
		rates = append(rates, rate)
	}
	for i, rate := range rates {
		c.opt.groups[i].LR = rate
	}
	c.remember()
	return nil
}

func (c *course) rateOf(i int, closed bool) (float64, error) {
	if !closed {
		return c.rate(c, i, c.opt.groups[i])
	}
	base, err := c.base(i)
	if err != nil {
		return 0, err
	}
	return c.closed(c, base), nil
}

// base returns the base rate of a group. A group that AddGroup has added since has neither a base rate nor other
// numbers of the schedule.
func (c *course) base(i int) (float64, error) {
	if i >= len(c.bases) {
		return 0, fmt.Errorf("group %d has no base rate: call NewScheduler after the last AddGroup", i)
	}
	return c.bases[i], nil
}

// needs returns an error if a group lacks a number that the schedule has put into its Extra.
func (c *course) needs(i int, names ...string) error {
	for _, name := range names {
		if _, ok := c.opt.groups[i].Extra[name]; !ok {
			return fmt.Errorf("group %d has no %s: the state that was loaded has none; call NewScheduler after LoadStateDict", i, name)
		}
	}
	return nil
}

func (c *course) remember() {
	c.last = c.last[:0]
	for _, g := range c.opt.groups {
		c.last = append(c.last, g.LR)
	}
}

// Scheduler sets the learning rates of an optimizer at each step, and for CyclicLR and OneCycleLR the momentum. PyTorch:
// torch.optim.lr_scheduler.LRScheduler.
type Scheduler struct {
	opt      *Optimizer // whose lock guards the fields below
	course   *course
	stepping bool // a function of the schedule, which runs without the lock, may be running
}

// NewScheduler applies a schedule to opt, and sets the rates of step 0. The base rate of a group is its learning rate
// when its first scheduler was made, which the group's Extra keeps as "initial_lr". Call it after the last AddGroup:
// for a group that is added later, schedules that multiply the current rate, such as StepLR, multiply the group's, as
// in PyTorch; a step of the others, such as LambdaLR, is an error. If NewScheduler returns an error, it has changed
// nothing. PyTorch: the constructors of torch.optim.lr_scheduler.
func NewScheduler(opt *Optimizer, schedule Schedule) (*Scheduler, error) {
	const op = "NewScheduler"
	switch {
	case opt == nil:
		return nil, refuse.Nil(op, "an optimizer")
	case schedule.err != nil:
		return nil, schedule.err
	case schedule.apply == nil:
		return nil, refuse.Error(op, tensor.ErrArgument, "the schedule is empty")
	}
	opt.mu.Lock()
	defer opt.mu.Unlock()
	before := make([]Group, len(opt.groups))
	for i, g := range opt.groups {
		before[i] = *g
	}
	c, err := schedule.apply(opt)
	if err != nil {
		for i := range before {
			g, old := opt.groups[i], &before[i]
			g.LR, g.Momentum, g.Beta1, g.Extra = old.LR, old.Momentum, old.Beta1, old.Extra
		}
		return nil, refuse.Error(op, tensor.ErrArgument, "%v", err)
	}
	return &Scheduler{opt: opt, course: c}, nil
}

var errStepping = errors.New("a step of the schedule is running: its functions and other goroutines cannot start another meanwhile")

// Step advances the schedule by one step; call it after the optimizer's Step. ReduceLROnPlateau needs a metric, which the
// others ignore. If the schedule has no rate for the step, or one that is invalid, the optimizer's next Step returns the
// error. The functions of a schedule may call the methods of the optimizer, and those of the scheduler that read it;
// Step and LoadStateDict are errors meanwhile. Without NewScheduler a Scheduler has no optimizer, which could return an
// error, and Step does nothing. PyTorch: LRScheduler.step.
func (s *Scheduler) Step(metric ...float64) {
	if s == nil || s.opt == nil || s.course == nil {
		return
	}
	s.opt.mu.Lock()
	defer s.opt.mu.Unlock()
	err := errStepping
	if !s.stepping {
		s.stepping = true
		defer func() { s.stepping = false }()
		err = s.course.step(metric)
	}
	if err != nil && s.opt.sticky == nil {
		s.opt.sticky = refuse.Error("Scheduler", tensor.ErrArgument, "%v", err)
	}
}

// LR returns the current learning rate of the first group.
func (s *Scheduler) LR() float64 {
	if s == nil {
		return 0
	}
	return s.opt.LR()
}

// LRs returns the learning rates of the groups that the last step set. PyTorch: LRScheduler.get_last_lr.
func (s *Scheduler) LRs() []float64 {
	if s == nil || s.course == nil {
		return nil
	}
	s.opt.mu.Lock()
	defer s.opt.mu.Unlock()
	return slices.Clone(s.course.current())
}

// StateDict returns the schedule's state under PyTorch's names, for a checkpoint. PyTorch: LRScheduler.state_dict.
func (s *Scheduler) StateDict() map[string]any {
	if s == nil || s.course == nil {
		return nil
	}
	s.opt.mu.Lock()
	defer s.opt.mu.Unlock()
	return s.course.state()
}

// current returns the rates that the last step set.
func (c *course) current() []float64 {
	if c.parts != nil && !c.chained {
		return c.parts[c.turn(c.epoch)].current()
	}
	return c.last
}

func (c *course) state() map[string]any {
	out := map[string]any{"_last_lr": anys(c.last)}
	if c.parts != nil {
		parts := make([]any, len(c.parts))
		for i, p := range c.parts {
			parts[i] = p.state()
		}
		out["_schedulers"] = parts
		if !c.chained {
			out["last_epoch"], out["_milestones"] = c.epoch, anys(c.milestones)
			out["_last_lr"] = anys(c.current())
		}
		return out
	}
	out["last_epoch"] = c.epoch
	if c.measure == nil {
		out["base_lrs"], out["_step_count"] = anys(c.bases), c.count
		out["_is_initial"], out["_get_lr_called_within_step"] = false, false
	}
	for k, v := range c.settings {
		out[k] = v
	}
	for k, v := range c.numbers {
		out[k] = *v
	}
	for k, v := range c.floats {
		out[k] = *v
	}
	return out
}

// LoadStateDict restores the state of a scheduler with the same schedule, here or in PyTorch. The optimizer's learning
// rates and momentum are in the optimizer's own state: after NewScheduler, load both, in any order. If LoadStateDict
// returns an error, it has changed nothing. PyTorch: LRScheduler.load_state_dict.
func (s *Scheduler) LoadStateDict(state map[string]any) error {
	const op = "LoadStateDict"
	if s == nil || s.opt == nil || s.course == nil {
		return refuse.Nil(op, "a scheduler")
	}
	s.opt.mu.Lock()
	defer s.opt.mu.Unlock()
	if s.stepping {
		return refuse.Error(op, tensor.ErrArgument, "%v", errStepping)
	}
	commit, err := s.course.load(state)
	if err != nil {
		return refuse.Error(op, tensor.ErrArgument, "%v", err)
	}
	commit()
	return nil
}

func floatsOf(v any) ([]float64, bool) {
	list, ok := listOf(v)
	out := make([]float64, len(list))
	for i, x := range list {
		n, isNumber := numberOf(x)
		out[i], ok = n, ok && isNumber
	}
	return out, ok
}

// load checks a state and returns a function that puts it in place.
func (c *course) load(state map[string]any) (commit func(), err error) {
	var todo []func()
	last, ok := floatsOf(state["_last_lr"])
	if !ok {
		return nil, fmt.Errorf("_last_lr is %v: want a list of rates", state["_last_lr"])
	}
	// AddGroup may have been called since the state was made.
	if n := len(c.opt.groups); len(last) > n || len(last) == 0 && n > 0 {
		return nil, fmt.Errorf("_last_lr is %v: want %d rates", state["_last_lr"], n)
	}
	todo = append(todo, func() { c.last = last })
	integer := func(name string, to *int) error {
		n, ok := intOf(state[name])
		if name == "last_epoch" {
			n = max(n, -1) // PyTorch undoes the first step of a schedule in two others twice
		}
		if !ok || n < -1 || name == "T_i" && n < 1 {
			return fmt.Errorf("%s is %v: want a number of steps", name, state[name])
		}
		todo = append(todo, func() { *to = n })
		return nil
	}
	if c.parts != nil {
		parts, ok := listOf(state["_schedulers"])
		if !ok || len(parts) != len(c.parts) {
			return nil, fmt.Errorf("the state has %d schedules, want %d", len(parts), len(c.parts))
		}
		for i, p := range c.parts {
			part, _ := parts[i].(map[string]any)
			f, err := p.load(part)
			if err != nil {
				return nil, fmt.Errorf("schedule %d: %w", i, err)
			}
			todo = append(todo, f)
		}
		if !c.chained {
			if err := integer("last_epoch", &c.epoch); err != nil {
				return nil, err
			}
		}
		return func() { runAll(todo) }, nil
	}
	if err := integer("last_epoch", &c.epoch); err != nil {
		return nil, err
	}
	if c.measure == nil {
		if err := integer("_step_count", &c.count); err != nil {
			return nil, err
		}
		bases, ok := floatsOf(state["base_lrs"])
		// A group that AddGroup added has none, also if this scheduler was made after AddGroup.
		if n := len(c.bases); !ok || len(bases) > n || len(bases) == 0 && n > 0 {
			return nil, fmt.Errorf("base_lrs is %v: want %d rates", state["base_lrs"], n)
		}
		todo = append(todo, func() { c.bases = bases })
	}
	for name, to := range c.numbers {
		if err := integer(name, to); err != nil {
			return nil, err
		}
	}
	for name, to := range c.floats {
		n, ok := numberOf(state[name])
		least, bounded := c.least[name]
		if !ok || math.IsNaN(n) || bounded && (n < least || math.IsInf(n, 1)) {
			return nil, fmt.Errorf("%s is %v: want a number", name, state[name])
		}
		todo = append(todo, func() { *to = n })
	}
	return func() { runAll(todo) }, nil
}

func runAll(fs []func()) {
	for _, f := range fs {
		f()
	}
}

// ScheduleOption is a keyword argument of a schedule.
type ScheduleOption struct {
	name string
	set  func(*scheduleOptions)
}

type scheduleOptions struct {
	etaMin, gamma             float64
	stepSizeDown              int
	mode, scaleMode           string
	scaleFn                   func(x float64) float64
	cycleMomentum             bool
	baseMomentum, maxMomentum []float64
	pctStart                  float64
	anneal                    string
	divFactor, finalDivFactor float64
	threePhase                bool
	factor, threshold, eps    float64
	patience, cooldown, mult  int
	thresholdMode             string
	minLR                     []float64
}

// setOptions sets the options that op knows.
func (o *scheduleOptions) setOptions(op string, known []string, opts []ScheduleOption) error {
	for _, opt := range opts {
		if err := refuse.Option(op, opt.name, known); err != nil {
			return err
		}
		opt.set(o)
	}
	return nil
}

func scheduleOption(name string, set func(*scheduleOptions)) ScheduleOption {
	return ScheduleOption{name, set}
}

// EtaMin sets the lowest rate (eta_min=); 0 by default.
func EtaMin(v float64) ScheduleOption {
	return scheduleOption("EtaMin", func(o *scheduleOptions) { o.etaMin = v })
}

// TMult sets the factor by which CosineAnnealingWarmRestarts lengthens each cycle (T_mult=); 1 by default.
func TMult(n int) ScheduleOption {
	return scheduleOption("TMult", func(o *scheduleOptions) { o.mult = n })
}

// Gamma sets the base of CyclicLR's "exp_range" (gamma=); 1 by default.
func Gamma(v float64) ScheduleOption {
	return scheduleOption("Gamma", func(o *scheduleOptions) { o.gamma = v })
}

// StepSizeDown sets the number of steps in which CyclicLR's rate falls (step_size_down=); as many as it rises by default.
func StepSizeDown(n int) ScheduleOption {
	return scheduleOption("StepSizeDown", func(o *scheduleOptions) { o.stepSizeDown = n })
}

// Mode sets CyclicLR's amplitude, "triangular" (the default), "triangular2" or "exp_range", or whether ReduceLROnPlateau
// wants a "min" (the default) or "max" of the metric (mode=).
func Mode(name string) ScheduleOption {
	return scheduleOption("Mode", func(o *scheduleOptions) { o.mode = name })
}

// ScaleFn sets CyclicLR's amplitude, in [0, 1], as a function of the cycle, counted from 1, or of the step if perStep
// (scale_fn=, scale_mode=).
func ScaleFn(f func(x float64) float64, perStep bool) ScheduleOption {
	return scheduleOption("ScaleFn", func(o *scheduleOptions) {
		o.scaleFn, o.scaleMode = f, "cycle"
		if perStep {
			o.scaleMode = "iterations"
		}
	})
}

// CycleMomentum sets whether the momentum, or beta1, falls as the rate rises (cycle_momentum=); on by default.
func CycleMomentum(on ...bool) ScheduleOption {
	return scheduleOption("CycleMomentum", func(o *scheduleOptions) { o.cycleMomentum = options.On(on) })
}

// BaseMomentum sets the lowest momentum, one for all groups or one for each (base_momentum=): 0.8 by default for
// CyclicLR, 0.85 for OneCycleLR.
func BaseMomentum(v ...float64) ScheduleOption {
	return scheduleOption("BaseMomentum", func(o *scheduleOptions) { o.baseMomentum = v })
}

// MaxMomentum sets the highest momentum, one for all groups or one for each (max_momentum=): 0.9 by default for CyclicLR,
// 0.95 for OneCycleLR.
func MaxMomentum(v ...float64) ScheduleOption {
	return scheduleOption("MaxMomentum", func(o *scheduleOptions) { o.maxMomentum = v })
}

// PctStart sets the part of OneCycleLR's steps in which the rate rises (pct_start=); 0.3 by default.
func PctStart(v float64) ScheduleOption {
	return scheduleOption("PctStart", func(o *scheduleOptions) { o.pctStart = v })
}

// AnnealStrategy sets the curve of OneCycleLR and SWALR, "cos" (the default) or "linear" (anneal_strategy=).
func AnnealStrategy(name string) ScheduleOption {
	return scheduleOption("AnnealStrategy", func(o *scheduleOptions) { o.anneal = name })
}

// DivFactor sets the ratio of OneCycleLR's largest rate to its first (div_factor=); 25 by default.
func DivFactor(v float64) ScheduleOption {
	return scheduleOption("DivFactor", func(o *scheduleOptions) { o.divFactor = v })
}

// FinalDivFactor sets the ratio of OneCycleLR's first rate to its last (final_div_factor=); 1e4 by default.
func FinalDivFactor(v float64) ScheduleOption {
	return scheduleOption("FinalDivFactor", func(o *scheduleOptions) { o.finalDivFactor = v })
}

// ThreePhase makes OneCycleLR's rate fall as it rose before it falls to the last (three_phase=True); off by
// default.
func ThreePhase(on ...bool) ScheduleOption {
	return scheduleOption("ThreePhase", func(o *scheduleOptions) { o.threePhase = options.On(on) })
}

// Factor sets the factor by which ReduceLROnPlateau reduces the rate, below 1 (factor=); 0.1 by default.
func Factor(v float64) ScheduleOption {
	return scheduleOption("Factor", func(o *scheduleOptions) { o.factor = v })
}

// Patience sets the number of steps without improvement that ReduceLROnPlateau allows (patience=); 10 by default.
func Patience(n int) ScheduleOption {
	return scheduleOption("Patience", func(o *scheduleOptions) { o.patience = n })
}

// Threshold sets the least improvement that ReduceLROnPlateau counts, "rel" to the best or "abs" (threshold=,
// threshold_mode=); 1e-4 and "rel" by default.
func Threshold(v float64, mode string) ScheduleOption {
	return scheduleOption("Threshold", func(o *scheduleOptions) { o.threshold, o.thresholdMode = v, mode })
}

// Cooldown sets the number of steps after a reduction that ReduceLROnPlateau does not count (cooldown=); 0 by default.
func Cooldown(n int) ScheduleOption {
	return scheduleOption("Cooldown", func(o *scheduleOptions) { o.cooldown = n })
}

// MinLR sets the lowest rate of ReduceLROnPlateau, one for all groups or one for each (min_lr=); 0 by default.
func MinLR(v ...float64) ScheduleOption {
	return scheduleOption("MinLR", func(o *scheduleOptions) { o.minLR = v })
}

// ReduceEps sets the least reduction that ReduceLROnPlateau makes (eps=); 1e-8 by default.
func ReduceEps(v float64) ScheduleOption {
	return scheduleOption("ReduceEps", func(o *scheduleOptions) { o.eps = v })
}

// forGroups returns one number for each group.
func forGroups(name string, vs []float64, opt *Optimizer) ([]float64, error) {
	for _, v := range vs {
		if why := finite(v); why != "" {
			return nil, fmt.Errorf("%s %s, got %v", name, why, v)
		}
	}
	switch len(vs) {
	case 1:
		return slices.Repeat(vs, len(opt.groups)), nil
	case len(opt.groups):
		return slices.Clone(vs), nil
	}
	return nil, fmt.Errorf("%s has %d numbers for %d groups", name, len(vs), len(opt.groups))
}

package optim

import (
	"math"
	"strconv"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Schedule maps a step to a learning rate. The functions below return schedules; NewScheduler applies one to an
// optimizer.
type Schedule struct {
	at  func(step int, base float64) float64
	err error
}

func badSchedule(op, format string, args ...any) Schedule {
	return Schedule{err: refuse.Error(op, tensor.ErrArgument, format, args...)}
}

// LambdaLR multiplies the base rate by f(step). PyTorch: torch.optim.lr_scheduler.LambdaLR.
func LambdaLR(f func(step int) float64) Schedule {
	if f == nil {
		return badSchedule("LambdaLR", "a function is needed, got nil")
	}
	return Schedule{at: func(step int, base float64) float64 { return base * f(step) }}
}

// StepLR multiplies the rate by gamma every size steps. PyTorch: torch.optim.lr_scheduler.StepLR.
func StepLR(size int, gamma float64) Schedule {
	if size < 1 || math.IsNaN(gamma) || math.IsInf(gamma, 0) {
		return badSchedule("StepLR", "size must be at least 1 and gamma finite, got %d and %v", size, gamma)
	}
	return Schedule{at: func(step int, base float64) float64 { return base * math.Pow(gamma, float64(step/size)) }}
}

// CosineAnnealingLR lowers the rate from the base rate to low along half a cosine over the given number of steps; after
// that the rate rises again along the cosine. PyTorch: torch.optim.lr_scheduler.CosineAnnealingLR.
func CosineAnnealingLR(steps int, low float64) Schedule {
	if steps < 1 || !(low >= 0) || math.IsInf(low, 0) {
		return badSchedule("CosineAnnealingLR", "steps must be at least 1 and low finite and at least 0, got %d and %v", steps, low)
	}
	return Schedule{at: func(step int, base float64) float64 {
		return low + (base-low)*(1+math.Cos(math.Pi*float64(step)/float64(steps)))/2
	}}
}

// LinearWarmup raises the rate linearly from start times the base rate to the base rate over the given number of steps,
// and keeps it there. PyTorch: torch.optim.lr_scheduler.LinearLR.
func LinearWarmup(steps int, start float64) Schedule {
	if steps < 1 || !(start >= 0 && start <= 1) {
		return badSchedule("LinearWarmup", "steps must be at least 1 and start in [0, 1], got %d and %v", steps, start)
	}
	return Schedule{at: func(step int, base float64) float64 {
		return base * (start + (1-start)*float64(min(step, steps))/float64(steps))
	}}
}

// SequentialLR follows each schedule until its milestone, then the next one, which starts at its own step 0. There is
// one milestone fewer than schedules. PyTorch: torch.optim.lr_scheduler.SequentialLR.
func SequentialLR(milestones []int, schedules ...Schedule) Schedule {
	const op = "SequentialLR"
	if len(schedules) == 0 || len(milestones) != len(schedules)-1 {
		return badSchedule(op, "%d schedules need %d milestones, got %d", len(schedules), len(schedules)-1, len(milestones))
	}
	for i, s := range schedules {
		if s.err != nil {
			return s
		}
		if s.at == nil {
			return badSchedule(op, "schedule %d is empty", i)
		}
		if i > 0 && (milestones[i-1] < 1 || i > 1 && milestones[i-1] <= milestones[i-2]) {
			return badSchedule(op, "milestones must be positive and rise, got %v", milestones)
		}
	}
	milestones = append([]int{}, milestones...)
	schedules = append([]Schedule{}, schedules...)
	return Schedule{at: func(step int, base float64) float64 {
		i, from := 0, 0
		for i < len(milestones) && step >= milestones[i] {
			from = milestones[i]
			i++
		}
		return schedules[i].at(step-from, base)
	}}
}

// WarmupCosine raises the rate linearly from 0 to the base rate over warmup steps, lowers it to low along half a cosine
// until step total, and keeps it there.
func WarmupCosine(warmup, total int, low float64) Schedule {
	if warmup < 1 || total <= warmup {
		return badSchedule("WarmupCosine", "warmup must be at least 1 and total larger, got %d and %d", warmup, total)
	}
	return SequentialLR([]int{warmup, total}, LinearWarmup(warmup, 0), CosineAnnealingLR(total-warmup, low),
		Schedule{at: func(_ int, base float64) float64 { return low }})
}

// WarmupStep raises the rate linearly from 0 to the base rate over warmup steps, then multiplies it by gamma every size
// steps.
func WarmupStep(warmup, size int, gamma float64) Schedule {
	return SequentialLR([]int{warmup}, LinearWarmup(warmup, 0), StepLR(size, gamma))
}

// Scheduler sets the learning rates of an optimizer at each step. Each group has its own base rate.
type Scheduler struct {
	mu       sync.Mutex
	opt      *Optimizer
	schedule Schedule
	bases    []float64
	step     int
}

// NewScheduler returns a Scheduler whose base rates are the current learning rates of opt's groups, and sets the rates
// of step 0. Call it after the last AddGroup. PyTorch: the constructors of torch.optim.lr_scheduler.
func NewScheduler(opt *Optimizer, schedule Schedule) (*Scheduler, error) {
	const op = "NewScheduler"
	switch {
	case opt == nil:
		return nil, refuse.Nil(op, "an optimizer")
	case schedule.err != nil:
		return nil, schedule.err
	case schedule.at == nil:
		return nil, refuse.Error(op, tensor.ErrArgument, "the schedule is empty")
	}
	s := &Scheduler{opt: opt, schedule: schedule}
	for _, g := range opt.Groups() {
		s.bases = append(s.bases, g.LR)
	}
	s.set()
	return s, nil
}

// set sets the rate of each group. If the schedule returns an invalid rate, the optimizer's next Step returns the
// error.
func (s *Scheduler) set() {
	s.opt.mu.Lock()
	defer s.opt.mu.Unlock()
	for i, g := range s.opt.groups {
		if i < len(s.bases) {
			g.LR = s.schedule.at(s.step, s.bases[i])
		}
	}
}

// Step advances the schedule by one step; call it after the optimizer's Step. PyTorch: LRScheduler.step.
func (s *Scheduler) Step() {
	if s == nil || s.opt == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step++
	s.set()
}

// LR returns the current learning rate of the first group.
func (s *Scheduler) LR() float64 {
	if s == nil {
		return 0
	}
	return s.opt.LR()
}

// StateDict returns the step and the base rates, for a checkpoint.
func (s *Scheduler) StateDict() map[string]float64 {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := map[string]float64{"step": float64(s.step)}
	for i, b := range s.bases {
		state[baseName(i)] = b
	}
	return state
}

// LoadStateDict restores the state of a scheduler with the same schedule, and sets the learning rates.
func (s *Scheduler) LoadStateDict(state map[string]float64) error {
	const op = "LoadStateDict"
	if s == nil || s.opt == nil {
		return refuse.Nil(op, "a scheduler")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	step, ok := state["step"]
	if !ok || step != math.Trunc(step) || step < 0 || step > 1<<53 {
		return refuse.Error(op, tensor.ErrArgument, "the state has no step")
	}
	bases := make([]float64, len(s.bases))
	for i := range bases {
		if bases[i], ok = state[baseName(i)]; !ok {
			return refuse.Error(op, tensor.ErrArgument, "the state has no %s", baseName(i))
		}
	}
	s.bases, s.step = bases, int(step)
	s.set()
	return nil
}
func baseName(group int) string { return "base." + strconv.Itoa(group) }

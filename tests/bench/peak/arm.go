package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
	"github.com/linstock-ml/linstock/tests/internal/stats"
	"github.com/linstock-ml/linstock/vram"
)

// A task is one run of an arm.
type task struct {
	model, mode, style string // mode: "train" or "eval"; style: "layers", "plain", "unscoped"
	rows               int    // 0: the model's own batch
	steps              int
	above              int64 // limit, in bytes above those live between steps; 0: the default limit
	scale              int   // factor of the batch size; 0: 1
	peaks              bool  // no comparison of times in this process
}

// runArm is the Go arm: it runs a task in this process and prints its figures, one per line.
func runArm(t task, threads int) error {
	if err := tensor.SetNumThreads(threads); err != nil {
		return err
	}
	if err := tensor.ManualSeed(0); err != nil {
		return err
	}
	switch t.model {
	case "reserved":
		return reserved(t.steps)
	case "cost":
		return cost()
	}
	return t.run()
}

func (t task) run() error {
	if err := tensor.Ones([]int{4}, device).Add(1).Err(); err != nil {
		return err
	}
	library, err := proc.Status("self", "VmRSS")
	if err != nil {
		return err
	}
	step, zero, err := t.step()
	if err != nil {
		return err
	}
	for range 2 {
		if err := finished(step); err != nil {
			return err
		}
	}
	zero()
	if err := vram.Collect(); err != nil {
		return err
	}
	base, err := vram.Stats(device)
	if err != nil {
		return err
	}
	if t.above > 0 {
		if err := vram.SetLimit(device, vram.Bytes(base.Allocated+t.above)); err != nil {
			return err
		}
	}
	if err := vram.ResetPeak(device); err != nil {
		return err
	}
	before := vram.ReadCounts()
	var times []time.Duration
	for range t.steps {
		start := time.Now()
		if err := finished(step); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	after, err := vram.Stats(device)
	if err != nil {
		return err
	}
	most, err := proc.Status("self", "VmHWM")
	if err != nil {
		return err
	}
	c := vram.ReadCounts().Since(before)
	slices.Sort(times)
	fmt.Printf("base %d\npeak %d\nstep %d\n", base.Allocated, after.Peak-base.Allocated, times[len(times)/2])
	fmt.Printf("rss %d\nsweeps %d\ncollecting %d\nsweeping %d\nwaits %d\n", most-library, c.Full+c.Deep,
		c.Collecting, c.Sweeping, c.Waits)
	if t.peaks || os.Getenv("LINSTOCK_POLICY") == "off" { // the baseline of every comparison
		return nil
	}
	with := func(on bool) error { // with sweeps and without
		if on {
			vram.SetPolicy(nil)
		} else {
			vram.SetPolicy(vram.Off{})
		}
		return nil
	}
	if t.above > 0 {
		with = func(on bool) error { // with the limit and without
			if on {
				return vram.SetLimit(device, vram.Bytes(base.Allocated+t.above))
			}
			return vram.SetLimit(device, vram.Unlimited())
		}
	}
	r, err := against(step, with, t.steps)
	if err == nil {
		fmt.Printf("against %f\n", r)
	}
	return err
}

// against returns the ratio of a step's time with a setting on to its time without: the median over pairs of
// steps in one process, in shuffled order, each after an untimed step. On a noisy machine it runs more pairs.
func against(step func() error, with func(on bool) error, turns int) (float64, error) {
	var ratios []float64
	for stats.More(ratios, turns) {
		first := rand.IntN(2) == 0
		times := map[bool]time.Duration{}
		for _, on := range []bool{first, !first} {
			if err := with(on); err != nil {
				return 0, err
			}
			if err := finished(step); err != nil {
				return 0, err
			}
			start := time.Now()
			if err := finished(step); err != nil {
				return 0, err
			}
			times[on] = time.Since(start)
		}
		ratios = append(ratios, float64(times[true])/float64(times[false]))
	}
	return stats.Median(ratios), nil
}

// finished calls f and waits until the device has completed its work.
func finished(f func() error) error {
	if err := f(); err != nil || device == tensor.CPU {
		return err
	}
	return tensor.Synchronize(device)
}

// step returns a task's step and a function that frees what remains between steps.
func (t task) step() (step func() error, zero func(), err error) {
	m, err := newModel(t.model, t.style, t.mode == "eval", t.rows, max(1, t.scale))
	if err != nil {
		return nil, nil, err
	}
	x, y := m.batch()
	if t.mode == "eval" {
		nn.Eval(m.Layer)
		if m.eval == nil {
			m.eval = func(x *tensor.Tensor) error { return m.Forward(x).Err() }
		}
		step = func() error {
			return autograd.NoGrad(func() error { return m.eval(x) })
		}
		return t.scoped(step), func() {}, nil
	}
	if m.step != nil {
		return t.scoped(func() error { return m.step(x, y) }), m.zero, nil
	}
	opt, err := optim.NewAdam(nn.Parameters(m.Layer), 1e-3)
	if err != nil {
		return nil, nil, err
	}
	return t.scoped(func() error { return m.train(opt, x, y) }), opt.ZeroGrad, nil
}

func (m model) train(opt *optim.Optimizer, x, y *tensor.Tensor) error {
	logits := m.Forward(x)
	if m.logits != nil {
		logits = m.logits(logits)
	}
	loss := nn.CrossEntropy(logits, y)
	opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}

// scoped returns f in a scope, as a loader opens one around a loop body.
func (t task) scoped(f func() error) func() error {
	if t.style == "unscoped" {
		return f
	}
	return func() error { return tensor.WithScope(f) }
}

// reserved trains the CNN with varying batch sizes and reports the bytes that the allocator has reserved.
func reserved(steps int) error {
	m, err := newModel("cnn", "plain", false, 0, 1)
	if err != nil {
		return err
	}
	opt, err := optim.NewAdam(nn.Parameters(m.Layer), 1e-3)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, 2))
	most := int64(0)
	for range steps {
		n := 8 + random.IntN(120)
		if err := tensor.WithScope(func() error {
			return m.train(opt, tensor.Randn([]int{n, 1, 28, 28}), tensor.RandInt(0, 10, []int{n}))
		}); err != nil {
			return err
		}
		s, err := vram.Stats(tensor.CPU)
		if err != nil {
			return err
		}
		most = max(most, s.Reserved)
	}
	s, err := vram.Stats(tensor.CPU)
	if err != nil {
		return err
	}
	fmt.Printf("peak %d\nreserved %d\nmost %d\n", s.Peak, s.Reserved, most)
	return nil
}

// cost measures an operator on 16 floats with all accounting on, without the profile, and with accounting off.
func cost() error {
	a, b := tensor.Randn([]int{16}), tensor.Randn([]int{16})
	batch := func() (float64, error) {
		const n = 20000
		start := time.Now()
		for i := 0; i < n; i += 64 {
			if err := tensor.WithScope(func() error {
				for range 64 {
					_ = a.Add(b)
				}
				return nil
			}); err != nil {
				return 0, err
			}
		}
		return float64(time.Since(start).Nanoseconds()) / n, nil
	}
	ways := []struct {
		policy vram.Policy
		rate   int
		times  []float64
	}{{vram.Paced{}, vram.DefaultProfileRate, nil}, {vram.Paced{}, 0, nil}, {vram.Off{}, 0, nil}}
	for i := range 100 {
		for k := range ways {
			w := &ways[k]
			vram.SetPolicy(w.policy)
			if err := vram.SetProfileRate(w.rate); err != nil {
				return err
			}
			ns, err := batch()
			if err != nil {
				return err
			}
			if i > 0 {
				w.times = append(w.times, ns)
			}
		}
	}
	for k, name := range []string{"on", "unprofiled", "off"} {
		fmt.Printf("%s %.2f\n", name, stats.Median(ways[k].times))
	}
	return nil
}

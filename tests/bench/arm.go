package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// runArm is the Go arm: a task in this process, its figures on standard output.
func runArm(task string, threads, steps int) error {
	if err := tensor.SetNumThreads(threads); err != nil {
		return err
	}
	if err := tensor.ManualSeed(0); err != nil {
		return err
	}
	switch task {
	case "ops":
		return ops()
	case "mlp":
		return mlp()
	case "gpt":
		return gptStep()
	case "gpteval":
		return gptEval()
	case "memory":
		return memory(steps)
	}
	return fmt.Errorf("no task %q", task)
}

// median over batches, in nanoseconds an iteration.
func median(batches, n int, f func(n int) error) (float64, error) {
	if err := f(n); err != nil {
		return 0, err
	}
	times := make([]float64, 0, batches)
	for range batches {
		start := time.Now()
		if err := f(n); err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/float64(n))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func report(task string, batches, n int, f func(n int) error) error {
	ns, err := median(batches, n, f)
	if err == nil {
		fmt.Printf("%s %.1f\n", task, ns)
	}
	return err
}

// ops: an operator as a training step calls it, in a scope that frees 64 results at once, and with an explicit
// Release after each, as a serving loop might.
func ops() error {
	for _, grad := range []bool{false, true} {
		suffix := ""
		if grad {
			suffix = "+grad"
		}
		a, b := tensor.Randn([]int{16}).RequiresGrad_(grad), tensor.Randn([]int{16})
		m, w := tensor.Randn([]int{16, 16}).RequiresGrad_(grad), tensor.Randn([]int{16, 16})
		for _, op := range []struct {
			name string
			n    int
			f    func() *tensor.Tensor
		}{
			{"add", 5000, func() *tensor.Tensor { return a.Add(b) }},
			{"view", 5000, func() *tensor.Tensor { return a.View(4, 4) }},
			{"matmul", 3000, func() *tensor.Tensor { return m.MatMul(w) }},
		} {
			if err := report(op.name+suffix, 21, op.n, func(n int) error {
				for i := 0; i < n; i += 64 {
					if err := tensor.WithScope(func() error {
						for range 64 {
							op.f()
						}
						return nil
					}); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				return err
			}
			if err := tensor.WithScope(func() error {
				return report(op.name+suffix+"/release", 21, op.n, func(n int) error {
					for range n {
						op.f().Release()
					}
					return nil
				})
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

func mlp() error {
	model, err := newMLP()
	if err != nil {
		return err
	}
	opt, err := optim.NewAdam(nn.Parameters(model), 1e-3)
	if err != nil {
		return err
	}
	x, y := tensor.Randn([]int{32, 32}), tensor.RandInt(0, 10, []int{32})
	return report("mlp", 15, 300, mlpLoop(model, opt, x, y))
}

func mlpLoop(model nn.Layer, opt optimizer, x, y *tensor.Tensor) func(n int) error {
	return func(n int) error {
		for range n {
			if err := tensor.WithScope(func() error { return step(model, opt, x, y) }); err != nil {
				return err
			}
		}
		return nil
	}
}

type optimizer interface {
	ZeroGrad()
	Step() error
}

func step(model nn.Layer, opt optimizer, x, y *tensor.Tensor) error {
	loss := nn.CrossEntropy(model.Forward(x), y)
	opt.ZeroGrad()
	if err := loss.Backward(); err != nil {
		return err
	}
	return opt.Step()
}

type trainer struct {
	model *gpt.GPT
	opt   optimizer
	x, y  *tensor.Tensor
}

func newTrainer() (*trainer, error) {
	model, err := newGPT()
	if err != nil {
		return nil, err
	}
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3, optim.WeightDecay(0.01))
	if err != nil {
		return nil, err
	}
	ids := func() *tensor.Tensor { return tensor.RandInt(0, vocab, []int{16, context}) }
	return &trainer{model, opt, ids(), ids()}, nil
}

func (t *trainer) step() error {
	return tensor.WithScope(func() error {
		loss := t.model.Loss(t.x, t.y)
		t.opt.ZeroGrad()
		if err := loss.Backward(); err != nil {
			return err
		}
		return t.opt.Step()
	})
}

func gptStep() error {
	t, err := newTrainer()
	if err != nil {
		return err
	}
	return report("gpt", 15, 4, func(n int) error {
		for range n {
			if err := t.step(); err != nil {
				return err
			}
		}
		return nil
	})
}

func gptEval() error {
	model, err := newGPT()
	if err != nil {
		return err
	}
	x := tensor.RandInt(0, vocab, []int{64, context})
	return autograd.NoGrad(func() error {
		return report("gpteval", 15, 2, func(n int) error {
			for range n {
				if err := tensor.WithScope(func() error { return model.Forward(x).Err() }); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func rssKB() int {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.Atoi(strings.Fields(string(data))[1])
	return pages * os.Getpagesize() / 1024
}

func memory(steps int) error {
	if err := tensor.Ones([]int{4}).Add(1).Err(); err != nil {
		return err
	}
	base := rssKB()
	t, err := newTrainer()
	if err != nil {
		return err
	}
	quarter := 0
	for i := range steps {
		if err := t.step(); err != nil {
			return err
		}
		if i == steps/4 {
			quarter = rssKB()
		}
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return err
	}
	stats, err := vram.Stats(tensor.CPU)
	if err != nil {
		return err
	}
	fmt.Printf("rss_peak_kb %d\nrss_growth_kb %d\nnative_peak_kb %d\n", int(usage.Maxrss)-base, rssKB()-quarter, stats.Peak/1024)
	return nil
}

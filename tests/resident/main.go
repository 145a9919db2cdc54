// Resident trains and evaluates small layers on inputs whose shapes vary from step to step. The resident memory of the
// process must stay constant: within 2 % from step 2,000 on.
//
//	go run ./tests/resident [-share F]
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

const (
	warmUp = 2000
	steps  = 50000
)

func main() {
	share := flag.Float64("share", 1, "share of the steps after the first 2,000")
	flag.Parse()
	f, err := measure(int(scorecard.Share(steps-warmUp, *share)), func(step int, rss int64) {
		tasks, _ := os.ReadDir("/proc/self/task")
		fmt.Fprintf(os.Stderr, "  step %d: %.1f MiB, %d threads\n", step, float64(rss)/(1<<20), len(tasks))
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "resident:", err)
		os.Exit(1)
	}
	flat := f.spread() <= 0.02
	scorecard.Line("shapes", f.String(), flat)
	if !flat {
		os.Exit(1)
	}
}

type figures struct {
	steps       int
	least, most int64 // resident bytes
}

// spread returns the largest deviation of the resident bytes from the middle of their range, as a share of it.
func (f figures) spread() float64 { return float64(f.most-f.least) / float64(f.most+f.least) }

func (f figures) String() string {
	return fmt.Sprintf("%.1f to %.1f MiB resident, ± %.2f %%, in steps %d to %d", float64(f.least)/(1<<20), float64(f.most)/(1<<20), 100*f.spread(), warmUp, warmUp+f.steps)
}

// measure runs n steps after the first 2,000, and reads the resident memory every 1,000 steps.
func measure(n int, say func(step int, rss int64)) (figures, error) {
	f := figures{steps: n}
	s := newStepper(1)
	for i := range warmUp + n {
		if err := s.step(); err != nil {
			return f, fmt.Errorf("step %d: %w", i, err)
		}
		if done := i + 1; done >= warmUp && (done%1000 == 0 || done == warmUp+n) {
			rss, err := proc.Status("self", "VmRSS")
			if err != nil {
				return f, err
			}
			say(done, rss)
			if f.least == 0 || rss < f.least {
				f.least = rss
			}
			f.most = max(f.most, rss)
		}
	}
	runtime.KeepAlive(s)
	return f, nil
}

// A stepper has two small layers and makes inputs of random shapes for them.
type stepper struct {
	linear *nn.Linear
	conv   *nn.Conv2d
	random *rand.Rand
}

func newStepper(seed uint64) *stepper {
	return &stepper{nn.NewLinear(64, 32), nn.NewConv2d(3, 8, 3), rand.New(rand.NewPCG(seed, 0))}
}

func (s *stepper) step() error {
	return tensor.WithScope(func() error {
		x := tensor.Rand([]int{s.from(1, 512), 64})
		if err := s.linear.Forward(x).ReLU().Sum().Backward(); err != nil {
			return err
		}
		return s.convolve()
	})
}

func (s *stepper) convolve() error {
	return tensor.WithScope(func() error {
		image := tensor.Rand([]int{s.from(1, 9), 3, s.from(8, 72), s.from(8, 72)})
		return s.conv.Forward(image).ReLU().Sum().Err()
	})
}

func (s *stepper) from(least, most int) int { return least + s.random.IntN(most-least) }

package nn_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// optionData is what tests/golden/options.py wrote.
func optionData(t *testing.T) (data struct {
	Draws     map[string][2][]float64
	Attention []struct {
		Backends []nn.SDPBackend
		Node     string
		Values   []float64
		Error    string
	}
}) {
	t.Helper()
	text, err := os.ReadFile("../tests/golden/options.json")
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(b)) }

// attend returns attention of fixed values, recorded.
func attend() *tensor.Tensor {
	q := tensor.Linspace(-1, 1, 64).Reshape(1, 2, 4, 8)
	return tensor.ScaledDotProductAttention(q.Clone().RequiresGrad_(), q, q)
}

func TestSDPAKernel(t *testing.T) {
	leak.Check(t)
	for _, want := range optionData(t).Attention {
		t.Run(fmt.Sprint(want.Backends), func(t *testing.T) {
			leak.Check(t)
			err := tensor.WithScope(func() error {
				before := attend().GradFn()
				y := nn.SDPAKernel(want.Backends, attend)
				if want.Error != "" {
					if err := y.Err(); err == nil || !strings.Contains(err.Error(), want.Error) {
						t.Errorf("the error is %v, want %q", err, want.Error)
					}
				} else {
					values, err := tensor.Data[float32](y)
					if err != nil {
						return err
					}
					if y.GradFn() != want.Node || !slices.EqualFunc(values, want.Values, func(a float32, b float64) bool { return near(float64(a), b) }) {
						t.Errorf("%s computes %v, want %s and %v", y.GradFn(), values, want.Node, want.Values)
					}
				}
				if after := attend().GradFn(); after != before {
					t.Errorf("afterwards %s computes, want %s", after, before)
				}
				return nil
			})
			if err != nil && want.Error == "" {
				t.Error(err)
			}
		})
	}
}

func TestSDPAKernelNests(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		math, flash := []nn.SDPBackend{nn.SDPMath}, []nn.SDPBackend{nn.SDPFlash}
		var nodes []string
		note := func() *tensor.Tensor {
			y := attend()
			nodes = append(nodes, y.GradFn())
			return y
		}
		y := nn.SDPAKernel(math, func() *tensor.Tensor {
			if err := nn.SDPAKernel(flash, note).Err(); err != nil {
				t.Error(err)
			}
			// Another goroutine must agree.
			done := make(chan error)
			go func() {
				y := nn.SDPAKernel(flash, attend)
				done <- y.Err()
			}()
			if err := <-done; !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "another goroutine") {
				t.Errorf("other backends on another goroutine: %v", err)
			}
			go func() {
				done <- tensor.WithScope(func() error { return nn.SDPAKernel(math, attend).Err() })
			}()
			if err := <-done; err != nil {
				t.Error(err)
			}
			return note()
		})
		if err := y.Err(); err != nil {
			t.Error(err)
		}
		flashNode, mathNode := "ScaledDotProductFlashAttentionForCpuBackward0", "UnsafeViewBackward0"
		if want := []string{flashNode, mathNode}; !slices.Equal(nodes, want) {
			t.Errorf("%v compute, want %v", nodes, want)
		}
		for _, y := range []*tensor.Tensor{nn.SDPAKernel(nil, attend), nn.SDPAKernel([]nn.SDPBackend{7}, attend), nn.SDPAKernel([]nn.SDPBackend{-1}, attend)} {
			if !errors.Is(y.Err(), tensor.ErrArgument) {
				t.Errorf("the error is %v, want ErrArgument", y.Err())
			}
		}
		if y := nn.SDPAKernel(math, nil); !errors.Is(y.Err(), tensor.ErrNil) {
			t.Errorf("the error is %v, want ErrNil", y.Err())
		}
		if got := fmt.Sprint(nn.SDPEfficient, nn.SDPBackend(9)); got != "EFFICIENT_ATTENTION SDPBackend(9)" {
			t.Errorf("names are %q", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSDPAKernelOfGoroutines tests regions of goroutines that agree, and regions within a region while the scheduler
// would move the goroutine to other threads.
func TestSDPAKernelOfGoroutines(t *testing.T) {
	leak.Check(t)
	math, flash := []nn.SDPBackend{nn.SDPMath}, []nn.SDPBackend{nn.SDPFlash}
	x := tensor.Ones([]int{1})
	defer x.Release()
	same := func() *tensor.Tensor { return x }
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 100 {
				y := nn.SDPAKernel(math, func() *tensor.Tensor { return nn.SDPAKernel(math, same) })
				if err := y.Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	ask, answer := make(chan bool), make(chan bool)
	go func() {
		runtime.LockOSThread() // so that its thread cannot go on with the goroutine that it wakes
		defer runtime.UnlockOSThread()
		for range ask {
			answer <- true
		}
	}()
	defer close(ask)
	y := nn.SDPAKernel(math, func() *tensor.Tensor {
		for range 200 {
			ask <- true
			<-answer
			if err := nn.SDPAKernel(flash, same).Err(); err != nil {
				t.Error(err)
				break
			}
		}
		return x
	})
	if err := y.Err(); err != nil {
		t.Error(err)
	}
}

// TestInitFromGenerator tests that the initializers draw from a generator what PyTorch's do.
func TestInitFromGenerator(t *testing.T) {
	leak.Check(t)
	want := optionData(t).Draws
	x := func() *tensor.Tensor { return tensor.Zeros([]int{2, 3}) }
	large := func() *tensor.Tensor { return tensor.Zeros([]int{4, 8}) }
	for name, draw := range map[string]func(g *tensor.Generator) *tensor.Tensor{
		"init.Uniform_":               func(g *tensor.Generator) *tensor.Tensor { return nn.Uniform_(x(), -1, 1, g) },
		"init.Normal_":                func(g *tensor.Generator) *tensor.Tensor { return nn.Normal_(x(), 1, 2, g) },
		"init.TruncNormal_":           func(g *tensor.Generator) *tensor.Tensor { return nn.TruncNormal_(large(), 0, 1, -0.7, 0.9, g) },
		"init.TruncNormal_ of a tail": func(g *tensor.Generator) *tensor.Tensor { return nn.TruncNormal_(large(), 0, 1, 1.5, 2.5, g) },
		"init.XavierUniform_":         func(g *tensor.Generator) *tensor.Tensor { return nn.XavierUniform_(x(), 1.5, g) },
		"init.XavierNormal_":          func(g *tensor.Generator) *tensor.Tensor { return nn.XavierNormal_(x(), 1, g) },
		"init.KaimingUniform_":        func(g *tensor.Generator) *tensor.Tensor { return nn.KaimingUniform_(x(), nn.Generator(g)) },
		"init.KaimingNormal_":         func(g *tensor.Generator) *tensor.Tensor { return nn.KaimingNormal_(x(), nn.FanOut(), nn.Generator(g)) },
		"init.Orthogonal_":            func(g *tensor.Generator) *tensor.Tensor { return nn.Orthogonal_(x(), 2, g) },
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			err := tensor.WithScope(func() error {
				g := tensor.NewGenerator().ManualSeed(11)
				defer g.Release()
				for i, want := range want[name] {
					got, err := tensor.Data[float64](draw(g).To(tensor.Float64))
					if err != nil {
						return err
					}
					if !slices.EqualFunc(got, want, near) {
						t.Errorf("draw %d is %v, want %v", i, got, want)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

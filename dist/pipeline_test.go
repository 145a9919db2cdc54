package dist_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestPipeline compares three stages with the whole model, in both schedules and with fewer microbatches than stages.
func TestPipeline(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	stage := func(i int) nn.Layer {
		s := nn.NewSequential(nn.NewLinear(6, 6, nn.DType(tensor.Float64)), &nn.Tanh{})
		for k, p := range nn.Parameters(s) {
			p.Detach().Copy_(wave(p.Shape(), 10*i+k))
		}
		return s
	}
	for _, gpipe := range []bool{false, true} {
		for _, microbatches := range []int{1, 2, 4, 8} {
			ranks(t, 3, func(g *dist.Group) error {
				x, target := wave([]int{8, 6}, 1).To(tensor.Float64), wave([]int{8, 6}, 2).To(tensor.Float64)
				whole := nn.NewSequential(stage(0), stage(1), stage(2))
				loss := mse(whole.Forward(x), target)
				want, err := loss.Item()
				if err := errors.Join(err, loss.Backward()); err != nil {
					return err
				}
				mine := stage(g.Rank())
				p, err := dist.NewPipeline(g, mine, mse, microbatches, dist.GPipe(gpipe))
				if err != nil {
					return err
				}
				for n := range 2 { // gradients of the second step add up
					got, err := p.Step(ctx, x, target)
					if err != nil {
						return err
					}
					if !(math.Abs(got-want) <= 1e-6) {
						return fmt.Errorf("loss %v, want %v", got, want)
					}
					for i, p := range nn.Parameters(mine) {
						all := nn.Parameters(whole)
						if d, err := p.Grad().Sub(all[2*g.Rank()+i].Grad().Mul(n + 1)).Abs().Max().Item(); err != nil || !(d <= 1e-12) {
							return fmt.Errorf("%d microbatches, rank %d: gradient %d differs by %v, %v", microbatches, g.Rank(), i, d, err)
						}
					}
				}
				return nil
			})
		}
	}
}

// scaled is a stage that takes and returns a row of the size of Scale, and notes the most memory during its forward passes.
type scaled struct {
	Scale *tensor.Tensor
	slow  time.Duration
	most  int64
}

func (w *scaled) Forward(x *tensor.Tensor) *tensor.Tensor {
	time.Sleep(w.slow)
	if s, err := vram.Stats(vram.CPU); err == nil {
		w.most = max(w.most, s.Requested)
	}
	return x.Mul(w.Scale)
}

// TestPipelineMemory tests that 1F1B keeps the tensors of a few microbatches, also of those that it has sent to a slow stage, and
// that no gradient acknowledges: in Eval, and where the first stages have nothing to train.
func TestPipelineMemory(t *testing.T) {
	leak.Check(t)
	const elements, microbatches = 1 << 18, 32 // a megabyte each
	for _, c := range []struct {
		name   string
		frozen bool
		call   func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error)
		most   int64 // megabytes
		opts   []dist.PipelineOption
	}{
		{"trained", false, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Step(ctx, x, target) }, 40, nil},
		{"frozen", true, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Step(ctx, x, target) }, 25, nil},
		{"eval", false, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Eval(ctx, x, target) }, 25, nil},
		{"eval, GPipe", false, func(p *dist.Pipeline, x, target *tensor.Tensor) (float64, error) { return p.Eval(ctx, x, target) }, 25,
			[]dist.PipelineOption{dist.GPipe()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			leak.Check(t)
			ranks(t, 3, func(g *dist.Group) error {
				w := &scaled{Scale: tensor.Ones([]int{elements}).RequiresGrad_()}
				switch {
				case g.Rank() == 2:
					w.slow = 5 * time.Millisecond
				case c.frozen:
					w.Scale.RequiresGrad_(false)
				}
				mse := func(y, target *tensor.Tensor) *tensor.Tensor { return y.Sub(target).Square().Mean() }
				p, err := dist.NewPipeline(g, w, mse, microbatches, c.opts...)
				if err != nil {
					return err
				}
				x, target := tensor.Ones([]int{1, 1}).Expand(microbatches, elements), tensor.Ones([]int{microbatches, 1})
				before, err := vram.Stats(vram.CPU)
				if err := errors.Join(err, g.Barrier(ctx), second(c.call(p, x, target))); err != nil {
					return err
				}
				got := (w.most - before.Requested) / (4 * elements)
				if got > c.most {
					t.Errorf("rank %d: %d MB", g.Rank(), got)
				}
				return nil
			})
		})
	}
}

// TestPipelineErrors tests that an error of a stage is an error of all ranks.
func TestPipelineErrors(t *testing.T) {
	leak.Check(t)
	mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
	ranks(t, 2, func(g *dist.Group) error {
		l := nn.NewLinear(3, 3)
		for name, f := range map[string]func() (*dist.Pipeline, error){
			"nil group":       func() (*dist.Pipeline, error) { return dist.NewPipeline(nil, l, mse, 1) },
			"nil stage":       func() (*dist.Pipeline, error) { return dist.NewPipeline(g, nil, mse, 1) },
			"no microbatches": func() (*dist.Pipeline, error) { return dist.NewPipeline(g, l, mse, 0) },
			"a nil option":    func() (*dist.Pipeline, error) { return dist.NewPipeline(g, l, mse, 1, nil) },
			"a failed stage":  func() (*dist.Pipeline, error) { return dist.NewPipeline(g, nn.NewLinear(-1, 3), mse, 1) },
		} {
			if p, err := f(); err == nil || p != nil {
				t.Errorf("%s: %v, %v", name, p, err)
			}
		}
		var none *dist.Pipeline
		if _, err := none.Step(ctx, nil, nil); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("a nil pipeline: %v", err)
		}
		p, err := dist.NewPipeline(g, l, mse, 2)
		if err == nil {
			err = g.Barrier(ctx) // neither rank leaves while the other still connects
		}
		if err != nil {
			return err
		}
		_, err = p.Step(ctx, tensor.Ones([]int{4, 3}), tensor.Ones([]int{3, 3})) // the last rank's cannot be divided
		if err == nil || g.Rank() == 1 && !errors.Is(err, tensor.ErrArgument) {
			return fmt.Errorf("rank %d: %v", g.Rank(), err)
		}
		return nil
	})
}

// A function is a stage without parameters.
type function func(x *tensor.Tensor) *tensor.Tensor

func (f function) Forward(x *tensor.Tensor) *tensor.Tensor { return f(x) }

// TestPipelineFrozen compares pipelines whose first stages have nothing to train with the whole model.
func TestPipelineFrozen(t *testing.T) {
	leak.Check(t)
	frozen := func() nn.Layer {
		l := nn.NewLinear(4, 4)
		for i, p := range nn.Parameters(l) {
			p.Detach().Copy_(wave(p.Shape(), i))
			p.RequiresGrad_(false)
		}
		return l
	}
	trained := func() nn.Layer {
		l := nn.NewLinear(4, 4)
		for i, p := range nn.Parameters(l) {
			p.Detach().Copy_(wave(p.Shape(), 5+i))
		}
		return l
	}
	scale := function(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(2) })
	toInt := function(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(3).To(tensor.Int64) })
	toFloat := function(func(x *tensor.Tensor) *tensor.Tensor { return x.To(tensor.Float32) })
	for name, stages := range map[string]func() []nn.Layer{
		"frozen":     func() []nn.Layer { return []nn.Layer{frozen(), frozen(), trained()} },
		"a function": func() []nn.Layer { return []nn.Layer{scale, trained(), frozen()} },
		"integers":   func() []nn.Layer { return []nn.Layer{toInt, toFloat, trained()} },
	} {
		t.Run(name, func(t *testing.T) {
			for _, gpipe := range []bool{false, true} {
				ranks(t, 3, func(g *dist.Group) error {
					x, target := wave([]int{8, 4}, 1), wave([]int{8, 4}, 2)
					all := stages()
					whole := nn.NewSequential(all...)
					loss := nn.MSELoss(whole.Forward(x), target)
					want, err := loss.Item()
					if err := errors.Join(err, loss.Backward()); err != nil {
						return err
					}
					mine := stages()[g.Rank()]
					mse := func(y, target *tensor.Tensor) *tensor.Tensor { return nn.MSELoss(y, target) }
					p, err := dist.NewPipeline(g, mine, mse, 4, dist.GPipe(gpipe))
					if err != nil {
						return err
					}
					if got, err := p.Step(ctx, x, target); err != nil || !(math.Abs(got-want) <= 1e-5) {
						return fmt.Errorf("rank %d: loss %v, want %v, %w", g.Rank(), got, want, err)
					}
					expected := nn.Parameters(all[g.Rank()])
					for i, p := range nn.Parameters(mine) {
						a, b := p.Grad(), expected[i].Grad()
						if (a == nil) != (b == nil) {
							return fmt.Errorf("rank %d: gradient %d is %v, want %v", g.Rank(), i, a, b)
						}
						if a == nil {
							continue
						}
						if d, err := a.Sub(b).Abs().Max().Item(); err != nil || !(d <= 1e-5) {
							return fmt.Errorf("rank %d: gradient %d differs by %v, %v", g.Rank(), i, d, err)
						}
					}
					return nil
				})
			}
		})
	}
}

// TestPipelineEval tests that Eval returns the loss of Step, without gradients, between steps, and in the loss's dtype.
func TestPipelineEval(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{1, 3} {
		ranks(t, n, func(g *dist.Group) error {
			graded := false
			square := func(y, target *tensor.Tensor) *tensor.Tensor {
				graded = y.RequiresGrad()
				return y.Sub(target).Square().Mean()
			}
			l := nn.NewLinear(3, 3, nn.DType(tensor.Float64))
			for i, p := range nn.Parameters(l) {
				p.Detach().Copy_(wave(p.Shape(), i))
			}
			p, err := dist.NewPipeline(g, l, square, 4)
			if err != nil {
				return err
			}
			x, target := wave([]int{8, 3}, 1).To(tensor.Float64), wave([]int{8, 3}, 2).To(tensor.Float64)
			y := x
			for range n {
				y = l.Forward(y)
			}
			want, err := y.Sub(target).Square().Mean().Item()
			if err != nil {
				return err
			}
			for i := range 4 {
				call := p.Eval
				if i == 2 {
					call = p.Step
				}
				got, err := call(ctx, x, target)
				if err != nil || !(math.Abs(got-want) <= 1e-13) {
					return fmt.Errorf("call %d: loss %v, want %v, %w", i, got, want, err)
				}
				if last := g.Rank() == n-1; graded != (last && i == 2) {
					return fmt.Errorf("call %d: the output requires a gradient: %v", i, graded)
				}
				if (nn.Parameters(l)[0].Grad() != nil) != (i >= 2) {
					return fmt.Errorf("call %d: gradient %v", i, nn.Parameters(l)[0].Grad())
				}
			}
			return nil
		})
	}
	var none *dist.Pipeline
	if _, err := none.Eval(ctx, nil, nil); !errors.Is(err, tensor.ErrNil) {
		t.Errorf("a nil pipeline: %v", err)
	}
}

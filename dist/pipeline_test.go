package dist_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
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
					if math.Abs(got-want) > 1e-6 {
						return fmt.Errorf("loss %v, want %v", got, want)
					}
					for i, p := range nn.Parameters(mine) {
						all := nn.Parameters(whole)
						if d, err := p.Grad().Sub(all[2*g.Rank()+i].Grad().Mul(n + 1)).Abs().Max().Item(); err != nil || d > 1e-12 {
							return fmt.Errorf("%d microbatches, rank %d: gradient %d differs by %v, %v", microbatches, g.Rank(), i, d, err)
						}
					}
				}
				return nil
			})
		}
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

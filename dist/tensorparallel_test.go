package dist_test

import (
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestTensorParallel compares a feed-forward network that is divided between two ranks with the whole one.
func TestTensorParallel(t *testing.T) {
	leak.Check(t)
	linear := func(in, out, phase int, opts ...nn.Option) *nn.Linear {
		l := nn.NewLinear(in, out, append(opts, nn.DType(tensor.Float64))...)
		for i, p := range nn.Parameters(l) {
			p.Detach().Copy_(wave(p.Shape(), phase+i))
		}
		return l
	}
	ranks(t, 2, func(g *dist.Group) error {
		r := g.Rank()
		first, second, last := linear(6, 8, 1), linear(8, 4, 3), linear(4, 2, 5, nn.NoBias())
		colwise, rowwise, replicated := dist.NewColwiseParallel(g, first), dist.NewRowwiseParallel(g, second), dist.NewColwiseParallel(g, last)
		replicated.Replicate = true
		whole := nn.NewSequential(first, &nn.Tanh{}, second, last)
		divided := nn.NewSequential(colwise, &nn.Tanh{}, rowwise, replicated)
		if err := nn.Check(divided); err != nil {
			return err
		}
		run := func(m nn.Layer) (y, gx *tensor.Tensor, err error) {
			x := wave([]int{3, 5, 6}, 7).To(tensor.Float64).RequiresGrad_()
			y = m.Forward(x)
			err = y.Mul(y).Mul(wave([]int{2}, 9)).Sum().Backward()
			return y, x.Grad(), err
		}
		want, wantX, err := run(whole)
		if err != nil {
			return err
		}
		got, gotX, err := run(divided)
		if err != nil {
			return err
		}
		for name, pair := range map[string][2]*tensor.Tensor{
			"y": {got, want}, "x": {gotX, wantX},
			"first weight":  {colwise.Weight.Grad(), first.Weight.Grad().Narrow(0, 4*r, 4)},
			"first bias":    {colwise.Bias.Grad(), first.Bias.Grad().Narrow(0, 4*r, 4)},
			"second weight": {rowwise.Weight.Grad(), second.Weight.Grad().Narrow(1, 4*r, 4)},
			"second bias":   {rowwise.Bias.Grad(), second.Bias.Grad()},
			"last weight":   {replicated.Weight.Grad(), last.Weight.Grad().Narrow(0, r, 1)},
		} {
			if d, err := pair[0].Sub(pair[1]).Abs().Max().Item(); err != nil || d > 1e-12 {
				t.Errorf("rank %d: %s differs by %v, %v", r, name, d, err)
			}
		}
		x := tensor.Ones([]int{2, 6}, tensor.Float64)
		var noCol *dist.ColwiseParallel
		var noRow *dist.RowwiseParallel
		for i, err := range []error{
			dist.NewColwiseParallel(g, linear(6, 3, 0)).Err(), dist.NewRowwiseParallel(g, linear(3, 6, 0)).Err(), dist.NewColwiseParallel(nil, first).Err(),
			dist.NewRowwiseParallel(g, nil).Forward(x).Err(), dist.NewColwiseParallel(g, &nn.Linear{}).Forward(x).Err(), (&dist.ColwiseParallel{}).Forward(x).Err(),
			(&dist.RowwiseParallel{}).Forward(x).Err(), noCol.Forward(x).Err(), noRow.Forward(x).Err(), colwise.Forward(nil).Err(), rowwise.Forward(nil).Err(),
		} {
			if err == nil {
				return fmt.Errorf("call %d: no error", i)
			}
		}
		return g.Barrier(ctx)
	})
}

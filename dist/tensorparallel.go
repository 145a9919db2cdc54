package dist

import (
	"context"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// ColwiseParallel is a Linear whose outputs are divided among the ranks of a group: each has the rows of the weight for its
// part and computes, for an x (*, in) that is the same on all ranks, its part (*, out/N) of the result. A RowwiseParallel
// takes the parts, so that a pair of them, as in a feed-forward network, takes one collective forward and one backward:
//
//	ff := nn.NewSequential(dist.NewColwiseParallel(g, nn.NewLinear(512, 2048)), &nn.ReLU{}, dist.NewRowwiseParallel(g, nn.NewLinear(2048, 512)))
//
// PyTorch: torch.distributed.tensor.parallel.ColwiseParallel.
type ColwiseParallel struct {
	Weight    *tensor.Tensor // (out/N, in)
	Bias      *tensor.Tensor // (out/N), or nil
	Replicate bool           // return the whole result (*, out), on all ranks
	g         *Group
	err       error
}

// RowwiseParallel is a Linear whose inputs are divided among the ranks of a group: each has the columns of the weight for its
// part and computes, for its part (*, in/N) of x, the whole result (*, out), which is the sum of those of all ranks. PyTorch:
// torch.distributed.tensor.parallel.RowwiseParallel.
type RowwiseParallel struct {
	Weight *tensor.Tensor // (out, in/N)
	Bias   *tensor.Tensor // (out), or nil, the same on all ranks
	g      *Group
	err    error
}

// NewColwiseParallel returns this rank's part of l, which must be the same on all ranks of g and have a multiple of g.Size()
// outputs. It does not change l.
func NewColwiseParallel(g *Group, l *nn.Linear) *ColwiseParallel {
	w, b, err := divide("NewColwiseParallel", g, l, 0)
	return &ColwiseParallel{Weight: w, Bias: b, g: g, err: err}
}

// NewRowwiseParallel returns this rank's part of l, which must be the same on all ranks of g and have a multiple of g.Size()
// inputs. It does not change l.
func NewRowwiseParallel(g *Group, l *nn.Linear) *RowwiseParallel {
	w, b, err := divide("NewRowwiseParallel", g, l, 1)
	return &RowwiseParallel{Weight: w, Bias: b, g: g, err: err}
}

// divide returns this rank's part of the weight of l, along dim, and of its bias.
func divide(op string, g *Group, l *nn.Linear, dim int) (weight, bias *tensor.Tensor, err error) {
	if err := g.check(op); err != nil {
		return nil, nil, err
	}
	if err := l.Err(); err != nil {
		return nil, nil, err
	}
	if err := refuse.Unusable(op, "the weight", l.Weight); err != nil {
		return nil, nil, err
	}
	if l.Weight.Dim() != 2 || l.Weight.Size(dim)%g.size != 0 {
		return nil, nil, refuse.Error(op, tensor.ErrArgument, "a weight of shape %v cannot be divided among %d ranks", l.Weight.Shape(), g.size)
	}
	part := func(t *tensor.Tensor, dim int) *tensor.Tensor {
		n := t.Size(dim) / g.size
		return t.Narrow(dim, g.rank*n, n)
	}
	if l.Bias != nil {
		if err := refuse.Unusable(op, "the bias", l.Bias); err != nil {
			return nil, nil, err
		}
	}
	weight = nn.NewParameter(part(l.Weight.Detach(), dim).Clone())
	if err := weight.Err(); err != nil || l.Bias == nil {
		return weight, nil, err
	}
	b := l.Bias.Detach()
	if dim == 0 {
		b = part(b, 0)
	}
	bias = nn.NewParameter(b.Clone())
	return weight, bias, bias.Err()
}

// Err returns the error of the constructor that made l, or nil.
func (l *ColwiseParallel) Err() error {
	if l == nil {
		return refuse.Nil("ColwiseParallel", "a module")
	}
	return l.err
}

// Err returns the error of the constructor that made l, or nil.
func (l *RowwiseParallel) Err() error {
	if l == nil {
		return refuse.Nil("RowwiseParallel", "a module")
	}
	return l.err
}

// Sharding returns the shape of the whole tensor of which t, the weight or the bias, is a part, and the offsets of the part
// in it; nil for another tensor. See package dcp.
func (l *ColwiseParallel) Sharding(t *tensor.Tensor) (global, offsets []int) {
	if l.Err() != nil || l.g == nil || t == nil || t != l.Weight && t != l.Bias {
		return nil, nil
	}
	return sharding(l.g, t, 0)
}

// Sharding returns the shape of the whole tensor of which t, the weight, is a part, and the offsets of the part in it; nil
// for another tensor. See package dcp.
func (l *RowwiseParallel) Sharding(t *tensor.Tensor) (global, offsets []int) {
	if l.Err() != nil || l.g == nil || t == nil || t != l.Weight {
		return nil, nil
	}
	return sharding(l.g, t, 1)
}

// sharding returns the layout of a tensor that is divided evenly along dim.
func sharding(g *Group, t *tensor.Tensor, dim int) (global, offsets []int) {
	global = slices.Clone(t.Shape())
	offsets = make([]int, len(global))
	offsets[dim] = g.rank * global[dim]
	global[dim] *= g.size
	return global, offsets
}

// Forward returns this rank's part of the result, or all of it with Replicate.
func (l *ColwiseParallel) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := ready("ColwiseParallel", l.Err(), func() bool { return l.g != nil && l.Weight != nil }); err != nil {
		return tensor.Failed(err)
	}
	return tensor.Tidy(func() *tensor.Tensor {
		y := apply(copied{l.g}, x).Linear(l.Weight, l.Bias)
		if l.Replicate {
			y = apply(gathered{l.g}, y)
		}
		return y
	})
}

// Forward returns the whole result.
func (l *RowwiseParallel) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := ready("RowwiseParallel", l.Err(), func() bool { return l.g != nil && l.Weight != nil }); err != nil {
		return tensor.Failed(err)
	}
	return tensor.Tidy(func() *tensor.Tensor {
		y := apply(summed{l.g}, x.Linear(l.Weight, nil))
		if l.Bias != nil {
			y = y.Add(l.Bias)
		}
		return y
	})
}

func ready(op string, err error, made func() bool) error {
	if err == nil && !made() {
		err = refuse.Error(op, tensor.ErrArgument, "the module was not made by New%s", op)
	}
	return err
}

// apply returns the result of a function that has one.
func apply(f autograd.Function, inputs ...*tensor.Tensor) *tensor.Tensor {
	out, err := autograd.Apply(f, inputs...)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

// sum returns the sum of t over the ranks.
func sum(g *Group, t *tensor.Tensor) ([]*tensor.Tensor, error) {
	t = t.Contiguous().Clone()
	return []*tensor.Tensor{t}, g.AllReduce(context.Background(), t, Sum)
}

// copied is a tensor that all ranks use: its gradient is the sum of theirs.
type copied struct{ g *Group }

func (f copied) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}
func (f copied) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return sum(f.g, grads[0])
}

// summed is the sum of the ranks' tensors, of which each has the gradient of the sum.
type summed struct{ g *Group }

func (f summed) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return sum(f.g, in[0])
}
func (f summed) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return grads, nil
}

// gathered is the ranks' tensors side by side in the last dimension.
type gathered struct{ g *Group }

func (f gathered) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	parts := make([]*tensor.Tensor, f.g.size)
	for r := range parts {
		parts[r] = in[0].NewEmpty(in[0].Shape())
	}
	if err := f.g.AllGather(context.Background(), parts, in[0].Contiguous()); err != nil {
		return nil, err
	}
	return []*tensor.Tensor{tensor.Cat(parts, tensor.Dim(-1))}, nil
}
func (f gathered) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	n := grads[0].Size(-1) / f.g.size
	return []*tensor.Tensor{grads[0].Narrow(-1, f.g.rank*n, n)}, nil
}

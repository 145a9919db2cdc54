package dist

import (
	"context"
	"fmt"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// A Placement is how a tensor is laid out on the ranks of a group: [Replicate] or [ShardDim]. PyTorch:
// torch.distributed.tensor.Placement.
type Placement struct {
	sharded bool
	dim     int
}

// Replicate is the placement of a tensor that is the same on all ranks. PyTorch: torch.distributed.tensor.Replicate.
func Replicate() Placement { return Placement{} }

// ShardDim is the placement of a tensor of which each rank has a part along a dimension; a negative one counts from the last.
// PyTorch: torch.distributed.tensor.Shard.
func ShardDim(dim int) Placement { return Placement{true, dim} }

// String returns PyTorch's notation.
func (p Placement) String() string {
	if !p.sharded {
		return "Replicate()"
	}
	return fmt.Sprintf("Shard(%d)", p.dim)
}

// of returns the dimension of t that p divides.
func (p Placement) of(op string, t *tensor.Tensor) (int, error) {
	dim := p.dim
	if dim < 0 {
		dim += t.Dim()
	}
	if dim < 0 || dim >= t.Dim() {
		return 0, refuse.Error(op, tensor.ErrArgument, "a tensor of shape %v cannot have the layout %v", t.Shape(), p)
	}
	return dim, nil
}

// Redistribute converts x from the layout `from` on the ranks of g to the layout `to`: whole tensors that the ranks
// gather, this rank's part, or both from one dimension to another. The size of the whole in a dimension that is divided
// must be a multiple of the number of ranks. The gradient of x has the layout from. It prepares the input or output of a
// module that expects another layout. PyTorch: DTensor.redistribute; PrepareModuleInput and PrepareModuleOutput do it in
// a hook.
func Redistribute(g *Group, x *tensor.Tensor, from, to Placement) *tensor.Tensor {
	const op = "Redistribute"
	err := g.check(op)
	if err == nil {
		err = refuse.Unusable(op, "", x)
	}
	var source, target int
	if err == nil && from.sharded {
		source, err = from.of(op, x)
	}
	if err == nil && to.sharded {
		target, err = to.of(op, x)
	}
	same := from.sharded == to.sharded && source == target
	if err == nil && to.sharded && !same && x.Size(target)%g.size != 0 {
		err = refuse.Error(op, tensor.ErrArgument, "a tensor of shape %v cannot be divided among %d ranks as %v", x.Shape(), g.size, to)
	}
	if err != nil {
		return tensor.Failed(err)
	}
	if same {
		return x.Alias()
	}
	return tensor.Tidy(func() *tensor.Tensor {
		y := x
		if from.sharded {
			y = apply(gathered{g: g, dim: source}, y)
		}
		if to.sharded && handle.Usable(y) {
			y = apply(split{g, target}, y)
		}
		return y
	})
}

// chunk returns the part of n elements that a rank has, as torch.chunk divides them: the first and their number.
func chunk(n, size, rank int) (first, count int) {
	each := (n + size - 1) / size
	first = min(rank*each, n)
	return first, min(each, n-first)
}

// The functions below change layouts. The backward pass of each is another one of them, so that gradients of gradients are
// right, too. Each collective must lie on every path from the loss to what precedes it: the order of those on separate paths
// is the engine's.

// apply returns the result of a function that has one.
func apply(f autograd.Function, inputs ...*tensor.Tensor) *tensor.Tensor {
	out, err := autograd.Apply(f, inputs...)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

// copied is tensors that all ranks use: their gradients are the sums of the ranks'.
type copied struct{ g *Group }

func (f copied) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (f copied) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return autograd.Apply(summed(f), grads...)
}

// summed is the sums of the ranks' tensors, of which each rank has the gradients.
type summed struct{ g *Group }

func (f summed) Forward(_ *autograd.Context, in ...*tensor.Tensor) (out []*tensor.Tensor, err error) {
	for _, t := range in {
		out = append(out, t.Contiguous().Clone())
	}
	if len(out) == 1 {
		return out, f.g.AllReduce(context.Background(), out[0], Sum)
	}
	var dtypes []tensor.DType // in the same order on all ranks
	of := map[tensor.DType][]*tensor.Tensor{}
	for _, t := range out {
		d := t.DType()
		if of[d] == nil {
			dtypes = append(dtypes, d)
		}
		of[d] = append(of[d], t)
	}
	for _, d := range dtypes {
		if err := f.g.AllReduceCoalesced(context.Background(), of[d], Sum); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f summed) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return autograd.Apply(copied(f), grads...)
}

// gathered is the ranks' tensors side by side in a dimension. If it is used in the same way on all ranks, each has the gradient
// and keeps its part. If divided layers use it, its gradient is the sum of the ranks'.
type gathered struct {
	g       *Group
	dim     int
	divided bool // divided layers use it
}

func (f gathered) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	parts := make([]*tensor.Tensor, f.g.size)
	for r := range parts {
		parts[r] = in[0].NewEmpty(in[0].Shape())
	}
	if err := f.g.AllGather(context.Background(), parts, in[0].Contiguous()); err != nil {
		return nil, err
	}
	return one(tensor.Cat(parts, tensor.Dim(f.dim))), nil
}

func (f gathered) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f.divided {
		return autograd.Apply(&scattered{g: f.g, dim: f.dim}, grads...)
	}
	return autograd.Apply(split{f.g, f.dim}, grads...)
}

// split is this rank's part of a tensor that all ranks have.
type split struct {
	g   *Group
	dim int
}

func (f split) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	first, n := chunk(in[0].Size(f.dim), f.g.size, f.g.rank)
	return one(in[0].Narrow(f.dim, first, n)), nil
}

func (f split) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return autograd.Apply(gathered{g: f.g, dim: f.dim}, grads...)
}

// scattered is this rank's part of the sum of the ranks' tensors, whose size in the dimension is a multiple of their number. A
// second input, of the size of the last dimension, is added to it.
type scattered struct {
	g    *Group
	dim  int
	bias tensor.DType // Invalid: none
}

func (f *scattered) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	parts, err := in[0].Chunk(f.g.size, tensor.Dim(f.dim))
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		parts[i] = p.Contiguous()
	}
	out := parts[0].NewEmpty(parts[0].Shape())
	if err := f.g.ReduceScatter(context.Background(), out, parts, Sum); err != nil {
		return nil, err
	}
	f.bias = tensor.Invalid
	if len(in) == 2 {
		f.bias = in[1].DType()
		out = out.Add(in[1].To(out.DType()))
	}
	return one(out), nil
}

func (f *scattered) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	whole, err := autograd.Apply(gathered{f.g, f.dim, true}, grads...)
	if err != nil || f.bias == tensor.Invalid {
		return whole, err
	}
	var dims []int
	for d := range whole[0].Dim() - 1 {
		dims = append(dims, d)
	}
	return append(whole, whole[0].Sum(tensor.Dim(dims...)).To(f.bias)), nil
}

// beside is x, which each rank has a part of, and parameters that are the same on all ranks, whose gradients are the sums of
// the ranks'. x is one of the inputs so that the collective precedes those of earlier layers.
type beside struct{ g *Group }

func (f beside) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return in, nil
}

func (f beside) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	sums, err := autograd.Apply(summed(f), grads[1:]...)
	return append(grads[:1:1], sums...), err
}

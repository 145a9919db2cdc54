package dist

import (
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// ColwiseParallel is a Linear whose outputs, or an Embedding whose columns, are divided among the ranks of a group: each rank
// computes its part (*, out/N) of the result. A RowwiseParallel takes the parts, so that a pair of them, as in a feed-forward
// network, takes one collective forward and one backward:
//
//	ff := nn.NewSequential(dist.NewColwiseParallel(g, nn.NewLinear(512, 2048)), &nn.ReLU{}, dist.NewRowwiseParallel(g, nn.NewLinear(2048, 512)))
//
// See the package documentation. PyTorch: torch.distributed.tensor.parallel.ColwiseParallel.
type ColwiseParallel struct {
	Weight *tensor.Tensor // (out/N, in) of a Linear, with Fused(n) (n, out/n/N, in); (count, width/N) of an Embedding
	Bias   *tensor.Tensor // (out/N), with Fused(n) (n, out/n/N), or nil
	layout divided
	err    error
}

// RowwiseParallel is a Linear whose inputs, or an Embedding whose rows, are divided among the ranks of a group: the result (*,
// out) is the sum of what they compute, of which each has all or a part. See the package documentation. PyTorch:
// torch.distributed.tensor.parallel.RowwiseParallel.
type RowwiseParallel struct {
	Weight *tensor.Tensor // (out, in/N) of a Linear, (count/N, width) of an Embedding
	Bias   *tensor.Tensor // (out), or nil, the same on all ranks
	layout divided
	err    error
}

// divided is what the layers have in common.
type divided struct {
	g         *Group
	in, out   Placement
	colwise   bool
	fused     int // parts of a Linear's outputs that are divided on their own
	dim       int // of the weight, which is divided along it
	size      int // of the undivided weight in it
	embedding bool
	pad       int // the row of the undivided embedding that gets no gradient, or -1
}

// A ParallelOption is an option of NewColwiseParallel and NewRowwiseParallel.
type ParallelOption func(*divided)

// InputLayouts sets the layout of the input of a ColwiseParallel: Replicate, the default, or ShardDim, with which it gathers the
// input, as for a linear layer after a SequenceParallel. PyTorch: input_layouts.
func InputLayouts(p Placement) ParallelOption { return func(d *divided) { d.in = p } }

// OutputLayouts sets the layout of the result. For a ColwiseParallel it is ShardDim(-1), the default, or Replicate; for a
// RowwiseParallel Replicate, the default, or ShardDim of another dimension than the last of a Linear, whose size must be a
// multiple of the number of ranks. PyTorch: output_layouts.
func OutputLayouts(p Placement) ParallelOption { return func(d *divided) { d.out = p } }

// Fused tells a ColwiseParallel of a Linear that its outputs are n parts of the same size, such as queries, keys and values, of
// which each rank gets its part: nn.CausalAttention with heads/N heads takes the result of one with Fused(3). Weight
// and bias have another dimension, of n parts, in front, also in a checkpoint: those of an undivided Linear cannot be loaded
// into them, nor the reverse.
func Fused(n int) ParallelOption { return func(d *divided) { d.fused = n } }

// NewColwiseParallel returns this rank's part of l, a *nn.Linear or *nn.Embedding that must be the same on all ranks of g. It
// does not change l. The parts are those of torch.chunk; those of a result that is to be whole must have the same size.
// Options: InputLayouts, OutputLayouts, Fused.
func NewColwiseParallel(g *Group, l nn.Layer, opts ...ParallelOption) *ColwiseParallel {
	c := &ColwiseParallel{layout: divided{colwise: true, out: ShardDim(-1)}}
	c.Weight, c.Bias, c.err = c.layout.divide("NewColwiseParallel", g, l, opts)
	return c
}

// NewRowwiseParallel returns this rank's part of l, a *nn.Linear or *nn.Embedding that must be the same on all ranks of g. It
// does not change l. The parts are those of torch.chunk. Option: OutputLayouts.
func NewRowwiseParallel(g *Group, l nn.Layer, opts ...ParallelOption) *RowwiseParallel {
	r := &RowwiseParallel{}
	r.Weight, r.Bias, r.err = r.layout.divide("NewRowwiseParallel", g, l, opts)
	return r
}

// divide sets d for l and returns this rank's part of the weight and of the bias.
func (d *divided) divide(op string, g *Group, l nn.Layer, opts []ParallelOption) (weight, bias *tensor.Tensor, err error) {
	if err := g.check(op); err != nil {
		return nil, nil, err
	}
	d.g = g
	if weight, bias, err = d.whole(op, l); err != nil {
		return nil, nil, err
	}
	if err := d.set(op, weight, bias, opts); err != nil {
		return nil, nil, err
	}
	if weight, err = d.parameter(weight, d.part(weight, d.dim)); err != nil {
		return nil, nil, err
	}
	g.mark(weight)
	if bias == nil {
		return weight, nil, nil
	}
	own := bias
	if d.colwise {
		own = d.part(bias, 0)
	}
	if bias, err = d.parameter(bias, own); err != nil {
		weight.Release()
		return nil, nil, err
	}
	if d.colwise {
		g.mark(bias)
	}
	return weight, bias, nil
}

// whole returns the weight and the bias of l.
func (d *divided) whole(op string, l nn.Layer) (weight, bias *tensor.Tensor, err error) {
	d.pad = -1
	switch l := l.(type) {
	case *nn.Linear:
		if !d.colwise {
			d.in = ShardDim(-1)
		}
		if err = l.Err(); err == nil {
			weight, bias = l.Weight, l.Bias
		}
	case *nn.Embedding:
		d.embedding = true
		if err = l.Err(); err == nil {
			weight, d.pad = l.Weight, l.PaddingIdx()
			if l.MaxNorm != 0 || l.ByFrequency || l.Sparse {
				err = refuse.Error(op, tensor.ErrArgument, "an Embedding with MaxNorm, ScaleGradByFreq or SparseGrad cannot be divided")
			}
		}
	case nil:
		err = refuse.Nil(op, "a layer")
	default:
		err = refuse.Error(op, tensor.ErrArgument, "a *nn.Linear or *nn.Embedding is needed, got %T", l)
	}
	return weight, bias, err
}

// set sets the options and sizes of d for the whole weight and bias.
func (d *divided) set(op string, weight, bias *tensor.Tensor, opts []ParallelOption) error {
	in := d.in
	for _, opt := range opts {
		if opt == nil {
			return refuse.NilOption(op)
		}
		opt(d)
	}
	if err := refuse.Unusable(op, "the weight", weight); err != nil {
		return err
	}
	if err := d.g.undivided(op, "the weight", weight); err != nil {
		return err
	}
	if bias != nil {
		if err := refuse.Unusable(op, "the bias", bias); err != nil {
			return err
		}
		if err := d.g.undivided(op, "the bias", bias); err != nil {
			return err
		}
	}
	if weight.Dim() != 2 {
		return refuse.Error(op, tensor.ErrArgument, "the weight must have 2 dimensions, got shape %v", weight.Shape())
	}
	if d.colwise == d.embedding {
		d.dim = 1
	}
	d.size = weight.Size(d.dim)
	switch {
	case !d.colwise && (d.in != in || d.fused != 0):
		return refuse.Error(op, tensor.ErrArgument, "the input has the layout %v; InputLayouts and Fused are for NewColwiseParallel", in)
	case d.colwise && d.out.sharded && d.out.dim != -1:
		return refuse.Error(op, tensor.ErrArgument, "the result can have the layout Shard(-1) or Replicate(), not %v", d.out)
	case d.fused != 0 && (d.fused < 0 || d.embedding || d.out != ShardDim(-1) || d.size%d.fused != 0):
		return refuse.Error(op, tensor.ErrArgument, "a weight of shape %v does not have %d parts for Fused, which is for a Linear with a divided result",
			weight.Shape(), d.fused)
	}
	if d.fused != 0 {
		d.size /= d.fused
	}
	if _, last := chunk(d.size, d.g.size, d.g.size-1); last == 0 || d.colwise && !d.out.sharded && d.size%d.g.size != 0 {
		return refuse.Error(op, tensor.ErrArgument, "a weight of shape %v cannot be divided among %d ranks along dimension %d", weight.Shape(), d.g.size, d.dim)
	}
	return nil
}

// parameter returns a parameter with the values of own, which is a part of t and trained if t is.
func (d *divided) parameter(t, own *tensor.Tensor) (*tensor.Tensor, error) {
	p := nn.NewParameter(own.Detach().Clone())
	if err := p.Err(); err != nil {
		return nil, err
	}
	return p.RequiresGrad_(t.RequiresGrad()), nil
}

// part returns this rank's part of t along dim, or of each of its fused parts.
func (d *divided) part(t *tensor.Tensor, dim int) *tensor.Tensor {
	t = t.Detach()
	if d.fused != 0 {
		t = t.Unflatten(0, d.fused, d.size)
		dim++
	}
	first, n := chunk(d.size, d.g.size, d.g.rank)
	return t.Narrow(dim, first, n)
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
// in it; nil for another tensor, and in a group of one rank. See package dcp.
func (l *ColwiseParallel) Sharding(t *tensor.Tensor) (global, offsets []int) {
	if l.Err() != nil || t == nil || t != l.Weight && t != l.Bias {
		return nil, nil
	}
	return l.layout.sharding(t)
}

// Sharding returns the shape of the whole tensor of which t, the weight, is a part, and the offsets of the part in it; nil
// for another tensor, and in a group of one rank. See package dcp.
func (l *RowwiseParallel) Sharding(t *tensor.Tensor) (global, offsets []int) {
	if l.Err() != nil || t == nil || t != l.Weight {
		return nil, nil
	}
	return l.layout.sharding(t)
}

func (d *divided) sharding(t *tensor.Tensor) (global, offsets []int) {
	if d.g == nil || d.g.size == 1 {
		return nil, nil
	}
	dim := d.dim
	if d.fused != 0 {
		dim++
	}
	global = slices.Clone(t.Shape())
	offsets = make([]int, len(global))
	offsets[dim], _ = chunk(d.size, d.g.size, d.g.rank)
	global[dim] = d.size
	return global, offsets
}

// Forward returns this rank's part of the result, or all of it with OutputLayouts(Replicate()).
func (l *ColwiseParallel) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	return l.layout.forward("ColwiseParallel", x, l.Weight, l.Bias)
}

// Forward returns the whole result, or this rank's part with OutputLayouts(ShardDim(dim)).
func (l *RowwiseParallel) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	return l.layout.forward("RowwiseParallel", x, l.Weight, l.Bias)
}

func (d *divided) forward(op string, x, weight, bias *tensor.Tensor) *tensor.Tensor {
	if d.g == nil || weight == nil {
		return refuse.Tensor(op, tensor.ErrArgument, "the module was not made by New%s", op)
	}
	if err := d.g.check(op); err != nil {
		return tensor.Failed(err)
	}
	if err := refuse.Unusable(op, "", x); err != nil {
		return tensor.Failed(err)
	}
	return tensor.Tidy(func() *tensor.Tensor {
		x, weight, bias := x, weight, bias
		if d.colwise && d.in.sharded {
			dim, err := d.in.of(op, x)
			if err != nil {
				return tensor.Failed(err)
			}
			x = apply(gathered{d.g, dim, true}, x)
		} else if d.colwise && !d.embedding {
			x = apply(copied{d.g}, x)
		}
		switch {
		case d.embedding:
			return d.lookup(op, x, weight)
		case !d.colwise:
			return d.sum(op, x.Linear(weight, nil), bias)
		case d.fused != 0:
			weight = weight.Flatten(tensor.StartDim(0), tensor.EndDim(1))
			if bias != nil {
				bias = bias.Flatten()
			}
		}
		return d.join(x.Linear(weight, bias))
	})
}

// join returns the result of a ColwiseParallel.
func (d *divided) join(y *tensor.Tensor) *tensor.Tensor {
	if d.out.sharded || !handle.Usable(y) {
		return y
	}
	return apply(gathered{g: d.g, dim: y.Dim() - 1}, y)
}

// sum returns the result of a RowwiseParallel, whose summand on this rank is y.
func (d *divided) sum(op string, y, bias *tensor.Tensor) *tensor.Tensor {
	if !d.out.sharded || !handle.Usable(y) {
		y = apply(summed{d.g}, y)
		if bias != nil && handle.Usable(y) {
			y = y.Add(bias.To(y.DType()))
		}
		return y
	}
	dim, err := d.out.of(op, y)
	if err == nil && (y.Size(dim)%d.g.size != 0 || !d.embedding && dim == y.Dim()-1) {
		err = refuse.Error(op, tensor.ErrArgument, "a result of shape %v cannot be divided among %d ranks as %v", y.Shape(), d.g.size, d.out)
	}
	if err != nil {
		return tensor.Failed(err)
	}
	in := one(y)
	if bias != nil {
		in = append(in, bias)
	}
	return apply(&scattered{g: d.g, dim: dim}, in...)
}

// lookup returns the result of an embedding.
func (d *divided) lookup(op string, ids, weight *tensor.Tensor) *tensor.Tensor {
	rows := func(ids *tensor.Tensor, pad int) *tensor.Tensor {
		if pad < 0 || pad >= weight.Size(0) {
			return tensor.Embedding(weight, ids)
		}
		return tensor.Embedding(weight, ids, tensor.PaddingIdx(pad))
	}
	if d.colwise {
		return d.join(rows(ids, d.pad))
	}
	if err := inRange(op, "an id", ids, d.size); err != nil {
		return tensor.Failed(err)
	}
	first, n := chunk(d.size, d.g.size, d.g.rank)
	local, other := localize(ids, first, n)
	return d.sum(op, rows(local, d.pad-first).MaskedFill(other.Unsqueeze(-1), 0), nil)
}

// inRange returns an error if t has integers outside of [0, n).
func inRange(op, what string, t *tensor.Tensor, n int) error {
	outside, err := tensor.Item[bool](t.Lt(0).LogicalOr(t.Ge(n)).Any())
	if err == nil && outside {
		err = refuse.Error(op, tensor.ErrArgument, "%s is outside of [0, %d)", what, n)
	}
	return err
}

// localize returns ids as indices of the n rows from first on, which a rank has, with 0 for those that it does not have, and
// which those are.
func localize(ids *tensor.Tensor, first, n int) (local, other *tensor.Tensor) {
	local = ids.Sub(first)
	other = local.Lt(0).LogicalOr(local.Ge(n))
	return local.MaskedFill(other, 0), other
}

// SequenceParallel applies a module to this rank's part of a sequence. Its parameters are the same on all ranks, and their
// gradients are the sums of the ranks'. The module computes each position by itself, as LayerNorm, RMSNorm and Dropout do. See
// the package documentation. PyTorch: torch.distributed.tensor.parallel.SequenceParallel.
type SequenceParallel struct {
	Module nn.Layer `nn:"."`
	g      *Group
	err    error
}

// NewSequenceParallel returns m for sequences that are divided among the ranks of g. It uses the parameters of m, which must be
// the same on all ranks.
func NewSequenceParallel(g *Group, m nn.Layer) *SequenceParallel {
	const op = "NewSequenceParallel"
	err := g.check(op)
	if err == nil && m == nil {
		err = refuse.Nil(op, "a module")
	}
	if err == nil {
		err = nn.Check(m)
	}
	if err == nil {
		for _, n := range nn.NamedParameters(m) {
			if err = g.alone(op, n.Name, n.Tensor); err != nil {
				break
			}
		}
	}
	if err != nil {
		return &SequenceParallel{err: err}
	}
	return &SequenceParallel{Module: m, g: g}
}

// Err returns the error of the constructor that made s, or nil.
func (s *SequenceParallel) Err() error {
	if s == nil {
		return refuse.Nil("SequenceParallel", "a module")
	}
	return s.err
}

// Forward returns the result for x, this rank's part, in the layout of x.
func (s *SequenceParallel) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "SequenceParallel"
	if err := s.Err(); err != nil {
		return tensor.Failed(err)
	}
	if s.g == nil || s.Module == nil {
		return refuse.Tensor(op, tensor.ErrArgument, "the module was not made by NewSequenceParallel")
	}
	if err := s.g.check(op); err != nil {
		return tensor.Failed(err)
	}
	if err := refuse.Unusable(op, "", x); err != nil {
		return tensor.Failed(err)
	}
	if !x.DType().IsFloat() {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be floating-point, got %v", x.DType())
	}
	named := slices.DeleteFunc(nn.NamedParameters(s.Module), func(n nn.Named) bool { return !n.Tensor.RequiresGrad() })
	if len(named) == 0 || !tensor.GradEnabled() {
		return s.Module.Forward(x)
	}
	return tensor.Tidy(func() *tensor.Tensor {
		in := one(x)
		for _, n := range named {
			in = append(in, n.Tensor)
		}
		out, err := autograd.Apply(beside{s.g}, in...)
		if err != nil {
			return tensor.Failed(err)
		}
		state := map[string]*tensor.Tensor{}
		for i, n := range named {
			state[n.Name] = out[i+1]
		}
		m, err := nn.FunctionalCall(s.Module, state)
		if err != nil {
			return tensor.Failed(err)
		}
		return m.Forward(out[0])
	})
}

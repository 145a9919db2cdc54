package dist

import (
	"context"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// LossParallel returns the cross entropy of logits whose classes are divided among the ranks of g, without gathering them:
// logits are this rank's part of (N, C, *) or (C), such as the result of a [ColwiseParallel] of a Linear with C outputs, and
// classes is C. targets (N, *) or (), class indices of dtype int64, must be the same on all ranks. The loss is that of
// nn.CrossEntropy for the whole logits, on all ranks. It takes two collectives forward, of at most three numbers for each target,
// and none backward. It has no gradient of its gradient. Options: a tensor.Reduction, tensor.IgnoreIndex,
// tensor.LabelSmoothing. PyTorch: torch.distributed.tensor.parallel.loss_parallel.
func LossParallel(g *Group, logits, targets *tensor.Tensor, classes int, opts ...tensor.Option) *tensor.Tensor {
	const op = "LossParallel"
	return tensor.Tidy(func() *tensor.Tensor {
		f := &crossEntropy{g: g, classes: classes, reduction: tensor.ReduceMean, ignore: -100}
		if err := f.read(op, logits, targets, opts); err != nil {
			return tensor.Failed(err)
		}
		return apply(f, logits, targets)
	})
}

// crossEntropy is a function of a rank's logits and the targets.
type crossEntropy struct {
	g         *Group
	classes   int // of all ranks
	dim       int // of the logits, in which the classes are
	reduction tensor.Reduction
	ignore    int
	smoothing float64
	dtype     tensor.DType // of the logits
}

// read sets f from the arguments, which it checks.
func (f *crossEntropy) read(op string, logits, targets *tensor.Tensor, opts []tensor.Option) error {
	if err := f.g.check(op); err != nil {
		return err
	}
	for _, o := range opts {
		if o == nil {
			return refuse.Nil(op, "an option")
		}
		name, value := tensor.OptionValue(o)
		ok := true
		switch name {
		case "Reduction":
			f.reduction, ok = value.(tensor.Reduction)
			ok = ok && slices.Contains([]tensor.Reduction{tensor.ReduceNone, tensor.ReduceMean, tensor.ReduceSum}, f.reduction)
		case "IgnoreIndex":
			f.ignore, ok = value.(int)
		case "LabelSmoothing":
			f.smoothing, ok = value.(float64)
			ok = ok && f.smoothing >= 0 && f.smoothing <= 1
		default:
			return refuse.Error(op, tensor.ErrArgument, "unknown option %s; the options are Reduction, IgnoreIndex, LabelSmoothing", name)
		}
		if !ok {
			return refuse.Error(op, tensor.ErrArgument, "option %s has the value %v", name, value)
		}
	}
	if err := refuse.Unusable(op, "logits", logits); err != nil {
		return err
	}
	if err := refuse.Unusable(op, "targets", targets); err != nil {
		return err
	}
	f.dtype = logits.DType()
	if !f.dtype.IsFloat() || targets.DType() != tensor.Int64 {
		return refuse.Error(op, tensor.ErrArgument, "floating-point logits and targets of int64 are needed, got %v and %v", f.dtype, targets.DType())
	}
	shape := logits.Shape()
	if len(shape) > 1 {
		f.dim = 1
	}
	if _, n := chunk(f.classes, f.g.size, f.g.rank); n < 1 || logits.Size(f.dim) != n {
		return refuse.Error(op, tensor.ErrArgument, "of %d classes, rank %d of %d has %d, got logits of shape %v", f.classes, f.g.rank, f.g.size, n, shape)
	}
	if want := slices.Delete(slices.Clone(shape), f.dim, f.dim+1); !slices.Equal(targets.Shape(), want) {
		return refuse.Error(op, tensor.ErrArgument, "logits of shape %v need targets of shape %v, got %v", shape, want, targets.Shape())
	}
	return inRange(op, "a target", targets.MaskedFill(targets.Eq(f.ignore), 0), f.classes)
}

// Forward saves the exponentials of the logits, their sums over all classes, where the targets are in this rank's classes, and
// the factors of the rows in the gradient.
func (f *crossEntropy) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	x, targets := in[0], in[1]
	if f.dtype != tensor.Float64 {
		x = x.To(tensor.Float32)
	}
	kept := []tensor.Option{tensor.Dim(f.dim), tensor.KeepDim(true)}
	highest := x.AMax(kept...).Contiguous()
	if err := f.g.AllReduce(context.Background(), highest, Max); err != nil {
		return nil, err
	}
	x = x.Sub(highest)
	ignored := targets.Eq(f.ignore).Unsqueeze(f.dim)
	first, n := chunk(f.classes, f.g.size, f.g.rank)
	own, other := localize(targets.Unsqueeze(f.dim), first, n)
	other = other.LogicalOr(ignored)
	sums := []*tensor.Tensor{nil, x.Gather(f.dim, own).MaskedFill(other, 0)}
	if f.smoothing > 0 {
		sums = append(sums, x.Sum(kept...))
	}
	exp := x.Exp_()
	sums[0] = exp.Sum(kept...)
	all := tensor.Cat(sums, tensor.Dim(f.dim)).Contiguous()
	if err := f.g.AllReduce(context.Background(), all, Sum); err != nil {
		return nil, err
	}
	total := all.Narrow(f.dim, 0, 1)
	loss := total.Log().Sub(all.Narrow(f.dim, 1, 1).Mul(1 - f.smoothing))
	if f.smoothing > 0 {
		loss = loss.Sub(all.Narrow(f.dim, 2, 1).Mul(f.smoothing / float64(f.classes)))
	}
	loss = loss.MaskedFill(ignored, 0)
	factor := ignored.LogicalNot().To(x.DType())
	switch f.reduction {
	case tensor.ReduceNone:
		loss = loss.SqueezeDim(f.dim)
	case tensor.ReduceSum:
		loss = loss.Sum()
	default:
		count := factor.Sum()
		loss = loss.Sum().Div(count)
		factor = factor.Div(count.Clamp(1, nil)) // with no target the loss is NaN and its gradient 0
	}
	ctx.SaveForBackward(exp, total, own, other, factor)
	return one(loss.To(f.dtype)), nil
}

func (f *crossEntropy) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if tensor.GradEnabled() {
		return nil, refuse.Error("LossParallel", tensor.ErrNotImplemented, "the loss has no gradient of its gradient")
	}
	saved := ctx.Saved()
	exp, total, own, other, factor := saved[0], saved[1], saved[2], saved[3], saved[4]
	g := grads[0].To(exp.DType())
	if f.reduction == tensor.ReduceNone {
		g = g.Unsqueeze(f.dim)
	}
	gx := exp.Div(total).ScatterAdd_(f.dim, own, other.LogicalNot().To(exp.DType()).Mul(f.smoothing-1))
	if f.smoothing > 0 {
		gx = gx.Sub_(f.smoothing / float64(f.classes))
	}
	return []*tensor.Tensor{gx.Mul_(factor.Mul(g)).To(f.dtype), nil}, nil
}

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
// classes is C, of which each rank must have some. targets (N, *) or (), class indices of dtype int64, must be the same on
// all ranks. The loss is that of nn.CrossEntropy for the whole logits, on all ranks, also within autograd.Autocast. It
// takes two collectives forward, of at most three numbers for each target, and none backward. It cannot be
// differentiated twice. Options: a tensor.Reduction, tensor.IgnoreIndex, tensor.LabelSmoothing, and a tensor.Weight of
// all classes, (classes), the same on all ranks. PyTorch: torch.distributed.tensor.parallel.loss_parallel.
func LossParallel(g *Group, logits, targets *tensor.Tensor, classes int, opts ...tensor.Option) *tensor.Tensor {
	const op = "LossParallel"
	return tensor.Tidy(func() *tensor.Tensor {
		f := &crossEntropy{g: g, classes: classes, reduction: tensor.ReduceMean, ignore: -100}
		if err := f.read(op, logits, targets, opts); err != nil {
			return tensor.Failed(err)
		}
		x := logits
		if f.dtype != tensor.Float64 && autograd.AutocastDType(x.Device().Type) != tensor.Float32 { // as CrossEntropy
			x, f.dtype = x.To(tensor.Float32), tensor.Float32
		}
		return apply(f, x, targets)
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
	weight    *tensor.Tensor // (classes), or nil
	dtype     tensor.DType   // of the logits
}

// read sets f from the arguments, which it checks.
func (f *crossEntropy) read(op string, logits, targets *tensor.Tensor, opts []tensor.Option) error {
	if err := f.g.check(op); err != nil {
		return err
	}
	for _, o := range opts {
		if o == nil {
			return refuse.NilOption(op)
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
		case "Weight":
			f.weight, ok = value.(*tensor.Tensor)
			if err := refuse.Unusable(op, "Weight", f.weight); err != nil {
				return err
			}
		default:
			return refuse.Option(op, name, []string{"Reduction", "IgnoreIndex", "LabelSmoothing", "Weight"})
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
	if _, last := chunk(f.classes, f.g.size, f.g.size-1); last < 1 { // on all ranks
		return refuse.Error(op, tensor.ErrArgument, "%d classes cannot be divided among %d ranks", f.classes, f.g.size)
	}
	if _, n := chunk(f.classes, f.g.size, f.g.rank); logits.Size(f.dim) != n {
		return refuse.Error(op, tensor.ErrArgument, "rank %d of %d has %d of %d classes, got logits of shape %v", f.g.rank, f.g.size, n, f.classes, shape)
	}
	if want := slices.Delete(slices.Clone(shape), f.dim, f.dim+1); !slices.Equal(targets.Shape(), want) {
		return refuse.Error(op, tensor.ErrArgument, "logits of shape %v need targets of shape %v, got %v", shape, want, targets.Shape())
	}
	if w := f.weight; w != nil && (!w.DType().IsFloat() || !slices.Equal(w.Shape(), []int{f.classes}) || w.RequiresGrad()) {
		return refuse.Error(op, tensor.ErrArgument, "Weight must be floating-point, of shape [%d] and without a gradient, got %v of shape %v",
			f.classes, w.DType(), w.Shape())
	}
	return inRange(op, "a target", targets.MaskedFill(targets.Eq(f.ignore), 0), f.classes)
}

// Forward computes, with w for the weights of the classes or 1, s for the smoothing, C for the number of classes, t for a target
// and Z for the sum of all exponentials:
//
//	loss = a log Z - (1-s) w_t x_t - s/C Σ w_c x_c, a = (1-s) w_t + s/C Σ w_c
//
// It saves the exponentials of this rank's logits, Z, which targets are among its classes, the factors of the rows in the
// gradient and, with weights, a, w_t and this rank's w.
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
	targets = targets.Unsqueeze(f.dim)
	ignored := targets.Eq(f.ignore)
	first, n := chunk(f.classes, f.g.size, f.g.rank)
	own, other := localize(targets, first, n)
	other = other.LogicalOr(ignored)
	share := f.smoothing / float64(f.classes)
	var a, ofTargets, ofClasses *tensor.Tensor // nil without weights
	if f.weight != nil {
		w := f.weight.Detach().To(x.DType())
		ofTargets = w.Take(targets.MaskedFill(ignored, 0))
		shape := slices.Repeat([]int{1}, x.Dim())
		shape[f.dim] = n
		ofClasses = w.Narrow(0, first, n).Reshape(shape...)
		a = ofTargets.Mul(1 - f.smoothing).Add(w.Sum().Mul(share))
	}
	sums := []*tensor.Tensor{nil, x.Gather(f.dim, own).MaskedFill(other, 0)}
	if f.smoothing > 0 {
		sums = append(sums, times(x, ofClasses).Sum(kept...))
	}
	exp := x.Exp_()
	sums[0] = exp.Sum(kept...)
	all := tensor.Cat(sums, tensor.Dim(f.dim)).Contiguous()
	if err := f.g.AllReduce(context.Background(), all, Sum); err != nil {
		return nil, err
	}
	total := all.Narrow(f.dim, 0, 1)
	loss := times(total.Log(), a).Sub(times(all.Narrow(f.dim, 1, 1), ofTargets).Mul(1 - f.smoothing))
	if f.smoothing > 0 {
		loss = loss.Sub(all.Narrow(f.dim, 2, 1).Mul(share))
	}
	loss = loss.MaskedFill(ignored, 0)
	factor := ignored.LogicalNot().To(x.DType())
	switch f.reduction {
	case tensor.ReduceNone:
		loss = loss.SqueezeDim(f.dim)
	case tensor.ReduceSum:
		loss = loss.Sum()
	default:
		weight := times(factor, ofTargets).Sum()
		loss = loss.Sum().Div(weight)
		factor = factor.Div(weight).MaskedFill(ignored, 0) // with no target the loss is NaN and its gradient 0
	}
	ctx.SaveForBackward(exp, total, own, other, factor, a, ofTargets, ofClasses)
	return one(loss.To(f.dtype)), nil
}

func (f *crossEntropy) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if tensor.GradEnabled() {
		return nil, refuse.Error("LossParallel", tensor.ErrNotImplemented, "the loss cannot be differentiated twice")
	}
	saved := ctx.Saved()
	exp, total, own, other, factor := saved[0], saved[1], saved[2], saved[3], saved[4]
	a, ofTargets, ofClasses := saved[5], saved[6], saved[7]
	g := grads[0].To(exp.DType())
	if f.reduction == tensor.ReduceNone {
		g = g.Unsqueeze(f.dim)
	}
	here := times(other.LogicalNot().To(exp.DType()), ofTargets)
	gx := times(exp.Div(total), a).ScatterAdd_(f.dim, own, here.Mul(f.smoothing-1))
	switch share := f.smoothing / float64(f.classes); {
	case share > 0 && ofClasses != nil:
		gx = gx.Sub_(ofClasses.Mul(share))
	case share > 0:
		gx = gx.Sub_(share)
	}
	return []*tensor.Tensor{gx.Mul_(factor.Mul(g)).To(f.dtype), nil}, nil
}

// times returns t times w, or t if w is nil.
func times(t, w *tensor.Tensor) *tensor.Tensor {
	if w == nil {
		return t
	}
	return t.Mul(w)
}

package nn

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// AdaptiveLogSoftmaxWithLoss is a softmax over many classes, ordered by falling frequency (Grave et al. 2017): Head scores the
// most frequent classes and the clusters of the others, and Tail has a narrower projection for each cluster. Its state has
// PyTorch's names. PyTorch: torch.nn.AdaptiveLogSoftmaxWithLoss.
type AdaptiveLogSoftmaxWithLoss struct {
	Head    *Linear
	Tail    []*Sequential
	Cutoffs []int // the first class of each cluster, and the number of classes
	err     error
}

// NewAdaptiveLogSoftmaxWithLoss returns an AdaptiveLogSoftmaxWithLoss of x with in features over the given number of classes.
// cutoffs are the first classes of the clusters, in increasing order, from 1 to classes-1. Cluster i projects to
// in / DivValue^(i+1) features, rounded down as by Python's //; with 0 of them its classes have equal probabilities.
// Options: DivValue (4 by default), HeadBias, DType, Device.
func NewAdaptiveLogSoftmaxWithLoss(in, classes int, cutoffs []int, opts ...Option) *AdaptiveLogSoftmaxWithLoss {
	b := build("NewAdaptiveLogSoftmaxWithLoss", opts, "DivValue", "HeadBias", "DType", "Device")
	b.sizes("in", in, "classes", classes)
	if len(cutoffs) == 0 || !slices.IsSorted(cutoffs) || cutoffs[0] < 1 || cutoffs[len(cutoffs)-1] > classes-1 || len(slices.Compact(slices.Clone(cutoffs))) != len(cutoffs) {
		b.fail("cutoffs must increase from at least 1 to at most classes-1, got %v with %d classes", cutoffs, classes)
	}
	if !(b.divValue > 0) || math.IsInf(b.divValue, 0) {
		b.fail("DivValue must be positive, got %v", b.divValue)
	}
	a := &AdaptiveLogSoftmaxWithLoss{Cutoffs: append(slices.Clone(cutoffs), classes)}
	if b.err == nil {
		b.noBias = !b.headBias
		a.Head = b.linear(in, cutoffs[0]+len(cutoffs))
		b.noBias = true
		for i := range cutoffs {
			if b.err != nil {
				break
			}
			width := int(floorDivide(float64(in), cshim.Pow(b.divValue, float64(i+1))))
			first := b.linear(in, width)
			a.Tail = append(a.Tail, NewSequential(first, b.linear(width, a.Cutoffs[i+1]-a.Cutoffs[i])))
		}
	}
	if err := b.done(); err != nil {
		return &AdaptiveLogSoftmaxWithLoss{err: err}
	}
	return a
}

// floorDivide is Python's x // y of positive numbers. Where x is just below a multiple of y, x / y would round up to
// it.
func floorDivide(x, y float64) float64 { return math.Round((x - math.Mod(x, y)) / y) }

// Err returns the error of the constructor that made a, or nil.
func (a *AdaptiveLogSoftmaxWithLoss) Err() error {
	if a == nil {
		return nilModule("AdaptiveLogSoftmaxWithLoss")
	}
	return a.err
}

// ready returns an error if a or x cannot be used.
func (a *AdaptiveLogSoftmaxWithLoss) ready(op string, ts ...*tensor.Tensor) error {
	if err := a.Err(); err != nil {
		return err
	}
	for _, t := range ts {
		if err := refuse.Unusable(op, "", t); err != nil {
			return err
		}
	}
	if a.Head == nil || len(a.Cutoffs) != len(a.Tail)+1 {
		return refuse.Error(op, tensor.ErrArgument, "the module is incomplete: use its constructor")
	}
	return nil
}

// logProbabilities is the log softmax of scores (N, C).
var logProbabilities = internal(func(y *tensor.Tensor) *tensor.Tensor { return y.LogSoftmax(1) })

// Forward returns the log probabilities (N) of the target classes (N), of dtype int64, for x (N, in), and the mean of their
// negatives, a scalar; without N, x is (in) and the target (). A target outside the classes is an error. It reads the targets
// of each cluster, which waits for the device.
func (a *AdaptiveLogSoftmaxWithLoss) Forward(x, target *tensor.Tensor) (output, loss *tensor.Tensor) {
	const op = "AdaptiveLogSoftmaxWithLoss"
	if err := a.ready(op, x, target); err != nil {
		return broken(err)
	}
	if d := target.Dim(); d > 1 || x.Dim() != d+1 || d == 1 && x.Size(0) != target.Size(0) {
		return broken(refuse.Error(op, tensor.ErrArgument, "x must be (N, in) and target (N), or (in) and (), got %v and %v", x.Shape(), target.Shape()))
	}
	if d := target.DType(); d != tensor.Int64 {
		return broken(refuse.Error(op, tensor.ErrArgument, "target must be int64, got %v", d))
	}
	out, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		x, target, single := x, target, target.Dim() == 0
		if single {
			x, target = x.Unsqueeze(0), target.Unsqueeze(0)
		}
		n, used := target.Size(0), 0
		y := x.NewZeros([]int{n})
		at := target.NewEmpty([]int{n}).Zero_()
		for i, high := range a.Cutoffs {
			low := 0
			if i > 0 {
				low = a.Cutoffs[i-1]
			}
			mask := target.Ge(low).LogicalAnd(target.Lt(high))
			rows := mask.NonZero().Flatten()
			if err := rows.Err(); err != nil {
				return nil, err
			}
			if rows.Numel() == 0 {
				continue
			}
			used += rows.Numel()
			local := target.IndexSelect(0, rows)
			if i == 0 {
				at = at.IndexCopy(0, rows, local)
				continue
			}
			class := local.Sub(low).Unsqueeze(1)
			cluster := Pipe(x.IndexSelect(0, rows), a.Tail[i-1], logProbabilities, internal(func(y *tensor.Tensor) *tensor.Tensor { return y.Gather(1, class) }))
			at = at.IndexFill(0, rows, a.Cutoffs[0]+i-1)
			y = y.IndexCopy(0, rows, cluster.SqueezeDim(1))
		}
		if used != n {
			return nil, refuse.Error(op, tensor.ErrArgument, "targets must be in [0, %d]", a.Cutoffs[len(a.Cutoffs)-1]-1)
		}
		y = y.Add(Pipe(x, a.Head, logProbabilities, internal(func(y *tensor.Tensor) *tensor.Tensor { return y.Gather(1, at.Unsqueeze(1)) })).SqueezeDim(1))
		loss := y.Neg().Mean()
		if single {
			y = y.SqueezeDim(0)
		}
		return []*tensor.Tensor{y, loss}, loss.Err()
	})
	if err != nil {
		return broken(err)
	}
	return out[0], out[1]
}

// LogProb returns the log probabilities (N, classes) of all classes for x (N, in). PyTorch:
// AdaptiveLogSoftmaxWithLoss.log_prob.
func (a *AdaptiveLogSoftmaxWithLoss) LogProb(x *tensor.Tensor) *tensor.Tensor {
	const op = "LogProb"
	if err := a.ready(op, x); err != nil {
		return tensor.Failed(err)
	}
	if x.Dim() != 2 {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (N, in), got shape %v", x.Shape())
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		head := Pipe(x, a.Head, logProbabilities)
		short := a.Cutoffs[0]
		parts := []*tensor.Tensor{head.Narrow(1, 0, short)}
		for i, tail := range a.Tail {
			cluster := internal(func(y *tensor.Tensor) *tensor.Tensor { return y.Add(head.Narrow(1, short+i, 1)) })
			parts = append(parts, Pipe(x, tail, logProbabilities, cluster))
		}
		return tensor.Cat(parts, tensor.Dim(1)).To(x.DType())
	})
}

// Predict returns the class (N), int64, with the highest probability for each row of x (N, in). PyTorch:
// AdaptiveLogSoftmaxWithLoss.predict.
func (a *AdaptiveLogSoftmaxWithLoss) Predict(x *tensor.Tensor) *tensor.Tensor {
	return tidy(func(*tensor.Scope) *tensor.Tensor { return a.LogProb(x).ArgMax(tensor.Dim(1)) })
}

// LinearCrossEntropy returns CrossEntropy of the logits x weight^T + bias for x (N, in) or (in), weight (C, in) and
// bias (C) or nil. For x (N, in), weight may be (C, d1, ..., in) and bias (C, d1, ...); the logits are then (N, C,
// d1, ...). If rows is above 0, it computes the loss of that many rows of x at a time, and again in the backward pass,
// so that the logits of all rows never exist at once: with many classes they are the largest tensor of a model. Targets
// and options are those of CrossEntropy; tensor.ReduceNone needs rows 0, and a tensor.Weight must live until the
// backward pass. PyTorch: torch.nn.functional.linear_cross_entropy, whose LinearCrossEntropyOptions choose the chunks.
func LinearCrossEntropy(x, weight, bias, targets *tensor.Tensor, rows int, opts ...tensor.Option) *tensor.Tensor {
	const op = "LinearCrossEntropy"
	if bad := firstUnusable(op, append([]*tensor.Tensor{x, weight, targets}, tensorsOf(bias)...)...); bad != nil {
		return bad
	}
	if err := acceptable(op, opts, []string{"Reduction", "Weight", "IgnoreIndex", "LabelSmoothing"}); err != nil {
		return tensor.Failed(err)
	}
	shape := weight.Shape()
	out := shape[:max(len(shape)-1, 0)] // C, d1, ...
	if d := x.Dim(); d < 1 || d > 2 || len(out) < 1 || len(out) > 1 && d == 1 || x.Size(-1) != shape[len(out)] {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (N, in) or (in) and weight (C, in), or (C, d1, ..., in) for x (N, in), got %v and %v", x.Shape(), shape)
	}
	if bias != nil && !slices.Equal(bias.Shape(), out) {
		return refuse.Tensor(op, tensor.ErrArgument, "bias must have shape %v, got %v", out, bias.Shape())
	}
	logits := func(x, weight, bias *tensor.Tensor) *tensor.Tensor {
		if len(out) == 1 {
			return x.Linear(weight, bias)
		}
		if bias != nil {
			bias = bias.Flatten()
		}
		return x.Linear(weight.Flatten(tensor.EndDim(-2)), bias).Reshape(append([]int{x.Size(0)}, out...)...)
	}
	if rows < 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "rows must be at least 0, got %d", rows)
	}
	if rows == 0 || x.Dim() == 1 || x.Size(0) <= rows {
		return tidy(func(*tensor.Scope) *tensor.Tensor { return logits(x, weight, bias).CrossEntropy(targets, opts...) })
	}
	if d := targets.Dim(); d < 1 || targets.Size(0) != x.Size(0) {
		return refuse.Tensor(op, tensor.ErrArgument, "targets must have %d rows as x has, got shape %v", x.Size(0), targets.Shape())
	}
	each := []tensor.Option{tensor.ReduceNone}
	reduction, ignore := tensor.ReduceMean, -100
	var class *tensor.Tensor
	for _, o := range opts {
		name, value := tensor.OptionValue(o)
		switch name {
		case "Reduction":
			reduction, _ = value.(tensor.Reduction)
			continue
		case "Weight":
			class, _ = value.(*tensor.Tensor)
		case "IgnoreIndex":
			ignore, _ = value.(int)
		}
		each = append(each, o)
	}
	if err := reductionError(op, reduction); err != nil {
		return tensor.Failed(err)
	}
	if reduction == tensor.ReduceNone {
		return refuse.Tensor(op, tensor.ErrArgument, "ReduceNone needs rows 0")
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		var total *tensor.Tensor
		var dtype tensor.DType
		for at := 0; at < x.Size(0); at += rows {
			n := min(rows, x.Size(0)-at)
			part := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				return logits(in[0], in[1], append(in[3:], nil)[0]).CrossEntropy(in[2], each...)
			}, append([]*tensor.Tensor{x.Narrow(0, at, n), weight, targets.Narrow(0, at, n)}, tensorsOf(bias)...)...)
			dtype = part.DType()
			sum := dtype
			if dtype == tensor.Float16 || dtype == tensor.BFloat16 {
				sum = tensor.Float32 // 16 bits would lose the last rows of many, or overflow
			}
			part = part.Sum(sum)
			if total == nil {
				total = part
			} else {
				total = total.Add(part)
			}
			if err := total.Err(); err != nil {
				return tensor.Failed(err)
			}
		}
		switch {
		case reduction != tensor.ReduceMean:
		case targets.DType().IsFloat():
			total = total.Div(x.Size(0) * product(out[1:]))
		case class == nil:
			total = total.Div(targets.Ne(ignore).Sum())
		default:
			kept := targets.Ne(ignore)
			total = total.Div(class.Detach().IndexSelect(0, targets.Mul(kept).Flatten()).Mul(kept.Flatten()).Sum(total.DType()))
		}
		return total.To(dtype)
	})
}

// LinearCrossEntropyLoss is a LinearCrossEntropy with a linear layer of its own. Its state has PyTorch's names. PyTorch:
// torch.nn.LinearCrossEntropyLoss.
type LinearCrossEntropyLoss struct {
	Loss   *Loss   `nn:"."` // CrossEntropyLoss
	Linear *Linear // in to the number of classes
	Rows   int     // how many rows are computed at a time; 0 for all. PyTorch: LinearCrossEntropyOptions
	err    error
}

// NewLinearCrossEntropyLoss returns a LinearCrossEntropyLoss of x with in features over the given number of classes. Options:
// HeadBias (a bias of the linear layer), DType, Device; loss are the options of CrossEntropy.
func NewLinearCrossEntropyLoss(in, classes int, opts []Option, loss ...tensor.Option) *LinearCrossEntropyLoss {
	b := build("NewLinearCrossEntropyLoss", opts, "HeadBias", "DType", "Device")
	b.sizes("in", in, "classes", classes)
	l := &LinearCrossEntropyLoss{}
	if b.err == nil {
		l.Loss = NewCrossEntropyLoss(loss...)
		b.part(l.Loss)
	}
	if w := l.Loss; b.err == nil && w.Weight != nil && !slices.Equal(w.Weight.Shape(), []int{classes}) {
		b.fail("Weight must have shape [%d], got %v", classes, w.Weight.Shape())
	}
	for _, o := range loss {
		if name, value := tensor.OptionValue(o); name == "LabelSmoothing" && b.err == nil {
			if v, ok := value.(float64); ok && !(v >= 0 && v <= 1) {
				b.fail("LabelSmoothing must be in [0, 1], got %v", v)
			}
		}
	}
	b.noBias = !b.headBias
	l.Linear = b.linear(in, classes)
	if err := b.done(); err != nil {
		return &LinearCrossEntropyLoss{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *LinearCrossEntropyLoss) Err() error {
	if l == nil {
		return nilModule("LinearCrossEntropyLoss")
	}
	return l.err
}

// Forward returns the loss of x (N, in) and targets (N), class indices of dtype int64, or (N, C), probabilities.
func (l *LinearCrossEntropyLoss) Forward(x, targets *tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	if l.Linear == nil || l.Loss == nil {
		return noModule("LinearCrossEntropyLoss")
	}
	opts := l.Loss.opts
	if l.Loss.Weight != nil {
		opts = append(slices.Clip(opts), tensor.Weight(l.Loss.Weight))
	}
	return LinearCrossEntropy(x, l.Linear.Weight, l.Linear.Bias, targets, l.Rows, opts...)
}

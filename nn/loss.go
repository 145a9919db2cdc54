package nn

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// The loss functions that compare x with a target elementwise do not broadcast: another shape is an error
// (docs/decisions/0016-losses-do-not-broadcast.md). tensor.ReduceMean is the default reduction; tensor.ReduceSum adds the
// losses of the elements, and tensor.ReduceNone returns them.

// CrossEntropy returns the cross entropy of logits (N, C, *) and targets, which are class indices (N, *) of dtype int64
// or probabilities of the logits' shape. By default it returns the mean, a scalar. Options: a tensor.Reduction,
// tensor.Weight, tensor.IgnoreIndex, tensor.LabelSmoothing. PyTorch: torch.nn.functional.cross_entropy.
func CrossEntropy(logits, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logits.CrossEntropy(targets, opts...)
}

// NLLLoss returns the negative log likelihood of the target classes (N, *), of dtype int64, under log probabilities
// (N, C, *). Options: a tensor.Reduction, tensor.Weight, tensor.IgnoreIndex. PyTorch: torch.nn.functional.nll_loss.
func NLLLoss(logProbs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.NLLLoss(targets, opts...)
}

// MSELoss returns the mean of (x-target)². Both have the same shape. With a tensor.Weight of this shape, the mean is that
// of the weighted squares, divided by the sum of the weights. Options: a tensor.Reduction, tensor.Weight. PyTorch:
// torch.nn.functional.mse_loss.
func MSELoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	weight, rest := weightOf(opts)
	if weight == nil {
		return x.MSELoss(target, rest...)
	}
	return weighted("MSELoss", x, target, weight, (*tensor.Tensor).MSELoss, rest)
}

// L1Loss returns the mean of |x-target|. Both have the same shape. With a tensor.Weight of this shape, the mean is that of
// the weighted differences, divided by the sum of the weights. Options: a tensor.Reduction, tensor.Weight. PyTorch:
// torch.nn.functional.l1_loss.
func L1Loss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	weight, rest := weightOf(opts)
	if weight == nil {
		return x.L1Loss(target, rest...)
	}
	return weighted("L1Loss", x, target, weight, (*tensor.Tensor).L1Loss, rest)
}

// weightOf returns the tensor of the last option tensor.Weight, or nil, and the other options.
func weightOf(opts []tensor.Option) (weight *tensor.Tensor, rest []tensor.Option) {
	for _, o := range opts {
		if name, value := tensor.OptionValue(o); name == "Weight" {
			weight, _ = value.(*tensor.Tensor)
			continue
		}
		rest = append(rest, o)
	}
	return weight, rest
}

// weighted returns the loss f of the elements times weight, reduced.
func weighted(op string, x, target, weight *tensor.Tensor, f func(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor, opts []tensor.Option) *tensor.Tensor {
	if bad := firstUnusable(op, x, target, weight); bad != nil {
		return bad
	}
	if a, b := x.Shape(), weight.Shape(); !slices.Equal(a, b) {
		return refuse.Tensor(op, tensor.ErrArgument, "x and Weight must have the same shape, got %v and %v", a, b)
	}
	s := lossOptions{reduction: tensor.ReduceMean}
	for _, o := range opts {
		if r, ok := o.(tensor.Reduction); ok {
			s.reduction = r
		}
	}
	if err := reductionError(op, s.reduction); err != nil {
		return tensor.Failed(err)
	}
	return tidyAs(op, func(*tensor.Scope) *tensor.Tensor {
		losses := f(x, target, append(opts, tensor.ReduceNone)...)
		loss := free.After(losses.Mul(weight), losses)
		if s.reduction == tensor.ReduceMean && op != "HuberLoss" { // PyTorch divides HuberLoss's by the number of elements
			return loss.Sum().Div(weight.Sum())
		}
		return s.reduce(loss)
	})
}

// SmoothL1Loss returns the mean of the smooth L1 loss: quadratic where |x-target| is below tensor.Beta (1 by default)
// and linear above. Both have the same shape. Options: tensor.Beta, a tensor.Reduction. PyTorch:
// torch.nn.functional.smooth_l1_loss.
func SmoothL1Loss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.SmoothL1Loss(target, opts...)
}

// BCELoss returns the binary cross entropy of probabilities and targets, which have the same shape and values in [0,
// 1]. Options: tensor.Weight, a tensor.Reduction. PyTorch: torch.nn.functional.binary_cross_entropy.
func BCELoss(probs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return probs.BinaryCrossEntropy(targets, opts...)
}

// BCEWithLogitsLoss returns BCELoss of the sigmoid of logits, computed in a numerically stable way. Options:
// tensor.Weight, tensor.PosWeight, a tensor.Reduction. PyTorch: torch.nn.functional.binary_cross_entropy_with_logits.
func BCEWithLogitsLoss(logits, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logits.BinaryCrossEntropyWithLogits(targets, opts...)
}

// KLDivLoss returns the Kullback-Leibler divergence of targets from logProbs, averaged over all elements. Targets are
// probabilities, or their logarithms with tensor.LogTarget(true). For the mathematical mean over a batch of N,
// PyTorch's "batchmean", use tensor.ReduceSum and divide by N. PyTorch: torch.nn.functional.kl_div.
func KLDivLoss(logProbs, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.KLDiv(targets, opts...)
}

// HuberLoss returns the mean of the Huber loss: (x-target)²/2 where |x-target| is below tensor.Delta (1 by default) and
// Delta*(|x-target|-Delta/2) above. Both have the same shape. A tensor.Weight of this shape multiplies the losses of the
// elements; the mean is divided by their number, not by the weights. Options: tensor.Delta, a tensor.Reduction,
// tensor.Weight. PyTorch: torch.nn.functional.huber_loss.
func HuberLoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	weight, rest := weightOf(opts)
	if weight == nil {
		return x.HuberLoss(target, rest...)
	}
	return weighted("HuberLoss", x, target, weight, (*tensor.Tensor).HuberLoss, rest)
}

// PoissonNLLLoss returns the negative log likelihood of targets under Poisson distributions whose means are exp(x), or x
// with tensor.LogInput(false). Both have the same shape. Options: tensor.LogInput, tensor.FullTerm, tensor.Eps, a
// tensor.Reduction. PyTorch: torch.nn.functional.poisson_nll_loss.
func PoissonNLLLoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.PoissonNLLLoss(target, opts...)
}

// HingeEmbeddingLoss returns the mean of x where target is 1 and of max(0, Margin-x) where it is -1. Both have the same
// shape. Options: tensor.Margin (1 by default), a tensor.Reduction. PyTorch: torch.nn.functional.hinge_embedding_loss.
func HingeEmbeddingLoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.HingeEmbeddingLoss(target, opts...)
}

// SoftMarginLoss returns the mean of log(1+exp(-target*x)) for targets 1 and -1. Both have the same shape. Options: a
// tensor.Reduction. PyTorch: torch.nn.functional.soft_margin_loss.
func SoftMarginLoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x.SoftMarginLoss(target, opts...)
}

// MultiMarginLoss returns the mean multi-class hinge loss of scores (N, C) or (C) and classes (N) or (), of dtype int64.
// The mean or sum of an empty batch is an error. Options: tensor.P (1, the default, or 2), tensor.Margin (1 by
// default), tensor.Weight (C), a tensor.Reduction. PyTorch: torch.nn.functional.multi_margin_loss.
func MultiMarginLoss(scores, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return scores.MultiMarginLoss(targets, opts...)
}

// MultiLabelMarginLoss returns the mean multi-label hinge loss of scores (N, C) or (C) and the classes that apply, of the
// same shape and dtype int64: those before the first -1 in each row. The mean or sum of an empty batch is an error.
// Options: a tensor.Reduction. PyTorch: torch.nn.functional.multilabel_margin_loss.
func MultiLabelMarginLoss(scores, targets *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return scores.MultilabelMarginLoss(targets, opts...)
}

// MarginRankingLoss returns the mean of max(0, -target*(x1-x2)+Margin): a target of 1 says that x1 should be greater,
// and -1 that x2 should. All have the same shape. Options: tensor.Margin (0 by default), a tensor.Reduction. PyTorch:
// torch.nn.functional.margin_ranking_loss.
func MarginRankingLoss(x1, x2, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x1.MarginRankingLoss(x2, target, opts...)
}

// CosineEmbeddingLoss returns the mean of 1-cos(x1, x2) where target is 1 and of max(0, cos(x1, x2)-Margin) where it is
// -1. x1 and x2 are (N, D) and target (N), or (D) and (). Options: tensor.Margin (0 by default), a tensor.Reduction.
// PyTorch: torch.nn.functional.cosine_embedding_loss.
func CosineEmbeddingLoss(x1, x2, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return x1.CosineEmbeddingLoss(x2, target, opts...)
}

// TripletMarginLoss returns the mean of max(0, d(anchor, positive)-d(anchor, negative)+Margin), where d is the P-norm
// of the difference along the last dimension. The shapes are (N, D) or (D). With tensor.Swap(true), d(positive, negative)
// replaces a larger d(anchor, negative). Options: tensor.Margin (1 by default, positive), tensor.P (2 by default),
// tensor.Eps, tensor.Swap, a tensor.Reduction. PyTorch: torch.nn.functional.triplet_margin_loss.
func TripletMarginLoss(anchor, positive, negative *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	return anchor.TripletMarginLoss(positive, negative, opts...)
}

// numberOf returns the number of the last option of a name, otherwise if there is none.
func numberOf(opts []tensor.Option, option string, otherwise float64) float64 {
	for _, o := range opts {
		if name, value := tensor.OptionValue(o); name == option {
			if v, ok := number(value); ok { // the caller refuses others
				otherwise = v
			}
		}
	}
	return otherwise
}

// positiveMargin returns an error if the option Margin is not positive.
func positiveMargin(op string, opts []tensor.Option) error {
	margin := numberOf(opts, "Margin", 1)
	if !(margin > 0) {
		return refuse.Error(op, tensor.ErrArgument, "Margin must be positive, got %v", margin)
	}
	return nil
}

// CTCLoss returns the connectionist temporal classification loss of log probabilities (T, N, C) and targets, each divided by
// the length of its target, averaged over the batch. The targets are integers, (N, S) with any padding at the end of a
// row, or all one after the other in one dimension; inputLengths and targetLengths have N numbers. Without a batch, the
// log probabilities are (T, C) and the target is (S). Options: tensor.Blank (0 by default), tensor.ZeroInfinity, a
// tensor.Reduction. PyTorch: torch.nn.functional.ctc_loss.
func CTCLoss(logProbs, targets *tensor.Tensor, inputLengths, targetLengths []int, opts ...tensor.Option) *tensor.Tensor {
	return logProbs.CTCLoss(targets, inputLengths, targetLengths, opts...)
}

// lossOptions are the options of losses that are made of several operators.
type lossOptions struct {
	reduction   tensor.Reduction
	weight      *tensor.Tensor
	eps, margin float64
	full, swap  bool
}

// read sets s from opts, which may have the names in known.
func (s *lossOptions) read(op string, opts []tensor.Option, known ...string) error {
	if err := acceptable(op, opts, known); err != nil {
		return err
	}
	for _, o := range opts {
		name, value := tensor.OptionValue(o)
		var ok bool
		switch name {
		case "Reduction":
			s.reduction, ok = value.(tensor.Reduction)
		case "Weight":
			s.weight, ok = value.(*tensor.Tensor)
		case "FullTerm":
			s.full, ok = value.(bool)
		case "Swap":
			s.swap, ok = value.(bool)
		case "Eps":
			s.eps, ok = number(value)
		case "Margin":
			s.margin, ok = number(value)
		}
		if !ok {
			return refuse.Error(op, tensor.ErrArgument, "option %s has the value %v of type %T", name, value, value)
		}
	}
	return reductionError(op, s.reduction)
}

// reductionError returns nil if r exists.
func reductionError(op string, r tensor.Reduction) error {
	switch r {
	case tensor.ReduceMean, tensor.ReduceSum, tensor.ReduceNone:
		return nil
	}
	return refuse.Error(op, tensor.ErrArgument, "reduction %d does not exist", r)
}

// acceptable returns an error for an option whose name is not in known.
func acceptable(op string, opts []tensor.Option, known []string) error {
	for _, o := range opts {
		name, _ := tensor.OptionValue(o)
		if name == "nil" {
			return refuse.NilOption(op)
		}
		if err := refuse.Option(op, name, known); err != nil {
			return err
		}
	}
	return nil
}

// number returns a real number that is finite.
func number(v any) (float64, bool) {
	var f float64
	switch v := v.(type) {
	case float64:
		f = v
	case float32:
		f = float64(v)
	case int:
		f = float64(v)
	default:
		return 0, false
	}
	return f, !math.IsNaN(f) && !math.IsInf(f, 0)
}

// reduce reduces the losses of the elements.
func (s *lossOptions) reduce(loss *tensor.Tensor) *tensor.Tensor {
	switch s.reduction {
	case tensor.ReduceMean:
		return loss.Mean()
	case tensor.ReduceSum:
		return loss.Sum()
	}
	return loss
}

// firstUnusable returns a failed tensor if one of ts cannot be an operand, and nil otherwise.
func firstUnusable(op string, ts ...*tensor.Tensor) *tensor.Tensor {
	for _, t := range ts {
		if bad := unusable(op, t); bad != nil {
			return bad
		}
	}
	return nil
}

// sameShape returns a failed tensor if x and target have different shapes (docs/decisions/0016).
func sameShape(op string, x, target *tensor.Tensor) *tensor.Tensor {
	if a, b := x.Shape(), target.Shape(); !slices.Equal(a, b) {
		return refuse.Tensor(op, tensor.ErrArgument, "x and target must have the same shape, got %v and %v", a, b)
	}
	return nil
}

// GaussianNLLLoss returns the mean negative log likelihood of targets under normal distributions with the means x and the
// given variances, which are at least Eps. x and target have the same shape; variance has x's shape, or x's without the
// last dimension, or x's with one dimension of size 1. A negative variance is an error. Options: tensor.FullTerm (adds
// log(2π)/2), tensor.Eps (1e-6 by default), a tensor.Reduction. PyTorch: torch.nn.functional.gaussian_nll_loss.
func GaussianNLLLoss(x, target, variance *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	const op = "GaussianNLLLoss"
	s := lossOptions{reduction: tensor.ReduceMean, eps: 1e-6}
	if err := s.read(op, opts, "Reduction", "FullTerm", "Eps"); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, x, target, variance); bad != nil {
		return bad
	}
	if bad := sameShape(op, x, target); bad != nil {
		return bad
	}
	return tidyAs(op, func(*tensor.Scope) *tensor.Tensor {
		below := variance.Lt(0)
		if negative, err := tensor.Item[bool](free.After(below.Any(), below)); err != nil {
			return tensor.Failed(err)
		} else if negative {
			return refuse.Tensor(op, tensor.ErrArgument, "a variance is negative")
		}
		shape, v := x.Shape(), variance.Shape()
		if !slices.Equal(shape, v) {
			differ, fits := 0, len(v) == len(shape)
			for i := 0; fits && i < len(v); i++ {
				if v[i] != shape[i] {
					differ++
					fits = v[i] == 1 // any other size would broadcast x
				}
			}
			switch {
			case len(shape) > 0 && slices.Equal(shape[:len(shape)-1], v):
				variance = variance.Unsqueeze(-1)
			case !fits || differ != 1:
				return refuse.Tensor(op, tensor.ErrArgument, "variance has shape %v, x %v", v, shape)
			}
		}
		// The clamp is not part of the graph, as in PyTorch.
		variance = variance.Clone()
		if err := autograd.NoGrad(func() error { return variance.ClampMin_(s.eps).Err() }); err != nil {
			return tensor.Failed(err)
		}
		log, difference := variance.Log(), x.Sub(target)
		square := free.After(difference.Pow(2), difference)
		quotient := free.After(square.Div(variance), square)
		sum := free.After(log.Add(quotient), log, quotient)
		loss := free.After(sum.Mul(0.5), sum)
		if s.full {
			loss = free.After(loss.Add(0.5*math.Log(2*math.Pi)), loss)
		}
		return s.reduce(loss)
	})
}

// MultiLabelSoftMarginLoss returns the mean over the batch of the binary cross entropy of sigmoid(x) and targets 0 and 1,
// averaged over the classes. x and target are (N, C) or (C). Options: tensor.Weight (C), a tensor.Reduction. PyTorch:
// torch.nn.functional.multilabel_soft_margin_loss.
func MultiLabelSoftMarginLoss(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	const op = "MultiLabelSoftMarginLoss"
	s := lossOptions{reduction: tensor.ReduceMean}
	if err := s.read(op, opts, "Reduction", "Weight"); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, x, target); bad != nil {
		return bad
	}
	if bad := sameShape(op, x, target); bad != nil {
		return bad
	}
	if x.Dim() == 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (N, C) or (C), got a scalar")
	}
	return tidyAs(op, func(*tensor.Scope) *tensor.Tensor {
		log := x.LogSigmoid()
		with := free.After(target.Mul(log), log)
		rest, negative := target.RSub(1), x.Neg()
		log = free.After(negative.LogSigmoid(), negative)
		without := free.After(rest.Mul(log), rest, log)
		sum := free.After(with.Add(without), with, without)
		loss := free.After(sum.Neg(), sum)
		if s.weight != nil {
			loss = free.After(loss.Mul(s.weight), loss)
		}
		return s.reduce(loss.Sum(tensor.Dim(-1)).Div(x.Size(-1)))
	})
}

// TripletMarginWithDistanceLoss is TripletMarginLoss with another distance: a function of two tensors (N, D), or nil for
// the 2-norm of the difference. Like the Forward method of a [Layer], the function borrows its arguments. Options:
// tensor.Margin (1 by default, positive), tensor.Swap, a tensor.Reduction. PyTorch:
// torch.nn.functional.triplet_margin_with_distance_loss.
func TripletMarginWithDistanceLoss(anchor, positive, negative *tensor.Tensor, distance func(a, b *tensor.Tensor) *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	const op = "TripletMarginWithDistanceLoss"
	s := lossOptions{reduction: tensor.ReduceMean, margin: 1}
	if err := s.read(op, opts, "Reduction", "Margin", "Swap"); err != nil {
		return tensor.Failed(err)
	}
	if !(s.margin > 0) {
		return refuse.Tensor(op, tensor.ErrArgument, "Margin must be positive, got %v", s.margin)
	}
	if bad := firstUnusable(op, anchor, positive, negative); bad != nil {
		return bad
	}
	if a, p, n := anchor.Dim(), positive.Dim(), negative.Dim(); a != p || p != n {
		return refuse.Tensor(op, tensor.ErrArgument, "anchor, positive and negative must have the same number of dimensions, got %d, %d and %d", a, p, n)
	}
	if distance == nil {
		distance = func(a, b *tensor.Tensor) *tensor.Tensor { return a.PairwiseDistance(b) }
	}
	// The distances are the user's, so they are not freed here.
	near, far := distance(anchor, positive), distance(anchor, negative)
	var other *tensor.Tensor
	if s.swap {
		other = distance(positive, negative)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		if s.swap {
			far = far.Minimum(other)
		}
		return s.reduce(near.Add(s.margin).Sub(far).ClampMin(0))
	})
}

// Loss is a loss function with its options as a module; the constructors below make one for each loss. Its buffers are
// the tensors of the options tensor.Weight and tensor.PosWeight, which share storage with those given.
type Loss struct {
	Weight    *tensor.Tensor `nn:",buffer"`
	PosWeight *tensor.Tensor `nn:",buffer"`
	name      string
	inputs    int
	opts      []tensor.Option
	f         func(in []*tensor.Tensor, opts []tensor.Option) *tensor.Tensor `nn:"-"`
	err       error
}

func newLoss(name string, inputs int, f func([]*tensor.Tensor, []tensor.Option) *tensor.Tensor, opts []tensor.Option, known ...string) *Loss {
	b := build("New"+name, nil)
	b.note(acceptable("New"+name, opts, append([]string{"Reduction"}, known...)))
	l := &Loss{name: name, inputs: inputs, f: f}
	for _, o := range opts {
		if b.err != nil {
			break
		}
		option, value := tensor.OptionValue(o)
		t, ok := value.(*tensor.Tensor)
		switch {
		case ok && t == nil:
		case option == "Weight":
			l.Weight = b.share(t)
		case option == "PosWeight":
			l.PosWeight = b.share(t)
		default:
			l.opts = append(l.opts, o)
		}
	}
	if err := b.done(); err != nil {
		return &Loss{err: err}
	}
	return l
}

// share returns a buffer that shares t's storage.
func (b *builder) share(t *tensor.Tensor) *tensor.Tensor {
	b.note(refuse.Unusable(b.op, "", t))
	if b.err != nil {
		return nil
	}
	s := t.Detach()
	b.note(s.Err())
	if b.err == nil {
		b.made = append(b.made, s.Keep())
	}
	return s
}

// Err returns the error of the constructor that made l, or nil.
func (l *Loss) Err() error {
	if l == nil {
		return nilModule("Loss")
	}
	return l.err
}

// Forward returns the loss: a scalar, or the losses of the elements with tensor.ReduceNone. It takes the tensors that
// the loss function takes, usually a prediction and a target.
func (l *Loss) Forward(x *tensor.Tensor, more ...*tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	if l.f == nil {
		return refuse.Tensor("Loss", tensor.ErrArgument, "the module has no loss: use a constructor such as NewMSELoss")
	}
	if n := 1 + len(more); n != l.inputs {
		return refuse.Tensor(l.name, tensor.ErrArgument, "the loss takes %d tensors, got %d", l.inputs, n)
	}
	opts := l.opts[:len(l.opts):len(l.opts)]
	if l.Weight != nil {
		opts = append(opts, tensor.Weight(l.Weight))
	}
	if l.PosWeight != nil {
		opts = append(opts, tensor.PosWeight(l.PosWeight))
	}
	return l.f(append([]*tensor.Tensor{x}, more...), opts)
}

// of2 and of3 adapt loss functions of two and three tensors.
func of2(f func(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor) func([]*tensor.Tensor, []tensor.Option) *tensor.Tensor {
	return func(in []*tensor.Tensor, opts []tensor.Option) *tensor.Tensor { return f(in[0], in[1], opts...) }
}

func of3(f func(a, b, c *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor) func([]*tensor.Tensor, []tensor.Option) *tensor.Tensor {
	return func(in []*tensor.Tensor, opts []tensor.Option) *tensor.Tensor { return f(in[0], in[1], in[2], opts...) }
}

// NewL1Loss returns L1Loss as a module of two tensors. Options: a tensor.Reduction. PyTorch: torch.nn.L1Loss.
func NewL1Loss(opts ...tensor.Option) *Loss {
	return newLoss("L1Loss", 2, of2(L1Loss), opts)
}

// NewMSELoss returns MSELoss as a module of two tensors. Options: a tensor.Reduction. PyTorch: torch.nn.MSELoss.
func NewMSELoss(opts ...tensor.Option) *Loss {
	return newLoss("MSELoss", 2, of2(MSELoss), opts)
}

// NewCrossEntropyLoss returns CrossEntropy as a module of two tensors. Options: tensor.Weight, tensor.IgnoreIndex, tensor.LabelSmoothing, a tensor.Reduction. PyTorch: torch.nn.CrossEntropyLoss.
func NewCrossEntropyLoss(opts ...tensor.Option) *Loss {
	return newLoss("CrossEntropyLoss", 2, of2(CrossEntropy), opts, "Weight", "IgnoreIndex", "LabelSmoothing")
}

// NewNLLLoss returns NLLLoss as a module of two tensors. Options: tensor.Weight, tensor.IgnoreIndex, a tensor.Reduction. PyTorch: torch.nn.NLLLoss.
func NewNLLLoss(opts ...tensor.Option) *Loss {
	return newLoss("NLLLoss", 2, of2(NLLLoss), opts, "Weight", "IgnoreIndex")
}

// NewPoissonNLLLoss returns PoissonNLLLoss as a module of two tensors. Options: tensor.LogInput, tensor.FullTerm, tensor.Eps, a tensor.Reduction. PyTorch: torch.nn.PoissonNLLLoss.
func NewPoissonNLLLoss(opts ...tensor.Option) *Loss {
	return newLoss("PoissonNLLLoss", 2, of2(PoissonNLLLoss), opts, "LogInput", "FullTerm", "Eps")
}

// NewGaussianNLLLoss returns GaussianNLLLoss as a module of three tensors. Options: tensor.FullTerm, tensor.Eps, a tensor.Reduction. PyTorch: torch.nn.GaussianNLLLoss.
func NewGaussianNLLLoss(opts ...tensor.Option) *Loss {
	return newLoss("GaussianNLLLoss", 3, of3(GaussianNLLLoss), opts, "FullTerm", "Eps")
}

// NewKLDivLoss returns KLDivLoss as a module of two tensors. Options: tensor.LogTarget, a tensor.Reduction. PyTorch: torch.nn.KLDivLoss.
func NewKLDivLoss(opts ...tensor.Option) *Loss {
	return newLoss("KLDivLoss", 2, of2(KLDivLoss), opts, "LogTarget")
}

// NewBCELoss returns BCELoss as a module of two tensors. Options: tensor.Weight, a tensor.Reduction. PyTorch: torch.nn.BCELoss.
func NewBCELoss(opts ...tensor.Option) *Loss {
	return newLoss("BCELoss", 2, of2(BCELoss), opts, "Weight")
}

// NewBCEWithLogitsLoss returns BCEWithLogitsLoss as a module of two tensors. Options: tensor.Weight, tensor.PosWeight, a tensor.Reduction. PyTorch: torch.nn.BCEWithLogitsLoss.
func NewBCEWithLogitsLoss(opts ...tensor.Option) *Loss {
	return newLoss("BCEWithLogitsLoss", 2, of2(BCEWithLogitsLoss), opts, "Weight", "PosWeight")
}

// NewMarginRankingLoss returns MarginRankingLoss as a module of three tensors. Options: tensor.Margin, a tensor.Reduction. PyTorch: torch.nn.MarginRankingLoss.
func NewMarginRankingLoss(opts ...tensor.Option) *Loss {
	return newLoss("MarginRankingLoss", 3, of3(MarginRankingLoss), opts, "Margin")
}

// NewHingeEmbeddingLoss returns HingeEmbeddingLoss as a module of two tensors. Options: tensor.Margin, a tensor.Reduction. PyTorch: torch.nn.HingeEmbeddingLoss.
func NewHingeEmbeddingLoss(opts ...tensor.Option) *Loss {
	return newLoss("HingeEmbeddingLoss", 2, of2(HingeEmbeddingLoss), opts, "Margin")
}

// NewMultiLabelMarginLoss returns MultiLabelMarginLoss as a module of two tensors. Options: a tensor.Reduction. PyTorch: torch.nn.MultiLabelMarginLoss.
func NewMultiLabelMarginLoss(opts ...tensor.Option) *Loss {
	return newLoss("MultiLabelMarginLoss", 2, of2(MultiLabelMarginLoss), opts)
}

// NewHuberLoss returns HuberLoss as a module of two tensors. Options: tensor.Delta, a tensor.Reduction. PyTorch: torch.nn.HuberLoss.
func NewHuberLoss(opts ...tensor.Option) *Loss {
	return newLoss("HuberLoss", 2, of2(HuberLoss), opts, "Delta")
}

// NewSmoothL1Loss returns SmoothL1Loss as a module of two tensors. Options: tensor.Beta, a tensor.Reduction. PyTorch: torch.nn.SmoothL1Loss.
func NewSmoothL1Loss(opts ...tensor.Option) *Loss {
	return newLoss("SmoothL1Loss", 2, of2(SmoothL1Loss), opts, "Beta")
}

// NewSoftMarginLoss returns SoftMarginLoss as a module of two tensors. Options: a tensor.Reduction. PyTorch: torch.nn.SoftMarginLoss.
func NewSoftMarginLoss(opts ...tensor.Option) *Loss {
	return newLoss("SoftMarginLoss", 2, of2(SoftMarginLoss), opts)
}

// NewMultiLabelSoftMarginLoss returns MultiLabelSoftMarginLoss as a module of two tensors. Options: tensor.Weight, a tensor.Reduction. PyTorch: torch.nn.MultiLabelSoftMarginLoss.
func NewMultiLabelSoftMarginLoss(opts ...tensor.Option) *Loss {
	return newLoss("MultiLabelSoftMarginLoss", 2, of2(MultiLabelSoftMarginLoss), opts, "Weight")
}

// NewCosineEmbeddingLoss returns CosineEmbeddingLoss as a module of three tensors. Options: tensor.Margin, a tensor.Reduction. PyTorch: torch.nn.CosineEmbeddingLoss.
func NewCosineEmbeddingLoss(opts ...tensor.Option) *Loss {
	return newLoss("CosineEmbeddingLoss", 3, of3(CosineEmbeddingLoss), opts, "Margin")
}

// NewMultiMarginLoss returns MultiMarginLoss as a module of two tensors. Options: tensor.P, tensor.Margin, tensor.Weight, a tensor.Reduction. PyTorch: torch.nn.MultiMarginLoss.
func NewMultiMarginLoss(opts ...tensor.Option) *Loss {
	if p := numberOf(opts, "P", 1); p != 1 && p != 2 {
		return &Loss{err: refuse.Error("NewMultiMarginLoss", tensor.ErrArgument, "P must be 1 or 2, got %v", p)}
	}
	return newLoss("MultiMarginLoss", 2, of2(MultiMarginLoss), opts, "P", "Margin", "Weight")
}

// NewTripletMarginLoss returns TripletMarginLoss as a module of three tensors. Options: tensor.Margin, tensor.P, tensor.Eps, tensor.Swap, a tensor.Reduction. PyTorch: torch.nn.TripletMarginLoss.
func NewTripletMarginLoss(opts ...tensor.Option) *Loss {
	if err := positiveMargin("NewTripletMarginLoss", opts); err != nil {
		return &Loss{err: err}
	}
	return newLoss("TripletMarginLoss", 3, of3(TripletMarginLoss), opts, "Margin", "P", "Eps", "Swap")
}

// NewTripletMarginWithDistanceLoss returns TripletMarginWithDistanceLoss as a module of three tensors. Options:
// tensor.Margin, tensor.Swap, a tensor.Reduction. PyTorch: torch.nn.TripletMarginWithDistanceLoss.
func NewTripletMarginWithDistanceLoss(distance func(a, b *tensor.Tensor) *tensor.Tensor, opts ...tensor.Option) *Loss {
	if err := positiveMargin("NewTripletMarginWithDistanceLoss", opts); err != nil {
		return &Loss{err: err}
	}
	return newLoss("TripletMarginWithDistanceLoss", 3, func(in []*tensor.Tensor, opts []tensor.Option) *tensor.Tensor {
		return TripletMarginWithDistanceLoss(in[0], in[1], in[2], distance, opts...)
	}, opts, "Margin", "Swap")
}

// NewCTCLoss returns CTCLoss as a module of four tensors: the log probabilities, the targets, and the lengths of both as
// vectors of dtype int64. Options: tensor.Blank, tensor.ZeroInfinity, a tensor.Reduction. PyTorch: torch.nn.CTCLoss.
func NewCTCLoss(opts ...tensor.Option) *Loss {
	return newLoss("CTCLoss", 4, func(in []*tensor.Tensor, opts []tensor.Option) *tensor.Tensor {
		var lengths [2][]int
		for i := range lengths {
			if bad := unusable("CTCLoss", in[2+i]); bad != nil {
				return bad
			}
			numbers, err := tensor.Data[int64](in[2+i])
			if err != nil {
				return tensor.Failed(err)
			}
			for _, n := range numbers {
				lengths[i] = append(lengths[i], int(n))
			}
		}
		return CTCLoss(in[0], in[1], lengths[0], lengths[1], opts...)
	}, opts, "Blank", "ZeroInfinity")
}

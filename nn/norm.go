package nn

import (
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// LayerNorm normalizes x over its last dimensions, whose sizes are Shape. An x of shape (*, Shape...) gives the same
// shape. Weight and Bias have the shape Shape, or are nil. PyTorch: torch.nn.LayerNorm.
type LayerNorm struct {
	Weight, Bias *tensor.Tensor
	Shape        []int
	Eps          float64
	err          error
}

// NewLayerNorm returns a LayerNorm over a last dimension of the given width. Options: Eps (1e-5 by default), NoAffine,
// NoBias, DType, Device.
func NewLayerNorm(width int, opts ...Option) *LayerNorm {
	return newLayerNorm("NewLayerNorm", []int{width}, opts)
}

// NewLayerNormShape returns a LayerNorm over the last len(shape) dimensions. Options: those of NewLayerNorm.
func NewLayerNormShape(shape []int, opts ...Option) *LayerNorm {
	return newLayerNorm("NewLayerNormShape", shape, opts)
}

func newLayerNorm(op string, shape []int, opts []Option) *LayerNorm {
	b := build(op, opts, "Eps", "NoAffine", "NoBias", "DType", "Device")
	shape = b.shape(shape)
	l := &LayerNorm{Shape: shape, Eps: b.eps}
	if !b.noAffine {
		l.Weight = b.parameter(shape, fillWith(1))
		if !b.noBias {
			l.Bias = b.parameter(shape, fillWith(0))
		}
	}
	if err := b.done(); err != nil {
		return &LayerNorm{err: err}
	}
	return l
}

// shape copies and checks a normalized shape.
func (b *builder) shape(shape []int) []int {
	if len(shape) == 0 || len(shape) > 32 {
		b.fail("a shape of 1 to 32 dimensions is needed, got %v", shape)
	}
	shape = append([]int{}, shape...)
	for _, n := range shape {
		b.sizes("a size", n)
	}
	b.positiveEps()
	return shape
}

// Err returns the error of the constructor that made l, or nil.
func (l *LayerNorm) Err() error {
	if l == nil {
		return nilModule("LayerNorm")
	}
	return l.err
}

// Forward returns the normalized x.
func (l *LayerNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.LayerNorm(l.Shape, l.Weight, l.Bias, tensor.Eps(l.Eps))
}

// RMSNorm divides x by its root mean square over the last dimensions, whose sizes are Shape. An x of shape (*,
// Shape...) gives the same shape. PyTorch: torch.nn.RMSNorm.
type RMSNorm struct {
	Weight *tensor.Tensor
	Shape  []int
	Eps    float64 // 0 selects the dtype's machine epsilon
	err    error
}

// NewRMSNorm returns an RMSNorm over a last dimension of the given width. Options: Eps (by default the dtype's machine
// epsilon), NoAffine, DType, Device.
func NewRMSNorm(width int, opts ...Option) *RMSNorm {
	return newRMSNorm("NewRMSNorm", []int{width}, opts)
}

// NewRMSNormShape returns an RMSNorm over the last len(shape) dimensions. Options: those of NewRMSNorm.
func NewRMSNormShape(shape []int, opts ...Option) *RMSNorm {
	return newRMSNorm("NewRMSNormShape", shape, opts)
}

func newRMSNorm(op string, shape []int, opts []Option) *RMSNorm {
	b := build(op, append([]Option{Eps(0)}, opts...), "Eps", "NoAffine", "DType", "Device")
	shape = b.shape(shape)
	l := &RMSNorm{Shape: shape, Eps: b.eps}
	if !b.noAffine {
		l.Weight = b.parameter(shape, fillWith(1))
	}
	if err := b.done(); err != nil {
		return &RMSNorm{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *RMSNorm) Err() error {
	if l == nil {
		return nilModule("RMSNorm")
	}
	return l.err
}

// Forward returns the normalized x.
func (l *RMSNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	if l.Eps == 0 {
		return x.RMSNorm(l.Shape, l.Weight)
	}
	return x.RMSNorm(l.Shape, l.Weight, tensor.Eps(l.Eps))
}

// batchNorm is the common form of BatchNorm1d, BatchNorm2d and BatchNorm3d, and of InstanceNorm1d and its kin.
type batchNorm struct {
	Mode
	Weight, Bias      *tensor.Tensor
	RunningMean       *tensor.Tensor `nn:",buffer"`
	RunningVar        *tensor.Tensor `nn:",buffer"`
	NumBatchesTracked *tensor.Tensor `nn:",buffer"`
	Momentum, Eps     float64
	cumulative        bool
	channels          int
	err               error
	// overRanks, if set, normalizes in training in the place of the operator.
	overRanks normalize
}

// normalize normalizes the channels of x and updates the running statistics, of which all but x can be nil.
type normalize = func(x, weight, bias, runningMean, runningVar *tensor.Tensor, momentum, eps float64) *tensor.Tensor

func init() {
	// For dist.ConvertSyncBatchNorm.
	handle.SetBatchNorm = func(op string, model any, f normalize) (int, error) {
		for _, n := range NamedModules(model) {
			switch unparametrized(n.Module).(type) {
			case *Lazy[*BatchNorm1d], *Lazy[*BatchNorm2d], *Lazy[*BatchNorm3d]: // made ones are not listed
				return 0, refuse.Error(op, tensor.ErrArgument, "%q has not been made yet: call Forward first", n.Name)
			}
		}
		all := batchNorms(model)
		for _, b := range all {
			b.overRanks = f
		}
		return len(all), nil
	}
}

// batchNorms returns the BatchNorm1d, BatchNorm2d and BatchNorm3d of m.
func batchNorms(m any) (all []*batchNorm) {
	for _, n := range NamedModules(m) {
		switch b := unparametrized(n.Module).(type) {
		case *BatchNorm1d:
			all = append(all, (*batchNorm)(b))
		case *BatchNorm2d:
			all = append(all, (*batchNorm)(b))
		case *BatchNorm3d:
			all = append(all, (*batchNorm)(b))
		}
	}
	return all
}

func newBatchNorm(op string, channels int, opts []Option) *batchNorm {
	b := build(op, opts, "Momentum", "CumulativeAverage", "Eps", "NoAffine", "NoBias", "NoRunningStats", "DType", "Device")
	return b.batchNorm(channels, !b.noAffine, !b.noStats)
}

// newLazyInstanceNorm has PyTorch's defaults of a lazy InstanceNorm, which are those of a BatchNorm.
func newLazyInstanceNorm(op string, channels int, opts []Option) *batchNorm {
	b := build(op, opts, "Momentum", "Eps", "NoAffine", "NoBias", "NoRunningStats", "DType", "Device")
	return b.batchNorm(channels, !b.noAffine, !b.noStats)
}

func newInstanceNorm(op string, channels int, opts []Option) *batchNorm {
	b := build(op, opts, "Momentum", "Eps", "Affine", "NoBias", "RunningStats", "DType", "Device")
	return b.batchNorm(channels, b.affine, b.stats)
}

func (b *builder) batchNorm(channels int, affine, stats bool) *batchNorm {
	shape := b.shape([]int{channels})
	if !(b.momentum >= 0 && b.momentum <= 1) {
		b.fail("Momentum must be in [0, 1], got %v", b.momentum)
	}
	n := &batchNorm{Momentum: b.momentum, Eps: b.eps, cumulative: b.cumulative, channels: channels}
	if affine {
		n.Weight = b.parameter(shape, fillWith(1))
		if !b.noBias {
			n.Bias = b.parameter(shape, fillWith(0))
		}
	}
	if stats {
		n.RunningMean = b.tensor(shape, b.dtype, fillWith(0))
		n.RunningVar = b.tensor(shape, b.dtype, fillWith(1))
		n.NumBatchesTracked = b.tensor([]int{}, tensor.Int64, func(t *tensor.Tensor) *tensor.Tensor { return t.Zero_() })
	}
	if err := b.done(); err != nil {
		return &batchNorm{err: err}
	}
	return n
}

func (b *batchNorm) failure(op string) error {
	if b == nil {
		return nilModule(op)
	}
	return b.err
}

// step counts a batch and returns the weight of the new batch in the running statistics.
func (b *batchNorm) step() (float64, error) {
	if err := b.NumBatchesTracked.Add_(1).Err(); err != nil {
		return 0, err
	}
	if !b.cumulative {
		return b.Momentum, nil
	}
	n, err := b.NumBatchesTracked.Item()
	return 1 / n, err
}

// affine appends the options Weight and Bias to opts.
func (b *batchNorm) affine(opts []tensor.Option) []tensor.Option {
	if b.Weight != nil {
		opts = append(opts, tensor.Weight(b.Weight))
	}
	if b.Bias != nil {
		opts = append(opts, tensor.Bias(b.Bias))
	}
	return opts
}

// batch normalizes over all samples of a batch. x has least to most dimensions.
func (b *batchNorm) batch(op string, least, most int, form string, x *tensor.Tensor) *tensor.Tensor {
	if err := b.failure(op); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	shape := x.Shape()
	if d := len(shape); d < least || d > most {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be %s, got %d dimensions", form, d)
	}
	training, momentum := b.Training(), b.Momentum
	tracked := b.RunningMean != nil && b.RunningVar != nil
	if (training || !tracked) && b.overRanks == nil && product(shape[:1])*product(shape[2:]) == 1 {
		return refuse.Tensor(op, tensor.ErrArgument, "each channel needs more than 1 value to be normalized by its batch, got shape %v", shape)
	}
	if training && tracked && b.NumBatchesTracked != nil {
		var err error
		if momentum, err = b.step(); err != nil {
			return tensor.Failed(err)
		}
	}
	if training && b.overRanks != nil {
		return b.overRanks(x, b.Weight, b.Bias, b.RunningMean, b.RunningVar, momentum, b.Eps)
	}
	var all [5]tensor.Option
	opts := append(all[:0], tensor.Training(training || !tracked), tensor.Momentum(momentum), tensor.Eps(b.Eps))
	return x.BatchNorm(b.RunningMean, b.RunningVar, b.affine(opts)...)
}

func product(sizes []int) int {
	n := 1
	for _, s := range sizes {
		n *= s
	}
	return n
}

// instance normalizes each sample by itself.
func (b *batchNorm) instance(op string, dims int, form string, x *tensor.Tensor) *tensor.Tensor {
	if err := b.failure(op); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	shape := x.Shape()
	if d := len(shape); d != dims+1 && d != dims+2 {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be %s, got %d dimensions", form, d)
	}
	if c := shape[len(shape)-dims-1]; b.channels > 0 && c != b.channels && b.Weight != nil {
		return refuse.Tensor(op, tensor.ErrArgument, "x must have %d channels, got shape %v", b.channels, shape)
	}
	tracked := b.RunningMean != nil && b.RunningVar != nil
	own := b.Training() || !tracked
	if own && product(shape[len(shape)-dims:]) == 1 {
		return refuse.Tensor(op, tensor.ErrArgument, "each channel needs more than 1 value to be normalized by itself, got shape %v", shape)
	}
	opts := b.affine([]tensor.Option{tensor.UseInputStats(own), tensor.Momentum(b.Momentum), tensor.Eps(b.Eps)})
	if tracked {
		opts = append(opts, tensor.RunningMean(b.RunningMean), tensor.RunningVar(b.RunningVar))
	}
	if len(shape) == dims+2 {
		return x.InstanceNorm(opts...)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor { return x.Unsqueeze(0).InstanceNorm(opts...).SqueezeDim(0) })
}

// BatchNorm1d normalizes each channel of x (N, C) or (N, C, L). In training it uses the batch's statistics and updates the
// running statistics in place; in evaluation it uses the running statistics. Its fields Weight, Bias, RunningMean and
// RunningVar have shape (C) or are nil, NumBatchesTracked is an int64 scalar; further fields are Momentum and Eps. PyTorch:
// torch.nn.BatchNorm1d.
type BatchNorm1d batchNorm

// NewBatchNorm1d returns a BatchNorm1d for the given number of channels. Options: Momentum (0.1 by default),
// CumulativeAverage, Eps (1e-5 by default), NoAffine, NoBias, NoRunningStats, DType, Device.
func NewBatchNorm1d(channels int, opts ...Option) *BatchNorm1d {
	return (*BatchNorm1d)(newBatchNorm("NewBatchNorm1d", channels, opts))
}

// Err returns the error of the constructor that made b, or nil.
func (b *BatchNorm1d) Err() error { return (*batchNorm)(b).failure("BatchNorm1d") }

// Forward returns the normalized x.
func (b *BatchNorm1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*batchNorm)(b).batch("BatchNorm1d", 2, 3, "(N, C) or (N, C, L)", x)
}

// BatchNorm2d normalizes each channel of x (N, C, H, W). In training it uses the batch's statistics and updates the
// running statistics in place; in evaluation it uses the running statistics. Its fields Weight, Bias, RunningMean and
// RunningVar have shape (C) or are nil, NumBatchesTracked is an int64 scalar; further fields are Momentum and Eps. PyTorch:
// torch.nn.BatchNorm2d.
type BatchNorm2d batchNorm

// NewBatchNorm2d returns a BatchNorm2d for the given number of channels. Options: Momentum (0.1 by default),
// CumulativeAverage, Eps (1e-5 by default), NoAffine, NoBias, NoRunningStats, DType, Device.
func NewBatchNorm2d(channels int, opts ...Option) *BatchNorm2d {
	return (*BatchNorm2d)(newBatchNorm("NewBatchNorm2d", channels, opts))
}

// Err returns the error of the constructor that made b, or nil.
func (b *BatchNorm2d) Err() error { return (*batchNorm)(b).failure("BatchNorm2d") }

// Forward returns the normalized x.
func (b *BatchNorm2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*batchNorm)(b).batch("BatchNorm2d", 4, 4, "(N, C, H, W)", x)
}

// BatchNorm3d normalizes each channel of x (N, C, D, H, W). In training it uses the batch's statistics and updates the
// running statistics in place; in evaluation it uses the running statistics. Its fields Weight, Bias, RunningMean and
// RunningVar have shape (C) or are nil, NumBatchesTracked is an int64 scalar; further fields are Momentum and Eps. PyTorch:
// torch.nn.BatchNorm3d.
type BatchNorm3d batchNorm

// NewBatchNorm3d returns a BatchNorm3d for the given number of channels. Options: Momentum (0.1 by default),
// CumulativeAverage, Eps (1e-5 by default), NoAffine, NoBias, NoRunningStats, DType, Device.
func NewBatchNorm3d(channels int, opts ...Option) *BatchNorm3d {
	return (*BatchNorm3d)(newBatchNorm("NewBatchNorm3d", channels, opts))
}

// Err returns the error of the constructor that made b, or nil.
func (b *BatchNorm3d) Err() error { return (*batchNorm)(b).failure("BatchNorm3d") }

// Forward returns the normalized x.
func (b *BatchNorm3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*batchNorm)(b).batch("BatchNorm3d", 5, 5, "(N, C, D, H, W)", x)
}

// InstanceNorm1d normalizes each channel of each sample of x (N, C, L) or (C, L). With RunningStats it uses and updates
// running statistics as BatchNorm1d does. Its fields are those of BatchNorm1d, nil by default. PyTorch:
// torch.nn.InstanceNorm1d.
type InstanceNorm1d batchNorm

// NewInstanceNorm1d returns an InstanceNorm1d for the given number of channels. Options: Affine, NoBias, RunningStats,
// Momentum (0.1 by default), Eps (1e-5 by default), DType, Device.
func NewInstanceNorm1d(channels int, opts ...Option) *InstanceNorm1d {
	return (*InstanceNorm1d)(newInstanceNorm("NewInstanceNorm1d", channels, opts))
}

// Err returns the error of the constructor that made n, or nil.
func (n *InstanceNorm1d) Err() error { return (*batchNorm)(n).failure("InstanceNorm1d") }

// Forward returns the normalized x.
func (n *InstanceNorm1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*batchNorm)(n).instance("InstanceNorm1d", 1, "(N, C, L) or (C, L)", x)
}

// InstanceNorm2d normalizes each channel of each sample of x (N, C, H, W) or (C, H, W). With RunningStats it uses and updates
// running statistics as BatchNorm2d does. Its fields are those of BatchNorm2d, nil by default. PyTorch:
// torch.nn.InstanceNorm2d.
type InstanceNorm2d batchNorm

// NewInstanceNorm2d returns an InstanceNorm2d for the given number of channels. Options: Affine, NoBias, RunningStats,
// Momentum (0.1 by default), Eps (1e-5 by default), DType, Device.
func NewInstanceNorm2d(channels int, opts ...Option) *InstanceNorm2d {
	return (*InstanceNorm2d)(newInstanceNorm("NewInstanceNorm2d", channels, opts))
}

// Err returns the error of the constructor that made n, or nil.
func (n *InstanceNorm2d) Err() error { return (*batchNorm)(n).failure("InstanceNorm2d") }

// Forward returns the normalized x.
func (n *InstanceNorm2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*batchNorm)(n).instance("InstanceNorm2d", 2, "(N, C, H, W) or (C, H, W)", x)
}

// InstanceNorm3d normalizes each channel of each sample of x (N, C, D, H, W) or (C, D, H, W). With RunningStats it uses and updates
// running statistics as BatchNorm3d does. Its fields are those of BatchNorm3d, nil by default. PyTorch:
// torch.nn.InstanceNorm3d.
type InstanceNorm3d batchNorm

// NewInstanceNorm3d returns an InstanceNorm3d for the given number of channels. Options: Affine, NoBias, RunningStats,
// Momentum (0.1 by default), Eps (1e-5 by default), DType, Device.
func NewInstanceNorm3d(channels int, opts ...Option) *InstanceNorm3d {
	return (*InstanceNorm3d)(newInstanceNorm("NewInstanceNorm3d", channels, opts))
}

// Err returns the error of the constructor that made n, or nil.
func (n *InstanceNorm3d) Err() error { return (*batchNorm)(n).failure("InstanceNorm3d") }

// Forward returns the normalized x.
func (n *InstanceNorm3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*batchNorm)(n).instance("InstanceNorm3d", 3, "(N, C, D, H, W) or (C, D, H, W)", x)
}

// GroupNorm normalizes the channels of x (N, C, *) in Groups groups. Weight and Bias have shape (C), or are nil. PyTorch:
// torch.nn.GroupNorm.
type GroupNorm struct {
	Weight, Bias *tensor.Tensor
	Groups       int
	Eps          float64
	channels     int
	err          error
}

// NewGroupNorm returns a GroupNorm with the given numbers of groups and channels; groups divides channels. Options: Eps
// (1e-5 by default), NoAffine, NoBias, DType, Device.
func NewGroupNorm(groups, channels int, opts ...Option) *GroupNorm {
	b := build("NewGroupNorm", opts, "Eps", "NoAffine", "NoBias", "DType", "Device")
	b.sizes("groups", groups, "channels", channels)
	if b.err == nil && channels%groups != 0 {
		b.fail("%d channels cannot be split into %d groups", channels, groups)
	}
	b.positiveEps()
	g := &GroupNorm{Groups: groups, Eps: b.eps, channels: channels}
	if !b.noAffine {
		g.Weight = b.parameter([]int{channels}, fillWith(1))
		if !b.noBias {
			g.Bias = b.parameter([]int{channels}, fillWith(0))
		}
	}
	if err := b.done(); err != nil {
		return &GroupNorm{err: err}
	}
	return g
}

// Err returns the error of the constructor that made g, or nil.
func (g *GroupNorm) Err() error {
	if g == nil {
		return nilModule("GroupNorm")
	}
	return g.err
}

// Forward returns the normalized x.
func (g *GroupNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := g.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable("GroupNorm", x); bad != nil {
		return bad
	}
	shape := x.Shape()
	if len(shape) < 2 || g.Groups < 1 || shape[1]%g.Groups != 0 {
		return refuse.Tensor("GroupNorm", tensor.ErrArgument, "x must be (N, C, *) with C divisible by %d groups, got shape %v", g.Groups, shape)
	}
	if product(shape)/g.Groups == 1 {
		return refuse.Tensor("GroupNorm", tensor.ErrArgument, "each group needs more than 1 value, got shape %v", shape)
	}
	opts := []tensor.Option{tensor.Eps(g.Eps)}
	if g.Weight != nil {
		opts = append(opts, tensor.Weight(g.Weight))
	}
	if g.Bias != nil {
		opts = append(opts, tensor.Bias(g.Bias))
	}
	return x.GroupNorm(g.Groups, opts...)
}

// LocalResponseNorm divides x (N, C, *) by (K + Alpha*m)^Beta, where m is the mean of x² over the Size nearest channels
// (Krizhevsky et al. 2012). PyTorch: torch.nn.LocalResponseNorm.
type LocalResponseNorm struct {
	Size           int
	Alpha, Beta, K float64
	err            error
}

// NewLocalResponseNorm returns a LocalResponseNorm over size channels with PyTorch's defaults: Alpha 1e-4, Beta 0.75 and
// K 1. Set the fields for other values.
func NewLocalResponseNorm(size int) *LocalResponseNorm {
	b := build("NewLocalResponseNorm", nil)
	b.sizes("size", size)
	if err := b.done(); err != nil {
		return &LocalResponseNorm{err: err}
	}
	return &LocalResponseNorm{Size: size, Alpha: 1e-4, Beta: 0.75, K: 1}
}

// Err returns the error of the constructor that made l, or nil.
func (l *LocalResponseNorm) Err() error {
	if l == nil {
		return nilModule("LocalResponseNorm")
	}
	return l.err
}

// Forward returns the normalized x.
func (l *LocalResponseNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "LocalResponseNorm"
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	shape := x.Shape()
	if len(shape) < 3 || l.Size < 1 || l.Size > maxSize {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (N, C, *) and Size positive, got shape %v and %d", shape, l.Size)
	}
	if x.Numel() == 0 {
		return x
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		window, pad := []int{l.Size, 1}, []int{0, 0, l.Size / 2, (l.Size - 1) / 2}
		channels, mean := append([]int{shape[0], 1}, shape[1:]...), (*tensor.Tensor).AvgPool2d
		if len(shape) > 3 {
			window, pad = append(window, 1), append([]int{0, 0}, pad...)
			channels, mean = []int{shape[0], 1, shape[1], shape[2], -1}, (*tensor.Tensor).AvgPool3d
		}
		return x.Div(Pipe(x,
			internal(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(x) }),
			internal(func(square *tensor.Tensor) *tensor.Tensor { return square.View(channels...) }),
			internal(func(square *tensor.Tensor) *tensor.Tensor { return square.Pad(pad) }),
			internal(func(padded *tensor.Tensor) *tensor.Tensor { return mean(padded, window, tensor.Stride(1)) }),
			internal(func(mean *tensor.Tensor) *tensor.Tensor { return mean.View(shape...) }),
			internal(func(mean *tensor.Tensor) *tensor.Tensor { return mean.Mul(l.Alpha) }),
			internal(func(y *tensor.Tensor) *tensor.Tensor { return y.Add(l.K) }),
			internal(func(y *tensor.Tensor) *tensor.Tensor { return y.Pow(l.Beta) }),
		))
	})
}

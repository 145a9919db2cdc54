package nn

import (
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
	b := build("NewRMSNorm", append([]Option{Eps(0)}, opts...), "Eps", "NoAffine", "DType", "Device")
	shape := b.shape([]int{width})
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

// BatchNorm2d normalizes each channel of x (N, C, H, W). In training it uses the batch's statistics and updates the
// running statistics in place; in evaluation it uses the running statistics. All its tensors have shape (C), except
// NumBatchesTracked, an int64 scalar. PyTorch: torch.nn.BatchNorm2d.
type BatchNorm2d struct {
	Mode
	Weight, Bias      *tensor.Tensor
	RunningMean       *tensor.Tensor `nn:",buffer"`
	RunningVar        *tensor.Tensor `nn:",buffer"`
	NumBatchesTracked *tensor.Tensor `nn:",buffer"`
	Momentum, Eps     float64
	cumulative        bool
	err               error
}

// NewBatchNorm2d returns a BatchNorm2d for the given number of channels. Options: Momentum (0.1 by default),
// CumulativeAverage, Eps (1e-5 by default), NoAffine, NoRunningStats, DType, Device.
func NewBatchNorm2d(channels int, opts ...Option) *BatchNorm2d {
	b := build("NewBatchNorm2d", opts, "Momentum", "CumulativeAverage", "Eps", "NoAffine", "NoRunningStats", "DType", "Device")
	shape := b.shape([]int{channels})
	if !(b.momentum >= 0 && b.momentum <= 1) {
		b.fail("Momentum must be in [0, 1], got %v", b.momentum)
	}
	n := &BatchNorm2d{Momentum: b.momentum, Eps: b.eps, cumulative: b.cumulative}
	if !b.noAffine {
		n.Weight = b.parameter(shape, fillWith(1))
		n.Bias = b.parameter(shape, fillWith(0))
	}
	if !b.noStats {
		n.RunningMean = b.tensor(shape, b.dtype, fillWith(0))
		n.RunningVar = b.tensor(shape, b.dtype, fillWith(1))
		n.NumBatchesTracked = b.tensor([]int{}, tensor.Int64, func(t *tensor.Tensor) *tensor.Tensor { return t.Zero_() })
	}
	if err := b.done(); err != nil {
		return &BatchNorm2d{err: err}
	}
	return n
}

// Err returns the error of the constructor that made b, or nil.
func (b *BatchNorm2d) Err() error {
	if b == nil {
		return nilModule("BatchNorm2d")
	}
	return b.err
}

// Forward returns the normalized x.
func (b *BatchNorm2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := b.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable("BatchNorm2d", x); bad != nil {
		return bad
	}
	if d := x.Dim(); d != 4 {
		return refuse.Tensor("BatchNorm2d", tensor.ErrArgument, "x must be (N, C, H, W), got %d dimensions", d)
	}
	training, momentum := b.Training(), b.Momentum
	tracked := b.RunningMean != nil && b.RunningVar != nil
	if training && tracked && b.NumBatchesTracked != nil {
		if err := b.NumBatchesTracked.Add_(1).Err(); err != nil {
			return tensor.Failed(err)
		}
		if b.cumulative {
			n, err := b.NumBatchesTracked.Item()
			if err != nil {
				return tensor.Failed(err)
			}
			momentum = 1 / n
		}
	}
	opts := [5]tensor.Option{tensor.Training(training || !tracked), tensor.Momentum(momentum), tensor.Eps(b.Eps)}
	n := 3
	if b.Weight != nil {
		opts[n] = tensor.Weight(b.Weight)
		n++
	}
	if b.Bias != nil {
		opts[n] = tensor.Bias(b.Bias)
		n++
	}
	return x.BatchNorm(b.RunningMean, b.RunningVar, opts[:n]...)
}

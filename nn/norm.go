package nn

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// LayerNorm normalizes over the last dimensions, those of Shape: x (*, Shape...) gives the same shape. Weight and
// Bias are of that shape, or nil. PyTorch: torch.nn.LayerNorm.
type LayerNorm struct {
	Weight, Bias *tensor.Tensor
	Shape        []int
	Eps          float64
}

// NewLayerNorm makes one over a last dimension of the given width. Options: Eps (1e-5), NoAffine, NoBias, DType,
// Device.
func NewLayerNorm(width int, opts ...Option) (*LayerNorm, error) {
	return NewLayerNormShape([]int{width}, opts...)
}

// NewLayerNormShape makes one over several last dimensions.
func NewLayerNormShape(shape []int, opts ...Option) (*LayerNorm, error) {
	s, err := read("NewLayerNorm", opts, "Eps", "NoAffine", "NoBias")
	if err != nil {
		return nil, err
	}
	if shape, err = s.shape(shape); err != nil {
		return nil, err
	}
	m := maker{s: s}
	l := &LayerNorm{Shape: shape, Eps: s.eps}
	if !s.noAffine {
		l.Weight = m.parameter(shape, fillWith(1))
		if !s.noBias {
			l.Bias = m.parameter(shape, fillWith(0))
		}
	}
	if err := m.done(); err != nil {
		return nil, err
	}
	return l, nil
}

// shape copies and checks a normalized shape.
func (s *settings) shape(shape []int) ([]int, error) {
	if len(shape) == 0 || len(shape) > 32 {
		return nil, refuse.Error(s.op, tensor.ErrArgument, "a shape of 1 to 32 dimensions is needed, got %v", shape)
	}
	shape = append([]int{}, shape...)
	for _, n := range shape {
		if err := s.sizes("a size", n); err != nil {
			return nil, err
		}
	}
	return shape, s.positiveEps()
}

// Forward computes it.
func (l *LayerNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	if l == nil {
		return noModule("LayerNorm")
	}
	return x.LayerNorm(l.Shape, l.Weight, l.Bias, tensor.Eps(l.Eps))
}

// RMSNorm divides by the root of the mean square over the last dimensions, those of Shape. PyTorch:
// torch.nn.RMSNorm.
type RMSNorm struct {
	Weight *tensor.Tensor
	Shape  []int
	Eps    float64 // 0: the dtype's machine epsilon
}

// NewRMSNorm makes one over a last dimension of the given width. Options: Eps (by default the dtype's machine
// epsilon), NoAffine, DType, Device.
func NewRMSNorm(width int, opts ...Option) (*RMSNorm, error) {
	s, err := read("NewRMSNorm", append([]Option{Eps(0)}, opts...), "Eps", "NoAffine")
	if err != nil {
		return nil, err
	}
	shape, err := s.shape([]int{width})
	if err != nil {
		return nil, err
	}
	m := maker{s: s}
	l := &RMSNorm{Shape: shape, Eps: s.eps}
	if !s.noAffine {
		l.Weight = m.parameter(shape, fillWith(1))
	}
	if err := m.done(); err != nil {
		return nil, err
	}
	return l, nil
}

// Forward computes it.
func (l *RMSNorm) Forward(x *tensor.Tensor) *tensor.Tensor {
	switch {
	case l == nil:
		return noModule("RMSNorm")
	case l.Eps == 0:
		return x.RMSNorm(l.Shape, l.Weight)
	}
	return x.RMSNorm(l.Shape, l.Weight, tensor.Eps(l.Eps))
}

// BatchNorm2d normalizes each channel of x (N, C, H, W): by the batch's statistics while training, which also
// updates the running ones in place, by the running ones in evaluation. All but NumBatchesTracked (int64, no
// dimensions) are (C). PyTorch: torch.nn.BatchNorm2d.
type BatchNorm2d struct {
	Mode
	Weight, Bias      *tensor.Tensor
	RunningMean       *tensor.Tensor `nn:",buffer"`
	RunningVar        *tensor.Tensor `nn:",buffer"`
	NumBatchesTracked *tensor.Tensor `nn:",buffer"`
	Momentum, Eps     float64
	cumulative        bool
}

// NewBatchNorm2d makes one for the given number of channels. Options: Momentum (0.1), CumulativeAverage, Eps
// (1e-5), NoAffine, NoRunningStats, DType, Device.
func NewBatchNorm2d(channels int, opts ...Option) (*BatchNorm2d, error) {
	s, err := read("NewBatchNorm2d", opts, "Momentum", "CumulativeAverage", "Eps", "NoAffine", "NoRunningStats")
	if err != nil {
		return nil, err
	}
	shape, err := s.shape([]int{channels})
	if err != nil {
		return nil, err
	}
	if !(s.momentum >= 0 && s.momentum <= 1) {
		return nil, refuse.Error(s.op, tensor.ErrArgument, "Momentum must be in [0, 1], got %v", s.momentum)
	}
	m := maker{s: s}
	b := &BatchNorm2d{Momentum: s.momentum, Eps: s.eps, cumulative: s.cumulative}
	if !s.noAffine {
		b.Weight = m.parameter(shape, fillWith(1))
		b.Bias = m.parameter(shape, fillWith(0))
	}
	if !s.noStats {
		b.RunningMean = m.tensor(shape, s.dtype, fillWith(0))
		b.RunningVar = m.tensor(shape, s.dtype, fillWith(1))
		b.NumBatchesTracked = m.tensor([]int{}, tensor.Int64, func(t *tensor.Tensor) *tensor.Tensor { return t.Zero_() })
	}
	if err := m.done(); err != nil {
		return nil, err
	}
	return b, nil
}

// Forward computes it.
func (b *BatchNorm2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if b == nil {
		return noModule("BatchNorm2d")
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

package nn

import (
	"fmt"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Option is a keyword argument of a constructor: NoBias(), Stride(2), DType(tensor.Float64). A constructor
// refuses an option that it does not have.
type Option struct {
	name string
	set  func(*settings)
}

// settings are what the options of all the constructors come to.
type settings struct {
	op     string
	dtype  tensor.DType
	device tensor.Device

	noBias, noAffine, noStats, cumulative, batchFirst, causal, ceil, noPad bool
	kernel, stride, padding, dilation                                      []int
	groups, paddingIdx                                                     int
	hasPaddingIdx                                                          bool
	eps, momentum, dropout                                                 float64
}

// read applies opts, of which op knows the named ones (and DType and Device).
func read(op string, opts []Option, known ...string) (*settings, error) {
	s := &settings{op: op, dtype: tensor.DefaultDType(), device: tensor.CPU, groups: 1, paddingIdx: -1, eps: 1e-5, momentum: 0.1}
next:
	for _, o := range opts {
		if o.set == nil {
			return nil, refuse.Error(op, tensor.ErrArgument, "an option is empty")
		}
		for _, k := range known {
			if k == o.name {
				o.set(s)
				continue next
			}
		}
		if o.name != "DType" && o.name != "Device" {
			return nil, refuse.Error(op, tensor.ErrArgument, "there is no option %s", o.name)
		}
		o.set(s)
	}
	if !s.dtype.IsFloat() && !s.dtype.IsComplex() && s.dtype != tensor.Invalid {
		return nil, refuse.Error(op, tensor.ErrArgument, "parameters cannot be %v", s.dtype)
	}
	return s, nil
}

// DType makes the parameters of another dtype than the default one (dtype=).
func DType(d tensor.DType) Option { return Option{"DType", func(s *settings) { s.dtype = d }} }

// Device makes the parameters on a device (device=).
func Device(d tensor.Device) Option { return Option{"Device", func(s *settings) { s.device = d }} }

// NoBias leaves the bias out (bias=False).
func NoBias() Option { return Option{"NoBias", func(s *settings) { s.noBias = true }} }

// NoAffine leaves weight and bias of a normalization out (affine=False, elementwise_affine=False).
func NoAffine() Option { return Option{"NoAffine", func(s *settings) { s.noAffine = true }} }

// NoRunningStats makes batch norm use the batch's own statistics always (track_running_stats=False).
func NoRunningStats() Option { return Option{"NoRunningStats", func(s *settings) { s.noStats = true }} }

// CumulativeAverage makes batch norm's running statistics plain means over all batches (momentum=None).
func CumulativeAverage() Option {
	return Option{"CumulativeAverage", func(s *settings) { s.cumulative = true }}
}

// Momentum is the new batch's share in batch norm's running statistics (momentum=); 0.1 by default.
func Momentum(v float64) Option { return Option{"Momentum", func(s *settings) { s.momentum = v }} }

// Eps is added to a variance before the root is taken (eps=).
func Eps(v float64) Option { return Option{"Eps", func(s *settings) { s.eps = v }} }

// BatchFirst makes attention take (N, L, E) instead of (L, N, E) (batch_first=True).
func BatchFirst() Option { return Option{"BatchFirst", func(s *settings) { s.batchFirst = true }} }

// Causal makes attention look backward only.
func Causal() Option { return Option{"Causal", func(s *settings) { s.causal = true }} }

// DropoutP is the probability with which attention drops weights while training (dropout=); 0 by default.
func DropoutP(p float64) Option { return Option{"DropoutP", func(s *settings) { s.dropout = p }} }

// Kernel gives a window that is no square: Kernel(h, w), instead of the constructor's one number.
func Kernel(v ...int) Option { return Option{"Kernel", func(s *settings) { s.kernel = v }} }

// Stride is the windows' distance, one number for all dimensions or one each (stride=). By default 1 for
// convolutions and the window's size for pooling.
func Stride(v ...int) Option { return Option{"Stride", func(s *settings) { s.stride = v }} }

// Padding is what is added at both ends, one number for all dimensions or one each (padding=); 0 by default.
func Padding(v ...int) Option { return Option{"Padding", func(s *settings) { s.padding = v }} }

// Dilation is the distance between a window's elements (dilation=); 1 by default.
func Dilation(v ...int) Option { return Option{"Dilation", func(s *settings) { s.dilation = v }} }

// Groups splits a convolution's channels into groups that do not see each other (groups=); 1 by default.
func Groups(n int) Option { return Option{"Groups", func(s *settings) { s.groups = n }} }

// CeilMode makes pooling round the output's size up (ceil_mode=True).
func CeilMode() Option { return Option{"CeilMode", func(s *settings) { s.ceil = true }} }

// NotCountPadding leaves the padding out of average pooling's count (count_include_pad=False).
func NotCountPadding() Option { return Option{"NotCountPadding", func(s *settings) { s.noPad = true }} }

// PaddingIdx names the row of an embedding that starts as zeros and gets no gradient (padding_idx=); a negative
// one counts from the end.
func PaddingIdx(i int) Option {
	return Option{"PaddingIdx", func(s *settings) { s.paddingIdx, s.hasPaddingIdx = i, true }}
}

// maxSize bounds a dimension so that products of a few cannot overflow.
const maxSize = 1 << 40

// sizes refuses what is no size.
func (s *settings) sizes(named ...any) error {
	for i := 0; i+1 < len(named); i += 2 {
		if n := named[i+1].(int); n <= 0 || n > maxSize {
			return refuse.Error(s.op, tensor.ErrArgument, "%s must be positive and no larger than 2^40, got %d", named[i], n)
		}
	}
	return nil
}

// spread makes n numbers of one or n, all at least low.
func (s *settings) spread(name string, v []int, n, byDefault, low int) ([]int, error) {
	out := make([]int, n)
	for i := range out {
		switch {
		case len(v) == 0:
			out[i] = byDefault
		case len(v) == 1:
			out[i] = v[0]
		case len(v) == n:
			out[i] = v[i]
		default:
			return nil, refuse.Error(s.op, tensor.ErrArgument, "%s takes 1 or %d numbers, got %d", name, n, len(v))
		}
		if out[i] < low || out[i] > maxSize {
			return nil, refuse.Error(s.op, tensor.ErrArgument, "%s must be at least %d and no larger than 2^40, got %s", name, low, fmt.Sprint(out))
		}
	}
	return out, nil
}

func (s *settings) probability(name string, p float64) error {
	if !(p >= 0 && p <= 1) {
		return refuse.Error(s.op, tensor.ErrArgument, "%s must be in [0, 1], got %v", name, p)
	}
	return nil
}

func (s *settings) positiveEps() error {
	if !(s.eps >= 0 && s.eps < 1e300) {
		return refuse.Error(s.op, tensor.ErrArgument, "eps must be a number of at least 0, got %v", s.eps)
	}
	return nil
}

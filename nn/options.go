package nn

import "github.com/linstock-ml/linstock/tensor"

// Option is a keyword argument of a constructor, such as NoBias(), Stride(2) or DType(tensor.Float64). If a constructor
// is given an option that it does not accept, its module carries an error that lists the accepted options.
type Option struct {
	name string
	set  func(*settings)
}

// settings holds the values of the options of all constructors.
type settings struct {
	dtype  tensor.DType
	device tensor.Device

	noBias, noAffine, noStats, cumulative, batchFirst, causal, ceil, noPad bool
	kernel, stride, padding, dilation                                      []int
	groups, paddingIdx                                                     int
	hasPaddingIdx                                                          bool
	eps, momentum, dropout                                                 float64
}

// DType sets the dtype of the parameters (dtype=); by default they have the default dtype.
func DType(d tensor.DType) Option { return Option{"DType", func(s *settings) { s.dtype = d }} }

// Device sets the device of the parameters (device=); the CPU by default.
func Device(d tensor.Device) Option { return Option{"Device", func(s *settings) { s.device = d }} }

// NoBias omits the bias (bias=False).
func NoBias() Option { return Option{"NoBias", func(s *settings) { s.noBias = true }} }

// NoAffine omits the weight and bias of a normalization layer (affine=False, elementwise_affine=False).
func NoAffine() Option { return Option{"NoAffine", func(s *settings) { s.noAffine = true }} }

// NoRunningStats makes batch norm use the statistics of the batch in evaluation too (track_running_stats=False).
func NoRunningStats() Option { return Option{"NoRunningStats", func(s *settings) { s.noStats = true }} }

// CumulativeAverage makes the running statistics of batch norm plain averages over all batches (momentum=None).
func CumulativeAverage() Option {
	return Option{"CumulativeAverage", func(s *settings) { s.cumulative = true }}
}

// Momentum sets the weight of the new batch in the running statistics of batch norm (momentum=); 0.1 by default.
func Momentum(v float64) Option { return Option{"Momentum", func(s *settings) { s.momentum = v }} }

// Eps sets the value that is added to a variance before its square root is taken (eps=).
func Eps(v float64) Option { return Option{"Eps", func(s *settings) { s.eps = v }} }

// BatchFirst makes attention take inputs of shape (N, L, E) instead of (L, N, E) (batch_first=True).
func BatchFirst() Option { return Option{"BatchFirst", func(s *settings) { s.batchFirst = true }} }

// Causal makes each position attend only to itself and earlier positions.
func Causal() Option { return Option{"Causal", func(s *settings) { s.causal = true }} }

// DropoutP sets the probability with which attention drops weights in training (dropout=); 0 by default.
func DropoutP(p float64) Option { return Option{"DropoutP", func(s *settings) { s.dropout = p }} }

// Kernel sets the window's size by dimension, Kernel(h, w), and replaces the constructor's kernel argument.
func Kernel(v ...int) Option { return Option{"Kernel", func(s *settings) { s.kernel = v }} }

// Stride sets the distance between windows: one number for all dimensions, or one for each (stride=). The default is 1
// for convolutions and the window's size for pooling.
func Stride(v ...int) Option { return Option{"Stride", func(s *settings) { s.stride = v }} }

// Padding sets how many elements are added at both ends: one number for all dimensions, or one for each (padding=); 0
// by default.
func Padding(v ...int) Option { return Option{"Padding", func(s *settings) { s.padding = v }} }

// Dilation sets the distance between the elements of a window (dilation=); 1 by default.
func Dilation(v ...int) Option { return Option{"Dilation", func(s *settings) { s.dilation = v }} }

// Groups splits the channels of a convolution into n independent groups (groups=); 1 by default.
func Groups(n int) Option { return Option{"Groups", func(s *settings) { s.groups = n }} }

// CeilMode makes pooling round the size of the output up (ceil_mode=True).
func CeilMode() Option { return Option{"CeilMode", func(s *settings) { s.ceil = true }} }

// NotCountPadding makes average pooling exclude the padding from its averages (count_include_pad=False).
func NotCountPadding() Option { return Option{"NotCountPadding", func(s *settings) { s.noPad = true }} }

// PaddingIdx sets the row of an embedding that is initialized to zeros and receives no gradient (padding_idx=); a
// negative index counts from the end.
func PaddingIdx(i int) Option {
	return Option{"PaddingIdx", func(s *settings) { s.paddingIdx, s.hasPaddingIdx = i, true }}
}

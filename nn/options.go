package nn

import "github.com/linstock-ml/linstock/tensor"

// Option is a keyword argument of a constructor: NoBias(), Stride(2), DType(tensor.Float64). A constructor fails on an
// option that it does not have, and the error lists those that it has.
type Option struct {
	name string
	set  func(*settings)
}

// settings are the values of the options of all constructors.
type settings struct {
	dtype  tensor.DType
	device tensor.Device

	noBias, noAffine, noStats, cumulative, batchFirst, causal, ceil, noPad bool
	kernel, stride, padding, dilation                                      []int
	groups, paddingIdx                                                     int
	hasPaddingIdx                                                          bool
	eps, momentum, dropout                                                 float64
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

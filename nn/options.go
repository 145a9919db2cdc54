package nn

import (
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/tensor"
)

// Option is a keyword argument of a constructor, such as NoBias(), Stride(2) or DType(tensor.Float64). If a constructor
// is given an option that it does not accept, its module carries an error that lists the accepted options. An option that
// is on or off, such as NoBias, is off by default; NoBias() is NoBias(true).
type Option struct {
	name string
	set  func(*settings)
}

// settings holds the values of the options of all constructors.
type settings struct {
	dtype  tensor.DType
	device tensor.Device

	noBias, noAffine, noStats, cumulative, batchFirst, causal, ceil, noPad bool
	affine, stats, same                                                    bool
	kernel, stride, padding, dilation, outputPadding, outputSize           []int
	outputRatio                                                            []float64
	groups, paddingIdx, divisor                                            int
	hasPaddingIdx, hasDivisor                                              bool
	eps, momentum, dropout                                                 float64
	paddingMode                                                            string

	layers, projection, keyWidth, valueWidth, hidden, encoders, decoders int
	bidirectional, normFirst, biasKV, zeroAttention                      bool
	activation                                                           string

	maxNorm, normType               float64
	byFrequency, sparse, lastOffset bool
	paddingValue                    float64
	scale                           []float64
	algorithm                       string
	align, recompute, antiAlias     bool
	totalLength                     int
	hasTotalLength, padLeft         bool
	average                         AvgFn
	hasAverage, buffers             bool
	bagMode                         string

	normDim, iterations  int
	hasNormDim, oldNames bool
	orthogonalMap        string
	noTrivialization     bool
	errorIfNonfinite     bool
	importance           *tensor.Tensor
	divValue             float64
	headBias             bool
	base                 float64
	interleaved          bool
	alpha                float64
	hasAlpha             bool
	dynamic, perRow      bool
}

// DType sets the dtype of the parameters (dtype=); by default they have the default dtype.
func DType(d tensor.DType) Option { return Option{"DType", func(s *settings) { s.dtype = d }} }

// Device sets the device of the parameters (device=); the CPU by default.
func Device(d tensor.Device) Option { return Option{"Device", func(s *settings) { s.device = d }} }

// NoBias omits the bias (bias=False).
func NoBias(on ...bool) Option {
	return Option{"NoBias", func(s *settings) { s.noBias = options.On(on) }}
}

// NoAffine omits the weight and bias of a normalization layer (affine=False, elementwise_affine=False).
func NoAffine(on ...bool) Option {
	return Option{"NoAffine", func(s *settings) { s.noAffine = options.On(on) }}
}

// NoRunningStats makes batch norm use the statistics of the batch in evaluation too (track_running_stats=False).
func NoRunningStats(on ...bool) Option {
	return Option{"NoRunningStats", func(s *settings) { s.noStats = options.On(on) }}
}

// CumulativeAverage makes the running statistics of batch norm plain averages over all batches (momentum=None). An
// instance norm has no such averages: in PyTorch its momentum=None is Momentum(0).
func CumulativeAverage(on ...bool) Option {
	return Option{"CumulativeAverage", func(s *settings) { s.cumulative = options.On(on) }}
}

// Momentum sets the weight of the new batch in the running statistics of batch norm (momentum=); 0.1 by default.
func Momentum(v float64) Option { return Option{"Momentum", func(s *settings) { s.momentum = v }} }

// Eps sets the value that is added to a variance before its square root is taken (eps=).
func Eps(v float64) Option { return Option{"Eps", func(s *settings) { s.eps = v }} }

// BatchFirst puts the batch first in inputs and outputs: (N, L, E) instead of (L, N, E) (batch_first=True). The results
// of attention and transformers then differ from PyTorch's in rounding, see [MultiheadAttention].
func BatchFirst(on ...bool) Option {
	return Option{"BatchFirst", func(s *settings) { s.batchFirst = options.On(on) }}
}

// Causal makes each position attend only to itself and earlier positions.
func Causal(on ...bool) Option {
	return Option{"Causal", func(s *settings) { s.causal = options.On(on) }}
}

// DropoutP sets a probability of dropout in training (dropout=): of attention weights, of the outputs between recurrent
// layers, or of the results in a transformer layer. It is 0 by default, and 0.1 for transformer layers.
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
func CeilMode(on ...bool) Option {
	return Option{"CeilMode", func(s *settings) { s.ceil = options.On(on) }}
}

// NotCountPadding makes average pooling exclude the padding from its averages (count_include_pad=False).
func NotCountPadding(on ...bool) Option {
	return Option{"NotCountPadding", func(s *settings) { s.noPad = options.On(on) }}
}

// PaddingIdx sets the row of an embedding that is initialized to zeros and receives no gradient (padding_idx=); a
// negative index counts from the end.
func PaddingIdx(i int) Option {
	return Option{"PaddingIdx", func(s *settings) { s.paddingIdx, s.hasPaddingIdx = i, true }}
}

// PaddingSame pads a convolution so that its output has the size of its input (padding='same'). The stride must be 1.
func PaddingSame(on ...bool) Option {
	return Option{"PaddingSame", func(s *settings) { s.same = options.On(on) }}
}

// PaddingMode sets what a convolution is padded with: "zeros" (the default), "reflect", "replicate" or "circular"
// (padding_mode=).
func PaddingMode(mode string) Option {
	return Option{"PaddingMode", func(s *settings) { s.paddingMode = mode }}
}

// OutputPadding sets how much larger than the smallest possible the output of a transposed convolution is: one number
// for all dimensions, or one for each (output_padding=); 0 by default.
func OutputPadding(v ...int) Option {
	return Option{"OutputPadding", func(s *settings) { s.outputPadding = v }}
}

// OutputSize sets the size of the output: one number for all dimensions, or one for each (output_size=, size=).
func OutputSize(v ...int) Option { return Option{"OutputSize", func(s *settings) { s.outputSize = v }} }

// OutputRatio sets the size of the output of a fractional pool as a part of the input's, above 0 and below 1: one number
// for all dimensions, or one for each (output_ratio=).
func OutputRatio(v ...float64) Option {
	return Option{"OutputRatio", func(s *settings) { s.outputRatio = v }}
}

// DivisorOverride makes average pooling divide by n, not by the number of elements of a window (divisor_override=).
func DivisorOverride(n int) Option {
	return Option{"DivisorOverride", func(s *settings) { s.divisor, s.hasDivisor = n, true }}
}

// Affine adds a weight and a bias to an InstanceNorm (affine=True).
func Affine(on ...bool) Option {
	return Option{"Affine", func(s *settings) { s.affine = options.On(on) }}
}

// RunningStats makes an InstanceNorm keep running statistics and use them in evaluation (track_running_stats=True).
func RunningStats(on ...bool) Option {
	return Option{"RunningStats", func(s *settings) { s.stats = options.On(on) }}
}

// NumLayers sets the number of recurrent layers, each of which takes the output of the one before (num_layers=); 1 by
// default.
func NumLayers(n int) Option { return Option{"NumLayers", func(s *settings) { s.layers = n }} }

// Bidirectional adds a recurrent layer that runs backwards (bidirectional=True).
func Bidirectional(on ...bool) Option {
	return Option{"Bidirectional", func(s *settings) { s.bidirectional = options.On(on) }}
}

// ProjSize sets the width to which an LSTM projects its hidden state (proj_size=).
func ProjSize(n int) Option { return Option{"ProjSize", func(s *settings) { s.projection = n }} }

// Activation names the activation of an RNN, "tanh" (the default) or "relu" (nonlinearity=), or of a transformer layer,
// "relu" (the default) or "gelu" (activation=).
func Activation(name string) Option {
	return Option{"Activation", func(s *settings) { s.activation = name }}
}

// PaddingValue sets the value that shorter sequences are padded with (padding_value=); 0 by default.
func PaddingValue(v float64) Option {
	return Option{"PaddingValue", func(s *settings) { s.paddingValue = v }}
}

// TotalLength sets the length to which sequences are padded (total_length=); the longest length by default.
func TotalLength(n int) Option {
	return Option{"TotalLength", func(s *settings) { s.totalLength, s.hasTotalLength = n, true }}
}

// PadLeft pads sequences at their beginning (padding_side='left').
func PadLeft(on ...bool) Option {
	return Option{"PadLeft", func(s *settings) { s.padLeft = options.On(on) }}
}

// MaxNorm scales the rows of an embedding that are looked up to a norm of at most v, in place (max_norm=); 0, the
// default, does not.
func MaxNorm(v float64) Option { return Option{"MaxNorm", func(s *settings) { s.maxNorm = v }} }

// NormType sets the norm of MaxNorm (norm_type=); 2 by default.
func NormType(p float64) Option { return Option{"NormType", func(s *settings) { s.normType = p }} }

// ScaleGradByFreq divides the gradient of a row of an embedding by how often it occurs in the batch
// (scale_grad_by_freq=True).
func ScaleGradByFreq(on ...bool) Option {
	return Option{"ScaleGradByFreq", func(s *settings) { s.byFrequency = options.On(on) }}
}

// SparseGrad makes the gradient of an embedding a sparse tensor (sparse=True).
func SparseGrad(on ...bool) Option {
	return Option{"SparseGrad", func(s *settings) { s.sparse = options.On(on) }}
}

// BagMode sets how an EmbeddingBag reduces: "mean" (the default), "sum" or "max" (mode=).
func BagMode(mode string) Option { return Option{"BagMode", func(s *settings) { s.bagMode = mode }} }

// IncludeLastOffset says that the offsets of an EmbeddingBag end with the number of ids (include_last_offset=True).
func IncludeLastOffset(on ...bool) Option {
	return Option{"IncludeLastOffset", func(s *settings) { s.lastOffset = options.On(on) }}
}

// ScaleFactor sets the factor by which an image is resized: one number for all dimensions, or one for each
// (scale_factor=).
func ScaleFactor(v ...float64) Option {
	return Option{"ScaleFactor", func(s *settings) { s.scale = v }}
}

// Algorithm names how an image is resized (mode=): "nearest" (the default), "nearest-exact", "linear", "bilinear",
// "bicubic", "trilinear", "area", or, in Interpolate with AntiAlias, "lanczos", which libtorch has since 2.15 and only
// for the CPU.
func Algorithm(name string) Option {
	return Option{"Algorithm", func(s *settings) { s.algorithm = name }}
}

// AlignCorners aligns the centers, not the edges, of the corner elements of input and output (align_corners=True).
func AlignCorners(on ...bool) Option {
	return Option{"AlignCorners", func(s *settings) { s.align = options.On(on) }}
}

// RecomputeScale recomputes the scale factor from the sizes of input and output (recompute_scale_factor=True).
func RecomputeScale(on ...bool) Option {
	return Option{"RecomputeScale", func(s *settings) { s.recompute = options.On(on) }}
}

// AntiAlias filters high frequencies when an image is made smaller (antialias=True).
func AntiAlias(on ...bool) Option {
	return Option{"AntiAlias", func(s *settings) { s.antiAlias = options.On(on) }}
}

// KDim sets the width of the keys of a MultiheadAttention (kdim=); that of the queries by default.
func KDim(n int) Option { return Option{"KDim", func(s *settings) { s.keyWidth = n }} }

// VDim sets the width of the values of a MultiheadAttention (vdim=); that of the queries by default.
func VDim(n int) Option { return Option{"VDim", func(s *settings) { s.valueWidth = n }} }

// AddBiasKV appends learned keys and values (add_bias_kv=True).
func AddBiasKV(on ...bool) Option {
	return Option{"AddBiasKV", func(s *settings) { s.biasKV = options.On(on) }}
}

// AddZeroAttn appends keys and values of zeros (add_zero_attn=True).
func AddZeroAttn(on ...bool) Option {
	return Option{"AddZeroAttn", func(s *settings) { s.zeroAttention = options.On(on) }}
}

// NormFirst normalizes the inputs, not the outputs, of the parts of a transformer layer (norm_first=True).
func NormFirst(on ...bool) Option {
	return Option{"NormFirst", func(s *settings) { s.normFirst = options.On(on) }}
}

// FeedForward sets the width between the two linear layers of a transformer layer (dim_feedforward=); 2048 by default.
func FeedForward(n int) Option { return Option{"FeedForward", func(s *settings) { s.hidden = n }} }

// EncoderLayers and DecoderLayers set the numbers of layers of a Transformer (num_encoder_layers=, num_decoder_layers=); 6
// by default.
func EncoderLayers(n int) Option {
	return Option{"EncoderLayers", func(s *settings) { s.encoders = n }}
}

// DecoderLayers is described at EncoderLayers.
func DecoderLayers(n int) Option {
	return Option{"DecoderLayers", func(s *settings) { s.decoders = n }}
}

// NormDim sets the dimension over whose slices WeightNorm takes norms, or that SpectralNorm treats as the rows (dim=). It is
// 0 by default, and 1 for SpectralNorm of a transposed convolution. For WeightNorm, -1 is one norm over the whole parameter
// (dim=None).
func NormDim(d int) Option {
	return Option{"NormDim", func(s *settings) { s.normDim, s.hasNormDim = d, true }}
}

// PowerIterations sets the number of power iterations of SpectralNorm in each forward pass in training
// (n_power_iterations=); 1 by default.
func PowerIterations(n int) Option {
	return Option{"PowerIterations", func(s *settings) { s.iterations = n }}
}

// OldNames gives a WeightNorm or SpectralNorm the state names of the deprecated torch.nn.utils.weight_norm and
// spectral_norm: weight_g and weight_v, or weight_orig, weight_u and weight_v.
func OldNames(on ...bool) Option {
	return Option{"OldNames", func(s *settings) { s.oldNames = options.On(on) }}
}

// OrthogonalMap names the map of Orthogonal (orthogonal_map=): "matrix_exp", the default of square and of complex matrices,
// "cayley", or "householder", the default of others.
func OrthogonalMap(name string) Option {
	return Option{"OrthogonalMap", func(s *settings) { s.orthogonalMap = name }}
}

// NoTrivialization makes Orthogonal keep no base matrix (use_trivialization=False).
func NoTrivialization(on ...bool) Option {
	return Option{"NoTrivialization", func(s *settings) { s.noTrivialization = options.On(on) }}
}

// ErrorIfNonfinite makes a gradient norm that is infinite or NaN an error (error_if_nonfinite=True).
func ErrorIfNonfinite(on ...bool) Option {
	return Option{"ErrorIfNonfinite", func(s *settings) { s.errorIfNonfinite = options.On(on) }}
}

// ImportanceScores prunes by scores, of the parameter's shape, in place of the parameter's own values
// (importance_scores=).
func ImportanceScores(scores *tensor.Tensor) Option {
	return Option{"ImportanceScores", func(s *settings) { s.importance = scores }}
}

// DivValue sets by what factor each cluster of an AdaptiveLogSoftmaxWithLoss is narrower than the one before (div_value=); 4
// by default.
func DivValue(v float64) Option { return Option{"DivValue", func(s *settings) { s.divValue = v }} }

// HeadBias adds a bias to the head of an AdaptiveLogSoftmaxWithLoss (head_bias=True).
func HeadBias(on ...bool) Option {
	return Option{"HeadBias", func(s *settings) { s.headBias = options.On(on) }}
}

// Base sets the base of the wavelengths of a RotaryEmbedding; 10000 by default.
func Base(v float64) Option { return Option{"Base", func(s *settings) { s.base = v }} }

// Interleaved makes a RotaryEmbedding rotate neighbouring elements (2i, 2i+1), as in GPT-J, and not the halves (i, i+D/2), as
// in Llama.
func Interleaved(on ...bool) Option {
	return Option{"Interleaved", func(s *settings) { s.interleaved = options.On(on) }}
}

// Alpha sets the scale of a LoRALinear, which is divided by its rank (lora_alpha=); the rank by default, a scale of 1.
func Alpha(v float64) Option {
	return Option{"Alpha", func(s *settings) { s.alpha, s.hasAlpha = v, true }}
}

// Dynamic makes an Int8Linear round the rows of its inputs to 8 bits in each call, too.
func Dynamic(on ...bool) Option {
	return Option{"Dynamic", func(s *settings) { s.dynamic = options.On(on) }}
}

// PerRow gives each row of a Float8Linear's weight, and of its inputs, a scale of its own.
func PerRow(on ...bool) Option {
	return Option{"PerRow", func(s *settings) { s.perRow = options.On(on) }}
}

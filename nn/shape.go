package nn

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Unflatten splits the dimension Dim, whose size is the product of Sizes, into dimensions of these sizes; one of them can
// be -1, which is computed. The result shares storage with x. PyTorch: torch.nn.Unflatten.
type Unflatten struct {
	Dim   int
	Sizes []int
}

// NewUnflatten returns an Unflatten of the dimension dim; a negative one counts from the end.
func NewUnflatten(dim int, sizes ...int) *Unflatten { return &Unflatten{dim, sizes} }

// Forward returns x with the dimension split.
func (u *Unflatten) Forward(x *tensor.Tensor) *tensor.Tensor {
	if u == nil {
		return noModule("Unflatten")
	}
	return x.Unflatten(u.Dim, u.Sizes...)
}

// PixelShuffle rearranges x (*, C*r*r, H, W) to (*, C, H*r, W*r) for the factor r. PyTorch: torch.nn.PixelShuffle.
type PixelShuffle struct{ Factor int }

// NewPixelShuffle returns a PixelShuffle by the given factor.
func NewPixelShuffle(factor int) *PixelShuffle { return &PixelShuffle{factor} }

// Forward returns x rearranged.
func (p *PixelShuffle) Forward(x *tensor.Tensor) *tensor.Tensor {
	if p == nil {
		return noModule("PixelShuffle")
	}
	return x.PixelShuffle(p.Factor)
}

// PixelUnshuffle rearranges x (*, C, H*r, W*r) to (*, C*r*r, H, W) for the factor r. PyTorch: torch.nn.PixelUnshuffle.
type PixelUnshuffle struct{ Factor int }

// NewPixelUnshuffle returns a PixelUnshuffle by the given factor.
func NewPixelUnshuffle(factor int) *PixelUnshuffle { return &PixelUnshuffle{factor} }

// Forward returns x rearranged.
func (p *PixelUnshuffle) Forward(x *tensor.Tensor) *tensor.Tensor {
	if p == nil {
		return noModule("PixelUnshuffle")
	}
	return x.PixelUnshuffle(p.Factor)
}

// ChannelShuffle divides the channels of x (N, C, *) into groups and interleaves these. PyTorch: torch.nn.ChannelShuffle.
type ChannelShuffle struct{ Groups int }

// NewChannelShuffle returns a ChannelShuffle of the given number of groups.
func NewChannelShuffle(groups int) *ChannelShuffle { return &ChannelShuffle{groups} }

// Forward returns x rearranged.
func (c *ChannelShuffle) Forward(x *tensor.Tensor) *tensor.Tensor {
	if c == nil {
		return noModule("ChannelShuffle")
	}
	return x.ChannelShuffle(c.Groups)
}

// CosineSimilarity returns the cosine of the angle between x1 and x2 along the dimension Dim. Both norms in the
// denominator are at least Eps. PyTorch: torch.nn.CosineSimilarity.
type CosineSimilarity struct {
	Dim int
	Eps float64
}

// NewCosineSimilarity returns a CosineSimilarity along dim, with an Eps of 1e-8; PyTorch's default of dim is 1.
func NewCosineSimilarity(dim int) *CosineSimilarity { return &CosineSimilarity{dim, 1e-8} }

// Forward returns the cosines, of the broadcast shape of x1 and x2 without Dim.
func (c *CosineSimilarity) Forward(x1, x2 *tensor.Tensor) *tensor.Tensor {
	if c == nil {
		return noModule("CosineSimilarity")
	}
	return x1.CosineSimilarity(x2, tensor.Dim(c.Dim), tensor.Eps(c.Eps))
}

// PairwiseDistance returns the P-norm of x1-x2+Eps along the last dimension. PyTorch: torch.nn.PairwiseDistance.
type PairwiseDistance struct {
	P, Eps  float64
	KeepDim bool // keep the last dimension, with size 1
}

// NewPairwiseDistance returns a PairwiseDistance of the given norm, with an Eps of 1e-6; PyTorch's default of p is 2.
func NewPairwiseDistance(p float64) *PairwiseDistance { return &PairwiseDistance{P: p, Eps: 1e-6} }

// Forward returns the distances of x1 and x2 (N, D) or (D).
func (d *PairwiseDistance) Forward(x1, x2 *tensor.Tensor) *tensor.Tensor {
	if d == nil {
		return noModule("PairwiseDistance")
	}
	return x1.PairwiseDistance(x2, tensor.P(d.P), tensor.Eps(d.Eps), tensor.KeepDim(d.KeepDim))
}

// Bilinear computes x1^T A x2 + b: x1 (*, in1) and x2 (*, in2) give (*, out). Weight is (out, in1, in2), Bias is (out), or
// nil. PyTorch: torch.nn.Bilinear.
type Bilinear struct {
	Weight, Bias *tensor.Tensor
	err          error
}

// NewBilinear returns a Bilinear with weights and bias uniform in ±1/sqrt(in1). Options: NoBias, DType, Device.
func NewBilinear(in1, in2, out int, opts ...Option) *Bilinear {
	b := build("NewBilinear", opts, "NoBias", "DType", "Device")
	b.sizes("in1", in1, "in2", in2, "out", out)
	fill := uniform(1 / math.Sqrt(float64(in1)))
	l := &Bilinear{Weight: b.parameter([]int{out, in1, in2}, fill)}
	if !b.noBias {
		l.Bias = b.parameter([]int{out}, fill)
	}
	if err := b.done(); err != nil {
		return &Bilinear{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *Bilinear) Err() error {
	if l == nil {
		return nilModule("Bilinear")
	}
	return l.err
}

// Forward returns x1^T A x2 + b.
func (l *Bilinear) Forward(x1, x2 *tensor.Tensor) *tensor.Tensor {
	const op = "Bilinear"
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, x1, x2, l.Weight); bad != nil {
		return bad
	}
	return one(op, "aten::bilinear", x1, x2, l.Weight, l.Bias)
}

// windows is the common form of Fold and Unfold.
type windows struct {
	Size, Kernel, Dilation, Padding, Stride []int
	err                                     error
}

func newWindows(op string, size []int, kernel int, opts []Option) *windows {
	b := build(op, opts, "Kernel", "Dilation", "Padding", "Stride")
	w := &windows{Kernel: b.window(kernel, 2)}
	if size != nil {
		w.Size = b.spread("size", size, 2, 1, 1)
	}
	w.Dilation = b.spread("Dilation", b.dilation, 2, 1, 1)
	w.Padding = b.spread("Padding", b.padding, 2, 0, 0)
	w.Stride = b.spread("Stride", b.stride, 2, 1, 1)
	if err := b.done(); err != nil {
		return &windows{err: err}
	}
	return w
}

func (w *windows) failure(op string) error {
	if w == nil {
		return nilModule(op)
	}
	return w.err
}

// Unfold copies the windows of x (N, C, H, W) into columns (N, C*kH*kW, L), or the same without N. Its fields are Kernel,
// Dilation, Padding and Stride. PyTorch: torch.nn.Unfold.
type Unfold windows

// NewUnfold returns an Unfold of kernel×kernel windows. Options: Kernel(h, w), Dilation, Padding, Stride.
func NewUnfold(kernel int, opts ...Option) *Unfold {
	return (*Unfold)(newWindows("NewUnfold", nil, kernel, opts))
}

// Err returns the error of the constructor that made u, or nil.
func (u *Unfold) Err() error { return (*windows)(u).failure("Unfold") }

// Forward returns the columns of x.
func (u *Unfold) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := u.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.Im2Col(u.Kernel, tensor.Dilation(u.Dilation...), tensor.Padding(u.Padding...), tensor.Stride(u.Stride...))
}

// Fold adds columns (N, C*kH*kW, L) up to images (N, C, H, W), or the same without N. Its fields are Size (H, W), Kernel,
// Dilation, Padding and Stride. PyTorch: torch.nn.Fold.
type Fold windows

// NewFold returns a Fold to images of the given size, one number or two, with kernel×kernel windows. Options: Kernel(h,
// w), Dilation, Padding, Stride.
func NewFold(size []int, kernel int, opts ...Option) *Fold {
	return (*Fold)(newWindows("NewFold", append([]int{}, size...), kernel, opts))
}

// Err returns the error of the constructor that made f, or nil.
func (f *Fold) Err() error { return (*windows)(f).failure("Fold") }

// Forward returns the images.
func (f *Fold) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := f.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.Col2Im(f.Size, f.Kernel, tensor.Dilation(f.Dilation...), tensor.Padding(f.Padding...), tensor.Stride(f.Stride...))
}

// Upsample resizes x (N, C, *) with 1 to 3 dimensions after the channels. Its fields say how, as the options of
// Interpolate do. PyTorch: torch.nn.Upsample.
type Upsample struct {
	Size      []int     // the output's size, one number for all dimensions or one for each; or
	Scale     []float64 // the factor
	Algorithm string    // as in the option Algorithm
	Align     bool      // as the option AlignCorners
	Recompute bool      // as the option RecomputeScale
	err       error
}

// NewUpsample returns an Upsample. Options: OutputSize or ScaleFactor, one of which is required, Algorithm,
// AlignCorners, RecomputeScale.
func NewUpsample(opts ...Option) *Upsample { return newUpsample("NewUpsample", "", opts) }

// NewUpsamplingNearest2d returns an Upsample with the algorithm "nearest". Options: OutputSize or ScaleFactor. PyTorch:
// torch.nn.UpsamplingNearest2d.
func NewUpsamplingNearest2d(opts ...Option) *Upsample {
	return newUpsample("NewUpsamplingNearest2d", "nearest", opts)
}

// NewUpsamplingBilinear2d returns an Upsample with the algorithm "bilinear" and AlignCorners. Options: OutputSize or
// ScaleFactor. PyTorch: torch.nn.UpsamplingBilinear2d.
func NewUpsamplingBilinear2d(opts ...Option) *Upsample {
	return newUpsample("NewUpsamplingBilinear2d", "bilinear", opts)
}

func newUpsample(op, fixed string, opts []Option) *Upsample {
	known := []string{"OutputSize", "ScaleFactor"}
	if fixed == "" {
		known = append(known, "Algorithm", "AlignCorners", "RecomputeScale")
	}
	b := build(op, opts, known...)
	u := &Upsample{Size: b.outputSize, Scale: b.scale, Algorithm: b.algorithm, Align: b.align, Recompute: b.recompute}
	if fixed != "" {
		u.Algorithm, u.Align = fixed, fixed == "bilinear"
	}
	b.note(u.check(op))
	if err := b.done(); err != nil {
		return &Upsample{err: err}
	}
	return u
}

// check returns an error if u's fields do not fit together.
func (u *Upsample) check(op string) error {
	switch size, scale := len(u.Size) != 0, len(u.Scale) != 0; {
	case size && scale:
		return refuse.Error(op, tensor.ErrArgument, "OutputSize and ScaleFactor exclude each other")
	case !size && !scale:
		return refuse.Error(op, tensor.ErrArgument, "OutputSize or ScaleFactor is needed")
	}
	for _, n := range u.Size {
		if n < 1 || n > maxSize {
			return refuse.Error(op, tensor.ErrArgument, "OutputSize must be positive and no larger than 2^40, got %v", u.Size)
		}
	}
	for _, f := range u.Scale {
		if !(f > 0 && f < maxSize) {
			return refuse.Error(op, tensor.ErrArgument, "ScaleFactor must be positive, got %v", u.Scale)
		}
	}
	if !slices.Contains([]string{"", "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "lanczos", "area"}, u.Algorithm) {
		return refuse.Error(op, tensor.ErrArgument, "there is no algorithm %q", u.Algorithm)
	}
	if u.Align && slices.Contains([]string{"", "nearest", "nearest-exact", "lanczos", "area"}, u.Algorithm) {
		return refuse.Error(op, tensor.ErrArgument, "AlignCorners is for linear, bilinear, bicubic and trilinear")
	}
	if u.Recompute && len(u.Size) != 0 {
		return refuse.Error(op, tensor.ErrArgument, "RecomputeScale is for ScaleFactor")
	}
	return nil
}

// Err returns the error of the constructor that made u, or nil.
func (u *Upsample) Err() error {
	if u == nil {
		return nilModule("Upsample")
	}
	return u.err
}

// Forward returns x resized.
func (u *Upsample) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := u.Err(); err != nil {
		return tensor.Failed(err)
	}
	return u.resize("Upsample", x, false)
}

// Interpolate resizes x (N, C, *) with 1 to 3 dimensions after the channels. Options: OutputSize or ScaleFactor, one of
// which is required, Algorithm ("nearest" by default), AlignCorners, RecomputeScale, AntiAlias. PyTorch:
// torch.nn.functional.interpolate.
func Interpolate(x *tensor.Tensor, opts ...Option) *tensor.Tensor {
	const op = "Interpolate"
	b := build(op, opts, "OutputSize", "ScaleFactor", "Algorithm", "AlignCorners", "RecomputeScale", "AntiAlias")
	u := &Upsample{Size: b.outputSize, Scale: b.scale, Algorithm: b.algorithm, Align: b.align, Recompute: b.recompute}
	if b.err != nil {
		return tensor.Failed(b.err)
	}
	return u.resize(op, x, b.antiAlias)
}

func (u *Upsample) resize(op string, x *tensor.Tensor, antiAlias bool) *tensor.Tensor {
	if bad := unusable(op, x); bad != nil { // before the options, whose sizes may be those of a failed tensor
		return bad
	}
	if err := u.check(op); err != nil {
		return tensor.Failed(err)
	}
	shape := x.Shape()
	dims := len(shape) - 2
	if dims < 1 || dims > 3 || slices.Contains(shape[1:], 0) {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (N, C, *) with 3 to 5 dimensions and not empty, got shape %v", shape)
	}
	if n := len(u.Size) + len(u.Scale); n != 1 && n != dims {
		return refuse.Tensor(op, tensor.ErrArgument, "1 or %d numbers are needed, got OutputSize %v and ScaleFactor %v", dims, u.Size, u.Scale)
	}
	algorithm := u.Algorithm
	if algorithm == "" {
		algorithm = "nearest"
	}
	if want := map[string]int{"linear": 1, "bilinear": 2, "bicubic": 2, "lanczos": 2, "trilinear": 3}[algorithm]; want != 0 && want != dims {
		return refuse.Tensor(op, tensor.ErrArgument, "%s needs an x of %d dimensions, got shape %v", algorithm, want+2, shape)
	}
	if antiAlias && algorithm != "bilinear" && algorithm != "bicubic" && algorithm != "lanczos" {
		return refuse.Tensor(op, tensor.ErrArgument, "AntiAlias is for bilinear, bicubic and lanczos")
	}
	if algorithm == "lanczos" && !antiAlias {
		return refuse.Tensor(op, tensor.ErrArgument, "lanczos needs AntiAlias, an option of Interpolate")
	}
	var size []int
	var scale []float64
	for i := range dims {
		n := 0
		if len(u.Size) != 0 {
			n = u.Size[min(i, len(u.Size)-1)]
		} else {
			f := u.Scale[min(i, len(u.Scale)-1)]
			scale = append(scale, f)
			n = int(float64(shape[2+i]) * f)
		}
		if n < 1 || n > maxSize {
			return refuse.Tensor(op, tensor.ErrArgument, "the output would have the size %d", n)
		}
		size = append(size, n)
	}
	if algorithm == "area" {
		return adaptiveAverage(dims, x, size)
	}
	var outputSize, factors any = size, nil
	if len(scale) != 0 && !u.Recompute {
		outputSize, factors = nil, scale
	}
	name := map[string]string{"nearest": "aten::upsample_nearest%dd.vec", "nearest-exact": "aten::_upsample_nearest_exact%dd.vec", "linear": "aten::upsample_linear%dd.vec",
		"bilinear": "aten::upsample_bilinear%dd.vec", "bicubic": "aten::upsample_bicubic%dd.vec", "trilinear": "aten::upsample_trilinear%dd.vec"}[algorithm]
	if antiAlias {
		name = map[string]string{"bilinear": "aten::_upsample_bilinear2d_aa.vec", "bicubic": "aten::_upsample_bicubic2d_aa.vec", "lanczos": "aten::_upsample_lanczos2d_aa.vec"}[algorithm]
	}
	name = replaceDims(name, dims)
	args := []any{x, outputSize}
	if algorithm != "nearest" && algorithm != "nearest-exact" {
		args = append(args, u.Align)
	}
	// The operators with an underscore take the same checked arguments as those without.
	out, err := tensor.CallUnchecked(name, append(args, factors)...)
	if err != nil {
		return tensor.Failed(refuse.Named(op, err))
	}
	return out[0].(*tensor.Tensor)
}

// replaceDims replaces %d in an operator's name.
func replaceDims(name string, dims int) string {
	for i := range len(name) - 1 {
		if name[i:i+2] == "%d" {
			return name[:i] + string(rune('0'+dims)) + name[i+2:]
		}
	}
	return name
}

package nn

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// conv is the common form of Conv1d, Conv2d and Conv3d.
type conv struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
	Same                      bool   // Padding is chosen so that the output has the input's size
	PaddingMode               string // "zeros" or "", "reflect", "replicate", "circular"
	err                       error
}

func newConv(op string, dims, in, out, kernel int, opts []Option) *conv {
	known := []string{"Stride", "Padding", "PaddingSame", "PaddingMode", "Dilation", "Groups", "NoBias", "DType", "Device"}
	if dims > 1 {
		known = append([]string{"Kernel"}, known...)
	}
	b := build(op, opts, known...)
	window := b.channels(in, out, kernel, dims)
	c := &conv{Groups: b.groups, Same: b.same, PaddingMode: b.paddingMode}
	c.Stride = b.spread("Stride", b.stride, dims, 1, 1)
	c.Padding = b.spread("Padding", b.padding, dims, 0, 0)
	c.Dilation = b.spread("Dilation", b.dilation, dims, 1, 1)
	if !slices.Contains([]string{"", "zeros", "reflect", "replicate", "circular"}, c.PaddingMode) {
		b.fail("PaddingMode must be zeros, reflect, replicate or circular, got %q", c.PaddingMode)
	}
	for _, s := range c.Stride {
		if c.Same && s != 1 {
			b.fail("PaddingSame needs a Stride of 1, got %v", c.Stride)
		}
	}
	if c.Same && len(b.padding) != 0 {
		b.fail("PaddingSame and Padding exclude each other")
	}
	if b.err == nil {
		c.Weight, c.Bias = b.kernelAndBias(append([]int{out, in / b.groups}, window...), out)
	}
	if err := b.done(); err != nil {
		return &conv{err: err}
	}
	return c
}

// channels checks the sizes of a convolution and returns its window.
func (b *builder) channels(in, out, kernel, dims int) []int {
	b.sizes("in", in, "out", out, "Groups", b.groups)
	window := b.window(kernel, dims)
	if b.err == nil && (in%b.groups != 0 || out%b.groups != 0) {
		b.fail("%d and %d channels cannot be split into %d groups", in, out, b.groups)
	}
	return window
}

// kernelAndBias makes a convolution's weight of the given shape and its bias.
func (b *builder) kernelAndBias(shape []int, out int) (weight, bias *tensor.Tensor) {
	fanIn := 1
	for _, n := range shape[1:] {
		if fanIn > math.MaxInt/n {
			b.fail("a weight of shape %v is too large", shape)
			return nil, nil
		}
		fanIn *= n
	}
	weight = b.parameter(shape, uniform(kaiming(fanIn)))
	if !b.noBias {
		bias = b.parameter([]int{out}, uniform(1/math.Sqrt(float64(fanIn))))
	}
	return weight, bias
}

// window returns the kernel argument for each dimension, or the numbers of the option Kernel.
func (b *builder) window(kernel, dims int) []int {
	if len(b.kernel) != 0 {
		return b.spread("Kernel", b.kernel, dims, 1, 1)
	}
	return b.spread("kernel", []int{kernel}, dims, 1, 1)
}

func (c *conv) failure(op string) error {
	if c == nil {
		return nilModule(op)
	}
	return c.err
}

// convolve are the operators by the number of dimensions.
var convolve = [4]func(x, weight, bias *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor{
	1: (*tensor.Tensor).Conv1d, 2: (*tensor.Tensor).Conv2d, 3: (*tensor.Tensor).Conv3d}

func (c *conv) forward(op string, dims int, x *tensor.Tensor) *tensor.Tensor {
	if err := c.failure(op); err != nil {
		return tensor.Failed(err)
	}
	zeros := c.PaddingMode == "" || c.PaddingMode == "zeros"
	if !c.Same && zeros {
		return convolve[dims](x, c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Padding(c.Padding...), tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	window := windowOf(c.Weight, dims)
	if window == nil || len(c.Dilation) != dims || !c.Same && len(c.Padding) != dims {
		return refuse.Tensor(op, tensor.ErrArgument, "the module is incomplete: use its constructor")
	}
	if zeros {
		return one(op, [...]string{1: "aten::conv1d.padding", 2: "aten::conv2d.padding", 3: "aten::conv3d.padding"}[dims],
			x, c.Weight, c.Bias, c.Stride, "same", c.Dilation, c.Groups)
	}
	// The last dimension comes first.
	pad := make([]int, 0, 2*dims)
	for i := dims - 1; i >= 0; i-- {
		before, after := 0, 0
		if c.Same {
			total := c.Dilation[i] * (window[i] - 1)
			before, after = total/2, total-total/2
		} else {
			before, after = c.Padding[i], c.Padding[i]
		}
		pad = append(pad, before, after)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		return convolve[dims](x.Pad(pad, tensor.Mode(c.PaddingMode)), c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
	})
}

// Conv1d convolves x (N, in, L) to (N, out, L'), or the same without N. Its fields are Weight (out, in/Groups,
// k), Bias (out) or nil, Stride, Padding, Dilation, Groups, Same and PaddingMode. PyTorch: torch.nn.Conv1d.
type Conv1d conv

// NewConv1d returns a Conv1d with a window of kernel elements, initialized as in PyTorch. Options: Stride,
// Padding, PaddingSame, PaddingMode, Dilation, Groups, NoBias, DType, Device.
func NewConv1d(in, out, kernel int, opts ...Option) *Conv1d {
	return (*Conv1d)(newConv("NewConv1d", 1, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *Conv1d) Err() error { return (*conv)(c).failure("Conv1d") }

// Forward returns the convolution of x.
func (c *Conv1d) Forward(x *tensor.Tensor) *tensor.Tensor { return (*conv)(c).forward("Conv1d", 1, x) }

// Conv2d convolves x (N, in, H, W) to (N, out, H', W'), or the same without N. Its fields are Weight (out, in/Groups,
// kH, kW), Bias (out) or nil, Stride, Padding, Dilation, Groups, Same and PaddingMode. PyTorch: torch.nn.Conv2d.
type Conv2d conv

// NewConv2d returns a Conv2d with a kernel×kernel window, initialized as in PyTorch. Options: Kernel(h, w), Stride,
// Padding, PaddingSame, PaddingMode, Dilation, Groups, NoBias, DType, Device.
func NewConv2d(in, out, kernel int, opts ...Option) *Conv2d {
	return (*Conv2d)(newConv("NewConv2d", 2, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *Conv2d) Err() error { return (*conv)(c).failure("Conv2d") }

// Forward returns the convolution of x.
func (c *Conv2d) Forward(x *tensor.Tensor) *tensor.Tensor { return (*conv)(c).forward("Conv2d", 2, x) }

// Conv3d convolves x (N, in, D, H, W) to (N, out, D', H', W'), or the same without N. Its fields are Weight (out, in/Groups,
// kD, kH, kW), Bias (out) or nil, Stride, Padding, Dilation, Groups, Same and PaddingMode. PyTorch: torch.nn.Conv3d.
type Conv3d conv

// NewConv3d returns a Conv3d with a kernel×kernel×kernel window, initialized as in PyTorch. Options: Kernel(d, h, w), Stride,
// Padding, PaddingSame, PaddingMode, Dilation, Groups, NoBias, DType, Device.
func NewConv3d(in, out, kernel int, opts ...Option) *Conv3d {
	return (*Conv3d)(newConv("NewConv3d", 3, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *Conv3d) Err() error { return (*conv)(c).failure("Conv3d") }

// Forward returns the convolution of x.
func (c *Conv3d) Forward(x *tensor.Tensor) *tensor.Tensor { return (*conv)(c).forward("Conv3d", 3, x) }

// transposed is the common form of ConvTranspose1d, ConvTranspose2d and ConvTranspose3d.
type transposed struct {
	Weight, Bias                             *tensor.Tensor
	Stride, Padding, OutputPadding, Dilation []int
	Groups                                   int
	err                                      error
}

// windowOf returns the last dims sizes of a weight, or nil if it is not the weight of a convolution over dims
// dimensions.
func windowOf(w *tensor.Tensor, dims int) []int {
	if w == nil || w.Dim() != dims+2 {
		return nil
	}
	return trailing(w, dims)
}

func newTransposed(op string, dims, in, out, kernel int, opts []Option) *transposed {
	known := []string{"Stride", "Padding", "OutputPadding", "Dilation", "Groups", "NoBias", "DType", "Device"}
	if dims > 1 {
		known = append([]string{"Kernel"}, known...)
	}
	b := build(op, opts, known...)
	window := b.channels(in, out, kernel, dims)
	c := &transposed{Groups: b.groups}
	c.Stride = b.spread("Stride", b.stride, dims, 1, 1)
	c.Padding = b.spread("Padding", b.padding, dims, 0, 0)
	c.OutputPadding = b.spread("OutputPadding", b.outputPadding, dims, 0, 0)
	c.Dilation = b.spread("Dilation", b.dilation, dims, 1, 1)
	if b.err == nil {
		c.Weight, c.Bias = b.kernelAndBias(append([]int{in, out / b.groups}, window...), out)
	}
	if err := b.done(); err != nil {
		return &transposed{err: err}
	}
	return c
}

func (c *transposed) failure(op string) error {
	if c == nil {
		return nilModule(op)
	}
	return c.err
}

// convolveBack are the operators by the number of dimensions.
var convolveBack = [4]func(x, weight, bias *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor{
	1: (*tensor.Tensor).ConvTranspose1d, 2: (*tensor.Tensor).ConvTranspose2d, 3: (*tensor.Tensor).ConvTranspose3d}

func (c *transposed) forward(op string, dims int, x *tensor.Tensor, size []int) *tensor.Tensor {
	if err := c.failure(op); err != nil {
		return tensor.Failed(err)
	}
	extra := c.OutputPadding
	if size != nil {
		var bad *tensor.Tensor
		if extra, bad = c.extra(op, dims, x, size); bad != nil {
			return bad
		}
	}
	return convolveBack[dims](x, c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Padding(c.Padding...), tensor.OutputPadding(extra...),
		tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
}

// extra returns the output padding with which the output has the given size.
func (c *transposed) extra(op string, dims int, x *tensor.Tensor, size []int) ([]int, *tensor.Tensor) {
	if bad := unusable(op, x); bad != nil {
		return nil, bad
	}
	window := windowOf(c.Weight, dims)
	if window == nil || len(c.Stride) != dims || len(c.Padding) != dims || len(c.Dilation) != dims {
		return nil, refuse.Tensor(op, tensor.ErrArgument, "the module is incomplete: use its constructor")
	}
	in := trailing(x, dims)
	if len(size) != dims || in == nil {
		return nil, refuse.Tensor(op, tensor.ErrArgument, "the output size needs %d numbers, got %v", dims, size)
	}
	extra := make([]int, dims)
	for i := range dims {
		least := (in[i]-1)*c.Stride[i] - 2*c.Padding[i] + c.Dilation[i]*(window[i]-1) + 1
		if extra[i] = size[i] - least; extra[i] < 0 || extra[i] >= c.Stride[i] {
			return nil, refuse.Tensor(op, tensor.ErrArgument, "dimension %d of the output can have the sizes %d to %d, got %d", i, least, least+c.Stride[i]-1, size[i])
		}
	}
	return extra, nil
}

// ConvTranspose1d is the transposed convolution of x (N, in, L) to (N, out, L'), or the same without N: the gradient
// of Conv1d with respect to its input. Its fields are Weight (in, out/Groups, k), Bias (out) or nil, Stride, Padding,
// OutputPadding, Dilation and Groups. PyTorch: torch.nn.ConvTranspose1d.
type ConvTranspose1d transposed

// NewConvTranspose1d returns a ConvTranspose1d with a window of kernel elements, initialized as in PyTorch. Options:
// Stride, Padding, OutputPadding, Dilation, Groups, NoBias, DType, Device.
func NewConvTranspose1d(in, out, kernel int, opts ...Option) *ConvTranspose1d {
	return (*ConvTranspose1d)(newTransposed("NewConvTranspose1d", 1, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *ConvTranspose1d) Err() error { return (*transposed)(c).failure("ConvTranspose1d") }

// Forward returns the transposed convolution of x.
func (c *ConvTranspose1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*transposed)(c).forward("ConvTranspose1d", 1, x, nil)
}

// ForwardSize returns the transposed convolution of x with an output of the given size, one number (output_size=). A
// stride above 1 leaves a choice between several sizes; another size is an error.
func (c *ConvTranspose1d) ForwardSize(x *tensor.Tensor, size ...int) *tensor.Tensor {
	return (*transposed)(c).forward("ConvTranspose1d", 1, x, append([]int{}, size...))
}

// ConvTranspose2d is the transposed convolution of x (N, in, H, W) to (N, out, H', W'), or the same without N: the gradient
// of Conv2d with respect to its input. Its fields are Weight (in, out/Groups, kH, kW), Bias (out) or nil, Stride, Padding,
// OutputPadding, Dilation and Groups. PyTorch: torch.nn.ConvTranspose2d.
type ConvTranspose2d transposed

// NewConvTranspose2d returns a ConvTranspose2d with a kernel×kernel window, initialized as in PyTorch. Options:
// Kernel(h, w), Stride, Padding, OutputPadding, Dilation, Groups, NoBias, DType, Device.
func NewConvTranspose2d(in, out, kernel int, opts ...Option) *ConvTranspose2d {
	return (*ConvTranspose2d)(newTransposed("NewConvTranspose2d", 2, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *ConvTranspose2d) Err() error { return (*transposed)(c).failure("ConvTranspose2d") }

// Forward returns the transposed convolution of x.
func (c *ConvTranspose2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*transposed)(c).forward("ConvTranspose2d", 2, x, nil)
}

// ForwardSize returns the transposed convolution of x with an output of the given size, 2 numbers (output_size=). A
// stride above 1 leaves a choice between several sizes; another size is an error.
func (c *ConvTranspose2d) ForwardSize(x *tensor.Tensor, size ...int) *tensor.Tensor {
	return (*transposed)(c).forward("ConvTranspose2d", 2, x, append([]int{}, size...))
}

// ConvTranspose3d is the transposed convolution of x (N, in, D, H, W) to (N, out, D', H', W'), or the same without N: the gradient
// of Conv3d with respect to its input. Its fields are Weight (in, out/Groups, kD, kH, kW), Bias (out) or nil, Stride, Padding,
// OutputPadding, Dilation and Groups. PyTorch: torch.nn.ConvTranspose3d.
type ConvTranspose3d transposed

// NewConvTranspose3d returns a ConvTranspose3d with a kernel×kernel×kernel window, initialized as in PyTorch. Options:
// Kernel(d, h, w), Stride, Padding, OutputPadding, Dilation, Groups, NoBias, DType, Device.
func NewConvTranspose3d(in, out, kernel int, opts ...Option) *ConvTranspose3d {
	return (*ConvTranspose3d)(newTransposed("NewConvTranspose3d", 3, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *ConvTranspose3d) Err() error { return (*transposed)(c).failure("ConvTranspose3d") }

// Forward returns the transposed convolution of x.
func (c *ConvTranspose3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*transposed)(c).forward("ConvTranspose3d", 3, x, nil)
}

// ForwardSize returns the transposed convolution of x with an output of the given size, 3 numbers (output_size=). A
// stride above 1 leaves a choice between several sizes; another size is an error.
func (c *ConvTranspose3d) ForwardSize(x *tensor.Tensor, size ...int) *tensor.Tensor {
	return (*transposed)(c).forward("ConvTranspose3d", 3, x, append([]int{}, size...))
}

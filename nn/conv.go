package nn

import (
	"math"

	"github.com/linstock-ml/linstock/tensor"
)

// Conv2d convolves x (N, in, H, W) to (N, out, H', W'). Weight is (out, in/Groups, kH, kW); Bias is (out), or nil.
// PyTorch: torch.nn.Conv2d.
type Conv2d struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
	err                       error
}

// NewConv2d returns a Conv2d with a kernel×kernel window, initialized as in PyTorch. Options: Kernel(h, w), Stride,
// Padding, Dilation, Groups, NoBias, DType, Device.
func NewConv2d(in, out, kernel int, opts ...Option) *Conv2d {
	return (*Conv2d)(newConv("NewConv2d", 2, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *Conv2d) Err() error {
	if c == nil {
		return nilModule("Conv2d")
	}
	return c.err
}

// Forward returns the convolution of x.
func (c *Conv2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := c.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.Conv2d(c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Padding(c.Padding...), tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
}

// Conv1d convolves x (N, in, L) to (N, out, L'). Weight is (out, in/Groups, k); Bias is (out), or nil. PyTorch:
// torch.nn.Conv1d.
type Conv1d struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
	err                       error
}

// NewConv1d returns a Conv1d with a window of kernel elements, initialized as in PyTorch. Options: Stride, Padding,
// Dilation, Groups, NoBias, DType, Device.
func NewConv1d(in, out, kernel int, opts ...Option) *Conv1d {
	return (*Conv1d)(newConv("NewConv1d", 1, in, out, kernel, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *Conv1d) Err() error {
	if c == nil {
		return nilModule("Conv1d")
	}
	return c.err
}

// Forward returns the convolution of x.
func (c *Conv1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := c.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.Conv1d(c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Padding(c.Padding...), tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
}

type conv struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
	err                       error
}

func newConv(op string, dims, in, out, kernel int, opts []Option) *conv {
	known := []string{"Stride", "Padding", "Dilation", "Groups", "NoBias", "DType", "Device"}
	if dims > 1 {
		known = append([]string{"Kernel"}, known...)
	}
	b := build(op, opts, known...)
	b.sizes("in", in, "out", out, "Groups", b.groups)
	window := b.window(kernel, dims)
	c := &conv{Groups: b.groups}
	c.Stride = b.spread("Stride", b.stride, dims, 1, 1)
	c.Padding = b.spread("Padding", b.padding, dims, 0, 0)
	c.Dilation = b.spread("Dilation", b.dilation, dims, 1, 1)
	if b.err == nil && (in%b.groups != 0 || out%b.groups != 0) {
		b.fail("%d and %d channels cannot be split into %d groups", in, out, b.groups)
	}
	if b.err != nil {
		return &conv{err: b.err}
	}
	shape := append([]int{out, in / b.groups}, window...)
	fanIn := 1
	for _, n := range shape[1:] {
		if fanIn > math.MaxInt/n {
			b.fail("a weight of shape %v is too large", shape)
			break
		}
		fanIn *= n
	}
	c.Weight = b.parameter(shape, uniform(kaiming(fanIn)))
	if !b.noBias {
		c.Bias = b.parameter([]int{out}, uniform(1/math.Sqrt(float64(fanIn))))
	}
	if err := b.done(); err != nil {
		return &conv{err: err}
	}
	return c
}

// window returns the kernel argument for each dimension, or the numbers of the option Kernel.
func (b *builder) window(kernel, dims int) []int {
	if len(b.kernel) != 0 {
		return b.spread("Kernel", b.kernel, dims, 1, 1)
	}
	return b.spread("kernel", []int{kernel}, dims, 1, 1)
}

// MaxPool2d returns the maximum of each window of x (N, C, H, W), with shape (N, C, H', W'). PyTorch:
// torch.nn.MaxPool2d.
type MaxPool2d struct {
	Kernel, Stride, Padding, Dilation []int
	Ceil                              bool
	err                               error
}

// NewMaxPool2d returns a MaxPool2d with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding, Dilation, CeilMode.
func NewMaxPool2d(kernel int, opts ...Option) *MaxPool2d {
	b := build("NewMaxPool2d", opts, "Kernel", "Stride", "Padding", "Dilation", "CeilMode")
	p := &MaxPool2d{Ceil: b.ceil}
	p.Kernel, p.Stride, p.Padding = b.pool(kernel)
	p.Dilation = b.spread("Dilation", b.dilation, 2, 1, 1)
	if err := b.done(); err != nil {
		return &MaxPool2d{err: err}
	}
	return p
}

func (b *builder) pool(kernel int) (window, stride, padding []int) {
	window = b.window(kernel, 2)
	stride = window
	if len(b.stride) != 0 {
		stride = b.spread("Stride", b.stride, 2, 1, 1)
	}
	return window, stride, b.spread("Padding", b.padding, 2, 0, 0)
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxPool2d) Err() error {
	if p == nil {
		return nilModule("MaxPool2d")
	}
	return p.err
}

// Forward returns the maximum of each window of x.
func (p *MaxPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := p.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.MaxPool2d(p.Kernel, tensor.Stride(p.Stride...), tensor.Padding(p.Padding...), tensor.Dilation(p.Dilation...), tensor.CeilMode(p.Ceil))
}

// AvgPool2d returns the mean of each window of x (N, C, H, W), with shape (N, C, H', W'). PyTorch: torch.nn.AvgPool2d.
type AvgPool2d struct {
	Kernel, Stride, Padding []int
	Ceil, SkipPadding       bool
	err                     error
}

// NewAvgPool2d returns an AvgPool2d with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding, CeilMode, NotCountPadding.
func NewAvgPool2d(kernel int, opts ...Option) *AvgPool2d {
	b := build("NewAvgPool2d", opts, "Kernel", "Stride", "Padding", "CeilMode", "NotCountPadding")
	p := &AvgPool2d{Ceil: b.ceil, SkipPadding: b.noPad}
	p.Kernel, p.Stride, p.Padding = b.pool(kernel)
	if err := b.done(); err != nil {
		return &AvgPool2d{err: err}
	}
	return p
}

// Err returns the error of the constructor that made p, or nil.
func (p *AvgPool2d) Err() error {
	if p == nil {
		return nilModule("AvgPool2d")
	}
	return p.err
}

// Forward returns the mean of each window of x.
func (p *AvgPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := p.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.AvgPool2d(p.Kernel, tensor.Stride(p.Stride...), tensor.Padding(p.Padding...), tensor.CeilMode(p.Ceil), tensor.CountIncludePad(!p.SkipPadding))
}

// AdaptiveAvgPool2d averages x (N, C, H, W) over windows chosen such that the result is (N, C, Height, Width). PyTorch:
// torch.nn.AdaptiveAvgPool2d.
type AdaptiveAvgPool2d struct {
	Height, Width int
	err           error
}

// NewAdaptiveAvgPool2d returns an AdaptiveAvgPool2d whose results have the given height and width.
func NewAdaptiveAvgPool2d(height, width int) *AdaptiveAvgPool2d {
	b := build("NewAdaptiveAvgPool2d", nil)
	b.sizes("height", height, "width", width)
	if err := b.done(); err != nil {
		return &AdaptiveAvgPool2d{err: err}
	}
	return &AdaptiveAvgPool2d{Height: height, Width: width}
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveAvgPool2d) Err() error {
	if p == nil {
		return nilModule("AdaptiveAvgPool2d")
	}
	return p.err
}

// Forward returns the averages of x.
func (p *AdaptiveAvgPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := p.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.AdaptiveAvgPool2d(p.Height, p.Width)
}

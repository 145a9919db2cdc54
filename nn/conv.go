package nn

import (
	"math"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Conv2d convolves x (N, in, H, W) to (N, out, H', W'). Weight is (out, in/Groups, kH, kW), Bias (out) or nil.
// PyTorch: torch.nn.Conv2d.
type Conv2d struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
}

// NewConv2d makes one with a kernel×kernel window, initialized as PyTorch does. Options: Kernel(h, w), Stride,
// Padding, Dilation, Groups, NoBias, DType, Device.
func NewConv2d(in, out, kernel int, opts ...Option) (*Conv2d, error) {
	c, err := newConv("NewConv2d", 2, in, out, kernel, opts)
	return (*Conv2d)(c), err
}

// Forward computes it.
func (c *Conv2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if c == nil {
		return noModule("Conv2d")
	}
	return x.Conv2d(c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Padding(c.Padding...), tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
}

// Conv1d convolves x (N, in, L) to (N, out, L'). Weight is (out, in/Groups, k), Bias (out) or nil. PyTorch:
// torch.nn.Conv1d.
type Conv1d struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
}

// NewConv1d makes one with a window of kernel elements, initialized as PyTorch does. Options: Stride, Padding,
// Dilation, Groups, NoBias, DType, Device.
func NewConv1d(in, out, kernel int, opts ...Option) (*Conv1d, error) {
	c, err := newConv("NewConv1d", 1, in, out, kernel, opts)
	return (*Conv1d)(c), err
}

// Forward computes it.
func (c *Conv1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if c == nil {
		return noModule("Conv1d")
	}
	return x.Conv1d(c.Weight, c.Bias, tensor.Stride(c.Stride...), tensor.Padding(c.Padding...), tensor.Dilation(c.Dilation...), tensor.Groups(c.Groups))
}

type conv struct {
	Weight, Bias              *tensor.Tensor
	Stride, Padding, Dilation []int
	Groups                    int
}

func newConv(op string, dims, in, out, kernel int, opts []Option) (*conv, error) {
	known := []string{"Stride", "Padding", "Dilation", "Groups", "NoBias"}
	if dims > 1 {
		known = append(known, "Kernel")
	}
	s, err := read(op, opts, known...)
	if err != nil {
		return nil, err
	}
	if err := s.sizes("in", in, "out", out, "Groups", s.groups); err != nil {
		return nil, err
	}
	if in%s.groups != 0 || out%s.groups != 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, "%d and %d channels cannot be split into %d groups", in, out, s.groups)
	}
	window, err := s.window(kernel, dims)
	if err != nil {
		return nil, err
	}
	c := &conv{Groups: s.groups}
	if c.Stride, err = s.spread("Stride", s.stride, dims, 1, 1); err != nil {
		return nil, err
	}
	if c.Padding, err = s.spread("Padding", s.padding, dims, 0, 0); err != nil {
		return nil, err
	}
	if c.Dilation, err = s.spread("Dilation", s.dilation, dims, 1, 1); err != nil {
		return nil, err
	}
	shape := append([]int{out, in / s.groups}, window...)
	fanIn := 1
	for _, n := range shape[1:] {
		if fanIn > math.MaxInt/n {
			return nil, refuse.Error(op, tensor.ErrArgument, "a weight of shape %v is too large", shape)
		}
		fanIn *= n
	}
	m := maker{s: s}
	c.Weight = m.parameter(shape, uniform(kaiming(fanIn)))
	if !s.noBias {
		c.Bias = m.parameter([]int{out}, uniform(1/math.Sqrt(float64(fanIn))))
	}
	if err := m.done(); err != nil {
		return nil, err
	}
	return c, nil
}

// window is the constructor's number for every dimension, or what Kernel says.
func (s *settings) window(kernel, dims int) ([]int, error) {
	if len(s.kernel) != 0 {
		return s.spread("Kernel", s.kernel, dims, 1, 1)
	}
	return s.spread("kernel", []int{kernel}, dims, 1, 1)
}

// MaxPool2d takes the maxima of windows of x (N, C, H, W). PyTorch: torch.nn.MaxPool2d.
type MaxPool2d struct {
	Kernel, Stride, Padding, Dilation []int
	Ceil                              bool
}

// NewMaxPool2d makes one with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding, Dilation, CeilMode.
func NewMaxPool2d(kernel int, opts ...Option) (*MaxPool2d, error) {
	s, err := read("NewMaxPool2d", opts, "Kernel", "Stride", "Padding", "Dilation", "CeilMode")
	if err != nil {
		return nil, err
	}
	p := &MaxPool2d{Ceil: s.ceil}
	if p.Kernel, p.Stride, p.Padding, err = s.pool(kernel); err != nil {
		return nil, err
	}
	if p.Dilation, err = s.spread("Dilation", s.dilation, 2, 1, 1); err != nil {
		return nil, err
	}
	return p, nil
}

func (s *settings) pool(kernel int) (window, stride, padding []int, err error) {
	if window, err = s.window(kernel, 2); err != nil {
		return
	}
	if len(s.stride) == 0 {
		stride = window
	} else if stride, err = s.spread("Stride", s.stride, 2, 1, 1); err != nil {
		return
	}
	padding, err = s.spread("Padding", s.padding, 2, 0, 0)
	return
}

// Forward computes it.
func (p *MaxPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if p == nil {
		return noModule("MaxPool2d")
	}
	return x.MaxPool2d(p.Kernel, tensor.Stride(p.Stride...), tensor.Padding(p.Padding...), tensor.Dilation(p.Dilation...), tensor.CeilMode(p.Ceil))
}

// AvgPool2d takes the means of windows of x (N, C, H, W). PyTorch: torch.nn.AvgPool2d.
type AvgPool2d struct {
	Kernel, Stride, Padding []int
	Ceil, SkipPadding       bool
}

// NewAvgPool2d makes one with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding, CeilMode, NotCountPadding.
func NewAvgPool2d(kernel int, opts ...Option) (*AvgPool2d, error) {
	s, err := read("NewAvgPool2d", opts, "Kernel", "Stride", "Padding", "CeilMode", "NotCountPadding")
	if err != nil {
		return nil, err
	}
	p := &AvgPool2d{Ceil: s.ceil, SkipPadding: s.noPad}
	if p.Kernel, p.Stride, p.Padding, err = s.pool(kernel); err != nil {
		return nil, err
	}
	return p, nil
}

// Forward computes it.
func (p *AvgPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if p == nil {
		return noModule("AvgPool2d")
	}
	return x.AvgPool2d(p.Kernel, tensor.Stride(p.Stride...), tensor.Padding(p.Padding...), tensor.CeilMode(p.Ceil), tensor.CountIncludePad(!p.SkipPadding))
}

// AdaptiveAvgPool2d takes means of x (N, C, H, W) such that (N, C, Height, Width) comes out. PyTorch:
// torch.nn.AdaptiveAvgPool2d.
type AdaptiveAvgPool2d struct{ Height, Width int }

// NewAdaptiveAvgPool2d makes one.
func NewAdaptiveAvgPool2d(height, width int) (*AdaptiveAvgPool2d, error) {
	s, err := read("NewAdaptiveAvgPool2d", nil)
	if err != nil {
		return nil, err
	}
	if err := s.sizes("height", height, "width", width); err != nil {
		return nil, err
	}
	return &AdaptiveAvgPool2d{height, width}, nil
}

// Forward computes it.
func (p *AdaptiveAvgPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if p == nil {
		return noModule("AdaptiveAvgPool2d")
	}
	return x.AdaptiveAvgPool2d(p.Height, p.Width)
}

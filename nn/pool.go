package nn

import (
	"math"

	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

func (b *builder) pool(kernel, dims int) (window, stride []int) {
	window = b.window(kernel, dims)
	if len(b.stride) != 0 {
		return window, b.spread("Stride", b.stride, dims, 1, 1)
	}
	return window, window
}

// poolOptions are the options of a pool: its own and, from two dimensions on, Kernel.
func poolOptions(dims int, own ...string) []string {
	if dims > 1 {
		return append([]string{"Kernel"}, own...)
	}
	return own
}

// maxPool is the common form of MaxPool1d, MaxPool2d and MaxPool3d.
type maxPool struct {
	Kernel, Stride, Padding, Dilation []int
	Ceil                              bool
	err                               error
}

func newMaxPool(op string, dims, kernel int, opts []Option) *maxPool {
	b := build(op, opts, poolOptions(dims, "Stride", "Padding", "Dilation", "CeilMode")...)
	p := &maxPool{Ceil: b.ceil}
	p.Kernel, p.Stride = b.pool(kernel, dims)
	p.Padding = b.spread("Padding", b.padding, dims, 0, 0)
	p.Dilation = b.spread("Dilation", b.dilation, dims, 1, 1)
	if err := b.done(); err != nil {
		return &maxPool{err: err}
	}
	return p
}

func (p *maxPool) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

var maximum = [4]func(x *tensor.Tensor, kernel []int, opts ...tensor.Option) *tensor.Tensor{
	1: (*tensor.Tensor).MaxPool1d, 2: (*tensor.Tensor).MaxPool2d, 3: (*tensor.Tensor).MaxPool3d}

func (p *maxPool) forward(op string, dims int, x *tensor.Tensor) *tensor.Tensor {
	if err := p.failure(op); err != nil {
		return tensor.Failed(err)
	}
	return maximum[dims](x, p.Kernel, tensor.Stride(p.Stride...), tensor.Padding(p.Padding...), tensor.Dilation(p.Dilation...), tensor.CeilMode(p.Ceil))
}

func (p *maxPool) indices(op string, dims int, x *tensor.Tensor) (y, indices *tensor.Tensor) {
	if err := p.failure(op); err != nil {
		return broken(err)
	}
	name := [...]string{1: "aten::max_pool1d_with_indices", 2: "aten::max_pool2d_with_indices", 3: "aten::max_pool3d_with_indices"}[dims]
	return two(op, name, x, p.Kernel, p.Stride, p.Padding, p.Dilation, p.Ceil)
}

// avgPool is the common form of AvgPool1d, AvgPool2d and AvgPool3d.
type avgPool struct {
	Kernel, Stride, Padding []int
	Ceil, SkipPadding       bool
	Divisor                 int // replaces the number of elements of a window; 0 for none
	err                     error
}

func newAvgPool(op string, dims, kernel int, opts []Option) *avgPool {
	known := poolOptions(dims, "Stride", "Padding", "CeilMode", "NotCountPadding")
	if dims > 1 {
		known = append(known, "DivisorOverride")
	}
	b := build(op, opts, known...)
	p := &avgPool{Ceil: b.ceil, SkipPadding: b.noPad, Divisor: b.divisor}
	p.Kernel, p.Stride = b.pool(kernel, dims)
	p.Padding = b.spread("Padding", b.padding, dims, 0, 0)
	if b.hasDivisor && b.divisor == 0 {
		b.fail("DivisorOverride must not be 0")
	}
	if err := b.done(); err != nil {
		return &avgPool{err: err}
	}
	return p
}

func (p *avgPool) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

var average = [4]func(x *tensor.Tensor, kernel []int, opts ...tensor.Option) *tensor.Tensor{
	1: (*tensor.Tensor).AvgPool1d, 2: (*tensor.Tensor).AvgPool2d, 3: (*tensor.Tensor).AvgPool3d}

func (p *avgPool) forward(op string, dims int, x *tensor.Tensor) *tensor.Tensor {
	if err := p.failure(op); err != nil {
		return tensor.Failed(err)
	}
	opts := []tensor.Option{tensor.Stride(p.Stride...), tensor.Padding(p.Padding...), tensor.CeilMode(p.Ceil), tensor.CountIncludePad(!p.SkipPadding)}
	if p.Divisor != 0 && dims > 1 {
		opts = append(opts, tensor.DivisorOverride(p.Divisor))
	}
	return average[dims](x, p.Kernel, opts...)
}

// lpPool is the common form of LPPool1d, LPPool2d and LPPool3d.
type lpPool struct {
	Norm           float64
	Kernel, Stride []int
	Ceil           bool
	follows        bool // Stride was not given: PyTorch keeps None
	err            error
}

func newLPPool(op string, dims int, norm float64, kernel int, opts []Option) *lpPool {
	b := build(op, opts, poolOptions(dims, "Stride", "CeilMode")...)
	p := &lpPool{Norm: norm, Ceil: b.ceil, follows: len(b.stride) == 0}
	if norm == 0 || math.IsNaN(norm) {
		b.fail("norm must be a number other than 0, got %v", norm)
	}
	p.Kernel, p.Stride = b.pool(kernel, dims)
	if err := b.done(); err != nil {
		return &lpPool{err: err}
	}
	return p
}

func (p *lpPool) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

func (p *lpPool) forward(op string, dims int, x *tensor.Tensor) *tensor.Tensor {
	if err := p.failure(op); err != nil {
		return tensor.Failed(err)
	}
	stride, ceil := tensor.Stride(p.Stride...), tensor.CeilMode(p.Ceil)
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		switch {
		case p.Norm == 0:
			return refuse.Tensor(op, tensor.ErrArgument, "Norm must not be 0")
		case math.IsInf(p.Norm, 1):
			return maximum[dims](x.Abs(), p.Kernel, stride, ceil)
		case math.IsInf(p.Norm, -1):
			abs := x.Abs()
			negative := free.After(abs.Neg(), abs)
			return free.After(maximum[dims](negative, p.Kernel, stride, ceil), negative).Neg()
		}
		power := x.Pow(p.Norm)
		mean := free.After(average[dims](power, p.Kernel, stride, ceil), power)
		sign, abs := mean.Sign(), free.After(mean.Abs(), mean)
		positive := free.After(abs.ReLU(), abs)
		signed := free.After(sign.Mul(positive), sign, positive)
		return free.After(signed.Mul(product(p.Kernel)), signed).Pow(1 / p.Norm)
	})
}

// unpool is the common form of MaxUnpool1d, MaxUnpool2d and MaxUnpool3d.
type unpool struct {
	Kernel, Stride, Padding []int
	err                     error
}

func newUnpool(op string, dims, kernel int, opts []Option) *unpool {
	b := build(op, opts, poolOptions(dims, "Stride", "Padding")...)
	p := &unpool{}
	p.Kernel, p.Stride = b.pool(kernel, dims)
	p.Padding = b.spread("Padding", b.padding, dims, 0, 0)
	if err := b.done(); err != nil {
		return &unpool{err: err}
	}
	return p
}

func (p *unpool) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

func (p *unpool) forward(op string, dims int, x, indices *tensor.Tensor, size []int) *tensor.Tensor {
	if err := p.failure(op); err != nil {
		return tensor.Failed(err)
	}
	for _, t := range []*tensor.Tensor{x, indices} {
		if bad := unusable(op, t); bad != nil {
			return bad
		}
	}
	shape := x.Shape()
	if len(shape) < dims+1 || len(shape) > dims+2 || len(p.Kernel) != dims || len(p.Stride) != dims || len(p.Padding) != dims {
		return refuse.Tensor(op, tensor.ErrArgument, "x must have %d or %d dimensions, got shape %v", dims+1, dims+2, shape)
	}
	in := shape[len(shape)-dims:]
	full := make([]int, dims)
	for i := range dims {
		full[i] = (in[i]-1)*p.Stride[i] + p.Kernel[i] - 2*p.Padding[i]
	}
	if len(size) != 0 {
		if n := len(size); n == dims+2 || n == len(shape) { // the shape of the pool's input
			size = size[n-dims:]
		}
		if len(size) != dims {
			return refuse.Tensor(op, tensor.ErrArgument, "the output size needs %d numbers, got %v", dims, size)
		}
		for i, n := range size {
			if n <= full[i]-p.Stride[i] || n >= full[i]+p.Stride[i] {
				return refuse.Tensor(op, tensor.ErrArgument, "dimension %d of the output must be above %d and below %d, got %d", i, full[i]-p.Stride[i], full[i]+p.Stride[i], n)
			}
		}
		full = size
	}
	for _, n := range full {
		if n < 0 || n > maxSize {
			return refuse.Tensor(op, tensor.ErrArgument, "the output cannot have the size %v", full)
		}
	}
	switch dims {
	case 1:
		return tidy(func(*tensor.Scope) *tensor.Tensor {
			return x.Unsqueeze(-1).MaxUnpool2d(indices.Unsqueeze(-1), full[0], 1).SqueezeDim(-1)
		})
	case 2:
		return x.MaxUnpool2d(indices, full...)
	}
	return one(op, "aten::max_unpool3d", x, indices, full, p.Stride, p.Padding)
}

// adaptive is the common form of the adaptive pools.
type adaptive struct {
	Size []int
	err  error
}

// Keep, as an output size of an adaptive pool, keeps the size of the input in that dimension (None).
const Keep = -1

func newAdaptive(op string, dims int, size []int) *adaptive {
	b := build(op, nil)
	if len(size) == 0 {
		b.fail("an output size is needed")
	}
	p := &adaptive{Size: b.spread("the output size", size, dims, 1, Keep)}
	for _, n := range p.Size {
		if n == 0 {
			b.fail("the output size must be positive or Keep, got %v", p.Size)
		}
	}
	if err := b.done(); err != nil {
		return &adaptive{err: err}
	}
	return p
}

func (p *adaptive) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

// size returns the output size for x.
func (p *adaptive) size(op string, dims int, x *tensor.Tensor) ([]int, error) {
	if err := p.failure(op); err != nil {
		return nil, err
	}
	if err := refuse.Unusable(op, "", x); err != nil {
		return nil, err
	}
	in := trailing(x, dims)
	if len(p.Size) != dims || in == nil {
		return nil, refuse.Error(op, tensor.ErrArgument, "x must have at least %d dimensions and Size %d numbers, got %v and %v", dims, dims, x.Shape(), p.Size)
	}
	size := make([]int, dims)
	for i, n := range p.Size {
		if size[i] = n; n == Keep {
			size[i] = in[i]
		}
	}
	return size, nil
}

func (p *adaptive) average(op string, dims int, x *tensor.Tensor) *tensor.Tensor {
	size, err := p.size(op, dims, x)
	if err != nil {
		return tensor.Failed(err)
	}
	return adaptiveAverage(dims, x, size)
}

// adaptiveAverage averages x over dims dimensions to the given size.
func adaptiveAverage(dims int, x *tensor.Tensor, size []int) *tensor.Tensor {
	switch dims {
	case 1:
		return x.AdaptiveAvgPool1d(size...)
	case 2:
		return x.AdaptiveAvgPool2d(size...)
	}
	return x.AdaptiveAvgPool3d(size...)
}

func (p *adaptive) maximum(op string, dims int, x *tensor.Tensor) (y, indices *tensor.Tensor) {
	size, err := p.size(op, dims, x)
	if err != nil {
		return broken(err)
	}
	switch dims {
	case 1:
		return x.AdaptiveMaxPool1d(size...)
	case 2:
		return x.AdaptiveMaxPool2d(size...)
	}
	return two(op, "aten::adaptive_max_pool3d", x, size)
}

// first returns the first of two results and frees the second.
func first(y, second *tensor.Tensor) *tensor.Tensor {
	if second != y {
		second.Release()
	}
	return y
}

// fractional is the common form of FractionalMaxPool2d and FractionalMaxPool3d.
type fractional struct {
	Kernel, Size []int
	Ratio        []float64
	err          error
}

func newFractional(op string, dims, kernel int, opts []Option) *fractional {
	b := build(op, opts, "Kernel", "OutputSize", "OutputRatio")
	p := &fractional{Kernel: b.window(kernel, dims)}
	if (len(b.outputSize) == 0) == (len(b.outputRatio) == 0) {
		b.fail("one of OutputSize and OutputRatio is needed")
	}
	if len(b.outputSize) != 0 {
		p.Size = b.spread("OutputSize", b.outputSize, dims, 1, 1)
	} else if n := len(b.outputRatio); n == 1 || n == dims {
		for i := range dims {
			r := b.outputRatio[min(i, n-1)]
			if !(r > 0 && r < 1) {
				b.fail("OutputRatio must be in (0, 1), got %v", b.outputRatio)
			}
			p.Ratio = append(p.Ratio, r)
		}
	} else {
		b.fail("OutputRatio takes 1 or %d numbers, got %d", dims, n)
	}
	if err := b.done(); err != nil {
		return &fractional{err: err}
	}
	return p
}

func (p *fractional) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

func (p *fractional) indices(op string, dims int, x *tensor.Tensor) (y, indices *tensor.Tensor) {
	if err := p.failure(op); err != nil {
		return broken(err)
	}
	if err := refuse.Unusable(op, "", x); err != nil {
		return broken(err)
	}
	shape := x.Shape()
	if len(shape) < dims+1 || len(shape) > dims+2 || len(p.Kernel) != dims || len(p.Size) != dims && len(p.Ratio) != dims {
		return broken(refuse.Error(op, tensor.ErrArgument, "x must have %d or %d dimensions, got shape %v", dims+1, dims+2, shape))
	}
	in := shape[len(shape)-dims:]
	size := p.Size
	if len(size) == 0 {
		for i, r := range p.Ratio {
			size = append(size, int(float64(in[i])*r))
		}
	}
	for i, n := range size {
		if n < 1 || p.Kernel[i] < 1 || n > in[i] || p.Kernel[i] > in[i]-n+1 {
			return broken(refuse.Error(op, tensor.ErrArgument, "windows of %v cannot pool %v to %v", p.Kernel, in, size))
		}
	}
	batch := 1
	if len(shape) == dims+2 {
		batch = shape[0]
	}
	samples := tensor.Rand([]int{batch, shape[len(shape)-dims-1], dims}, x.DType(), x.Device())
	defer samples.Release()
	return two(op, [...]string{2: "aten::fractional_max_pool2d", 3: "aten::fractional_max_pool3d"}[dims], x, p.Kernel, size, samples)
}

// MaxPool1d returns the maximum of each window of x (N, C, L), with shape (N, C, L'), or the same without N. Its
// fields are Kernel, Stride, Padding, Dilation and Ceil. PyTorch: torch.nn.MaxPool1d.
type MaxPool1d maxPool

// NewMaxPool1d returns a MaxPool1d with windows of kernel elements. Options: Stride (the window's size by
// default), Padding, Dilation, CeilMode.
func NewMaxPool1d(kernel int, opts ...Option) *MaxPool1d {
	return (*MaxPool1d)(newMaxPool("NewMaxPool1d", 1, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxPool1d) Err() error { return (*maxPool)(p).failure("MaxPool1d") }

// Forward returns the maximum of each window of x.
func (p *MaxPool1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*maxPool)(p).forward("MaxPool1d", 1, x)
}

// ForwardIndices returns the maxima and their int64 indices into the last dimension of x, as MaxUnpool1d takes them
// (return_indices=True).
func (p *MaxPool1d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*maxPool)(p).indices("MaxPool1d", 1, x)
}

// MaxPool2d returns the maximum of each window of x (N, C, H, W), with shape (N, C, H', W'), or the same without N. Its
// fields are Kernel, Stride, Padding, Dilation and Ceil. PyTorch: torch.nn.MaxPool2d.
type MaxPool2d maxPool

// NewMaxPool2d returns a MaxPool2d with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding, Dilation, CeilMode.
func NewMaxPool2d(kernel int, opts ...Option) *MaxPool2d {
	return (*MaxPool2d)(newMaxPool("NewMaxPool2d", 2, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxPool2d) Err() error { return (*maxPool)(p).failure("MaxPool2d") }

// Forward returns the maximum of each window of x.
func (p *MaxPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*maxPool)(p).forward("MaxPool2d", 2, x)
}

// ForwardIndices returns the maxima and their int64 indices into the last 2 dimensions of x, as MaxUnpool2d takes them
// (return_indices=True).
func (p *MaxPool2d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*maxPool)(p).indices("MaxPool2d", 2, x)
}

// MaxPool3d returns the maximum of each window of x (N, C, D, H, W), with shape (N, C, D', H', W'), or the same without N. Its
// fields are Kernel, Stride, Padding, Dilation and Ceil. PyTorch: torch.nn.MaxPool3d.
type MaxPool3d maxPool

// NewMaxPool3d returns a MaxPool3d with a kernel×kernel×kernel window. Options: Kernel(d, h, w), Stride (the window's size by
// default), Padding, Dilation, CeilMode.
func NewMaxPool3d(kernel int, opts ...Option) *MaxPool3d {
	return (*MaxPool3d)(newMaxPool("NewMaxPool3d", 3, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxPool3d) Err() error { return (*maxPool)(p).failure("MaxPool3d") }

// Forward returns the maximum of each window of x.
func (p *MaxPool3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*maxPool)(p).forward("MaxPool3d", 3, x)
}

// ForwardIndices returns the maxima and their int64 indices into the last 3 dimensions of x, as MaxUnpool3d takes them
// (return_indices=True).
func (p *MaxPool3d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*maxPool)(p).indices("MaxPool3d", 3, x)
}

// AvgPool1d returns the mean of each window of x (N, C, L), with shape (N, C, L'), or the same without N. Its fields
// are Kernel, Stride, Padding, Ceil, SkipPadding. Divisor is not used. PyTorch: torch.nn.AvgPool1d.
type AvgPool1d avgPool

// NewAvgPool1d returns an AvgPool1d with windows of kernel elements. Options: Stride (the window's size by
// default), Padding, CeilMode, NotCountPadding.
func NewAvgPool1d(kernel int, opts ...Option) *AvgPool1d {
	return (*AvgPool1d)(newAvgPool("NewAvgPool1d", 1, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AvgPool1d) Err() error { return (*avgPool)(p).failure("AvgPool1d") }

// Forward returns the mean of each window of x.
func (p *AvgPool1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*avgPool)(p).forward("AvgPool1d", 1, x)
}

// AvgPool2d returns the mean of each window of x (N, C, H, W), with shape (N, C, H', W'), or the same without N. Its fields
// are Kernel, Stride, Padding, Ceil, SkipPadding and Divisor. PyTorch: torch.nn.AvgPool2d.
type AvgPool2d avgPool

// NewAvgPool2d returns an AvgPool2d with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding, CeilMode, NotCountPadding, DivisorOverride.
func NewAvgPool2d(kernel int, opts ...Option) *AvgPool2d {
	return (*AvgPool2d)(newAvgPool("NewAvgPool2d", 2, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AvgPool2d) Err() error { return (*avgPool)(p).failure("AvgPool2d") }

// Forward returns the mean of each window of x.
func (p *AvgPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*avgPool)(p).forward("AvgPool2d", 2, x)
}

// AvgPool3d returns the mean of each window of x (N, C, D, H, W), with shape (N, C, D', H', W'), or the same without N. Its fields
// are Kernel, Stride, Padding, Ceil, SkipPadding and Divisor. PyTorch: torch.nn.AvgPool3d.
type AvgPool3d avgPool

// NewAvgPool3d returns an AvgPool3d with a kernel×kernel×kernel window. Options: Kernel(d, h, w), Stride (the window's size by
// default), Padding, CeilMode, NotCountPadding, DivisorOverride.
func NewAvgPool3d(kernel int, opts ...Option) *AvgPool3d {
	return (*AvgPool3d)(newAvgPool("NewAvgPool3d", 3, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AvgPool3d) Err() error { return (*avgPool)(p).failure("AvgPool3d") }

// Forward returns the mean of each window of x.
func (p *AvgPool3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*avgPool)(p).forward("AvgPool3d", 3, x)
}

// LPPool1d returns (sum of x^Norm)^(1/Norm) over each window of x (N, C, L), with shape (N, C, L'), or the same
// without N; an infinite Norm gives the maximum of |x|. Its fields are Norm, Kernel, Stride and Ceil. PyTorch: torch.nn.LPPool1d.
type LPPool1d lpPool

// NewLPPool1d returns an LPPool1d of the given norm with windows of kernel elements. Options: Stride (the
// window's size by default), CeilMode.
func NewLPPool1d(norm float64, kernel int, opts ...Option) *LPPool1d {
	return (*LPPool1d)(newLPPool("NewLPPool1d", 1, norm, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *LPPool1d) Err() error { return (*lpPool)(p).failure("LPPool1d") }

// Forward returns the norm of each window of x.
func (p *LPPool1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*lpPool)(p).forward("LPPool1d", 1, x)
}

// LPPool2d returns (sum of x^Norm)^(1/Norm) over each window of x (N, C, H, W), with shape (N, C, H', W'), or the same
// without N; an infinite Norm gives the maximum of |x|. Its fields are Norm, Kernel, Stride and Ceil. PyTorch: torch.nn.LPPool2d.
type LPPool2d lpPool

// NewLPPool2d returns an LPPool2d of the given norm with a kernel×kernel window. Options: Kernel(h, w), Stride (the
// window's size by default), CeilMode.
func NewLPPool2d(norm float64, kernel int, opts ...Option) *LPPool2d {
	return (*LPPool2d)(newLPPool("NewLPPool2d", 2, norm, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *LPPool2d) Err() error { return (*lpPool)(p).failure("LPPool2d") }

// Forward returns the norm of each window of x.
func (p *LPPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*lpPool)(p).forward("LPPool2d", 2, x)
}

// LPPool3d returns (sum of x^Norm)^(1/Norm) over each window of x (N, C, D, H, W), with shape (N, C, D', H', W'), or the same
// without N; an infinite Norm gives the maximum of |x|. Its fields are Norm, Kernel, Stride and Ceil. PyTorch: torch.nn.LPPool3d.
type LPPool3d lpPool

// NewLPPool3d returns an LPPool3d of the given norm with a kernel×kernel×kernel window. Options: Kernel(d, h, w), Stride (the
// window's size by default), CeilMode.
func NewLPPool3d(norm float64, kernel int, opts ...Option) *LPPool3d {
	return (*LPPool3d)(newLPPool("NewLPPool3d", 3, norm, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *LPPool3d) Err() error { return (*lpPool)(p).failure("LPPool3d") }

// Forward returns the norm of each window of x.
func (p *LPPool3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*lpPool)(p).forward("LPPool3d", 3, x)
}

// MaxUnpool1d puts maxima (N, C, L) back to the places that MaxPool1d took them from, in zeros of shape (N, C, L'), or
// the same without N. Its fields are Kernel, Stride and Padding, those of the MaxPool1d. PyTorch: torch.nn.MaxUnpool1d.
type MaxUnpool1d unpool

// NewMaxUnpool1d returns a MaxUnpool1d with windows of kernel elements. Options: Stride (the window's size by
// default), Padding.
func NewMaxUnpool1d(kernel int, opts ...Option) *MaxUnpool1d {
	return (*MaxUnpool1d)(newUnpool("NewMaxUnpool1d", 1, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxUnpool1d) Err() error { return (*unpool)(p).failure("MaxUnpool1d") }

// Forward puts x back to the places indices, both of MaxPool1d.ForwardIndices. Several inputs of MaxPool1d have outputs of
// one size; size, if given, says which size the result has (output_size=): of the last dimensions, or of all.
func (p *MaxUnpool1d) Forward(x, indices *tensor.Tensor, size ...int) *tensor.Tensor {
	return (*unpool)(p).forward("MaxUnpool1d", 1, x, indices, append([]int{}, size...))
}

// MaxUnpool2d puts maxima (N, C, H, W) back to the places that MaxPool2d took them from, in zeros of shape (N, C, H', W'), or
// the same without N. Its fields are Kernel, Stride and Padding, those of the MaxPool2d. PyTorch: torch.nn.MaxUnpool2d.
type MaxUnpool2d unpool

// NewMaxUnpool2d returns a MaxUnpool2d with a kernel×kernel window. Options: Kernel(h, w), Stride (the window's size by
// default), Padding.
func NewMaxUnpool2d(kernel int, opts ...Option) *MaxUnpool2d {
	return (*MaxUnpool2d)(newUnpool("NewMaxUnpool2d", 2, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxUnpool2d) Err() error { return (*unpool)(p).failure("MaxUnpool2d") }

// Forward puts x back to the places indices, both of MaxPool2d.ForwardIndices. Several inputs of MaxPool2d have outputs of
// one size; size, if given, says which size the result has (output_size=): of the last dimensions, or of all.
func (p *MaxUnpool2d) Forward(x, indices *tensor.Tensor, size ...int) *tensor.Tensor {
	return (*unpool)(p).forward("MaxUnpool2d", 2, x, indices, append([]int{}, size...))
}

// MaxUnpool3d puts maxima (N, C, D, H, W) back to the places that MaxPool3d took them from, in zeros of shape (N, C, D', H', W'), or
// the same without N. Its fields are Kernel, Stride and Padding, those of the MaxPool3d. PyTorch: torch.nn.MaxUnpool3d.
type MaxUnpool3d unpool

// NewMaxUnpool3d returns a MaxUnpool3d with a kernel×kernel×kernel window. Options: Kernel(d, h, w), Stride (the window's size by
// default), Padding.
func NewMaxUnpool3d(kernel int, opts ...Option) *MaxUnpool3d {
	return (*MaxUnpool3d)(newUnpool("NewMaxUnpool3d", 3, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *MaxUnpool3d) Err() error { return (*unpool)(p).failure("MaxUnpool3d") }

// Forward puts x back to the places indices, both of MaxPool3d.ForwardIndices. Several inputs of MaxPool3d have outputs of
// one size; size, if given, says which size the result has (output_size=): of the last dimensions, or of all.
func (p *MaxUnpool3d) Forward(x, indices *tensor.Tensor, size ...int) *tensor.Tensor {
	return (*unpool)(p).forward("MaxUnpool3d", 3, x, indices, append([]int{}, size...))
}

// AdaptiveAvgPool1d averages x (N, C, L), or the same without N, over windows chosen such that the result has the size of its
// field Size in the last dimension. PyTorch: torch.nn.AdaptiveAvgPool1d.
type AdaptiveAvgPool1d adaptive

// NewAdaptiveAvgPool1d returns an AdaptiveAvgPool1d whose results have the given size: 1 number; Keep keeps the input's size.
func NewAdaptiveAvgPool1d(size ...int) *AdaptiveAvgPool1d {
	return (*AdaptiveAvgPool1d)(newAdaptive("NewAdaptiveAvgPool1d", 1, size))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveAvgPool1d) Err() error { return (*adaptive)(p).failure("AdaptiveAvgPool1d") }

// Forward returns the averages of x.
func (p *AdaptiveAvgPool1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*adaptive)(p).average("AdaptiveAvgPool1d", 1, x)
}

// AdaptiveMaxPool1d takes the maxima of x (N, C, L), or the same without N, over windows chosen such that the result has the size of its
// field Size in the last dimension. PyTorch: torch.nn.AdaptiveMaxPool1d.
type AdaptiveMaxPool1d adaptive

// NewAdaptiveMaxPool1d returns an AdaptiveMaxPool1d whose results have the given size: 1 number; Keep keeps the input's size.
func NewAdaptiveMaxPool1d(size ...int) *AdaptiveMaxPool1d {
	return (*AdaptiveMaxPool1d)(newAdaptive("NewAdaptiveMaxPool1d", 1, size))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveMaxPool1d) Err() error { return (*adaptive)(p).failure("AdaptiveMaxPool1d") }

// Forward returns the maxima of x.
func (p *AdaptiveMaxPool1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return first((*adaptive)(p).maximum("AdaptiveMaxPool1d", 1, x))
}

// ForwardIndices returns the maxima and their int64 indices into the last dimension of x (return_indices=True).
func (p *AdaptiveMaxPool1d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*adaptive)(p).maximum("AdaptiveMaxPool1d", 1, x)
}

// AdaptiveAvgPool2d averages x (N, C, H, W), or the same without N, over windows chosen such that the result has the size of its
// field Size in the last 2 dimensions. PyTorch: torch.nn.AdaptiveAvgPool2d.
type AdaptiveAvgPool2d adaptive

// NewAdaptiveAvgPool2d returns an AdaptiveAvgPool2d whose results have the given size: 2 numbers, or 1 for all; Keep keeps the input's size.
func NewAdaptiveAvgPool2d(size ...int) *AdaptiveAvgPool2d {
	return (*AdaptiveAvgPool2d)(newAdaptive("NewAdaptiveAvgPool2d", 2, size))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveAvgPool2d) Err() error { return (*adaptive)(p).failure("AdaptiveAvgPool2d") }

// Forward returns the averages of x.
func (p *AdaptiveAvgPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*adaptive)(p).average("AdaptiveAvgPool2d", 2, x)
}

// AdaptiveMaxPool2d takes the maxima of x (N, C, H, W), or the same without N, over windows chosen such that the result has the size of its
// field Size in the last 2 dimensions. PyTorch: torch.nn.AdaptiveMaxPool2d.
type AdaptiveMaxPool2d adaptive

// NewAdaptiveMaxPool2d returns an AdaptiveMaxPool2d whose results have the given size: 2 numbers, or 1 for all; Keep keeps the input's size.
func NewAdaptiveMaxPool2d(size ...int) *AdaptiveMaxPool2d {
	return (*AdaptiveMaxPool2d)(newAdaptive("NewAdaptiveMaxPool2d", 2, size))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveMaxPool2d) Err() error { return (*adaptive)(p).failure("AdaptiveMaxPool2d") }

// Forward returns the maxima of x.
func (p *AdaptiveMaxPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return first((*adaptive)(p).maximum("AdaptiveMaxPool2d", 2, x))
}

// ForwardIndices returns the maxima and their int64 indices into the last 2 dimensions of x (return_indices=True).
func (p *AdaptiveMaxPool2d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*adaptive)(p).maximum("AdaptiveMaxPool2d", 2, x)
}

// AdaptiveAvgPool3d averages x (N, C, D, H, W), or the same without N, over windows chosen such that the result has the size of its
// field Size in the last 3 dimensions. PyTorch: torch.nn.AdaptiveAvgPool3d.
type AdaptiveAvgPool3d adaptive

// NewAdaptiveAvgPool3d returns an AdaptiveAvgPool3d whose results have the given size: 3 numbers, or 1 for all; Keep keeps the input's size.
func NewAdaptiveAvgPool3d(size ...int) *AdaptiveAvgPool3d {
	return (*AdaptiveAvgPool3d)(newAdaptive("NewAdaptiveAvgPool3d", 3, size))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveAvgPool3d) Err() error { return (*adaptive)(p).failure("AdaptiveAvgPool3d") }

// Forward returns the averages of x.
func (p *AdaptiveAvgPool3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*adaptive)(p).average("AdaptiveAvgPool3d", 3, x)
}

// AdaptiveMaxPool3d takes the maxima of x (N, C, D, H, W), or the same without N, over windows chosen such that the result has the size of its
// field Size in the last 3 dimensions. PyTorch: torch.nn.AdaptiveMaxPool3d.
type AdaptiveMaxPool3d adaptive

// NewAdaptiveMaxPool3d returns an AdaptiveMaxPool3d whose results have the given size: 3 numbers, or 1 for all; Keep keeps the input's size.
func NewAdaptiveMaxPool3d(size ...int) *AdaptiveMaxPool3d {
	return (*AdaptiveMaxPool3d)(newAdaptive("NewAdaptiveMaxPool3d", 3, size))
}

// Err returns the error of the constructor that made p, or nil.
func (p *AdaptiveMaxPool3d) Err() error { return (*adaptive)(p).failure("AdaptiveMaxPool3d") }

// Forward returns the maxima of x.
func (p *AdaptiveMaxPool3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return first((*adaptive)(p).maximum("AdaptiveMaxPool3d", 3, x))
}

// ForwardIndices returns the maxima and their int64 indices into the last 3 dimensions of x (return_indices=True).
func (p *AdaptiveMaxPool3d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*adaptive)(p).maximum("AdaptiveMaxPool3d", 3, x)
}

// FractionalMaxPool2d returns the maxima of x (N, C, H, W), or the same without N, in windows at random places (Graham 2014). It
// draws the places in training and evaluation. Its fields are Kernel and Size or Ratio. PyTorch: torch.nn.FractionalMaxPool2d.
type FractionalMaxPool2d fractional

// NewFractionalMaxPool2d returns a FractionalMaxPool2d with a kernel×kernel window. Options: Kernel(h, w), OutputSize or OutputRatio, of
// which one is needed.
func NewFractionalMaxPool2d(kernel int, opts ...Option) *FractionalMaxPool2d {
	return (*FractionalMaxPool2d)(newFractional("NewFractionalMaxPool2d", 2, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *FractionalMaxPool2d) Err() error { return (*fractional)(p).failure("FractionalMaxPool2d") }

// Forward returns the maximum of each window of x.
func (p *FractionalMaxPool2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return first((*fractional)(p).indices("FractionalMaxPool2d", 2, x))
}

// ForwardIndices returns the maxima and their int64 indices into the last 2 dimensions of x (return_indices=True).
func (p *FractionalMaxPool2d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*fractional)(p).indices("FractionalMaxPool2d", 2, x)
}

// FractionalMaxPool3d returns the maxima of x (N, C, D, H, W), or the same without N, in windows at random places (Graham 2014). It
// draws the places in training and evaluation. Its fields are Kernel and Size or Ratio. PyTorch: torch.nn.FractionalMaxPool3d.
type FractionalMaxPool3d fractional

// NewFractionalMaxPool3d returns a FractionalMaxPool3d with a kernel×kernel×kernel window. Options: Kernel(d, h, w), OutputSize or OutputRatio, of
// which one is needed.
func NewFractionalMaxPool3d(kernel int, opts ...Option) *FractionalMaxPool3d {
	return (*FractionalMaxPool3d)(newFractional("NewFractionalMaxPool3d", 3, kernel, opts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *FractionalMaxPool3d) Err() error { return (*fractional)(p).failure("FractionalMaxPool3d") }

// Forward returns the maximum of each window of x.
func (p *FractionalMaxPool3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return first((*fractional)(p).indices("FractionalMaxPool3d", 3, x))
}

// ForwardIndices returns the maxima and their int64 indices into the last 3 dimensions of x (return_indices=True).
func (p *FractionalMaxPool3d) ForwardIndices(x *tensor.Tensor) (y, indices *tensor.Tensor) {
	return (*fractional)(p).indices("FractionalMaxPool3d", 3, x)
}

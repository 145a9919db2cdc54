package nn

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// padding is the common form of the padding modules.
type padding struct {
	Padding []int // of the last dimension before and after, of the one before it, and so on
	Value   float64
	err     error
}

func newPadding(op string, dims int, value float64, amounts []int) *padding {
	b := build(op, nil)
	if n := len(amounts); n != 1 && n != 2*dims {
		b.fail("1 or %d numbers are needed, got %v", 2*dims, amounts)
	}
	p := &padding{Value: value}
	for i := range 2 * dims {
		if b.err != nil {
			break
		}
		n := amounts[min(i, len(amounts)-1)]
		if n < -maxSize || n > maxSize {
			b.fail("an amount must be between -2^40 and 2^40, got %d", n)
		}
		p.Padding = append(p.Padding, n)
	}
	if err := b.done(); err != nil {
		return &padding{err: err}
	}
	return p
}

func (p *padding) failure(op string) error {
	if p == nil {
		return nilModule(op)
	}
	return p.err
}

func (p *padding) forward(op string, dims int, mode string, x *tensor.Tensor) *tensor.Tensor {
	if err := p.failure(op); err != nil {
		return tensor.Failed(err)
	}
	if len(p.Padding) != 2*dims {
		return refuse.Tensor(op, tensor.ErrArgument, "Padding must have %d numbers, got %v", 2*dims, p.Padding)
	}
	if mode == "constant" {
		return x.Pad(p.Padding, tensor.Mode(mode), tensor.Value(p.Value))
	}
	return x.Pad(p.Padding, tensor.Mode(mode))
}

// ReflectionPad1d mirrors x at its borders in the last dimension. Its field Padding holds the amounts. PyTorch: torch.nn.ReflectionPad1d.
type ReflectionPad1d padding

// NewReflectionPad1d returns a ReflectionPad1d with the given amounts: one for all sides, or (left, right). A negative amount
// removes elements.
func NewReflectionPad1d(amounts ...int) *ReflectionPad1d {
	return (*ReflectionPad1d)(newPadding("NewReflectionPad1d", 1, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ReflectionPad1d) Err() error { return (*padding)(p).failure("ReflectionPad1d") }

// Forward returns the padded x.
func (p *ReflectionPad1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ReflectionPad1d", 1, "reflect", x)
}

// ReflectionPad2d mirrors x at its borders in the last 2 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.ReflectionPad2d.
type ReflectionPad2d padding

// NewReflectionPad2d returns a ReflectionPad2d with the given amounts: one for all sides, or (left, right, top, bottom). A negative amount
// removes elements.
func NewReflectionPad2d(amounts ...int) *ReflectionPad2d {
	return (*ReflectionPad2d)(newPadding("NewReflectionPad2d", 2, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ReflectionPad2d) Err() error { return (*padding)(p).failure("ReflectionPad2d") }

// Forward returns the padded x.
func (p *ReflectionPad2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ReflectionPad2d", 2, "reflect", x)
}

// ReflectionPad3d mirrors x at its borders in the last 3 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.ReflectionPad3d.
type ReflectionPad3d padding

// NewReflectionPad3d returns a ReflectionPad3d with the given amounts: one for all sides, or (left, right, top, bottom, front, back). A negative amount
// removes elements.
func NewReflectionPad3d(amounts ...int) *ReflectionPad3d {
	return (*ReflectionPad3d)(newPadding("NewReflectionPad3d", 3, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ReflectionPad3d) Err() error { return (*padding)(p).failure("ReflectionPad3d") }

// Forward returns the padded x.
func (p *ReflectionPad3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ReflectionPad3d", 3, "reflect", x)
}

// ReplicationPad1d repeats the elements at the borders of x in the last dimension. Its field Padding holds the amounts. PyTorch: torch.nn.ReplicationPad1d.
type ReplicationPad1d padding

// NewReplicationPad1d returns a ReplicationPad1d with the given amounts: one for all sides, or (left, right). A negative amount
// removes elements.
func NewReplicationPad1d(amounts ...int) *ReplicationPad1d {
	return (*ReplicationPad1d)(newPadding("NewReplicationPad1d", 1, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ReplicationPad1d) Err() error { return (*padding)(p).failure("ReplicationPad1d") }

// Forward returns the padded x.
func (p *ReplicationPad1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ReplicationPad1d", 1, "replicate", x)
}

// ReplicationPad2d repeats the elements at the borders of x in the last 2 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.ReplicationPad2d.
type ReplicationPad2d padding

// NewReplicationPad2d returns a ReplicationPad2d with the given amounts: one for all sides, or (left, right, top, bottom). A negative amount
// removes elements.
func NewReplicationPad2d(amounts ...int) *ReplicationPad2d {
	return (*ReplicationPad2d)(newPadding("NewReplicationPad2d", 2, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ReplicationPad2d) Err() error { return (*padding)(p).failure("ReplicationPad2d") }

// Forward returns the padded x.
func (p *ReplicationPad2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ReplicationPad2d", 2, "replicate", x)
}

// ReplicationPad3d repeats the elements at the borders of x in the last 3 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.ReplicationPad3d.
type ReplicationPad3d padding

// NewReplicationPad3d returns a ReplicationPad3d with the given amounts: one for all sides, or (left, right, top, bottom, front, back). A negative amount
// removes elements.
func NewReplicationPad3d(amounts ...int) *ReplicationPad3d {
	return (*ReplicationPad3d)(newPadding("NewReplicationPad3d", 3, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ReplicationPad3d) Err() error { return (*padding)(p).failure("ReplicationPad3d") }

// Forward returns the padded x.
func (p *ReplicationPad3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ReplicationPad3d", 3, "replicate", x)
}

// ZeroPad1d adds zeros around x in the last dimension. Its field Padding holds the amounts. PyTorch: torch.nn.ZeroPad1d.
type ZeroPad1d padding

// NewZeroPad1d returns a ZeroPad1d with the given amounts: one for all sides, or (left, right). A negative amount
// removes elements.
func NewZeroPad1d(amounts ...int) *ZeroPad1d {
	return (*ZeroPad1d)(newPadding("NewZeroPad1d", 1, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ZeroPad1d) Err() error { return (*padding)(p).failure("ZeroPad1d") }

// Forward returns the padded x.
func (p *ZeroPad1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ZeroPad1d", 1, "constant", x)
}

// ZeroPad2d adds zeros around x in the last 2 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.ZeroPad2d.
type ZeroPad2d padding

// NewZeroPad2d returns a ZeroPad2d with the given amounts: one for all sides, or (left, right, top, bottom). A negative amount
// removes elements.
func NewZeroPad2d(amounts ...int) *ZeroPad2d {
	return (*ZeroPad2d)(newPadding("NewZeroPad2d", 2, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ZeroPad2d) Err() error { return (*padding)(p).failure("ZeroPad2d") }

// Forward returns the padded x.
func (p *ZeroPad2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ZeroPad2d", 2, "constant", x)
}

// ZeroPad3d adds zeros around x in the last 3 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.ZeroPad3d.
type ZeroPad3d padding

// NewZeroPad3d returns a ZeroPad3d with the given amounts: one for all sides, or (left, right, top, bottom, front, back). A negative amount
// removes elements.
func NewZeroPad3d(amounts ...int) *ZeroPad3d {
	return (*ZeroPad3d)(newPadding("NewZeroPad3d", 3, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ZeroPad3d) Err() error { return (*padding)(p).failure("ZeroPad3d") }

// Forward returns the padded x.
func (p *ZeroPad3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ZeroPad3d", 3, "constant", x)
}

// ConstantPad1d adds elements of one value around x in the last dimension. Its fields are Padding and Value. PyTorch: torch.nn.ConstantPad1d.
type ConstantPad1d padding

// NewConstantPad1d returns a ConstantPad1d with the given amounts: one for all sides, or (left, right). A negative amount
// removes elements. value is that of the new elements.
func NewConstantPad1d(value float64, amounts ...int) *ConstantPad1d {
	return (*ConstantPad1d)(newPadding("NewConstantPad1d", 1, value, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ConstantPad1d) Err() error { return (*padding)(p).failure("ConstantPad1d") }

// Forward returns the padded x.
func (p *ConstantPad1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ConstantPad1d", 1, "constant", x)
}

// ConstantPad2d adds elements of one value around x in the last 2 dimensions. Its fields are Padding and Value. PyTorch: torch.nn.ConstantPad2d.
type ConstantPad2d padding

// NewConstantPad2d returns a ConstantPad2d with the given amounts: one for all sides, or (left, right, top, bottom). A negative amount
// removes elements. value is that of the new elements.
func NewConstantPad2d(value float64, amounts ...int) *ConstantPad2d {
	return (*ConstantPad2d)(newPadding("NewConstantPad2d", 2, value, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ConstantPad2d) Err() error { return (*padding)(p).failure("ConstantPad2d") }

// Forward returns the padded x.
func (p *ConstantPad2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ConstantPad2d", 2, "constant", x)
}

// ConstantPad3d adds elements of one value around x in the last 3 dimensions. Its fields are Padding and Value. PyTorch: torch.nn.ConstantPad3d.
type ConstantPad3d padding

// NewConstantPad3d returns a ConstantPad3d with the given amounts: one for all sides, or (left, right, top, bottom, front, back). A negative amount
// removes elements. value is that of the new elements.
func NewConstantPad3d(value float64, amounts ...int) *ConstantPad3d {
	return (*ConstantPad3d)(newPadding("NewConstantPad3d", 3, value, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *ConstantPad3d) Err() error { return (*padding)(p).failure("ConstantPad3d") }

// Forward returns the padded x.
func (p *ConstantPad3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("ConstantPad3d", 3, "constant", x)
}

// CircularPad1d continues x with its elements from the other side in the last dimension. Its field Padding holds the amounts. PyTorch: torch.nn.CircularPad1d.
type CircularPad1d padding

// NewCircularPad1d returns a CircularPad1d with the given amounts: one for all sides, or (left, right). A negative amount
// removes elements; the other side adds at most those that are left.
func NewCircularPad1d(amounts ...int) *CircularPad1d {
	return (*CircularPad1d)(newPadding("NewCircularPad1d", 1, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *CircularPad1d) Err() error { return (*padding)(p).failure("CircularPad1d") }

// Forward returns the padded x.
func (p *CircularPad1d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("CircularPad1d", 1, "circular", x)
}

// CircularPad2d continues x with its elements from the other side in the last 2 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.CircularPad2d.
type CircularPad2d padding

// NewCircularPad2d returns a CircularPad2d with the given amounts: one for all sides, or (left, right, top, bottom). A negative amount
// removes elements; the other side adds at most those that are left.
func NewCircularPad2d(amounts ...int) *CircularPad2d {
	return (*CircularPad2d)(newPadding("NewCircularPad2d", 2, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *CircularPad2d) Err() error { return (*padding)(p).failure("CircularPad2d") }

// Forward returns the padded x.
func (p *CircularPad2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("CircularPad2d", 2, "circular", x)
}

// CircularPad3d continues x with its elements from the other side in the last 3 dimensions. Its field Padding holds the amounts. PyTorch: torch.nn.CircularPad3d.
type CircularPad3d padding

// NewCircularPad3d returns a CircularPad3d with the given amounts: one for all sides, or (left, right, top, bottom, front, back). A negative amount
// removes elements; the other side adds at most those that are left.
func NewCircularPad3d(amounts ...int) *CircularPad3d {
	return (*CircularPad3d)(newPadding("NewCircularPad3d", 3, 0, amounts))
}

// Err returns the error of the constructor that made p, or nil.
func (p *CircularPad3d) Err() error { return (*padding)(p).failure("CircularPad3d") }

// Forward returns the padded x.
func (p *CircularPad3d) Forward(x *tensor.Tensor) *tensor.Tensor {
	return (*padding)(p).forward("CircularPad3d", 3, "circular", x)
}

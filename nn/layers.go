package nn

import (
	"math"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// kaiming returns the bound of kaiming_uniform_(a=sqrt(5)). It computes in the order of torch.nn.init, so that the
// result has the same bits.
func kaiming(fanIn int) float64 {
	a := math.Sqrt(5)
	gain := math.Sqrt(2.0 / (1 + a*a))
	std := gain / math.Sqrt(float64(fanIn))
	return math.Sqrt(3.0) * std
}

// Linear computes x @ Weight^T + Bias. An x of shape (*, in) gives (*, out). Weight is (out, in); Bias is (out), or
// nil. PyTorch: torch.nn.Linear.
type Linear struct {
	Weight, Bias *tensor.Tensor
	Float8       Float8Recipe // set if the layer is trained with products in float8
	err          error
}

// NewLinear returns a Linear initialized as in PyTorch: weights and bias uniform in ±1/sqrt(in), or 0 without inputs.
// in and out may be 0. Options: NoBias, DType, Device.
func NewLinear(in, out int, opts ...Option) *Linear {
	return newLinear("NewLinear", in, out, opts)
}

func newLinear(op string, in, out int, opts []Option) *Linear {
	b := build(op, opts, "NoBias", "DType", "Device")
	b.features("in", in, "out", out)
	weight, bias := 0.0, 0.0 // without inputs the output is the bias, 0
	if in > 0 {
		weight, bias = kaiming(in), 1/math.Sqrt(float64(in))
	}
	l := &Linear{Weight: b.parameter([]int{out, in}, uniform(weight))}
	if !b.noBias {
		l.Bias = b.parameter([]int{out}, uniform(bias))
	}
	if err := b.done(); err != nil {
		return &Linear{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *Linear) Err() error {
	if l == nil {
		return nilModule("Linear")
	}
	return l.err
}

// Forward returns x @ Weight^T + Bias.
func (l *Linear) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	if l.Float8 != NoFloat8 {
		return l.float8(x)
	}
	return x.Linear(l.Weight, l.Bias)
}

var linearActivation = handle.LinearActivation.(func(x, weight, bias *tensor.Tensor, a cshim.Activation) *tensor.Tensor)

// activated returns the activation of Forward(x), in one native call.
func (l *Linear) activated(x *tensor.Tensor, a cshim.Activation) *tensor.Tensor {
	if err := l.Err(); err != nil {
		return tensor.Failed(err)
	}
	return linearActivation(x, l.Weight, l.Bias, a)
}

// Identity returns its input. PyTorch: torch.nn.Identity.
type Identity struct{}

// Forward returns x.
func (*Identity) Forward(x *tensor.Tensor) *tensor.Tensor {
	if x == nil {
		return noTensor("Identity")
	}
	return x
}

func noTensor(op string) *tensor.Tensor {
	return refuse.Tensor(op, tensor.ErrNil, "a tensor is needed, got nil")
}

// Flatten merges several dimensions into one: by default all but the first. The result shares storage with x where
// possible. PyTorch: torch.nn.Flatten.
type Flatten struct {
	start, end int // start-1 and end+1, so that the zero value is PyTorch's default
}

// NewFlatten returns a Flatten that merges the dimensions from start to end inclusive; a negative one counts from the
// end.
func NewFlatten(start, end int) *Flatten { return &Flatten{start - 1, end + 1} }

// Forward returns x with the dimensions merged.
func (f *Flatten) Forward(x *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return noModule("Flatten")
	}
	return x.Flatten(tensor.StartDim(f.start+1), tensor.EndDim(f.end-1))
}

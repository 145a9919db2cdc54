package nn

import (
	"math"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// The activations below work elementwise and return x's shape and dtype, unless their comments say otherwise. One with
// the field InPlace overwrites x and returns it; a leaf that requires a gradient is then an error. The zero value of a
// struct without a constructor has PyTorch's defaults.

// unary is the signature of an operator with options only.
type unary = func(*tensor.Tensor, ...tensor.Option) *tensor.Tensor

// either applies f, or its in-place form.
func either(x *tensor.Tensor, inPlace bool, f, inPlaceForm unary, opts ...tensor.Option) *tensor.Tensor {
	if inPlace {
		f = inPlaceForm
	}
	return f(x, opts...)
}

// fusible returns the first two layers if they are a Linear and an activation that [Linear.activated] computes. An
// in-place activation is not fusible: with gradients, activated keeps as much memory as PyTorch does for one that is
// not in place.
func fusible(layers []Layer) (*Linear, cshim.Activation) {
	if len(layers) < 2 {
		return nil, 0
	}
	l, ok := layers[0].(*Linear)
	if !ok || l == nil || l.Float8 != NoFloat8 {
		return nil, 0
	}
	if a := activation(layers[1]); a != 0 {
		return l, a
	}
	return nil, 0
}

// activation returns the number of an activation, and 0 if it has none or l is not an activation.
func activation(l Layer) cshim.Activation {
	switch a := l.(type) {
	case *ReLU:
		if a == nil || !a.InPlace {
			return cshim.ActivationReLU
		}
	case *SiLU:
		if a == nil || !a.InPlace {
			return cshim.ActivationSiLU
		}
	case *Sigmoid:
		return cshim.ActivationSigmoid
	case *Tanh:
		return cshim.ActivationTanh
	case *GELU:
		switch {
		case a == nil || a.Approximate == "" || a.Approximate == "none":
			return cshim.ActivationGELU
		case a.Approximate == "tanh":
			return cshim.ActivationGELUTanh
		}
	}
	return 0
}

// ReLU computes max(x, 0). PyTorch: torch.nn.ReLU.
type ReLU struct{ InPlace bool }

// Forward returns ReLU(x).
func (a *ReLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.ReLU_()
	}
	return x.ReLU()
}

// ReLU6 computes min(max(x, 0), 6). PyTorch: torch.nn.ReLU6.
type ReLU6 struct{ InPlace bool }

// Forward returns ReLU6(x).
func (a *ReLU6) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.ReLU6_()
	}
	return x.ReLU6()
}

// SiLU computes x * sigmoid(x). PyTorch: torch.nn.SiLU.
type SiLU struct{ InPlace bool }

// Forward returns SiLU(x).
func (a *SiLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.SiLU_()
	}
	return x.SiLU()
}

// Mish computes x * tanh(softplus(x)). PyTorch: torch.nn.Mish.
type Mish struct{ InPlace bool }

// Forward returns Mish(x).
func (a *Mish) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.Mish_()
	}
	return x.Mish()
}

// SELU computes scale * (max(0, x) + min(0, alpha * (exp(x) - 1))) with the constants of self-normalizing networks
// (Klambauer et al. 2017). PyTorch: torch.nn.SELU.
type SELU struct{ InPlace bool }

// Forward returns SELU(x).
func (a *SELU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.SELU_()
	}
	return x.SELU()
}

// Hardsigmoid computes min(max(x + 3, 0), 6) / 6. PyTorch: torch.nn.Hardsigmoid.
type Hardsigmoid struct{ InPlace bool }

// Forward returns Hardsigmoid(x).
func (a *Hardsigmoid) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.Hardsigmoid_()
	}
	return x.Hardsigmoid()
}

// Hardswish computes x * min(max(x + 3, 0), 6) / 6. PyTorch: torch.nn.Hardswish.
type Hardswish struct{ InPlace bool }

// Forward returns Hardswish(x).
func (a *Hardswish) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a != nil && a.InPlace {
		return x.Hardswish_()
	}
	return x.Hardswish()
}

// Tanh computes the hyperbolic tangent. PyTorch: torch.nn.Tanh.
type Tanh struct{}

// Forward returns Tanh(x).
func (*Tanh) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Tanh() }

// Sigmoid computes 1/(1+exp(-x)). PyTorch: torch.nn.Sigmoid.
type Sigmoid struct{}

// Forward returns Sigmoid(x).
func (*Sigmoid) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Sigmoid() }

// LogSigmoid computes log(1/(1+exp(-x))) without overflow. PyTorch: torch.nn.LogSigmoid.
type LogSigmoid struct{}

// Forward returns LogSigmoid(x).
func (*LogSigmoid) Forward(x *tensor.Tensor) *tensor.Tensor { return x.LogSigmoid() }

// Softsign computes x / (1 + |x|). PyTorch: torch.nn.Softsign.
type Softsign struct{}

// Forward returns Softsign(x).
func (*Softsign) Forward(x *tensor.Tensor) *tensor.Tensor {
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		abs := x.Abs()
		return x.Div(free.After(abs.Add(1), abs))
	})
}

// Tanhshrink computes x - tanh(x). PyTorch: torch.nn.Tanhshrink.
type Tanhshrink struct{}

// Forward returns Tanhshrink(x).
func (*Tanhshrink) Forward(x *tensor.Tensor) *tensor.Tensor {
	return tidy(func(*tensor.Scope) *tensor.Tensor { return x.Sub(x.Tanh()) })
}

// GELU computes x times the standard normal distribution function of x. Approximate is "" or "none" for the exact
// function and "tanh" for its approximation. PyTorch: torch.nn.GELU.
type GELU struct{ Approximate string }

// Forward returns GELU(x).
func (g *GELU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if g == nil || g.Approximate == "" {
		return x.GELU()
	}
	return x.GELU(tensor.Approximate(g.Approximate))
}

// LeakyReLU computes x where x > 0 and NegativeSlope*x elsewhere. PyTorch: torch.nn.LeakyReLU.
type LeakyReLU struct {
	NegativeSlope float64
	InPlace       bool
}

// NewLeakyReLU returns a LeakyReLU with the given slope; PyTorch's default is 0.01.
func NewLeakyReLU(slope float64) *LeakyReLU { return &LeakyReLU{NegativeSlope: slope} }

// Forward returns LeakyReLU(x).
func (a *LeakyReLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("LeakyReLU")
	}
	return either(x, a.InPlace, (*tensor.Tensor).LeakyReLU, (*tensor.Tensor).LeakyReLU_, tensor.NegativeSlope(a.NegativeSlope))
}

// ELU computes x where x > 0 and Alpha*(exp(x)-1) elsewhere. PyTorch: torch.nn.ELU.
type ELU struct {
	Alpha   float64
	InPlace bool
}

// NewELU returns an ELU with the given alpha; PyTorch's default is 1.
func NewELU(alpha float64) *ELU { return &ELU{Alpha: alpha} }

// Forward returns ELU(x).
func (a *ELU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("ELU")
	}
	return either(x, a.InPlace, (*tensor.Tensor).ELU, (*tensor.Tensor).ELU_, tensor.Alpha(a.Alpha))
}

// CELU computes max(0, x) + min(0, Alpha*(exp(x/Alpha)-1)). An Alpha of 0 is an error. PyTorch: torch.nn.CELU.
type CELU struct {
	Alpha   float64
	InPlace bool
}

// NewCELU returns a CELU with the given alpha; PyTorch's default is 1.
func NewCELU(alpha float64) *CELU { return &CELU{Alpha: alpha} }

// Forward returns CELU(x).
func (a *CELU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("CELU")
	}
	return either(x, a.InPlace, (*tensor.Tensor).CELU, (*tensor.Tensor).CELU_, tensor.Alpha(a.Alpha))
}

// Hardtanh limits x to [MinVal, MaxVal]. PyTorch: torch.nn.Hardtanh.
type Hardtanh struct {
	MinVal, MaxVal float64
	InPlace        bool
}

// NewHardtanh returns a Hardtanh that limits x to [low, high]; PyTorch's defaults are -1 and 1.
func NewHardtanh(low, high float64) *Hardtanh { return &Hardtanh{MinVal: low, MaxVal: high} }

// Forward returns Hardtanh(x).
func (a *Hardtanh) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("Hardtanh")
	}
	if !(a.MinVal <= a.MaxVal) {
		return refuse.Tensor("Hardtanh", tensor.ErrArgument, "MinVal must not exceed MaxVal, got [%v, %v]", a.MinVal, a.MaxVal)
	}
	return either(x, a.InPlace, (*tensor.Tensor).Hardtanh, (*tensor.Tensor).Hardtanh_, tensor.MinVal(a.MinVal), tensor.MaxVal(a.MaxVal))
}

// Softplus computes log(1+exp(Beta*x))/Beta, and x itself where Beta*x > Threshold. PyTorch: torch.nn.Softplus.
type Softplus struct{ Beta, Threshold float64 }

// NewSoftplus returns a Softplus with the given beta and threshold; PyTorch's defaults are 1 and 20.
func NewSoftplus(beta, threshold float64) *Softplus {
	return &Softplus{Beta: beta, Threshold: threshold}
}

// Forward returns Softplus(x).
func (a *Softplus) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("Softplus")
	}
	return x.Softplus(tensor.Beta(a.Beta), tensor.Threshold(a.Threshold))
}

// Hardshrink computes x where |x| > Lambd and 0 elsewhere. PyTorch: torch.nn.Hardshrink.
type Hardshrink struct{ Lambd float64 }

// NewHardshrink returns a Hardshrink with the given lambd; PyTorch's default is 0.5.
func NewHardshrink(lambd float64) *Hardshrink { return &Hardshrink{Lambd: lambd} }

// Forward returns Hardshrink(x).
func (a *Hardshrink) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("Hardshrink")
	}
	return x.Hardshrink(tensor.Lambd(a.Lambd))
}

// Softshrink moves x towards 0 by Lambd and stops there. A negative Lambd is an error. PyTorch: torch.nn.Softshrink.
type Softshrink struct{ Lambd float64 }

// NewSoftshrink returns a Softshrink with the given lambd; PyTorch's default is 0.5.
func NewSoftshrink(lambd float64) *Softshrink { return &Softshrink{Lambd: lambd} }

// Forward returns Softshrink(x).
func (a *Softshrink) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("Softshrink")
	}
	return x.Softshrink(tensor.Lambd(a.Lambd))
}

// Threshold computes x where x > Limit and Value elsewhere. PyTorch: torch.nn.Threshold, whose threshold= is Limit.
type Threshold struct {
	Limit, Value float64
	InPlace      bool
}

// NewThreshold returns a Threshold that replaces elements of at most limit by value.
func NewThreshold(limit, value float64) *Threshold { return &Threshold{Limit: limit, Value: value} }

// Forward returns Threshold(x).
func (a *Threshold) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("Threshold")
	}
	if a.InPlace {
		return x.Threshold_(a.Limit, a.Value)
	}
	return x.Threshold(a.Limit, a.Value)
}

// RReLU computes x where x >= 0 and slope*x elsewhere. In training it draws a slope for each element from the uniform
// distribution over [Lower, Upper]; in evaluation the slope is their mean. PyTorch: torch.nn.RReLU.
type RReLU struct {
	Mode
	Lower, Upper float64
	InPlace      bool
}

// NewRReLU returns an RReLU with slopes in [lower, upper]; PyTorch's defaults are 1.0/8 and 1.0/3.
func NewRReLU(lower, upper float64) *RReLU { return &RReLU{Lower: lower, Upper: upper} }

// Forward returns RReLU(x).
func (a *RReLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if a == nil {
		return noModule("RReLU")
	}
	if bad := finite("RReLU", "Lower", a.Lower, "Upper", a.Upper); bad != nil {
		return bad
	}
	if a.Lower > a.Upper {
		return refuse.Tensor("RReLU", tensor.ErrArgument, "Lower must not exceed Upper, got [%v, %v]", a.Lower, a.Upper)
	}
	if a.InPlace {
		return x.RReLU_(a.Lower, a.Upper, tensor.Training(a.Training()))
	}
	return x.RReLU(a.Lower, a.Upper, tensor.Training(a.Training()))
}

// PReLU computes x where x >= 0 and a learned slope times x elsewhere. Weight has one element, or one for each channel
// of an x of shape (N, C, *). PyTorch: torch.nn.PReLU.
type PReLU struct {
	Weight *tensor.Tensor
	err    error
}

// NewPReLU returns a PReLU with count slopes, which start at slope; PyTorch's defaults are 1 and 0.25. Options: DType,
// Device.
func NewPReLU(count int, slope float64, opts ...Option) *PReLU {
	b := build("NewPReLU", opts, "DType", "Device")
	b.sizes("count", count)
	if math.IsNaN(slope) {
		b.fail("slope must be a number, got NaN")
	}
	p := &PReLU{Weight: b.parameter([]int{count}, fillWith(slope))}
	if err := b.done(); err != nil {
		return &PReLU{err: err}
	}
	return p
}

// Err returns the error of the constructor that made p, or nil.
func (p *PReLU) Err() error {
	if p == nil {
		return nilModule("PReLU")
	}
	return p.err
}

// Forward returns PReLU(x).
func (p *PReLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := p.Err(); err != nil {
		return tensor.Failed(err)
	}
	return x.PReLU(p.Weight)
}

// GLU splits x in two halves a and b along the dimension Dim and returns a * sigmoid(b). The size of the dimension must
// be even; the result's is half of it. PyTorch: torch.nn.GLU.
type GLU struct{ Dim int }

// NewGLU returns a GLU along the dimension dim; PyTorch's default is -1, the last.
func NewGLU(dim int) *GLU { return &GLU{dim} }

// Forward returns a * sigmoid(b) for the halves a and b of x.
func (g *GLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if g == nil {
		return noModule("GLU")
	}
	return x.GLU(tensor.Dim(g.Dim))
}

// Softmax normalizes x to probabilities along the dimension Dim, 0 by default; a negative Dim counts from the end.
// PyTorch: torch.nn.Softmax.
type Softmax struct{ Dim int }

// Forward returns the softmax of x along Dim.
func (s *Softmax) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("Softmax")
	}
	return x.Softmax(s.Dim)
}

// LogSoftmax computes the logarithm of Softmax. PyTorch: torch.nn.LogSoftmax.
type LogSoftmax struct{ Dim int }

// Forward returns the log-softmax of x along Dim.
func (s *LogSoftmax) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("LogSoftmax")
	}
	return x.LogSoftmax(s.Dim)
}

// Softmin computes the softmax of -x along the dimension Dim. With another dtype it is x.Neg().Softmax(dim, dtype). PyTorch:
// torch.nn.Softmin.
type Softmin struct{ Dim int }

// Forward returns the softmax of -x along Dim.
func (s *Softmin) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("Softmin")
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor { return x.Neg().Softmax(s.Dim) })
}

// Softmax2d computes the softmax over the channels of x (N, C, H, W) or (C, H, W). PyTorch: torch.nn.Softmax2d.
type Softmax2d struct{}

// Forward returns the softmax of x over its channels.
func (*Softmax2d) Forward(x *tensor.Tensor) *tensor.Tensor {
	if bad := unusable("Softmax2d", x); bad != nil {
		return bad
	}
	if d := x.Dim(); d != 3 && d != 4 {
		return refuse.Tensor("Softmax2d", tensor.ErrArgument, "x must be (N, C, H, W) or (C, H, W), got %d dimensions", d)
	}
	return x.Softmax(-3)
}

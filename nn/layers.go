package nn

import (
	"math"

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
	err          error
}

// NewLinear returns a Linear initialized as in PyTorch: weights and bias uniform in ±1/sqrt(in). Options: NoBias,
// DType, Device.
func NewLinear(in, out int, opts ...Option) *Linear {
	b := build("NewLinear", opts, "NoBias", "DType", "Device")
	b.sizes("in", in, "out", out)
	l := &Linear{Weight: b.parameter([]int{out, in}, uniform(kaiming(in)))}
	if !b.noBias {
		l.Bias = b.parameter([]int{out}, uniform(1/math.Sqrt(float64(in))))
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
	return x.Linear(l.Weight, l.Bias)
}

// Embedding looks up rows of Weight (count, width). Integer ids of shape (*) give (*, width). PyTorch:
// torch.nn.Embedding.
type Embedding struct {
	Weight *tensor.Tensor
	padded bool
	pad    int
	err    error
}

// NewEmbedding returns an Embedding of count rows of the given width, drawn from the standard normal distribution.
// Options: PaddingIdx, DType, Device.
func NewEmbedding(count, width int, opts ...Option) *Embedding {
	b := build("NewEmbedding", opts, "PaddingIdx", "DType", "Device")
	b.sizes("count", count, "width", width)
	pad := b.paddingIdx
	if b.hasPaddingIdx && b.err == nil {
		if pad < -count || pad >= count {
			b.fail("PaddingIdx %d is outside %d rows", pad, count)
		}
		pad = (pad + count) % count
	}
	e := &Embedding{padded: b.hasPaddingIdx, pad: pad}
	e.Weight = b.parameter([]int{count, width}, func(t *tensor.Tensor) *tensor.Tensor {
		if t = t.Normal_(0, 1); !e.padded || t.Err() != nil {
			return t
		}
		row := t.Select(0, pad)
		defer row.Release()
		if zeroed := row.Zero_(); zeroed.Err() != nil {
			return zeroed
		}
		return t
	})
	if err := b.done(); err != nil {
		return &Embedding{err: err}
	}
	return e
}

// Err returns the error of the constructor that made e, or nil.
func (e *Embedding) Err() error {
	if e == nil {
		return nilModule("Embedding")
	}
	return e.err
}

// Forward returns the rows of Weight at ids.
func (e *Embedding) Forward(ids *tensor.Tensor) *tensor.Tensor {
	if err := e.Err(); err != nil {
		return tensor.Failed(err)
	}
	if e.padded {
		return tensor.Embedding(e.Weight, ids, tensor.PaddingIdx(e.pad))
	}
	return tensor.Embedding(e.Weight, ids)
}

// ReLU computes max(x, 0). PyTorch: torch.nn.ReLU.
type ReLU struct{}

// Forward returns max(x, 0).
func (*ReLU) Forward(x *tensor.Tensor) *tensor.Tensor { return x.ReLU() }

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

// SiLU computes x * sigmoid(x). PyTorch: torch.nn.SiLU.
type SiLU struct{}

// Forward returns SiLU(x).
func (*SiLU) Forward(x *tensor.Tensor) *tensor.Tensor { return x.SiLU() }

// Tanh computes the hyperbolic tangent. PyTorch: torch.nn.Tanh.
type Tanh struct{}

// Forward returns the hyperbolic tangent of x.
func (*Tanh) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Tanh() }

// Sigmoid computes 1/(1+exp(-x)). PyTorch: torch.nn.Sigmoid.
type Sigmoid struct{}

// Forward returns the sigmoid of x.
func (*Sigmoid) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Sigmoid() }

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

// Dropout sets elements to zero with probability P in training and scales the others by 1/(1-P). In evaluation it
// returns x itself. PyTorch: torch.nn.Dropout.
type Dropout struct {
	Mode
	P   float64
	err error
}

// NewDropout returns a Dropout with the probability p, which must be in [0, 1].
func NewDropout(p float64) *Dropout {
	b := build("NewDropout", nil)
	b.probability("p", p)
	if err := b.done(); err != nil {
		return &Dropout{err: err}
	}
	return &Dropout{P: p}
}

// Err returns the error of the constructor that made d, or nil.
func (d *Dropout) Err() error {
	if d == nil {
		return nilModule("Dropout")
	}
	return d.err
}

// Forward returns x with elements dropped in training, and x itself in evaluation.
func (d *Dropout) Forward(x *tensor.Tensor) *tensor.Tensor {
	if err := d.Err(); err != nil {
		return tensor.Failed(err)
	}
	if x == nil {
		return noTensor("Dropout")
	}
	if d.Training() {
		return x.Dropout(d.P, tensor.Train(true))
	}
	return x
}

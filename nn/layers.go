package nn

import (
	"math"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// maker collects a constructor's parameters: the first failure stops it and frees what was made.
type maker struct {
	s    *settings
	made []*tensor.Tensor
	err  error
}

// tensor makes one of the module's tensors, filled by fill, kept out of all scopes.
func (m *maker) tensor(shape []int, dtype tensor.DType, fill func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	if m.err != nil {
		return nil
	}
	n := 1
	for _, k := range shape {
		if n > math.MaxInt/16/max(1, k) {
			m.err = refuse.Error(m.s.op, tensor.ErrArgument, "a tensor of shape %v is too large", shape)
			return nil
		}
		n *= k
	}
	t := tensor.Empty(shape, dtype, m.s.device)
	if err := t.Err(); err != nil {
		m.err = err
		return nil
	}
	t.Keep()
	tensor.Track(vram.Buffers, t)
	m.made = append(m.made, t)
	m.err = tensor.WithGradMode(false, func() error { return fill(t).Err() })
	return t
}

func (m *maker) parameter(shape []int, fill func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	t := m.tensor(shape, m.s.dtype, fill)
	if m.err == nil {
		m.err = t.RequiresGrad_().Err()
		tensor.Track(vram.Weights, t)
	}
	return t
}

// done is the constructor's error; after one nothing is left behind.
func (m *maker) done() error {
	if m.err != nil {
		for _, t := range m.made {
			t.Release()
		}
	}
	return m.err
}

func fillWith(v float64) func(*tensor.Tensor) *tensor.Tensor {
	return func(t *tensor.Tensor) *tensor.Tensor { return t.Fill_(v) }
}

func uniform(bound float64) func(*tensor.Tensor) *tensor.Tensor {
	return func(t *tensor.Tensor) *tensor.Tensor { return t.Uniform_(-bound, bound) }
}

// kaiming is the bound of kaiming_uniform_(a=sqrt(5)), in the order of operations of torch.nn.init, for the
// last bit's sake.
func kaiming(fanIn int) float64 {
	a := math.Sqrt(5)
	gain := math.Sqrt(2.0 / (1 + a*a))
	std := gain / math.Sqrt(float64(fanIn))
	return math.Sqrt(3.0) * std
}

// Linear is x @ Weight^T + Bias: x (*, in) gives (*, out). Weight is (out, in), Bias (out) or nil. PyTorch:
// torch.nn.Linear.
type Linear struct {
	Weight, Bias *tensor.Tensor
}

// NewLinear makes one, initialized as PyTorch does: uniform in ±1/sqrt(in). Options: NoBias, DType, Device.
func NewLinear(in, out int, opts ...Option) (*Linear, error) {
	s, err := read("NewLinear", opts, "NoBias")
	if err != nil {
		return nil, err
	}
	if err := s.sizes("in", in, "out", out); err != nil {
		return nil, err
	}
	m := maker{s: s}
	l := &Linear{Weight: m.parameter([]int{out, in}, uniform(kaiming(in)))}
	if !s.noBias {
		l.Bias = m.parameter([]int{out}, uniform(1/math.Sqrt(float64(in))))
	}
	if err := m.done(); err != nil {
		return nil, err
	}
	return l, nil
}

// Forward computes it.
func (l *Linear) Forward(x *tensor.Tensor) *tensor.Tensor {
	if l == nil {
		return noModule("Linear")
	}
	return x.Linear(l.Weight, l.Bias)
}

// Embedding looks ids up in Weight (count, width): ids (*) of an integer dtype give (*, width). PyTorch:
// torch.nn.Embedding.
type Embedding struct {
	Weight *tensor.Tensor
	padded bool
	pad    int
}

// NewEmbedding makes one, drawn from the standard normal distribution. Options: PaddingIdx, DType, Device.
func NewEmbedding(count, width int, opts ...Option) (*Embedding, error) {
	s, err := read("NewEmbedding", opts, "PaddingIdx")
	if err != nil {
		return nil, err
	}
	if err := s.sizes("count", count, "width", width); err != nil {
		return nil, err
	}
	pad := s.paddingIdx
	if s.hasPaddingIdx {
		if pad < -count || pad >= count {
			return nil, refuse.Error(s.op, tensor.ErrArgument, "PaddingIdx %d is outside %d rows", pad, count)
		}
		pad = (pad + count) % count
	}
	m := maker{s: s}
	e := &Embedding{padded: s.hasPaddingIdx, pad: pad}
	e.Weight = m.parameter([]int{count, width}, func(t *tensor.Tensor) *tensor.Tensor {
		if t = t.Normal_(0, 1); !e.padded || t.Err() != nil {
			return t
		}
		row := t.Select(0, pad)
		defer row.Release()
		return row.Zero_()
	})
	if err := m.done(); err != nil {
		return nil, err
	}
	return e, nil
}

// Forward looks ids up.
func (e *Embedding) Forward(ids *tensor.Tensor) *tensor.Tensor {
	if e == nil {
		return noModule("Embedding")
	}
	if e.padded {
		return tensor.Embedding(e.Weight, ids, tensor.PaddingIdx(e.pad))
	}
	return tensor.Embedding(e.Weight, ids)
}

// ReLU is max(x, 0). PyTorch: torch.nn.ReLU.
type ReLU struct{}

// Forward computes it.
func (*ReLU) Forward(x *tensor.Tensor) *tensor.Tensor { return x.ReLU() }

// GELU is x times the standard normal distribution function of x. Approximate is "" or "none" for the exact one,
// "tanh" for the approximation. PyTorch: torch.nn.GELU.
type GELU struct{ Approximate string }

// Forward computes it.
func (g *GELU) Forward(x *tensor.Tensor) *tensor.Tensor {
	if g == nil || g.Approximate == "" {
		return x.GELU()
	}
	return x.GELU(tensor.Approximate(g.Approximate))
}

// SiLU is x * sigmoid(x). PyTorch: torch.nn.SiLU.
type SiLU struct{}

// Forward computes it.
func (*SiLU) Forward(x *tensor.Tensor) *tensor.Tensor { return x.SiLU() }

// Tanh is the hyperbolic tangent. PyTorch: torch.nn.Tanh.
type Tanh struct{}

// Forward computes it.
func (*Tanh) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Tanh() }

// Sigmoid is 1/(1+exp(-x)). PyTorch: torch.nn.Sigmoid.
type Sigmoid struct{}

// Forward computes it.
func (*Sigmoid) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Sigmoid() }

// Softmax makes probabilities along Dim, the first dimension unless set; a negative one counts from the end.
// PyTorch: torch.nn.Softmax.
type Softmax struct{ Dim int }

// Forward computes it.
func (s *Softmax) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("Softmax")
	}
	return x.Softmax(s.Dim)
}

// LogSoftmax is the logarithm of Softmax. PyTorch: torch.nn.LogSoftmax.
type LogSoftmax struct{ Dim int }

// Forward computes it.
func (s *LogSoftmax) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("LogSoftmax")
	}
	return x.LogSoftmax(s.Dim)
}

// Identity gives x back itself. PyTorch: torch.nn.Identity.
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

// Flatten makes one dimension of several: all but the first, unless NewFlatten says otherwise. The result shares
// storage with x where it can. PyTorch: torch.nn.Flatten.
type Flatten struct {
	start, end int // less 1 and plus 1: the zero value is PyTorch's default
}

// NewFlatten flattens the dimensions from start to end, end included; a negative one counts from the end.
func NewFlatten(start, end int) *Flatten { return &Flatten{start - 1, end + 1} }

// Forward computes it.
func (f *Flatten) Forward(x *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return noModule("Flatten")
	}
	return x.Flatten(tensor.StartDim(f.start+1), tensor.EndDim(f.end-1))
}

// Dropout zeroes elements with probability P while training and scales the rest by 1/(1-P); in evaluation it
// gives x back itself. PyTorch: torch.nn.Dropout.
type Dropout struct {
	Mode
	P float64
}

// NewDropout makes one; p is in [0, 1].
func NewDropout(p float64) (*Dropout, error) {
	s, err := read("NewDropout", nil)
	if err != nil {
		return nil, err
	}
	if err := s.probability("p", p); err != nil {
		return nil, err
	}
	return &Dropout{P: p}, nil
}

// Forward computes it.
func (d *Dropout) Forward(x *tensor.Tensor) *tensor.Tensor {
	switch {
	case d == nil:
		return noModule("Dropout")
	case x == nil:
		return noTensor("Dropout")
	case d.Training():
		return x.Dropout(d.P, tensor.Train(true))
	}
	return x
}

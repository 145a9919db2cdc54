package nn

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

func nilModule(op string) error { return refuse.Nil(op, "a module") }

func noModule(op string) *tensor.Tensor { return tensor.Failed(nilModule(op)) }

// Sequential is layers one after the other. Its parts are named "0", "1" and so on. PyTorch: torch.nn.Sequential.
type Sequential struct {
	Layers []Layer `nn:"."`
}

// NewSequential makes one of layers.
func NewSequential(layers ...Layer) *Sequential { return &Sequential{layers} }

// Forward is Pipe through the layers.
func (s *Sequential) Forward(x *tensor.Tensor) *tensor.Tensor {
	if s == nil {
		return noModule("Sequential")
	}
	return pipe("Sequential", x, s.Layers)
}

// Pipe sends x through layers one after the other and frees each intermediate result as soon as the next layer
// has consumed it, unless autograd needs it, and what a layer made on the way as soon as it is done: the peak is that
// of PyTorch, which drops each at its last use. x itself and what a layer returns without having made it are never
// freed. Without layers the result is x. A [Sequential] among them is run as its layers, so that what goes into it is
// freed after the first of those. A layer that puts aside its input, or a tensor that it made, must Keep it.
func Pipe(x *tensor.Tensor, layers ...Layer) *tensor.Tensor { return pipe("Pipe", x, layers) }

// Residual is x + Pipe(x, layers...), and frees the branch.
func Residual(x *tensor.Tensor, layers ...Layer) *tensor.Tensor {
	return tidy(func(s *tensor.Scope) *tensor.Tensor {
		branch := through(s, "Residual", x, layers, 0)
		sum := x.Add(branch)
		drop(s, branch)
		return sum
	})
}

func pipe(op string, x *tensor.Tensor, layers []Layer) *tensor.Tensor {
	if len(layers) == 0 {
		return x
	}
	y, err := piped(op, x, layers)
	if err != nil {
		return tensor.Failed(err)
	}
	return y
}

// piped is no closure over x: where the caller is done with it, nothing here keeps a sweep from freeing it.
func piped(op string, x *tensor.Tensor, layers []Layer) (*tensor.Tensor, error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return outward(s, through(s, op, x, layers, 0)) //linstockvet:ignore scopeescape outward moves it out
}

// deepest is how many Sequentials may lie within one another.
const deepest = 1000

// through is pipe inside the scope s, so deep within others.
func through(s *tensor.Scope, op string, y *tensor.Tensor, layers []Layer, depth int) *tensor.Tensor {
	if depth > deepest {
		return refuse.Tensor(op, tensor.ErrArgument, "more than %d lie within one another: does one contain itself?", deepest)
	}
	for i, l := range layers {
		if l == nil {
			return refuse.Tensor(op, tensor.ErrNil, "layer %d is nil", i)
		}
		if y != nil && y.Err() != nil {
			return y
		}
		if inner, ok := l.(*Sequential); ok && inner != nil {
			y = through(s, "Sequential", y, inner.Layers, depth+1)
			continue
		}
		ours := owned(s, y)
		next := forward(l, y)
		if next == nil {
			return refuse.Tensor(op, tensor.ErrNil, "layer %d (%T) returned nil", i, l)
		}
		if next != ours {
			drop(s, ours)
		}
		y = next
	}
	return y
}

// owned is t where it is s's to free, and else nil, which holds nothing while a layer runs. Inlined, the choice would
// be made after the layer, with t held up to then.
//
//go:noinline
func owned(s *tensor.Scope, t *tensor.Tensor) *tensor.Tensor {
	if s.Contains(t) {
		return t
	}
	return nil
}

// forward runs a layer, in a scope of its own unless all that it makes is its result.
func forward(l Layer, x *tensor.Tensor) *tensor.Tensor {
	switch l.(type) {
	case *Linear, *Embedding, *Conv1d, *Conv2d, *MaxPool2d, *AvgPool2d, *AdaptiveAvgPool2d, *LayerNorm, *RMSNorm, *BatchNorm2d,
		*ReLU, *GELU, *SiLU, *Tanh, *Sigmoid, *Softmax, *LogSoftmax, *Identity, *Flatten, *Dropout,
		*CausalSelfAttention, *MultiheadAttention: // these two have scopes of their own
		return l.Forward(x)
	}
	s, err := tensor.NewScope()
	if err != nil {
		return tensor.Failed(err)
	}
	defer s.Close()
	y := l.Forward(x)
	if y != nil && y.Err() == nil && s.Contains(y) {
		y.MoveOut()
	}
	return y
}

// drop frees what s owns: what was made in it and put nowhere else.
func drop(s *tensor.Scope, t *tensor.Tensor) {
	if s.Contains(t) {
		t.Release()
	}
}

// tidy is tensor.Tidy that hands the scope over, and tells the scope around it of a failure inside.
func tidy(f func(s *tensor.Scope) *tensor.Tensor) *tensor.Tensor {
	s, err := tensor.NewScope()
	if err != nil {
		return tensor.Failed(err)
	}
	y, err := inside(s, f)
	if err != nil {
		return tensor.Failed(err)
	}
	return y
}

func inside(s *tensor.Scope, f func(s *tensor.Scope) *tensor.Tensor) (*tensor.Tensor, error) {
	defer s.Close()
	return outward(s, f(s))
}

// outward takes a result out of the scope that is about to close.
func outward(s *tensor.Scope, y *tensor.Tensor) (*tensor.Tensor, error) {
	if y == nil {
		return nil, refuse.Error("nn", tensor.ErrNil, "a tensor is needed, got nil")
	}
	if err := y.Err(); err != nil {
		return nil, err
	}
	if s.Contains(y) {
		y.MoveOut()
	}
	return y, nil
}

package nn

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

func noModule(op string) *tensor.Tensor {
	return refuse.Tensor(op, tensor.ErrNil, "a module is needed, got nil")
}

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
// has consumed it, unless autograd needs it: the peak is that of PyTorch, which drops each at its last use. x
// itself and what a layer returns without having made it are never freed. Without layers the result is x. A
// layer that puts its input or output aside must Keep it.
func Pipe(x *tensor.Tensor, layers ...Layer) *tensor.Tensor { return pipe("Pipe", x, layers) }

// Residual is x + Pipe(x, layers...), and frees the branch.
func Residual(x *tensor.Tensor, layers ...Layer) *tensor.Tensor {
	return tidy(func(s *tensor.Scope) *tensor.Tensor {
		branch := through(s, "Residual", x, layers)
		sum := x.Add(branch)
		drop(s, branch)
		return sum
	})
}

func pipe(op string, x *tensor.Tensor, layers []Layer) *tensor.Tensor {
	if len(layers) == 0 {
		return x
	}
	return tidy(func(s *tensor.Scope) *tensor.Tensor { return through(s, op, x, layers) })
}

// through is pipe inside the scope s.
func through(s *tensor.Scope, op string, x *tensor.Tensor, layers []Layer) *tensor.Tensor {
	y := x
	for i, l := range layers {
		if l == nil {
			return refuse.Tensor(op, tensor.ErrNil, "layer %d is nil", i)
		}
		if y != nil && y.Err() != nil {
			return y
		}
		next := l.Forward(y)
		if next == nil {
			return refuse.Tensor(op, tensor.ErrNil, "layer %d (%T) returned nil", i, l)
		}
		if next != y {
			drop(s, y)
		}
		y = next
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
	y := f(s)
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

package main

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// LoRA is a frozen linear layer with a trained update of low rank: x (*, in) gives Base(x) + scale * x A^T B^T.
type LoRA struct {
	Base   *nn.Linear
	A      *tensor.Tensor // (rank, in)
	B      *tensor.Tensor // (out, rank), initially zero
	scale  float64
	merged bool
}

func newLoRA(base *nn.Linear, rank int, alpha float64) *LoRA {
	out, in := base.Weight.Size(0), base.Weight.Size(1)
	return &LoRA{
		Base:  base,
		A:     nn.NewParameter(tensor.Empty([]int{rank, in}).Normal_(0, 0.02)),
		B:     nn.NewParameter(tensor.Zeros([]int{out, rank})),
		scale: alpha / float64(rank),
	}
}

// Forward returns Base(x) plus the update.
func (l *LoRA) Forward(x *tensor.Tensor) *tensor.Tensor {
	y := l.Base.Forward(x)
	if l.merged {
		return y
	}
	return y.Add(x.Linear(l.A, nil).Linear(l.B, nil).Mul(l.scale))
}

// Merge adds the update to the weight of the base layer, so that inference needs no extra computation.
func (l *LoRA) Merge() error {
	if l.merged {
		return nil
	}
	err := autograd.NoGrad(func() error {
		return l.Base.Weight.Add_(l.B.MM(l.A).Mul(l.scale)).Err()
	})
	l.merged = err == nil
	return err
}

// Package data stands in for Linstock's.
package data

import (
	"iter"

	"github.com/linstock-ml/linstock/tensor"
)

type Batch struct {
	Inputs, Targets *tensor.Tensor
	Tensors         []*tensor.Tensor
	Size            int
}

type Loader struct{}

func (l *Loader) Batches() iter.Seq2[Batch, error] { return func(func(Batch, error) bool) {} }
func (l *Loader) Resume() iter.Seq2[Batch, error]  { return func(func(Batch, error) bool) {} }
func (l *Loader) Sizes() iter.Seq[int]             { return func(func(int) bool) {} }

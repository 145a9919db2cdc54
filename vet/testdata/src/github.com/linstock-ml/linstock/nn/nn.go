// Package nn stands in for Linstock's.
package nn

import "github.com/linstock-ml/linstock/tensor"

type Linear struct{ Weight *tensor.Tensor }

func NewLinear(in, out int) *Linear                       { return &Linear{} }
func (l *Linear) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Mul(l.Weight) }
func Parameters(m any) []*tensor.Tensor                   { return nil }
func MSELoss(x, y *tensor.Tensor) *tensor.Tensor          { return x.Mul(y) }

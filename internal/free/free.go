// Package free frees the temporaries of computations that are made of several operators.
package free

import "github.com/linstock-ml/linstock/tensor"

// After returns y and frees tensors from which y was computed and which no other code has seen, as PyTorch frees what
// no variable refers to.
func After(y *tensor.Tensor, used ...*tensor.Tensor) *tensor.Tensor {
	for _, t := range used {
		t.Release()
	}
	return y
}

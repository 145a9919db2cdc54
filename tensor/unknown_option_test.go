package tensor_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestUnknownOptionsAreListed tests that the error for an unknown option lists the accepted ones.
func TestUnknownOptionsAreListed(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{2, 2})
	defer x.Release()
	_, sgd := optim.NewSGD([]*tensor.Tensor{x}, 0.1, optim.Betas(0.9, 0.99))
	for want, err := range map[string]error{
		"unknown option Stride; the options are Dim, KeepDim, DType":                                     x.Sum(tensor.Stride(1)).Err(),
		"unknown option Betas; the options are LR, WeightDecay, Maximize, Momentum, Dampening, Nesterov": sgd,
	} {
		if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

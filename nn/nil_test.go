package nn_test

import (
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestNilOptions tests that nil options, also as pointers, are errors.
func TestNilOptions(t *testing.T) {
	leak.Check(t)
	for _, o := range []tensor.Option{nil, (*tensor.Reduction)(nil), (*tensor.DType)(nil)} {
		if err := nn.NewCTCLoss(o).Err(); err == nil || !strings.Contains(err.Error(), "NewCTCLoss: an option is nil") {
			t.Errorf("%T: %v", o, err)
		}
	}
	reduction := tensor.ReduceSum
	_ = tensor.WithScope(func() error {
		x := tensor.Ones([]int{1})
		if err := nn.GaussianNLLLoss(x, x, x, &reduction).Err(); err == nil {
			t.Error("GaussianNLLLoss accepts a pointer to an option")
		}
		return nil
	})
}

package nn_test

import (
	"errors"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestNormsOfOneValue tests that what would be normalized by a variance of one value is an error, which leaves the running
// statistics unchanged, as in PyTorch.
func TestNormsOfOneValue(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		evaluated := nn.NewBatchNorm1d(3)
		nn.Eval(evaluated)
		for _, c := range []struct {
			name  string
			m     nn.Layer
			shape []int
			fails bool
		}{
			{"BatchNorm1d", nn.NewBatchNorm1d(3), []int{1, 3}, true},
			{"BatchNorm1d of a length", nn.NewBatchNorm1d(3), []int{1, 3, 1}, true},
			{"BatchNorm1d of two", nn.NewBatchNorm1d(3), []int{1, 3, 2}, false},
			{"BatchNorm1d of a batch", nn.NewBatchNorm1d(3), []int{2, 3}, false},
			{"BatchNorm1d in evaluation", evaluated, []int{1, 3}, false},
			{"BatchNorm2d", nn.NewBatchNorm2d(3), []int{1, 3, 1, 1}, true},
			{"BatchNorm2d without statistics", nn.NewBatchNorm2d(3, nn.NoRunningStats()), []int{1, 3, 1, 1}, true},
			{"BatchNorm3d", nn.NewBatchNorm3d(3), []int{1, 3, 1, 1, 1}, true},
			{"GroupNorm", nn.NewGroupNorm(3, 3), []int{1, 3, 1, 1}, true},
			{"GroupNorm of two channels", nn.NewGroupNorm(2, 4), []int{1, 4}, false},
			{"GroupNorm of a batch", nn.NewGroupNorm(3, 3), []int{2, 3}, false},
			{"InstanceNorm1d", nn.NewInstanceNorm1d(3), []int{4, 3, 1}, true},
		} {
			err := c.m.Forward(tensor.Ones(c.shape)).Err()
			if (err != nil) != c.fails || c.fails && !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%s of shape %v: %v", c.name, c.shape, err)
			}
			for _, b := range nn.NamedBuffers(c.m) {
				if sum, err := b.Tensor.To(tensor.Float64).Sum().Item(); c.fails && (err != nil || sum != 0 && sum != 3) {
					t.Errorf("%s of shape %v: %s is %v, %v", c.name, c.shape, b.Name, b.Tensor, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

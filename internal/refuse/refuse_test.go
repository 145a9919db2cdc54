package refuse_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// TestErrorsNameTheUsersCall tests that errors name the user's call and line, here in this file, and not an operator or
// line of the library.
func TestErrorsNameTheUsersCall(t *testing.T) {
	leak.Check(t)
	released := tensor.Ones([]int{2, 2})
	released.Release()
	_, here, _, _ := runtime.Caller(0)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 2}).RequiresGrad_()
		identity := func(in ...*tensor.Tensor) *tensor.Tensor { return in[0] }
		for op, err := range map[string]error{
			"GradCheck":        autograd.GradCheck(identity, []*tensor.Tensor{released}),
			"Dropout":          (&nn.Dropout{P: 0.5}).Forward(released).Err(),
			"SGD":              second(optim.NewSGD([]*tensor.Tensor{released}, 0.1)),
			"NewTensorDataset": second(data.NewTensorDataset(released)),
			"Save":             checkpoint.Save(filepath.Join(t.TempDir(), "x"), map[string]*tensor.Tensor{"x": released}, nil),
			"Index":            x.Index("[0]", []bool{true}).Err(),
			"SetIndex":         x.Detach().SetIndex(0, tensor.Ones([]int{7})),
			"RegisterHook": func() error {
				y := x.Mul(2)
				if _, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return released, nil }); err != nil {
					return err
				}
				return y.Sum().Backward()
			}(),
		} {
			var e *tensor.Error
			if !errors.As(err, &e) {
				t.Errorf("%s: got %v", op, err)
				continue
			}
			// The innermost error is the first that occurred.
			for inner := e; errors.As(inner.Kind, &inner); {
				e = inner
			}
			if e.Op != op || !strings.HasPrefix(e.Caller, here+":") {
				t.Errorf("%s: the error names %q at %s: %v", op, e.Op, e.Caller, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func second[T any](_ T, err error) error { return err }

package nn_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestToOnSeveralGoroutines converts one module on several goroutines at once.
func TestToOnSeveralGoroutines(t *testing.T) {
	leak.Check(t)
	m := nn.NewLinear(6, 8)
	defer nn.Release(m)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if err := errors.Join(nn.To(m, tensor.Float64), nn.To(m, tensor.Float32)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestToDuringAPass tests that a parameter of another goroutine's backward pass is not converted and keeps its gradient.
func TestToDuringAPass(t *testing.T) {
	leak.Check(t)
	if err := tensor.WithScope(func() error {
		m := nn.NewLinear(2, 1)
		defer nn.Release(m)
		y := m.Forward(tensor.Ones([]int{1, 2}))
		if err := y.Sum().Backward(tensor.RetainGraph(true)); err != nil {
			return err
		}
		var during error
		remove, err := y.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) {
			var wg sync.WaitGroup
			wg.Go(func() { during = nn.To(m, tensor.Float64) })
			wg.Wait()
			return nil, nil
		})
		if err != nil {
			return err
		}
		defer remove()
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		if !errors.Is(during, tensor.ErrArgument) {
			t.Errorf("To during a pass: got %v, want %v", during, tensor.ErrArgument)
		}
		g, err := tensor.Data[float32](m.Weight.Grad())
		if err != nil {
			return err
		}
		if g[0] != 2 || m.Weight.DType() != tensor.Float32 {
			t.Errorf("the weight is %v, its gradient %v", m.Weight.DType(), g)
		}
		return nn.To(m, tensor.Float64)
	}); err != nil {
		t.Error(err)
	}
}

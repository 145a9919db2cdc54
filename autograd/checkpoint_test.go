package autograd_test

import (
	"errors"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// deep is a chain of layers with dropout; each part of it may be checkpointed.
func deep(ws []*tensor.Tensor, x *tensor.Tensor, checkpoint bool) *tensor.Tensor {
	for _, w := range ws {
		part := func(xs ...*tensor.Tensor) *tensor.Tensor {
			h := xs[0]
			for range 4 {
				h = h.MatMul(w).Tanh().Dropout(0.1, tensor.Train(true))
			}
			return h
		}
		if checkpoint {
			x = autograd.Checkpoint(part, x)
		} else {
			x = part(x)
		}
	}
	return x.Sum()
}

func TestCheckpointGivesTheSameGradientsInLessMemory(t *testing.T) {
	leak.Check(t)
	type result struct {
		loss  float64
		grads [][]float32
		peak  int64
	}
	run := func(checkpoint bool) (r result) {
		err := tensor.WithScope(func() error {
			if err := tensor.ManualSeed(3); err != nil {
				return err
			}
			var ws []*tensor.Tensor
			for range 6 {
				ws = append(ws, tensor.Randn([]int{32, 32}).Mul(0.2).Detach().RequiresGrad_())
			}
			x := tensor.Randn([]int{4096, 32}).RequiresGrad_() // 512 KiB
			if err := vram.Collect(); err != nil {
				return err
			}
			before, err := vram.Stats(vram.CPU)
			if err != nil {
				return err
			}
			if err := vram.ResetPeak(vram.CPU); err != nil {
				return err
			}
			loss := deep(ws, x, checkpoint)
			if err := loss.Backward(); err != nil {
				return err
			}
			after, err := vram.Stats(vram.CPU)
			if err != nil {
				return err
			}
			r.peak = after.Peak - before.Allocated
			if r.loss, err = tensor.Item[float64](loss.To(tensor.Float64)); err != nil {
				return err
			}
			for _, w := range append(ws, x) {
				g, err := tensor.Data[float32](w.Grad())
				if err != nil {
					return err
				}
				r.grads = append(r.grads, g)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	plain, less := run(false), run(true)
	if plain.loss != less.loss {
		t.Errorf("loss %v, checkpointed %v", plain.loss, less.loss)
	}
	for i := range plain.grads {
		for k := range plain.grads[i] {
			if plain.grads[i][k] != less.grads[i][k] {
				t.Fatalf("gradient %d differs at %d: %v, checkpointed %v", i, k, plain.grads[i][k], less.grads[i][k])
			}
		}
	}
	t.Logf("peak %d KiB, checkpointed %d KiB", plain.peak>>10, less.peak>>10)
	if less.peak > plain.peak*2/3 {
		t.Errorf("peak %d, checkpointed %d: not a third less", plain.peak, less.peak)
	}
}

func TestCheckpointErrors(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 3}).RequiresGrad_()
		if err := autograd.Checkpoint(nil, x).Err(); err == nil {
			t.Error("no error for a nil function")
		}
		bad := autograd.Checkpoint(func(xs ...*tensor.Tensor) *tensor.Tensor { return xs[0].MatMul(xs[0]) }, x)
		if !errors.Is(bad.Err(), tensor.ErrArgument) {
			t.Errorf("got %v", bad.Err())
		}
		n := 0
		y := autograd.Checkpoint(func(xs ...*tensor.Tensor) *tensor.Tensor {
			if n++; n > 1 {
				return xs[0].MatMul(xs[0])
			}
			return xs[0].Mul(2)
		}, x)
		if err := y.Sum().Backward(); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("a failure while computing again: %v", err)
		}
		if err := autograd.Checkpoint(func(...*tensor.Tensor) *tensor.Tensor { return nil }, x).Err(); err == nil {
			t.Error("no error for a nil result")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

package nn_test

import (
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestPeaks compares the peaks of modules and functions that are made of several operators with those of PyTorch's: each
// frees what it has used, as PyTorch frees what no variable refers to.
func TestPeaks(t *testing.T) {
	leak.Check(t)
	const n, length, width = 32, 64, 128
	const unit = n * length * width * 4 // the bytes of x
	threads := tensor.NumThreads()
	if err := tensor.SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tensor.SetNumThreads(threads); err != nil {
			t.Error(err)
		}
	}()
	err := tensor.WithScope(func() error {
		x, grad := tensor.Randn([]int{n, length, width}), tensor.Randn([]int{n, length, width}).RequiresGrad_()
		rows, a := tensor.Randn([]int{n * length, width}).RequiresGrad_(), tensor.Randn([]int{n * length, width}).RequiresGrad_()
		variance, hot := a.Detach().Square(), a.Detach().Gt(0).To(tensor.Float32)
		classes := tensor.Arange(0, n*length, tensor.Int64).Remainder(2000)
		padding := tensor.Arange(0, length).Expand(n, length).Gt(50)
		weights := nn.NewMultiheadAttention(width, 4, nn.BatchFirst())
		bias := nn.NewMultiheadAttention(width, 4, nn.BatchFirst(), nn.AddBiasKV())
		swiglu, rotary := nn.NewSwiGLU(width, 4*width, nn.NoBias()), nn.NewRotaryEmbedding(width)
		part := nn.NewRotaryEmbedding(width / 2)
		lora := nn.NewLoRALinear(nn.NewLinear(width, 4*width), 4)
		adaptive := nn.NewAdaptiveLogSoftmaxWithLoss(width, 2000, []int{200, 800})
		base := nn.NewLinear(width, 4*width)
		eight, float8 := nn.NewInt8Linear(base), nn.NewFloat8Linear(base)
		image, normalize, power := grad.View(n, 16, length, width/16), nn.NewLocalResponseNorm(5), nn.NewLPPool2d(3, 2)
		for _, m := range []any{weights, bias, swiglu, rotary, part, lora, adaptive, base, eight, float8} {
			defer nn.Release(m)
		}
		mask := tensor.Zeros([]int{length, length})
		for _, c := range []struct {
			name string
			// The peaks of PyTorch 2.15 in units, with gradients and without.
			train, noGrad float64
			f             func() *tensor.Tensor
		}{
			{"GumbelSoftmax", 5.02, 5.02, func() *tensor.Tensor { return nn.GumbelSoftmax(rows, 1, true, -1) }},
			{"GaussianNLLLoss", 5, 4, func() *tensor.Tensor { return nn.GaussianNLLLoss(rows, a, variance) }},
			{"GaussianNLLLoss, full", 5, 4, func() *tensor.Tensor { return nn.GaussianNLLLoss(rows, a, variance, tensor.FullTerm()) }},
			{"MultiLabelSoftMarginLoss", 7, 5, func() *tensor.Tensor { return nn.MultiLabelSoftMarginLoss(rows, hot) }},
			{"MultiLabelSoftMarginLoss, weighted", 7, 5, func() *tensor.Tensor {
				return nn.MultiLabelSoftMarginLoss(rows, hot, tensor.Weight(a.Detach().Select(0, 0)))
			}},
			{"AttendWeights", 13.06, 7.04, func() *tensor.Tensor {
				y, _ := weights.AttendWeights(x, x, x, nn.Masks{KeyPadding: padding}, false)
				return y
			}},
			{"Attend with a mask", 11.03, 6, func() *tensor.Tensor { return weights.Attend(grad, grad, grad, nn.Masks{Attn: mask}) }},
			{"Attend with AddBiasKV", 13.59, 6.31, func() *tensor.Tensor { return bias.Attend(grad, grad, grad, nn.Masks{}) }},
			{"SwiGLU", 25.25, 12, func() *tensor.Tensor { return swiglu.Forward(x) }},
			{"LoRALinear", 12.03, 12, func() *tensor.Tensor { return lora.Forward(x) }},
			{"Int8Linear", 9.25, 8, func() *tensor.Tensor { return eight.Forward(rows) }},
			{"Float8Linear", 9.25, 9.56, func() *tensor.Tensor { return float8.Forward(rows) }},
			{"Softsign", 6, 2, func() *tensor.Tensor { return new(nn.Softsign).Forward(rows) }},
			{"LocalResponseNorm", 8.25, 3, func() *tensor.Tensor { return normalize.Forward(image) }},
			{"LPPool2d", 4.25, 1.25, func() *tensor.Tensor { return power.Forward(image) }},
			{"RotaryEmbedding", 4.5, 3.06, func() *tensor.Tensor { return rotary.Forward(grad) }},
			{"RotaryEmbedding of a part", 3.75, 1.53, func() *tensor.Tensor { return part.Forward(grad) }},
			{"AdaptiveLogSoftmaxWithLoss", 19.05, 14.92, func() *tensor.Tensor {
				_, loss := adaptive.Forward(x.View(-1, width), classes)
				return loss
			}},
			{"AdaptiveLogSoftmaxWithLoss.LogProb", 70.56, 54.25, func() *tensor.Tensor { return adaptive.LogProb(x.View(-1, width)) }},
		} {
			for _, train := range []bool{true, false} {
				limit := c.noGrad
				mode := autograd.NoGrad
				if train {
					limit, mode = c.train, autograd.EnableGrad
				}
				err := mode(func() error {
					peak, err := vram.Measure(vram.CPU, func() error {
						return tensor.WithScope(func() error {
							y := c.f()
							if train {
								return y.Sum().Backward()
							}
							return y.Err()
						})
					})
					if got := float64(peak) / unit; got > limit+0.02 {
						t.Errorf("%s, gradients %v: the peak is %.2f times the bytes of x, PyTorch's is %.2f", c.name, train, got, limit)
					}
					return err
				})
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWeightPeaks tests how many tensors of a weight's size functions hold that make or change one, besides it.
func TestWeightPeaks(t *testing.T) {
	leak.Check(t)
	const width = 512
	const unit = width * width * 4
	err := tensor.WithScope(func() error {
		base, half := nn.NewLinear(width, width), nn.NewLinear(width, width, nn.DType(tensor.Float16))
		lora := nn.NewLoRALinear(base, 4)
		defer nn.Release(lora)
		defer nn.Release(half)
		made := func(m interface{ Err() error }) error {
			defer nn.Release(m)
			return m.Err()
		}
		for _, c := range []struct {
			name  string
			limit float64
			f     func() error
		}{
			{"LoRALinear.Merge", 1, lora.Merge},
			{"LoRALinear.Unmerge", 1, lora.Unmerge},
			{"NewInt8Linear", 1.25, func() error { return made(nn.NewInt8Linear(base)) }},
			{"NewInt8Linear of float16", 1.25, func() error { return made(nn.NewInt8Linear(half)) }},
			{"NewFloat8Linear", 1.25, func() error { return made(nn.NewFloat8Linear(base)) }},
			{"TruncNormal_", 2.5, func() error { return nn.TruncNormal_(base.Weight, 0, 1, -1, 1).Err() }},
			{"TruncNormal_ of a tail", 3.5, func() error { return nn.TruncNormal_(base.Weight, 0, 1, 2, 3).Err() }},
			{"Orthogonal_", 3.4, func() error { return nn.Orthogonal_(base.Weight, 1).Err() }},
		} {
			peak, err := vram.Measure(vram.CPU, c.f)
			if got := float64(peak) / unit; got > c.limit+0.03 {
				t.Errorf("%s: the peak is %.2f times the bytes of the weight, want at most %.2f", c.name, got, c.limit)
			}
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

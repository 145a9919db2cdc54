package nn_test

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// sameCPU reports whether this machine has the instruction sets of the one that made autocast.json, on which the
// kernels of bfloat16 and float16 depend.
func sameCPU(t *testing.T, want []string) bool {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "flags")
	line, _, _ := strings.Cut(rest, "\n")
	have := strings.Fields(line)
	for _, flag := range []string{"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"} {
		if slices.Contains(have, flag) != slices.Contains(want, flag) {
			return false
		}
	}
	return true
}

func oneThread(t *testing.T) {
	before := tensor.NumThreads()
	t.Cleanup(func() { _ = tensor.SetNumThreads(before) })
	if err := tensor.SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
}

// TestAutocastTraining compares the losses of 30 steps under autocast with PyTorch's.
func TestAutocastTraining(t *testing.T) {
	oneThread(t)
	var file struct {
		CPU    []string
		Losses map[string][]float64
	}
	golden.Read(t, "autocast.json", &file)
	// Kernels of other versions and instruction sets add bfloat16 and float16 products in another order.
	bound := 1e-6
	if version, err := tensor.Version(); err != nil || !sameCPU(t, file.CPU) || !strings.HasPrefix(version, "2.15") {
		bound = 5e-3 // a few units in the last place of bfloat16
	}
	for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
		for _, model := range []string{"gpt", "cnn"} {
			name := model + "_" + dtype.String()
			t.Run(name, func(t *testing.T) {
				leak.Check(t)
				worst, want := 0.0, file.Losses[name]
				got := trainAutocast(t, model, dtype, len(want))
				for i := range want {
					worst = math.Max(worst, math.Abs(got[i]-want[i]))
				}
				if t.Logf("losses differ from PyTorch's by at most %.3g", worst); !(worst <= bound) || len(want) != 30 {
					t.Errorf("losses differ from PyTorch's by up to %v in %d steps, want at most %v", worst, len(want), bound)
				}
			})
		}
	}
}

func trainAutocast(t *testing.T, model string, dtype tensor.DType, steps int) (losses []float64) {
	var logits func() *tensor.Tensor
	var loss func(step int) *tensor.Tensor
	var opt *optim.Optimizer
	var err error
	if model == "gpt" {
		g, f := loadedGPT(t)
		logits = func() *tensor.Tensor { return g.Forward(tensor.Zeros([]int{1, f.Config.Context}, tensor.Int64)) }
		loss = func(step int) *tensor.Tensor { return f.loss(g, step) }
		opt, err = optim.NewAdamW(nn.Parameters(g), f.Config.LR, optim.WeightDecay(f.Config.WeightDecay))
	} else {
		if err := tensor.ManualSeed(3); err != nil {
			t.Fatal(err)
		}
		m := nn.NewSequential(nn.NewConv2d(3, 8, 3, nn.Padding(1)), nn.NewBatchNorm2d(8), &nn.ReLU{}, nn.NewMaxPool2d(2),
			nn.NewConv2d(8, 16, 3, nn.Padding(1)), nn.NewBatchNorm2d(16), &nn.ReLU{}, nn.NewAdaptiveAvgPool2d(1), &nn.Flatten{}, nn.NewLinear(16, 10))
		if err := tensor.ManualSeed(4); err != nil {
			t.Fatal(err)
		}
		images := tensor.Randn([]int{16, 3, 16, 16}).Keep()
		labels := tensor.Arange(0, 16, tensor.Int64).Remainder(10).Keep()
		t.Cleanup(func() { nn.Release(m); images.Release(); labels.Release() })
		logits = func() *tensor.Tensor { return m.Forward(images) }
		loss = func(int) *tensor.Tensor { return nn.CrossEntropy(logits(), labels) }
		opt, err = optim.NewSGD(nn.Parameters(m), 0.05, optim.Momentum(0.9))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	scaler, err := optim.NewGradScaler(optim.InitScale(1024))
	if err != nil {
		t.Fatal(err)
	}
	for step := range steps {
		err := tensor.WithScope(func() error {
			l := autograd.Autocast(tensor.CPUType, dtype, func() *tensor.Tensor { return loss(step) })
			opt.ZeroGrad()
			v, err := l.Item()
			if err != nil {
				return err
			}
			losses = append(losses, v)
			if dtype != tensor.Float16 {
				if err := l.Backward(); err != nil {
					return err
				}
				return opt.Step()
			}
			if err := scaler.Scale(l).Backward(); err != nil {
				return err
			}
			if err := scaler.Step(opt); err != nil {
				return err
			}
			scaler.Update()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_ = tensor.WithScope(func() error {
		if y := autograd.Autocast(tensor.CPUType, dtype, logits); y.DType() != dtype {
			t.Errorf("the logits are %v (%v)", y.DType(), y.Err())
		}
		return nil
	})
	return losses
}

// TestBFloat16Training compares the loss of a bfloat16 model after 120 steps with that of a float32 one. Updates are too
// small for bfloat16 at this rate, so without masters or stochastic rounding the loss stays behind.
func TestBFloat16Training(t *testing.T) {
	leak.Check(t)
	last := func(dtype tensor.DType, opts ...optim.Option) (loss float64) {
		if err := tensor.ManualSeed(5); err != nil {
			t.Fatal(err)
		}
		g, f := loadedGPT(t)
		if err := nn.To(g, dtype); err != nil {
			t.Fatal(err)
		}
		opt, err := optim.NewAdamW(nn.Parameters(g), 1e-4, append(opts, optim.WeightDecay(0.01))...)
		if err != nil {
			t.Fatal(err)
		}
		defer opt.Release()
		// The mean of the last steps, one for each batch.
		for step := range 120 {
			err := tensor.WithScope(func() error {
				l := f.loss(g, step)
				opt.ZeroGrad()
				if err := l.Backward(); err != nil {
					return err
				}
				if step >= 120-len(f.Batches) {
					v, err := l.Item()
					if err != nil {
						return err
					}
					loss += v / float64(len(f.Batches))
				}
				return opt.Step()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return loss
	}
	want := last(tensor.Float32)
	for _, c := range []struct {
		name        string
		opts        []optim.Option
		least, most float64
	}{
		{"masters", []optim.Option{optim.MasterWeights()}, 0, 1e-3},
		{"stochastic rounding", []optim.Option{optim.StochasticRounding()}, 0, 1e-3},
		{"neither", nil, 2e-2, 10},
	} {
		off := math.Abs(last(tensor.BFloat16, c.opts...)-want) / want
		if t.Logf("%s: off by %.2g of %.4f", c.name, off, want); !(off >= c.least && off <= c.most) {
			t.Errorf("%s: the loss is off by %v, want %v to %v", c.name, off, c.least, c.most)
		}
	}
}

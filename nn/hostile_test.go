package nn_test

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// TestHostileForward calls every layer with nil and zero receivers and every kind of unusable input, from many
// goroutines. Only errors may result.
func TestHostileForward(t *testing.T) {
	leak.Check(t)
	var layers []nn.Layer
	for _, build := range constructors {
		layers = append(layers, build())
	}
	defer nn.Release(layers)
	bare := []nn.Layer{(*nn.Linear)(nil), &nn.Linear{}, (*nn.Embedding)(nil), &nn.Embedding{}, (*nn.LayerNorm)(nil), &nn.LayerNorm{},
		(*nn.RMSNorm)(nil), &nn.RMSNorm{}, (*nn.BatchNorm2d)(nil), &nn.BatchNorm2d{}, (*nn.Conv2d)(nil), &nn.Conv2d{},
		(*nn.Conv1d)(nil), &nn.Conv1d{}, (*nn.MaxPool2d)(nil), &nn.MaxPool2d{}, (*nn.AvgPool2d)(nil), &nn.AvgPool2d{},
		(*nn.AdaptiveAvgPool2d)(nil), &nn.AdaptiveAvgPool2d{Height: -1}, (*nn.Dropout)(nil), &nn.Dropout{P: 7}, (*nn.ReLU)(nil),
		(*nn.GELU)(nil), &nn.GELU{Approximate: "x"}, (*nn.SiLU)(nil), (*nn.Tanh)(nil), (*nn.Sigmoid)(nil), (*nn.Softmax)(nil), &nn.Softmax{Dim: 99},
		(*nn.LogSoftmax)(nil), &nn.LogSoftmax{Dim: math.MinInt}, (*nn.Flatten)(nil), nn.NewFlatten(50, -50), (*nn.Identity)(nil),
		(*nn.MultiheadAttention)(nil), &nn.MultiheadAttention{}, &nn.MultiheadAttention{OutProj: &nn.Linear{}, Heads: 2},
		(*nn.CausalSelfAttention)(nil), &nn.CausalSelfAttention{}, &nn.CausalSelfAttention{QKV: &nn.Linear{}, Proj: &nn.Linear{}},
		(*nn.Sequential)(nil), &nn.Sequential{Layers: []nn.Layer{nil}}, nn.Func(nil), nn.Func(func(*tensor.Tensor) *tensor.Tensor { return nil }),
		nn.NewSequential(nn.Func(func(*tensor.Tensor) *tensor.Tensor { return nil }), &nn.ReLU{})}
	var wg sync.WaitGroup
	for range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_ = tensor.WithScope(func() error {
				released := tensor.Ones([]int{2, 2})
				released.Release()
				inputs := []*tensor.Tensor{nil, {}, released, tensor.Ones([]int{2}).View(5), tensor.Ones([]int{}), tensor.Zeros([]int{0, 3}),
					tensor.Ones([]int{1, 2, 3, 4, 5, 6}), tensor.Ones([]int{3}, tensor.Bool), tensor.Full([]int{2, 2}, -9, tensor.Int64),
					tensor.Ones([]int{2, 3, 8}, tensor.Complex64), tensor.Ones([]int{2, 3, 4, 4}, tensor.Meta)}
				for _, l := range append(append([]nn.Layer{}, layers...), bare...) {
					for i, x := range inputs {
						y := l.Forward(x)
						if i < 4 && y != nil && y != x && y.Err() == nil {
							t.Errorf("%T accepts input %d", l, i)
						}
						if y := nn.Pipe(x, l, l); y == nil {
							t.Errorf("Pipe through %T returns nil", l)
						}
						if y := nn.Residual(x, l); y == nil {
							t.Errorf("Residual through %T returns nil", l)
						}
					}
				}
				for _, x := range inputs[:4] {
					for _, y := range []*tensor.Tensor{nn.CrossEntropy(x, x), nn.NLLLoss(x, nil), nn.MSELoss(x, x), nn.L1Loss(x, x), nn.SmoothL1Loss(x, x),
						nn.BCELoss(x, x), nn.BCEWithLogitsLoss(x, x), nn.KLDivLoss(x, x), nn.CausalAttention(x, 2), nn.Uniform_(x, 0, 1), nn.Normal_(x, 0, 1),
						nn.Constant_(x, 1), nn.TruncNormal_(x, 0, 1, -1, 1), nn.KaimingUniform_(x, nil), nn.KaimingNormal_(x), nn.XavierUniform_(x, 1),
						nn.XavierNormal_(x, math.NaN()), nn.Orthogonal_(x, 1), nn.ClipGradNorm_([]*tensor.Tensor{x}, 1)} {
						if y.Err() == nil {
							t.Error("ClipGradNorm_ accepts an unusable tensor")
						}
					}
					if nn.ClipGradValue_([]*tensor.Tensor{x}, 1) == nil || nn.ClipGradValue_(nil, math.NaN()) == nil {
						t.Error("ClipGradValue_ accepts an unusable tensor")
					}
				}
				if nn.ClipGradNorm_(nil, -1).Err() == nil {
					t.Error("ClipGradNorm_ accepts a negative norm")
				}
				if v, err := nn.ClipGradNorm_(nil, 1).Item(); v != 0 || err != nil {
					t.Errorf("the norm of no gradients is %v, %v", v, err)
				}
				return nil
			})
		}()
	}
	wg.Wait()
}

func TestHostileConstructors(t *testing.T) {
	leak.Check(t)
	sizes := []int{0, -1, math.MinInt, math.MaxInt, 1 << 45}
	refuse := func(what string, m interface {
		nn.Layer
		Err() error
	}) {
		t.Helper()
		err := m.Err()
		if err == nil {
			t.Errorf("%s: no error", what)
			return
		}
		if n := len(nn.NamedBuffers(m)); n != 0 {
			t.Errorf("%s: %d buffers are left", what, n)
		}
		if y := m.Forward(nil); y == nil || y.Err() != err {
			t.Errorf("%s: Forward returns %v, want %v", what, y.Err(), err)
		}
		if got := nn.Check(m); !errors.Is(got, err) {
			t.Errorf("%s: Check returns %v, want %v", what, got, err)
		}
		var e *tensor.Error
		if !errors.As(err, &e) || !strings.HasPrefix(e.Op, "New") || !strings.Contains(e.Caller, "hostile_test.go:") {
			t.Errorf("%s: %v does not name the constructor and the line", what, err)
		}
	}
	for _, n := range sizes {
		for _, pair := range [][2]int{{n, 2}, {2, n}, {n, n}} {
			a, b := pair[0], pair[1]
			refuse("NewLinear", nn.NewLinear(a, b))
			refuse("NewEmbedding", nn.NewEmbedding(a, b))
			refuse("NewConv2d", nn.NewConv2d(a, b, 3))
			refuse("NewConv1d", nn.NewConv1d(a, b, 3))
			refuse("NewMultiheadAttention", nn.NewMultiheadAttention(a, b))
			refuse("NewCausalSelfAttention", nn.NewCausalSelfAttention(a, b))
			refuse("NewAdaptiveAvgPool2d", nn.NewAdaptiveAvgPool2d(a, b))
			refuse("NewLayerNormShape", nn.NewLayerNormShape([]int{a, b}))
		}
		refuse("NewLayerNorm", nn.NewLayerNorm(n))
		refuse("NewRMSNorm", nn.NewRMSNorm(n))
		refuse("NewBatchNorm2d", nn.NewBatchNorm2d(n))
		refuse("a kernel", nn.NewConv2d(2, 2, n))
		refuse("a window", nn.NewMaxPool2d(n))
		refuse("a stride", nn.NewAvgPool2d(2, nn.Stride(n)))
		refuse("groups", nn.NewConv2d(2, 2, 2, nn.Groups(n)))
		refuse("a dilation", nn.NewConv2d(2, 2, 2, nn.Dilation(n)))
	}
	// These exceed any address space although each size is valid on its own.
	refuse("a huge Linear", nn.NewLinear(1<<39, 1<<39))
	refuse("a huge Conv2d", nn.NewConv2d(1<<30, 1<<30, 1<<30))
	for what, o := range map[string]nn.Option{"an empty option": {}, "another's option": nn.Stride(2), "an integer dtype": nn.DType(tensor.Int64),
		"no dtype": nn.DType(tensor.Invalid), "no device": nn.Device(tensor.Device{Type: 99, Index: -4}), "a device that is not there": nn.Device(tensor.CUDA(99))} {
		refuse(what, nn.NewLinear(2, 2, o))
	}
	refuse("no shape", nn.NewLayerNormShape(nil))
	refuse("eps", nn.NewLayerNorm(3, nn.Eps(math.NaN())))
	refuse("momentum", nn.NewBatchNorm2d(3, nn.Momentum(2)))
	refuse("padding_idx", nn.NewEmbedding(3, 3, nn.PaddingIdx(3)))
	refuse("p", nn.NewDropout(math.NaN()))
	refuse("p", nn.NewCausalSelfAttention(8, 2, nn.DropoutP(-1)))
	refuse("three strides", nn.NewConv2d(2, 2, 2, nn.Stride(1, 2, 3)))
	refuse("a negative padding", nn.NewConv2d(2, 2, 2, nn.Padding(-1)))
	refuse("groups that do not divide", nn.NewConv2d(3, 2, 2, nn.Groups(2)))
}

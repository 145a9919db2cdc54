package nn_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
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
	for _, c := range torchModules {
		switch m := c.make().(type) {
		case nn.Layer:
			layers = append(layers, m)
		case []any: // a pool and its inverse
			layers = append(layers, m[0].(nn.Layer))
		default:
			nn.Release(m)
		}
	}
	defer nn.Release(layers)
	bare := []nn.Layer{(*nn.Linear)(nil), &nn.Linear{}, (*nn.Embedding)(nil), &nn.Embedding{}, (*nn.LayerNorm)(nil), &nn.LayerNorm{},
		(*nn.RMSNorm)(nil), &nn.RMSNorm{}, (*nn.BatchNorm2d)(nil), &nn.BatchNorm2d{}, (*nn.Conv2d)(nil), &nn.Conv2d{},
		(*nn.Conv1d)(nil), &nn.Conv1d{}, (*nn.MaxPool2d)(nil), &nn.MaxPool2d{}, (*nn.AvgPool2d)(nil), &nn.AvgPool2d{},
		(*nn.AdaptiveAvgPool2d)(nil), &nn.AdaptiveAvgPool2d{Size: []int{-2}}, (*nn.Dropout)(nil), &nn.Dropout{P: 7}, (*nn.ReLU)(nil),
		(*nn.GELU)(nil), &nn.GELU{Approximate: "x"}, (*nn.SiLU)(nil), (*nn.Tanh)(nil), (*nn.Sigmoid)(nil), (*nn.Softmax)(nil), &nn.Softmax{Dim: 99},
		(*nn.LogSoftmax)(nil), &nn.LogSoftmax{Dim: math.MinInt}, (*nn.Flatten)(nil), nn.NewFlatten(50, -50), (*nn.Identity)(nil),
		(*nn.MultiheadAttention)(nil), &nn.MultiheadAttention{}, &nn.MultiheadAttention{OutProj: &nn.Linear{}, Heads: 2},
		(*nn.CausalSelfAttention)(nil), &nn.CausalSelfAttention{}, &nn.CausalSelfAttention{QKV: &nn.Linear{}, Proj: &nn.Linear{}},
		(*nn.Sequential)(nil), &nn.Sequential{Layers: []nn.Layer{nil}}, nn.Func(nil), nn.Func(func(*tensor.Tensor) *tensor.Tensor { return nil }),
		nn.NewSequential(nn.Func(func(*tensor.Tensor) *tensor.Tensor { return nil }), &nn.ReLU{})}
	bare = append(bare, zeroLayers()...)
	goroutines := 8
	if testing.Short() {
		goroutines = 2
	}
	var wg sync.WaitGroup
	for range goroutines {
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
						nn.XavierNormal_(x, math.NaN()), nn.Orthogonal_(x, 1), nn.SDPAKernel(nil, func() *tensor.Tensor { return x }), nn.ClipGradNorm_([]*tensor.Tensor{x}, 1), nn.GetTotalNorm([]*tensor.Tensor{x}),
						nn.ParametersToVector([]*tensor.Tensor{x}), nn.LinearCrossEntropy(x, x, x, x, 1)} {
						if y.Err() == nil {
							t.Error("ClipGradNorm_ accepts an unusable tensor")
						}
					}
					weight, bias := nn.FuseConvBNWeights(x, x, x, x, 0, x, x, false)
					if weight.Err() == nil || bias.Err() == nil || nn.VectorToParameters(x, []*tensor.Tensor{x}) == nil || nn.ClipGradsWithNorm_([]*tensor.Tensor{x}, 1, x) == nil {
						t.Error("a function of nn.utils accepts an unusable tensor")
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
			if n != 0 {
				refuse("NewLinear", nn.NewLinear(a, b))
				refuse("NewEmbedding", nn.NewEmbedding(a, b))
			}
			refuse("NewConv2d", nn.NewConv2d(a, b, 3))
			refuse("NewConv1d", nn.NewConv1d(a, b, 3))
			refuse("NewMultiheadAttention", nn.NewMultiheadAttention(a, b))
			refuse("NewCausalSelfAttention", nn.NewCausalSelfAttention(a, b))
			if a != nn.Keep && b != nn.Keep {
				refuse("NewAdaptiveAvgPool2d", nn.NewAdaptiveAvgPool2d(a, b))
			}
			refuse("NewLayerNormShape", nn.NewLayerNormShape([]int{a, b}))
		}
		for _, m := range []interface {
			nn.Layer
			Err() error
		}{nn.NewConv3d(2, 2, n), nn.NewConvTranspose1d(n, 2, 1), nn.NewConvTranspose2d(2, n, 1), nn.NewConvTranspose3d(2, 2, n), nn.NewMaxPool1d(n), nn.NewMaxPool3d(n),
			nn.NewAvgPool1d(n), nn.NewAvgPool3d(2, nn.Stride(n)), nn.NewLPPool1d(0, 2), nn.NewLPPool2d(math.NaN(), 2), nn.NewLPPool3d(2, n), nn.NewFractionalMaxPool2d(2),
			nn.NewFractionalMaxPool3d(2, nn.OutputSize(n)), nn.NewFractionalMaxPool2d(2, nn.OutputRatio(7)), nn.NewBatchNorm1d(n), nn.NewBatchNorm3d(n), nn.NewInstanceNorm1d(n),
			nn.NewInstanceNorm2d(n, nn.Affine()), nn.NewInstanceNorm3d(n), nn.NewGroupNorm(n, 4), nn.NewGroupNorm(3, 4), nn.NewLocalResponseNorm(n), nn.NewRMSNormShape([]int{n}),
			nn.NewPReLU(n, 0.1), nn.NewReflectionPad1d(1, 2, 3), nn.NewZeroPad2d(), nn.NewConstantPad3d(0, 1, 2), nn.NewCircularPad2d(math.MaxInt), nn.NewDropout2d(-1),
			nn.NewAlphaDropout(math.NaN()), nn.NewRNN(n, 2), nn.NewGRU(2, n), nn.NewLSTM(2, 2, nn.NumLayers(n)), nn.NewLSTM(2, 2, nn.ProjSize(2)), nn.NewRNN(2, 2, nn.Activation("x")),
			nn.NewGRU(2, 2, nn.DropoutP(-1)), nn.NewConv2d(2, 2, 2, nn.PaddingSame(), nn.Stride(2)), nn.NewConv2d(2, 2, 2, nn.PaddingMode("x")), nn.NewAvgPool2d(2, nn.DivisorOverride(0))} {
			refuse(fmt.Sprintf("%T with %d", m, n), m)
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

// zeroLayers returns a nil pointer and the zero value of each type of layer that torchModules makes.
func zeroLayers() (out []nn.Layer) {
	seen := map[reflect.Type]bool{}
	for _, c := range torchModules {
		m := c.make()
		t := reflect.TypeOf(m)
		nn.Release(m)
		if _, ok := m.(nn.Layer); !ok || seen[t] || t == reflect.TypeFor[*nn.Sequential]() {
			continue
		}
		seen[t] = true
		out = append(out, reflect.Zero(t).Interface().(nn.Layer), reflect.New(t.Elem()).Interface().(nn.Layer))
	}
	return out
}

// TestHostileInputs calls the modules that are no layers, and the further methods of layers, with unusable arguments of
// every kind. Only errors may result.
func TestHostileInputs(t *testing.T) {
	leak.Check(t)
	released := tensor.Ones([]int{2, 2})
	released.Release()
	_ = tensor.WithScope(func() error {
		inputs := []*tensor.Tensor{nil, {}, released, tensor.Ones([]int{2}).View(5), tensor.Ones([]int{}), tensor.Zeros([]int{0, 3}),
			tensor.Ones([]int{1, 2, 3, 4, 5, 6}), tensor.Ones([]int{3}, tensor.Bool), tensor.Full([]int{2, 2}, -9, tensor.Int64),
			tensor.Ones([]int{2, 3, 8}, tensor.Complex64), tensor.Ones([]int{2, 3}), tensor.Ones([]int{2, 3, 3})}
		modules := []any{(*nn.Loss)(nil), &nn.Loss{}}
		for _, c := range torchModules {
			modules = append(modules, c.make())
		}
		for _, l := range zeroLayers() {
			modules = append(modules, l)
		}
		defer nn.Release(modules)
		for _, m := range modules {
			v := reflect.ValueOf(m)
			for i := range v.NumMethod() {
				f, name := v.Method(i), v.Type().Method(i).Name
				if !strings.HasPrefix(name, "Forward") && !strings.HasPrefix(name, "Attend") {
					continue
				}
				for k := range inputs {
					var args []reflect.Value
					for a := range f.Type().NumIn() {
						switch in := f.Type().In(a); in {
						case reflect.TypeFor[*tensor.Tensor]():
							args = append(args, reflect.ValueOf(inputs[(k+a*7)%len(inputs)]))
						case reflect.TypeFor[[]*tensor.Tensor]():
							args = append(args, reflect.ValueOf(inputs[k]), reflect.ValueOf(inputs[(k+5)%len(inputs)]))
						case reflect.TypeFor[*nn.PackedSequence]():
							args = append(args, reflect.ValueOf(hostilePack(inputs[k], k)))
						case reflect.TypeFor[nn.Masks]():
							args = append(args, reflect.ValueOf(nn.Masks{Attn: inputs[k], KeyPadding: inputs[(k+4)%len(inputs)], Causal: k%2 == 0}))
						case reflect.TypeFor[nn.TransformerMasks]():
							m := nn.Masks{Attn: inputs[k]}
							args = append(args, reflect.ValueOf(nn.TransformerMasks{Source: m, Target: m, Memory: m}))
						case reflect.TypeFor[[]int]():
							if k%2 == 0 {
								args = append(args, reflect.ValueOf(k-3), reflect.ValueOf(math.MaxInt))
							}
						default:
							if !f.Type().IsVariadic() || a != f.Type().NumIn()-1 {
								args = append(args, reflect.Zero(in))
							}
						}
					}
					for _, out := range f.Call(args) {
						if out.Kind() == reflect.Pointer && out.IsNil() {
							t.Errorf("%T.%s returns nil for input %d", m, name, k)
						}
					}
				}
			}
		}
		for k, x := range inputs {
			for _, y := range []*tensor.Tensor{nn.PadSequence(inputs), nn.PadSequence(tensors(x, x)), nn.PadSequence(nil)} {
				_ = y.Err()
			}
			for _, lengths := range [][]int{nil, {0}, {1, 1}, {2, -1}, {math.MaxInt, 1}, {3, 2}} {
				p := nn.PackPaddedSequence(x, lengths)
				nn.PadPackedSequence(p, nn.TotalLength(k*100-500))
				_, _ = nn.UnpadSequence(x, lengths, nn.BatchFirst())
				_, _ = nn.UnpackSequence(p)
			}
			p := hostilePack(x, k)
			nn.PadPackedSequence(p)
			_ = p.Err()
			_ = nn.PackSequence(tensors(x, x))
		}
		return nil
	})
}

// hostilePack returns a packed sequence whose parts do not fit together.
func hostilePack(x *tensor.Tensor, k int) *nn.PackedSequence {
	return []*nn.PackedSequence{nil, {}, {Data: x}, {Data: x, BatchSizes: []int{1, 1}}, {Data: x, BatchSizes: []int{2}, SortedIndices: []int{5, 1}, UnsortedIndices: []int{0, 0}},
		{Data: x, BatchSizes: []int{math.MaxInt, 2}}, {Data: x, BatchSizes: []int{1, 2}}, {Data: x, BatchSizes: []int{2}, SortedIndices: []int{1, 0}, UnsortedIndices: []int{1, 0}}}[k%8]
}

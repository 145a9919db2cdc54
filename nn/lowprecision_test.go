package nn_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// eightBits is a linear layer in 8 bits.
type eightBits interface {
	nn.Layer
	Err() error
}

// eightBitsOf makes the layers of lowprecision.py, and one that rounds only the weight, of a Linear.
var eightBitsOf = map[string]func(l *nn.Linear) eightBits{
	"int8":        func(l *nn.Linear) eightBits { return nn.NewInt8Linear(l, nn.Dynamic()) },
	"int8 weight": func(l *nn.Linear) eightBits { return nn.NewInt8Linear(l) },
	"float8":      func(l *nn.Linear) eightBits { return nn.NewFloat8Linear(l) },
	"float8 rows": func(l *nn.Linear) eightBits { return nn.NewFloat8Linear(l, nn.PerRow()) },
}

// dequantized returns the weight that l multiplies by, in float64.
func dequantized(l eightBits) *tensor.Tensor {
	var w, scales *tensor.Tensor
	switch l := l.(type) {
	case *nn.Int8Linear:
		w, scales = l.Weight, l.Scales
	case *nn.Float8Linear:
		w, scales = l.Weight, l.Scales
	}
	if scales.Dim() == 1 {
		scales = scales.Unsqueeze(1)
	}
	return w.To(tensor.Float64).Mul(scales.To(tensor.Float64))
}

// unit is the largest relative error of rounding to a dtype.
var unit = map[tensor.DType]float64{tensor.Float32: 0x1p-24, tensor.BFloat16: 0x1p-8, tensor.Float16: 0x1p-11}

// nearProduct compares got with a @ b (+ bias), of tensors in float64, where got was computed in its own dtype: each element was
// rounded at most three times (a factor or the product's scale, the product, the bias), and its sum was one in float32.
func nearProduct(t *testing.T, what string, got, a, b, bias *tensor.Tensor) {
	t.Helper()
	want, size := a.MM(b), a.Abs().MM(b.Abs())
	if bias != nil {
		want, size = want.Add(bias), size.Add(bias.Abs())
	}
	g, w, s := data(t, got.Detach().To(tensor.Float64)), data(t, want), data(t, size)
	if len(g) != len(w) {
		t.Errorf("%s: %v, want %v", what, got.Shape(), want.Shape())
		return
	}
	most := 3.1*unit[got.DType()] + float64(a.Size(1)+1)*unit[tensor.Float32]
	for i := range w {
		if d := math.Abs(g[i] - w[i]); !(d <= most*s[i]) {
			t.Errorf("%s: element %d is %v, want %v within %.2g", what, i, g[i], w[i], most*s[i])
			return
		}
	}
}

// goldenDTypes are the dtypes in the files of lowprecision.py.
var goldenDTypes = map[string]tensor.DType{"float32": tensor.Float32, "bfloat16": tensor.BFloat16, "float16": tensor.Float16}

// TestEightBits compares products of inputs and weights in 8 bits with PyTorch.
func TestEightBits(t *testing.T) {
	leak.Check(t)
	var cases []struct {
		Kind, DType        string
		Sizes              []int
		X, Weight, Bias, Y []float64
	}
	golden.Read(t, "lowprecision.json", &cases)
	near := map[string]float64{"float32": 1e-6, "bfloat16": 0.02, "float16": 0.003}
	for _, c := range cases {
		m, k, n := c.Sizes[0], c.Sizes[1], c.Sizes[2]
		what := fmt.Sprint(c.Kind, " ", c.DType, c.Sizes)
		err := tensor.WithScope(func() error {
			of := func(v []float64, sizes ...int) *tensor.Tensor {
				return tensor.FromSlice(v, sizes).To(goldenDTypes[c.DType])
			}
			q := eightBitsOf[c.Kind](&nn.Linear{Weight: of(c.Weight, n, k), Bias: of(c.Bias, n)})
			defer nn.Release(q)
			if err := q.Err(); err != nil {
				return err
			}
			x := of(c.X, m, k)
			y := q.Forward(x)
			if y.DType() != x.DType() {
				t.Errorf("%s: the result is %v", what, y.DType())
			}
			golden.Near(t, what, y.To(tensor.Float64).Detach(), c.Y, near[c.DType], near[c.DType])
			batched := q.Forward(x.Unsqueeze(0))
			golden.Near(t, what+" in a batch", batched.Squeeze().To(tensor.Float64).Detach(), data(t, y.Detach().To(tensor.Float64)), 0, 0)

			// With a gradient the input is not rounded.
			leaf := x.Detach().RequiresGrad_()
			exact := q.Forward(leaf)
			wide := func(x *tensor.Tensor) *tensor.Tensor { return x.Detach().To(tensor.Float64) }
			weight := dequantized(q)
			nearProduct(t, what+" with a gradient", exact, wide(x), weight.T(), wide(of(c.Bias, n)))
			g := exact.Detach().Cos() // differs by element
			if err := exact.Backward(tensor.Gradient(g)); err != nil {
				return err
			}
			nearProduct(t, what+", the gradient", leaf.Grad(), wide(g), weight, nil)
			return autograd.NoGrad(func() error {
				golden.Near(t, what+" without a gradient", q.Forward(leaf).To(tensor.Float64), c.Y, near[c.DType], near[c.DType])
				return nil
			})
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestEightBitsWide compares layers, and their derivatives, of rows and widths that CUDA's kernels take with the layers that were rounded.
func TestEightBitsWide(t *testing.T) {
	leak.Check(t)
	for name, of := range eightBitsOf {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			l := nn.NewLinear(64, 32, nn.DType(tensor.BFloat16))
			q := of(l)
			defer nn.Release(l)
			defer nn.Release(q)
			err := tensor.WithScope(func() error {
				x := tensor.Randn([]int{3, 8, 64}, tensor.BFloat16)
				y := q.Forward(x)
				if err := y.Err(); err != nil && strings.Contains(err.Error(), "compute capability") {
					return nil // an older GPU
				}
				golden.Near(t, name, y.Detach().To(tensor.Float32), data(t, l.Forward(x).Detach().To(tensor.Float32)), 0.1, 0.1)

				// In a level the input is not rounded, which has no derivative.
				f := func(in ...*tensor.Tensor) *tensor.Tensor { return q.Forward(in[0]) }
				few := x.Index(0)
				v := few.OnesLike()
				_, dy, err := autograd.JVP(f, []*tensor.Tensor{few}, []*tensor.Tensor{v}, autograd.ForwardMode(true))
				if err != nil {
					return err
				}
				nearProduct(t, name+" forward", dy, v.To(tensor.Float64), dequantized(q).T(), nil)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEightBitsEdges tests empty operands, the meta device, loading and errors.
func TestEightBitsEdges(t *testing.T) {
	leak.Check(t)
	for name, of := range eightBitsOf {
		err := tensor.WithScope(func() error {
			l := nn.NewLinear(4, 3)
			q, other := of(l), of(&nn.Linear{Weight: tensor.Ones([]int{3, 4}), Bias: tensor.Ones([]int{3})})
			for _, m := range []any{l, q, other} {
				defer nn.Release(m)
			}
			golden.Near(t, name+" of no rows", q.Forward(tensor.Ones([]int{2, 0, 4})), nil, 0, 0)
			golden.Near(t, name+" of ones", other.Forward(tensor.Ones([]int{4})).Detach(), []float64{5, 5, 5}, 0.04, 0)
			golden.Near(t, name+" of zeros", other.Forward(tensor.Zeros([]int{4})).Detach(), []float64{1, 1, 1}, 0, 0)
			if err := nn.LoadStateDict(other, nn.StateDict(q).Map()); err != nil {
				return err
			}
			x := tensor.Randn([]int{2, 4})
			golden.Near(t, name+" loaded", other.Forward(x).Detach(), data(t, q.Forward(x).Detach()), 0, 0)
			noOutputs := of(&nn.Linear{Weight: tensor.Ones([]int{0, 4})})
			defer nn.Release(noOutputs)
			golden.Near(t, name+" of no outputs", noOutputs.Forward(x), nil, 0, 0)
			for what, err := range map[string]error{
				"nil": of(nil).Err(), "no weight": of(&nn.Linear{}).Err(), "integers": of(&nn.Linear{Weight: tensor.Ones([]int{2, 2}, tensor.Int64)}).Err(),
				"a vector": of(&nn.Linear{Weight: tensor.Ones([]int{2})}).Err(), "a bias": of(&nn.Linear{Weight: tensor.Ones([]int{2, 2}), Bias: tensor.Ones([]int{3})}).Err(),
				"a width": q.Forward(tensor.Ones([]int{2, 3})).Err(), "an integer": q.Forward(tensor.Ones([]int{2, 4}, tensor.Int64)).Err(),
				"a scalar": q.Forward(tensor.Ones(nil)).Err(), "no tensor": q.Forward(nil).Err(), "another device": q.Forward(tensor.Ones([]int{2, 4}, tensor.Meta)).Err(),
			} {
				if err == nil {
					t.Errorf("%s: %s: no error", name, what)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = tensor.WithScope(func() error {
		// Plans of memory run on the meta device.
		onMeta := func(d tensor.DType, shape ...int) *tensor.Tensor { return tensor.Empty(shape, d, tensor.Meta) }
		for name, q := range map[string]nn.Layer{
			"int8":        &nn.Int8Linear{Weight: onMeta(tensor.Int8, 3, 4), Scales: onMeta(tensor.Float32, 3), Dynamic: true},
			"float8":      &nn.Float8Linear{Weight: onMeta(tensor.Float8E4M3FN, 3, 4), Scales: onMeta(tensor.Float32)},
			"float8 rows": &nn.Float8Linear{Weight: onMeta(tensor.Float8E4M3FN, 3, 4), Scales: onMeta(tensor.Float32, 3)},
		} {
			if y := q.Forward(onMeta(tensor.Float32, 2, 4)); fmt.Sprint(y.Shape()) != "[2 3]" {
				t.Errorf("%s on the meta device: %v, %v", name, y.Shape(), y.Err())
			}
		}
		linear := nn.NewLinear(4, 3, nn.Device(tensor.Meta))
		defer nn.Release(linear)
		q := nn.NewInt8Linear(linear)
		defer nn.Release(q)
		if q.Err() != nil || q.Weight.Device() != tensor.Meta || q.Weight.DType() != tensor.Int8 || q.Scales.Device() != tensor.Meta {
			t.Errorf("an Int8Linear of a Linear on the meta device: %v", q.Err())
		}
		x, w := tensor.Ones([]int{2, 4}), tensor.Ones([]int{3, 4}).To(tensor.Float8E4M3FN)
		for what, q := range map[string]*nn.Float8Linear{
			"empty": {}, "a nil layer": nil, "float weights": {Weight: tensor.Ones([]int{3, 4}), Scales: tensor.Ones(nil)}, "two scales": {Weight: w, Scales: tensor.Ones([]int{2})},
			"scales in float64": {Weight: w, Scales: tensor.Ones(nil, tensor.Float64)}, "a column": {Weight: w, Scales: tensor.Ones([]int{3, 1})},
		} {
			if q.Forward(x).Err() == nil {
				t.Errorf("Float8Linear with %s: no error", what)
			}
		}
		return nil
	})
}

// TestLoRAOverEightBits tests updates of layers whose weights have 8 bits.
func TestLoRAOverEightBits(t *testing.T) {
	leak.Check(t)
	for name, of := range eightBitsOf {
		err := tensor.WithScope(func() error {
			linear := nn.NewLinear(4, 3)
			base := of(linear)
			l := nn.NewLoRALinear(base, 2)
			half := nn.NewLoRALinear(base, 2, nn.DType(tensor.BFloat16))
			for _, m := range []any{linear, l, half} {
				defer nn.Release(m)
			}
			if err := errors.Join(l.Err(), half.Err(), nn.Normal_(l.B.Weight, 0, 1).Err()); err != nil {
				return err
			}
			if l.A.Weight.DType() != tensor.Float32 || half.A.Weight.DType() != tensor.BFloat16 {
				t.Errorf("%s: the updates are %v and %v", name, l.A.Weight.DType(), half.A.Weight.DType())
			}
			x := tensor.Randn([]int{5, 4})
			want := base.Forward(x).Add(x.MM(l.A.Weight.T()).MM(l.B.Weight.T()))
			golden.Near(t, name, l.Forward(x).Detach(), data(t, want.Detach()), 1e-5, 1e-5)
			leaf := x.Detach().RequiresGrad_()
			if err := l.Forward(leaf).Sum().Backward(); err != nil {
				return err
			}
			a, b := l.A.Weight.Detach(), l.B.Weight.Detach()
			g := tensor.Ones([]int{5, 3})
			for what, pair := range map[string][2]*tensor.Tensor{
				"the input": {leaf.Grad(), g.MM(dequantized(base).To(tensor.Float32).Add(b.MM(a)))},
				"A":         {l.A.Weight.Grad(), g.MM(b).T().MM(x)},
				"B":         {l.B.Weight.Grad(), g.T().MM(x.MM(a.T()))},
			} {
				golden.Near(t, name+", the gradient of "+what, pair[0], data(t, pair[1]), 1e-5, 1e-5)
			}
			if ps := nn.Parameters(l); len(ps) != 3 || ps[0].RequiresGrad() || !ps[1].RequiresGrad() || !ps[2].RequiresGrad() {
				t.Errorf("%s: the parameters are %v", name, nn.NamedParameters(l))
			}
			if err := l.Merge(); !errors.Is(err, tensor.ErrArgument) || l.Merged() {
				t.Errorf("%s: Merge: %v", name, err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := nn.NewLoRALinear(&nn.ReLU{}, 2).Err(); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("LoRA of an activation: %v", err)
	}
}

// TestToOfEightBits tests that layers of 8 bits work in a model that was converted to another dtype.
func TestToOfEightBits(t *testing.T) {
	leak.Check(t)
	for name, of := range eightBitsOf {
		if err := tensor.ManualSeed(7); err != nil {
			t.Fatal(err)
		}
		linear := nn.NewLinear(4, 3)
		l := of(linear)
		defer nn.Release([]any{linear, l})
		bits := nn.NamedBuffers(l)[0].Tensor.DType()
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{5, 4}, tensor.BFloat16)
			if err := nn.To(l, tensor.BFloat16); err != nil {
				return err
			}
			y := l.Forward(x)
			exact := x.To(tensor.Float64).MM(dequantized(l).T()).Add(nn.Parameters(l)[0].Detach())
			golden.Near(t, name, y.Detach(), data(t, exact), 0.03, 0.02) // x is rounded to 8 bits
			if p, b := nn.Parameters(l), nn.NamedBuffers(l); y.DType() != tensor.BFloat16 || p[0].DType() != tensor.BFloat16 || b[0].Tensor.DType() != bits {
				t.Errorf("%s: the result is %v, the bias %v, the weight %v", name, y.DType(), p[0].DType(), b[0].Tensor.DType())
			}
			return y.Err()
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLoRAOfOtherDTypes tests updates whose dtype is not that of x: x is converted for A, and the result has the dtype
// of the base's, as in Hugging Face's peft.
func TestLoRAOfOtherDTypes(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct{ base, update, x tensor.DType }{
		{tensor.BFloat16, tensor.Float32, tensor.BFloat16}, {tensor.Float32, tensor.BFloat16, tensor.Float32}, {tensor.Float64, tensor.Float32, tensor.Float64},
	} {
		base := nn.NewLinear(4, 3, nn.DType(c.base))
		l := nn.NewLoRALinear(base, 2, nn.DType(c.update), nn.DropoutP(0.1))
		defer nn.Release(l)
		nn.Eval(l)
		err := tensor.WithScope(func() error {
			if err := nn.Normal_(l.B.Weight, 0, 1).Err(); err != nil {
				return err
			}
			x := tensor.Randn([]int{5, 4}, c.x).RequiresGrad_()
			y := l.Forward(x)
			update := x.Detach().To(c.update).Linear(l.A.Weight, nil).Linear(l.B.Weight, nil)
			want := base.Forward(x).Add(update).To(c.base)
			if y.DType() != c.base {
				t.Errorf("%v: the result is %v", c, y.DType())
			}
			golden.Near(t, fmt.Sprint(c), y.Detach(), data(t, want.Detach()), 0, 0)
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			if x.Grad().DType() != c.x || l.A.Weight.Grad().DType() != c.update {
				t.Errorf("%v: the gradients are %v and %v", c, x.Grad().DType(), l.A.Weight.Grad().DType())
			}
			return nil
		})
		if err != nil {
			t.Errorf("%v: %v", c, err)
		}
	}
	// Without DType, a base of float8 has float32 scales, and so are A and B.
	linear := nn.NewLinear(4, 3, nn.DType(tensor.BFloat16))
	l := nn.NewLoRALinear(nn.NewFloat8Linear(linear), 2)
	defer nn.Release([]any{linear, l})
	err := tensor.WithScope(func() error {
		y := l.Forward(tensor.Randn([]int{5, 4}, tensor.BFloat16))
		if y.DType() != tensor.BFloat16 {
			t.Errorf("over float8 the result is %v", y.DType())
		}
		return y.Err()
	})
	if err != nil {
		t.Error(err)
	}
}

// values is a tensor of products.json.
type values struct {
	Shape []int
	Data  []float64
}

func (v *values) tensor(d tensor.DType) *tensor.Tensor {
	return tensor.FromSlice(v.Data, v.Shape).To(d)
}

// TestProducts compares products of groups, their gradients, and products of matrices with scales with PyTorch.
func TestProducts(t *testing.T) {
	leak.Check(t)
	var cases struct {
		Grouped []struct {
			Ends                     []int32
			DType                    string
			A, B, G, Y, AGrad, BGrad values
		}
		Scaled []struct {
			Type                       nn.ScalingType
			DType                      string
			A, B, ScaleA, ScaleB, Bias values
			Y                          values
		}
	}
	golden.Read(t, "products.json", &cases)
	near := map[string]float64{"float32": 1e-5, "bfloat16": 0.02}
	for _, c := range cases.Grouped {
		what := fmt.Sprint("groups of ", c.DType, c.A.Shape, c.B.Shape, c.Ends)
		err := tensor.WithScope(func() error {
			d := goldenDTypes[c.DType]
			a, b := c.A.tensor(d).RequiresGrad_(), c.B.tensor(d).RequiresGrad_()
			var offs *tensor.Tensor
			if c.Ends != nil {
				offs = tensor.FromSlice(c.Ends, []int{len(c.Ends)})
			}
			y := nn.GroupedMM(a, b, offs)
			if err := y.Mul(c.G.tensor(d)).Sum().Backward(); err != nil {
				return err
			}
			for name, pair := range map[string]struct {
				got  *tensor.Tensor
				want values
			}{"y": {y.Detach(), c.Y}, "a": {a.Grad(), c.AGrad}, "b": {b.Grad(), c.BGrad}} {
				if y.DType() != d || pair.got.Dim() != len(pair.want.Shape) {
					t.Errorf("%s: %s is %v of shape %v", what, name, y.DType(), pair.got.Shape())
					continue
				}
				golden.Near(t, what+", "+name, pair.got.Narrow(0, 0, pair.want.Shape[0]), pair.want.Data, near[c.DType], near[c.DType])
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range cases.Scaled {
		what := fmt.Sprint("scaling ", c.Type, " ", c.DType)
		err := tensor.WithScope(func() error {
			d := goldenDTypes[c.DType]
			y := nn.ScaledMM(c.A.tensor(tensor.Float8E4M3FN), c.B.tensor(tensor.Float8E4M3FN).T(),
				[]nn.Scaling{{Scales: c.ScaleA.tensor(tensor.Float32), Type: c.Type}}, []nn.Scaling{{Scales: c.ScaleB.tensor(tensor.Float32), Type: c.Type}},
				tensor.Bias(c.Bias.tensor(d)), d)
			if version, err := tensor.Version(); err != nil || strings.HasPrefix(version, "2.11") && errors.Is(y.Err(), tensor.ErrNotImplemented) {
				return err // it has no kernel for the CPU
			}
			if y.Err() == nil && y.DType() != d {
				t.Errorf("%s: the result is %v", what, y.DType())
			}
			golden.Near(t, what, y, c.Y.Data, near[c.DType], near[c.DType])
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestProductErrors tests arguments that products of groups and of matrices with scales refuse.
func TestProductErrors(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		a, b := tensor.Ones([]int{6, 8}), tensor.Ones([]int{2, 8, 16})
		ends := func(n ...int32) *tensor.Tensor { return tensor.FromSlice(n, []int{len(n)}) }
		f := tensor.Ones([]int{16, 16}).To(tensor.Float8E4M3FN)
		one := []nn.Scaling{{Scales: tensor.Ones(nil)}}
		scaled := func(scales []nn.Scaling, opts ...tensor.Option) *tensor.Tensor {
			return nn.ScaledMM(f, f.T(), scales, one, opts...)
		}
		for what, y := range map[string]*tensor.Tensor{
			"nil a": nn.GroupedMM(nil, b, ends(2, 6)), "nil b": nn.GroupedMM(a, nil, ends(2, 6)), "no offs": nn.GroupedMM(a, b, nil),
			"a group beyond": nn.GroupedMM(a, b, ends(2, 7)), "ends that decrease": nn.GroupedMM(a, b, ends(5, 2)), "a negative end": nn.GroupedMM(a, b, ends(-1, 2)),
			"columns beyond": nn.GroupedMM(tensor.Ones([]int{2, 3, 8}), tensor.Ones([]int{8, 8}), ends(4, 9)), "k beyond": nn.GroupedMM(a, tensor.Ones([]int{8, 16}), ends(4, 9)),
			"too few groups": nn.GroupedMM(a, b, ends(2)), "ends in int64": nn.GroupedMM(a, b, ends(2, 6).To(tensor.Int64)), "a matrix of ends": nn.GroupedMM(a, b, ends(2, 6).View(2, 1)),
			"a vector": nn.GroupedMM(tensor.Ones([]int{8}), b, ends(2, 6)), "integers": nn.GroupedMM(a.To(tensor.Int32), b.To(tensor.Int32), ends(2, 6)),
			"no scale": scaled(nil), "a nil scale": scaled([]nn.Scaling{{}}), "no such type": scaled([]nn.Scaling{{Scales: tensor.Ones(nil), Type: 6}}),
			"no such swizzle": scaled([]nn.Scaling{{Scales: tensor.Ones(nil), Swizzle: -1}}), "scales in float16": scaled([]nn.Scaling{{Scales: tensor.Ones(nil, tensor.Float16)}}),
			"a nil bias": scaled(one, tensor.Bias(nil)), "a long bias": scaled(one, tensor.Bias(tensor.Ones([]int{17}, tensor.BFloat16))), "a nil option": scaled(one, nil),
			"another option": scaled(one, tensor.Beta(1)), "float32": nn.ScaledMM(a, a.T(), one, one), "nil matrix": nn.ScaledMM(nil, f, one, one),
			"groups on a CPU": nn.ScaledGroupedMM(f, f.T(), ends(8, 16), one, one), "scaled, no offs": nn.ScaledGroupedMM(f, f.T(), nil, one, one),
			"scaled, a group beyond": nn.ScaledGroupedMM(f, f.T(), ends(8, 17), one, one), "scaled, no type": nn.ScaledGroupedMM(f, f.T(), ends(8, 16), []nn.Scaling{{Scales: tensor.Ones(nil), Type: -1}}, one),
			"scaled, another option": nn.ScaledGroupedMM(f, f.T(), ends(8, 16), one, one, tensor.Beta(1)),
		} {
			if y.Err() == nil {
				t.Errorf("%s: no error", what)
			}
		}
		return nil
	})
}

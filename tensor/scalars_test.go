package tensor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// TestNumbersAsOptions tests that numbers passed as options keep their type: an integer stays one for integer and bool
// tensors, and numbers that Python rejects are errors.
func TestNumbersAsOptions(t *testing.T) {
	begin(t)
	counted(t)
	text, err := os.ReadFile("../tests/golden/scalars.json")
	if err != nil {
		t.Fatal(err)
	}
	type number struct {
		I *int
		F *float64
		B *bool
		C []float64
	}
	var cases []struct {
		Op, DType, Error string
		Opts             map[string]number
		Out              struct {
			DType string
			Data  [][2]float64
		}
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	options := map[string]func(any) Option{"alpha": Alpha, "beta": Beta, "value": Value, "negative_slope": NegativeSlope, "min_val": MinVal, "max_val": MaxVal, "p": P}
	operators := map[string]func(a, b, v *Tensor, o ...Option) *Tensor{
		"Add":       func(a, b, _ *Tensor, o ...Option) *Tensor { return a.Add(b, o...) },
		"Add_":      func(a, b, _ *Tensor, o ...Option) *Tensor { return a.Clone().Add_(b, o...) },
		"AddNumber": func(a, _, _ *Tensor, o ...Option) *Tensor { return a.Add(3, o...) },
		"Sub":       func(a, b, _ *Tensor, o ...Option) *Tensor { return a.Sub(b, o...) },
		"RSub":      func(a, b, _ *Tensor, o ...Option) *Tensor { return a.RSub(b, o...) },
		"AddMM":     func(a, b, _ *Tensor, o ...Option) *Tensor { return a.AddMM(a, b, o...) },
		"AddMV":     func(a, _, v *Tensor, o ...Option) *Tensor { return v.AddMV(a, v, o...) },
		"AddR":      func(a, _, v *Tensor, o ...Option) *Tensor { return a.AddR(v, v, o...) },
		"BAddBMM": func(a, b, _ *Tensor, o ...Option) *Tensor {
			a = a.Unsqueeze(0)
			return a.BAddBMM(a, b.Unsqueeze(0), o...)
		},
		"AddBMM":        func(a, b, _ *Tensor, o ...Option) *Tensor { return a.AddBMM(a.Unsqueeze(0), b.Unsqueeze(0), o...) },
		"AddCMul":       func(a, b, _ *Tensor, o ...Option) *Tensor { return a.AddCMul(a, b, o...) },
		"IndexAdd":      func(a, b, _ *Tensor, o ...Option) *Tensor { return a.IndexAdd(0, FromSlice([]int{1, 0}, nil), b, o...) },
		"LeakyReLU":     func(a, _, _ *Tensor, o ...Option) *Tensor { return a.LeakyReLU(o...) },
		"Hardtanh":      func(a, _, _ *Tensor, o ...Option) *Tensor { return a.Hardtanh(o...) },
		"SmoothL1Loss":  func(a, b, _ *Tensor, o ...Option) *Tensor { return a.SmoothL1Loss(b, o...) },
		"ConstantPadNd": func(_, _, v *Tensor, o ...Option) *Tensor { return v.ConstantPadNd([]int{1, 0}, o...) },
		"Dist":          func(a, b, _ *Tensor, o ...Option) *Tensor { return a.Dist(b, o...) },
	}
	version, err := Version()
	if err != nil {
		t.Fatal(err)
	}
	// libtorch before 2.15 rejects limits that the dtype cannot represent; the golden data comes from 2.15.
	refused := func(op string, err error) bool {
		text := err.Error()
		return op == "Hardtanh" && version < "2.15" &&
			(strings.Contains(text, "an unsigned type with negative limits") || strings.Contains(text, "without overflow"))
	}
	for _, c := range cases {
		scoped(t, func() {
			d, err := ParseDType(c.DType)
			if err != nil {
				t.Fatal(err)
			}
			var opts []Option
			var given []string
			for name, n := range c.Opts {
				var v any
				switch {
				case n.I != nil:
					v = *n.I
				case n.F != nil:
					v = *n.F
				case n.B != nil:
					v = *n.B
				default:
					v = complex(n.C[0], n.C[1])
				}
				opts = append(opts, options[name](v))
				given = append(given, fmt.Sprintf("%s=%v (%T)", name, v, v))
			}
			of := func(data []int, shape ...int) *Tensor { return FromSlice(data, shape).To(d) }
			a, b, v := of([]int{1, 0, 2, 3}, 2, 2), of([]int{1, 1, 0, 2}, 2, 2), of([]int{1, 2}, 2)
			y := operators[c.Op](a, b, v, opts...)
			what := fmt.Sprintf("%s of %s, %s", c.Op, c.DType, strings.Join(given, ", "))
			err = y.Err()
			switch {
			case c.Error != "":
				if err == nil {
					t.Errorf("%s: got %v, Python says %q", what, y, c.Error)
				}
				return
			case err != nil:
				if !refused(c.Op, err) {
					t.Errorf("%s: %v", what, err)
				}
				return
			case y.DType().String() != c.Out.DType:
				t.Errorf("%s: got %v, want %s", what, y.DType(), c.Out.DType)
			}
			got, err := Data[complex128](y.To(Complex128))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(c.Out.Data) {
				t.Fatalf("%s: %d elements, want %d", what, len(got), len(c.Out.Data))
			}
			for i, w := range c.Out.Data {
				if !(math.Abs(real(got[i])-w[0]) <= 1e-6*(1+math.Abs(w[0]))) || !(math.Abs(imag(got[i])-w[1]) <= 1e-6*(1+math.Abs(w[1]))) {
					t.Errorf("%s: element %d is %v, want %v", what, i, got[i], w)
				}
			}
		})
	}
	scoped(t, func() {
		x := Ones([]int{2})
		for _, bad := range []any{"2", nil, []int{1, 2}, x, struct{}{}} {
			if err := x.Add(1, Alpha(bad)).Err(); !errors.Is(err, ErrArgument) {
				t.Errorf("Alpha(%v): %v", bad, err)
			}
			if err := x.SmoothL1Loss(x, Beta(bad)).Err(); !errors.Is(err, ErrArgument) {
				t.Errorf("Beta(%v): %v", bad, err)
			}
		}
	})
}

// TestIntegersAsOptions tests that an option takes all of Go's integers where libtorch takes an integer, too, and no
// other number.
func TestIntegersAsOptions(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, y := Arange(0, 5), Arange(0, 3, Float64)
		for _, two := range []any{2, int8(2), int16(2), int32(2), int64(2), uint(2), uint8(2), uint16(2), uint32(2), uint64(2)} {
			for what, got := range map[string]*Tensor{"Arange": Arange(0, 5, Step(two)), "Slice": x.Slice(0, Step(two)),
				"SliceScatter": x.ZerosLike().SliceScatter(Arange(0, 5, Step(2)), Step(two)).Slice(0, Step(2))} {
				if got, err := Data[int64](got); err != nil || !slices.Equal(got, []int64{0, 2, 4}) {
					t.Errorf("%s, Step(%T): %v, %v", what, two, got, err)
				}
			}
			for what, got := range map[string]*Tensor{"Var": y.Var(Correction(two)), "Cov": y.Cov(Correction(two))} {
				if got, err := Item[float64](got); err != nil || got != 2 {
					t.Errorf("%s, Correction(%T): %v, %v", what, two, got, err)
				}
			}
		}
		for _, bad := range []any{2.0, float32(2), 2i, true, "2", nil, uint64(math.MaxUint64), []int{1, 2}} {
			for what, got := range map[string]*Tensor{"Slice": x.Slice(0, Step(bad)), "SliceScatter": x.SliceScatter(x, Step(bad)), "Cov": y.Cov(Correction(bad))} {
				if err := got.Err(); !errors.Is(err, ErrArgument) {
					t.Errorf("%s of %v (%T): %v", what, bad, bad, err)
				}
			}
		}
	})
}

// TestWindowOptionsAreLists tests that an option has the same type in all operators: windows take one number or one for
// each dimension.
func TestWindowOptionsAreLists(t *testing.T) {
	begin(t)
	lists := map[optKey]bool{keyStride: true, keyDilation: true, keyPadding: true, keyOutputPadding: true}
	for _, o := range operators {
		for _, a := range o.op.args {
			if lists[a.key] && (a.kind < kindInts || a.kind > kindInts3) {
				t.Errorf("%s takes one number for %s", o.name, a.name)
			}
		}
	}
	for _, f := range []any{Stride, Dilation, Padding, OutputPadding} {
		if _, ok := f.(func(...int) Option); !ok {
			t.Errorf("an option of windows is %T", f)
		}
	}
	// All convolutions have the same signature.
	for _, o := range operators {
		_, one := o.fn.(func(*Tensor, *Tensor, *Tensor, ...Option) *Tensor)
		if base := strings.TrimRight(o.name, "123d"); (base == "Conv" || base == "ConvTranspose") && !one {
			t.Errorf("%s is %T", o.name, o.fn)
		}
	}
}

// TestOneNumberForAllDimensions tests that a list of two or three ints can be one int, as in Python.
func TestOneNumberForAllDimensions(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, v := Rand([]int{1, 2, 6, 5}), Rand([]int{1, 2, 4, 5, 6})
		maxima, indices := x.AdaptiveMaxPool2d(3, 3)
		one, places := x.AdaptiveMaxPool2d(3)
		columns := x.Im2Col([]int{2, 2})
		matrix := x.Reshape(10, 6)
		compressed := matrix.ToSparseBSR([]int{2, 2}).ToDense()
		for name, pair := range map[string][2]*Tensor{
			"AdaptiveAvgPool2d":         {x.AdaptiveAvgPool2d(3), x.AdaptiveAvgPool2d(3, 3)},
			"AdaptiveAvgPool3d":         {v.AdaptiveAvgPool3d(2), v.AdaptiveAvgPool3d(2, 2, 2)},
			"AdaptiveMaxPool2d":         {one, maxima},
			"AdaptiveMaxPool2d indices": {places, indices},
			"MaxUnpool2d":               {maxima.MaxUnpool2d(indices, 6), maxima.MaxUnpool2d(indices, 6, 6)},
			"Im2Col":                    {x.Im2Col([]int{2}, Dilation(1), Padding(1), Stride(1)), x.Im2Col([]int{2, 2}, Padding(1, 1))},
			"Col2Im":                    {columns.Narrow(2, 0, 16).Col2Im([]int{5}, []int{2}, Dilation(1), Stride(1)), columns.Narrow(2, 0, 16).Col2Im([]int{5, 5}, []int{2, 2})},
			"Conv2d":                    {x.Conv2d(Ones([]int{1, 2, 2, 2}), nil, Stride(2)), x.Conv2d(Ones([]int{1, 2, 2, 2}), nil, Stride(2, 2))},
			"MaxPool3d":                 {v.MaxPool3d([]int{2}, Stride(1)), v.MaxPool3d([]int{2, 2, 2}, Stride(1, 1, 1))},
			"ToSparseBSR":               {matrix.ToSparseBSR([]int{2}).ToDense(), compressed},
			"ToSparse":                  {matrix.ToSparse(SparseBSR, Blocksize(2)).ToDense(), compressed},
		} {
			if err := pair[0].Err(); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if same, err := pair[0].Equal(pair[1]); err != nil || !same {
				t.Errorf("%s: got %v, want %v, %v", name, pair[0], pair[1], err)
			}
		}
		wantErr(t, "three sizes", x.AdaptiveAvgPool2d(3, 3, 3).Err(), ErrArgument)
		wantErr(t, "no size", x.AdaptiveAvgPool2d().Err(), ErrArgument)
	})
}

// TestSmoothL1LossBeta0 tests that a Beta of 0 is L1Loss, as in PyTorch: where x is the target, the gradient is 0.
func TestSmoothL1LossBeta0(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for _, opts := range [][]Option{{Beta(0)}, {Beta(0.0), ReduceSum}, {ReduceNone, Beta(0)}} {
			x := FromSlice([]float32{1, 2, 3, -1}, []int{4}).RequiresGrad_()
			loss := x.SmoothL1Loss(FromSlice([]float32{1, 0, 5, -1}, []int{4}), opts...)
			if err := loss.Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			sign, err := Data[float32](x.Grad().Sign())
			if err != nil || !slices.Equal(sign, []float32{0, 1, -1, 0}) {
				t.Errorf("%v: the gradient is %v, %v", opts, x.Grad(), err)
			}
		}
		x := Ones([]int{2})
		var e *Error
		if err := x.SmoothL1Loss(Ones([]int{3}), Beta(0)).Err(); !errors.As(err, &e) || e.Op != "SmoothL1Loss" {
			t.Errorf("two shapes: %v", err)
		}
		if err := x.SmoothL1Loss(Ones([]int{2}, Bool).LogicalNot(), Beta(0)).Err(); err != nil && (!errors.As(err, &e) || e.Op != "SmoothL1Loss") {
			t.Errorf("two dtypes: %v", err)
		}
		wantErr(t, "a negative Beta", x.SmoothL1Loss(x, Beta(-1)).Err(), ErrArgument)
		wantErr(t, "HuberLoss with Delta 0", x.HuberLoss(x, Delta(0)).Err(), ErrArgument)
		wantErr(t, "HuberLoss with a negative Delta", x.HuberLoss(x, Delta(-1e-30)).Err(), ErrArgument)
	})
}

// TestLossesDoNotBroadcast tests that elementwise losses reject a target of another shape, which is usually a mistake.
func TestLossesDoNotBroadcast(t *testing.T) {
	begin(t)
	type loss struct {
		name string
		of   func(x, y *Tensor, o ...Option) *Tensor
	}
	losses := []loss{
		{"MSELoss", (*Tensor).MSELoss}, {"L1Loss", (*Tensor).L1Loss}, {"SmoothL1Loss", (*Tensor).SmoothL1Loss}, {"HuberLoss", (*Tensor).HuberLoss},
		{"BinaryCrossEntropy", (*Tensor).BinaryCrossEntropy}, {"BinaryCrossEntropyWithLogits", (*Tensor).BinaryCrossEntropyWithLogits},
		{"KLDiv", (*Tensor).KLDiv}, {"PoissonNLLLoss", (*Tensor).PoissonNLLLoss}, {"HingeEmbeddingLoss", (*Tensor).HingeEmbeddingLoss},
		{"SoftMarginLoss", (*Tensor).SoftMarginLoss},
		{"MarginRankingLoss", func(x, y *Tensor, o ...Option) *Tensor { return x.MarginRankingLoss(x, y, o...) }},
	}
	scoped(t, func() {
		half := func(shape ...int) *Tensor { return Full(shape, 0.5) }
		for _, l := range losses {
			for _, opts := range [][]Option{nil, {ReduceNone}, {ReduceSum}} {
				for _, s := range [][2][]int{{{4, 1}, {4}}, {{4}, {4, 1}}, {{2, 3}, {3}}, {{2, 3}, {1}}, {{4}, {}}, {{2}, {3}}, {{0, 2}, {2}}, {{1, 1, 1, 1, 1, 1, 1, 1, 2}, {2}},
					{{4, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 4}}, {{4, 1, 1, 1, 1, 1, 1, 1, 2}, {4, 1, 1, 1, 1, 1, 1, 1, 1}}} {
					err := l.of(half(s[0]...), half(s[1]...), opts...).Err()
					var e *Error
					if !errors.As(err, &e) || !errors.Is(err, ErrArgument) || e.Op != l.name {
						t.Errorf("%s of %v and %v: %v", l.name, s[0], s[1], err)
						continue
					}
					if !strings.Contains(e.Message, tuple(s[0])) || !strings.Contains(e.Message, tuple(s[1])) {
						t.Errorf("%s: %q names not both shapes", l.name, e.Message)
					}
				}
				for _, s := range [][]int{{}, {1}, {4}, {2, 3}, {0, 2}, {4, 1, 1, 1, 1, 1, 1, 1, 2}} {
					if err := l.of(half(s...), half(s...), opts...).Err(); err != nil {
						t.Errorf("%s of two %v: %v", l.name, s, err)
					}
				}
			}
		}
		// The advice in the message works.
		x, y := half(4, 1), half(4)
		for _, c := range []struct {
			x, y *Tensor
			want string
		}{
			{x, y, "target.ViewAs(x) gives it the same shape; to broadcast, expand both: x.Expand(4, 4), target.Expand(4, 4)"},
			{half(2, 3), half(3), "to broadcast, expand: target.ExpandAs(x)"},
			{half(3), half(2, 3), "to broadcast, expand: x.ExpandAs(target)"},
			{half(3), half(2), "they cannot be broadcast"},
		} {
			if err := c.x.MSELoss(c.y).Err(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		for _, err := range []error{x.MSELoss(y.ViewAs(x)).Err(), x.Expand(4, 4).MSELoss(y.Expand(4, 4)).Err(), half(2, 3).MSELoss(half(3).ExpandAs(half(2, 3))).Err()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestErrorsNameTheCall tests that the errors of operators that a function of this package calls name the function.
func TestErrorsNameTheCall(t *testing.T) {
	begin(t)
	scoped(t, func() {
		dense, one := Ones([]int{2, 2}), FromSlice([]int{0}, []int{1})
		for _, c := range []struct {
			op, text string
			x        *Tensor
		}{
			{"FromSlice", "accepts a DType, a Device and a MemoryFormat, got KeepDim", FromSlice([]int{1}, nil, KeepDim())},
			{"FromSlice", "does not exist", FromSlice([]int{1}, nil, Device{CPUType, -1})},
			{"FromScalar", "value must be a number, not a string", FromScalar("x")},
			{"FromScalar", "value must be a number, not nil", FromScalar(nil)},
			{"FromScalar", "unknown option KeepDim", FromScalar(1, KeepDim())},
			{"SparseCOOTensor", "", SparseCOOTensor(one, one, []int{2, 2})},
			{"SparseCOOTensor", "", SparseCOOTensor(one.View(1, 1), one, []int{2}, DType(100))},
			{"SparseCSRTensor", "", SparseCSRTensor(one, one, one, []int{2, 2})},
			{"SparseBSCTensor", "", SparseBSCTensor(one, one, one, []int{2, 2}, DType(100))},
			{"SignalWindowsBartlett", "does not exist", SignalWindowsBartlett(3, true, Device{CPUType, -1})},
			{"SignalWindowsHann", "does not exist", SignalWindowsHann(0, true, Device{CPUType, -1})},
			{"SparseSum", "", dense.SparseSum()},
			{"SparseSum", "", dense.ToSparse().SparseSum(5)},
		} {
			var e *Error
			if err := c.x.Err(); !errors.As(err, &e) || e.Op != c.op || !strings.Contains(e.Message, c.text) || strings.Contains(e.Message, "aten::") {
				t.Errorf("%s: %v, want %q", c.op, err, c.text)
			}
		}
		bad := Ones([]int{2}).Add(Ones([]int{3}))
		if err := bad.SparseSum().Err(); !errors.Is(err, bad.Err()) {
			t.Errorf("SparseSum of a failed tensor: %v", err)
		}
	})
}

// TestItemOfOtherTypes tests which values [Item] returns as another type.
func TestItemOfOtherTypes(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for _, c := range []struct {
			value float64
			fits  bool
		}{{1.5, true}, {1 + 0x1p-40, true}, {1e300, false}, {-1e300, false}, {math.Inf(1), true}, {math.MaxFloat32, true}} {
			x := FromScalar(c.value, Float64)
			f, err := Item[float32](x)
			if (err == nil) != c.fits || c.fits && f != float32(c.value) {
				t.Errorf("%g as float32: %g, %v", c.value, f, err)
			}
			z, err := Item[complex64](x)
			if (err == nil) != c.fits || c.fits && z != complex(float32(c.value), 0) {
				t.Errorf("%g as complex64: %g, %v", c.value, z, err)
			}
		}
		if f, err := Item[float32](FromScalar(math.NaN(), Float64)); err != nil || f == f {
			t.Errorf("NaN: %g, %v", f, err)
		}
		// A dtype that a type does not take is another fault than a value beyond its range.
		_, asInt := Item[int](FromScalar(3.5))
		_, asUint8 := Item[uint8](FromScalar(3.0, Float16))
		_, asBool := Item[bool](FromScalar(1))
		_, asFloat := Item[float64](FromScalar(1 + 0i))
		_, asInt32 := Item[int32](FromScalar(1 + 0i))
		_, beyondInt8 := Item[int8](FromScalar(300))
		_, beyondUint8 := Item[uint8](FromScalar(-1))
		for want, err := range map[string]error{
			"the tensor is float32, and an int takes only integers and bools: use Item[float64], or convert with To(tensor.Int64) first":  asInt,
			"the tensor is float16, and a uint8 takes only integers and bools: use Item[float64], or convert with To(tensor.Uint8) first": asUint8,
			"the tensor is int64, and a bool takes only bools: use Item[int64], or convert with To(tensor.Bool) first":                    asBool,
			"the tensor is complex64, and a float64 takes no complex numbers: use Item[complex128]":                                       asFloat,
			"the tensor is complex64, and an int32 takes only integers and bools: use Item[complex128]":                                   asInt32,
			"300 does not fit an int8": beyondInt8,
			"-1 does not fit a uint8":  beyondUint8,
		} {
			var e *Error
			if !errors.As(err, &e) || e.Op != "Item" || e.Message != want || !errors.Is(err, ErrArgument) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		yes := FromScalar(true)
		if i, err := Item[int](yes); err != nil || i != 1 {
			t.Errorf("true as an int: %d, %v", i, err)
		}
		if f, err := Item[float64](yes); err != nil || f != 1 {
			t.Errorf("true as a float64: %v, %v", f, err)
		}
	})
}

// TestFillWithTensors tests that Fill_ and IndexFill take a tensor of shape () with its gradient, PyTorch's, and a number.
func TestFillWithTensors(t *testing.T) {
	begin(t)
	scoped(t, func() {
		index, weights := FromSlice([]int{0, 2}, nil), FromSlice([]float32{1, 2, 3, 4, 5, 6}, []int{3, 2})
		for name, c := range map[string]struct {
			fill     func(x *Tensor, value any) *Tensor
			y, gradX []float32
			gradV    float64
		}{
			"Fill_":      {func(x *Tensor, value any) *Tensor { return x.Mul(1).Fill_(value) }, []float32{7, 7, 7, 7, 7, 7}, []float32{0, 0, 0, 0, 0, 0}, 21},
			"IndexFill":  {func(x *Tensor, value any) *Tensor { return x.IndexFill(0, index, value) }, []float32{7, 7, 1, 1, 7, 7}, []float32{0, 0, 3, 4, 0, 0}, 14},
			"IndexFill_": {func(x *Tensor, value any) *Tensor { return x.Mul(1).IndexFill_(0, index, value) }, []float32{7, 7, 1, 1, 7, 7}, []float32{0, 0, 3, 4, 0, 0}, 14},
		} {
			value := FromScalar(float32(7)).RequiresGrad_()
			for _, v := range []any{value, 7, 7.0} {
				x := Ones([]int{3, 2}).RequiresGrad_()
				y := c.fill(x, v)
				same, err := y.Equal(FromSlice(c.y, []int{3, 2}))
				if err != nil || !same {
					t.Errorf("%s of %T: %v (%v)", name, v, y, err)
					continue
				}
				if name == "Fill_" && v != any(value) {
					continue // depends on nothing that requires gradients
				}
				if err := y.Mul(weights).Sum().Backward(); err != nil {
					t.Errorf("%s of %T: %v", name, v, err)
					continue
				}
				if same, err := x.Grad().Equal(FromSlice(c.gradX, []int{3, 2})); err != nil || !same {
					t.Errorf("%s of %T: gradient %v (%v)", name, v, x.Grad(), err)
				}
			}
			if got, err := value.Grad().Item(); err != nil || got != c.gradV {
				t.Errorf("%s: the value's gradient is %v, want %v (%v)", name, got, c.gradV, err)
			}
			if err := c.fill(Ones([]int{3, 2}), Ones([]int{2})).Err(); err == nil {
				t.Errorf("%s: a vector as the value is no error", name)
			}
			if err := c.fill(Ones([]int{3, 2}), "7").Err(); err == nil || !strings.Contains(err.Error(), "value must be a number or a *Tensor, not a string") {
				t.Errorf("%s: %v", name, err)
			}
		}
		x := Ones([]int{2})
		for want, err := range map[string]error{
			"exponent must be a number, not a *tensor.Tensor; see PowTensor ":  x.Pow(x).Err(),
			"exponent must be a number, not a *tensor.Tensor; see PowTensor_ ": x.Clone().Pow_(x).Err(),
			"weight must be a number, not a *tensor.Tensor; see LerpTensor ":   x.Lerp(x, x).Err(),
			"min must be a number, not a *tensor.Tensor; see ClampTensor ":     x.Clamp(x, nil).Err(),
			"self must be a number, not a *tensor.Tensor ":                     PowScalar(x, x).Err(),
		} {
			if err == nil || !strings.Contains(err.Error()+" ", want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
	})
}

// TestFromScalarBeyondRange compares numbers that a dtype cannot represent with those of torch.tensor.
func TestFromScalarBeyondRange(t *testing.T) {
	begin(t)
	scoped(t, func() {
		inf, saturated := math.Inf(1), 448.
		if v := cshim.VersionLoaded(); v[0] == 2 && v[1] < 13 {
			saturated = math.NaN()
		}
		for _, c := range []struct {
			value any
			dtype DType
			want  complex128
		}{
			{1e39, Float32, complex(inf, 0)}, {-1e39, Float32, complex(-inf, 0)}, {3.4028235e38, Float32, math.MaxFloat32},
			{3.4028236e38, Float32, complex(inf, 0)}, {1e39, Float64, 1e39}, {1e39, Float16, complex(inf, 0)}, {1e39, BFloat16, complex(inf, 0)},
			{-1e39, Complex64, complex(-inf, 0)}, {complex(1e39, 1), Complex64, complex(inf, 1)}, {complex(1, -1e39), Complex64, complex(1, -inf)},
			{complex(1, -1e39), Complex128, complex(1, -1e39)},
			{complex(1e6, 1), Complex32, complex(inf, 1)}, {1e39, Complex32, complex(inf, 0)}, {1000.0, Float8E5M2, 1024}, {70000, Float16, complex(inf, 0)}, {1000, Float8E4M3FN, complex(saturated, 0)}, {uint64(math.MaxUint64), BFloat16, 1 << 64}, {1000.0, Float8E4M3FN, complex(saturated, 0)},
			{-1e6, Float8E4M3FN, complex(-saturated, 0)}, {uint64(math.MaxUint64), Uint64, math.MaxUint64}, {true, Uint64, 1},
		} {
			x := FromScalar(c.value, c.dtype)
			if got, err := Item[complex128](x); err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) || x.DType() != c.dtype {
				t.Errorf("%v as %v: %v of %v, %v; PyTorch's %v", c.value, c.dtype, got, x.DType(), err, c.want)
			}
		}
		if got, err := Item[float64](FromScalar(1e39)); err != nil || got != inf {
			t.Errorf("1e39: %v, %v", got, err)
		}
		if got, err := Item[complex128](FromScalar(complex(1e39, 1))); err != nil || got != complex(inf, 1) {
			t.Errorf("1e39+1i: %v, %v", got, err)
		}
		for _, d := range []DType{Int64, Uint8} {
			if x := FromScalar(1e39, d); x.Err() == nil {
				t.Errorf("1e39 as %v is %v", d, x)
			}
		}
		for _, v := range []any{-1, 1.5, 1i} {
			if x := FromScalar(v, Uint64); x.Err() == nil {
				t.Errorf("%v as uint64 is %v", v, x)
			}
		}
		if x := FromScalar(1i, Float32); x.Err() == nil {
			t.Errorf("1i as float32 is %v", x)
		}
	})
}

// TestNumbersAboveInt64 passes a uint64 above the range of int64 as a number, and compares with PyTorch's results.
func TestNumbersAboveInt64(t *testing.T) {
	begin(t)
	scoped(t, func() {
		const most = math.MaxUint64
		number := uint64(most)
		check := func(what string, x *Tensor, want ...uint64) {
			t.Helper()
			got, err := Data[uint64](x)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, %v; PyTorch's %v", what, got, err, want)
			}
		}
		u := FromSlice([]uint64{1, most}, nil)
		check("Full", Full([]int{1}, number, Uint64), most)
		check("Full of a uint", Full([]int{1}, uint(most), Uint64), most)
		check("FullLike", u.FullLike(number), most, most)
		check("Fill_", u.Clone().Fill_(number), most, most)
		check("Mul", u.Mul(number), most, 1)
		check("BitwiseAnd", u.BitwiseAnd(number), 1, most)
		check("FromScalar", FromScalar(number, Uint64), most)
		set := u.Clone()
		if err := set.SetIndex(0, number); err != nil {
			t.Error(err)
		}
		check("SetIndex", set, most, most)
		if got := values(t, u.Eq(number).To(Float32)); !slices.Equal(got, []float64{0, 1}) {
			t.Errorf("Eq: %v", got)
		}
		if got := values(t, Ones([]int{1}).Add(number)); !slices.Equal(got, []float64{0x1p64}) {
			t.Errorf("Add to float32: %v", got)
		}
		if got, err := Data[int64](FromSlice([]int64{1}, nil).Add(number)); err != nil || !slices.Equal(got, []int64{0}) {
			t.Errorf("Add to int64: %v, %v; PyTorch's 0", got, err)
		}
		if got := values(t, Linspace(0, number, 2)); !slices.Equal(got, []float64{0, 0x1p64}) {
			t.Errorf("Linspace: %v", got)
		}
		if got := values(t, FromScalar(number, Float32)); !slices.Equal(got, []float64{0x1p64}) {
			t.Errorf("FromScalar of float32: %v", got)
		}
		if got := values(t, Ones([]int{1}).Pad([]int{1, 0}, Value(number))); !slices.Equal(got, []float64{0x1p64, 1}) {
			t.Errorf("Pad: %v", got)
		}
		if got := values(t, Ones([]int{1}).Hardtanh(MaxVal(number))); !slices.Equal(got, []float64{1}) {
			t.Errorf("Hardtanh: %v", got)
		}
		for what, want := range map[string]uint64{"aten::item": most, "aten::_local_scalar_dense": most} {
			out, err := CallUnchecked(what, u.Select(0, 1))
			if err != nil || len(out) != 1 || out[0] != want {
				t.Errorf("%s: %v, %v", what, out, err)
			}
		}
		if got, err := Item[uint64](u.Select(0, 1)); err != nil || got != most {
			t.Errorf("Item: %d, %v", got, err)
		}
		if got, err := Item[uint64](u.Select(0, 0)); err != nil || got != 1 {
			t.Errorf("Item: %d, %v", got, err)
		}
		if _, err := Item[int](u.Select(0, 1)); err == nil {
			t.Error("Item of an int takes 2^64-1")
		}
		if got, err := Item[float64](u.Select(0, 1)); err != nil || got != 0x1p64 {
			t.Errorf("Item of a float64: %v, %v", got, err)
		}
		// As in PyTorch: no dtype but uint64 and those of floats has it.
		for what, x := range map[string]*Tensor{
			"FromScalar": FromScalar(number), "Full of int64": Full([]int{1}, number, Int64), "Fill_ of int64": FromSlice([]int64{1}, nil).Fill_(number),
			"an index": u.Index(number), "Narrow": must(Call("aten::narrow", u, number, 0, 1)),
			"a division that traps": FromSlice([]int64{math.MinInt64}, nil).DivMode(number, RoundingMode("trunc")),
			"and of int32":          FromSlice([]int32{math.MinInt32}, nil).DivMode(math.MaxUint32, RoundingMode("trunc")),
			"and in place":          FromSlice([]int32{math.MinInt32}, nil).DivMode_(math.MaxUint32, RoundingMode("trunc")),
		} {
			if err := x.Err(); err == nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := FromSlice([]int64{1}, nil).SetIndex(0, number); err == nil {
			t.Error("SetIndex of int64 takes 2^64-1")
		}
	})
}

func must(out []any, err error) *Tensor {
	if err != nil {
		return Failed(err)
	}
	return out[0].(*Tensor)
}

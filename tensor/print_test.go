package tensor

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/balance"
)

func TestPrintGolden(t *testing.T) {
	begin(t)
	counted(t)
	text, err := os.ReadFile("../tests/golden/print.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		DType, Fn, Want string
		Shape           []int
		Data            []any
		Options         struct {
			Precision, Threshold, EdgeItems, LineWidth *int
			SciMode                                    *bool `json:"sci_mode"`
		}
	}
	standard := CurrentPrintOptions()
	defer func() {
		if err := SetPrintOptions(standard); err != nil {
			t.Error(err)
		}
	}()
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&cases); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		scoped(t, func() {
			dtype, err := ParseDType(c.DType)
			if err != nil {
				t.Fatal(err)
			}
			n, _ := numel(c.Shape)
			x := Arange(0, n).To(dtype).View(c.Shape...)
			if c.Data != nil {
				if dtype == Uint64 {
					us := make([]uint64, len(c.Data))
					for k, v := range c.Data {
						if _, err := fmt.Sscan(string(v.(json.Number)), &us[k]); err != nil {
							t.Fatal(err)
						}
					}
					x = FromSlice(us, shapeOf(c.Shape))
				} else {
					g := goldenTensor{DType: c.DType, Shape: c.Shape, Data: c.Data}
					if dtype == Bool {
						g.DType = "int64"
					}
					if x, err = g.make(); err != nil {
						t.Fatal(err)
					}
					x = x.To(dtype)
				}
			}
			for _, f := range strings.Split(c.Fn, "+") {
				switch f {
				case "grad":
					x = x.RequiresGrad_()
				case "mul":
					x = x.Mul(2)
				case "sum":
					x = x.Sum()
				case "t":
					x = x.T()
				case "conj":
					x = x.Conj()
				case "imag":
					x = x.Conj().Imag()
				case "meta":
					x = x.To(Meta)
				case "view":
					x = x.View(-1)
				case "exp":
					x = x.Exp()
				case "softmax":
					x = x.Softmax(-1)
				case "expand":
					x = x.Expand(append([]int{30}, c.Shape...)...)
				case "index":
					x = x.Index(0)
				}
			}
			if err := x.Err(); err != nil {
				t.Fatal(err)
			}
			o := standard
			o.SciMode = c.Options.SciMode
			for from, to := range map[*int]*int{c.Options.Precision: &o.Precision, c.Options.EdgeItems: &o.EdgeItems, c.Options.LineWidth: &o.LineWidth, c.Options.Threshold: &o.Threshold} {
				if from != nil {
					*to = *from
				}
			}
			if o.Threshold < 0 {
				o.Threshold = math.MaxInt
			}
			if err := SetPrintOptions(o); err != nil {
				t.Fatal(err)
			}
			scope := CurrentScope()
			had, version := scope.Len(), x.Version()
			got := x.String()
			if got != c.Want {
				t.Errorf("case %d, %s%v %s:\n%s\nwant\n%s", i, c.DType, c.Shape, c.Fn, got, c.Want)
			}
			if scope.Len() != had || x.Version() != version || x.IsLeaf() && x.RequiresGrad() && x.Grad() != nil {
				t.Errorf("case %d: printing changed something", i)
			}
		})
	}
	t.Logf("%d cases", len(cases))
}

func TestPrintOptionsRefused(t *testing.T) {
	begin(t)
	before := CurrentPrintOptions()
	for _, change := range []func(*PrintOptions){
		func(o *PrintOptions) { o.Precision = -1 },
		func(o *PrintOptions) { o.Precision = 1075 },
		func(o *PrintOptions) { o.Threshold = -1 },
		func(o *PrintOptions) { o.EdgeItems = 0 },
		func(o *PrintOptions) { o.LineWidth = -1 },
	} {
		o := before
		change(&o)
		if err := SetPrintOptions(o); !errors.Is(err, ErrArgument) {
			t.Errorf("%+v: got %v, want ErrArgument", o, err)
		}
	}
	if after := CurrentPrintOptions(); after != before {
		t.Errorf("a refused setting changed the options to %+v", after)
	}
}

// TestPrintInvalid tests a view made without gradients, whose base was then written to with gradients.
func TestPrintInvalid(t *testing.T) {
	begin(t)
	base := Zeros([]int{3})
	var view *Tensor
	if err := withGrad(false, func() error { view = base.Narrow(0, 0, 2); return view.Err() }); err != nil {
		t.Fatal(err)
	}
	if err := base.Mul_(Ones([]int{3}).RequiresGrad_()).Err(); err != nil {
		t.Fatal(err)
	}
	equal(t, "text", view.String(), "tensor([0., 0.], grad_fn=<Invalid>)")
	equal(t, "GradFn", view.GradFn(), "")
}

func TestPrintUnusable(t *testing.T) {
	begin(t)
	var none *Tensor
	equal(t, "nil", fmt.Sprint(none), "tensor(<nil>)")
	equal(t, "zero", fmt.Sprintf("%v", &Tensor{}), "tensor(<none>)")
	x := Zeros([]int{2})
	x.Release()
	equal(t, "released", x.String(), "tensor(<released>)")
	scope, err := NewScope()
	if err != nil {
		t.Fatal(err)
	}
	failed := Zeros([]int{-1})
	if s := failed.String(); !strings.Contains(s, "print_test.go:") || !strings.HasPrefix(s, "tensor(<linstock: Zeros: ") {
		t.Error(s)
	}
	// Printing does not count as reading the error.
	if err := scope.Close(); err == nil {
		t.Error("printing a failed tensor hid its error from the scope")
	}
}

// one calls an operator that returns one tensor.
func one(t *testing.T, name string, args ...any) *Tensor {
	t.Helper()
	out, err := CallUnchecked(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out[0].(*Tensor)
}

func nested(t *testing.T, d DType, shapes ...[]int) *Tensor {
	t.Helper()
	var parts []*Tensor
	for _, s := range shapes {
		n, _ := numel(s)
		parts = append(parts, Arange(0, n).To(d).View(s...))
	}
	return one(t, "aten::_nested_tensor_from_tensor_list", parts)
}

// TestPrintLayouts compares the text of sparse, nested and quantized tensors with Python's.
func TestPrintLayouts(t *testing.T) {
	begin(t)
	counted(t)
	text, err := os.ReadFile("../tests/golden/layouts.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Make, DType, Want string }
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		scoped(t, func() {
			d, err := ParseDType(c.DType)
			if err != nil && !strings.HasPrefix(c.DType, "q") { // the cases of quantized tensors make their own
				t.Fatal(err)
			}
			base := func(n, m int) *Tensor {
				x := Arange(0, n*m).View(n, m)
				return x.Mul(x.Remainder(3).Eq(0)).To(d)
			}
			zeros := func() *Tensor { return Zeros([]int{2, 3}, d) }
			var x *Tensor
			switch c.Make {
			case "coo":
				x = one(t, "aten::to_sparse", base(4, 6))
			case "coo of zeros":
				x = one(t, "aten::to_sparse", zeros())
			case "hybrid coo":
				x = one(t, "aten::to_sparse.sparse_dim", base(4, 6), 1)
			case "large coo":
				x = one(t, "aten::to_sparse", base(60, 60))
			case "coo with a gradient":
				if x = one(t, "aten::to_sparse", base(4, 6)); d.IsFloat() {
					x = x.RequiresGrad_()
				}
			case "csr", "csc":
				x = one(t, "aten::to_sparse_"+c.Make, base(4, 6))
			case "bsr", "bsc":
				x = one(t, "aten::to_sparse_"+c.Make, base(4, 6), []int{2, 3})
			case "csr of zeros":
				x = one(t, "aten::to_sparse_csr", zeros())
			case "batched csr":
				x = one(t, "aten::to_sparse_csr", Stack([]*Tensor{base(4, 6), base(4, 6)}))
			case "large csr":
				x = one(t, "aten::to_sparse_csr", base(60, 60))
			case "coo on meta":
				x = one(t, "aten::to_sparse", base(4, 6)).To(Meta)
			case "hybrid coo on meta":
				x = one(t, "aten::to_sparse.sparse_dim", base(4, 6), 1).To(Meta)
			case "csr on meta":
				x = one(t, "aten::to_sparse_csr", base(4, 6)).To(Meta)
			case "bsc on meta":
				x = one(t, "aten::to_sparse_bsc", base(4, 6), []int{2, 3}).To(Meta)
			case "nested":
				x = nested(t, d, []int{2, 3}, []int{1, 2})
			case "nested rows":
				x = nested(t, d, []int{2}, []int{3})
			case "nested square":
				x = nested(t, d, []int{2, 2}, []int{2, 2})
			case "nested computed":
				if d.IsFloat() {
					x = nested(t, d, []int{2}, []int{3}).RequiresGrad_().Mul(2)
				} else {
					x = nested(t, d, []int{2})
				}
			case "mkldnn":
				x = one(t, "aten::to_mkldnn", base(4, 6))
			default:
				q := map[string]int{"qint8": 12, "quint8": 13, "qint32": 14}[c.DType]
				y := Arange(0, 6, Float32).View(2, 3).Div(4.1)
				switch c.Make {
				case "per tensor":
					x = one(t, "aten::quantize_per_tensor", y, 0.1, 3, q)
				case "per tensor, small scale":
					x = one(t, "aten::quantize_per_tensor", y, 1e-5, 0, q)
				default:
					x = one(t, "aten::quantize_per_channel", y, FromSlice([]float32{0.1, 0.25}, nil), FromSlice([]int{0, 2}, nil), 0, q)
				}
				equal(t, "dtype", x.DType().String(), c.DType)
			}
			had := CurrentScope().Len()
			if got := x.String(); got != c.Want {
				t.Errorf("%s of %s prints as\n%s\nwant\n%s", c.Make, c.DType, got, c.Want)
			}
			if now := CurrentScope().Len(); now != had {
				t.Errorf("%s of %s: printing left %d tensors in the scope", c.Make, c.DType, now-had)
			}
		})
	}
}

// TestNestedTensor tests that getters work on nested tensors.
func TestNestedTensor(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := nested(t, Float64, []int{2, 3}, []int{4, 3})
		if x.Err() != nil || x.DType() != Float64 || x.Device() != CPU || x.Dim() != 3 || x.Numel() != 18 || x.IsContiguous() || x.StorageBytes() != 18*8 {
			t.Errorf("got %v, %v on %v, %d dimensions, %d elements, %d bytes", x.Err(), x.DType(), x.Device(), x.Dim(), x.Numel(), x.StorageBytes())
		}
		if s := x.Shape(); fmt.Sprint(s) != "[2 -1 3]" || x.Size(1) != -1 || x.Stride() != nil {
			t.Errorf("shape %v, strides %v", s, x.Stride())
		}
		if s := nested(t, Float32, []int{2, 3}, []int{2, 3}).Shape(); fmt.Sprint(s) != "[2 2 3]" {
			t.Errorf("shape %v", s)
		}
		if s := x.Narrow(0, 0, 0).Clone().Shape(); fmt.Sprint(s) != "[0 0 0]" {
			t.Errorf("the shape without components is %v", s)
		}
		_, err := Data[float64](x)
		wantErr(t, "Data", err, ErrArgument)
		_, err = x.Item()
		wantErr(t, "Item", err, ErrArgument)
		if err := x.View(7).Err(); err == nil || !strings.Contains(err.Error(), "float64(2, -1, 3)") {
			t.Errorf("an error does not describe it: %v", err)
		}
	})
}

// TestPrintForeignDTypes tests the text of tensors of dtypes of which only Call makes some; it is Python's, except that
// elements which cannot be read are left out.
func TestPrintForeignDTypes(t *testing.T) {
	begin(t)
	scoped(t, func() {
		z := FromSlice([]complex64{1 + 2i, 3 - 1i}, nil)
		bytes := FromSlice([]uint8{1, 2}, nil)
		for want, make := range map[string]func() *Tensor{
			"tensor([2., 4.], dtype=torch.float8_e8m0fnu)": func() *Tensor { return one(t, "aten::to.dtype", FromSlice([]float32{1.5, 3}, nil), 44) },
			"tensor(..., size=(2,), dtype=torch.bits8)":    func() *Tensor { return one(t, "aten::view.dtype", bytes, 21) },
			"tensor([1.+2.j, 3.-1.j], dtype=torch.bcomplex32)": func() *Tensor {
				x := one(t, "aten::to.dtype", z, 46)
				if !x.DType().IsComplex() || x.DType().IsFloat() || x.DType().Size() != 0 {
					t.Errorf("%v is complex %v, floating-point %v, has %d bytes", x.DType(), x.DType().IsComplex(), x.DType().IsFloat(), x.DType().Size())
				}
				return x
			},
			"tensor([1.+2.j, 1.+2.j, 1.+2.j,  ..., 3.-1.j, 3.-1.j, 3.-1.j],\n       dtype=torch.bcomplex32)": func() *Tensor {
				return one(t, "aten::to.dtype", z.View(2, 1).Expand(2, 600).Reshape(-1), 46)
			},
			"tensor([[1.+2.j],\n        [3.-1.j]], dtype=torch.bcomplex32)": func() *Tensor { return one(t, "aten::to.dtype", z.View(2, 1), 46) },
		} {
			if v := cshim.VersionLoaded(); strings.Contains(want, "bcomplex32") && v[0] == 2 && v[1] < 14 {
				continue
			}
			if got := make().String(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
	})
}

// TestNamesOfComplex32 tests that the dtype has the name that it prints, and PyTorch's other name.
func TestNamesOfComplex32(t *testing.T) {
	balance.Hold(t, func() {})
	for _, name := range []string{Complex32.String(), "complex32", "torch.complex32", "chalf", "torch.chalf"} {
		if d, err := ParseDType(name); err != nil || d != Complex32 {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}

// TestPrintCopiesEdges tests that a tensor of any size is printed as PyTorch prints it, from copies of its first and last
// elements.
func TestPrintCopiesEdges(t *testing.T) {
	begin(t)
	scoped(t, func() {
		row := Arange(0, 10, Float32).View(10, 1)
		x := row.Expand(10, 1<<40) // 40 TiB
		want := "tensor([[0., 0., 0.,  ..., 0., 0., 0.],\n" +
			"        [1., 1., 1.,  ..., 1., 1., 1.],\n" +
			"        [2., 2., 2.,  ..., 2., 2., 2.],\n" +
			"        ...,\n" +
			"        [7., 7., 7.,  ..., 7., 7., 7.],\n" +
			"        [8., 8., 8.,  ..., 8., 8., 8.],\n" +
			"        [9., 9., 9.,  ..., 9., 9., 9.]])"
		if got := x.String(); got != want {
			t.Errorf("got %s", got)
		}
		z := Complex(row, row.Neg()).Conj().Expand(10, 1<<40)
		if got := z.String(); !strings.Contains(got, "[9.+9.j, 9.+9.j, 9.+9.j,  ..., 9.+9.j, 9.+9.j, 9.+9.j]") {
			t.Errorf("conjugated: got %s", got)
		}
	})
}

// TestDataOfSparse tests that the elements of a sparse tensor are refused before memory for them is asked for.
func TestDataOfSparse(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := SparseCOOTensor(FromSlice([]int64{1, 2}, []int{2, 1}), FromSlice([]float32{1}, nil), []int{1 << 20, 1 << 20})
		_, err := Data[float32](x)
		if !errors.Is(err, ErrArgument) || errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "ToDense") {
			t.Errorf("Data of a sparse tensor of 2^40 elements: %v", err)
		}
	})
}

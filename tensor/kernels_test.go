package tensor

import (
	"math"
	"reflect"
	"slices"
	"testing"
)

// TestMedianOfExpanded tests medians along an expanded dimension, which libtorch computes from wrong elements, against
// those of a copy: values, indices and gradients.
func TestMedianOfExpanded(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for name, median := range map[string]func(x *Tensor, dim int) (*Tensor, *Tensor){
			"MedianDim": func(x *Tensor, dim int) (*Tensor, *Tensor) { return x.MedianDim(dim) },
			"KeepDim":   func(x *Tensor, dim int) (*Tensor, *Tensor) { return x.MedianDim(dim, KeepDim(true)) },
			"nanmedian": func(x *Tensor, dim int) (*Tensor, *Tensor) {
				out, err := Call("aten::nanmedian.dim", x, dim)
				if err != nil {
					t.Fatal(err)
				}
				return out[0].(*Tensor), out[1].(*Tensor)
			},
		} {
			for dim := range 3 {
				results := func(expanded func(x *Tensor) *Tensor) (v, grad, i []float64) {
					x := Arange(0, 6).Sin().View(2, 1, 3).RequiresGrad_()
					medians, indices := median(expanded(x), dim)
					if err := medians.Mul(medians.Detach().Add(1)).Sum().Backward(); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					return values(t, medians), values(t, x.Grad()), values(t, indices)
				}
				v, g, i := results(func(x *Tensor) *Tensor { return x.Expand(2, 7, 3) })
				wantV, wantG, wantI := results(func(x *Tensor) *Tensor { return x.Expand(2, 7, 3).Contiguous() })
				if !slices.Equal(v, wantV) || !slices.Equal(g, wantG) || !slices.Equal(i, wantI) {
					t.Errorf("%s(%d): %v, gradient %v, indices %v, want %v, %v, %v", name, dim, v, g, i, wantV, wantG, wantI)
				}
			}
		}
	})
}

// TestExpandedWeights tests BatchNorm with an expanded weight and bias, and CTCLoss with expanded targets, which libtorch
// reads beyond their end, against copies of them.
func TestExpandedWeights(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for _, shape := range [][]int{{2, 4}, {2, 4, 50}, {2, 4, 3, 3}} {
			for _, training := range []bool{true, false} {
				results := func(expanded func(x *Tensor) *Tensor) (y, grad []float64) {
					w := FromSlice([]float32{0.7}, nil).RequiresGrad_()
					x := Arange(0, Ones(shape).Numel()).Sin().View(shape...)
					out := x.BatchNorm(Zeros([]int{4}), Ones([]int{4}), Weight(expanded(w)), Bias(expanded(w)), Training(training))
					if err := out.Mul(out.Detach()).Sum().Backward(); err != nil {
						t.Fatal(err)
					}
					return values(t, out), values(t, w.Grad())
				}
				y, g := results(func(x *Tensor) *Tensor { return x.Expand(4) })
				wantY, wantG := results(func(x *Tensor) *Tensor { return x.Expand(4).Contiguous() })
				if !slices.Equal(y, wantY) || !slices.Equal(g, wantG) {
					t.Errorf("BatchNorm of %v, training %v: %v, gradient %v, want %v, %v", shape, training, y, g, wantY, wantG)
				}
			}
		}
		probs := Arange(0, 40).Sin().View(5, 2, 4).LogSoftmax(2)
		targets := FromSlice([]int64{2}, nil).Expand(4)
		got, want := probs.CTCLoss(targets, []int{5, 5}, []int{2, 2}), probs.CTCLoss(targets.Contiguous(), []int{5, 5}, []int{2, 2})
		if !slices.Equal(values(t, got), values(t, want)) {
			t.Errorf("CTCLoss: %v, want %v", got, want)
		}
	})
}

// TestSelectOfNested tests Select along a negative dimension of a nested tensor, for which libtorch writes beyond the
// sizes, against the same dimension counted from the front.
func TestSelectOfNested(t *testing.T) {
	begin(t)
	scoped(t, func() {
		out, err := CallUnchecked("aten::_nested_tensor_from_tensor_list", []*Tensor{Arange(0, 6).View(2, 3), Arange(6, 12).View(3, 2)})
		if err != nil {
			t.Fatal(err)
		}
		nested := out[0].(*Tensor)
		for k := range 2 {
			for dim := 1; dim < 3; dim++ {
				got, want := nested.Select(dim-3, 1), nested.Select(dim, 1)
				a, b := values(t, got.Select(0, k)), values(t, want.Select(0, k))
				if !slices.Equal(a, b) || len(a) == 0 {
					t.Errorf("Select(%d, 1), component %d: %v, want %v", dim-3, k, a, b)
				}
			}
		}
		vectors, err := CallUnchecked("aten::_nested_tensor_from_tensor_list", []*Tensor{Ones([]int{2}), Ones([]int{3})})
		if err != nil {
			t.Fatal(err)
		}
		for _, dim := range []int{1, -1} {
			wantErr(t, "Select of vectors", vectors[0].(*Tensor).Select(dim, 0).Err(), ErrArgument)
		}
	})
}

// TestClampByNumbers tests that a number as a bound has the gradient of Clamp where an element equals it, and is not converted
// to a dtype that cannot hold it.
func TestClampByNumbers(t *testing.T) {
	begin(t)
	scoped(t, func() {
		gradient := func(f func(x *Tensor) *Tensor) []float64 {
			x := FromSlice([]float32{0, 1, -1}, nil).RequiresGrad_()
			if err := f(x).Sum().Backward(); err != nil {
				t.Error(err)
			}
			return values(t, x.Grad())
		}
		low := gradient(func(x *Tensor) *Tensor { return x.Clamp(0, nil) })
		high := gradient(func(x *Tensor) *Tensor { return x.Clamp(nil, 0) })
		for name, c := range map[string]struct {
			f    func(x *Tensor) *Tensor
			want []float64
		}{
			"ClampMin": {func(x *Tensor) *Tensor { return x.ClampMin(0) }, low}, "ClampMin_": {func(x *Tensor) *Tensor { return x.Clone().ClampMin_(0) }, low},
			"ClampMax": {func(x *Tensor) *Tensor { return x.ClampMax(0) }, high}, "ClampMax_": {func(x *Tensor) *Tensor { return x.Clone().ClampMax_(0) }, high},
		} {
			if got := gradient(c.f); !slices.Equal(got, c.want) {
				t.Errorf("%s: gradient %v, want %v", name, got, c.want)
			}
		}
		small := FromSlice([]uint8{5, 0}, nil) // libtorch 2.11 converts -3 in both
		if got, want := values(t, small.ClampMin(-3)), values(t, small.Clamp(-3, nil)); !slices.Equal(got, want) {
			t.Errorf("uint8 and -3: %v, want %v", got, want)
		}
	})
}

// TestIndicesOfSparseTensors tests that writes to the tensors with which a sparse tensor was made, or that its indices
// were read into, change no sparse tensor.
func TestIndicesOfSparseTensors(t *testing.T) {
	begin(t)
	index := func(v ...int) *Tensor { return FromSlice(v, nil) }
	scoped(t, func() {
		for _, c := range []struct {
			op   string
			args []any
			read []string
		}{
			{"aten::sparse_coo_tensor.indices_size", []any{index(0, 1, 1, 2, 0, 2).View(2, 3), Ones([]int{3}), []int{2, 3}}, []string{"aten::_indices"}},
			{"aten::sparse_csr_tensor.crow_col_value_size", []any{index(0, 2, 3), index(0, 1, 2), Ones([]int{3}), []int{2, 3}}, []string{"aten::crow_indices", "aten::col_indices"}},
			{"aten::sparse_csc_tensor.ccol_row_value_size", []any{index(0, 2, 3), index(0, 1, 2), Ones([]int{3}), []int{3, 2}}, []string{"aten::ccol_indices", "aten::row_indices"}},
		} {
			sparse := one(t, c.op, c.args...)
			want := values(t, one(t, "aten::to_dense", sparse))
			for _, a := range c.args {
				if x, ok := a.(*Tensor); ok && x.DType() == Int64 {
					x.Fill_(1000)
				}
			}
			for _, op := range c.read {
				one(t, op, sparse).Fill_(1000)
			}
			if got := values(t, one(t, "aten::to_dense", sparse)); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", c.op, got, want)
			}
		}
		diagonal := one(t, "aten::to_sparse", Eye(2).Mul(3))
		if got, want := values(t, one(t, "aten::_sparse_mm", diagonal, Ones([]int{2, 1}))), []float64{3, 3}; !slices.Equal(got, want) {
			t.Errorf("_sparse_mm: %v, want %v", got, want)
		}
		for name, of := range map[string]func(w, ids *Tensor) *Tensor{
			"embedding": func(w, ids *Tensor) *Tensor { return one(t, "aten::embedding", w, ids, -1, false, true) },
			"embedding_bag": func(w, ids *Tensor) *Tensor {
				return one(t, "aten::embedding_bag", w, ids, index(0, 1), false, 0, true)
			},
			"gather": func(w, ids *Tensor) *Tensor { return one(t, "aten::gather", w, 0, ids.View(-1, 1), true) },
		} {
			w, ids := Ones([]int{4, 2}).RequiresGrad_(), index(1, 3, 1)
			y := of(w, ids)
			sum := y.Sum()
			ids.Fill_(1000)
			if err := sum.Backward(); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			g := w.Grad()
			want := []float64{0, 0, 2, 2, 0, 0, 1, 1}
			if name == "gather" {
				want = []float64{0, 0, 2, 0, 0, 0, 1, 0}
			}
			if got := values(t, one(t, "aten::to_dense", g)); !slices.Equal(got, want) {
				t.Errorf("%s: gradient %v, want %v", name, got, want)
			}
		}
	})
}

// TestProductsOfSparseScalars tests products of sparse tensors, one of which has no dimensions, against those of dense
// ones. libtorch multiplies by memory that nothing has written if the one without dimensions has no element.
func TestProductsOfSparseScalars(t *testing.T) {
	begin(t)
	scoped(t, func() {
		dense := func(x *Tensor) *Tensor { return one(t, "aten::to_dense", x) }
		scalars := map[string]*Tensor{
			"3":           one(t, "aten::to_sparse", FromScalar(float32(3))),
			"no element":  one(t, "aten::sparse_coo_tensor.indices_size", Zeros([]int{0, 0}, Int64), Zeros([]int{0}), []int{}),
			"uncoalesced": one(t, "aten::sparse_coo_tensor.indices_size", Zeros([]int{0, 2}, Int64), Ones([]int{2}), []int{}),
		}
		others := map[string]*Tensor{"a matrix": one(t, "aten::to_sparse", Eye(2).Mul(2)), "a hybrid": one(t, "aten::to_sparse.sparse_dim", Ones([]int{2, 3}), 1)}
		for name, x := range scalars {
			others[name] = x
		}
		for name, x := range scalars {
			for with, y := range others {
				want := values(t, dense(x).Mul(dense(y)))
				if got := values(t, dense(x.Mul(y))); !slices.Equal(got, want) {
					t.Errorf("%s times %s: %v, want %v", name, with, got, want)
				}
				if got := values(t, dense(y.Mul(x))); !slices.Equal(got, want) {
					t.Errorf("%s times %s: %v, want %v", with, name, got, want)
				}
			}
		}
	})
}

// TestLDLSolveBroadcasts tests that right-hand sides with fewer batches than the factors are solved.
func TestLDLSolveBroadcasts(t *testing.T) {
	begin(t)
	scoped(t, func() {
		a := Arange(0, 18).Sin().View(2, 3, 3)
		factors, err := Call("aten::linalg_ldl_factor", a.Add(a.Transpose(1, 2)))
		if err != nil {
			t.Fatal(err)
		}
		b := Arange(0, 6).Cos().View(3, 2)
		want := values(t, one(t, "aten::linalg_ldl_solve", factors[0], factors[1], b.Expand(2, 3, 2).Clone()))
		for _, b := range []*Tensor{b, b.View(1, 3, 2)} {
			if got := values(t, one(t, "aten::linalg_ldl_solve", factors[0], factors[1], b)); !slices.Equal(got, want) {
				t.Errorf("%v: %v, want %v", b.Shape(), got, want)
			}
		}
	})
}

// TestStatisticsInEvaluation tests BatchNorm in evaluation with statistics that have gaps between their elements against
// copies of them. libtorch computes other gradients.
func TestStatisticsInEvaluation(t *testing.T) {
	begin(t)
	scoped(t, func() {
		results := func(of func(x *Tensor) *Tensor) (y, grad []float64) {
			mean := Arange(0, 8).Sin().View(4, 2).Select(1, 0)
			variance := Arange(0, 8).Cos().Abs().View(4, 2).Select(1, 0)
			x := Arange(0, 24).Sin().View(2, 4, 3).RequiresGrad_()
			out := x.BatchNorm(of(mean), of(variance))
			if err := out.Mul(out.Detach()).Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			return values(t, out), values(t, x.Grad())
		}
		y, g := results(func(x *Tensor) *Tensor { return x })
		wantY, wantG := results(func(x *Tensor) *Tensor { return x.Contiguous() })
		if !slices.Equal(y, wantY) || !slices.Equal(g, wantG) {
			t.Errorf("%v, gradient %v, want %v, %v", y, g, wantY, wantG)
		}
	})
}

// TestGroupNormOfChannelsLast tests the gradients of the weight and the bias alone, whose computation ends the process in
// libtorch 2.11, against those with the input's.
func TestGroupNormOfChannelsLast(t *testing.T) {
	begin(t)
	scoped(t, func() {
		gradients := func(input bool) (weight, bias []float64) {
			x := Arange(0, 180).Sin().View(2, 6, 5, 3).Contiguous(ChannelsLast).Detach()
			if input {
				x = x.RequiresGrad_()
			}
			w, b := Arange(0, 6).Cos().RequiresGrad_(), Arange(1, 7).Cos().RequiresGrad_()
			y := x.GroupNorm(2, Weight(w), Bias(b))
			if err := y.Mul(y.Detach().Sin()).Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			return values(t, w.Grad()), values(t, b.Grad())
		}
		w, b := gradients(false)
		wantW, wantB := gradients(true)
		if !slices.Equal(w, wantW) || !slices.Equal(b, wantB) {
			t.Errorf("%v and %v, want %v and %v", w, b, wantW, wantB)
		}
	})
}

// TestAttentionOfZeros tests attention with zeros without memory, as gradients of unused results are, against that with
// zeros. libtorch reads beyond their only element.
func TestAttentionOfZeros(t *testing.T) {
	begin(t)
	scoped(t, func() {
		shape := []int{2, 4, 6, 8}
		for i := range 3 {
			results := func(zeros *Tensor) (all [][]float64) {
				in := make([]*Tensor, 3)
				for k := range in {
					in[k] = Arange(k, k+384).Sin().View(shape...).RequiresGrad_()
				}
				at := slices.Clone(in)
				at[i] = zeros
				y := ScaledDotProductAttention(at[0], at[1], at[2], IsCausal(true))
				if err := y.Mul(y.Detach().Sin()).Sum().Backward(); err != nil {
					t.Fatal(err)
				}
				all = append(all, values(t, y))
				for k := range in {
					if k != i {
						all = append(all, values(t, in[k].Grad()))
					}
				}
				return all
			}
			got := results(one(t, "aten::_efficientzerotensor", shape, int(Float32)))
			if want := results(Zeros(shape)); !reflect.DeepEqual(got, want) {
				t.Errorf("input %d: %v, want %v", i, got, want)
			}
		}
	})
}

// TestInPlaceOfItself tests operators in place with an argument in the memory that they write to. libtorch makes nodes
// that refer to themselves, so that they are never freed, and refuses the backward pass.
func TestInPlaceOfItself(t *testing.T) {
	begin(t)
	call := func(op string, args ...any) func(x *Tensor) {
		return func(x *Tensor) {
			all := []any{x}
			for _, a := range args {
				if a == "x" {
					a = x
				}
				all = append(all, a)
			}
			if _, err := Call(op, all...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		inPlace func(x *Tensor)
		plain   func(x *Tensor) *Tensor
	}{
		"Mul_":     {func(x *Tensor) { x.Mul_(x) }, func(x *Tensor) *Tensor { return x.Mul(x) }},
		"Div_":     {func(x *Tensor) { x.Div_(x) }, func(x *Tensor) *Tensor { return x.Div(x) }},
		"AddMM_":   {func(x *Tensor) { x.AddMM_(x, x) }, func(x *Tensor) *Tensor { return x.AddMM(x, x) }},
		"Add_":     {func(x *Tensor) { x.Add_(x) }, func(x *Tensor) *Tensor { return x.Add(x) }},
		"Pow":      {call("aten::pow_.Tensor", "x"), func(x *Tensor) *Tensor { return one(t, "aten::pow.Tensor_Tensor", x, x) }},
		"AddCMul_": {call("aten::addcmul_", "x", "x"), func(x *Tensor) *Tensor { return one(t, "aten::addcmul", x, x, x) }},
		"rows":     {func(x *Tensor) { x.Select(0, 0).Mul_(x.Select(0, 1)) }, func(x *Tensor) *Tensor { return Stack([]*Tensor{x.Select(0, 0).Mul(x.Select(0, 1)), x.Select(0, 1)}) }},
	} {
		scoped(t, func() {
			results := func(f func(x *Tensor) *Tensor) (y, grad []float64) {
				leaf := FromSlice([]float64{0.5, 1.5, 2, 3}, []int{2, 2}).RequiresGrad_()
				out := f(leaf.Mul(1))
				if err := out.Mul(out.Detach().Clone().Sin()).Sum().Backward(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return values(t, out), values(t, leaf.Grad())
			}
			y, g := results(func(x *Tensor) *Tensor {
				c.inPlace(x)
				return x
			})
			wantY, wantG := results(c.plain)
			near := func(a, b float64) bool { return math.Abs(a-b) < 1e-14 } // the sums have another order
			if !slices.Equal(y, wantY) || !slices.EqualFunc(g, wantG, near) {
				t.Errorf("%s: %v, gradient %v, want %v, %v", name, y, g, wantY, wantG)
			}
		})
	}
	scoped(t, func() {
		for _, op := range []string{"aten::lift", "aten::lift_fresh"} {
			leaf := Ones([]int{2}).RequiresGrad_()
			if err := one(t, op, leaf).Sum().Backward(); err != nil {
				t.Errorf("%s: %v", op, err)
			} else if g := values(t, leaf.Grad()); !slices.Equal(g, []float64{1, 1}) {
				t.Errorf("%s: gradient %v", op, g)
			}
		}
	})
}

// TestListsThatAreReturned tests that a tensor that an operator on a list returns unchanged is freed.
func TestListsThatAreReturned(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{16}).RequiresGrad_()
		q := one(t, "aten::quantize_per_tensor", Ones([]int{16}), 0.1, 0, 13) // quint8
		if _, err := Call("aten::dequantize.tensors", []*Tensor{x, q}); err != nil {
			t.Error(err)
		}
	})
}

// TestGroupNormOfZeros tests a weight without memory, which libtorch 2.11 reads.
func TestGroupNormOfZeros(t *testing.T) {
	begin(t)
	scoped(t, func() {
		weight := one(t, "aten::_efficientzerotensor", []int{6})
		x := Randn([]int{2, 6, 5, 3})
		bias := Randn([]int{6})
		got, want := x.GroupNorm(2, Weight(weight), Bias(bias)), x.GroupNorm(2, Weight(Zeros([]int{6})), Bias(bias))
		if same, err := got.Equal(want); err != nil || !same {
			t.Errorf("%v, want %v, %v", got, want, err)
		}
	})
}

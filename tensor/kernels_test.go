package tensor

import (
	"slices"
	"testing"
)

// TestMedianOfExpanded tests medians along an expanded dimension, which libtorch computes from other elements, against
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

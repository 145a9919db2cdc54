package tensor

import (
	"errors"
	"strings"
	"testing"
)

// TestCompressed tests the constructors of compressed layouts against the conversions of the same matrix.
func TestCompressed(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := FromSlice([]float64{0, 1, 0, 2, 0, 0, 3, 4, 0, 0, 0, 5, 6, 0, 0, 7}, []int{4, 4})
		size := []int{4, 4}
		csr, csc, bsr, bsc := x.ToSparseCSR(), x.ToSparseCSC(), x.ToSparseBSR([]int{2, 2}), x.ToSparseBSC([]int{2, 2})
		for layout, pair := range map[Layout][2]*Tensor{
			SparseCSR: {csr, SparseCSRTensor(csr.CRowIndices(), csr.ColIndices(), csr.Values(), size)},
			SparseCSC: {csc, SparseCSCTensor(csc.CColIndices(), csc.RowIndices(), csc.Values(), size)},
			SparseBSR: {bsr, SparseBSRTensor(bsr.CRowIndices(), bsr.ColIndices(), bsr.Values(), size)},
			SparseBSC: {bsc, SparseBSCTensor(bsc.CColIndices(), bsc.RowIndices(), bsc.Values(), size)},
		} {
			for i, y := range pair {
				if y.Layout() != layout || y.DType() != Float64 {
					t.Errorf("%v %d: %v, %v", layout, i, y.Layout(), y.Err())
				}
				if same, err := y.ToDense().Equal(x); err != nil || !same {
					t.Errorf("%v %d: %v, %v", layout, i, y, err)
				}
			}
		}
		half := SparseCSRTensor(csr.CRowIndices(), csr.ColIndices(), csr.Values(), size, Float16)
		if half.DType() != Float16 {
			t.Errorf("converted to %v: %v", half.DType(), half.Err())
		}
		for what, y := range map[string]*Tensor{
			"nil": SparseCSRTensor(nil, nil, nil, size), "rows": SparseCSRTensor(csr.CRowIndices(), csr.ColIndices(), csr.Values(), []int{5, 4}),
			"columns": SparseCSRTensor(csr.CRowIndices(), csr.ColIndices().Add(3), csr.Values(), size), "pointers": SparseCSCTensor(csc.RowIndices(), csc.RowIndices(), csc.Values(), size),
			"an option": SparseBSRTensor(bsr.CRowIndices(), bsr.ColIndices(), bsr.Values(), size, Dim(1)),
		} {
			if y.Err() == nil {
				t.Errorf("%s: no error", what)
			}
		}
	})
}

// TestCompressedOperands tests that each operand of a compressed tensor is checked, whatever the options.
func TestCompressedOperands(t *testing.T) {
	begin(t)
	scoped(t, func() {
		csr, gone := Eye(2).ToSparseCSR(), Ones([]int{2})
		gone.Release()
		for name, f := range map[string]func(a, b, c *Tensor, size []int, opts ...Option) *Tensor{
			"SparseCSRTensor": SparseCSRTensor, "SparseCSCTensor": SparseCSCTensor, "SparseBSRTensor": SparseBSRTensor, "SparseBSCTensor": SparseBSCTensor,
		} {
			for i := range 3 {
				for _, opts := range [][]Option{nil, {Float64}} {
					for bad, kind := range map[*Tensor]error{nil: ErrNil, {}: ErrNil, gone: ErrReleased} {
						parts := []*Tensor{csr.CRowIndices(), csr.ColIndices(), csr.Values()}
						parts[i] = bad
						err := f(parts[0], parts[1], parts[2], []int{2, 2}, opts...).Err()
						var e *Error
						if !errors.As(err, &e) || e.Op != name || !errors.Is(err, kind) {
							t.Errorf("%s, operand %d, options %v: %v, want %v", name, i, opts, err, kind)
						}
					}
				}
			}
		}
	})
}

// TestNNZ tests the number of stored values in each layout. The numbers are PyTorch's.
func TestNNZ(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := FromSlice([]float32{0, 1, 0, 2, 0, 0, 3, 4, 0, 0, 0, 5, 6, 0, 0, 7}, []int{4, 4})
		repeated := SparseCOOTensor(FromSlice([]int64{0, 0, 1, 1}, []int{2, 2}), Ones([]int{2}), []int{2, 2})
		for what, c := range map[string]struct {
			x    *Tensor
			want int
		}{
			"COO": {x.ToSparse(), 7}, "CSR": {x.ToSparseCSR(), 7}, "CSC": {x.ToSparseCSC(), 7},
			"BSR": {x.ToSparseBSR([]int{2, 2}), 4}, "BSC": {x.ToSparseBSC([]int{2, 2}), 4},
			"a batch": {Stack([]*Tensor{x, x}).ToSparseCSR(), 7}, "repeated coordinates": {repeated, 2}, "coalesced": {repeated.Coalesce(), 1},
			"empty": {Zeros([]int{2, 3}).ToSparse(), 0},
		} {
			if n, err := c.x.NNZ(); n != c.want || err != nil {
				t.Errorf("%s: %d, %v, want %d", what, n, err, c.want)
			}
		}
		if n, err := x.NNZ(); err == nil || !strings.Contains(err.Error(), "NNZ") {
			t.Errorf("a strided tensor has %d, %v", n, err)
		}
		if n, err := (*Tensor)(nil).NNZ(); !errors.Is(err, ErrNil) {
			t.Errorf("nil has %d, %v", n, err)
		}
	})
}

// TestSparseCOOTensor tests that indices and values are converted as in torch.sparse_coo_tensor.
func TestSparseCOOTensor(t *testing.T) {
	begin(t)
	scoped(t, func() {
		indices, values, size := FromSlice([]int32{0, 1, 2, 0}, []int{2, 2}), FromSlice([]float32{1.5, -2}, nil).RequiresGrad_(), []int{2, 3}
		x := SparseCOOTensor(indices, values, size, Float64)
		if x.DType() != Float64 || x.Coalesce().Indices().DType() != Int64 || x.Layout() != SparseCOO {
			t.Errorf("dtypes %v and %v, layout %v", x.DType(), x.Coalesce().Indices().DType(), x.Layout())
		}
		if err := x.ToDense().Mul(3).Sum().Backward(); err != nil {
			t.Error(err)
		}
		wantValues(t, "dense", x.ToDense(), 0, 0, 1.5, -2, 0, 0)
		wantValues(t, "the gradient of the values", values.Grad(), 3, 3)
		if y := SparseCOOTensor(indices, values, size, Meta, PinMemory(false)); y.Err() != nil || y.Device() != Meta {
			t.Errorf("on %v (%v)", y.Device(), y.Err())
		}
		gone := Ones([]int{2})
		gone.Release()
		for what, y := range map[string]*Tensor{"nil": SparseCOOTensor(nil, nil, size), "released": SparseCOOTensor(indices, gone, size),
			"an option": SparseCOOTensor(indices, values, size, Strided), "no option": SparseCOOTensor(indices, values, size, nil)} {
			if err := y.Err(); err == nil || !strings.Contains(err.Error(), "SparseCOOTensor") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if indices.Err() != nil || values.Err() != nil {
			t.Errorf("the operands are released: %v, %v", indices.Err(), values.Err())
		}
	})
}

// TestSparseGradients tests gradients through sparse tensors against those of the same computation with dense ones.
func TestSparseGradients(t *testing.T) {
	begin(t)
	scoped(t, func() {
		values := []float32{1, -2, 3}
		rows, columns := []int{0, 1, 1}, []int{2, 0, 1}
		w := Randn([]int{3, 2})
		indices := FromSlice(append(append([]int{}, rows...), columns...), []int{2, 3})
		dense := func() (v, w2, y *Tensor) {
			v, w2 = FromSlice(values, []int{3}).RequiresGrad_(), w.Clone().RequiresGrad_()
			x := Zeros([]int{2, 3}).IndexPut([]*Tensor{FromSlice(rows, []int{3}), FromSlice(columns, []int{3})}, v)
			return v, w2, x.MM(w2)
		}
		sparse := func() (v, w2, y *Tensor) {
			v, w2 = FromSlice(values, []int{3}).RequiresGrad_(), w.Clone().RequiresGrad_()
			return v, w2, SparseCOOTensor(indices, v, []int{2, 3}).MM(w2)
		}
		v, w1, y := dense()
		vs, ws, ys := sparse()
		if err := errors.Join(y.Square().Sum().Backward(), ys.Square().Sum().Backward()); err != nil {
			t.Fatal(err)
		}
		for what, pair := range map[string][2]*Tensor{"the product": {y, ys}, "the values": {v.Grad(), vs.Grad()}, "the matrix": {w1.Grad(), ws.Grad()}} {
			if same, err := pair[1].AllClose(pair[0]); err != nil || !same {
				t.Errorf("%s: %v, want %v (%v)", what, pair[1], pair[0], err)
			}
		}
		// Through conversions.
		x := FromSlice([]float32{0, 1, 2, 0}, []int{2, 2}).RequiresGrad_()
		if err := x.ToSparse().ToDense().Mul(FromSlice([]float32{5, 6, 7, 8}, []int{2, 2})).Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		if same, err := x.Grad().ToDense().Equal(FromSlice([]float32{0, 6, 7, 0}, []int{2, 2})); err != nil || !same {
			t.Errorf("through conversions: %v, %v", x.Grad(), err)
		}
	})
}

// TestCompressedGradients tests that gradients reach the values of each compressed layout. The expected ones are PyTorch's
// values.grad after (torch.sparse_csr_tensor(…).to_dense() * w).sum().backward(), and (… @ w).square().sum().backward().
func TestCompressedGradients(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := FromSlice([]float64{0, 1, 0, 2, 0, 0, 3, 4, 0, 0, 0, 5, 6, 0, 0, 7}, []int{4, 4})
		w, size := Arange(0, 16, Float64).View(4, 4), []int{4, 4}
		csr, csc, bsr, bsc := x.ToSparseCSR(), x.ToSparseCSC(), x.ToSparseBSR([]int{2, 2}), x.ToSparseBSC([]int{2, 2})
		for layout, c := range map[Layout]struct {
			of             *Tensor // has the values
			make           func(values *Tensor, opts ...Option) *Tensor
			dense, product []float64
		}{
			SparseCSR: {csr, func(v *Tensor, opts ...Option) *Tensor {
				return SparseCSRTensor(csr.CRowIndices(), csr.ColIndices(), v, size, opts...)
			}, []float64{1, 3, 6, 7, 11, 12, 15}, []float64{1460, 3540, 6340, 8980, 7340, 1372, 11308}},
			SparseCSC: {csc, func(v *Tensor, opts ...Option) *Tensor {
				return SparseCSCTensor(csc.CColIndices(), csc.RowIndices(), v, size, opts...)
			}, []float64{12, 1, 6, 3, 7, 11, 15}, []float64{1372, 1460, 6340, 3540, 8980, 7340, 11308}},
			SparseBSR: {bsr, func(v *Tensor, opts ...Option) *Tensor {
				return SparseBSRTensor(bsr.CRowIndices(), bsr.ColIndices(), v, size, opts...)
			}, []float64{0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15},
				[]float64{420, 1460, 1060, 3700, 2500, 3540, 6340, 8980, 860, 3020, 1372, 4684, 5180, 7340, 7996, 11308}},
			SparseBSC: {bsc, func(v *Tensor, opts ...Option) *Tensor { // PyTorch has no product with SparseBSC either
				return SparseBSCTensor(bsc.CColIndices(), bsc.RowIndices(), v, size, opts...)
			}, []float64{0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15}, nil},
		} {
			check := func(what string, want []float64, opts []Option, loss func(y *Tensor) *Tensor) {
				if want == nil {
					return
				}
				v := c.of.Values().Clone().RequiresGrad_()
				if err := loss(c.make(v, opts...)).Backward(); err != nil {
					t.Errorf("%v, %s: %v", layout, what, err)
					return
				}
				if same, err := v.Grad().Equal(FromSlice(want, v.Shape())); err != nil || !same {
					t.Errorf("%v, %s: %v, want %v (%v)", layout, what, v.Grad(), want, err)
				}
			}
			dense := func(y *Tensor) *Tensor { return y.ToDense().Mul(w).Sum() }
			check("dense", c.dense, nil, dense)
			check("converted", c.dense, []Option{Float32}, dense)
			check("product", c.product, nil, func(y *Tensor) *Tensor { return y.MatMul(w).Square().Sum() })
		}
	})
}

// TestSparseSum tests sums over all, sparse and dense dimensions, with their gradients.
func TestSparseSum(t *testing.T) {
	begin(t)
	scoped(t, func() {
		dense := FromSlice([]float32{0, 1, 2, 0, 3, 4}, []int{2, 3})
		for name, c := range map[string]struct {
			dims   []int
			want   *Tensor
			layout Layout
		}{
			"all": {nil, FromScalar(float32(10)), Strided}, "rows": {[]int{0}, FromSlice([]float32{0, 4, 6}, nil), SparseCOO},
			"columns": {[]int{-1}, FromSlice([]float32{3, 7}, nil), SparseCOO}, "both": {[]int{0, 1}, FromScalar(float32(10)), Strided},
		} {
			x := dense.Clone().RequiresGrad_()
			y := x.ToSparse().SparseSum(c.dims...)
			if y.Layout() != c.layout {
				t.Errorf("%s: layout %v, %v", name, y.Layout(), y.Err())
			}
			if same, err := y.ToDense().Equal(c.want); err != nil || !same {
				t.Errorf("%s: %v, want %v, %v", name, y, c.want, err)
			}
			if err := y.ToDense().Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			if same, err := x.Grad().ToDense().Equal(dense.Ne(0).To(Float32)); err != nil || !same {
				t.Errorf("%s: gradient %v, %v", name, x.Grad(), err)
			}
		}
		if dense.SparseSum(0).Err() == nil || (*Tensor)(nil).SparseSum().Err() == nil || dense.ToSparse().SparseSum(5).Err() == nil {
			t.Error("SparseSum of a dense tensor, of none, or along no dimension succeeds")
		}
	})
}

// TestSparseMM tests products whose gradient of the sparse matrix is sparse. The expected values are those of
// torch.sparse.mm, with torch.sparse.softmax before it and with reduce=.
func TestSparseMM(t *testing.T) {
	begin(t)
	scoped(t, func() {
		same := func(what string, x *Tensor, want []float32) {
			t.Helper()
			if ok, err := x.AllClose(FromSlice(want, x.Shape())); err != nil || !ok {
				t.Errorf("%s: %v, want %v (%v)", what, x, want, err)
			}
		}
		size := []int{2, 3}
		v, w := FromSlice([]float32{1, -2, 3, 0.5}, nil).RequiresGrad_(), Arange(0, 6, Float32).View(3, 2).RequiresGrad_()
		indices := FromSlice([]int{0, 0, 1, 1, 0, 2, 0, 1}, []int{2, 4})
		y := SparseCOOTensor(indices, v, size).SparseSoftmax(1).SparseMM(w)
		if err := y.Square().Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		same("after a softmax", y, []float32{0.18970349431037903, 1.1897034645080566, 0.15171636641025543, 1.1517163515090942})
		same("its values", v.Grad(), []float32{-0.49853602051734924, 0.49853599071502686, -0.3655019998550415, 0.36550194025039673})
		same("its matrix", w.Grad(), []float32{0.6418281197547913, 4.395259857177734, 0.02301785536110401, 0.1747342199087143, 0.017993707209825516, 0.11284545063972473})
		for _, c := range []struct {
			reduce       string
			y, v, matrix []float32
		}{
			{"sum", []float32{-8, -9, 8, 15}, []float32{-18, -154, 30, 122}, []float32{32, 72, 64, 120, 32, 36}},
			{"mean", []float32{-4, -4.5, 4, 7.5}, []float32{-4.5, -38.5, 7.5, 30.5}, []float32{8, 18, 16, 30, 8, 9}},
			{"amax", []float32{0, 1, 8, 12}, []float32{2, 0, 0, 104}, []float32{0, 2, 64, 96, 0, 0}},
			{"amin", []float32{-8, -10, 0, 3}, []float32{0, -164, 6, 0}, []float32{0, 18, 0, 0, 32, 40}},
		} {
			v, w := FromSlice([]float32{1, -2, 3, 4}, nil).RequiresGrad_(), Arange(0, 6, Float32).View(3, 2).RequiresGrad_()
			y := SparseCSRTensor(FromSlice([]int{0, 2, 4}, nil), FromSlice([]int{0, 2, 0, 1}, nil), v, size).SparseMMReduce(w, c.reduce)
			if err := y.Square().Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			same(c.reduce, y, c.y)
			same(c.reduce+", values", v.Grad(), c.v)
			same(c.reduce+", matrix", w.Grad(), c.matrix)
		}
		coo, csr := Ones(size).ToSparse(), Ones(size).ToSparseCSR()
		for what, x := range map[string]*Tensor{
			"nil": coo.SparseMM(nil), "sizes": coo.SparseMM(Ones([]int{2, 3})), "a vector": csr.SparseMM(Ones([]int{3})), "a scalar": FromScalar(1).SparseMM(coo),
			"a dense dimension": Ones([]int{2, 3, 2}).ToSparseDim(2).SparseMM(Ones([]int{3, 2})),
			"dtypes":            coo.SparseMM(Ones([]int{3, 2}, Float64)), "layouts": csr.SparseMM(Ones([]int{3, 2}).ToSparse()), "devices": coo.SparseMM(Ones([]int{3, 2}, Meta)),
			"no reduction": csr.SparseMMReduce(Ones([]int{3, 2}), "prod"), "COO": coo.SparseMMReduce(Ones([]int{3, 2}), "sum"),
			"sizes to reduce": csr.SparseMMReduce(Ones([]int{2, 2}), "sum"),
		} {
			if x.Err() == nil {
				t.Errorf("%s: no error, but %v", what, x)
			}
		}
	})
}

package tensor

import (
	"math"

	"github.com/linstock-ml/linstock/internal/handle"
)

// BroadcastShapes returns the shape to which tensors of the given shapes are broadcast. PyTorch:
// torch.broadcast_shapes.
func BroadcastShapes(shapes ...[]int) ([]int, error) {
	const op = "BroadcastShapes"
	n := 0
	for _, s := range shapes {
		n = max(n, len(s))
	}
	out := make([]int, n)
	for i := range out {
		out[i] = 1
	}
	for _, s := range shapes {
		for i, size := range s {
			at := &out[n-len(s)+i]
			switch {
			case size < 0:
				return nil, refused(op, ErrArgument, "the shape %v has a negative size", s)
			case size == 1 || size == *at:
			case *at != 1:
				return nil, refused(op, ErrArgument, "the shapes %v cannot be broadcast together: %d and %d", shapes, *at, size)
			default:
				*at = size
			}
		}
	}
	return out, nil
}

// UnravelIndex converts indices t of elements of a tensor of the given shape, in row-major order, to int64 coordinates:
// one tensor for each dimension. PyTorch: torch.unravel_index.
func (t *Tensor) UnravelIndex(shape ...int) ([]*Tensor, error) {
	const op = "UnravelIndex"
	if t.Err() != nil {
		return nil, passOn(op, t).Err()
	}
	if d := t.DType(); d.IsFloat() || d.IsComplex() || d == Bool {
		return nil, refused(op, ErrArgument, "indices must be integers, not %v", d)
	}
	steps, step := make([]int, len(shape)), 1
	for i := len(shape) - 1; i >= 0; i-- {
		steps[i] = step
		switch {
		case shape[i] < 0:
			return nil, refused(op, ErrArgument, "the shape %v has a negative size", shape)
		case shape[i] == 0 && t.Numel() != 0:
			return nil, refused(op, ErrArgument, "a tensor of shape %v has no elements", shape)
		case shape[i] != 0 && step > math.MaxInt/shape[i]:
			return nil, refused(op, ErrArgument, "a tensor of shape %v has too many elements", shape)
		}
		step *= max(shape[i], 1)
	}
	return TidyAll(func() ([]*Tensor, error) {
		x, out := t.To(Int64), make([]*Tensor, len(shape))
		for i := range shape {
			out[i] = x.FloorDivide(steps[i]).Remainder(max(shape[i], 1))
		}
		return out, nil
	})
}

// SVDLowRank approximates the singular value decomposition of matrices (*, m, n) of rank q at most: t = U diag(S) V^H.
// It multiplies t by q random vectors, and niter times by its adjoint and t again, which makes the result more
// accurate. A mean, unless it is nil, is broadcast and subtracted from t first; t may be sparse. In PyTorch q is 6 and
// niter 2 by default. PyTorch: torch.svd_lowrank.
func (t *Tensor) SVDLowRank(q, niter int, mean *Tensor) (u, s, v *Tensor) {
	return t.lowRank("SVDLowRank", q, niter, mean, false)
}

// PCALowRank returns the principal components of the rows of matrices (*, m, n): the decomposition of
// [Tensor.SVDLowRank] of t without the mean of its rows if center is true. V has the directions, and S^2/(m-1) the
// variances along them. In PyTorch q is min(6, m, n), center true and niter 2 by default. PyTorch: torch.pca_lowrank.
func (t *Tensor) PCALowRank(q int, center bool, niter int) (u, s, v *Tensor) {
	const op = "PCALowRank"
	if shape := t.Shape(); len(shape) >= 2 && q > min(shape[len(shape)-2], shape[len(shape)-1]) {
		return three(failed(refused(op, ErrArgument, "q is %d, more than the smaller side of %v", q, shape)))
	}
	return t.lowRank(op, q, niter, nil, center)
}

func (t *Tensor) lowRank(op string, q, niter int, mean *Tensor, center bool) (u, s, v *Tensor) {
	if !handle.Usable(t) {
		return three(passOn(op, t))
	}
	const most = 1000 // iterations: more would only take time
	shape := t.Shape()
	switch {
	case len(shape) < 2:
		return three(failed(refused(op, ErrArgument, "matrices are needed, got a tensor of shape %v", shape)))
	case q < 0 || niter < 0 || niter > most:
		return three(failed(refused(op, ErrArgument, "q must not be negative and niter be in [0, %d], got %d and %d", most, q, niter)))
	case center && t.Layout() != Strided:
		return three(failed(refused(op, ErrArgument, "the mean of a sparse tensor is dense: do not center it, or give SVDLowRank the mean")))
	}
	out, err := TidyAll(func() ([]*Tensor, error) {
		a, m := t, mean
		if center {
			a = a.Sub(a.Mean(Dim(-2), KeepDim()))
		}
		wide := shape[len(shape)-2] < shape[len(shape)-1]
		if m != nil {
			m = m.BroadcastTo(shape...)
		}
		if wide {
			a = a.Adjoint()
			if m != nil {
				m = m.Adjoint()
			}
		}
		// product returns x*y, or (x-less)*y without making a dense matrix of a sparse x.
		product := func(x, less, y *Tensor) *Tensor {
			if less == nil {
				return x.MatMul(y)
			}
			return x.MatMul(y).Sub(less.MatMul(y))
		}
		adjoint, less := a.Adjoint(), (*Tensor)(nil)
		if m != nil {
			less = m.Adjoint()
		}
		basis, _ := product(a, m, Randn([]int{min(shape[len(shape)-2], shape[len(shape)-1]), q}, t.DType(), t.Device())).LinalgQR()
		for range niter {
			basis, _ = product(adjoint, less, basis).LinalgQR()
			basis, _ = product(a, m, basis).LinalgQR()
		}
		// The adjoint of basis^H (a-m), because a sparse matrix is a left factor.
		small := product(adjoint, less, basis)
		v, s, uh := small.LinalgSVD(FullMatrices(false))
		u := basis.MatMul(uh.Adjoint())
		if wide {
			u, v = v, u
		}
		return []*Tensor{u, s, v}, nil
	})
	if err != nil {
		return three(failed(err))
	}
	return out[0], out[1], out[2]
}

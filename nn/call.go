package nn

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// one calls an operator that has no typed function and returns its first result.
func one(op, name string, args ...any) *tensor.Tensor {
	out, err := results(op, 1, name, args...)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

// two returns the first two results.
func two(op, name string, args ...any) (*tensor.Tensor, *tensor.Tensor) {
	out, err := results(op, 2, name, args...)
	if err != nil {
		return broken(err)
	}
	return out[0], out[1]
}

// results calls an operator and returns n results, all tensors.
func results(op string, n int, name string, args ...any) ([]*tensor.Tensor, error) {
	for _, a := range args {
		if t, ok := a.(*tensor.Tensor); ok && t != nil {
			if err := refuse.Unusable(op, "", t); err != nil {
				return nil, err
			}
		}
	}
	values, err := tensor.Call(name, args...)
	if err != nil {
		return nil, refuse.Named(op, err)
	}
	out := make([]*tensor.Tensor, 0, n)
	for _, v := range values {
		if t, ok := v.(*tensor.Tensor); ok && t != nil {
			out = append(out, t)
		}
	}
	if len(out) < n {
		return nil, refuse.Error(op, tensor.ErrArgument, "%s returned %d tensors, want %d", name, len(out), n)
	}
	return out, nil
}

// broken returns the same failed tensor twice, so that reading the error of one reads that of both.
func broken(err error) (*tensor.Tensor, *tensor.Tensor) {
	t := tensor.Failed(err)
	return t, t
}

// call calls an internal operator that returns one tensor, for op, with arguments that were checked.
func call(op, name string, args ...any) *tensor.Tensor {
	out, err := tensor.CallUnchecked(name, args...)
	if err != nil {
		return tensor.Failed(refuse.Named(op, err))
	}
	return out[0].(*tensor.Tensor)
}

// leading returns the sizes of t except the last n, and none if it has fewer: an operator fails when memory runs out or
// a device is lost, and a failed tensor has no dimensions.
func leading(t *tensor.Tensor, n int) []int {
	shape := t.Shape()
	return shape[:max(0, len(shape)-n)]
}

// trailing returns the last n sizes of t, or nil if it has fewer.
func trailing(t *tensor.Tensor, n int) []int {
	shape := t.Shape()
	if len(shape) < n {
		return nil
	}
	return shape[len(shape)-n:]
}

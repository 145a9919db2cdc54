// Package strides examines how the elements of a tensor lie in memory.
package strides

import "slices"

// Dense reports whether the elements lie in memory without gaps and overlaps, in any order of dimensions.
func Dense(shape, stride []int) bool {
	if slices.Contains(shape, 0) {
		return true
	}
	var dims []int
	for d, n := range shape {
		if n != 1 {
			dims = append(dims, d)
		}
	}
	slices.SortFunc(dims, func(a, b int) int { return stride[a] - stride[b] })
	next := 1
	for _, d := range dims {
		if stride[d] != next {
			return false
		}
		next *= shape[d]
	}
	return true
}

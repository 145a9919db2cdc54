// Package stats is what the tools that time something say of their samples.
package stats

import (
	"math"
	"slices"
)

// Quantile of v, interpolated; q from 0 to 1. NaN of nothing, or where one of v is.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 || slices.ContainsFunc(v, math.IsNaN) {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	at := q * float64(len(s)-1)
	lo := int(at)
	hi := min(lo+1, len(s)-1)
	return s[lo] + (s[hi]-s[lo])*(at-float64(lo))
}

// Median is the quantile 0.5.
func Median(v []float64) float64 { return Quantile(v, 0.5) }

// MedianError is the standard error of the median, as of a normal distribution with the same quartiles.
func MedianError(v []float64) float64 {
	return 1.253 / 1.349 * (Quantile(v, 0.75) - Quantile(v, 0.25)) / math.Sqrt(float64(len(v)))
}

// More says whether another turn is to be timed: at least so many, and up to four times as many until the median is
// known to a hundredth, where the machine is noisy.
func More(v []float64, turns int) bool {
	return len(v) < turns || len(v) < 4*turns && MedianError(v) > 0.01
}

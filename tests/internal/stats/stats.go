// Package stats summarizes timing samples.
package stats

import (
	"math"
	"slices"
)

// Quantile returns the interpolated quantile q, from 0 to 1, of v. It is NaN if v is empty or contains NaN.
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

// Median returns the quantile 0.5 of v.
func Median(v []float64) float64 { return Quantile(v, 0.5) }

// MedianError returns the standard error of the median of a normal distribution with the same quartiles as v.
func MedianError(v []float64) float64 {
	return 1.253 / 1.349 * (Quantile(v, 0.75) - Quantile(v, 0.25)) / math.Sqrt(float64(len(v)))
}

// More reports whether to take another sample: at least turns samples, and up to four times as many until the standard
// error of the median is below 0.01.
func More(v []float64, turns int) bool {
	return len(v) < turns || len(v) < 4*turns && MedianError(v) > 0.01
}

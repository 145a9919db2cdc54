package stats

import (
	"fmt"
	"math"
)

// Ratio formats the median of v with its quartiles.
func Ratio(v []float64) string {
	if math.IsNaN(Median(v)) {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", Median(v), Quantile(v, 0.25), Quantile(v, 0.75))
}

// Duration formats nanoseconds.
func Duration(ns float64) string {
	switch {
	case math.IsNaN(ns):
		return "-"
	case math.Abs(ns) < 10e3:
		return fmt.Sprintf("%.0f ns", ns)
	case math.Abs(ns) < 10e6:
		return fmt.Sprintf("%.1f µs", ns/1e3)
	}
	return fmt.Sprintf("%.2f ms", ns/1e6)
}

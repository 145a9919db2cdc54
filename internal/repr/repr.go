// Package repr formats numbers as Python does.
package repr

import (
	"math"
	"strconv"
	"strings"
)

// Float returns Python's repr of a float.
func Float(f float64) string {
	abs := math.Abs(f)
	switch {
	case math.IsInf(f, 0) || math.IsNaN(f):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
	case abs != 0 && (abs < 1e-4 || abs >= 1e16):
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// Complex returns Python's repr of a complex number.
func Complex(c complex128) string {
	part := func(f float64) string { return strings.TrimSuffix(Float(f), ".0") }
	re, im := real(c), part(imag(c))
	if re == 0 && !math.Signbit(re) {
		return im + "j"
	}
	if !strings.HasPrefix(im, "-") {
		im = "+" + im
	}
	return "(" + part(re) + im + "j)"
}

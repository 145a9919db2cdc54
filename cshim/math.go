package cshim

/*
#cgo LDFLAGS: -lm
#cgo noescape pow
#cgo nocallback pow
#cgo noescape cos
#cgo nocallback cos
#include <math.h>
*/
import "C"

// Pow and Cos are the C library's, which Python's ** and math.cos call. Those of package math differ in the last bit for
// some arguments, and with them learning rates and step sizes would differ from PyTorch's.

// Pow returns x**y.
func Pow(x, y float64) float64 { return float64(C.pow(C.double(x), C.double(y))) }

// Cos returns the cosine of x.
func Cos(x float64) float64 { return float64(C.cos(C.double(x))) }

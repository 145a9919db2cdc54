package autograd

import (
	"sync/atomic"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
)

// AnomalyOption is an option of DetectAnomaly.
type AnomalyOption func(*anomaly)

type anomaly struct{ checkNaN bool }

// CheckNaN(false) only names lines: NaN in a gradient is not an error. The default is true (check_nan=).
func CheckNaN(on ...bool) AnomalyOption { return func(a *anomaly) { a.checkNaN = options.On(on) } }

// checkingNaN is the number of calls of DetectAnomaly that check for NaN.
var checkingNaN atomic.Int64

// DetectAnomaly runs f and returns f's error. In f, a backward pass in which the backward of an operator returns NaN
// returns an error of the kind tensor.ErrNaN, and every error of a backward pass names the line that called the operator
// whose backward failed, also in the Forward of the *tensor.Error:
//
//	err := autograd.DetectAnomaly(func() error {
//		return nn.CrossEntropy(model.Forward(x), targets).Backward()
//	})
//	// linstock: Backward: Function 'SqrtBackward0' returned nan values in its 0th output; SqrtBackward0 failed, the
//	// backward of the operator called at /home/me/model.go:31 …
//
// An error of a Function names its Go type. Lines are known for operators that this goroutine has called in f. With
// CreateGraph, a node recorded by a backward pass has the line of the operator whose backward recorded it. The
// goroutine is locked to its OS thread while f runs. DetectAnomaly makes operators and backward passes slower, and
// libtorch's check for NaN applies to all passes of the process while f runs. Without DetectAnomaly, nothing is
// recorded. Option: CheckNaN. PyTorch: torch.autograd.detect_anomaly.
func DetectAnomaly(f func() error, opts ...AnomalyOption) error {
	const op = "DetectAnomaly"
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	a := &anomaly{checkNaN: true}
	for _, o := range opts {
		if o == nil {
			return refuse.NilOption(op)
		}
		o(a)
	}
	if a.checkNaN {
		checkingNaN.Add(1)
		defer checkingNaN.Add(-1)
	}
	return handle.WithAnomaly(a.checkNaN, f)
}

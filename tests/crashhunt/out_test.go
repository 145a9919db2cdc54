package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestResultsOfOtherStrides tests that operators write their results to tensors of other strides, or of another size, as
// they return them: with the recorded calls of all operators that write in place or to out arguments.
func TestResultsOfOtherStrides(t *testing.T) {
	leak.Check(t)
	operators, compared := everyOperator(t), 0
	for i := range operators {
		op := &operators[i]
		if !slices.ContainsFunc(op.types, argument.isWritten) || random.MatchString(op.name) {
			continue
		}
		for n, c := range op.calls {
			if name, _, _ := strings.Cut(c.Op, "."); c.Op == op.name || strings.HasSuffix(name, "_") {
				continue
			}
			for _, a := range arrangements {
				err := tensor.WithScope(func() error {
					more, err := compareResults(op, n, a.of)
					compared += more
					return err
				})
				if err != nil {
					t.Errorf("%s, recorded call %d, results %s: %v", op.name, n, a.name, err)
				}
			}
		}
	}
	if compared < 5000 {
		t.Errorf("%d comparisons", compared)
	}
}

// random are operators whose results differ from call to call.
var random = regexp.MustCompile("rand|normal|bernoulli|empty|multinomial|rrelu|dropout|uniform|cauchy|geometric|exponential|resize|set_|strided")

// arrangements of a tensor are others for the results: of other strides, or of another size.
var arrangements = []struct {
	name string
	of   func(x *tensor.Tensor) *tensor.Tensor
}{
	{"transposed", transposed},
	{"stepped", stepped},
	{"channels last", func(x *tensor.Tensor) *tensor.Tensor {
		switch x.Dim() {
		case 4:
			return x.Contiguous(tensor.ChannelsLast)
		case 5:
			return x.Contiguous(tensor.ChannelsLast3d)
		}
		return nil
	}},
	{"empty", func(x *tensor.Tensor) *tensor.Tensor { return tensor.Empty([]int{0}, x.DType()) }},
	{"too small", func(x *tensor.Tensor) *tensor.Tensor { return tensor.Ones([]int{3, 1}, x.DType()) }},
}

// compareResults compares the results that the operator's recorded call n returns with those that the operator writes to
// arranged tensors. It returns the number of comparisons, 0 if one of the calls is not valid.
func compareResults(op *operator, n int, arrange func(x *tensor.Tensor) *tensor.Tensor) (int, error) {
	args := plain(n).given(op, n)
	want, err := tensor.Call(op.calls[n].Op, args...)
	if err != nil {
		return 0, nil
	}
	inPlace := op.types[0].isWritten()
	var given, got []any
	for i, a := range op.types {
		if !a.isWritten() {
			given = append(given, args[i-len(got)])
			continue
		}
		if len(got) == len(want) {
			return 0, nil
		}
		x, _ := want[len(got)].(*tensor.Tensor)
		if inPlace {
			x, _ = args[0].(*tensor.Tensor)
		}
		if x == nil || x.Err() != nil || x.IsSparse() {
			return 0, nil
		}
		y := x.Clone()
		if !inPlace {
			y.Fill_(7)
		}
		if y = arrange(y); y == nil || y.Err() != nil || inPlace && !slices.Equal(y.Shape(), x.Shape()) {
			return 0, nil
		}
		given, got = append(given, y), append(got, y)
		if inPlace {
			args = args[1:]
			given = append(given, args...)
			break
		}
	}
	if _, err := tensor.Call(op.name, given...); err != nil {
		return 0, nil
	}
	for i := range got {
		a, err := elements(want[i])
		b, err2 := elements(got[i])
		if err := errors.Join(err, err2); err != nil {
			return 0, err
		}
		if !near(a, b) {
			return 0, fmt.Errorf("%.300s, want %.300s", fmt.Sprint(b), fmt.Sprint(a))
		}
	}
	return len(got), nil
}

// elements returns the tensor's elements as numbers.
func elements(x any) ([]float64, error) {
	y, _ := x.(*tensor.Tensor)
	if y.DType().IsComplex() {
		y = y.ResolveConj().ViewAsReal()
	}
	return tensor.Data[float64](y.To(tensor.Float64))
}

// near reports whether the elements are the same but for rounding, which differs between vectorized loops and others.
func near(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool {
		return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-4*max(1, math.Abs(a))
	})
}

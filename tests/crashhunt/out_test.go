package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestOutArguments tests that operators write their results to tensors of other strides as to contiguous ones, or
// refuse them: with the recorded calls of all operators that have arguments for results.
func TestOutArguments(t *testing.T) {
	leak.Check(t)
	if os.Getenv("ZZ") != "" {
		_ = cshim.GuardPageAtEnd.Set()
	}
	o := &options{only: regexp.MustCompile("")}
	operators, err := o.operators()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for i := range operators {
		op := &operators[i]
		if len(inputs(op.types)) == len(op.types) {
			continue
		}
		for n := range op.calls {
			if !draws(op.name) {
				compared += outArguments(t, op, n)
			}
		}
	}
	if compared < 1000 {
		t.Errorf("%d comparisons", compared)
	}
}

// draws reports whether the operator's results are random, or not defined.
func draws(op string) bool {
	return strings.Contains(op, "rand") || strings.Contains(op, "normal") || strings.Contains(op, "bernoulli") || strings.Contains(op, "empty") ||
		strings.Contains(op, "multinomial") || strings.Contains(op, "rrelu")
}

// outArguments makes the call n of the operator and returns the number of comparisons.
func outArguments(t *testing.T, op *operator, n int) (compared int) {
	arrange := map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"transposed": func(x *tensor.Tensor) *tensor.Tensor {
			reversed := make([]int, x.Dim())
			for i := range reversed {
				reversed[i] = len(reversed) - 1 - i
			}
			return x.Permute(reversed...).Contiguous().Permute(reversed...)
		},
		"stepped": func(x *tensor.Tensor) *tensor.Tensor {
			return tensor.Stack([]*tensor.Tensor{x, x}, tensor.Dim(-1)).Select(-1, 0)
		},
		"channels last": func(x *tensor.Tensor) *tensor.Tensor {
			switch x.Dim() {
			case 4:
				return x.Contiguous(tensor.ChannelsLast)
			case 5:
				return x.Contiguous(tensor.ChannelsLast3d)
			}
			return x
		},
		"of other sizes": func(x *tensor.Tensor) *tensor.Tensor { return tensor.Ones([]int{3, 1}, x.DType()) },
	}
	err := tensor.WithScope(func() error {
		for name, f := range arrange {
			if os.Getenv("ZZ") != "" {
				fmt.Fprintln(os.Stderr, op.name, n, name)
			}
			v := newValues(rand.New(rand.NewPCG(1, uint64(n))))
			v.grad, v.dtype = false, tensor.Float32
			c := op.calls[n]
			var args []any
			for i := range inputs(op.types) {
				args = append(args, any(tensor.Default))
				if i < len(c.Args) {
					args[i] = v.decode(c.Args[i])
				}
			}
			empty := v.withResults(op, op.name, args)
			want, err := tensor.Call(op.name, empty...)
			if err != nil {
				continue
			}
			var outs []any
			for _, w := range want {
				x, ok := w.(*tensor.Tensor)
				if !ok || x == nil || x.IsSparse() {
					return nil
				}
				y := f(x.Clone().Fill_(7))
				if y.Err() != nil {
					return nil
				}
				outs = append(outs, y)
			}
			given := slices.Clone(args)
			k := 0
			given = given[:0]
			for i, a := range op.types {
				if a.name != "self" && strings.Contains(a.typ, "!") {
					given = append(given, outs[k])
					k++
				} else {
					given = append(given, args[i-k])
				}
			}
			if _, err := tensor.Call(op.name, given...); err != nil {
				continue
			}
			for i, w := range want {
				a, err := elements(w)
				b, err2 := elements(outs[i])
				if err := errors.Join(err, err2); err != nil || !near(a, b) {
					t.Errorf("%s, call %d, %s: %.300s, want %.300s, %v", op.name, n, name, fmt.Sprint(b), fmt.Sprint(a), err)
				}
				compared++
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return compared
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

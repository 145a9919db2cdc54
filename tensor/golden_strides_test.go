package tensor

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// arrangement gives a tensor's elements other strides, or makes some equal by a stride of 0.
type arrangement struct {
	name string
	of   func(x *Tensor) *Tensor
}

var arrangements = []arrangement{
	{"transposed", func(x *Tensor) *Tensor {
		reversed := make([]int, x.Dim())
		for i := range reversed {
			reversed[i] = len(reversed) - 1 - i
		}
		return x.Permute(reversed...).Contiguous().Permute(reversed...)
	}},
	{"stepped", func(x *Tensor) *Tensor { return Stack([]*Tensor{x, x.ZerosLike()}, Dim(-1)).Select(-1, 0) }},
	{"offset", func(x *Tensor) *Tensor {
		return Cat([]*Tensor{Zeros([]int{1}, x.DType()), x.Reshape(-1)}).Narrow(0, 1, x.Numel()).View(x.Shape()...)
	}},
	{"expanded along 0", func(x *Tensor) *Tensor { return expanded(x, 0) }},
	{"expanded along 1", func(x *Tensor) *Tensor { return expanded(x, 1) }},
	{"expanded along 2", func(x *Tensor) *Tensor { return expanded(x, 2) }},
	{"expanded along the last", func(x *Tensor) *Tensor { return expanded(x, x.Dim()-1) }},
}

func expanded(x *Tensor, dim int) *Tensor {
	if dim < 0 || dim >= x.Dim() || x.Shape()[dim] == 0 {
		return x
	}
	return x.Narrow(dim, 0, 1).Expand(x.Shape()...)
}

// strided are operators whose results depend on strides. Views are refused for some, as are indices for TakeAlongDim and
// the gradient of MaxUnpool2d. Contiguous may return its receiver. The determinants of singular matrices have gradients
// that are not finite.
var strided = strings.Fields("View ViewAs ViewDType ViewAsComplex AsStrided AsStridedScatter Contiguous TakeAlongDim MaxUnpool2d LogDet LinalgSlogdet")

// TestStrides tests that results and gradients do not depend on the strides of the arguments: each golden case with
// arguments of other strides has the results that it has with contiguous copies of them.
func TestStrides(t *testing.T) {
	begin(t)
	cases := goldenCases(t, "../tests/golden/ops.jsonl")
	fns := map[string]reflect.Value{}
	for _, o := range operators {
		fns[o.name] = reflect.ValueOf(o.fn)
	}
	compared := 0
	defer func() { arranged = nil }()
	for i := range cases {
		c := &cases[i]
		undefined := slices.ContainsFunc(c.Out, func(v goldenValue) bool { return v.T != nil && v.T.Data == nil })
		tensors := slices.ContainsFunc(c.Args, func(v goldenValue) bool { return v.T != nil || v.Ts != nil })
		if !tensors || undefined || drawsNumbers(c.Op) || slices.Contains(slices.Concat(strided, firstOnly, random), c.Op) {
			continue
		}
		for _, a := range arrangements {
			// Expanded matrices are singular, and rounding decides how the gradient of their determinant is computed.
			if c.Op == "LinalgDet" && strings.HasPrefix(a.name, "expanded") {
				continue
			}
			scoped(t, func() {
				want, err := c.results(fns[c.Op], func(x *Tensor) *Tensor { return a.of(x).Clone(ContiguousFormat) })
				if err != nil {
					return // an expanded argument need not be a valid one
				}
				got, err := c.results(fns[c.Op], a.of)
				if err == nil {
					err = same(got, want)
				}
				if err != nil {
					t.Errorf("%s %q, %s: %v", c.Op, c.Name, a.name, err)
				}
				compared++
			})
		}
	}
	if compared < 9000 {
		t.Errorf("%d comparisons of %d cases", compared, len(cases))
	}
}

// results runs the case with arranged arguments and returns the elements of the results and of the gradients of their
// sum.
func (c *goldenCase) results(fn reflect.Value, arrange func(x *Tensor) *Tensor) (all [][]float64, err error) {
	arranged = arrange
	defer func() { arranged = nil }()
	in, run, err := c.prepare(fn.Type())
	if err != nil {
		return nil, err
	}
	if err := ManualSeed(c.Seed); err != nil {
		return nil, err
	}
	var roots []*Tensor
	add := func(x *Tensor) error {
		if x == nil {
			return nil
		}
		if err := x.Err(); err != nil {
			return err
		}
		if x.RequiresGrad() && x.GradFn() != "" {
			roots = append(roots, x)
		}
		y := x.Detach()
		if y.DType().IsComplex() {
			y = y.ResolveConj().ViewAsReal()
		}
		v, err := Data[float64](y.To(Float64))
		all = append(all, v)
		return err
	}
	each := func(v any) error {
		switch v := v.(type) {
		case error:
			return v
		case *Tensor:
			return add(v)
		case []*Tensor:
			for _, x := range v {
				if err := add(x); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, r := range invoke(fn, in) {
		if err := each(r.Interface()); err != nil {
			return nil, err
		}
	}
	if len(roots) == 0 {
		return all, nil
	}
	cots := make([]*Tensor, len(roots))
	for i, r := range roots {
		cots[i] = r.Detach().NaNToNum().Add(1)
	}
	if err := runBackward(roots, Gradient(cots...)); err != nil {
		return nil, fmt.Errorf("backward: %w", err)
	}
	for _, leaf := range run.leaves {
		if x, ok := leaf.(*Tensor); ok && x != nil && x.RequiresGrad() {
			if err := add(x.Grad()); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func same(got, want [][]float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d results, want %d", len(got), len(want))
	}
	for i, w := range want {
		if len(got[i]) != len(w) {
			return fmt.Errorf("result %d has %d elements, want %d", i, len(got[i]), len(w))
		}
		for k := range w {
			g := got[i][k]
			if g == w[k] || math.IsNaN(g) && math.IsNaN(w[k]) || math.Abs(g-w[k]) <= 1e-5+1e-4*math.Abs(w[k]) {
				continue
			}
			return fmt.Errorf("result %d: %.6g, want %.6g", i, got[i], w)
		}
	}
	return nil
}

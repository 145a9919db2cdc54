package nn_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// drawing are cases whose results depend on the order of the elements in memory, because they draw a number for each.
var drawing = []string{"Dropout", "Dropout_inplace", "AlphaDropout", "LoRALinear_trained", "sparse_"}

// TestStrides tests that the results and gradients of modules do not depend on the strides of their inputs, nor on which
// gradients are computed: with each case of tests/golden/torch_nn.py, in training and in evaluation.
func TestStrides(t *testing.T) {
	leak.Check(t)
	expanded := func(x *tensor.Tensor, dim int) *tensor.Tensor {
		if x.Dim() <= dim {
			return x
		}
		return x.Narrow(dim, 0, 1).Expand(x.Shape()...)
	}
	arrangements := map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"expanded along 0": func(x *tensor.Tensor) *tensor.Tensor { return expanded(x, 0) },
		"expanded along 1": func(x *tensor.Tensor) *tensor.Tensor { return expanded(x, 1) },
		"expanded along 2": func(x *tensor.Tensor) *tensor.Tensor { return expanded(x, 2) },
		"contiguous":       func(x *tensor.Tensor) *tensor.Tensor { return x },
		"transposed": func(x *tensor.Tensor) *tensor.Tensor {
			reversed := make([]int, x.Dim())
			for i := range reversed {
				reversed[i] = len(reversed) - 1 - i
			}
			return x.Permute(reversed...).Contiguous().Permute(reversed...)
		},
		"stepped": func(x *tensor.Tensor) *tensor.Tensor {
			return tensor.Stack([]*tensor.Tensor{x, x.Detach()}, tensor.Dim(-1)).Select(-1, 0)
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
	}
	least := 10000
	if testing.Short() { // one goroutine runs it
		arrangements = map[string]func(x *tensor.Tensor) *tensor.Tensor{"channels last": arrangements["channels last"]}
		least = 2000
	}
	var file map[string]torchCase
	golden.Read(t, "torch_nn.json", &file)
	compared := 0
	for name, c := range torchModules {
		if slices.Contains(drawing, name) {
			continue
		}
		for _, training := range []bool{true, false} {
			for how, f := range arrangements {
				// A layer norm of equal features divides by the square root of eps, and so enlarges what rounding leaves.
				if how == "expanded along 2" && strings.Contains(name, "norm_first") {
					continue
				}
				want, err := strideResults(t, c, file[name], training, true, true, func(x *tensor.Tensor) *tensor.Tensor { return f(x).Clone(tensor.ContiguousFormat) })
				if err != nil {
					if strings.HasPrefix(how, "expanded") {
						continue // not valid inputs
					}
					t.Errorf("%s, inputs %s: %v", name, how, err)
					continue
				}
				for _, grads := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
					got, err := strideResults(t, c, file[name], training, grads[0], grads[1], f)
					if err != nil {
						if name == "MaxPool3d_indices" && how == "channels last" {
							continue // without a batch there is no kernel, as in PyTorch
						}
						t.Errorf("%s, inputs %s, training %v, gradients of inputs %v and parameters %v: %v", name, how, training, grads[0], grads[1], err)
						continue
					}
					for what, v := range got {
						if !slices.EqualFunc(v, want[what], func(a, b float64) bool {
							return a == b || math.Abs(a-b) <= 1e-4*max(1, math.Abs(b)) || math.IsNaN(a) && math.IsNaN(b)
						}) {
							t.Errorf("%s, inputs %s, training %v, gradients of inputs %v and parameters %v: %s is %.200s, want %.200s", name, how, training, grads[0], grads[1],
								what, fmt.Sprint(v), fmt.Sprint(want[what]))
						}
						compared++
					}
					for what := range want {
						input := strings.HasPrefix(what, "the gradient of input ")
						parameter := !input && strings.HasPrefix(what, "the gradient of ")
						if _, ok := got[what]; !ok && (grads[0] || !input) && (grads[1] || !parameter) {
							t.Errorf("%s, inputs %s, training %v, gradients of inputs %v and parameters %v: %s is missing", name, how, training, grads[0], grads[1], what)
						}
					}
				}
			}
		}
	}
	if compared < least {
		t.Errorf("%d comparisons", compared)
	}
}

// strideResults returns the elements of a module's outputs, gradients and state, by name.
func strideResults(t *testing.T, c torchModule, data torchCase, training, inputs, parameters bool, arrange func(x *tensor.Tensor) *tensor.Tensor) (all map[string][]float64, err error) {
	all = map[string][]float64{}
	add := func(name string, x *tensor.Tensor) error {
		x = dense(x.Detach())
		if x.DType().IsComplex() {
			x = x.ViewAsReal()
		}
		v, err := tensor.Data[float64](x.To(tensor.Float64))
		all[name] = v
		return err
	}
	err = tensor.WithScope(func() error {
		if err := tensor.ManualSeed(data.Seed); err != nil {
			return err
		}
		m := c.make()
		defer nn.Release(m)
		if !training {
			nn.Eval(m)
		}
		var leaves, xs []*tensor.Tensor
		for _, spec := range data.In {
			x := draw(t, spec)
			if !inputs {
				x = x.Detach()
			}
			leaves, xs = append(leaves, x), append(xs, arrange(x))
		}
		ps := nn.NamedParameters(m)
		if !parameters {
			if err := nn.RequiresGrad_(m, false); err != nil {
				return err
			}
		}
		ys := c.run(m, xs)
		for i, y := range ys {
			if err := y.Err(); err != nil {
				return err
			}
			if err := add(fmt.Sprint("output ", i), y); err != nil {
				return err
			}
		}
		if loss := lossOf(ys); loss.RequiresGrad() {
			if err := loss.Backward(); err != nil {
				return err
			}
		}
		for i, x := range leaves {
			if g := x.Grad(); g != nil {
				if err := add(fmt.Sprint("the gradient of input ", i), g); err != nil {
					return err
				}
			}
		}
		for _, p := range ps {
			if g := p.Tensor.Grad(); g != nil {
				if err := add("the gradient of "+p.Name, g); err != nil {
					return err
				}
			}
		}
		for _, n := range nn.StateDict(m) {
			if err := add(n.Name+" after", n.Tensor); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

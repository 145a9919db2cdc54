package nn_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

var recipes = []nn.Float8Recipe{nn.Float8TensorWise, nn.Float8RowWise, nn.Float8RowWiseWithGWHP}

// TestFloat8Training compares results and gradients of a Linear with torchao's.
func TestFloat8Training(t *testing.T) {
	leak.Check(t)
	var cases []struct {
		Recipe, DType                                      string
		X, Weight, Bias, G, Y, XGrad, WeightGrad, BiasGrad values
	}
	golden.Read(t, "float8training.json", &cases)
	near := map[string]float64{"float32": 1e-5, "bfloat16": 0.01, "float16": 0.002}
	for _, c := range cases {
		what, d, rtol := fmt.Sprint(c.Recipe, " ", c.DType, c.X.Shape), goldenDTypes[c.DType], near[c.DType]
		if c.Recipe != "tensorwise" {
			rtol = 0.01 // torchao rounds to bfloat16
		}
		recipe := recipes[slices.IndexFunc(recipes, func(r nn.Float8Recipe) bool { return r.String() == c.Recipe })]
		err := tensor.WithScope(func() error {
			x := c.X.tensor(d).RequiresGrad_()
			l := &nn.Linear{Weight: c.Weight.tensor(d).RequiresGrad_(), Bias: c.Bias.tensor(d).RequiresGrad_(), Float8: recipe}
			y := l.Forward(x)
			if y.DType() != d {
				t.Errorf("%s: the result is %v", what, y.DType())
			}
			golden.Near(t, what, y.Detach(), c.Y.Data, rtol, rtol)
			if err := autograd.Backward([]*tensor.Tensor{y}, tensor.Gradient(c.G.tensor(d))); err != nil {
				return err
			}
			golden.Near(t, what+", gradient of x", x.Grad(), c.XGrad.Data, rtol, rtol)
			golden.Near(t, what+", gradient of Weight", l.Weight.Grad(), c.WeightGrad.Data, 50*rtol, rtol)
			golden.Near(t, what+", gradient of Bias", l.Bias.Grad(), c.BiasGrad.Data, rtol, rtol)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFloat8TrainingWide trains models of widths that CUDA's kernels take, in bfloat16, under Autocast, and with checkpoints, and compares
// them with models that round nothing.
func TestFloat8TrainingWide(t *testing.T) {
	leak.Check(t)
	for _, recipe := range recipes {
		t.Run(recipe.String(), func(t *testing.T) {
			for name, of := range map[string]struct {
				dtype   tensor.DType
				forward func(m nn.Layer, x *tensor.Tensor) *tensor.Tensor
			}{
				"bfloat16": {tensor.BFloat16, nn.Layer.Forward},
				"autocast": {tensor.Float32, func(m nn.Layer, x *tensor.Tensor) *tensor.Tensor {
					return autograd.Autocast(x.Device().Type, tensor.BFloat16, func() *tensor.Tensor { return m.Forward(x) })
				}},
				"checkpoint": {tensor.BFloat16, func(m nn.Layer, x *tensor.Tensor) *tensor.Tensor {
					return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return m.Forward(in[0]) }, x)
				}},
			} {
				loss := func(recipe nn.Float8Recipe) (first, last float64) {
					if err := tensor.ManualSeed(1); err != nil {
						t.Fatal(err)
					}
					m := nn.NewSequential(nn.NewLinear(64, 64, nn.DType(of.dtype)), &nn.ReLU{}, nn.NewLinear(64, 16, nn.DType(of.dtype)))
					defer nn.Release(m)
					if _, err := nn.ConvertToFloat8Training(m, recipe, nil); err != nil {
						t.Fatal(err)
					}
					opt, err := optim.NewAdam(nn.Parameters(m), 0.003)
					if err != nil {
						t.Fatal(err)
					}
					defer opt.Release()
					x, want := tensor.Randn([]int{24, 64}, of.dtype).Keep(), tensor.RandInt(0, 16, []int{24}).Keep()
					defer x.Release()
					defer want.Release()
					for i := range 20 {
						err := tensor.WithScope(func() error {
							l := of.forward(m, x).To(tensor.Float32).CrossEntropy(want)
							opt.ZeroGrad()
							if err := l.Backward(); err != nil {
								return err
							}
							if last, err = l.Item(); err != nil {
								return err
							}
							if i == 0 {
								first = last
							}
							return opt.Step()
						})
						if err != nil && strings.Contains(err.Error(), "compute capability") {
							return 0, 0 // an older GPU
						} else if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
					}
					return first, last
				}
				first, last := loss(recipe)
				if first == 0 {
					return
				}
				exactFirst, exactLast := loss(nn.NoFloat8)
				if d := math.Abs(first - exactFirst); !(d > 0 && d <= 0.05) {
					t.Errorf("%s: the first loss is %v, without rounding %v", name, first, exactFirst)
				}
				if d := math.Abs(last - exactLast); !(d <= 0.1) || !(last <= first/2) {
					t.Errorf("%s: the losses are %v to %v, without rounding %v to %v", name, first, last, exactFirst, exactLast)
				}
			}
		})
	}
}

// TestFloat8TrainingMemory tests that the graph of a Linear keeps the same bytes with a recipe as without.
func TestFloat8TrainingMemory(t *testing.T) {
	leak.Check(t)
	live := func() int64 {
		s, err := vram.Stats(vram.CPU)
		if err != nil {
			t.Fatal(err)
		}
		return s.Allocated
	}
	kept := func(recipe nn.Float8Recipe) (bytes int64) {
		l := nn.NewLinear(32, 16)
		l.Float8 = recipe
		defer nn.Release(l)
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{64, 32})
			before := live()
			y := l.Forward(x)
			x.Release()
			bytes = live() - before
			return y.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	want := kept(nn.NoFloat8)
	for _, recipe := range recipes {
		if got := kept(recipe); got != want {
			t.Errorf("%v: the graph keeps %d bytes, without a recipe %d", recipe, got, want)
		}
	}
}

// TestConvertToFloat8Training tests which layers are converted.
func TestConvertToFloat8Training(t *testing.T) {
	leak.Check(t)
	m := nn.NewSequential(nn.NewLinear(32, 16), &nn.ReLU{}, nn.NewSequential(nn.NewLinear(16, 32)), nn.NewLinear(32, 10))
	defer nn.Release(m)
	convert := func(recipe nn.Float8Recipe, filter func(string, *nn.Linear) bool) string {
		names, err := nn.ConvertToFloat8Training(m, recipe, filter)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(names)
	}
	all := func(string, *nn.Linear) bool { return true }
	if got := convert(nn.Float8RowWise, nil); got != "[0 2.0]" {
		t.Errorf("the layers of widths that 16 divides are %s", got)
	}
	if s := nn.String(m); strings.Count(s, "bias=True, float8=rowwise)") != 2 || strings.Count(s, "bias=True)") != 1 {
		t.Error(s)
	}
	if got := convert(nn.Float8TensorWise, func(name string, l *nn.Linear) bool { return name == "3" && l.Weight.Size(0) == 10 }); got != "[3]" {
		t.Errorf("the filter chose %s", got)
	}
	c := nn.Clone(m)
	defer nn.Release(c)
	if c.Layers[3].(*nn.Linear).Float8 != nn.Float8TensorWise {
		t.Error("Clone forgets the recipe")
	}
	if got := convert(nn.NoFloat8, all); got != "[0 2.0 3]" || strings.Contains(nn.String(m), "float8") {
		t.Errorf("NoFloat8 was set in %s", got)
	}
	for _, bad := range []nn.Float8Recipe{-1, 4} {
		if _, err := nn.ConvertToFloat8Training(m, bad, all); !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("recipe %d: %v", bad, err)
		}
	}
	inside := nn.NewLinear(16, 16)
	normed := nn.NewSequential(nn.WeightNorm(inside, "weight"))
	defer nn.Release(normed)
	if names, err := nn.ConvertToFloat8Training(normed, nn.Float8RowWise, nil); fmt.Sprint(names) != "[0]" || err != nil || inside.Float8 != nn.Float8RowWise {
		t.Errorf("a Linear with weight norm: %v, %v", names, err)
	}
	if names, err := nn.ConvertToFloat8Training(nil, nn.Float8RowWise, nil); len(names) != 0 || err != nil {
		t.Errorf("nil has the layers %v, %v", names, err)
	}
	broken := nn.NewSequential(&nn.Linear{}, nn.NewLinear(-1, 1))
	if names, err := nn.ConvertToFloat8Training(broken, nn.Float8RowWise, nil); len(names) != 0 || err != nil {
		t.Errorf("layers without weights: %v, %v", names, err)
	}
	if _, err := nn.ConvertToFloat8Training(broken, nn.Float8RowWise, all); err == nil {
		t.Error("a layer that could not be made was converted")
	}
}

// TestFloat8TrainingEdges tests inputs that are not rounded, derivatives of other kinds, and errors.
func TestFloat8TrainingEdges(t *testing.T) {
	leak.Check(t)
	for _, recipe := range recipes {
		l := nn.NewLinear(16, 16)
		l.Float8 = recipe
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{4, 16})
			for what, in := range map[string]*tensor.Tensor{"no rows": tensor.Ones([]int{0, 16}), "the meta device": tensor.Ones([]int{4, 16}, tensor.Meta)} {
				at := l
				if in.Device() == tensor.Meta {
					at = &nn.Linear{Weight: tensor.Ones([]int{16, 16}, tensor.Meta), Float8: recipe}
				}
				if y := at.Forward(in); y.Err() != nil || y.Size(0) != in.Size(0) || y.Size(1) != 16 {
					t.Errorf("%v: %s: %v, %v", recipe, what, y.Shape(), y.Err())
				}
			}
			_, dy, err := autograd.JVP(func(in ...*tensor.Tensor) *tensor.Tensor { return l.Forward(in[0]) },
				[]*tensor.Tensor{x}, []*tensor.Tensor{x.OnesLike()}, autograd.ForwardMode(true))
			if err != nil {
				return err
			}
			golden.Near(t, "a forward derivative", dy.Detach(), data(t, x.OnesLike().Linear(l.Weight, nil).Detach()), 1e-6, 1e-6)
			err = autograd.NoGrad(func() error {
				golden.Near(t, "without a gradient", l.Forward(x), data(t, x.Linear(l.Weight, l.Bias)), 0.2, 0.1)
				return nil
			})
			if err != nil {
				return err
			}
			leaf := x.Detach().RequiresGrad_()
			grads, err := autograd.Grad([]*tensor.Tensor{l.Forward(leaf).Pow(2).Sum()}, []*tensor.Tensor{leaf}, tensor.CreateGraph(true))
			if err == nil {
				err = grads[0].Sum().Backward()
			}
			if err == nil {
				t.Errorf("%v: a second derivative has no error", recipe)
			}
			for what, y := range map[string]*tensor.Tensor{
				"a width": l.Forward(tensor.Ones([]int{2, 3})), "an integer": l.Forward(tensor.Ones([]int{2, 16}, tensor.Int64)), "a scalar": l.Forward(tensor.Ones(nil)),
				"no tensor": l.Forward(nil), "another device": l.Forward(tensor.Ones([]int{2, 16}, tensor.Meta)), "no weight": (&nn.Linear{Float8: recipe}).Forward(x),
				"a vector": (&nn.Linear{Weight: tensor.Ones([]int{16}), Float8: recipe}).Forward(x), "a bias": (&nn.Linear{Weight: l.Weight, Bias: tensor.Ones([]int{3}), Float8: recipe}).Forward(x),
				"integers": (&nn.Linear{Weight: tensor.Ones([]int{2, 16}, tensor.Int64), Float8: recipe}).Forward(x), "a recipe": (&nn.Linear{Weight: l.Weight, Float8: 7}).Forward(x),
			} {
				if y.Err() == nil {
					t.Errorf("%v: %s: no error", recipe, what)
				}
			}
			return nil
		})
		nn.Release(l)
		if err != nil {
			t.Errorf("%v: %v", recipe, err)
		}
	}
}

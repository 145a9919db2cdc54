package autograd_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// deep is a network of square layers, each a product and a ReLU, whose outputs its products save too.
type deep struct{ ws []*tensor.Tensor }

func newDeep(layers, width int, dtype tensor.DType) *deep {
	d := &deep{}
	for i := range layers {
		w := tensor.Eye(width).Add(tensor.Linspace(-0.02, 0.03, width*width).Reshape(width, width).Mul(i%3 - 1)).To(dtype)
		d.ws = append(d.ws, w.Detach().RequiresGrad_().Keep())
	}
	return d
}

// next returns f(), and releases x and what f makes beside its result, as nn.Pipe does: only the graph keeps x.
func next(x *tensor.Tensor, f func() *tensor.Tensor) *tensor.Tensor {
	defer x.Release()
	return tensor.Tidy(f)
}

func (d *deep) release() {
	for _, w := range d.ws {
		w.Release()
	}
}

func (d *deep) forward(x *tensor.Tensor) *tensor.Tensor {
	return tensor.Tidy(func() *tensor.Tensor {
		y := x.Alias()
		for _, w := range d.ws {
			y = next(y, func() *tensor.Tensor { return y.MatMul(w).ReLU() })
		}
		return y.Pow(2).Mean()
	})
}

// train computes the gradients, and returns those of the first weight and the peak of the native bytes.
func (d *deep) train(t *testing.T, batch int, dtype tensor.DType, in func(f func() *tensor.Tensor) *tensor.Tensor) (grad []float64, peak int64) {
	t.Helper()
	err := tensor.WithScope(func() error {
		width := d.ws[0].Size(0)
		x := tensor.Linspace(-1, 2, batch*width).Reshape(batch, width).To(dtype)
		before := liveBytes(t)
		if err := vram.ResetPeak(vram.CPU); err != nil {
			return err
		}
		loss := in(func() *tensor.Tensor { return d.forward(x) })
		if err := loss.Backward(); err != nil {
			return err
		}
		m, err := vram.Stats(vram.CPU)
		if err != nil {
			return err
		}
		peak = m.Peak - before
		grad, err = tensor.Data[float64](d.ws[0].Grad().To(tensor.Float64).Flatten())
		return errors.Join(err, tensor.ZeroGrads(d.ws, true))
	})
	if err != nil {
		t.Fatal(err)
	}
	return grad, peak
}

func plainly(f func() *tensor.Tensor) *tensor.Tensor { return f() }

func saved(p autograd.SavedPolicy) func(f func() *tensor.Tensor) *tensor.Tensor {
	return func(f func() *tensor.Tensor) *tensor.Tensor { return autograd.SavedTensors(p, f) }
}

// distance returns the relative distance of two vectors, NaN if there is none.
func distance(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.NaN()
	}
	var d, n float64
	for i := range a {
		d += (a[i] - b[i]) * (a[i] - b[i])
		n += b[i] * b[i]
	}
	return math.Sqrt(d / n)
}

// TestSavedTensors compares gradients and peaks with those without a policy.
func TestSavedTensors(t *testing.T) {
	leak.Check(t)
	const layers, width, batch = 12, 64, 1024
	d := newDeep(layers, width, tensor.Float32)
	defer d.release()
	want, peak := d.train(t, batch, tensor.Float32, plainly)
	one := int64(batch * width * 4)
	t.Logf("without: %.1f activations at the peak", float64(peak)/float64(one))
	for name, c := range map[string]struct {
		policy autograd.SavedPolicy
		off    float64
		most   float64 // of the peak without
	}{
		"CPU":                  {autograd.SaveOnCPU(), 0, 1.01}, // the tensors are there
		"disk":                 {autograd.SaveOnDisk(t.TempDir()), 0, 0.5},
		"bfloat16":             {autograd.SaveAs(tensor.BFloat16), 1e-2, 0.75},
		"float16":              {autograd.SaveAs(tensor.Float16), 2e-3, 0.75},
		"disk after a half":    {autograd.SaveOnDisk("", autograd.KeepFirst(layers/2*one)), 0, 0.85},
		"disk, too small":      {autograd.SaveOnDisk("", autograd.MinBytes(one+1)), 0, 1.01},
		"bfloat16, all kept":   {autograd.SaveAs(tensor.BFloat16, autograd.KeepFirst(1<<40)), 0, 1.01},
		"disk, every tensor":   {autograd.SaveOnDisk("", autograd.MinBytes(0)), 0, 0.5},
		"pinned, without CUDA": {autograd.SaveOnCPU(autograd.Pinned()), 0, 1.01},
	} {
		grad, p := d.train(t, batch, tensor.Float32, saved(c.policy))
		t.Logf("%s: %.1f activations at the peak, off by %.2g", name, float64(p)/float64(one), distance(grad, want))
		if off := distance(grad, want); !(off <= c.off) {
			t.Errorf("%s: the gradient is off by %v", name, off)
		}
		if float64(p) > c.most*float64(peak) {
			t.Errorf("%s: the peak is %d, without %d", name, p, peak)
		}
	}
}

// Second derivatives, a retained graph, views, strides and integer tensors pass through policies.
func TestSavedTensorsHigherOrder(t *testing.T) {
	leak.Check(t)
	run := func(in func(f func() *tensor.Tensor) *tensor.Tensor) (out []string) {
		err := tensor.WithScope(func() error {
			x := tensor.Linspace(-1, 1, 64*64, tensor.Float64).Reshape(64, 64).RequiresGrad_()
			y := in(func() *tensor.Tensor {
				rows := x.T().Exp().IndexSelect(0, tensor.Arange(0, 32, tensor.Int64))
				return rows.Mul(rows).Narrow(1, 3, 20).Sin().Sum()
			})
			for range 2 {
				g, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
				if err != nil {
					return err
				}
				gg, err := autograd.Grad([]*tensor.Tensor{g[0].Pow(2).Sum()}, []*tensor.Tensor{x}, tensor.RetainGraph(true))
				if err != nil {
					return err
				}
				for _, v := range []*tensor.Tensor{g[0], gg[0]} {
					s, err := v.Detach().Sum().Item()
					if err != nil {
						return err
					}
					out = append(out, fmt.Sprint(s))
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return out
	}
	want := fmt.Sprint(run(plainly))
	for name, p := range map[string]autograd.SavedPolicy{"disk": autograd.SaveOnDisk("", autograd.MinBytes(0)), "CPU": autograd.SaveOnCPU(autograd.MinBytes(0))} {
		if got := fmt.Sprint(run(saved(p))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// A tensor that is changed in place after it was saved: its copy has the value that the pass needs, and a tensor that is kept
// as it is gives an error.
func TestSavedTensorsInPlace(t *testing.T) {
	leak.Check(t)
	run := func(p autograd.SavedPolicy) (sum float64, err error) {
		err = tensor.WithScope(func() error {
			x := tensor.Full([]int{2048}, 3.0).RequiresGrad_()
			a := x.Mul(1)
			y := autograd.SavedTensors(p, func() *tensor.Tensor { return a.Mul(a) })
			if err := a.Detach().Add_(1).Err(); err != nil {
				return err
			}
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			sum, err = x.Grad().Mean().Item()
			return err
		})
		return sum, err
	}
	if sum, err := run(autograd.SaveOnDisk("")); err != nil || sum != 6 {
		t.Errorf("from the disk: %v, %v, want 6", sum, err)
	}
	if _, err := run(autograd.SaveOnDisk("", autograd.MinBytes(1<<20))); err == nil {
		t.Error("a tensor kept as it is and changed in place gives no error")
	}
}

func TestSavedTensorsRefuses(t *testing.T) {
	leak.Check(t)
	one := func() *tensor.Tensor { return tensor.Ones([]int{1}) }
	for name, x := range map[string]*tensor.Tensor{
		"no function":      autograd.SavedTensors(autograd.SaveOnCPU(), nil),
		"no policy":        autograd.SavedTensors(autograd.SavedPolicy{}, one),
		"float32":          autograd.SavedTensors(autograd.SaveAs(tensor.Float32), one),
		"negative size":    autograd.SavedTensors(autograd.SaveOnCPU(autograd.MinBytes(-1)), one),
		"pinned casts":     autograd.SavedTensors(autograd.SaveAs(tensor.BFloat16, autograd.Pinned()), one),
		"pinned files":     autograd.SavedTensors(autograd.SaveOnDisk("", autograd.Pinned()), one),
		"negative budget":  autograd.SavedTensors(autograd.SaveOnCPU(autograd.KeepFirst(-1)), one),
		"no such folder":   autograd.SavedTensors(autograd.SaveOnDisk(filepath.Join(t.TempDir(), "none")), one),
		"no part":          autograd.KeepInCheckpoint(nil),
		"a failed forward": autograd.SavedTensors(autograd.SaveOnCPU(), func() *tensor.Tensor { return one().View(7) }),
	} {
		if x.Err() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	func() {
		defer func() { _ = recover() }()
		autograd.SavedTensors(autograd.SaveOnDisk(""), func() *tensor.Tensor { panic("in the region") })
	}()
	dir := t.TempDir()
	d := newDeep(2, 64, tensor.Float32)
	defer d.release()
	_, _ = d.train(t, 64, tensor.Float32, saved(autograd.SaveOnDisk(dir)))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left in the folder, %v", left, err)
	}
	if err := autograd.NoGrad(func() error {
		return autograd.SavedTensors(autograd.SaveOnDisk("/nowhere"), one).Err()
	}); err != nil {
		t.Errorf("without recording nothing is saved: %v", err)
	}
}

// The inputs of a checkpoint in a region are kept by its policy, and regions in a checkpoint by theirs.
func TestSavedTensorsAndCheckpoint(t *testing.T) {
	leak.Check(t)
	const layers, width, batch = 6, 64, 1024
	d := newDeep(layers, width, tensor.Float32)
	defer d.release()
	block := func(x, w *tensor.Tensor) *tensor.Tensor {
		return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].MatMul(w).Tanh().MatMul(w).Tanh() }, x)
	}
	run := func(outer, inner bool) (grad []float64, peak int64) {
		err := tensor.WithScope(func() error {
			x := tensor.Linspace(-1, 2, batch*width).Reshape(batch, width)
			before := liveBytes(t)
			if err := vram.ResetPeak(vram.CPU); err != nil {
				return err
			}
			forward := func() *tensor.Tensor {
				y := x.Alias()
				for _, w := range d.ws {
					y = next(y, func() *tensor.Tensor {
						if inner {
							return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
								a := autograd.SavedTensors(autograd.SaveOnDisk(""), func() *tensor.Tensor { return in[0].MatMul(w).Tanh() })
								return a.MatMul(w).Tanh()
							}, y)
						}
						return block(y, w)
					})
				}
				return y.Mean()
			}
			loss := forward
			if outer {
				loss = func() *tensor.Tensor { return autograd.SavedTensors(autograd.SaveOnDisk(""), forward) }
			}
			if err := loss().Backward(); err != nil {
				return err
			}
			m, err := vram.Stats(vram.CPU)
			if err != nil {
				return err
			}
			peak = m.Peak - before
			grad, err = tensor.Data[float64](d.ws[0].Grad().To(tensor.Float64).Flatten())
			return errors.Join(err, tensor.ZeroGrads(d.ws, true))
		})
		if err != nil {
			t.Fatal(err)
		}
		return grad, peak
	}
	want, peak := run(false, false)
	for _, c := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		grad, p := run(c[0], c[1])
		if distance(grad, want) != 0 {
			t.Errorf("outer %v, inner %v: the gradient differs", c[0], c[1])
		}
		if c[0] && !c[1] && p >= peak {
			t.Errorf("the peak is %d, without the policy %d", p, peak)
		}
	}
}

// TestKeepInCheckpoint counts how often parts of a checkpointed function run, and compares gradients with those without a
// checkpoint, with dropout in the part and after it.
func TestKeepInCheckpoint(t *testing.T) {
	leak.Check(t)
	calls := 0
	run := func(checkpointed, nested bool, passes int) (grads string) {
		calls = 0
		err := tensor.WithScope(func() error {
			if err := tensor.ManualSeed(3); err != nil {
				return err
			}
			w := tensor.Linspace(-1, 1, 64).Reshape(8, 8).Contiguous().Detach().RequiresGrad_()
			x := tensor.Linspace(0, 1, 16).Reshape(2, 8).Contiguous().Detach().RequiresGrad_()
			part := func(x *tensor.Tensor) *tensor.Tensor {
				return autograd.KeepInCheckpoint(func() *tensor.Tensor {
					calls++
					return x.MatMul(w).Dropout(0.5).Tanh()
				})
			}
			f := func(in ...*tensor.Tensor) *tensor.Tensor {
				y := part(in[0].Exp().Dropout(0.5))
				return part(y.Sin()).MatMul(w).Dropout(0.5).Tanh()
			}
			y := x
			switch {
			case nested:
				y = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return autograd.Checkpoint(f, in[0].Mul(2)).Mul(0.5) }, x)
			case checkpointed:
				y = autograd.Checkpoint(f, x.Mul(2)).Mul(0.5)
			default:
				y = f(x.Mul(2)).Mul(0.5)
			}
			loss := y.Sum()
			for range passes {
				if err := loss.Backward(tensor.RetainGraph(true)); err != nil {
					return err
				}
			}
			a, err := tensor.Data[float32](w.Grad())
			if err != nil {
				return err
			}
			b, err := tensor.Data[float32](x.Grad())
			grads = fmt.Sprint(a, b, tensor.Rand([]int{1}))
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return grads
	}
	for passes := 1; passes <= 2; passes++ {
		want := run(false, false, passes)
		if got := run(true, false, passes); got != want {
			t.Errorf("%d passes: with a checkpoint\n%s\nwithout\n%s", passes, got, want)
		}
		if calls != 2 {
			t.Errorf("%d passes: the parts were called %d times, want 2", passes, calls)
		}
		if got := run(true, true, passes); got != want {
			t.Errorf("%d passes: with nested checkpoints\n%s\nwithout\n%s", passes, got, want)
		}
	}
}

// TestKeptResultsThatCannotBe checks the errors about a kept result that is changed, and about one that the recomputation
// keeps and the first run has not.
func TestKeptResultsThatCannotBe(t *testing.T) {
	leak.Check(t)
	runs := 0
	for want, f := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"a result that the function has kept was changed in place": func(x *tensor.Tensor) *tensor.Tensor {
			return autograd.KeepInCheckpoint(func() *tensor.Tensor { return x.Mul(2) }).Add_(1).Sin()
		},
		"the function has kept more results when it was recomputed than the first time": func(x *tensor.Tensor) *tensor.Tensor {
			for range runs + 1 {
				x = autograd.KeepInCheckpoint(func() *tensor.Tensor { return x.Mul(2) })
			}
			runs++
			return x.Sin()
		},
	} {
		err := tensor.WithScope(func() error {
			x := tensor.Ones([]int{2}).RequiresGrad_()
			return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return f(in[0]) }, x).Sum().Backward()
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one with %q", err, want)
		}
	}
}

// TestPassThroughAKeptResult tests a checkpointed function that starts a backward pass itself: through a kept result, whose
// graph the recomputation does not have, the gradients would be wrong.
func TestPassThroughAKeptResult(t *testing.T) {
	leak.Check(t)
	// run returns the gradient of the square of the derivative of through(3x) + x².
	run := func(keep bool, through func(k *tensor.Tensor) *tensor.Tensor) (grad []float64, err error) {
		err = tensor.WithScope(func() error {
			x := tensor.FromSlice([]float64{1, 2}, nil).RequiresGrad_()
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				x := in[0]
				k := x.Mul(3)
				if keep {
					k = autograd.KeepInCheckpoint(func() *tensor.Tensor { return x.Mul(3) })
				}
				gs, err := autograd.Grad([]*tensor.Tensor{through(k).Add(x.Mul(x)).Sum()}, []*tensor.Tensor{x}, tensor.CreateGraph(true))
				if err != nil {
					return tensor.Failed(err)
				}
				return gs[0].Mul(gs[0])
			}, x)
			if err := y.Sum().Backward(); err != nil {
				return err
			}
			grad, err = tensor.Data[float64](x.Grad())
			return err
		})
		return grad, err
	}
	same := func(k *tensor.Tensor) *tensor.Tensor { return k.Mul(1) }
	if got, err := run(false, same); err != nil || fmt.Sprint(got) != "[20 28]" {
		t.Errorf("without a kept part: %v, %v", got, err)
	}
	if got, err := run(true, same); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "a backward pass through a result that it has kept") {
		t.Errorf("through a kept result: %v, %v", got, err)
	}
	if got, err := run(true, (*tensor.Tensor).Detach); err != nil || fmt.Sprint(got) != "[8 16]" {
		t.Errorf("beside a kept result: %v, %v", got, err)
	}
}

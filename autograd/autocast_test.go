package autograd_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// bf16 runs f with autocast to bfloat16 on the CPU.
func bf16(f func() *tensor.Tensor) *tensor.Tensor {
	return autograd.Autocast(tensor.CPUType, tensor.BFloat16, f)
}

func TestAutocastNests(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		a := tensor.Ones([]int{2, 2})
		want := func(dtype tensor.DType) {
			t.Helper()
			if got := a.MatMul(a).DType(); got != dtype {
				t.Errorf("a product is %v, want %v", got, dtype)
			}
			if got := autograd.AutocastDType(tensor.CPUType); got != dtype {
				t.Errorf("AutocastDType is %v, want %v", got, dtype)
			}
		}
		in := func(dtype tensor.DType, f func()) {
			t.Helper()
			if err := autograd.WithAutocast(tensor.CPUType, dtype, func() error { f(); return nil }); err != nil {
				t.Error(err)
			}
		}
		want(tensor.Float32)
		in(tensor.BFloat16, func() {
			want(tensor.BFloat16)
			in(tensor.Float32, func() {
				want(tensor.Float32)
				in(tensor.Float16, func() { want(tensor.Float16) })
			})
			if got := autograd.AutocastDType(tensor.CUDAType); got != tensor.Float32 {
				t.Errorf("another device type casts to %v", got)
			}
			done := make(chan tensor.DType)
			go func() { done <- autograd.AutocastDType(tensor.CPUType) }()
			if got := <-done; got != tensor.Float32 {
				t.Errorf("a goroutine that the region starts casts to %v", got)
			}
			want(tensor.BFloat16)
		})
		func() {
			defer func() { _ = recover() }()
			in(tensor.BFloat16, func() { panic("in a region") })
		}()
		want(tensor.Float32)
		if !autograd.AutocastAvailable(tensor.CPUType) || !autograd.AutocastAvailable(tensor.CUDAType) || autograd.AutocastAvailable(tensor.MetaType) {
			t.Error("autocast is available for the CPU and CUDA, and not for meta")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAutocastRefuses(t *testing.T) {
	leak.Check(t)
	one := func() *tensor.Tensor { return tensor.Ones([]int{1}) }
	for name, err := range map[string]error{
		"no function":       autograd.Autocast(tensor.CPUType, tensor.BFloat16, nil).Err(),
		"no function, with": autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, nil),
		"int64":             autograd.Autocast(tensor.CPUType, tensor.Int64, one).Err(),
		"float64":           autograd.Autocast(tensor.CPUType, tensor.Float64, one).Err(),
		"meta":              autograd.Autocast(tensor.MetaType, tensor.BFloat16, one).Err(),
		"device -1":         autograd.Autocast(-1, tensor.BFloat16, one).Err(),
		"device 99":         autograd.Autocast(99, tensor.Float32, one).Err(),
	} {
		if !errors.Is(err, tensor.ErrArgument) && !errors.Is(err, tensor.ErrNil) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out := bf16(func() *tensor.Tensor { return nil }); out != nil {
		t.Errorf("a function without a result returns %v", out)
	}
}

// TestAutocastDTypes compares the dtypes of results with PyTorch's.
func TestAutocastDTypes(t *testing.T) {
	leak.Check(t)
	var file struct {
		DTypes map[string]struct {
			Args   [][]string
			DTypes []string
		}
	}
	golden.Read(t, "autocast.json", &file)
	for name, c := range file.DTypes {
		for i, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float16} {
			err := tensor.WithScope(func() error {
				return autograd.WithAutocast(tensor.CPUType, dtype, func() error {
					var args []any
					for _, a := range c.Args {
						kind, shape := tensor.Float32, a
						switch a[0] {
						case "int":
							kind, shape = tensor.Int64, a[1:]
						case "half":
							kind, shape = dtype, a[1:]
						}
						var sizes []int
						for _, s := range shape {
							n, err := strconv.Atoi(s)
							if err != nil {
								return err
							}
							sizes = append(sizes, n)
						}
						value := 0.5
						if kind == tensor.Int64 {
							value = 0
						}
						args = append(args, tensor.Full(sizes, value, kind))
					}
					out, err := tensor.Call(name, args...)
					if err != nil {
						return err
					}
					if got := fmt.Sprint(out[0].(*tensor.Tensor).DType()); got != c.DTypes[i] {
						t.Errorf("%s under %v returns %s, PyTorch %s", name, dtype, got, c.DTypes[i])
					}
					return nil
				})
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if len(file.DTypes) < 25 {
		t.Errorf("%d operators", len(file.DTypes))
	}
}

// liveBytes returns the native bytes that are in use.
func liveBytes(t *testing.T) int64 {
	t.Helper()
	m, err := vram.Stats(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return m.Requested
}

// casts returns how many bfloat16 copies of w, which is by far the largest tensor, the graph of f(w, x) holds.
func casts(t *testing.T, f func(w, x *tensor.Tensor) *tensor.Tensor) (live int64) {
	t.Helper()
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w := tensor.Ones([]int{256, 256}).RequiresGrad_()
		x := tensor.Ones([]int{1, 256})
		before := liveBytes(t)
		y := f(w, x)
		if err := y.Err(); err != nil {
			return err
		}
		live = (liveBytes(t) - before) / (256 * 256 * 2)
		return y.To(tensor.Float32).Sum().Backward()
	})
	if err != nil {
		t.Error(err)
	}
	return live
}

// A weight is cast once in a region, however often it is used, and again after it may have changed.
func TestAutocastCastsOnce(t *testing.T) {
	product := func(w, x *tensor.Tensor) *tensor.Tensor { return x.MatMul(w) }
	twice := func(between func(w *tensor.Tensor) error) func(w, x *tensor.Tensor) *tensor.Tensor {
		return func(w, x *tensor.Tensor) *tensor.Tensor {
			return bf16(func() *tensor.Tensor {
				y := product(w, product(w, x))
				if err := between(w); err != nil {
					return tensor.Failed(err)
				}
				return product(w, product(w, y))
			})
		}
	}
	nothing := func(*tensor.Tensor) error { return nil }
	noGrad := func(*tensor.Tensor) error { return autograd.NoGrad(func() error { return nil }) }
	for name, c := range map[string]struct {
		f    func(w, x *tensor.Tensor) *tensor.Tensor
		want int64
	}{
		"once":             {twice(nothing), 1},
		"after NoGrad":     {twice(noGrad), 2},
		"after EnableGrad": {twice(func(*tensor.Tensor) error { return autograd.EnableGrad(func() error { return nil }) }), 1},
		"after a region":   {func(w, x *tensor.Tensor) *tensor.Tensor { return twice(nothing)(w, twice(nothing)(w, x)) }, 2},
		"nested, same dtype": {twice(func(w *tensor.Tensor) error {
			return autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error { return nil })
		}), 1},
		"nested, off": {twice(func(w *tensor.Tensor) error {
			return autograd.WithAutocast(tensor.CPUType, tensor.Float32, func() error { return nil })
		}), 1},
		"after a Function": {twice(func(w *tensor.Tensor) error {
			_, err := autograd.Apply(Exp{}, tensor.Ones([]int{1}))
			return err
		}), 1},
	} {
		if got := casts(t, c.f); got != c.want {
			t.Errorf("%s: %d casts are kept, want %d", name, got, c.want)
		}
	}
}

// The casts of leaves that belong to the steps of a region are dropped before an allocation fails.
func TestAutocastForgetsLeaves(t *testing.T) {
	leak.Check(t)
	w := tensor.Ones([]int{64, 64}).RequiresGrad_()
	defer w.Release()
	if err := vram.SetLimit(vram.CPU, vram.Bytes(liveBytes(t)+2<<20)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = vram.SetLimit(vram.CPU, vram.Share(0.9)) }()
	err := autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
		for i := range 200 { // each keeps 24 KiB
			if err := tensor.WithScope(func() error {
				x := tensor.Ones([]int{64, 64}).RequiresGrad_()
				_, err := autograd.Grad([]*tensor.Tensor{x.MatMul(w).Sum()}, []*tensor.Tensor{x})
				return err
			}); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A cast that does not fit waits for a sweep, which forgets other casts and calls reclaimers. If that makes no room, it
// fails in the usual time.
func TestAutocastCastThatDoesNotFit(t *testing.T) {
	const n, mib = 2048, 1 << 20 // a weight has 16 MiB, its cast 8
	for name, c := range map[string]struct {
		cached, spare bool
		want          error
	}{
		"a cast that is kept": {true, false, nil},
		"a reclaimer":         {false, true, nil},
		"nothing":             {false, false, tensor.ErrOutOfMemory},
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			defer func() { _ = vram.SetLimit(vram.CPU, vram.Share(0.9)) }()
			other, w := tensor.Ones([]int{n, n}).RequiresGrad_(), tensor.Ones([]int{n, n}).RequiresGrad_()
			x, spare := tensor.Ones([]int{1, n}), tensor.Ones([]int{n, n})
			defer func() {
				for _, x := range []*tensor.Tensor{other, w, x, spare} {
					x.Release()
				}
			}()
			if c.spare {
				defer vram.Register(vram.Reclaimer{Name: "test", Reclaim: func(int64) { spare.Release() }})()
			}
			var took time.Duration
			err := autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
				if c.cached {
					if err := tensor.WithScope(func() error { return x.MatMul(other).Err() }); err != nil {
						return err
					}
				}
				if err := vram.SetLimit(vram.CPU, vram.Bytes(liveBytes(t)+4*mib)); err != nil {
					return err
				}
				start := time.Now()
				y := x.MatMul(w)
				defer y.Release()
				took = time.Since(start)
				return y.Err()
			})
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// The gradient of a weight does not miss the uses after a cast that was not recorded.
func TestAutocastGradientAfterUnrecordedCast(t *testing.T) {
	leak.Check(t)
	unrecorded := map[string]func(w, x *tensor.Tensor) error{
		"NoGrad":    func(w, x *tensor.Tensor) error { return autograd.NoGrad(func() error { return x.MatMul(w).Err() }) },
		"Inference": func(w, x *tensor.Tensor) error { return autograd.Inference(func() error { return x.MatMul(w).Err() }) },
		"Backward": func(w, x *tensor.Tensor) error {
			var y *tensor.Tensor
			err := autograd.WithAutocast(tensor.CPUType, tensor.Float32, func() error {
				y = x.Detach().RequiresGrad_().MatMul(w).Sum()
				return y.Err()
			})
			if err != nil {
				return err
			}
			_, err = autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{w})
			return err
		},
	}
	for name, f := range unrecorded {
		err := tensor.WithScope(func() error {
			w, x := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{2, 4})
			y := bf16(func() *tensor.Tensor {
				if err := f(w, x); err != nil {
					return tensor.Failed(err)
				}
				return x.MatMul(w)
			})
			if err := y.To(tensor.Float32).Sum().Backward(); err != nil {
				return err
			}
			g := w.Grad()
			if g == nil || g.DType() != tensor.Float32 {
				t.Errorf("%s: the gradient is %v", name, g)
				return nil
			}
			sum, err := g.Sum().Item()
			if sum != 32 {
				t.Errorf("%s: the gradient's sum is %v, want 32", name, sum)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A change of a weight in a region is seen.
func TestAutocastSeesChangedWeights(t *testing.T) {
	leak.Check(t)
	for name, inside := range map[string]func(change, read func() error) error{
		"after NoGrad": func(change, read func() error) error { return errors.Join(autograd.NoGrad(change), read()) },
		"in EnableGrad": func(change, read func() error) error {
			return autograd.NoGrad(func() error { return errors.Join(change(), autograd.EnableGrad(read)) })
		},
	} {
		err := tensor.WithScope(func() error {
			w, x := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{1, 4})
			var before, after float64
			err := autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() (err error) {
				if before, err = x.MatMul(w).Sum().Item(); err != nil {
					return err
				}
				return inside(func() error { return w.Mul_(2).Err() }, func() (err error) {
					after, err = x.MatMul(w).Sum().Item()
					return err
				})
			})
			if before != 16 || after != 32 {
				t.Errorf("%s: %v before, %v after, want 16 and 32", name, before, after)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// So is a change in a function that is computed again, when no goroutine is in a region.
func TestAutocastCheckpointChangesWeights(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w, x := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{1, 4}).RequiresGrad_()
		set := func(v float64) error { return autograd.NoGrad(func() error { return w.Fill_(v).Err() }) }
		y := bf16(func() *tensor.Tensor {
			return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				if err := set(1); err != nil {
					return tensor.Failed(err)
				}
				u := in[0].MatMul(w)
				if err := set(3); err != nil {
					return tensor.Failed(err)
				}
				return u.MatMul(w)
			}, x)
		})
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		g, err := tensor.Data[float32](x.Grad())
		if err == nil && g[0] != 4*3*4*1 {
			t.Errorf("the gradient is %v, want 48", g)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// passesWithin returns a tensor whose backward pass runs others within each other, depth with itself, of which the
// innermost one calls f.
func passesWithin(depth int, f func() error) *tensor.Tensor {
	var root *tensor.Tensor
	for range depth {
		l, inner := tensor.Ones([]int{1}).RequiresGrad_(), f
		if _, err := l.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, inner() }); err != nil {
			return tensor.Failed(err)
		}
		y := l.Sum()
		root, f = y, func() error { return y.Backward() }
	}
	return root
}

// And so is a change by a hook on a thread of the engine: that of a CUDA device or, as here, that of a pass within more
// than 60 others.
func TestAutocastSeesWeightsThatHooksChange(t *testing.T) {
	const deep = 62
	if err := tensor.WithScope(func() error {
		// The thread counts as a goroutine once it has called Go.
		return passesWithin(deep, func() error { return nil }).Backward()
	}); err != nil {
		t.Fatal(err)
	}
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w, x := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{1, 4})
		for _, depth := range []int{1, deep} {
			root := passesWithin(depth, func() error {
				return autograd.NoGrad(func() error { return w.Mul_(2).Err() })
			})
			err := autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
				before, err := x.MatMul(w).Sum().Item()
				if err != nil {
					return err
				}
				if err := root.Backward(); err != nil {
					return err
				}
				after, err := x.MatMul(w).Sum().Item()
				if after != 2*before {
					t.Errorf("in %d passes: %v before, %v after, want twice as much", depth, before, after)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Regions of two goroutines that share a weight, at the same time and with different dtypes.
func TestAutocastGoroutines(t *testing.T) {
	leak.Check(t)
	w := tensor.Ones([]int{8, 8}).RequiresGrad_().Keep()
	defer w.Release()
	errs := make(chan error)
	for i := range 4 {
		dtype := []tensor.DType{tensor.BFloat16, tensor.Float16}[i%2]
		go func() {
			errs <- func() error {
				for range 50 {
					err := tensor.WithScope(func() error {
						x := tensor.Ones([]int{2, 8})
						return autograd.WithAutocast(tensor.CPUType, dtype, func() error {
							for range 3 {
								if y := x.MatMul(w); y.Err() != nil || y.DType() != dtype {
									return fmt.Errorf("%v: %v %v", dtype, y.DType(), y.Err())
								}
							}
							return nil
						})
					})
					if err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A region of one device type does not let a region of another one use casts if that one must not, because a region
// that casts to another dtype uses them.
func TestAutocastOfSeveralDeviceTypes(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		w, v := tensor.Ones([]int{4, 4}).RequiresGrad_(), tensor.Ones([]int{4, 4}).RequiresGrad_()
		product := func() *tensor.Tensor { return w.MatMul(v) }
		both := func(f func() *tensor.Tensor) *tensor.Tensor {
			return bf16(func() *tensor.Tensor { return autograd.Autocast(tensor.CUDAType, tensor.BFloat16, f) })
		}
		want := func(where string, y *tensor.Tensor, dtype tensor.DType) {
			t.Helper()
			if y.Err() != nil || y.DType() != dtype {
				t.Errorf("%s: a product is %v, %v, want %v", where, y.DType(), y.Err(), dtype)
			}
		}
		checkpointed := both(func() *tensor.Tensor {
			return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor { return in[0].MatMul(w).MatMul(v) }, tensor.Ones([]int{1, 4}))
		})
		return autograd.WithAutocast(tensor.CPUType, tensor.Float16, func() error {
			want("before", product(), tensor.Float16)
			want("in regions of two types", both(product), tensor.BFloat16)
			if err := checkpointed.Sum().Backward(); err != nil {
				t.Errorf("a recomputation in regions of two types: %v", err)
			}
			want("between", product(), tensor.Float16)
			computed, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				_ = tensor.WithScope(func() error {
					return both(func() *tensor.Tensor {
						y := product()
						want("on a goroutine", y, tensor.BFloat16)
						computed <- struct{}{}
						<-computed
						return y
					}).Err()
				})
			}()
			<-computed
			want("beside a goroutine", product(), tensor.Float16)
			computed <- struct{}{}
			<-done
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A checkpointed function is computed again in the regions of the forward pass.
func TestAutocastCheckpoint(t *testing.T) {
	leak.Check(t)
	gradient := func(checkpointed, backwardInside bool, dtype tensor.DType) (out []float32) {
		err := tensor.WithScope(func() error {
			w, x := tensor.Linspace(-1, 1, 64).Reshape(8, 8).RequiresGrad_(), tensor.Linspace(0, 1, 16).Reshape(2, 8)
			w = w.Detach().RequiresGrad_()
			block := func(in ...*tensor.Tensor) *tensor.Tensor {
				return in[0].MatMul(w).Tanh().MatMul(w)
			}
			var y *tensor.Tensor
			err := autograd.WithAutocast(tensor.CPUType, dtype, func() error {
				if checkpointed {
					y = autograd.Checkpoint(block, x)
				} else {
					y = block(x)
				}
				return y.Err()
			})
			if err != nil {
				return err
			}
			backward := func() error { return y.To(tensor.Float32).Sum().Backward() }
			if backwardInside {
				err = autograd.WithAutocast(tensor.CPUType, tensor.Float16, func() error {
					return autograd.WithAutocast(tensor.CPUType, tensor.Float32, backward)
				})
			} else {
				err = backward()
			}
			if err != nil {
				return err
			}
			out, err = tensor.Data[float32](w.Grad())
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return out
	}
	for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float16, tensor.Float32} {
		want := fmt.Sprint(gradient(false, false, dtype))
		for _, inside := range []bool{false, true} {
			if got := fmt.Sprint(gradient(true, inside, dtype)); got != want {
				t.Errorf("%v: the gradient is %s, without a checkpoint %s", dtype, got, want)
			}
		}
	}
}

// recorder is the identity. It reports the autocast dtypes of its forward and backward.
type recorder struct{ forward, backward tensor.DType }

func (r *recorder) Forward(_ *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	r.forward = autograd.AutocastDType(tensor.CPUType)
	return []*tensor.Tensor{in[0].Clone()}, nil
}

func (r *recorder) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	r.backward = autograd.AutocastDType(tensor.CPUType)
	return grads, nil
}

func TestAutocastFunction(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct{ forward, backward tensor.DType }{
		{tensor.BFloat16, tensor.Float32}, {tensor.Float16, tensor.BFloat16}, {tensor.Float32, tensor.BFloat16},
	} {
		r := &recorder{}
		err := tensor.WithScope(func() error {
			x := tensor.Ones([]int{2}).RequiresGrad_()
			y := autograd.Autocast(tensor.CPUType, c.forward, func() *tensor.Tensor {
				out, err := autograd.Apply(r, x)
				if err != nil {
					return tensor.Failed(err)
				}
				return out[0]
			})
			return autograd.WithAutocast(tensor.CPUType, c.backward, func() error { return y.Sum().Backward() })
		})
		if err != nil {
			t.Error(err)
		}
		if r.forward != c.forward || r.backward != c.forward {
			t.Errorf("Forward in %v ran in %v, its Backward called in %v ran in %v", c.forward, r.forward, c.backward, r.backward)
		}
	}
}

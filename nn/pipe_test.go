package nn_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// keeper returns a tensor that it owns.
type keeper struct{ T *tensor.Tensor }

func (k *keeper) Forward(*tensor.Tensor) *tensor.Tensor { return k.T } //linstockvet:ignore layercontract a layer that breaks the contract is what Pipe is tested with

// storing keeps its input, an intermediate result and its output.
type storing struct{ In, Made, Out *tensor.Tensor }

func (s *storing) Forward(x *tensor.Tensor) *tensor.Tensor {
	s.In, s.Made = x, x.Add(1) //linstockvet:ignore layercontract a layer that breaks the contract is what Pipe is tested with
	s.Out = s.Made.Mul(2)
	return s.Out //linstockvet:ignore layercontract a layer that breaks the contract is what Pipe is tested with
}

// embedding has the method of a library layer but is a user-defined type.
type embedding struct {
	*nn.Tanh
	In *tensor.Tensor
}

func (e *embedding) Forward(x *tensor.Tensor) *tensor.Tensor {
	e.In = x //linstockvet:ignore layercontract a layer that breaks the contract is what Pipe is tested with
	return e.Tanh.Forward(x)
}

// doubling and halving keep the contract of nn.Layer.
type doubling struct{ n int }

func (d *doubling) Forward(x *tensor.Tensor) *tensor.Tensor {
	if d.n%3 == 0 {
		d.n++
		return x
	}
	d.n++
	return x.Mul(2)
}

type halving struct{}

func (halving) Forward(x *tensor.Tensor) *tensor.Tensor { return x.Div(2) }

// TestPipeKeepsTensorsThatUserCodeHasSeen tests that a tensor that user code could have seen in Sequential, Pipe and
// Residual stays usable until its scope closes or, outside every scope, while it is reachable.
func TestPipeKeepsTensorsThatUserCodeHasSeen(t *testing.T) {
	leak.Check(t)
	var seen []*tensor.Tensor
	tap := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { seen = append(seen, x); return x })
	onward := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { seen = append(seen, x); return x.Mul(1) })
	var skipped *tensor.Tensor
	from := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { skipped = x; return x })
	to := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { seen = append(seen, skipped); return x.Add(skipped) })
	tanh, id := &nn.Tanh{}, &nn.Identity{}
	first, last := nn.NewLinear(3, 3), nn.NewLinear(3, 3)
	defer nn.Release(first)
	defer nn.Release(last)
	store, inner := &storing{}, &embedding{Tanh: tanh}
	for name, layers := range map[string][]nn.Layer{
		"a tap":                         {first, tap, last},
		"a tap between taps":            {tap, tanh, tap, tanh, tap},
		"taps that compute":             {onward, tanh, onward, onward, tanh},
		"a tap behind Identity":         {tanh, id, tap, id, tanh},
		"a tap before Identity":         {tanh, tap, id, tanh, tanh},
		"a skip connection":             {first, from, tanh, last, to, tanh},
		"a nested Sequential":           {first, nn.NewSequential(tanh, nn.NewSequential(), nn.NewSequential(tanh, tap), tanh), last},
		"the end of a nested one":       {first, nn.NewSequential(nn.NewSequential(tanh, onward)), last},
		"a layer that stores":           {first, store, last},
		"a stored result at the end":    {first, tanh, store},
		"a struct that embeds a layer":  {first, inner, last},
		"a Pipe in a Func":              {first, nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return nn.Pipe(x, tanh, tap, tanh) }), last},
		"a Residual in a Func, tapped":  {first, nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, tanh, tap) }), tap, last},
		"library layers around nothing": {tanh, tanh, tanh, tap},
	} {
		for how, run := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
			"Pipe":       func(x *tensor.Tensor) *tensor.Tensor { return nn.Pipe(x, layers...) },
			"Sequential": func(x *tensor.Tensor) *tensor.Tensor { return nn.NewSequential(layers...).Forward(x) },
			"Residual":   func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, layers...) },
		} {
			check := func() error {
				seen = nil
				*store, inner.In = storing{}, nil
				x := tensor.Linspace(-1, 1, 6).View(2, 3)
				y := run(x)
				seen = append(seen, x, y) //linstockvet:ignore scopeescape read before the scope closes
				for _, s := range []*tensor.Tensor{store.In, store.Made, store.Out, inner.In} {
					if s != nil {
						seen = append(seen, s)
					}
				}
				if len(seen) < 3 {
					return errors.New("nothing was seen")
				}
				for i, s := range seen {
					if _, err := tensor.Data[float32](s); err != nil {
						return fmt.Errorf("tensor %d: %w", i, err)
					}
				}
				return nil
			}
			if err := tensor.WithScope(check); err != nil {
				t.Errorf("%s of %s, in a scope: %v", how, name, err)
			}
			if err := check(); err != nil {
				t.Errorf("%s of %s, in no scope: %v", how, name, err)
			}
		}
	}
	seen, skipped, *store, inner.In = nil, nil, storing{}, nil
}

// TestPipeFreesIntermediates tests that an intermediate result between layers that borrow their argument is freed as soon as
// it has been used: at most two are alive at a time.
func TestPipeFreesIntermediates(t *testing.T) {
	leak.Check(t)
	const one = 4 << 20
	plain := make([]nn.Layer, 20)
	for i := range plain {
		plain[i] = &nn.Tanh{}
	}
	plain[7], plain[12] = &nn.Identity{}, &nn.Dropout{}
	// As "linstock go" does where it compiles these layers.
	tensor.LastUseLayer[doubling]()
	tensor.LastUseLayer[halving]()
	own := []nn.Layer{&doubling{}, &doubling{}, &nn.Tanh{}, &doubling{}, halving{}, &halving{}, &nn.Identity{}, &doubling{}, halving{}}
	nested := nn.NewSequential(nn.NewSequential(plain[:3]...), nn.NewSequential(nn.NewSequential(plain[3:15]...), plain[15]), plain[16])
	nn.Eval(plain)
	for name, run := range map[string]func(x *tensor.Tensor) *tensor.Tensor{
		"Pipe":                func(x *tensor.Tensor) *tensor.Tensor { return nn.Pipe(x, plain...) },
		"Sequential":          nn.NewSequential(plain...).Forward,
		"a nested Sequential": nested.Forward,
		"user-defined layers": nn.NewSequential(append(own, nn.NewSequential(own...))...).Forward,
		"Residual":            func(x *tensor.Tensor) *tensor.Tensor { return nn.Residual(x, plain...) },
	} {
		within := func() error {
			return autograd.NoGrad(func() error {
				x := tensor.Ones([]int{one / 4})
				defer x.Release()
				memory := func() vram.Memory {
					m, err := vram.Stats(vram.CPU)
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
				before := memory().Allocated
				if err := vram.ResetPeak(vram.CPU); err != nil {
					return err
				}
				y := run(x)
				defer y.Release()
				if n := memory().Peak - before; n > 2*one+one/8 {
					t.Errorf("%s: %d KiB beside the input, two of %d are needed", name, n>>10, one>>10)
				}
				if n := memory().Allocated - before; n > one+one/8 {
					t.Errorf("%s leaves %d KiB, one tensor of %d is its result", name, n>>10, one>>10)
				}
				return y.Err()
			})
		}
		if err := errors.Join(tensor.WithScope(within), within()); err != nil {
			t.Error(err)
		}
	}
}

// withPeak returns the result of f, and the peak of the CPU's live bytes meanwhile, less those before.
func withPeak(f func() *tensor.Tensor) (y *tensor.Tensor, peak int64, err error) {
	before, err := vram.Stats(vram.CPU)
	if err != nil {
		return nil, 0, err
	}
	if err := vram.ResetPeak(vram.CPU); err != nil {
		return nil, 0, err
	}
	y = f()
	after, err := vram.Stats(vram.CPU)
	return y, after.Peak - before.Allocated, err
}

// TestTransformerWithoutGradients tests that the activation of a transformer layer works in place while gradients are off, as
// the peak of PyTorch's fused layer needs.
func TestTransformerWithoutGradients(t *testing.T) {
	leak.Check(t)
	const wide = 4 << 20 // of the result of Linear1
	for _, name := range []string{"relu", "gelu"} {
		l := nn.NewTransformerEncoderLayer(64, 2, nn.FeedForward(1024), nn.BatchFirst(), nn.Activation(name))
		nn.Eval(l)
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{16, wide / 16 / 4 / 1024, 64})
			want := l.Forward(x)
			return autograd.NoGrad(func() error {
				got, peak, err := withPeak(func() *tensor.Tensor { return l.Forward(x) })
				if err != nil {
					return err
				}
				if peak > wide*3/2 {
					t.Errorf("%s: the peak is %d KiB, Linear1 returns %d", name, peak>>10, wide>>10)
				}
				if same, err := tensor.Item[bool](got.Eq(want).All()); err != nil || !same {
					t.Errorf("%s: the result differs without gradients: %v", name, err)
				}
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		nn.Release(l)
	}
}

// TestPipeDoesNotHoldItsInput tests that a sweep frees x when only Pipe still refers to it.
func TestPipeDoesNotHoldItsInput(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		outer := tensor.CurrentScope()
		before := outer.Len()
		sweep := nn.Func(func(x *tensor.Tensor) *tensor.Tensor {
			if err := vram.Collect(); err != nil {
				t.Error(err)
			}
			// One tensor may be left: this function's argument.
			if n := outer.Len(); n > before+1 {
				t.Errorf("Pipe holds its input after the first layer: %d tensors, %d before", n, before)
			}
			return x.Mul(1)
		})
		two := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x.Add(1).Mul(2) })
		// Received from a channel, the input has no other holder. A temporary would: linstock go holds it until Pipe returns.
		input := make(chan *tensor.Tensor, 1)
		input <- tensor.Ones([]int{3})
		return nn.Pipe(<-input, nn.NewSequential(two, sweep)).Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPipe tests the results of Pipe, Sequential and Residual.
func TestPipe(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 3})
		double := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x.Mul(2) })
		note := nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x })
		y := nn.Pipe(x, note, double, nn.NewSequential(double, nn.NewSequential(), note), &nn.Flatten{}, &nn.Identity{})
		if v, err := y.Sum().Item(); v != 24 || err != nil || y.Numel() != 6 {
			t.Errorf("%v, %v", v, err)
		}
		endless := nn.NewSequential(double)
		endless.Layers = append(endless.Layers, endless)
		for _, y := range []*tensor.Tensor{endless.Forward(x), nn.Residual(x, endless)} {
			if !errors.Is(y.Err(), tensor.ErrArgument) {
				t.Errorf("a Sequential that contains itself returns %v", y.Err())
			}
		}
		if nn.Pipe(x) != x || nn.Pipe(x, &nn.Identity{}, note) != x || nn.NewSequential().Forward(x) != x {
			t.Error("Pipe without layers does not return x")
		}
		own := tensor.Ones([]int{2, 3})
		if z := nn.Pipe(x, &keeper{own}, double, &nn.Tanh{}); z.Err() != nil || own.DType() == tensor.Invalid {
			t.Error("Pipe freed what a layer owns")
		}
		if z := nn.Pipe(x, double, &keeper{own}, &nn.Identity{}); z != own {
			t.Error("Pipe does not return what the layer returned")
		}
		r := nn.Residual(x, double, double)
		if v, err := r.Sum().Item(); v != 30 || err != nil {
			t.Errorf("Residual returns %v, %v", v, err)
		}
		if v, err := nn.Residual(x).Sum().Item(); v != 12 || err != nil {
			t.Errorf("Residual without layers returns %v, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

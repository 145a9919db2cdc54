package nn

import (
	"errors"
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// builder is the state of a constructor: its options and the tensors it has made. After the first error its methods do
// nothing, and done frees the tensors, so that a constructor needs no error handling between its steps.
type builder struct {
	settings
	op   string
	made []*tensor.Tensor
	err  error
}

// build applies opts for the constructor op, which accepts the options named in known.
func build(op string, opts []Option, known ...string) *builder {
	b := &builder{op: op, settings: settings{
		dtype: tensor.DefaultDType(), device: defaultDevice(), groups: 1, paddingIdx: -1, layers: 1, encoders: 6, decoders: 6, hidden: 2048, normType: 2, bagMode: "mean", eps: 1e-5, momentum: 0.1, iterations: 1, divValue: 4, base: 10000}}
	for _, o := range opts {
		if b.err = refuse.Option(op, o.name, known); b.err != nil {
			break
		}
		o.set(&b.settings)
	}
	if !b.dtype.IsFloat() && !b.dtype.IsComplex() && b.dtype != tensor.Invalid {
		b.fail("parameters cannot be %v", b.dtype)
	}
	return b
}

// defaultDevice is where parameters go without the option Device: the CPU but in tests.
func defaultDevice() tensor.Device {
	if testdevice.On {
		if d, err := tensor.ParseDevice(testdevice.Name()); err == nil {
			return d
		}
	}
	return tensor.CPU
}

// fail records an error about an argument, unless there is one already.
func (b *builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = refuse.Error(b.op, tensor.ErrArgument, format, args...)
	}
}

// note records another function's error under the constructor's name.
func (b *builder) note(err error) {
	if err == nil || b.err != nil {
		return
	}
	var e *tensor.Error
	if !errors.As(err, &e) {
		b.err = refuse.Error(b.op, err, "%v", err)
		return
	}
	named := *e
	named.Op = b.op
	if e.Op != "" && e.Op != b.op {
		named.Message = e.Op + ": " + e.Message
	}
	b.err = &named
}

// maxSize bounds a dimension, so that a product of a few sizes cannot overflow.
const maxSize = 1 << 40

// sizes checks dimensions, given as pairs of a name and an int.
func (b *builder) sizes(named ...any) { b.within(1, "positive", named) }

// features checks numbers of features, which may be 0.
func (b *builder) features(named ...any) { b.within(0, "at least 0", named) }

func (b *builder) within(least int, text string, named []any) {
	for i := 0; i+1 < len(named); i += 2 {
		if n := named[i+1].(int); n < least || n > maxSize {
			b.fail("%s must be %s and no larger than 2^40, got %d", named[i], text, n)
		}
	}
}

// spread returns n numbers from a list of one or n, and checks that each is at least low.
func (b *builder) spread(name string, v []int, n, byDefault, low int) []int {
	out := make([]int, n)
	for i := range out {
		switch {
		case len(v) == 0:
			out[i] = byDefault
		case len(v) == 1:
			out[i] = v[0]
		case len(v) == n:
			out[i] = v[i]
		default:
			b.fail("%s takes 1 or %d numbers, got %d", name, n, len(v))
			return nil
		}
	}
	for _, k := range out {
		if k < low || k > maxSize {
			b.fail("%s must be at least %d and no larger than 2^40, got %v", name, low, out)
		}
	}
	return out
}

func (b *builder) probability(name string, p float64) {
	if !(p >= 0 && p <= 1) {
		b.fail("%s must be in [0, 1], got %v", name, p)
	}
}

func (b *builder) positiveEps() {
	if !(b.eps >= 0 && b.eps < 1e300) {
		b.fail("eps must be a number of at least 0, got %v", b.eps)
	}
}

// tensor makes one of the module's tensors, outside every scope, and fills it.
func (b *builder) tensor(shape []int, dtype tensor.DType, fill func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	n := 1
	for _, k := range shape {
		if n > math.MaxInt/16/max(1, k) {
			b.fail("a tensor of shape %v is too large", shape)
		}
		n *= max(1, k)
	}
	if b.err != nil {
		return nil
	}
	t := tensor.Empty(shape, dtype, b.device)
	if err := t.Err(); err != nil {
		b.note(err)
		return nil
	}
	t.Keep()
	tensor.Track(vram.Buffers, t)
	b.made = append(b.made, t)
	b.note(autograd.NoGrad(func() error { return fill(t).Err() }))
	return t
}

// parameter makes a tensor that requires a gradient.
func (b *builder) parameter(shape []int, fill func(*tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	t := b.tensor(shape, b.dtype, fill)
	if b.err == nil {
		b.note(t.RequiresGrad_().Err())
		tensor.Track(vram.Weights, t)
	}
	return t
}

// part records a submodule that another constructor made, and its error.
func (b *builder) part(m interface{ Err() error }) {
	b.note(m.Err())
	for _, n := range tensors(m) {
		b.made = append(b.made, n.Tensor)
	}
}

// done returns the first error. If there is one, it frees every tensor that was made.
func (b *builder) done() error {
	if b.err != nil {
		for _, t := range b.made {
			t.Release()
		}
	}
	return b.err
}

func fillWith(v float64) func(*tensor.Tensor) *tensor.Tensor {
	return func(t *tensor.Tensor) *tensor.Tensor { return t.Fill_(v) }
}

func uniform(bound float64) func(*tensor.Tensor) *tensor.Tensor {
	return func(t *tensor.Tensor) *tensor.Tensor { return t.Uniform_(-bound, bound) }
}

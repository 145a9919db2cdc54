package nn

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Lazy is a layer that is made at its first Forward, when the number of its input features or channels is known:
//
//	model := nn.NewSequential(nn.NewLazyConv2d(16, 3), &nn.ReLU{}, nn.NewFlatten(1, -1), nn.NewLazyLinear(10))
//	model.Forward(tensor.Zeros([]int{1, 3, 32, 32})) // a dry run
//	opt, err := optim.NewAdam(nn.Parameters(model), 1e-3)
//
// Before the first Forward there are no parameters: Check, and so an optimizer, Save and To, return an error, unless
// the layer has neither parameters nor buffers. LoadStateDict makes the layer from the shapes in the state. Then Module
// is an ordinary layer, in the mode that Train and Eval gave the Lazy, and the Lazy has the module's state names and
// prints like it. The first Forward draws the numbers that initialize the parameters. PyTorch: the modules of torch.nn
// whose names begin with Lazy.
type Lazy[M Layer] struct {
	Mode     // that in which Module is made
	Module M `nn:".,optional"` // nil before the first Forward

	mu    sync.RWMutex // guards Module in Forward
	name  string
	text  string // that of the layer, with 0 inputs
	empty bool   // the layer has neither parameters nor buffers
	make  func(in int) M
	infer func(x *tensor.Tensor) (in int, err error)
	load  func(shape func(name string) []int) (in int)
	err   error
}

// proxy is a wrapper that stands for another module in NamedModules and String.
type proxy interface{ stands() any }

func (h *Hooked) stands() any {
	if h == nil || h.Layer == nil {
		return nil
	}
	return h.Layer
}

func (l *Lazy[M]) stands() any {
	if !l.made() {
		return nil
	}
	return l.Module
}

func (l *Lazy[M]) lock() sync.Locker { return l.mu.RLocker() }

// torchName is the text of a Lazy that is not made yet.
func (l *Lazy[M]) torchName() string { return l.name }

// unmade is what stands between the parentheses of that text.
func (l *Lazy[M]) unmade() string { return l.text }

func (l *Lazy[M]) made() bool {
	return l != nil && any(l.Module) != nil && !reflect.ValueOf(l.Module).IsNil()
}

// newLazy returns a Lazy. It makes the layer on the meta device once, so that errors in the options appear at once.
func newLazy[M interface {
	Layer
	comparable
	Err() error
}](name string, least int, opts []Option, make func(in int, opts []Option) M, infer func(x *tensor.Tensor) (int, error), load func(shape func(string) []int) int) *Lazy[M] {
	opts = append([]Option{DType(tensor.DefaultDType())}, opts...) // that of now, not of the first Forward
	trial := make(least, append(slices.Clip(opts), Device(tensor.Meta)))
	defer Release(trial)
	if err := trial.Err(); err != nil {
		return &Lazy[M]{name: name, err: err}
	}
	text := strings.Replace(extraRepr(trial), strconv.Itoa(least), "0", 1) // the inputs are the first number
	return &Lazy[M]{name: name, text: text, empty: len(tensors(trial)) == 0, make: func(in int) M { return make(in, opts) }, infer: infer, load: load}
}

// Err returns the error of the constructor that made l, or an error if its parameters are not made yet, or nil.
func (l *Lazy[M]) Err() error {
	switch {
	case l == nil:
		return nilModule("Lazy")
	case l.err != nil:
		return l.err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if !l.made() && !l.empty {
		return refuse.Error(l.name, tensor.ErrArgument, "it has no parameters before its first Forward")
	}
	return nil
}

// Forward makes the layer for x's features or channels if there is none yet, and applies it.
func (l *Lazy[M]) Forward(x *tensor.Tensor) *tensor.Tensor {
	if l == nil {
		return noModule("Lazy")
	}
	if l.err != nil {
		return tensor.Failed(l.err)
	}
	l.mu.RLock()
	made, m := l.made(), l.Module
	l.mu.RUnlock()
	if !made {
		if bad := unusable(l.name, x); bad != nil {
			return bad
		}
		if l.make == nil {
			return refuse.Tensor("Lazy", tensor.ErrArgument, "the module is incomplete: use its constructor")
		}
		in, err := l.infer(x)
		if err != nil {
			return tensor.Failed(err)
		}
		if m, err = l.become(in); err != nil {
			return tensor.Failed(err)
		}
	}
	return m.Forward(x)
}

// become makes the layer, in the mode of l, unless another goroutine did.
func (l *Lazy[M]) become(in int) (M, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.made() {
		return l.Module, nil
	}
	m := l.make(in)
	if e, ok := any(m).(interface{ Err() error }); ok && e.Err() != nil {
		return l.Module, e.Err()
	}
	if !l.Training() {
		Eval(m)
	}
	l.Module = m
	return m, nil
}

// fromState makes the layer for a state in which it has the given name.
func (l *Lazy[M]) fromState(prefix string, state map[string]*tensor.Tensor) error {
	if l == nil || l.err != nil || l.make == nil || l.made() {
		return nil
	}
	in := l.load(func(name string) []int {
		if t := state[join(prefix, name)]; t != nil && t.Err() == nil {
			return t.Shape()
		}
		return nil
	})
	if in < 1 {
		return nil // LoadStateDict reports what is missing
	}
	_, err := l.become(in)
	return err
}

// materialize makes the lazy layers of m for a state.
func materialize(m any, state map[string]*tensor.Tensor) error {
	for _, n := range NamedModules(m) {
		if l, ok := n.Module.(interface {
			fromState(prefix string, state map[string]*tensor.Tensor) error
		}); ok {
			if err := l.fromState(n.Name, state); err != nil {
				return err
			}
		}
	}
	return nil
}

// last returns the size of a dimension, counted from the end, of an x with least to most dimensions.
func last(op string, dim, least, most int) func(x *tensor.Tensor) (int, error) {
	return func(x *tensor.Tensor) (int, error) {
		if d := x.Dim(); d < least || d > most {
			return 0, refuse.Error(op, tensor.ErrArgument, "x must have %d to %d dimensions, got shape %v", least, most, x.Shape())
		}
		return x.Size(-dim), nil
	}
}

// sizeIn returns the size of a dimension of a tensor in a state, times a factor.
func sizeIn(dim, factor int, names ...string) func(shape func(string) []int) int {
	return func(shape func(string) []int) int {
		for _, name := range names {
			if s := shape(name); len(s) > dim {
				return s[dim] * factor
			}
		}
		return 0
	}
}

// groupsOf returns the option Groups, at least 1.
func groupsOf(opts []Option) int {
	s := settings{groups: 1}
	for _, o := range opts {
		if o.name == "Groups" && o.set != nil {
			o.set(&s)
		}
	}
	return max(1, s.groups)
}

// NewLazyLinear returns a Linear with out features whose inputs are known at the first Forward. Options: those of NewLinear.
// PyTorch: torch.nn.LazyLinear.
func NewLazyLinear(out int, opts ...Option) *Lazy[*Linear] {
	const name = "NewLazyLinear"
	return newLazy("LazyLinear", 1, opts, func(in int, opts []Option) *Linear { return newLinear(name, in, out, opts) },
		last("LazyLinear", 1, 1, maxDims), sizeIn(1, 1, "weight"))
}

// maxDims is more than the dimensions of any tensor.
const maxDims = 1 << 16

func lazyConv[M interface {
	Layer
	comparable
	Err() error
}](name string, dims, out, kernel int, opts []Option, as func(*conv) M) *Lazy[M] {
	groups := groupsOf(opts)
	return newLazy(name, groups, opts, func(in int, opts []Option) M { return as(newConv("New"+name, dims, in, out, kernel, opts)) },
		last(name, dims+1, dims+1, dims+2), sizeIn(1, groups, "weight"))
}

func lazyTransposed[M interface {
	Layer
	comparable
	Err() error
}](name string, dims, out, kernel int, opts []Option, as func(*transposed) M) *Lazy[M] {
	return newLazy(name, groupsOf(opts), opts, func(in int, opts []Option) M {
		return as(newTransposed("New"+name, dims, in, out, kernel, opts))
	}, last(name, dims+1, dims+1, dims+2), sizeIn(0, 1, "weight"))
}

// NewLazyConv1d returns a Conv1d whose input channels are known at the first Forward. Options: those of NewConv1d. PyTorch:
// torch.nn.LazyConv1d.
func NewLazyConv1d(out, kernel int, opts ...Option) *Lazy[*Conv1d] {
	return lazyConv("LazyConv1d", 1, out, kernel, opts, func(c *conv) *Conv1d { return (*Conv1d)(c) })
}

// NewLazyConv2d returns a Conv2d whose input channels are known at the first Forward. Options: those of NewConv2d. PyTorch:
// torch.nn.LazyConv2d.
func NewLazyConv2d(out, kernel int, opts ...Option) *Lazy[*Conv2d] {
	return lazyConv("LazyConv2d", 2, out, kernel, opts, func(c *conv) *Conv2d { return (*Conv2d)(c) })
}

// NewLazyConv3d returns a Conv3d whose input channels are known at the first Forward. Options: those of NewConv3d. PyTorch:
// torch.nn.LazyConv3d.
func NewLazyConv3d(out, kernel int, opts ...Option) *Lazy[*Conv3d] {
	return lazyConv("LazyConv3d", 3, out, kernel, opts, func(c *conv) *Conv3d { return (*Conv3d)(c) })
}

// NewLazyConvTranspose1d returns a ConvTranspose1d whose input channels are known at the first Forward. Options: those of
// NewConvTranspose1d. PyTorch: torch.nn.LazyConvTranspose1d.
func NewLazyConvTranspose1d(out, kernel int, opts ...Option) *Lazy[*ConvTranspose1d] {
	return lazyTransposed("LazyConvTranspose1d", 1, out, kernel, opts, func(c *transposed) *ConvTranspose1d { return (*ConvTranspose1d)(c) })
}

// NewLazyConvTranspose2d returns a ConvTranspose2d whose input channels are known at the first Forward. Options: those of
// NewConvTranspose2d. PyTorch: torch.nn.LazyConvTranspose2d.
func NewLazyConvTranspose2d(out, kernel int, opts ...Option) *Lazy[*ConvTranspose2d] {
	return lazyTransposed("LazyConvTranspose2d", 2, out, kernel, opts, func(c *transposed) *ConvTranspose2d { return (*ConvTranspose2d)(c) })
}

// NewLazyConvTranspose3d returns a ConvTranspose3d whose input channels are known at the first Forward. Options: those of
// NewConvTranspose3d. PyTorch: torch.nn.LazyConvTranspose3d.
func NewLazyConvTranspose3d(out, kernel int, opts ...Option) *Lazy[*ConvTranspose3d] {
	return lazyTransposed("LazyConvTranspose3d", 3, out, kernel, opts, func(c *transposed) *ConvTranspose3d { return (*ConvTranspose3d)(c) })
}

// lazyNorm returns a lazy BatchNorm or InstanceNorm, which norm makes.
func lazyNorm[M interface {
	Layer
	comparable
	Err() error
}](name string, norm func(op string, channels int, opts []Option) *batchNorm, opts []Option, infer func(x *tensor.Tensor) (int, error), as func(*batchNorm) M) *Lazy[M] {
	return newLazy(name, 1, opts, func(in int, opts []Option) M { return as(norm("New"+name, in, opts)) },
		infer, sizeIn(0, 1, "weight", "running_mean"))
}

// channelsAt1 returns the number of channels of x (N, C) or (N, C, *).
func channelsAt1(name string, least, most int) func(x *tensor.Tensor) (int, error) {
	return func(x *tensor.Tensor) (int, error) {
		if d := x.Dim(); d < least || d > most {
			return 0, refuse.Error(name, tensor.ErrArgument, "x must have %d to %d dimensions, got shape %v", least, most, x.Shape())
		}
		return x.Size(1), nil
	}
}

// NewLazyBatchNorm1d returns a BatchNorm1d whose channels are known at the first Forward. Options: those of NewBatchNorm1d.
// PyTorch: torch.nn.LazyBatchNorm1d.
func NewLazyBatchNorm1d(opts ...Option) *Lazy[*BatchNorm1d] {
	return lazyNorm("LazyBatchNorm1d", newBatchNorm, opts, channelsAt1("LazyBatchNorm1d", 2, 3), func(b *batchNorm) *BatchNorm1d { return (*BatchNorm1d)(b) })
}

// NewLazyBatchNorm2d returns a BatchNorm2d whose channels are known at the first Forward. Options: those of NewBatchNorm2d.
// PyTorch: torch.nn.LazyBatchNorm2d.
func NewLazyBatchNorm2d(opts ...Option) *Lazy[*BatchNorm2d] {
	return lazyNorm("LazyBatchNorm2d", newBatchNorm, opts, channelsAt1("LazyBatchNorm2d", 4, 4), func(b *batchNorm) *BatchNorm2d { return (*BatchNorm2d)(b) })
}

// NewLazyBatchNorm3d returns a BatchNorm3d whose channels are known at the first Forward. Options: those of NewBatchNorm3d.
// PyTorch: torch.nn.LazyBatchNorm3d.
func NewLazyBatchNorm3d(opts ...Option) *Lazy[*BatchNorm3d] {
	return lazyNorm("LazyBatchNorm3d", newBatchNorm, opts, channelsAt1("LazyBatchNorm3d", 5, 5), func(b *batchNorm) *BatchNorm3d { return (*BatchNorm3d)(b) })
}

// NewLazyInstanceNorm1d returns an InstanceNorm1d whose channels are known at the first Forward. As in PyTorch it has a weight,
// a bias and running statistics by default, unlike NewInstanceNorm1d. Options: those of NewBatchNorm1d
// without CumulativeAverage. PyTorch: torch.nn.LazyInstanceNorm1d.
func NewLazyInstanceNorm1d(opts ...Option) *Lazy[*InstanceNorm1d] {
	return lazyNorm("LazyInstanceNorm1d", newLazyInstanceNorm, opts, last("LazyInstanceNorm1d", 2, 2, 3), func(b *batchNorm) *InstanceNorm1d { return (*InstanceNorm1d)(b) })
}

// NewLazyInstanceNorm2d is NewLazyInstanceNorm1d for images. Options: those of NewLazyInstanceNorm1d. PyTorch:
// torch.nn.LazyInstanceNorm2d.
func NewLazyInstanceNorm2d(opts ...Option) *Lazy[*InstanceNorm2d] {
	return lazyNorm("LazyInstanceNorm2d", newLazyInstanceNorm, opts, last("LazyInstanceNorm2d", 3, 3, 4), func(b *batchNorm) *InstanceNorm2d { return (*InstanceNorm2d)(b) })
}

// NewLazyInstanceNorm3d is NewLazyInstanceNorm1d for volumes. Options: those of NewLazyInstanceNorm1d. PyTorch:
// torch.nn.LazyInstanceNorm3d.
func NewLazyInstanceNorm3d(opts ...Option) *Lazy[*InstanceNorm3d] {
	return lazyNorm("LazyInstanceNorm3d", newLazyInstanceNorm, opts, last("LazyInstanceNorm3d", 4, 4, 5), func(b *batchNorm) *InstanceNorm3d { return (*InstanceNorm3d)(b) })
}

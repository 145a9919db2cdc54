package nn

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Hooked is a layer with hooks, functions that run before and after its Forward and in the backward pass:
//
//	h := nn.NewHooked(model.Body.Layers[3])
//	model.Body.Layers[3] = h
//	remove, err := h.RegisterForwardHook(func(x, y *tensor.Tensor) (*tensor.Tensor, error) {
//		norms = append(norms, y.LinalgVectorNorm())
//		return nil, nil
//	})
//
// Hooks run in the order of their registration. They may be registered and removed while Forward runs on other
// goroutines; a call of Forward uses the hooks that it found when it began. Each hook gets handles of its own: it may keep
// or release them. A Hooked has the state names and the text of its layer, and NamedModules lists the layer in its place.
type Hooked struct {
	Layer Layer `nn:"."`

	mu          sync.Mutex // guards the lists; their elements do not change
	before      []*hook[func(x *tensor.Tensor) (*tensor.Tensor, error)]
	after       []*hook[func(x, y *tensor.Tensor) (*tensor.Tensor, error)]
	backBefore  []*hook[func(gradOutput *tensor.Tensor) (*tensor.Tensor, error)]
	backOutward []*hook[func(gradInput, gradOutput *tensor.Tensor) (*tensor.Tensor, error)]
}

type hook[F any] struct{ f F }

// NewHooked returns layer without hooks yet.
func NewHooked(layer Layer) *Hooked { return &Hooked{Layer: layer} }

func (h *Hooked) lock() sync.Locker { return &h.mu }

// register appends f to a list and returns the function that removes it.
func register[F any](op string, h *Hooked, list func(h *Hooked) *[]*hook[F], f F) (remove func(), err error) {
	if h == nil {
		return nil, nilModule(op)
	}
	if reflect.ValueOf(f).IsNil() {
		return nil, refuse.Nil(op, "a function")
	}
	e := &hook[F]{f}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := list(h)
	*at = append(slices.Clip(*at), e)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		at := list(h)
		*at = slices.DeleteFunc(slices.Clone(*at), func(other *hook[F]) bool { return other == e })
	}, nil
}

// RegisterForwardPreHook makes Forward call f with its input first. If f returns a tensor, it replaces the input; nil
// leaves it unchanged. An error of f becomes Forward's. The returned function removes the hook. PyTorch:
// Module.register_forward_pre_hook.
func (h *Hooked) RegisterForwardPreHook(f func(x *tensor.Tensor) (*tensor.Tensor, error)) (remove func(), err error) {
	return register("RegisterForwardPreHook", h, func(h *Hooked) *[]*hook[func(x *tensor.Tensor) (*tensor.Tensor, error)] { return &h.before }, f)
}

// RegisterForwardHook makes Forward call f with the layer's input and output. If f returns a tensor, it replaces the
// output; nil leaves it unchanged. An error of f becomes Forward's. f is not called if the layer failed. The returned
// function removes the hook. PyTorch: Module.register_forward_hook.
func (h *Hooked) RegisterForwardHook(f func(x, y *tensor.Tensor) (*tensor.Tensor, error)) (remove func(), err error) {
	return register("RegisterForwardHook", h, func(h *Hooked) *[]*hook[func(x, y *tensor.Tensor) (*tensor.Tensor, error)] { return &h.after }, f)
}

// RegisterFullBackwardPreHook calls f with the gradient of the layer's output before the backward pass enters the
// layer; nil if the output receives none. If f returns a tensor, it replaces the gradient; nil leaves it unchanged. f
// runs as a hook of Tensor.RegisterHook does. The returned function removes the hook. While a layer has backward hooks,
// neither its input nor its output may be changed in place, by the layer or after it, and neither may have a tangent of
// forward-mode differentiation: operators return an error. PyTorch: Module.register_full_backward_pre_hook.
func (h *Hooked) RegisterFullBackwardPreHook(f func(gradOutput *tensor.Tensor) (*tensor.Tensor, error)) (remove func(), err error) {
	return register("RegisterFullBackwardPreHook", h, func(h *Hooked) *[]*hook[func(*tensor.Tensor) (*tensor.Tensor, error)] { return &h.backBefore }, f)
}

// RegisterFullBackwardHook calls f with the gradients of the layer's input and output once the backward pass has
// computed both. If f returns a tensor, it replaces the gradient of the input; nil leaves it unchanged. gradInput is
// nil if the input needs or receives no gradient, gradOutput if the output receives none. To return a tensor if the input
// needs no gradient is an error. f runs as a hook of Tensor.RegisterHook does, in a scope: to store a gradient, it calls
// Keep. The returned function removes the hook. The restrictions are those of RegisterFullBackwardPreHook. PyTorch:
// Module.register_full_backward_hook.
func (h *Hooked) RegisterFullBackwardHook(f func(gradInput, gradOutput *tensor.Tensor) (*tensor.Tensor, error)) (remove func(), err error) {
	return register("RegisterFullBackwardHook", h, func(h *Hooked) *[]*hook[func(gradInput, gradOutput *tensor.Tensor) (*tensor.Tensor, error)] {
		return &h.backOutward
	}, f)
}

// Forward applies the layer and calls the hooks.
func (h *Hooked) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "Hooked"
	if h == nil || h.Layer == nil {
		return noModule(op)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	h.mu.Lock()
	before, after, b := h.before, h.after, backwardHooks{before: h.backBefore, outward: h.backOutward}
	h.mu.Unlock()
	for _, e := range before {
		if err := replace(&x, func() (*tensor.Tensor, error) { return e.f(lent(x)) }); err != nil {
			return tensor.Failed(err)
		}
	}
	x, err := b.input(x)
	if err != nil {
		return tensor.Failed(err)
	}
	y := h.Layer.Forward(x)
	if bad := unusable(op, y); bad != nil {
		return bad
	}
	for _, e := range after {
		if err := replace(&y, func() (*tensor.Tensor, error) { return e.f(lent(x), lent(y)) }); err != nil {
			return tensor.Failed(err)
		}
	}
	if y, err = b.output(y); err != nil {
		return tensor.Failed(err)
	}
	return y
}

// lent returns a handle of t for one hook, which may keep or release it; nil for nil.
func lent(t *tensor.Tensor) *tensor.Tensor {
	if t == nil {
		return nil
	}
	return t.Alias()
}

// replace sets t to a handle of the tensor that f returns, if it is not nil. The tensor may be the program's.
func replace(t **tensor.Tensor, f func() (*tensor.Tensor, error)) error {
	other, err := f()
	if err != nil || other == nil {
		return err
	}
	*t = other.Alias()
	return (*t).Err()
}

// identity returns its input. libtorch refuses to change the result in place, which is required: a view made by an
// operator would take the change's grad_fn, and gradients would no longer pass through the node with the hooks.
type identity struct{}

func (identity) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SetMaterializeGrads(false)
	return in, nil
}

func (identity) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return grads, nil
}

// hookable returns a view of x for the hooks of a tensor.
func hookable(x *tensor.Tensor) (*tensor.Tensor, error) {
	out, err := autograd.Apply(identity{}, x)
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// backwardHooks are the backward hooks of one forward pass.
type backwardHooks struct {
	before  []*hook[func(gradOutput *tensor.Tensor) (*tensor.Tensor, error)]
	outward []*hook[func(gradInput, gradOutput *tensor.Tensor) (*tensor.Tensor, error)]

	mu      sync.Mutex
	entered *entered // from the output's hook to the input's
	inner   bool     // the input needs a gradient
}

// entered is what the output's hook has received.
type entered struct {
	gradOutput *tensor.Tensor // nil if the output has no gradient
}

// input returns a view of x whose gradient is that of the layer's input.
func (b *backwardHooks) input(x *tensor.Tensor) (*tensor.Tensor, error) {
	if len(b.outward) == 0 || !x.RequiresGrad() {
		return x, nil
	}
	x, err := hookable(x)
	if err != nil || !x.RequiresGrad() {
		return x, err
	}
	b.inner = true
	_, err = x.RegisterHook(func(gradInput *tensor.Tensor) (*tensor.Tensor, error) {
		e := b.swap(nil)
		if e == nil {
			return nil, nil
		}
		defer e.gradOutput.Release()
		return b.leave(gradInput, e.gradOutput)
	})
	return x, err
}

// swap sets what the output's hook has received and returns what was there before.
func (b *backwardHooks) swap(e *entered) *entered {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.entered
	b.entered = e
	return old
}

// leave calls the hooks that see both gradients and returns a replacement of the first, or nil.
func (b *backwardHooks) leave(gradInput, gradOutput *tensor.Tensor) (*tensor.Tensor, error) {
	var changed *tensor.Tensor
	for _, e := range b.outward {
		err := replace(&changed, func() (*tensor.Tensor, error) { return e.f(lent(gradInput), lent(gradOutput)) })
		if err != nil {
			return nil, err
		}
		if changed != nil && gradInput != nil {
			gradInput = changed
		}
	}
	return changed, nil
}

// output returns a view of y whose gradient is that of the layer's output.
func (b *backwardHooks) output(y *tensor.Tensor) (*tensor.Tensor, error) {
	if len(b.before)+len(b.outward) == 0 || !y.RequiresGrad() {
		return y, nil
	}
	y, err := hookable(y)
	if err != nil || !y.RequiresGrad() {
		return y, err
	}
	_, err = y.RegisterHook(func(g *tensor.Tensor) (*tensor.Tensor, error) {
		var changed *tensor.Tensor
		for _, e := range b.before {
			if err := replace(&changed, func() (*tensor.Tensor, error) { return e.f(lent(g)) }); err != nil {
				return nil, err
			}
			if changed != nil {
				g = changed
			}
		}
		if len(b.outward) == 0 {
			return changed, nil
		}
		if !b.inner {
			gradInput, err := b.leave(nil, g)
			if err == nil && gradInput != nil {
				err = refuse.Error("Hooked", tensor.ErrArgument, "a full backward hook must return nil if the input needs no gradient")
			}
			return changed, err
		}
		e := &entered{}
		if g != nil {
			e.gradOutput = g.Alias().Keep()
			if err := e.gradOutput.Err(); err != nil {
				return nil, err
			}
		}
		if old := b.swap(e); old != nil {
			old.gradOutput.Release()
		}
		return changed, nil
	})
	return y, err
}

// SetSubmodule replaces the submodule of m with the given name, such as "blocks.0.mlp", by part: a wrapper like
// Hooked, Parametrized or LoRALinear, or another layer. The field, slice or map must be able to hold part: a field of type
// Layer can, as those of the linear layers in CausalSelfAttention, SwiGLU, TransformerEncoderLayer and
// TransformerDecoderLayer are; one of type *Linear, such as MultiheadAttention's OutProj, holds only a *Linear. A
// submodule that is in several places is replaced in the first. PyTorch: Module.set_submodule.
func SetSubmodule(m any, name string, part any) error {
	const op = "SetSubmodule"
	if part == nil || reflect.ValueOf(part).Kind() == reflect.Pointer && reflect.ValueOf(part).IsNil() {
		return nilModule(op)
	}
	if name == "" {
		return refuse.Error(op, tensor.ErrArgument, "a name is needed")
	}
	s := slots{name: name, part: reflect.ValueOf(part), open: map[unsafePointer]bool{}}
	s.value(reflect.ValueOf(m), "")
	switch {
	case s.set:
		return nil
	case s.holder != nil:
		return refuse.Error(op, tensor.ErrArgument, "%q is held as a %v, which cannot be a %T: a field of type nn.Layer can", name, s.holder, part)
	}
	return refuse.Error(op, tensor.ErrArgument, "%T has no submodule %q that can be replaced", m, name)
}

// slots looks for the place of a submodule and sets it.
type slots struct {
	name   string
	part   reflect.Value
	set    bool
	holder reflect.Type // of a place with the name that cannot hold part
	open   map[unsafePointer]bool
}

// place sets part at v, which has the name at, and reports whether the search is over.
func (s *slots) place(v reflect.Value, at string, put func(part reflect.Value)) bool {
	if at != s.name || v.Type() == tensorType || !modules(v.Type()) {
		return false
	}
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if s.part.Type().AssignableTo(v.Type()) {
			put(s.part)
			s.set = true
			return true
		}
	case reflect.Slice, reflect.Map, reflect.Array:
		return false
	}
	s.holder = v.Type()
	return true
}

// value searches v and reports whether the search is over.
func (s *slots) value(v reflect.Value, at string) bool {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || !factsOf(v.Type()).walked || at != "" && at != s.name && !strings.HasPrefix(s.name, at+".") {
		return false
	}
	switch v.Kind() {
	case reflect.Pointer:
		key := unsafePointer{v.Pointer(), v.Type()}
		if v.IsNil() || v.Type() == tensorType || s.open[key] {
			return false
		}
		s.open[key] = true
		if v.Type() == parametrizedType && v.CanInterface() {
			return s.parametrized(v.Interface().(*Parametrized), at)
		}
		return s.value(v.Elem(), at)
	case reflect.Struct:
		plan := planOf(v.Type())
		for i := range plan.walked {
			f := &plan.walked[i]
			part := v.Field(f.index)
			name := join(at, f.name)
			if f.name != "" && part.CanSet() && s.place(part, name, part.Set) || s.value(part, name) {
				return true
			}
		}
	case reflect.Slice, reflect.Array:
		for i, e := range elements(v) {
			at := join(at, e.name)
			put := e.value
			if v.Kind() == reflect.Slice && dict(v.Type()) {
				put = v.Index(i).Field(1)
			}
			if put.CanSet() && s.place(put, at, put.Set) || s.value(e.value, at) {
				return true
			}
		}
	case reflect.Map:
		for _, e := range elements(v) {
			at := join(at, e.name)
			if s.place(reflect.New(v.Type().Elem()).Elem(), at, func(part reflect.Value) {
				v.SetMapIndex(reflect.ValueOf(e.name).Convert(v.Type().Key()), part)
			}) || s.value(e.value, at) {
				return true
			}
		}
	}
	return false
}

// parametrized searches p under the names of walker.parametrized and reports whether the search is over.
func (s *slots) parametrized(p *Parametrized, at string) bool {
	if s.value(reflect.ValueOf(p.Layer), at) {
		return true
	}
	for _, l := range p.Lists {
		if l != nil && l.suffixes == nil && s.value(reflect.ValueOf(l.Parametrizations), join(at, "parametrizations."+l.Name)) {
			return true
		}
	}
	return false
}

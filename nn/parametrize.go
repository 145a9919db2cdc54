package nn

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"weak"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Parametrization computes a parameter of a layer from other tensors, its originals, which are trained in its place. It is
// a module: its exported tensors with the tag `nn:",buffer"` are in the state. If it has a method
//
//	RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error)
//
// the originals begin as the result of RightInverse for the layer's parameter, so that Forward returns the parameter.
// Without it the only original is the parameter itself, and Parametrized.Set cannot set the parameter.
type Parametrization interface {
	// Forward returns the parameter. The second and further parametrizations of a parameter receive the result of the one
	// before.
	Forward(originals ...*tensor.Tensor) *tensor.Tensor
}

// rightInverter is a Parametrization whose originals are computed from the parameter.
type rightInverter interface {
	RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error)
}

// errNoInverse is the error of a RightInverse that has no result, so that the original begins as the parameter itself.
var errNoInverse = errors.New("there is no inverse")

// Parametrized is a layer some of whose parameters are recomputed for each forward pass. Its state has PyTorch's names:
// for a parameter weight, parametrizations.weight.original, or original0, original1 and so on if there are several, in place
// of weight. The functions RegisterParametrization, WeightNorm, SpectralNorm, Orthogonal and those of pruning make one:
//
//	conv := nn.WeightNorm(nn.NewConv1d(80, 512, 7), "weight")
//
// While a parameter is parametrized, its field in Layer holds a tensor without data on the meta device. Forward runs on a
// shallow copy of Layer, so that goroutines can call it together: what Layer's Forward assigns to its own fields, such as
// a counter, is lost. A layer with such state holds it behind a pointer, together with the mutex that guards it. PyTorch: the
// ParametrizedLinear and its kin of torch.nn.utils.parametrize, which run the layer itself.
type Parametrized struct {
	Layer Layer
	Lists []*ParametrizationList // by parameter, in the order of registration
	err   error
}

var parametrizedType = reflect.TypeFor[*Parametrized]()

// ParametrizationList has the parametrizations of one parameter. PyTorch: torch.nn.utils.parametrize.ParametrizationList.
type ParametrizationList struct {
	Name             string // of the parameter in the layer
	Originals        []*tensor.Tensor
	Parametrizations []Parametrization

	suffixes []string       // of the names of the originals in PyTorch's deprecated form, or nil
	standIn  *tensor.Tensor `nn:"-"` // the layer's field; nn.To does not convert it
	at       place

	mu      sync.Mutex
	caching int
	cached  [3]*tensor.Tensor `nn:"-"` // by recording
}

func (l *ParametrizationList) lock() sync.Locker { return &l.mu }

// standIns has the stand-ins of all lists, as weak pointers: a frozen parameter on the meta device looks like one.
var standIns sync.Map

// markStandIn records that t is a stand-in.
func markStandIn(t *tensor.Tensor) {
	at := weak.Make(t)
	if _, again := standIns.LoadOrStore(at, true); !again {
		runtime.AddCleanup(t, standIns.Delete, any(at))
	}
}

func isStandIn(t *tensor.Tensor) bool {
	_, ok := standIns.Load(weak.Make(t))
	return ok
}

// place is where a struct holds a tensor: a field, or an element of a ParameterDict.
type place struct {
	index []int
	elem  int // -1 for a field
}

// find returns the place of the tensor with the given name among a struct's own tensors.
func find(v reflect.Value, name string) (place, *tensor.Tensor, role, bool) {
	return findFunc(v, func(n string, _ *tensor.Tensor) bool { return n == name })
}

// findFunc returns the place of the first of a struct's own tensors that match accepts.
func findFunc(v reflect.Value, match func(name string, t *tensor.Tensor) bool) (place, *tensor.Tensor, role, bool) {
	plan := planOf(v.Type())
	for i := range plan.walked {
		f := &plan.walked[i]
		part := v.Field(f.index)
		switch {
		case part.Type() == tensorType && part.CanSet():
			if t := part.Interface().(*tensor.Tensor); match(f.name, t) {
				return place{[]int{f.index}, -1}, t, f.role, true
			}
		case f.name == "" && part.Type() == reflect.TypeFor[ParameterDict]() && part.CanSet():
			dict := part.Interface().(ParameterDict)
			if k := slices.IndexFunc(dict, func(n Named) bool { return match(n.Name, n.Tensor) }); k >= 0 {
				return place{[]int{f.index}, k}, dict[k].Tensor, f.role, true
			}
		case f.name == "" && part.Kind() == reflect.Struct:
			if at, t, r, ok := findFunc(part, match); ok {
				at.index = append([]int{f.index}, at.index...)
				return at, t, r, true
			}
		}
	}
	return place{}, nil, 0, false
}

// put sets the tensor at a place of a struct. A ParameterDict is copied first.
func (p place) put(v reflect.Value, t *tensor.Tensor) {
	part := v.FieldByIndex(p.index)
	if p.elem < 0 {
		part.Set(reflect.ValueOf(t))
		return
	}
	dict := slices.Clone(part.Interface().(ParameterDict))
	dict[p.elem].Tensor = t
	part.Set(reflect.ValueOf(dict))
}

// RegisterParametrization makes the parameter of layer with the given name, such as "weight" or "weight_hh_l0", the result of
// p, whose shape and dtype must be those of the parameter. If layer is a Parametrized, it gets the further parametrization
// and is returned; otherwise the result is a new one around layer. p is put in the mode, training or evaluation, of a layer
// that has a Mode; in a model in evaluation mode call Eval again for other layers. The result's Forward runs on a copy of
// layer (see Parametrized): a layer of another package that has a mutex, or another value of package sync, not behind a
// pointer is refused. On failure the result carries the error and layer is unchanged. PyTorch:
// torch.nn.utils.parametrize.register_parametrization.
func RegisterParametrization(layer Layer, name string, p Parametrization) *Parametrized {
	return parametrize("RegisterParametrization", layer, name, p, nil, true)
}

// parametrize is RegisterParametrization for the function op. suffixes are those of PyTorch's deprecated form. With try, p
// is computed once, as PyTorch does, and its result is checked.
func parametrize(op string, layer Layer, name string, p Parametrization, suffixes []string, try bool) *Parametrized {
	fail := func(err error) *Parametrized { return &Parametrized{err: err} }
	w, l, err := parametrizable(op, layer, name)
	if err != nil {
		return fail(err)
	}
	if p == nil || reflect.ValueOf(p).Kind() == reflect.Pointer && reflect.ValueOf(p).IsNil() {
		return fail(refuse.Nil(op, "a parametrization"))
	}
	outer, ok := layer.(*Parametrized)
	inner := layer
	if ok {
		inner = outer.Layer
	}
	v := reflect.ValueOf(inner)
	if mode, has := inner.(interface{ Training() bool }); has && v.Kind() == reflect.Pointer && !v.IsNil() {
		setTraining(p, mode.Training())
	}
	if l != nil {
		if suffixes != nil || l.suffixes != nil {
			return fail(refuse.Error(op, tensor.ErrArgument, "%q is parametrized already", name))
		}
		if err := checkOn(op, name, p, nil, l.compute); err != nil {
			return fail(err)
		}
		l.Parametrizations = append(l.Parametrizations, p)
		return outer
	}
	list := &ParametrizationList{Name: name, Parametrizations: []Parametrization{p}, suffixes: suffixes}
	if err := list.begin(op, w, p); err != nil {
		return fail(err)
	}
	undo := func(err error) *Parametrized {
		list.abandon(w)
		return fail(err)
	}
	if try {
		if err := list.check(op, w); err != nil {
			return undo(err)
		}
	}
	list.standIn = tensor.Empty(w.Shape(), w.DType(), tensor.Meta)
	if err := list.standIn.Err(); err != nil {
		return undo(err)
	}
	list.standIn.Keep().RequiresGrad_(false)
	if err := list.commit(w); err != nil {
		list.standIn.Release()
		return undo(err)
	}
	if !ok {
		outer = &Parametrized{Layer: layer}
	}
	list.at, _, _, _ = find(v.Elem(), name)
	markStandIn(list.standIn)
	list.at.put(v.Elem(), list.standIn)
	outer.Lists = append(outer.Lists, list)
	return outer
}

// parametrizable returns the parameter of layer with a name, or its list if it is parametrized already.
func parametrizable(op string, layer Layer, name string) (*tensor.Tensor, *ParametrizationList, error) {
	if layer == nil {
		return nil, nil, nilModule(op)
	}
	p, inside := layer.(*Parametrized)
	if inside {
		if err := p.Err(); err != nil {
			return nil, nil, err
		}
		if l := p.list(name); l != nil {
			return nil, l, nil
		}
		layer = p.Layer
	}
	v := reflect.ValueOf(layer)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
		return nil, nil, refuse.Error(op, tensor.ErrArgument, "a pointer to a struct is needed, got a %T", layer)
	}
	if e, ok := layer.(interface{ Err() error }); ok && e.Err() != nil {
		return nil, nil, e.Err()
	}
	_, w, r, ok := find(v.Elem(), name)
	if !ok || w == nil || r != parameter {
		return nil, nil, refuse.Error(op, tensor.ErrArgument, "%T has no parameter %q", layer, name)
	}
	for _, n := range tensors(layer) {
		if err := refuse.Unusable(op, n.Name, n.Tensor); err != nil {
			return nil, nil, err
		}
	}
	if inside {
		return w, nil, nil
	}
	if held, is := synchronizer(v.Type().Elem()); is {
		return nil, nil, refuse.Error(op, tensor.ErrArgument, "the %T has a %v, which its copy for each pass does not share: hold it by a pointer", layer, held)
	}
	var taken string
	if _, _, _, ok := findFunc(v.Elem(), func(n string, t *tensor.Tensor) bool { taken = n; return isStandIn(t) }); ok {
		return nil, nil, refuse.Error(op, tensor.ErrArgument, "%s of the %T is parametrized already: pass the Parametrized around it", taken, layer)
	}
	return w, nil, nil
}

// begin computes the originals from the parameter w. A single original has w's values but is not w yet.
func (l *ParametrizationList) begin(op string, w *tensor.Tensor, p Parametrization) error {
	inverter, ok := p.(rightInverter)
	if !ok {
		l.Originals = []*tensor.Tensor{w}
		return nil
	}
	return tensor.WithScope(func() error {
		var made []*tensor.Tensor
		err := autograd.NoGrad(func() (err error) {
			if made, err = inverter.RightInverse(w); errors.Is(err, errNoInverse) {
				made, err = []*tensor.Tensor{w}, nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if len(made) == 0 {
			return refuse.Error(op, tensor.ErrArgument, "RightInverse of %T returned no tensors", p)
		}
		for _, t := range made {
			original := w
			if t != w || len(made) > 1 {
				original = NewParameter(t)
			}
			if err := original.Err(); err != nil {
				l.abandon(w)
				return err
			}
			if original != w && !w.RequiresGrad() {
				original.RequiresGrad_(false)
			}
			l.Originals = append(l.Originals, original)
		}
		if len(made) == 1 && l.Originals[0].DType() != w.DType() {
			l.abandon(w)
			return refuse.Error(op, tensor.ErrArgument, "RightInverse of %T must not change the dtype %v, got %v", p, w.DType(), l.Originals[0].DType())
		}
		return nil
	})
}

// abandon frees the originals of a list that is not used.
func (l *ParametrizationList) abandon(w *tensor.Tensor) {
	for _, t := range l.Originals {
		if t != w {
			t.Release()
		}
	}
	l.Originals = nil
}

// commit makes w itself the single original.
func (l *ParametrizationList) commit(w *tensor.Tensor) error {
	if len(l.Originals) != 1 || l.Originals[0] == w {
		return nil
	}
	if err := setData(w, l.Originals[0]); err != nil {
		return err
	}
	l.Originals[0].Release()
	l.Originals[0] = w
	return nil
}

// setData makes the storage of value that of t, whose handle and gradient stay. PyTorch: t.data = value.
func setData(t, value *tensor.Tensor) error {
	return autograd.NoGrad(func() error {
		data := value.Detach()
		defer data.Release()
		if err := data.Err(); err != nil {
			return err
		}
		return replaceData(t, data)
	})
}

// check computes the parameter once and compares it with w.
func (l *ParametrizationList) check(op string, w *tensor.Tensor) error {
	return checkOn(op, l.Name, nil, w, l.compute)
}

// checkOn checks that the result of f has the shape and dtype of w, or, if p is not nil, that p keeps those of the result.
func checkOn(op, name string, p Parametrization, w *tensor.Tensor, f func() *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		y := f()
		if p != nil && y != nil && y.Err() == nil {
			w, y = y, p.Forward(y)
		}
		if err := refuse.Unusable(op, "the parametrization's result", y); err != nil {
			return err
		}
		if !slices.Equal(y.Shape(), w.Shape()) || y.DType() != w.DType() {
			return refuse.Error(op, tensor.ErrArgument, "the parametrization must keep the shape and dtype of %q, %v %v, got %v %v", name, w.Shape(), w.DType(), y.Shape(), y.DType())
		}
		return nil
	})
}

// compute returns the parameter.
func (l *ParametrizationList) compute() *tensor.Tensor {
	const op = "Parametrized"
	if l == nil || len(l.Originals) == 0 || len(l.Parametrizations) == 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "a list has no originals or no parametrizations: use RegisterParametrization")
	}
	args := l.Originals
	var y *tensor.Tensor
	own := false // only code of this package has y
	for _, p := range l.Parametrizations {
		if p == nil {
			return noModule(op)
		}
		made := y
		y = p.Forward(args...)
		if y == nil {
			return refuse.Tensor(op, tensor.ErrNil, "%T returned nil", p)
		}
		library := factsOf(reflect.TypeOf(p)).library
		if library && own && made != y {
			made.Release()
		}
		own = library && (own || !slices.Contains(args, y))
		args = []*tensor.Tensor{y}
	}
	return y
}

// value returns the parameter. A cached one is returned as a separate handle, because Cached may end during the pass.
func (l *ParametrizationList) value() *tensor.Tensor {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.caching == 0 {
		return l.compute()
	}
	cached := &l.cached[recording()]
	if *cached == nil {
		y := l.compute()
		if y.Err() != nil {
			return y
		}
		*cached = y.Alias().Keep()
		if l.library() && !slices.Contains(l.Originals, y) {
			y.Release()
		}
	}
	return (*cached).Alias()
}

// recording returns a number for how this goroutine records gradients. A cached value is for one way of recording:
// without recording it has no graph, so that the originals would get no gradients.
func recording() int {
	switch {
	case tensor.InferenceEnabled():
		return 2
	case tensor.GradEnabled():
		return 1
	}
	return 0
}

// library reports whether only code of this package sees the computed parameter.
func (l *ParametrizationList) library() bool {
	return !slices.ContainsFunc(l.Parametrizations, func(p Parametrization) bool { return !factsOf(reflect.TypeOf(p)).library })
}

func (p *Parametrized) list(name string) *ParametrizationList {
	if p == nil {
		return nil
	}
	for _, l := range p.Lists {
		if l != nil && l.Name == name {
			return l
		}
	}
	return nil
}

// unparametrized returns the layer in a Parametrized, which stands for it in NamedModules, or else m.
func unparametrized(m any) any {
	if p, ok := m.(*Parametrized); ok {
		return p.Layer
	}
	return m
}

// Err returns the error of the function that made p, or nil.
func (p *Parametrized) Err() error {
	if p == nil {
		return nilModule("Parametrized")
	}
	return p.err
}

// Forward computes the parameters and applies the layer with them.
func (p *Parametrized) Forward(x *tensor.Tensor) *tensor.Tensor {
	layer, made, err := p.module()
	if err != nil {
		return tensor.Failed(err)
	}
	y := layer.Forward(x)
	if p.library() {
		for _, t := range made {
			t.Release()
		}
	}
	return y
}

// library reports whether Forward runs no user code that could keep a tensor.
func (p *Parametrized) library() bool {
	if p == nil || p.Layer == nil || !factsOf(reflect.TypeOf(p.Layer)).library {
		return false
	}
	return !slices.ContainsFunc(p.Lists, func(l *ParametrizationList) bool { return l == nil || !l.library() })
}

// Module returns a copy of the layer whose parametrized fields hold the parameters as they are computed now, for methods
// other than Forward and to read the parameters:
//
//	m, err := lstm.Module()
//	y, h, c := m.(*nn.LSTM).ForwardState(x, nil, nil)
//
// The computed parameters belong to the current scope.
func (p *Parametrized) Module() (Layer, error) {
	layer, _, err := p.module()
	return layer, err
}

// module returns the copy of Module and the parameters that this call computed.
func (p *Parametrized) module() (Layer, []*tensor.Tensor, error) {
	if err := p.Err(); err != nil {
		return nil, nil, err
	}
	v := reflect.ValueOf(p.Layer)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().Elem().Kind() != reflect.Struct {
		return nil, nil, refuse.Error("Parametrized", tensor.ErrArgument, "the layer must be a pointer to a struct, got %v", p.Layer)
	}
	out := reflect.New(v.Type().Elem())
	shallow(out.Elem(), v.Elem())
	var made []*tensor.Tensor
	for _, l := range p.Lists {
		if l == nil || l.at.index == nil {
			return nil, nil, refuse.Error("Parametrized", tensor.ErrArgument, "a list is incomplete: use RegisterParametrization")
		}
		w := l.value()
		if err := w.Err(); err != nil {
			return nil, nil, err
		}
		if !slices.Contains(l.Originals, w) {
			made = append(made, w)
		}
		l.at.put(out.Elem(), w)
	}
	return out.Interface().(Layer), made, nil
}

// Set gives the parametrized parameter with the given name a value: the originals become the results of RightInverse,
// which each of its parametrizations must have, called from the last to the first. The originals are written in place, so
// that an optimizer keeps them. A parametrization may change the value to one that it can compute, as Orthogonal does.
// PyTorch: torch.nn.utils.parametrize.ParametrizationList.right_inverse, which an assignment to the parameter calls.
func (p *Parametrized) Set(name string, value *tensor.Tensor) error {
	const op = "Set"
	if err := p.Err(); err != nil {
		return err
	}
	l := p.list(name)
	if l == nil || l.standIn == nil {
		return refuse.Error(op, tensor.ErrArgument, "%T has no parametrized %q", p.Layer, name)
	}
	if err := refuse.Unusable(op, "the value", value); err != nil {
		return err
	}
	if want := l.standIn.Shape(); !slices.Equal(value.Shape(), want) {
		return refuse.Error(op, tensor.ErrArgument, "%q must have shape %v, got %v", name, want, value.Shape())
	}
	// A single original has the parameter's dtype; several may have others.
	if len(l.Originals) == 1 && value.DType() != l.Originals[0].DType() {
		return refuse.Error(op, tensor.ErrArgument, "%q must have dtype %v, got %v", name, l.Originals[0].DType(), value.DType())
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error { return l.set(op, value) })
	})
}

// set writes the originals for which the parameter is value.
func (l *ParametrizationList) set(op string, value *tensor.Tensor) error {
	now := []*tensor.Tensor{value}
	for i, part := range slices.Backward(l.Parametrizations) {
		inverter, ok := part.(rightInverter)
		if !ok {
			return refuse.Error(op, tensor.ErrNotImplemented, "parametrization %d of %q, a %T, has no RightInverse", i, l.Name, part)
		}
		if len(now) != 1 {
			return refuse.Error(op, tensor.ErrArgument, "RightInverse of parametrization %d of %q must return one tensor, got %d", i+1, l.Name, len(now))
		}
		var err error
		if now, err = inverter.RightInverse(now[0]); err != nil {
			return err
		}
		for _, t := range now {
			if err := refuse.Unusable(op, fmt.Sprintf("RightInverse of %T", part), t); err != nil {
				return err
			}
		}
	}
	if len(now) != len(l.Originals) {
		return refuse.Error(op, tensor.ErrArgument, "RightInverse returned %d tensors for the %d originals of %q", len(now), len(l.Originals), l.Name)
	}
	for i, t := range now {
		if have := l.Originals[i]; !slices.Equal(t.Shape(), have.Shape()) || t.DType() != have.DType() {
			return refuse.Error(op, tensor.ErrArgument, "RightInverse returned %v %v for original %d of %q, which is %v %v", t.DType(), t.Shape(), i, l.Name, have.DType(), have.Shape())
		}
	}
	for i, t := range now {
		if err := l.Originals[i].Copy_(t).Err(); err != nil {
			return err
		}
	}
	return nil
}

// IsParametrized reports whether m is a Parametrized that computes the parameter with the given name, or any parameter if
// name is empty. PyTorch: torch.nn.utils.parametrize.is_parametrized.
func IsParametrized(m any, name string) bool {
	p, ok := m.(*Parametrized)
	return ok && p != nil && (name == "" && len(p.Lists) > 0 || p.list(name) != nil)
}

// RemoveParametrizations makes the parameter of layer, a Parametrized, an ordinary one again. With leave it keeps the value
// as computed now; otherwise it becomes the original, of which there must be one. The parameter is the tensor that it was
// before the parametrization, so that an optimizer keeps it, unless there are several originals. The result is the layer
// inside if no other parameter is parametrized, and the Parametrized otherwise. It also removes pruning and the forms with
// deprecated names. PyTorch: torch.nn.utils.parametrize.remove_parametrizations, remove_weight_norm, remove_spectral_norm and
// prune.remove. These put the parameter behind the layer's others, while here it has its former place in Parameters: an
// optimizer's state, which knows parameters by their numbers, does not pass from one to the other.
func RemoveParametrizations(layer Layer, name string, leave bool) (Layer, error) {
	const op = "RemoveParametrizations"
	p, _ := layer.(*Parametrized)
	if err := p.Err(); p != nil && err != nil {
		return nil, err
	}
	l := p.list(name)
	if l == nil {
		return nil, refuse.Error(op, tensor.ErrArgument, "%T has no parametrized %q", layer, name)
	}
	if !leave && len(l.Originals) != 1 {
		return nil, refuse.Error(op, tensor.ErrArgument, "%q has %d originals: it can only keep its computed value", name, len(l.Originals))
	}
	v := reflect.ValueOf(p.Layer)
	if v.Kind() != reflect.Pointer || v.IsNil() || l.at.index == nil {
		return nil, refuse.Error(op, tensor.ErrArgument, "the Parametrized is incomplete: use RegisterParametrization")
	}
	w := l.Originals[0]
	if leave {
		if l.suffixes != nil {
			for _, part := range l.Parametrizations {
				if s, ok := part.(*spectralNorm); ok {
					s.SetTraining(false) // PyTorch's deprecated form computes no further iteration
				}
			}
		}
		err := tensor.WithScope(func() error {
			return autograd.NoGrad(func() error {
				y := l.compute()
				if err := y.Err(); err != nil {
					return err
				}
				if len(l.Originals) == 1 {
					return setData(w, y)
				}
				on := slices.ContainsFunc(l.Originals, (*tensor.Tensor).RequiresGrad)
				if w = NewParameter(y); w.Err() == nil && !on {
					w.RequiresGrad_(false)
				}
				return w.Err()
			})
		})
		if err != nil {
			return nil, err
		}
	}
	l.at.put(v.Elem(), w)
	l.standIn.Release()
	l.abandon(w)
	for _, part := range l.Parametrizations {
		if part != nil && factsOf(reflect.TypeOf(part)).library { // tensors of a user's may be used elsewhere
			Release(part)
		}
	}
	p.Lists = slices.DeleteFunc(slices.Clone(p.Lists), func(other *ParametrizationList) bool { return other == l })
	if len(p.Lists) == 0 {
		return p.Layer, nil
	}
	return p, nil
}

// Cached computes each parametrized parameter of m at most once while f runs, and again only in autograd.NoGrad or Inference
// if it was computed outside, or the reverse. It returns f's error. It saves time where a layer is applied several times, as
// in a recurrent network. A backward pass over a cached parameter needs tensor.RetainGraph if another follows.
// Other goroutines that apply m meanwhile share the parameter and its graph; do not train m on them. PyTorch:
// torch.nn.utils.parametrize.cached.
func Cached(m any, f func() error) error {
	if f == nil {
		return refuse.Nil("Cached", "a function")
	}
	var lists []*ParametrizationList
	for _, n := range NamedModules(m) {
		if p, ok := n.Module.(*Parametrized); ok {
			lists = append(lists, slices.DeleteFunc(slices.Clone(p.Lists), func(l *ParametrizationList) bool { return l == nil })...)
		}
	}
	for _, l := range lists {
		l.mu.Lock()
		l.caching++
		l.mu.Unlock()
	}
	defer func() {
		for _, l := range lists {
			l.mu.Lock()
			if l.caching--; l.caching == 0 {
				for i := range l.cached {
					l.cached[i].Release()
					l.cached[i] = nil
				}
			}
			l.mu.Unlock()
		}
	}()
	return f()
}

// parametrized visits the parts of p under PyTorch's names.
func (w *walker) parametrized(p *Parametrized, name string) {
	if w.hidden == nil {
		w.hidden = map[*tensor.Tensor]bool{}
	}
	for _, l := range p.Lists {
		if l != nil && l.standIn != nil {
			w.hidden[l.standIn] = true
		}
	}
	w.within("Layer", func() {
		v := reflect.ValueOf(p.Layer)
		if v.Kind() == reflect.Pointer {
			w.inner = v.Pointer()
		}
		w.value(v, name, parameter)
	})
	// In the deprecated form the originals are parameters of the layer and come before its buffers.
	for _, visit := range []func(l *ParametrizationList, name string){w.oldOriginals, w.oldParts, w.list} {
		for i, l := range p.Lists {
			if l == nil {
				continue
			}
			w.within("Lists", func() {
				w.path = append(w.path, step{index: i, kind: reflect.Slice})
				visit(l, name)
				w.path = w.path[:len(w.path)-1]
			})
		}
	}
}

// within runs f with a further field in the path.
func (w *walker) within(field string, f func()) {
	w.path = append(w.path, step{name: field, kind: reflect.Struct})
	f()
	w.path = w.path[:len(w.path)-1]
}

func (w *walker) list(l *ParametrizationList, name string) {
	if l.suffixes != nil {
		return
	}
	prefix := join(name, "parametrizations."+l.Name)
	for i, t := range l.Originals {
		w.value(reflect.ValueOf(t), join(prefix, l.original(i)), parameter)
	}
	for i, part := range l.Parametrizations {
		w.value(reflect.ValueOf(part), join(prefix, strconv.Itoa(i)), parameter)
	}
}

func (w *walker) oldOriginals(l *ParametrizationList, name string) {
	for i, t := range l.Originals[:min(len(l.Originals), len(l.suffixes))] {
		w.value(reflect.ValueOf(t), join(name, l.Name+l.suffixes[i]), parameter)
	}
}

// oldParts visits the parts of a list in the deprecated form: their names are appended to that of the parameter, and they are
// no modules.
func (w *walker) oldParts(l *ParametrizationList, name string) {
	if l.suffixes == nil {
		return
	}
	tensors, places, named := w.tensor, w.place, w.named
	if tensors != nil {
		w.tensor = func(suffix string, t *tensor.Tensor, r role) { tensors(join(name, l.Name+suffix), t, r) }
	}
	if places != nil {
		w.place = func(suffix string, v reflect.Value) { places(join(name, l.Name+suffix), v) }
	}
	w.named = nil
	for _, part := range l.Parametrizations {
		w.value(reflect.ValueOf(part), "", parameter)
	}
	w.tensor, w.place, w.named = tensors, places, named
}

// original returns the name of an original.
func (l *ParametrizationList) original(i int) string {
	if len(l.Originals) == 1 {
		return "original"
	}
	return fmt.Sprintf("original%d", i)
}

// renamed returns the state with the names that m has, where state has those of PyTorch's deprecated weight_norm.
func renamed(m any, state map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	out := state
	for _, n := range NamedModules(m) {
		p, ok := n.Module.(*Parametrized)
		if !ok {
			continue
		}
		for _, l := range p.Lists {
			if l == nil || l.suffixes != nil || len(l.Parametrizations) == 0 || len(l.Originals) != 2 {
				continue
			}
			if _, ok := l.Parametrizations[0].(*weightNorm); !ok {
				continue
			}
			old := [2]string{join(n.Name, l.Name+"_g"), join(n.Name, l.Name+"_v")}
			if state[old[0]] == nil || state[old[1]] == nil {
				continue
			}
			if reflect.ValueOf(out).Pointer() == reflect.ValueOf(state).Pointer() {
				out = make(map[string]*tensor.Tensor, len(state))
				for k, v := range state {
					out[k] = v
				}
			}
			for i, o := range old {
				delete(out, o)
				out[join(n.Name, "parametrizations."+l.Name+"."+l.original(i))] = state[o]
			}
		}
	}
	return out
}

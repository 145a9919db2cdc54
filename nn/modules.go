package nn

import (
	"reflect"
	"sort"
	"strconv"
	"sync/atomic"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Layer is a module with one input and one output. If the input is a failed tensor, the output carries its error.
//
// Forward borrows x: it does not keep x after it returns (a layer that needs to keep it keeps x.Alias()). It returns a new
// tensor or x itself. "linstock go" releases tensors by this contract; linstockvet reports layers that break it.
type Layer interface {
	Forward(x *tensor.Tensor) *tensor.Tensor
}

// Func adapts a function to a Layer. The function borrows x, as Forward does: it may keep x.Alias() but not x, and it
// returns a new tensor or x. To return a tensor that it keeps, it returns an Alias().
type Func func(x *tensor.Tensor) *tensor.Tensor

// Forward returns f(x).
func (f Func) Forward(x *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return noModule("Func")
	}
	return f(x)
}

// Named is a tensor with its name in the state dict, such as "blocks.0.attn.qkv.weight".
type Named struct {
	Name   string
	Tensor *tensor.Tensor
}

// State is the parameters and buffers of a module, in PyTorch's order.
type State []Named

// Map returns the tensors by name, in the form that LoadStateDict and checkpoint.Save take. If StateDict found an
// error, the map contains only the failed tensor that carries it.
func (s State) Map() map[string]*tensor.Tensor {
	if len(s) > 0 && s[0].Name == "" && !handle.Usable(s[0].Tensor) {
		s = s[:1]
	}
	m := make(map[string]*tensor.Tensor, len(s))
	for _, n := range s {
		m[n.Name] = n.Tensor
	}
	return m
}

// Parameters returns the parameters of m, also those that are frozen (RequiresGrad_(false)), each once, in PyTorch's
// order: a module's own before those of its submodules. If Check finds an error, the first element is a failed tensor
// that carries it, so that an optimizer returns the error. PyTorch: Module.parameters.
func Parameters(m any) []*tensor.Tensor {
	named := NamedParameters(m)
	ts := make([]*tensor.Tensor, len(named))
	for i, n := range named {
		ts[i] = n.Tensor
	}
	return ts
}

// NamedParameters returns the parameters with their names; a parameter with several names has the first. If Check finds
// an error, the first element is a failed tensor that carries it. PyTorch: Module.named_parameters.
func NamedParameters(m any) []Named { return checked(m, collect(m, false)) }

// NamedBuffers returns the tensors of m that are not trained, such as running statistics, also those that are not saved.
// PyTorch: Module.named_buffers.
func NamedBuffers(m any) []Named { return collect(m, true) }

func collect(m any, buffers bool) (out []Named) {
	seen := map[*tensor.Tensor]bool{}
	w := walker{once: true, tensor: func(name string, t *tensor.Tensor, r role) {
		if (r != parameter) == buffers && !seen[t] {
			seen[t] = true
			out = append(out, Named{name, t})
		}
	}}
	w.walk(reflect.ValueOf(m), "")
	return out
}

// StateDict returns the parameters and buffers of m under PyTorch's names, without the buffers that have the tag
// `nn:",nonpersistent"`. A tensor with several names (tied weights) is listed under each. The tensors are m's own, not
// copies. If Check finds an error, or if m has a merged LoRALinear, the first element is a failed tensor that carries the
// error, so that a function that saves the state returns it. PyTorch: Module.state_dict.
func StateDict(m any) State {
	err := Check(m)
	if err == nil {
		err = unmerged("StateDict", m)
	}
	return withError(err, saved(m))
}

// saved returns the parameters and buffers of m that belong to its state.
func saved(m any) State { return listed(m, buffer) }

// tensors returns all parameters and buffers of m.
func tensors(m any) State { return listed(m, transient) }

func listed(m any, last role) (out State) {
	seen := map[string]bool{}
	w := walker{tensor: func(name string, t *tensor.Tensor, r role) {
		if !seen[name] && r <= last {
			seen[name] = true
			out = append(out, Named{name, t})
		}
	}}
	w.walk(reflect.ValueOf(m), "")
	return out
}

// track assigns the tensors of m to the categories of vram.Explain by their roles.
func track(m any) {
	w := walker{once: true, tensor: func(_ string, t *tensor.Tensor, r role) {
		category := vram.Buffers
		if r == parameter {
			category = vram.Weights
		}
		tensor.Track(category, t)
	}}
	w.walk(reflect.ValueOf(m), "")
}

// Train puts m and its submodules in training mode, which enables dropout and makes batch norm use the batch's
// statistics. PyTorch: Module.train.
func Train(m any) { setTraining(m, true) }

// Eval puts m and its submodules in evaluation mode. It does not disable the recording of gradients; autograd.NoGrad
// does. PyTorch: Module.eval.
func Eval(m any) { setTraining(m, false) }

func setTraining(m any, on bool) {
	w := walker{once: true, module: func(m any) {
		if s, ok := m.(interface{ SetTraining(on bool) }); ok {
			s.SetTraining(on)
		}
	}}
	w.walk(reflect.ValueOf(m), "")
}

// Mode records whether a module is in training or evaluation mode. Modules that behave differently in the two embed it.
// The zero value is training mode, as in PyTorch. Train and Eval call its method SetTraining.
type Mode struct{ eval atomic.Bool }

// Training reports whether the module is in training mode.
func (m *Mode) Training() bool { return m != nil && !m.eval.Load() }

// SetTraining sets the mode of this module only; Train and Eval include its submodules.
func (m *Mode) SetTraining(on bool) {
	if m != nil {
		m.eval.Store(!on)
	}
}

// ZeroGrad sets the gradients of m's parameters to nil and returns Check's error, if any. PyTorch: Module.zero_grad.
func ZeroGrad(m any) error {
	if err := Check(m); err != nil {
		return err
	}
	named := collect(m, false)
	params := make([]*tensor.Tensor, len(named))
	for i, n := range named {
		params[i] = n.Tensor
	}
	return tensor.ZeroGrads(params, true)
}

// RequiresGrad_ makes all parameters of m require a gradient, or with RequiresGrad_(m, false) not require one, for example
// to freeze part of a model. Then it returns Check's error, if any. PyTorch: Module.requires_grad_.
func RequiresGrad_(m any, on ...bool) error {
	for _, n := range collect(m, false) {
		if err := n.Tensor.RequiresGrad_(on...).Err(); err != nil {
			return err
		}
	}
	return Check(m)
}

// Release frees the parameters and buffers of m now. Without it they are freed once the garbage collector finds them
// unreachable.
func Release(m any) {
	for _, n := range tensors(m) {
		n.Tensor.Release()
	}
	for _, n := range NamedModules(m) {
		if p, ok := n.Module.(*Parametrized); ok {
			for _, l := range p.Lists {
				if l != nil && l.standIn != nil {
					l.standIn.Release()
				}
			}
		}
	}
}

// walker visits the parts of a module.
type walker struct {
	once   bool // visit a shared module once, not under each of its names
	after  bool // call named after the visit of a module's parts, not before
	tensor func(name string, t *tensor.Tensor, r role)
	module func(m any)
	named  func(name string, m any) (in bool) // as module, without embedded structs; in: visit its parts, unless after
	place  func(name string, v reflect.Value) // of a tensor
	skip   func(name string) bool             // whether to leave out the value with that name
	open   map[unsafePointer]bool             // modules on the path from the root, to detect cycles
	hidden map[*tensor.Tensor]bool            // stand-ins of parametrized parameters
	inner  uintptr                            // the layer in a Parametrized, which stands for it in named
	path   []step                             // from the root to the current value
}

type unsafePointer struct {
	p uintptr
	t reflect.Type
}

func (w *walker) walk(v reflect.Value, name string) { w.value(v, name, parameter) }

// value visits the value of a field, an element or an interface.
func (w *walker) value(v reflect.Value, name string, r role) {
	if w.skip != nil && w.skip(name) {
		return
	}
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || !factsOf(v.Type()).walked {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if v.Type() == tensorType {
			if w.tensor != nil && v.CanInterface() && !w.hidden[v.Interface().(*tensor.Tensor)] {
				w.tensor(name, v.Interface().(*tensor.Tensor), r)
			}
			if w.place != nil && v.CanInterface() && !w.hidden[v.Interface().(*tensor.Tensor)] {
				w.place(name, v)
			}
			return
		}
		key := unsafePointer{v.Pointer(), v.Type()}
		if w.open == nil {
			w.open = map[unsafePointer]bool{}
		}
		if w.open[key] {
			return
		}
		w.open[key] = true
		// Reflection gives no access to a struct embedded under an unexported name, but does to its exported fields.
		if w.module != nil && v.CanInterface() {
			w.module(v.Interface())
		}
		named := w.named != nil && v.CanInterface() && v.Type().Elem().Kind() == reflect.Struct && v.Pointer() != w.inner
		if named {
			// A wrapper without parameters of its own stands for its layer.
			p, ok := v.Interface().(proxy)
			named = !ok || p.stands() == nil
		}
		switch {
		case named && !w.after && !w.named(name, v.Interface()):
		case v.Type() == parametrizedType && v.CanInterface():
			w.parametrized(v.Interface().(*Parametrized), name)
		default:
			w.value(v.Elem(), name, r)
		}
		if named && w.after {
			w.named(name, v.Interface())
		}
		// All modules of a type without fields may have one address.
		if !w.once || v.Type().Elem().Size() == 0 {
			delete(w.open, key)
		}
	case reflect.Struct:
		w.fields(v, name)
	case reflect.Slice, reflect.Array:
		named := dict(v.Type())
		for i := range v.Len() {
			w.path = append(w.path, step{index: i, kind: reflect.Slice})
			if part := v.Index(i); named {
				key, part := entry(part)
				w.value(part, join(name, key), r)
			} else {
				w.value(part, join(name, strconv.Itoa(i)), r)
			}
			w.path = w.path[:len(w.path)-1]
		}
	case reflect.Map:
		keys := v.MapKeys()
		sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
		for _, k := range keys {
			w.path = append(w.path, step{name: k.String(), kind: reflect.Map})
			w.value(v.MapIndex(k), join(name, k.String()), r)
			w.path = w.path[:len(w.path)-1]
		}
	}
}

// fields visits a struct in PyTorch's order: its own parameters, then its buffers, then its submodules.
func (w *walker) fields(v reflect.Value, name string) {
	plan := planOf(v.Type())
	for i := range plan.walked {
		f := &plan.walked[i]
		part := v.Field(f.index)
		// A field that is a struct, not a pointer to one, is a module too. The methods of an embedded struct are
		// promoted to the outer struct, unless that has its own.
		if w.module != nil && f.value && part.CanAddr() && part.CanInterface() && !(f.embedded && plan.training) {
			w.module(part.Addr().Interface())
		}
		named := w.named != nil && f.value && part.CanAddr() && part.CanInterface() && !f.embedded
		if named && !w.after && !w.named(join(name, f.name), part.Addr().Interface()) {
			continue
		}
		w.path = append(w.path, step{name: f.goName, kind: reflect.Struct})
		w.value(part, join(name, f.name), f.role)
		w.path = w.path[:len(w.path)-1]
		if named && w.after {
			w.named(join(name, f.name), part.Addr().Interface())
		}
	}
}

func join(prefix, name string) string {
	switch {
	case name == "":
		return prefix
	case prefix == "":
		return name
	}
	return prefix + "." + name
}

func init() { handle.Places = places } // for dist.Shard

// places returns, for each tensor of m, the fields that hold it, or nil if one of them cannot be set.
func places(m any) map[*tensor.Tensor][]**tensor.Tensor {
	out, fixed := map[*tensor.Tensor][]**tensor.Tensor{}, map[*tensor.Tensor]bool{}
	w := walker{once: true, place: func(_ string, v reflect.Value) {
		t := v.Interface().(*tensor.Tensor)
		if !v.CanSet() {
			fixed[t] = true
			return
		}
		out[t] = append(out[t], v.Addr().Interface().(**tensor.Tensor))
	}}
	w.walk(reflect.ValueOf(m), "")
	for t, is := range fixed {
		if is {
			out[t] = nil
		}
	}
	return out
}

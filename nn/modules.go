package nn

import (
	"reflect"
	"sort"
	"strconv"
	"sync/atomic"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/tensor"
)

// Layer is a module with one input and one output. A failed tensor goes through it: what the layer returns
// carries the error.
type Layer interface {
	Forward(x *tensor.Tensor) *tensor.Tensor
}

// Func makes a Layer of a function.
type Func func(x *tensor.Tensor) *tensor.Tensor

// Forward calls f.
func (f Func) Forward(x *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return noModule("Func")
	}
	return f(x)
}

// Named is a tensor with the name that PyTorch would give it: "blocks.0.attn.qkv.weight".
type Named struct {
	Name   string
	Tensor *tensor.Tensor
}

// State is a module's parameters and buffers in order.
type State []Named

// Map returns the same by name, as LoadStateDict and checkpoint.Save take it. If Check found an error, the failed tensor
// alone is in it.
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

// Parameters returns the tensors that m learns, each once, in PyTorch's order: a module's own before its parts'. If
// Check finds an error, the first one is a failed tensor that carries it, so that an optimizer returns it. PyTorch:
// Module.parameters.
func Parameters(m any) []*tensor.Tensor {
	named := NamedParameters(m)
	ts := make([]*tensor.Tensor, len(named))
	for i, n := range named {
		ts[i] = n.Tensor
	}
	return ts
}

// NamedParameters returns the parameters with their names; one that has several has its first. If Check finds an error,
// the first one is a failed tensor that carries it. PyTorch: Module.named_parameters.
func NamedParameters(m any) []Named { return checked(m, collect(m, false)) }

// NamedBuffers returns the tensors that m keeps without learning them, such as running statistics. PyTorch:
// Module.named_buffers.
func NamedBuffers(m any) []Named { return collect(m, true) }

func collect(m any, buffers bool) (out []Named) {
	seen := map[*tensor.Tensor]bool{}
	w := walker{once: true, tensor: func(name string, t *tensor.Tensor, buffer bool) {
		if buffer == buffers && !seen[t] {
			seen[t] = true
			out = append(out, Named{name, t})
		}
	}}
	w.walk(reflect.ValueOf(m), "")
	return out
}

// StateDict returns what m is saved as: parameters and buffers under PyTorch's names. A tensor with several names (tied
// weights) stands under each. The tensors are m's own, not copies. If Check finds an error, the first one is a failed
// tensor that carries it, so that a function which saves them returns it. PyTorch: Module.state_dict.
func StateDict(m any) State { return checked(m, tensors(m)) }

// tensors returns the parameters and buffers that m has.
func tensors(m any) (out State) {
	seen := map[string]bool{}
	w := walker{tensor: func(name string, t *tensor.Tensor, _ bool) {
		if !seen[name] {
			seen[name] = true
			out = append(out, Named{name, t})
		}
	}}
	w.walk(reflect.ValueOf(m), "")
	return out
}

// Train switches m and its parts to training: dropout drops, batch norm uses the batch. PyTorch: Module.train.
func Train(m any) { setTraining(m, true) }

// Eval switches m and its parts to evaluation. It does not stop the recording of gradients: autograd.NoGrad does.
// PyTorch: Module.eval.
func Eval(m any) { setTraining(m, false) }

func setTraining(m any, on bool) {
	w := walker{once: true, module: func(m any) {
		if s, ok := m.(interface{ SetTraining(on bool) }); ok {
			s.SetTraining(on)
		}
	}}
	w.walk(reflect.ValueOf(m), "")
}

// Mode says whether a module is training. Modules that care embed it; its zero value is training, as in PyTorch.
// Train and Eval find it by its method SetTraining.
type Mode struct{ eval atomic.Bool }

// Training says whether the module is training.
func (m *Mode) Training() bool { return m != nil && !m.eval.Load() }

// SetTraining switches this module alone; Train and Eval switch its parts too.
func (m *Mode) SetTraining(on bool) {
	if m != nil {
		m.eval.Store(!on)
	}
}

// ZeroGrad sets the gradients of m's parameters to nil. It returns Check's error if there is one. PyTorch:
// Module.zero_grad.
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

// RequiresGrad_ switches the recording of gradients on or off for all of m's parameters, for example to freeze a part of
// a model. Then it returns Check's error if there is one. PyTorch: Module.requires_grad_.
func RequiresGrad_(m any, on bool) error {
	for _, n := range collect(m, false) {
		if err := n.Tensor.RequiresGrad_(on).Err(); err != nil {
			return err
		}
	}
	return Check(m)
}

// Release frees m's parameters and buffers now instead of when the garbage collector finds them unreachable.
func Release(m any) {
	for _, n := range tensors(m) {
		n.Tensor.Release()
	}
}

// walker goes through a module's parts.
type walker struct {
	once   bool // visit a shared module once, not under each of its names
	tensor func(name string, t *tensor.Tensor, buffer bool)
	module func(m any)
	open   map[unsafePointer]bool // modules on the way from the root: a cycle ends here
	path   []step                 // to the present value
}

type unsafePointer struct {
	p uintptr
	t reflect.Type
}

func (w *walker) walk(v reflect.Value, name string) { w.value(v, name, false) }

// value walks what a field, an element or an interface holds.
func (w *walker) value(v reflect.Value, name string, buffer bool) {
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
			if w.tensor != nil && v.CanInterface() {
				w.tensor(name, v.Interface().(*tensor.Tensor), buffer)
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
		// A struct embedded under an unexported name cannot be had, but its exported fields can.
		if w.module != nil && v.CanInterface() {
			w.module(v.Interface())
		}
		w.value(v.Elem(), name, buffer)
		if !w.once {
			delete(w.open, key)
		}
	case reflect.Struct:
		w.fields(v, name)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.path = append(w.path, step{index: i, kind: reflect.Slice})
			w.value(v.Index(i), join(name, strconv.Itoa(i)), buffer)
			w.path = w.path[:len(w.path)-1]
		}
	case reflect.Map:
		keys := v.MapKeys()
		sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
		for _, k := range keys {
			w.path = append(w.path, step{name: k.String(), kind: reflect.Map})
			w.value(v.MapIndex(k), join(name, k.String()), buffer)
			w.path = w.path[:len(w.path)-1]
		}
	}
}

// fields goes through a struct in PyTorch's order: its own parameters, then its buffers, then its parts.
func (w *walker) fields(v reflect.Value, name string) {
	plan := planOf(v.Type())
	for i := range plan.walked {
		f := &plan.walked[i]
		part := v.Field(f.index)
		// A part that is a struct itself, not a pointer to one, is a module too. The methods of an embedded one are the
		// outer struct's, unless that has its own.
		if w.module != nil && f.value && part.CanAddr() && part.CanInterface() && !(f.embedded && plan.training) {
			w.module(part.Addr().Interface())
		}
		w.path = append(w.path, step{name: f.goName, kind: reflect.Struct})
		w.value(part, join(name, f.name), f.buffer)
		w.path = w.path[:len(w.path)-1]
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

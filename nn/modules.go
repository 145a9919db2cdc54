package nn

import (
	"reflect"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

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

// Map is the same by name, as LoadStateDict takes it.
func (s State) Map() map[string]*tensor.Tensor {
	m := make(map[string]*tensor.Tensor, len(s))
	for _, n := range s {
		m[n.Name] = n.Tensor
	}
	return m
}

// Parameters returns the tensors that m learns, each once, in PyTorch's order: a module's own before its parts'. If
// Check finds an error, the last one is a failed tensor that carries it, so that an optimizer returns it. PyTorch:
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
// the last one is a failed tensor that carries it. PyTorch: Module.named_parameters.
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
// weights) stands under each. The tensors are m's own, not copies. If Check finds an error, the last one is a failed
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

// ZeroGrad takes the gradients of m's parameters away. PyTorch: Module.zero_grad.
func ZeroGrad(m any) error { return tensor.ZeroGrads(Parameters(m), true) }

// RequiresGrad_ switches the recording of gradients on or off for all of m's parameters, to freeze a part of a
// model say. PyTorch: Module.requires_grad_.
func RequiresGrad_(m any, on bool) error {
	for _, p := range Parameters(m) {
		if err := p.RequiresGrad_(on).Err(); err != nil {
			return err
		}
	}
	return nil
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
	open   map[unsafePointer]bool // modules on the way from the root: cycles end here
}

type unsafePointer struct {
	p uintptr
	t reflect.Type
}

var tensorType = reflect.TypeFor[*tensor.Tensor]()

func (w *walker) walk(v reflect.Value, name string) { w.value(v, name, false) }

// value walks what a field, an element or an interface holds.
func (w *walker) value(v reflect.Value, name string, buffer bool) {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || !mayHold(v.Type()) {
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
		// What is embedded under an unexported name cannot be had, but its exported fields can.
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
			w.value(v.Index(i), join(name, strconv.Itoa(i)), buffer)
		}
	case reflect.Map:
		keys := v.MapKeys()
		sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
		for _, k := range keys {
			w.value(v.MapIndex(k), join(name, k.String()), buffer)
		}
	}
}

// fields goes through a struct as PyTorch does: its own parameters, then its buffers, then its parts.
func (w *walker) fields(v reflect.Value, name string) {
	for _, f := range planOf(v.Type()) {
		part := v.Field(f.index)
		// A part that is a struct itself, not a pointer to one, is a module too.
		// What is embedded speaks through the module around it, unless that has no method of its own.
		if w.module != nil && part.Kind() == reflect.Struct && part.CanAddr() && part.CanInterface() && !(f.embedded && isModule(reflect.PointerTo(v.Type()))) {
			w.module(part.Addr().Interface())
		}
		w.value(part, join(name, f.name), f.buffer)
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

type field struct {
	index            int
	name             string // empty: no part of the names below it
	buffer, embedded bool
}

var plans sync.Map // reflect.Type of a struct → []field

func planOf(t reflect.Type) []field {
	if p, ok := plans.Load(t); ok {
		return p.([]field)
	}
	var params, buffers, parts []field
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.IsExported() && !sf.Anonymous || !mayHold(sf.Type) {
			continue
		}
		tag, has := sf.Tag.Lookup("nn")
		name, rest, _ := strings.Cut(tag, ",")
		if name == "-" {
			continue
		}
		f := field{index: i, name: name, buffer: rest == "buffer", embedded: sf.Anonymous}
		switch {
		case name == ".", sf.Anonymous && !has:
			f.name = ""
		case name == "":
			f.name = snake(sf.Name)
		}
		switch {
		case sf.Type != tensorType:
			parts = append(parts, f)
		case f.buffer:
			buffers = append(buffers, f)
		default:
			params = append(params, f)
		}
	}
	plan := append(append(params, buffers...), parts...)
	plans.Store(t, plan)
	return plan
}

var holds sync.Map // reflect.Type → bool

// mayHold says whether a value of type t can hold a tensor somewhere in its exported parts.
func mayHold(t reflect.Type) bool {
	if h, ok := holds.Load(t); ok {
		return h.(bool)
	}
	h := search(t, map[reflect.Type]bool{})
	holds.Store(t, h)
	return h
}

func search(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer:
		// The walk goes through pointers to modules and tensors, not through pointers to pointers.
		return t == tensorType || t.Elem().Kind() == reflect.Struct && search(t.Elem(), seen) || isModule(t)
	case reflect.Slice, reflect.Array:
		return search(t.Elem(), seen)
	case reflect.Map:
		return t.Key().Kind() == reflect.String && search(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); (f.IsExported() || f.Anonymous) && search(f.Type, seen) {
				return true
			}
		}
		return isModule(reflect.PointerTo(t))
	}
	return false
}

var errType = reflect.TypeFor[interface{ Err() error }]()

var modeType = reflect.TypeFor[interface{ SetTraining(on bool) }]()

// isModule reports whether t has a method that the walk calls.
func isModule(t reflect.Type) bool { return t.Implements(modeType) || t.Implements(errType) }

// snake is PyTorch's way of writing a Go name: LN1 is ln1, RunningMean running_mean, QKVProj qkv_proj.
func snake(name string) string {
	runes := []rune(name)
	var b strings.Builder
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) {
			next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if !unicode.IsUpper(runes[i-1]) || next {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

package nn

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/internal/nntag"
	"github.com/linstock-ml/linstock/tensor"
)

var (
	tensorType   = reflect.TypeFor[*tensor.Tensor]()
	errType      = reflect.TypeFor[interface{ Err() error }]()
	mutexType    = reflect.TypeFor[sync.Mutex]()
	rwMutexType  = reflect.TypeFor[sync.RWMutex]()
	trainingType = reflect.TypeFor[interface{ SetTraining(on bool) }]()
)

// facts caches what the walks need to know about a type, because reflection is slow.
type facts struct {
	walked   bool // a value may hold tensors or modules that walker visits
	concerns bool // a value may hold something that Check reports
	holds    bool // the type itself declares tensors or modules
	module   bool // has a method Forward or SetTraining
	err      bool // has a method Err() error
	library  bool // a layer of this package that cannot run user code
	locks    bool // a struct or an array with a mutex or an atomic value in it
}

var allFacts sync.Map // reflect.Type → *facts

func factsOf(t reflect.Type) *facts {
	if f, ok := allFacts.Load(t); ok {
		return f.(*facts)
	}
	f := &facts{
		walked:   walked(t, map[reflect.Type]bool{}),
		concerns: concerns(t, map[reflect.Type]bool{}),
		holds:    holds(t, ""),
		module:   isModule(t),
		err:      t.Implements(errType),
		library:  library(t, map[reflect.Type]bool{}),
		locks:    locks(t),
	}
	allFacts.Store(t, f)
	return f
}

// isModule reports whether t has a method Forward or SetTraining.
func isModule(t reflect.Type) bool {
	_, forward := t.MethodByName("Forward")
	return forward || t.Implements(trainingType)
}

// library reports whether t is declared in this package and has no exported part through which it could call a layer or
// function of another package. A Func calls a user's function; a Sequential is judged by its layers.
func library(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == reflect.TypeFor[Func]() {
		return false
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.PkgPath() == reflect.TypeFor[Linear]().PkgPath() && (t.Kind() != reflect.Struct || closed(t, seen))
}

// closed reports whether t has no exported part that is an interface or a function.
func closed(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return true
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface, reflect.Func:
		return false
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return closed(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && !closed(f.Type, seen) {
				return false
			}
		}
	}
	return true
}

// locks reports whether a value of type t has a mutex or a value of sync/atomic in itself, not behind a pointer.
func locks(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return locks(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if locks(t.Field(i).Type) {
				return true
			}
		}
		return t == mutexType || t == rwMutexType || isAtomic(t)
	}
	return false
}

// synchronizer returns the type of package sync of which a value of type t has one in itself, not behind a pointer. Structs of
// this package do not count.
func synchronizer(t reflect.Type) (held reflect.Type, ok bool) {
	switch {
	case t.Kind() == reflect.Array:
		return synchronizer(t.Elem())
	case t.Kind() != reflect.Struct || t.PkgPath() == reflect.TypeFor[Linear]().PkgPath():
		return nil, false
	case t.PkgPath() == mutexType.PkgPath():
		return t, true
	}
	for i := range t.NumField() {
		if held, ok := synchronizer(t.Field(i).Type); ok {
			return held, true
		}
	}
	return nil, false
}

// isAtomic reports whether t is a type of sync/atomic, such as Bool.
func isAtomic(t reflect.Type) bool { return t.PkgPath() == reflect.TypeFor[atomic.Bool]().PkgPath() }

// walked reports whether a value of type t can be a module or hold a tensor or module in its exported parts.
func walked(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Pointer:
		// The walk follows pointers to structs, but not pointers to pointers.
		return t == tensorType || t.Elem().Kind() == reflect.Struct && walked(t.Elem(), seen) || isModule(t)
	case reflect.Slice, reflect.Array:
		return walked(t.Elem(), seen)
	case reflect.Map:
		return t.Key().Kind() == reflect.String && walked(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); (f.IsExported() || f.Anonymous) && walked(f.Type, seen) {
				return true
			}
		}
		return isModule(reflect.PointerTo(t))
	}
	return false
}

// concerns reports whether a value of type t can hold something that Check reports. It is true wherever walked is.
func concerns(t reflect.Type, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return true
	case reflect.Func:
		return isModule(t)
	case reflect.Pointer:
		return t == tensorType || isModule(t) || concerns(t.Elem(), seen)
	case reflect.Slice, reflect.Array, reflect.Map:
		return concerns(t.Elem(), seen)
	case reflect.Struct:
		if t == tensorType.Elem() || isModule(reflect.PointerTo(t)) {
			return true
		}
		for i := range t.NumField() {
			if concerns(t.Field(i).Type, seen) {
				return true
			}
		}
	}
	return false
}

// holds reports whether the type t declares tensors or modules anywhere, including where the walk does not find them
// and in unexported fields of structs of the package pkg. An interface counts if it has a method Forward; a function
// does not count.
func holds(t reflect.Type, pkg string) bool { return holding(t, pkg, map[reflect.Type]bool{}) }

func holding(t reflect.Type, pkg string, seen map[reflect.Type]bool) bool {
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Interface:
		return isModule(t)
	case reflect.Pointer:
		return t == tensorType || isModule(t) || holding(t.Elem(), pkg, seen)
	case reflect.Slice, reflect.Array, reflect.Map:
		return holding(t.Elem(), pkg, seen)
	case reflect.Struct:
		if t == tensorType.Elem() || isModule(reflect.PointerTo(t)) {
			return true
		}
		for i := range t.NumField() {
			f := t.Field(i)
			visible := f.IsExported() || f.Anonymous || pkg != "" && t.PkgPath() == pkg
			if visible && f.Name != "_" && !strings.HasPrefix(f.Tag.Get("nn"), "-") && holding(f.Type, pkg, seen) {
				return true
			}
		}
	}
	return false
}

// plan describes how the walks handle a struct type.
type plan struct {
	walked   []field // visited by walker: parameters, buffers, submodules
	concerns []field // visited by Check, in the struct's order
	hidden   []int   // unexported interface fields, which may hold a module
	faults   []fault // faults of the type itself, which Check reports
	open     bool    // state names depend on values, so Check must compare them at run time
	module   bool    // a module by its methods or fields
	training bool    // has a method SetTraining
}

type field struct {
	index              int
	name               string // in the state; empty if the parts below have no prefix
	goName             string
	role               role
	optional, embedded bool
	value              bool // a struct, not a pointer to one
}

// role is what a tensor is in a module.
type role int

const (
	parameter role = iota
	buffer         // saved, but not trained
	transient      // a buffer that is not saved
)

type fault struct {
	field, message string
	hidden         bool // an unexported field
}

var plans sync.Map // reflect.Type of a struct → *plan

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := newPlan(t)
	p.compareNames(t)
	plans.Store(t, p)
	return p
}

const unexported = "is unexported and holds a %v, which is not found: export it, or tag it `nn:\"-\"`"

func newPlan(t reflect.Type) *plan {
	ptr := reflect.PointerTo(t)
	p := &plan{module: isModule(ptr) || holds(t, ""), training: ptr.Implements(trainingType)}
	var params, buffers, parts []field
	for i := range t.NumField() {
		sf := t.Field(i)
		if sf.Name == "_" {
			continue
		}
		tag := nntag.Parse(sf.Tag, sf.Name, sf.Anonymous)
		for _, o := range tag.Unknown {
			p.faults = append(p.faults, fault{field: sf.Name, message: fmt.Sprintf("has the tag option %q, which does not exist; the options are %s", o, strings.Join(nntag.Options, ", "))})
		}
		if tag.Skip {
			continue
		}
		if !sf.IsExported() && !sf.Anonymous {
			switch {
			case holds(sf.Type, t.PkgPath()):
				p.faults = append(p.faults, fault{field: sf.Name, message: fmt.Sprintf(unexported, sf.Type), hidden: true})
			case sf.Type.Kind() == reflect.Interface:
				p.hidden = append(p.hidden, i)
			}
			continue
		}
		f := field{index: i, name: tag.Name, goName: sf.Name, embedded: sf.Anonymous, value: sf.Type.Kind() == reflect.Struct,
			optional: tag.Has("optional")}
		switch {
		case tag.Has("nonpersistent"):
			f.role = transient
		case tag.Has("buffer"):
			f.role = buffer
		}
		if factsOf(sf.Type).concerns {
			p.concerns = append(p.concerns, f)
		}
		switch {
		case !factsOf(sf.Type).walked:
		case sf.Type != tensorType:
			parts = append(parts, f)
		case f.role != parameter:
			buffers = append(buffers, f)
		default:
			params = append(params, f)
		}
	}
	p.walked = append(append(params, buffers...), parts...)
	return p
}

const sameName = " has the state name "

// compareNames finds fields with the same state name, also in structs whose fields have no prefix.
func (p *plan) compareNames(t reflect.Type) {
	type origin struct{ prefix, field string }
	known := map[string]origin{}
	unknown := 0                           // slices, maps and interfaces without a prefix; only their values have names
	seen := map[reflect.Type]bool{t: true} // types on the path from t
	var compare func(t reflect.Type, fields []field, prefix string)
	compare = func(t reflect.Type, fields []field, prefix string) {
		for _, f := range fields {
			at := prefix + f.goName
			if f.name == "" {
				inner := t.Field(f.index).Type
				if inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				if inner.Kind() != reflect.Struct {
					unknown++
				} else if !seen[inner] {
					seen[inner] = true
					compare(inner, newPlan(inner).walked, at+".")
					delete(seen, inner)
				}
				continue
			}
			p.open = p.open || strings.Contains(f.name, ".")
			first, ok := known[f.name]
			switch {
			case !ok:
				known[f.name] = origin{prefix, at}
			case prefix == "" || first.prefix != prefix: // otherwise it is a fault of the inner struct
				p.faults = append(p.faults, fault{field: at, message: fmt.Sprintf("%s%q, as does %s", sameName[1:], f.name, first.field)})
			}
		}
	}
	compare(t, p.walked, "")
	p.open = p.open || unknown > 0 && unknown+len(known) > 1
}

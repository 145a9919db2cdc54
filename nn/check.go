package nn

import (
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/locate"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Check reports mistakes in the module m that would lose a parameter silently or fail later: it returns an error for
// each, joined by errors.Join, or nil. Each error names the field in Go's notation, with m for the argument:
// m.Blocks[0].Attn. The parts of a module that has an error of its own are not checked. The package documentation lists
// the rules. Parameters, NamedParameters, StateDict, LoadStateDict, To and ZeroGrad call Check, and so do the optimizers
// and package checkpoint through them. Check does not see a tensor that belongs to a scope: it is released when the scope
// closes, and uses after that return tensor.ErrReleased. NewParameter and Tensor.Keep prevent it.
func Check(m any) error {
	v := reflect.ValueOf(m)
	switch v.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Slice, reflect.Array, reflect.Map:
	case reflect.Invalid:
		return nilModule("Check")
	default:
		if !factsOf(v.Type()).module {
			return refuse.Error("Check", tensor.ErrArgument, "a module is needed, usually a pointer to a struct, got %v", v.Type())
		}
	}
	var c checker
	c.visit(v, "", &field{})
	if c.open {
		c.names(v)
	}
	return errors.Join(c.errs...)
}

// checked prepends a failed tensor that carries Check's error, if there is one.
func checked(m any, named []Named) []Named { return withError(Check(m), named) }

// withError prepends a failed tensor that carries err, if it is not nil.
func withError(err error, named []Named) []Named {
	if err != nil {
		named = append([]Named{{"", tensor.Failed(err)}}, named...)
	}
	return named
}

// checker visits a module as walker does, and also the values that walker does not visit.
type checker struct {
	path []step
	seen map[unsafePointer]bool
	open bool // a struct was visited whose state names depend on values
	errs []error
}

// step is one element of a path: a field, or the index or key of an element.
type step struct {
	name  string
	index int
	kind  reflect.Kind // what the step leads into: Struct, Slice or Map
}

func (s step) String() string {
	switch s.kind {
	case reflect.Slice:
		return "[" + strconv.Itoa(s.index) + "]"
	case reflect.Map:
		return "[" + strconv.Quote(s.name) + "]"
	}
	return "." + s.name
}

func (c *checker) at() string { return pathString(c.path) }

func pathString(path []step) string {
	var b strings.Builder
	b.WriteByte('m')
	for _, s := range path {
		b.WriteString(s.String())
	}
	return b.String()
}

func (c *checker) report(kind error, format string, args ...any) {
	c.errs = append(c.errs, refuse.Error("Check", kind, "%s", c.at()+" "+fmt.Sprintf(format, args...)))
}

func (c *checker) nilModule(t reflect.Type) {
	if len(c.path) == 0 {
		c.report(tensor.ErrNil, "is a nil %v", t)
		return
	}
	c.report(tensor.ErrNil, "is a nil %v: a module is needed, or the tag `nn:\",optional\"`", t)
}

// visit checks a value that the field f holds, directly or in a slice or map. pkg is the package of the enclosing
// struct.
func (c *checker) visit(v reflect.Value, pkg string, f *field) {
	t := v.Type()
	switch t.Kind() {
	case reflect.Interface:
		if !v.IsNil() {
			c.visit(v.Elem(), pkg, f)
		} else if !f.optional && factsOf(t).module {
			c.nilModule(t)
		}
	case reflect.Func:
		if v.IsNil() && !f.optional && factsOf(t).module {
			c.nilModule(t)
		}
	case reflect.Pointer:
		c.pointer(v, pkg, f)
	case reflect.Struct:
		if t == tensorType.Elem() {
			c.report(tensor.ErrArgument, "is a tensor.Tensor: a *tensor.Tensor is needed")
			return
		}
		c.fields(v, pkg)
	case reflect.Slice, reflect.Array:
		if !factsOf(t.Elem()).concerns {
			return
		}
		named, known := dict(t), map[string]int{}
		for i := range v.Len() {
			part := v.Index(i)
			c.path = append(c.path, step{index: i, kind: reflect.Slice})
			if named {
				var key string
				key, part = entry(part)
				c.open = c.open || strings.Contains(key, ".")
				if first, ok := known[key]; ok {
					c.report(tensor.ErrArgument, "has the name %q, as does element %d", key, first)
				}
				known[key] = i
				if part.Kind() == reflect.Interface && part.IsNil() && !f.optional {
					c.nilModule(part.Type())
				}
			}
			c.visit(part, pkg, f)
			c.path = c.path[:len(c.path)-1]
		}
	case reflect.Map:
		c.mapping(v, pkg, f)
	}
}

func (c *checker) pointer(v reflect.Value, pkg string, f *field) {
	t := v.Type()
	if t == tensorType {
		if !v.IsNil() && v.CanInterface() {
			c.tensor(v.Interface().(*tensor.Tensor), f)
		}
		return
	}
	facts := factsOf(t)
	switch {
	case t.Elem().Kind() != reflect.Struct:
		if facts.holds {
			c.report(tensor.ErrArgument, "is a %v, which cannot be searched for parts: use a pointer to a struct, a slice or a map", t)
		}
	case v.IsNil():
		if !f.optional && facts.holds {
			c.nilModule(t)
		}
	default:
		key := unsafePointer{v.Pointer(), t}
		if c.seen[key] {
			return
		}
		if c.seen == nil {
			c.seen = map[unsafePointer]bool{}
		}
		c.seen[key] = true
		if c.module(v, facts) {
			c.fields(v.Elem(), pkg)
		}
	}
}

// module reports the error that a module carries, and returns true if there is none. A module that could not be made
// may lack parts, which are not checked. Reflection cannot call methods of a struct embedded under an unexported name.
func (c *checker) module(v reflect.Value, facts *facts) bool {
	if !facts.err || !facts.module || !v.CanInterface() {
		return true
	}
	err := v.Interface().(interface{ Err() error }).Err()
	if err == nil {
		return true
	}
	// The method may be promoted from an embedded module, whose error is reported already. Without libtorch, all modules
	// have one error.
	for _, e := range c.errs {
		if errors.Is(e, err) || notLoaded(e) && notLoaded(err) {
			return false
		}
	}
	c.errs = append(c.errs, fmt.Errorf("linstock: Check: %s: %w", c.at(), err))
	return false
}

// notLoaded reports whether err says why libtorch cannot be loaded.
func notLoaded(err error) bool {
	var fault *locate.Fault
	return errors.Is(err, locate.ErrMissing) || errors.As(err, &fault)
}

func (c *checker) fields(v reflect.Value, pkg string) {
	t := v.Type()
	plan := planOf(t)
	// A struct of another package may have unexported tensors, unless it is a module.
	whole := plan.module || pkg == t.PkgPath()
	for _, f := range plan.faults {
		if whole || !f.hidden {
			c.path = append(c.path, step{name: f.field, kind: reflect.Struct})
			c.report(tensor.ErrArgument, "%s", f.message)
			c.path = c.path[:len(c.path)-1]
		}
	}
	for _, i := range plan.hidden {
		if x := v.Field(i).Elem(); whole && x.IsValid() && holds(x.Type(), t.PkgPath()) {
			c.path = append(c.path, step{name: t.Field(i).Name, kind: reflect.Struct})
			c.report(tensor.ErrArgument, unexported, x.Type())
			c.path = c.path[:len(c.path)-1]
		}
	}
	c.open = c.open || plan.open
	for i := range plan.concerns {
		f := &plan.concerns[i]
		part := v.Field(f.index)
		c.path = append(c.path, step{name: f.goName, kind: reflect.Struct})
		if !f.value || !part.CanAddr() || c.module(part.Addr(), factsOf(reflect.PointerTo(part.Type()))) {
			c.visit(part, t.PkgPath(), f)
		}
		c.path = c.path[:len(c.path)-1]
	}
}

func (c *checker) mapping(v reflect.Value, pkg string, f *field) {
	t := v.Type()
	if !factsOf(t.Elem()).concerns {
		return
	}
	if t.Key().Kind() != reflect.String {
		found := holds(t.Elem(), pkg)
		for it := v.MapRange(); !found && it.Next(); {
			x := it.Value()
			for x.Kind() == reflect.Interface {
				x = x.Elem()
			}
			found = x.IsValid() && holds(x.Type(), pkg)
		}
		if found {
			c.report(tensor.ErrArgument, "is a %v, which cannot be searched for parts: its keys must be strings, which become names in the state", t)
		}
		return
	}
	keys := v.MapKeys()
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	for _, k := range keys {
		c.open = c.open || strings.Contains(k.String(), ".")
		c.path = append(c.path, step{name: k.String(), kind: reflect.Map})
		c.visit(v.MapIndex(k), pkg, f)
		c.path = c.path[:len(c.path)-1]
	}
}

func (c *checker) tensor(t *tensor.Tensor, f *field) {
	if !handle.Usable(t) {
		if bad := unusable("Check", t); bad != nil {
			c.errs = append(c.errs, fmt.Errorf("linstock: Check: %s is unusable: %w", c.at(), bad.Err()))
		}
		return
	}
	if f.role != parameter || handle.Decided(t) || t.RequiresGrad() {
		return
	}
	if d := t.DType(); !d.IsFloat() && !d.IsComplex() {
		c.report(tensor.ErrArgument, "is %v and cannot be trained: the tag `nn:\",buffer\"` is missing", d)
		return
	}
	c.report(tensor.ErrArgument, "is neither a parameter nor a buffer: use NewParameter or RequiresGrad_ "+
		"(RequiresGrad_(false) for a frozen one), or the tag `nn:\",buffer\"`")
}

// names reports fields whose tensors have the same state name, where this depends on values: elements without a prefix
// beside other fields, and names that contain dots.
func (c *checker) names(root reflect.Value) {
	known := map[string][]step{}
	told := map[string]bool{}
	w := walker{}
	w.tensor = func(name string, _ *tensor.Tensor, _ role) {
		path := append([]step{}, w.path...)
		first, ok := known[name]
		if !ok {
			known[name] = path
			return
		}
		// Report the fields with the same name, not each tensor in them.
		for len(first) > 1 && len(path) > 1 && first[len(first)-1] == path[len(path)-1] {
			first, path = first[:len(first)-1], path[:len(path)-1]
		}
		a, b := pathString(first), pathString(path)
		if told[a+b] {
			return
		}
		told[a+b] = true
		for _, e := range c.errs {
			if strings.Contains(e.Error(), b+sameName) {
				return
			}
		}
		c.path = path
		c.report(tensor.ErrArgument, "has a tensor with the state name %q, as does %s", name, a)
	}
	w.walk(root, "")
}

package nn

import (
	"reflect"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/tensor"
)

// Clone returns a deep copy of the module m: it has tensors of its own with m's values and the same RequiresGrad, and
// tensors and modules that m has in several places are one in the copy too. Gradients are not copied. Unexported fields,
// and those with the tag `nn:"-"`, are copied as by assignment, but mutexes in the copy are new: other goroutines may
// apply m or set its mode meanwhile. A mutex that guards what m and its copy share, such as a map in an unexported field,
// must be behind a pointer. If a tensor cannot be copied, such as one that dist.Shard has divided, the copy has a failed
// tensor in its place, which Check reports. The copy of nil is nil. PyTorch: copy.deepcopy.
func Clone[T any](m T) T {
	c := cloner{tensors: map[*tensor.Tensor]*tensor.Tensor{}, pointers: map[unsafePointer]reflect.Value{}}
	out := copied(&c, m)
	track(out)
	_ = flattenWeights(out) // on failure, the copy's passes copy the weights
	return out
}

// copied returns c's copy of m, which may be a nil interface.
func copied[T any](c *cloner, m T) (out T) {
	reflect.ValueOf(&out).Elem().Set(c.value(reflect.ValueOf(&m).Elem()))
	return out
}

type cloner struct {
	tensors  map[*tensor.Tensor]*tensor.Tensor
	pointers map[unsafePointer]reflect.Value
	shared   bool // tensors that are not in tensors are not copied
}

func (c *cloner) tensor(t *tensor.Tensor) *tensor.Tensor {
	if t == nil {
		return nil
	}
	if known, ok := c.tensors[t]; ok {
		return known
	}
	if c.shared {
		return t
	}
	if err := undivided("Clone", "", t); err != nil {
		c.tensors[t] = tensor.Failed(err)
		return c.tensors[t]
	}
	var copied *tensor.Tensor
	if err := autograd.NoGrad(func() error {
		copied = t.Detach()
		if err := copied.Err(); err != nil {
			return err
		}
		view := copied
		copied = view.Clone()
		view.Release()
		return copied.Err()
	}); err != nil {
		copied = tensor.Failed(err)
	} else {
		copied.Keep()
		copied.RequiresGrad_(t.RequiresGrad())
		for _, g := range sharding.Groups(t) {
			sharding.Mark(copied, g)
		}
		if isStandIn(t) {
			markStandIn(copied)
		}
	}
	c.tensors[t] = copied
	return copied
}

// value returns a copy of v.
func (c *cloner) value(v reflect.Value) reflect.Value {
	t := v.Type()
	if !factsOf(t).walked {
		return v
	}
	switch v.Kind() {
	case reflect.Interface:
		if v.IsNil() {
			return v
		}
		return c.value(v.Elem())
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		if t == tensorType {
			return reflect.ValueOf(c.tensor(v.Interface().(*tensor.Tensor)))
		}
		key := unsafePointer{v.Pointer(), t}
		if known, ok := c.pointers[key]; ok {
			return known
		}
		out := reflect.New(t.Elem())
		c.pointers[key] = out
		c.fill(out.Elem(), v.Elem())
		if l, ok := out.Interface().(*ParametrizationList); ok {
			l.standIn, l.caching, l.cached = c.tensor(l.standIn), 0, [3]*tensor.Tensor{}
		}
		return out
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		out := reflect.MakeSlice(t, v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(c.value(v.Index(i)))
		}
		return out
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		out := reflect.MakeMap(t)
		for it := v.MapRange(); it.Next(); {
			out.SetMapIndex(it.Key(), c.value(it.Value()))
		}
		return out
	}
	out := reflect.New(t).Elem()
	c.fill(out, v)
	return out
}

// fill sets out, a struct or an array, to a copy of v.
func (c *cloner) fill(out, v reflect.Value) {
	shallow(out, v)
	switch v.Kind() {
	case reflect.Array:
		for i := range out.Len() {
			out.Index(i).Set(c.value(out.Index(i)))
		}
	case reflect.Struct:
		c.parts(out)
	default:
		out.Set(c.value(v))
	}
}

// parts replaces the walked fields of a struct that was copied by assignment by copies. A struct in it may be embedded
// under an unexported name.
func (c *cloner) parts(out reflect.Value) {
	plan := planOf(out.Type())
	for i := range plan.walked {
		part := out.Field(plan.walked[i].index)
		if part.Kind() == reflect.Struct {
			c.parts(part)
		} else if part.CanSet() {
			part.Set(c.value(part))
		}
	}
}

// guarded is a struct with fields that other goroutines may change under its lock.
type guarded interface{ lock() sync.Locker }

// shallow sets out to v. Mutexes are not copied: out's are unlocked. A guarded struct in v is copied under its lock, and a
// value of sync/atomic, such as the one of Mode, is loaded.
func shallow(out, v reflect.Value) {
	t := v.Type()
	switch {
	case t == mutexType || t == rwMutexType:
		return
	case !factsOf(t).locks:
		out.Set(v)
		return
	case !v.CanAddr():
		held := reflect.New(t).Elem()
		held.Set(v)
		v = held
	}
	if isAtomic(t) {
		if x := v.Addr().MethodByName("Load").Call(nil)[0]; x.Kind() != reflect.Interface || !x.IsNil() { // an empty atomic.Value
			out.Addr().MethodByName("Store").Call([]reflect.Value{x})
		}
		return
	}
	if t.Kind() == reflect.Array {
		for i := range v.Len() {
			shallow(out.Index(i), v.Index(i))
		}
		return
	}
	if g, ok := v.Addr().Interface().(guarded); ok {
		l := g.lock()
		l.Lock()
		defer l.Unlock()
	}
	for i := range v.NumField() {
		shallow(settable(out.Field(i)), settable(v.Field(i)))
	}
}

// settable returns the field v without the restrictions of an unexported one.
func settable(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
}

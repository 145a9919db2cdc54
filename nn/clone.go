package nn

import (
	"reflect"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Clone returns a deep copy of the module m: it has tensors of its own with m's values and the same RequiresGrad, and
// tensors and modules that m has in several places are one in the copy too. Gradients are not copied. Unexported fields,
// and those with the tag `nn:"-"`, are copied as by assignment. If a tensor cannot be copied, the copy has a failed tensor
// in its place, which Check reports. PyTorch: copy.deepcopy.
func Clone[T any](m T) T {
	c := cloner{tensors: map[*tensor.Tensor]*tensor.Tensor{}, pointers: map[unsafePointer]reflect.Value{}}
	v := reflect.ValueOf(&m).Elem()
	out := reflect.New(v.Type()).Elem()
	out.Set(c.value(v))
	return out.Interface().(T)
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
		if d := copied.DType(); d.IsFloat() || d.IsComplex() {
			copied.RequiresGrad_(t.RequiresGrad())
		}
		tensor.Track(vram.Weights, copied)
		for _, g := range sharding.Groups(t) {
			sharding.Mark(copied, g)
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
			l.standIn, l.caching, l.cached = c.tensor(l.standIn), 0, nil
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
	out.Set(v)
	switch v.Kind() {
	case reflect.Array:
		for i := range v.Len() {
			out.Index(i).Set(c.value(v.Index(i)))
		}
	case reflect.Struct:
		plan := planOf(v.Type())
		for i := range plan.walked {
			from, to := v.Field(plan.walked[i].index), out.Field(plan.walked[i].index)
			switch {
			case from.Kind() == reflect.Struct:
				c.parts(to, from)
			case to.CanSet():
				to.Set(c.value(from))
			}
		}
	default:
		out.Set(c.value(v))
	}
}

// parts copies the walked fields of a struct that was copied by assignment. The struct may be embedded under an
// unexported name.
func (c *cloner) parts(out, v reflect.Value) {
	plan := planOf(v.Type())
	for i := range plan.walked {
		from, to := v.Field(plan.walked[i].index), out.Field(plan.walked[i].index)
		if from.Kind() == reflect.Struct {
			c.parts(to, from)
		} else if to.CanSet() {
			to.Set(c.value(from))
		}
	}
}

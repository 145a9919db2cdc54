package data

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// DefaultCollate makes the tensors of a batch from its samples, each with the samples along a new first dimension:
//
//   - tensors of one shape and dtype are stacked;
//   - numbers and bools become a tensor of shape (b), of the dtype that FromSlice gives them;
//   - slices and arrays of n numbers become a tensor of shape (b, n), and of tensors or structs one tensor for each element;
//   - the exported fields of structs, also of embedded ones, become the tensors of each field, in the fields' order.
//
// PyTorch: torch.utils.data.default_collate.
func DefaultCollate[T any](samples []T) ([]*tensor.Tensor, error) {
	if len(samples) == 0 {
		return nil, refuse.Error("DefaultCollate", tensor.ErrArgument, "at least one sample is needed")
	}
	values := make([]reflect.Value, len(samples))
	for i := range samples {
		values[i] = reflect.ValueOf(&samples[i]).Elem()
	}
	out, err := collate(values, 0)
	if e := (*tensor.Error)(nil); errors.As(err, &e) {
		return nil, fmt.Errorf("linstock: DefaultCollate: %w", err)
	}
	if err != nil {
		return nil, refuse.Error("DefaultCollate", tensor.ErrArgument, "%v", err)
	}
	return out, nil
}

var tensorType = reflect.TypeFor[*tensor.Tensor]()

func collate(values []reflect.Value, depth int) ([]*tensor.Tensor, error) {
	for i, v := range values {
		for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer && v.Type() != tensorType {
			if v.IsNil() {
				return nil, fmt.Errorf("sample %d is nil", i)
			}
			v = v.Elem()
		}
		if values[i] = v; v.Type() != values[0].Type() {
			return nil, fmt.Errorf("sample %d is a %v, the first a %v", i, v.Type(), values[0].Type())
		}
	}
	first := values[0]
	switch kind := first.Kind(); {
	case depth > 16:
		return nil, errors.New("the samples are nested too deeply")
	case first.Type() == tensorType:
		ts := make([]*tensor.Tensor, len(values))
		for i, v := range values {
			ts[i] = v.Interface().(*tensor.Tensor)
			if d, want := ts[i].DType(), ts[0].DType(); d != want && d != tensor.Invalid && want != tensor.Invalid {
				return nil, fmt.Errorf("sample %d has dtype %v, the first %v", i, d, want)
			}
		}
		t := tensor.Stack(ts)
		if err := t.Err(); err != nil {
			return nil, misfit(ts, err)
		}
		return []*tensor.Tensor{t}, nil
	case scalar(kind):
		all := reflect.MakeSlice(reflect.SliceOf(first.Type()), len(values), len(values))
		for i, v := range values {
			all.Index(i).Set(v)
		}
		return numbers(all, []int{len(values)})
	case kind == reflect.Struct:
		var all []*tensor.Tensor
		for f := range first.NumField() {
			if field := first.Type().Field(f); !field.IsExported() && !promotes(field) {
				continue
			}
			column := make([]reflect.Value, len(values))
			for i, v := range values {
				column[i] = v.Field(f)
			}
			ts, err := collate(column, depth+1)
			if err != nil {
				return nil, fmt.Errorf("field %s: %w", first.Type().Field(f).Name, err)
			}
			all = append(all, ts...)
		}
		if all == nil {
			return nil, fmt.Errorf("%v has no exported field", first.Type())
		}
		return all, nil
	case kind == reflect.Slice || kind == reflect.Array:
		n := first.Len()
		for i, v := range values {
			if v.Len() != n {
				return nil, fmt.Errorf("sample %d has %d elements, the first %d", i, v.Len(), n)
			}
		}
		if element := first.Type().Elem(); scalar(element.Kind()) {
			all := reflect.MakeSlice(reflect.SliceOf(element), len(values)*n, len(values)*n)
			for i, v := range values {
				reflect.Copy(all.Slice(i*n, (i+1)*n), v)
			}
			return numbers(all, []int{len(values), n})
		}
		var all []*tensor.Tensor
		for k := range n {
			column := make([]reflect.Value, len(values))
			for i, v := range values {
				column[i] = v.Index(k)
			}
			ts, err := collate(column, depth+1)
			if err != nil {
				return nil, fmt.Errorf("element %d: %w", k, err)
			}
			all = append(all, ts...)
		}
		if all == nil {
			return nil, errors.New("the samples are empty")
		}
		return all, nil
	}
	return nil, fmt.Errorf("a %v cannot be made a tensor", first.Type())
}

// promotes reports whether f is an embedded struct with exported fields, which other packages see even if its type is
// not exported.
func promotes(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return f.Anonymous && t.Kind() == reflect.Struct && slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.IsExported() })
}

// scalar reports whether k is the kind of a tensor.Element.
func scalar(k reflect.Kind) bool {
	return k >= reflect.Bool && k <= reflect.Complex128 && k != reflect.Uint && k != reflect.Uintptr
}

// numbers returns the elements of a slice as a tensor.
func numbers(all reflect.Value, shape []int) ([]*tensor.Tensor, error) {
	var t *tensor.Tensor
	switch all.Type().Elem() {
	case reflect.TypeFor[tensor.Float16Bits]():
		t = fromSlice[tensor.Float16Bits](all, shape)
	case reflect.TypeFor[tensor.BFloat16Bits]():
		t = fromSlice[tensor.BFloat16Bits](all, shape)
	case reflect.TypeFor[tensor.Float8E5M2Bits]():
		t = fromSlice[tensor.Float8E5M2Bits](all, shape)
	case reflect.TypeFor[tensor.Float8E4M3FNBits]():
		t = fromSlice[tensor.Float8E4M3FNBits](all, shape)
	case reflect.TypeFor[tensor.Float8E5M2FNUZBits]():
		t = fromSlice[tensor.Float8E5M2FNUZBits](all, shape)
	case reflect.TypeFor[tensor.Float8E4M3FNUZBits]():
		t = fromSlice[tensor.Float8E4M3FNUZBits](all, shape)
	default:
		t = ofKind(all, shape)
	}
	return []*tensor.Tensor{t}, t.Err()
}

func ofKind(all reflect.Value, shape []int) *tensor.Tensor {
	switch all.Type().Elem().Kind() {
	case reflect.Bool:
		return fromSlice[bool](all, shape)
	case reflect.Uint8:
		return fromSlice[uint8](all, shape)
	case reflect.Uint16:
		return fromSlice[uint16](all, shape)
	case reflect.Uint32:
		return fromSlice[uint32](all, shape)
	case reflect.Uint64:
		return fromSlice[uint64](all, shape)
	case reflect.Int8:
		return fromSlice[int8](all, shape)
	case reflect.Int16:
		return fromSlice[int16](all, shape)
	case reflect.Int32:
		return fromSlice[int32](all, shape)
	case reflect.Int64:
		return fromSlice[int64](all, shape)
	case reflect.Float32:
		return fromSlice[float32](all, shape)
	case reflect.Float64:
		return fromSlice[float64](all, shape)
	case reflect.Complex64:
		return fromSlice[complex64](all, shape)
	case reflect.Complex128:
		return fromSlice[complex128](all, shape)
	}
	return fromSlice[int](all, shape)
}

// fromSlice returns the elements of a slice as a tensor. Their type is E, or a program's type that is defined as E.
func fromSlice[E tensor.Element](all reflect.Value, shape []int) *tensor.Tensor {
	return tensor.FromSlice(unsafe.Slice((*E)(all.UnsafePointer()), all.Len()), shape)
}

// misfit returns the error of samples that cannot be stacked, with the number of the first faulty one if it is known.
func misfit(samples []*tensor.Tensor, err error) error {
	for i, t := range samples {
		if err := t.Err(); err != nil {
			return fmt.Errorf("sample %d: %w", i, err)
		}
		if got, want := t.Shape(), samples[0].Shape(); !slices.Equal(got, want) {
			return fmt.Errorf("sample %d has shape %v, the first %v", i, got, want)
		}
	}
	return err
}

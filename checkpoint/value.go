package checkpoint

import (
	"bytes"
	textual "encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"reflect"
	"strings"
	"unsafe"

	"github.com/fxamacker/cbor/v2"

	"github.com/linstock-ml/linstock/tensor"
)

// A value in a checkpoint is a tensor with one dimension: a slice of numbers or bools is a tensor of its dtype,
// and any other value is a uint8 tensor that holds it in CBOR. Only the file's size bounds either.

// elementNames are the dtypes of the slices that are stored as tensors.
var elementNames = map[reflect.Kind]string{
	reflect.Bool: "BOOL", reflect.Int: "I64", reflect.Int8: "I8", reflect.Int16: "I16", reflect.Int32: "I32", reflect.Int64: "I64",
	reflect.Uint: "U64", reflect.Uint8: "U8", reflect.Uint16: "U16", reflect.Uint32: "U32", reflect.Uint64: "U64",
	reflect.Float32: "F32", reflect.Float64: "F64",
}

// elementOf returns the index in elementTypes of t's elements if t is a slice of numbers or bools.
func elementOf(t reflect.Type) (uint8, bool) {
	if t.Kind() != reflect.Slice {
		return 0, false
	}
	name, ok := elementNames[t.Elem().Kind()]
	if bits := elementTypes[elementIndex(name)].bits; !ok || t.Elem().Size()*8 != uintptr(bits) {
		return 0, false // int on a 32-bit system
	}
	return elementIndex(name), ok
}

func elementIndex(name string) uint8 {
	for i := range elementTypes {
		if elementTypes[i].name == name {
			return uint8(i)
		}
	}
	return 0
}

func ofBytes(element uint8, b []byte) content {
	n := len(b) * 8 / elementTypes[element].bits
	return content{element: element, shape: []int{n}, write: func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}}
}

// bytesOfSlice returns the memory of a slice of numbers or bools.
func bytesOfSlice(v reflect.Value) []byte {
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Len()*int(v.Type().Elem().Size()))
}

// encode encodes *v as a value of a checkpoint. A value that decode could not read is an error here, not when
// the run continues.
func encode[T any](v *T) (content, error) {
	value := reflect.ValueOf(v).Elem()
	if element, ok := elementOf(value.Type()); ok {
		if value.Len() == 0 {
			return ofBytes(element, nil), nil
		}
		return ofBytes(element, bytesOfSlice(value)), nil
	}
	if errModes != nil {
		return content{}, errModes
	}
	if err := storable(value, maxNesting); err != nil {
		return content{}, err
	}
	text, err := encoding.Marshal(v)
	if err != nil {
		return content{}, plain(err)
	}
	var back T
	if err := decoding.Unmarshal(text, &back); err != nil {
		return content{}, fmt.Errorf("it could not be read again: %w", plain(err))
	}
	return ofBytes(elementIndex("U8"), text), nil
}

// decode sets *v to the value in the tensor e.
func decode[T any](f *File, e *entry, v *T) error {
	if errModes != nil {
		return errModes
	}
	t := reflect.TypeFor[T]()
	element, numbers := elementOf(t)
	if !numbers {
		element = elementIndex("U8")
	}
	shape := f.header.shape(e)
	if e.element != element || len(shape) != 1 {
		return fmt.Errorf("it is a tensor of dtype %s and shape %v, which cannot be read as %v", elementTypes[e.element].name, shape, t)
	}
	if e.end-e.begin > math.MaxInt {
		return fmt.Errorf("%d bytes are too large for this system", e.end-e.begin)
	}
	if !numbers {
		text := make([]byte, e.end-e.begin)
		if err := f.read(text, e.begin); err != nil {
			return err
		}
		var got T
		if err := decoding.Unmarshal(text, &got); err != nil {
			return plain(err)
		}
		if err := storable(reflect.ValueOf(&got).Elem(), 3*maxNesting); err != nil {
			return err
		}
		*v = got
		return nil
	}
	got := reflect.New(t).Elem()
	if n := shape[0]; n > 0 { // an empty slice is restored as nil
		got.Set(reflect.MakeSlice(t, n, n))
		b := bytesOfSlice(got)
		if err := f.read(b, e.begin); err != nil {
			return err
		}
		if t.Elem().Kind() == reflect.Bool {
			if err := checkBools(b); err != nil {
				return err
			}
		}
	}
	*v = got.Interface().(T)
	return nil
}

// plain returns an error of package cbor without the package's name, truncated if it is long, since it may
// quote the value.
func plain(err error) error {
	const most = 300
	text := strings.TrimPrefix(err.Error(), "cbor: ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	return errors.New(text)
}

// maxNesting is the greatest depth of CBOR that is read and of values that are written, including pointers and
// interfaces. Package encoding/json has the same limit.
const maxNesting = 10_000

// Numbers of more than 64 bits are rejected: for a number of a file's choosing, package cbor may take hours to
// print it in an error.
var encoding, decoding, errModes = func() (cbor.EncMode, cbor.DecMode, error) {
	e, err1 := cbor.EncOptions{
		Sort:                    cbor.SortBytewiseLexical, // the same values give the same bytes
		NaNConvert:              cbor.NaNConvertNone,
		InfConvert:              cbor.InfConvertNone,
		Time:                    cbor.TimeRFC3339Nano,
		TimeTag:                 cbor.EncTagRequired,
		TextMarshaler:           cbor.TextMarshalerTextString,
		JSONMarshalerTranscoder: transcoder(fromJSON),
	}.EncMode()
	// Only false, true, null and undefined: any other simple value would be decoded as a type of package cbor.
	var rejected []func(*cbor.SimpleValueRegistry) error
	for n := range 256 {
		if n < 20 || n >= 32 {
			rejected = append(rejected, cbor.WithRejectedSimpleValue(cbor.SimpleValue(n)))
		}
	}
	simple, err3 := cbor.NewSimpleValueRegistryFromDefaults(rejected...)
	d, err2 := cbor.DecOptions{
		MaxNestedLevels:           maxNesting,
		MaxArrayElements:          math.MaxInt32,
		MaxMapPairs:               math.MaxInt32,
		IndefLength:               cbor.IndefLengthForbidden, // never written
		IntDec:                    cbor.IntDecConvertSignedOrBigInt,
		BignumTag:                 cbor.BignumTagForbidden,
		UnrecognizedTagToAny:      cbor.UnrecognizedTagContentToAny,
		SimpleValues:              simple,
		DefaultMapType:            reflect.TypeFor[map[string]any](),
		UTF8:                      cbor.UTF8DecodeInvalid, // Go strings may hold any bytes
		TextUnmarshaler:           cbor.TextUnmarshalerTextString,
		JSONUnmarshalerTranscoder: transcoder(toJSON),
	}.DecMode()
	return e, d, errors.Join(err1, err2, err3)
}()

var decodingJSON, _ = cbor.DecOptions{BignumTag: cbor.BignumTagForbidden}.DecMode()

// transcoder stores the output of a MarshalJSON method as a CBOR text string.
type transcoder func(w io.Writer, r io.Reader) error

func (t transcoder) Transcode(w io.Writer, r io.Reader) error { return t(w, r) }

func fromJSON(w io.Writer, r io.Reader) error {
	var text bytes.Buffer
	if _, err := text.ReadFrom(r); err != nil {
		return err
	}
	b, err := cbor.Marshal(text.String())
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func toJSON(w io.Writer, r io.Reader) error {
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		return err
	}
	var v any
	if err := decodingJSON.Unmarshal(b.Bytes(), &v); err != nil {
		return err
	}
	text, ok := v.(string)
	if !ok { // package cbor encodes a big.Int by itself, as a number
		number, ok := v.(big.Int)
		if text = number.String(); !ok {
			text = fmt.Sprint(v)
		}
	}
	_, err := io.WriteString(w, text)
	return err
}

// storable returns an error if v nests deeper than depth levels, or holds what would be lost. For a value that contains
// itself package cbor would overflow the stack, which ends the process.
func storable(v reflect.Value, depth int) error {
	t := v.Type()
	if flat(t) {
		return nil
	}
	if depth == 0 {
		return fmt.Errorf("it nests deeper than %d levels, or contains itself", maxNesting)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return storable(v.Elem(), depth-1)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := storable(v.Index(i), depth-1); err != nil {
				return err
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			if err := errors.Join(storable(i.Key(), depth-1), storable(i.Value(), depth-1)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if t == reflect.TypeFor[tensor.Tensor]() {
			return errors.New("it holds a tensor: Save, SaveModel and SavePyTorch store tensors")
		}
		seen := 0
		for i := range v.NumField() {
			if field := t.Field(i); field.IsExported() || field.Anonymous {
				seen++
				if err := storable(v.Field(i), depth-1); err != nil && !storesItself(t) {
					return err
				}
			}
		}
		if seen == 0 && v.NumField() > 0 && !storesItself(t) {
			return fmt.Errorf("%v has no exported fields, and nothing of it would be stored", t)
		}
	}
	return nil
}

// storesItself reports whether t has a method that stores it.
func storesItself(t reflect.Type) bool {
	for _, m := range []reflect.Type{reflect.TypeFor[cbor.Marshaler](), reflect.TypeFor[textual.BinaryMarshaler](),
		reflect.TypeFor[textual.TextMarshaler](), reflect.TypeFor[json.Marshaler]()} {
		if reflect.PointerTo(t).Implements(m) {
			return true
		}
	}
	return false
}

// flat reports whether t is a number, a string or a bool, or a slice or an array of these.
func flat(t reflect.Type) bool {
	if k := t.Kind(); k == reflect.Slice || k == reflect.Array {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Map, reflect.Struct, reflect.Slice, reflect.Array:
		return false
	}
	return true
}

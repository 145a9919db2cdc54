package checkpoint

import (
	"bytes"
	"cmp"
	textual "encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
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
	seconds := false
	if err := storable(value, maxNesting, &seconds); err != nil {
		return content{}, err
	}
	mode := encoding
	if seconds {
		mode = encodingUTC
	}
	text, err := marshal(mode, v)
	if err != nil {
		return content{}, plain(err)
	}
	var back T
	if err := unmarshal(text, &back); err != nil {
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
		if err := unmarshal(text, &got); err != nil {
			return plain(err)
		}
		if err := storable(reflect.ValueOf(&got).Elem(), 3*maxNesting, new(bool)); err != nil {
			return err
		}
		restore(reflect.ValueOf(v).Elem(), reflect.ValueOf(&got).Elem())
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

func marshal(mode cbor.EncMode, v any) (text []byte, err error) {
	defer recovered(&err, v)
	return mode.Marshal(v)
}

func unmarshal(text []byte, v any) (err error) {
	defer recovered(&err, v)
	return decoding.Unmarshal(text, v)
}

// recovered, deferred, turns the panic of a method that stores or reads v into an error. The method of an embedded
// pointer or interface panics if that is nil, as it is in a value that is read.
func recovered(err *error, v any) {
	if p := recover(); p != nil {
		t := reflect.TypeOf(v)
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		*err = fmt.Errorf("a method of %v, or of a part of it, panicked: %v; what a struct embeds as a pointer or an interface is nil when "+
			"it is read: name that field, or give the struct methods of its own", t, p)
	}
}

// restore sets to to from, but of a struct only the fields that are stored. The others may be in use, as a mutex is.
func restore(to, from reflect.Value) {
	if to.Kind() != reflect.Struct || storesItself(to.Type()) {
		accessible(to).Set(accessible(from))
		return
	}
	for i := range to.NumField() {
		if isStored(to.Type().Field(i)) {
			restore(to.Field(i), from.Field(i))
		}
	}
}

// accessible returns v, an addressable field, without the restrictions of one that embeds a type that is not exported.
func accessible(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
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
//
// RFC 3339 has no seconds in the offset of a zone: encodingUTC is for values with times that have them.
var encoding, encodingUTC, decoding, errModes = func() (cbor.EncMode, cbor.EncMode, cbor.DecMode, error) {
	options := cbor.EncOptions{
		Sort:                    cbor.SortBytewiseLexical, // the same values give the same bytes
		NaNConvert:              cbor.NaNConvertNone,
		InfConvert:              cbor.InfConvertNone,
		Time:                    cbor.TimeRFC3339Nano,
		TimeTag:                 cbor.EncTagRequired,
		TextMarshaler:           cbor.TextMarshalerTextString,
		JSONMarshalerTranscoder: transcoder(fromJSON),
	}
	e, err1 := options.EncMode()
	options.Time = cbor.TimeRFC3339NanoUTC
	utc, err4 := options.EncMode()
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
	return e, utc, d, errors.Join(err1, err2, err3, err4)
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

var errNesting = fmt.Errorf("it nests deeper than %d levels, or contains itself", maxNesting)

// storable returns an error if v nests deeper than depth levels, or holds what would be lost. For a value that contains
// itself package cbor would overflow the stack, which ends the process. It sets *seconds if v holds a time whose zone has an
// offset with seconds.
func storable(v reflect.Value, depth int, seconds *bool) error {
	t := v.Type()
	if flat(t) {
		return nil
	}
	if depth == 0 {
		return errNesting
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return storable(v.Elem(), depth-1, seconds)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if err := storable(v.Index(i), depth-1, seconds); err != nil {
				return err
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			if err := errors.Join(storable(i.Key(), depth-1, seconds), storable(i.Value(), depth-1, seconds)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if t == reflect.TypeFor[tensor.Tensor]() {
			return errors.New("it holds a tensor: Save, SaveModel and SavePyTorch store tensors, Optimizer the state of an optimizer")
		}
		switch {
		case t == reflect.TypeFor[time.Time]() && v.CanInterface():
			_, offset := v.Interface().(time.Time).Zone()
			*seconds = *seconds || offset%60 != 0
			return nil
		case t == reflect.TypeFor[big.Int]() && v.CanInterface():
			n := v.Interface().(big.Int)
			if !n.IsUint64() && !new(big.Int).Not(&n).IsUint64() {
				return errors.New("it holds a big.Int of more than 64 bits, which could not be read again: store its String")
			}
			return nil
		}
		if err := lost(t); err != nil {
			return err
		}
		if err := promoted(v, depth); err != nil || storesItself(t) {
			return err
		}
		seen := 0
		for i := range v.NumField() {
			if isStored(t.Field(i)) {
				seen++
				if err := storable(v.Field(i), depth-1, seconds); err != nil {
					return err
				}
			}
		}
		if seen == 0 && v.NumField() > 0 {
			return fmt.Errorf("%v has no fields that are stored, which are the exported ones without the tag \"-\"", t)
		}
	}
	return nil
}

// tagOf returns the tag of a field that package cbor reads.
func tagOf(f reflect.StructField) string { return cmp.Or(f.Tag.Get("cbor"), f.Tag.Get("json")) }

// isStored reports whether package cbor stores the field f of a struct. Of an embedded struct that is not exported it
// stores the exported fields.
func isStored(f reflect.StructField) bool {
	return tagOf(f) != "-" && (f.IsExported() || embeds(f) != nil)
}

// embeds returns the type of the struct that the field f embeds, perhaps by a pointer, or nil.
func embeds(f reflect.StructField) reflect.Type {
	of := f.Type
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	if !f.Anonymous || of.Kind() != reflect.Struct {
		return nil
	}
	return of
}

// losses has the results of lost, by type.
var losses sync.Map

// lost returns an error if package cbor would not store an exported field of the struct type t: of fields with the same
// name, it stores one or none, as package encoding/json does.
func lost(t reflect.Type) error {
	if err, ok := losses.Load(t); ok {
		err, _ := err.(error)
		return err
	}
	var err error
	if !storesItself(t) {
		err = clash(t, "", []reflect.Type{t}, map[string]string{})
	}
	losses.Store(t, err)
	return err
}

// clash returns an error if two fields of t have the same name in CBOR. have maps names in CBOR to the fields so far,
// and path is that of t within the types that embed it.
func clash(t reflect.Type, path string, within []reflect.Type, have map[string]string) error {
	for i := range t.NumField() {
		f := t.Field(i)
		if !isStored(f) {
			continue
		}
		name, options, _ := strings.Cut(tagOf(f), ",")
		if of := embeds(f); of != nil && name == "" {
			if slices.Contains(within, of) || storesItself(of) {
				return fmt.Errorf("the embedded %v in %v would not be stored: give it a json tag", of, within[0])
			}
			if err := clash(of, path+f.Name+".", append(within, of), have); err != nil {
				return err
			}
			continue
		}
		name = cmp.Or(name, f.Name)
		key := fmt.Sprint(name, slices.Contains(strings.Split(options, ","), "keyasint")) // a number is another key than a text
		if other, ok := have[key]; ok {
			return fmt.Errorf("the fields %s and %s of %v have the same name, %q, and only one or none would be stored: give one another json tag",
				other, path+f.Name, within[0], name)
		}
		have[key] = path + f.Name
	}
	return nil
}

// promoted returns an error if the method that stores v, a struct, belongs to an embedded field, and v has other
// fields, which would be lost. It follows embedded fields for depth levels.
func promoted(v reflect.Value, depth int) error {
	t := v.Type()
	m := storerOf(t)
	if m == nil || !v.CanInterface() {
		return nil
	}
	if depth == 0 {
		return errNesting
	}
	for i := range t.NumField() {
		if field := t.Field(i); !field.Anonymous || embeds(field) == t { // t has no method from a t in it
			continue
		}
		c := reflect.New(t).Elem() // can be addressed
		c.Set(v)
		f := accessible(c.Field(i))
		if f.Kind() == reflect.Interface {
			f = f.Elem()
		}
		if f = reflect.Indirect(f); !f.IsValid() {
			continue
		}
		more, err := others(v, i, depth)
		if err == nil && f.Kind() == reflect.Struct {
			err = promoted(f, depth-1) // the method may belong to a field that f embeds
		}
		if errors.Is(err, errNesting) {
			return err
		}
		if more {
			err = fmt.Errorf("%v is stored by the method of the embedded %v, which stores nothing else of it: name that field", t, f.Type())
		}
		if err == nil {
			continue
		}
		whole, err1 := m.call(v)
		part, err2 := m.call(f)
		if err1 == nil && err2 == nil && bytes.Equal(whole, part) {
			return err
		}
	}
	return nil
}

// others reports whether a field of v, a struct, besides number i would be stored without a method and has a value.
func others(v reflect.Value, i, depth int) (bool, error) {
	if depth == 0 {
		return false, errNesting
	}
	for j := range v.NumField() {
		f := v.Type().Field(j)
		switch {
		case j == i || !isStored(f) || v.Field(j).IsZero():
			continue
		case f.IsExported():
			return true, nil
		}
		if found, err := others(reflect.Indirect(v.Field(j)), -1, depth-1); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// storer is an interface with a method that stores a value.
type storer struct {
	of   reflect.Type
	call func(v reflect.Value) ([]byte, error)
}

// storers are in the order in which package cbor prefers them.
var storers = []storer{newStorer(cbor.Marshaler.MarshalCBOR), newStorer(textual.BinaryMarshaler.MarshalBinary),
	newStorer(textual.TextMarshaler.MarshalText), newStorer(json.Marshaler.MarshalJSON)}

func newStorer[M any](method func(m M) ([]byte, error)) storer {
	return storer{reflect.TypeFor[M](), func(v reflect.Value) (text []byte, err error) {
		p := reflect.New(v.Type())
		p.Elem().Set(v)
		m, ok := p.Interface().(M)
		if !ok {
			return nil, errors.ErrUnsupported
		}
		defer recovered(&err, p.Interface())
		return method(m)
	}}
}

// storerOf returns the interface with the method that stores values of type t, or nil.
func storerOf(t reflect.Type) *storer {
	for i := range storers {
		if reflect.PointerTo(t).Implements(storers[i].of) {
			return &storers[i]
		}
	}
	return nil
}

// storesItself reports whether t has a method that stores it.
func storesItself(t reflect.Type) bool { return storerOf(t) != nil }

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

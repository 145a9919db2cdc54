package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/pickle"
	"github.com/linstock-ml/linstock/tensor"
)

// Files of torch.save. Both formats consist of a pickle, in which tensors refer to storages, and the storages'
// bytes: members of a zip archive since PyTorch 1.6, one after the other before. The pickle is executed without
// calling anything; it may refer to the names that torch.load(weights_only=True) accepts.

// maxPickle is the size of the largest pickle that is read.
const maxPickle = 256 << 20

// function is a Python function or class to which a pickle may refer.
type function int

const (
	fnOrderedDict function = iota + 1
	fnCounter
	fnDefaultDict
	fnSize
	fnParameter
	fnTensorClass
	fnDevice
	fnLayoutOf
	fnEncodeText
	fnByteArray
	fnSetOf
	fnComplexOf
	fnRebuildTensor
	fnRebuildTensorV2
	fnRebuildTensorV3
	fnRebuildParameter
	fnRebuildParameterWithState
	fnRebuildFromType
	fnRebuildFromCPU
	fnRebuildQuantized
	fnRebuildSparse
	fnRebuildMeta
	fnRebuildNested
	fnRebuildWrapper
)

// functions are the names that a pickle may contain besides those of dtypes and storages. Python 2's names of modules
// are there too, because protocol 2 writes them.
var functions = map[string]function{
	"collections.OrderedDict": fnOrderedDict, "collections.Counter": fnCounter, "collections.defaultdict": fnDefaultDict,
	"torch.Size": fnSize, "torch.nn.parameter.Parameter": fnParameter, "torch.Tensor": fnTensorClass, "torch.device": fnDevice,
	"torch.serialization._get_layout": fnLayoutOf, "_codecs.encode": fnEncodeText,
	"builtins.bytearray": fnByteArray, "__builtin__.bytearray": fnByteArray, "__builtin__.bytes": fnByteArray, "builtins.set": fnSetOf, "__builtin__.set": fnSetOf,
	"builtins.complex": fnComplexOf, "__builtin__.complex": fnComplexOf,
	"torch._utils._rebuild_tensor": fnRebuildTensor, "torch._utils._rebuild_tensor_v2": fnRebuildTensorV2,
	"torch._utils._rebuild_tensor_v3": fnRebuildTensorV3, "torch._utils._rebuild_parameter": fnRebuildParameter,
	"torch._utils._rebuild_parameter_with_state": fnRebuildParameterWithState, "torch._tensor._rebuild_from_type_v2": fnRebuildFromType,
	"torch._utils._rebuild_device_tensor_from_cpu_tensor": fnRebuildFromCPU, "torch._utils._rebuild_qtensor": fnRebuildQuantized,
	"torch._utils._rebuild_sparse_tensor": fnRebuildSparse, "torch._utils._rebuild_meta_tensor_no_storage": fnRebuildMeta,
	"torch._utils._rebuild_nested_tensor": fnRebuildNested, "torch._utils._rebuild_wrapper_subclass": fnRebuildWrapper,
	"torch.nested._internal.nested_tensor._rebuild_njt": fnRebuildNested, "torch.nested._internal.nested_tensor.NestedTensor": fnTensorClass,
}

// element is a dtype in a file.
type element struct {
	name  string // PyTorch's, without "torch."
	dtype tensor.DType
	bytes int64 // of an element, 0 if it is unknown
}

func elementNamed(name string) (element, bool) {
	if d, err := tensor.ParseDType(name); err == nil {
		return element{d.String(), d, int64(d.Size())}, true
	}
	// Linstock has no tensors of these.
	bytes, ok := map[string]int64{"float8_e8m0fnu": 1, "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1, "bits4x2": 1,
		"bcomplex32": 4, "qint8": 1, "quint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1}[name]
	return element{name, tensor.Invalid, bytes}, ok
}

// storageTypes are the elements of the classes of storages. PyTorch stores dtypes that are not among them as an
// UntypedStorage of bytes.
var storageTypes = map[string]string{
	"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
	"CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool", "BFloat16Storage": "bfloat16", "ComplexDoubleStorage": "complex128",
	"ComplexFloatStorage": "complex64", "QInt8Storage": "qint8", "QInt32Storage": "qint32", "QUInt8Storage": "quint8", "QUInt4x2Storage": "quint4x2",
	"QUInt2x4Storage": "quint2x4", "UntypedStorage": "uint8", "_UntypedStorage": "uint8",
}

// storageClass is a class of storages.
type storageClass struct{ element }

// storage is bytes that tensors share.
type storage struct {
	key   string
	begin int64 // in the file
	skip  int64 // bytes of the member before it
	bytes int64
	// member is the member of a zip archive that holds the storage if it is compressed, or if it is read instead of
	// mapped, so that its checksum is checked.
	member *member
	known  bool // begin and bytes are known
}

// typedStorage is a storage as a pickle refers to it: of a dtype, and perhaps a part of it.
type typedStorage struct {
	*storage
	element element
	begin   int64 // in the storage, in bytes
	count   int64 // elements
}

// stored is a tensor of a file.
type stored struct {
	storage       *storage
	element       element
	begin         int64 // of its storage's part, in bytes
	offset        int   // in elements
	shape, stride []int
	conj, neg     bool
	refused       string // why there is no such tensor here, or ""
}

// pytorch reads the pickle of a file.
type pytorch struct {
	reader   *pickle.Reader
	storages map[string]*storage
	order    []*storage
	find     func(key string) (*storage, error) // the storage of a key
	legacy   bool
	skip     bool // objects of classes that are not data
}

func newPickle(r io.Reader, size int64, skip bool) *pytorch {
	p := &pytorch{reader: pickle.NewReader(r, size), storages: map[string]*storage{}, skip: skip}
	p.reader.Class, p.reader.Reduce, p.reader.Build, p.reader.Persistent = p.class, p.reduce, p.build, p.persistent
	return p
}

func (p *pytorch) class(c pickle.Class) (any, error) {
	if err := p.reader.Use(len(c.Module) + len(c.Name)); err != nil {
		return nil, err
	}
	name := c.String()
	if f, ok := functions[name]; ok {
		return f, nil
	}
	switch c.Module {
	case "torch":
		if e, ok := elementNamed(c.Name); ok {
			return e, nil
		}
		if slices.Contains([]string{"per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric", "per_channel_affine_float_qparams"}, c.Name) {
			return "torch." + c.Name, nil
		}
		fallthrough
	case "torch.cuda", "torch.storage":
		if name, ok := storageTypes[c.Name]; ok {
			e, _ := elementNamed(name)
			return storageClass{e}, nil
		}
	}
	if p.skip {
		return &pickle.Object{Class: name}, nil
	}
	return nil, fmt.Errorf("%w; SkipObjects opens the rest of the file", notData("contains", name))
}

func notData(is, class string) error {
	return malformed("it %s an object of the Python class or function %s, which is not data; in Python, save what is needed of it as tensors,"+
		" dicts, lists, strings and numbers, such as a state_dict()", is, quoted(class))
}

func (p *pytorch) reduce(f any, args pickle.Tuple) (any, error) {
	if o, ok := f.(*pickle.Object); ok {
		return o, nil // which stands for all objects of its class
	}
	fn, ok := f.(function)
	if !ok {
		return nil, malformed("it calls an object that is not a function")
	}
	at := func(i int) any {
		if i < len(args) {
			return args[i]
		}
		return nil
	}
	switch fn {
	case fnOrderedDict, fnCounter, fnDefaultDict:
		if fn == fnDefaultDict {
			args = args[min(1, len(args)):]
		}
		return p.dict(args)
	case fnSize:
		return items(at(0)), nil
	case fnSetOf:
		return &pickle.Set{Items: items(at(0))}, nil
	case fnDevice:
		return deviceName(args)
	case fnLayoutOf:
		return at(0), nil
	case fnEncodeText, fnByteArray:
		return p.bytes(args)
	case fnComplexOf:
		re, ok1 := number(at(0))
		im, ok2 := number(at(1))
		if !ok1 || !ok2 || len(args) != 2 {
			return nil, malformed("a complex number that is not two numbers")
		}
		return complex(re, im), nil
	case fnRebuildTensor, fnRebuildTensorV2, fnRebuildTensorV3:
		return p.tensor(fn, args)
	case fnRebuildParameter, fnRebuildParameterWithState, fnParameter:
		if t, ok := at(0).(*stored); ok {
			return t, nil
		}
		return nil, malformed("a parameter without a tensor")
	case fnRebuildFromType:
		if o, ok := at(1).(*pickle.Object); ok {
			why := "it is of the Python class " + quoted(o.Class)
			return &stored{refused: why}, p.reader.Use(256 + len(why))
		}
		inner, _ := at(0).(function)
		innerArgs, ok := at(2).(pickle.Tuple)
		if class, is := at(1).(function); !ok || !is || class != fnTensorClass && class != fnParameter || inner == fnRebuildFromType {
			return nil, malformed("a tensor of a class of its own")
		}
		return p.reduce(inner, innerArgs)
	case fnRebuildFromCPU:
		t, ok := at(0).(*stored)
		e, is := at(1).(element)
		if !ok || !is {
			return nil, malformed("a device's tensor without a tensor of the CPU")
		}
		if e != t.element && t.refused == "" {
			return &stored{refused: "it was a tensor of a device, of dtype " + e.name + ", stored as " + t.element.name}, nil
		}
		return t, nil
	case fnRebuildQuantized:
		return &stored{refused: "quantised tensors are not supported; in Python, store tensor.dequantize()"}, nil
	case fnRebuildSparse:
		return &stored{refused: "sparse tensors cannot be loaded; in Python, store tensor.to_dense()"}, nil
	case fnRebuildMeta:
		return &stored{refused: "it is a tensor of the meta device, which has no values"}, nil
	case fnRebuildNested:
		return &stored{refused: "nested tensors cannot be loaded; in Python, store tensor.to_padded_tensor(0) or a list"}, nil
	case fnRebuildWrapper:
		return &stored{refused: "it is of a subclass of torch.Tensor that holds other tensors; in Python, store these"}, nil
	}
	return nil, malformed("a call of a class that makes no object here")
}

// dict returns the OrderedDict of a list of pairs, as Python 2 wrote it, or of a dict.
func (p *pytorch) dict(args pickle.Tuple) (any, error) {
	d := &pickle.Dict{}
	if len(args) == 0 {
		return d, nil
	}
	if from, ok := args[0].(*pickle.Dict); ok && len(args) == 1 {
		return from, nil
	}
	pairs := items(args[0])
	if err := p.reader.Use(64 * len(pairs)); err != nil {
		return nil, err
	}
	for _, pair := range pairs {
		kv := items(pair)
		if len(kv) != 2 {
			return nil, malformed("a dict of values that are not pairs")
		}
		d.Items = append(d.Items, pickle.Item{Key: kv[0], Value: kv[1]})
	}
	return d, nil
}

// items returns the elements of a tuple or list.
func items(v any) pickle.Tuple {
	switch v := v.(type) {
	case pickle.Tuple:
		return v
	case *pickle.List:
		return v.Items
	}
	return nil
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	}
	return 0, false
}

func deviceName(args pickle.Tuple) (any, error) {
	if len(args) > 0 {
		if name, ok := args[0].(string); ok {
			if i, ok := args[len(args)-1].(int64); ok && len(args) == 2 {
				return fmt.Sprintf("%s:%d", name, i), nil
			}
			return name, nil
		}
	}
	return nil, malformed("a device without a name")
}

// bytes returns what encode(text, "latin1"), bytearray(…) and bytes() return; protocol 2 uses the last for empty bytes.
func (p *pytorch) bytes(args pickle.Tuple) (any, error) {
	if len(args) == 0 {
		return pickle.Bytes(""), nil
	}
	if b, ok := args[0].(pickle.Bytes); ok {
		return b, nil
	}
	text, ok := args[0].(string)
	if !ok || len(args) > 1 && args[1] != "latin1" && args[1] != "latin-1" {
		return nil, malformed("bytes that are not text in latin1")
	}
	if err := p.reader.Use(len(text)); err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, c := range text {
		if c > 0xff {
			return nil, malformed("text that is not in latin1")
		}
		b.WriteByte(byte(c))
	}
	return pickle.Bytes(b.String()), nil
}

// build ignores the attributes of dicts (such as _metadata), of parameters, and of objects that are not read.
func (p *pytorch) build(v, _ any) error {
	switch v.(type) {
	case *pickle.Dict, *stored, *pickle.Object:
		return nil
	}
	return malformed("attributes of an object that has none here")
}

// persistent returns the storage for ("storage", class, key, location, count) and, in the older format, a part of it.
func (p *pytorch) persistent(id any) (any, error) {
	t, _ := id.(pickle.Tuple)
	if len(t) > 0 && text(t[0]) == "module" {
		if o, ok := t[min(1, len(t)-1)].(*pickle.Object); ok {
			return o, nil
		}
		return nil, malformed("it contains a module, not a state dict; in Python: torch.save(model.state_dict(), path)")
	}
	if len(t) < 5 || text(t[0]) != "storage" {
		return nil, malformed("a reference that is not to a storage")
	}
	class, ok := t[1].(storageClass)
	key, count := text(t[2]), int64(-1)
	if n, is := t[4].(int64); is {
		count = n
	}
	if n, is := t[2].(int64); is {
		key = fmt.Sprint(n)
	}
	if !ok || key == "" || len(key) > 200 || count < 0 || class.bytes > 0 && count > math.MaxInt64/16/class.bytes {
		return nil, malformed("a storage without a class, a key or a size")
	}
	if err := p.reader.Use(200); err != nil {
		return nil, err
	}
	s := p.storages[key]
	if s == nil {
		var err error
		if s, err = p.find(key); err != nil {
			return nil, err
		}
		if !s.known {
			s.bytes = count * class.bytes
		}
		p.storages[key] = s
		p.order = append(p.order, s)
	}
	ref := typedStorage{s, class.element, 0, count}
	if p.legacy && len(t) > 5 && t[5] != nil {
		// A view: its key, the offset and the size in elements.
		view := items(t[5])
		if len(view) != 3 {
			return nil, malformed("a view of a storage without an offset and a size")
		}
		offset, ok1 := view[1].(int64)
		n, ok2 := view[2].(int64)
		if !ok1 || !ok2 || offset < 0 || n < 0 || offset > count || n > count-offset {
			return nil, malformed("a view beyond its storage")
		}
		ref.begin, ref.count = offset*class.bytes, n
	}
	if ref.count*class.bytes > s.bytes-ref.begin {
		return nil, malformed("the storage %s has %d bytes, and %d %ss were expected", quoted(key), s.bytes, count, class.name)
	}
	return ref, nil
}

// text returns a string, also if Python 2 wrote it.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case pickle.Bytes:
		return string(v)
	}
	return ""
}

// tensor returns the tensor for _rebuild_tensor(storage, offset, size, stride, requires_grad, hooks, …).
func (p *pytorch) tensor(fn function, args pickle.Tuple) (any, error) {
	if len(args) < 4 {
		return nil, malformed("a tensor without a storage, an offset, a shape or strides")
	}
	ref, ok := args[0].(typedStorage)
	offset, is := args[1].(int64)
	if !ok || !is || offset < 0 {
		return nil, malformed("a tensor without a storage or an offset")
	}
	t := &stored{storage: ref.storage, element: ref.element, begin: ref.begin, offset: int(offset)}
	rest := args[4:]
	if fn == fnRebuildTensorV3 {
		if len(args) < 7 {
			return nil, malformed("a tensor without a dtype")
		}
		e, ok := args[6].(element)
		if !ok {
			return nil, malformed("a tensor without a dtype")
		}
		t.element, rest = e, args[5:]
	}
	if t.element.dtype == tensor.Invalid {
		t.refused = "tensors cannot have the dtype " + t.element.name
		return t, nil
	}
	if len(rest) > 2 {
		t.conj, t.neg = flags(rest[2])
	}
	var err error
	if t.shape, err = dims(args[2]); err != nil {
		return nil, err
	}
	if t.stride, err = dims(args[3]); err != nil {
		return nil, err
	}
	if err := p.reader.Use(200 + 16*len(t.shape)); err != nil {
		return nil, err
	}
	return t, t.check(ref.count * ref.element.bytes)
}

// flags returns the state of a tensor's lazy conjugation and negation.
func flags(v any) (conj, neg bool) {
	if d, ok := v.(*pickle.Dict); ok {
		for _, i := range d.Items {
			conj = conj || i.Key == "conj" && i.Value == true
			neg = neg || i.Key == "neg" && i.Value == true
		}
	}
	return conj, neg
}

// dims returns a shape or strides.
func dims(v any) ([]int, error) {
	values := items(v)
	if values == nil && v == nil || len(values) > maxDims {
		return nil, malformed("a shape with more than %d dimensions, or none", maxDims)
	}
	out := make([]int, len(values))
	for i, v := range values {
		n, ok := v.(int64)
		if !ok || n < 0 {
			return nil, malformed("a shape or strides that are not integers of at least 0")
		}
		out[i] = int(n)
	}
	return out, nil
}

// check checks that every element of t is within a storage of that many bytes.
func (t *stored) check(bytes int64) error {
	if len(t.shape) != len(t.stride) {
		return malformed("a tensor with %d dimensions and %d strides", len(t.shape), len(t.stride))
	}
	product, last, empty := int64(1), int64(t.offset), false
	for i, n := range t.shape {
		if n == 0 {
			empty = true
			continue
		}
		if product > math.MaxInt/16/int64(n) {
			return malformed("the product of the shape is too large")
		}
		product *= int64(n)
		stride := int64(t.stride[i])
		if n > 1 && stride > (math.MaxInt64-last)/int64(n-1) {
			return malformed("a tensor beyond its storage")
		}
		last += int64(n-1) * stride
	}
	if !empty && last >= bytes/t.element.bytes {
		return malformed("the element %d of a storage of %d %ss", last, bytes/t.element.bytes, t.element.name)
	}
	return nil
}

// span returns the bytes of the storage from the first element of t, which check has checked and which is not empty, to
// the end of the last.
func (t *stored) span() (from, to int64) {
	last := int64(t.offset)
	for i, n := range t.shape {
		last += int64(n-1) * int64(t.stride[i])
	}
	return t.begin + int64(t.offset)*t.element.bytes, t.begin + (last+1)*t.element.bytes
}

// readPyTorch reads a zip archive of torch.save.
func readPyTorch(f *File, a *archive) (contents, error) {
	if order, err := a.text(a.root + "byteorder"); err != nil {
		return nil, err
	} else if order != "" && order != "little" {
		return nil, malformed("its numbers are %q-endian; only little-endian ones are supported", order)
	}
	data := a.members[a.root+"data.pkl"]
	if data.compressed() {
		return nil, malformed("its pickle is compressed; save it again with torch.save")
	}
	r, err := data.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return readObject(f, r, data.bytes(), func(key string) (*storage, error) {
		m := a.members[a.root+"data/"+key]
		if m == nil {
			return nil, malformed("the storage %s is not in it", quoted(key))
		}
		return a.storage(m)
	})
}

// readObject reads the pickle of an archive, which has size bytes, and the checksum after it. find returns the storage of
// a key.
func readObject(f *File, r io.Reader, size int64, find func(key string) (*storage, error)) (contents, error) {
	if size > maxPickle {
		return nil, malformed("its pickle has %d bytes; at most %d are read", size, maxPickle)
	}
	p := newPickle(r, size, f != nil && f.skip)
	p.find = find
	root, err := p.reader.Read()
	if err != nil {
		return nil, err
	}
	if p.reader.Offset() != size {
		return nil, malformed("unexpected data after its pickle")
	}
	// Reading up to the end checks the checksum.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, fmt.Errorf("%w: its pickle: %w", ErrFormat, err)
	}
	return newObjects(f, root, p.reader.Use, p.reader.Limit())
}

// magicNumber begins a file of the older format, as a pickle of protocol 2.
var magicNumber, _ = new(big.Int).SetString("1950a86a20f9469cfc6c", 16)

// isLegacy reports whether a file begins with the number, in any protocol from 2 on.
func isLegacy(head []byte) bool {
	at := bytes.Index(head, []byte("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."))
	return at >= 2 && at <= 11 && head[0] == 0x80
}

// readLegacy reads a file of torch.save(_use_new_zipfile_serialization=False), or of PyTorch 0.2 to 1.5.
func readLegacy(f *File) (contents, error) {
	fileBytes := f.size
	p := newPickle(io.NewSectionReader(f.file, 0, fileBytes), min(fileBytes, maxPickle), f.skip)
	p.legacy = true
	p.find = func(key string) (*storage, error) { return &storage{key: key}, nil }
	for i, check := range []func(v any) bool{
		func(v any) bool { n, ok := v.(*big.Int); return ok && n.Cmp(magicNumber) == 0 },
		func(v any) bool { return v == int64(1001) },
		func(v any) bool {
			d, ok := v.(*pickle.Dict)
			return ok && slices.ContainsFunc(d.Items, func(i pickle.Item) bool { return i.Key == "little_endian" && i.Value == true })
		},
	} {
		v, err := p.reader.Read()
		if err != nil {
			return nil, err
		}
		if !check(v) {
			return nil, malformed("its %s", []string{"first number is another", "version is unknown", "numbers are not little-endian"}[i])
		}
	}
	root, err := p.reader.Read()
	if err != nil {
		return nil, err
	}
	keys, err := p.reader.Read()
	if err != nil {
		return nil, err
	}
	at := p.reader.Offset()
	for _, k := range items(keys) {
		key := text(k)
		if n, ok := k.(int64); ok {
			key = fmt.Sprint(n)
		}
		s := p.storages[key]
		if s == nil || s.known {
			return nil, malformed("the storage %s is unknown or occurs twice", quoted(key))
		}
		var count [8]byte
		if at > fileBytes-8 {
			return nil, malformed("the storage %s is missing", quoted(key))
		}
		if _, err := f.file.ReadAt(count[:], at); err != nil {
			return nil, err
		}
		at += 8
		// The number of elements. Storages of several dtypes are not in such files.
		if n := int64(binary.LittleEndian.Uint64(count[:])); n < 0 || s.bytes > fileBytes-at || n != 0 && s.bytes%n != 0 || (n == 0) != (s.bytes == 0) {
			return nil, malformed("the storage %s has %d elements, and %d bytes were expected", quoted(key), n, s.bytes)
		}
		s.begin, s.known = at, true
		at += s.bytes
	}
	// Another object may follow.
	for _, s := range p.order {
		if !s.known {
			return nil, malformed("the storage %s is not in it", quoted(s.key))
		}
	}
	return newObjects(f, root, p.reader.Use, p.reader.Limit())
}

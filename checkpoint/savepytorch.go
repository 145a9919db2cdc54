package checkpoint

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/pickle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// SavePyTorch writes an object to a file that Python opens with torch.load(path), also with weights_only=True and
// mmap=True, and that Load opens:
//
//	err := checkpoint.SavePyTorch("model.pt", nn.StateDict(model))
//
//	err := checkpoint.SavePyTorch("run.pt", map[string]any{
//		"model":     nn.StateDict(model),
//		"optimizer": opt.StateDict(),
//		"epoch":     3,
//	})
//
// The object consists of tensors; nn.State and maps to tensors, which become an OrderedDict; optim.State; maps with
// strings or integers as keys (a dict); slices and arrays (a list); integers, floats, complex128, bools, strings, []byte
// (bytes), tensor.DType (a torch.dtype; File.Value returns its name) and nil (None). Anything else is an error, and so is
// an object whose pickle, which holds everything but the tensors' elements, has more than 256 MiB. Write a struct as a
// map[string]any of its fields, or store it with SaveTraining and Value, if Python need not read it.
//
// Tensors that share a storage here share it in Python, if they have the same dtype; tensors that are views of a larger
// storage on their own are written without the rest of it. Tensors of all devices are written as tensors of the CPU that
// require no gradient. Like Save it replaces path completely or not at all, and the same object gives the same bytes.
// PyTorch: torch.save.
func SavePyTorch(path string, object any) error {
	const op = "SavePyTorch"
	return saved(op, tensor.WithScope(func() error {
		s := &pytorchSaver{prepared: map[*tensor.Tensor]*tensor.Tensor{}, number: map[*tensor.Tensor]int{}, byData: map[savedData]int{}}
		// The first pass finds the storages that several tensors share.
		for range 2 {
			s.pickle = pickle.NewWriter()
			if err := s.write(object, 0); err != nil {
				return err
			}
			s.second = true
		}
		if err := s.check(); err != nil {
			return fmt.Errorf("the object could not be read again: %w", err)
		}
		return replace(path, s.archive)
	}))
}

// pytorchSaver writes an object as a pickle, and collects the storages to which the pickle refers.
type pytorchSaver struct {
	pickle   *pickle.Writer
	second   bool                              // the storages are complete
	prepared map[*tensor.Tensor]*tensor.Tensor // what is written for a tensor: without a graph, resolved
	storages []*savedStorage
	byData   map[savedData]int      // index in storages
	number   map[*tensor.Tensor]int // index in storages, by prepared tensor
}

// savedData is the memory of a storage, and the dtype as which it is written. In a mapped file an empty storage has the
// address of the next one.
type savedData struct {
	device tensor.Device
	data   uint64
	bytes  int64
	dtype  tensor.DType
}

// savedStorage is a storage of the file.
type savedStorage struct {
	of     *tensor.Tensor // the first tensor in it
	shared bool           // it is not the only one
}

// whole reports whether the whole storage is written, in its order, rather than the tensor's elements in row-major order.
// The storage of an expanded tensor has fewer elements than the tensor.
func (s *savedStorage) whole() bool {
	return s.shared || s.of.StorageBytes() <= s.of.Numel()*s.of.DType().Size()
}

// count returns the number of elements.
func (s *savedStorage) count() int {
	if s.whole() {
		return s.of.StorageBytes() / s.of.DType().Size()
	}
	return s.of.Numel()
}

func (s *savedStorage) write(w io.Writer) error {
	if s.count() == 0 {
		return nil
	}
	x := s.of
	if s.whole() {
		x = x.AsStrided([]int{s.count()}, []int{1}, tensor.StorageOffset(0))
	}
	return write(w, x)
}

func (s *pytorchSaver) write(v any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("the object nests deeper than %d levels, or contains itself", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		s.pickle.None()
	case *tensor.Tensor:
		return s.tensor(v)
	case nn.State:
		return s.ordered(v)
	case map[string]*tensor.Tensor:
		return s.ordered(sorted(v))
	case optim.State:
		return s.write(map[string]any{"state": v.State, "param_groups": v.ParamGroups}, depth)
	case tensor.DType:
		if v.Size() == 0 {
			return fmt.Errorf("the dtype %v cannot be written", v)
		}
		s.pickle.Class(pickle.Class{Module: "torch", Name: v.String()})
	case *big.Int:
		if v == nil || !s.pickle.Big(v) {
			return errors.New("an integer of more than 254 bytes, or nil")
		}
	case []byte:
		s.bytes(v)
	case complex128:
		s.call(pickle.Class{Module: "__builtin__", Name: "complex"}, 2, func(i int) {
			s.pickle.Float([]float64{real(v), imag(v)}[i])
		})
	default:
		return s.reflected(reflect.ValueOf(v), depth)
	}
	return nil
}

// reflected writes a value whose type may be the program's own.
func (s *pytorchSaver) reflected(v reflect.Value, depth int) error {
	switch v.Type() {
	case reflect.TypeFor[tensor.DType](), reflect.TypeFor[tensor.Layout](), reflect.TypeFor[tensor.MemoryFormat](), reflect.TypeFor[tensor.DeviceType]():
		return fmt.Errorf("a %v cannot be written as an integer, which it is not in PyTorch; write its name", v.Type())
	}
	switch v.Kind() {
	case reflect.Bool:
		s.pickle.Bool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.pickle.Int(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.pickle.Big(new(big.Int).SetUint64(v.Uint()))
	case reflect.Float32, reflect.Float64:
		s.pickle.Float(v.Float())
	case reflect.String:
		return s.str(v.String())
	case reflect.Slice, reflect.Array:
		var failed error
		s.pickle.List(v.Len(), func(i int) {
			if failed == nil {
				failed = at(strconv.Itoa(i), s.write(v.Index(i).Interface(), depth+1))
			}
		})
		return failed
	case reflect.Map:
		return s.dict(v, depth)
	default:
		return fmt.Errorf("a %v cannot be written; values are tensors, maps, slices, numbers, strings, bools and dtypes", v.Type())
	}
	return nil
}

// at adds the place in the object to an error.
func at(place string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("in %s: %w", quoted(place), err)
}

func (s *pytorchSaver) str(text string) error {
	if strings.ToValidUTF8(text, "") != text {
		return errors.New("a string that is not UTF-8; use []byte")
	}
	s.pickle.Str(text)
	return nil
}

// bytes writes bytes as protocol 2 does: text in latin1 that is encoded.
func (s *pytorchSaver) bytes(b []byte) {
	var text strings.Builder
	for _, c := range b {
		text.WriteRune(rune(c))
	}
	s.call(pickle.Class{Module: "_codecs", Name: "encode"}, 2, func(i int) { s.pickle.Str([]string{text.String(), "latin1"}[i]) })
}

// call writes the result of a call of a function of Python with n arguments, which arg writes.
func (s *pytorchSaver) call(f pickle.Class, n int, arg func(i int)) {
	s.pickle.Class(f)
	s.pickle.Tuple(n, arg)
	s.pickle.Op('R')
}

func (s *pytorchSaver) dict(v reflect.Value, depth int) error {
	keys := v.MapKeys()
	compare := func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }
	switch v.Type().Key().Kind() {
	case reflect.String:
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		compare = func(a, b reflect.Value) int { return cmp.Compare(a.Int(), b.Int()) }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		compare = func(a, b reflect.Value) int { return cmp.Compare(a.Uint(), b.Uint()) }
	default:
		return fmt.Errorf("a %v cannot be written; the keys of a map are strings or integers", v.Type())
	}
	slices.SortFunc(keys, compare)
	var failed error
	s.pickle.Dict(len(keys), func(i int) {
		if failed == nil {
			failed = at(fmt.Sprint(keys[i]), cmp.Or(s.reflected(keys[i], depth+1), s.write(v.MapIndex(keys[i]).Interface(), depth+1)))
		}
	})
	return failed
}

// sorted returns the tensors in the order of their names.
func sorted(tensors map[string]*tensor.Tensor) nn.State {
	var out nn.State
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		out = append(out, nn.Named{Name: name, Tensor: tensors[name]})
	}
	return out
}

func (s *pytorchSaver) ordered(state nn.State) error {
	s.orderedDict()
	var failed error
	s.pickle.Items(len(state), func(i int) {
		if failed == nil {
			failed = at(state[i].Name, cmp.Or(s.str(state[i].Name), s.tensor(state[i].Tensor)))
		}
	})
	return failed
}

func (s *pytorchSaver) orderedDict() {
	s.call(pickle.Class{Module: "collections", Name: "OrderedDict"}, 0, nil)
}

// savedTypes are the classes of storages by dtype. Other dtypes are written as an UntypedStorage and a dtype.
var savedTypes = map[tensor.DType]string{
	tensor.Float64: "DoubleStorage", tensor.Float32: "FloatStorage", tensor.Float16: "HalfStorage", tensor.Int64: "LongStorage",
	tensor.Int32: "IntStorage", tensor.Int16: "ShortStorage", tensor.Int8: "CharStorage", tensor.Uint8: "ByteStorage", tensor.Bool: "BoolStorage",
	tensor.BFloat16: "BFloat16Storage", tensor.Complex128: "ComplexDoubleStorage", tensor.Complex64: "ComplexFloatStorage",
}

func (s *pytorchSaver) tensor(t *tensor.Tensor) error {
	if err := refuse.Unusable("Save", "", t); err != nil {
		return err
	}
	d := t.DType()
	if d.Size() == 0 {
		return fmt.Errorf("tensors of dtype %v cannot be written", d)
	}
	if err := writable(t); err != nil {
		return err
	}
	if !s.second {
		return s.prepare(t)
	}
	x := s.prepared[t]
	d = x.DType() // another goroutine may have converted t
	number := s.number[x]
	to := s.storages[number]
	shape, stride, offset := x.Shape(), x.Stride(), x.StorageOffset()
	if !to.whole() {
		offset, stride = 0, contiguous(shape)
	}
	class, named := savedTypes[d]
	count := int64(to.count())
	f := pickle.Class{Module: "torch._utils", Name: "_rebuild_tensor_v2"}
	n := 6
	if !named {
		class, count, n = "UntypedStorage", count*int64(d.Size()), 7
		f.Name = "_rebuild_tensor_v3"
	}
	ints := func(v []int) { s.pickle.Tuple(len(v), func(i int) { s.pickle.Int(int64(v[i])) }) }
	s.call(f, n, func(i int) {
		switch i {
		case 0:
			s.pickle.Tuple(5, func(i int) {
				switch i {
				case 0:
					s.pickle.Str("storage")
				case 1:
					module := "torch"
					if !named {
						module = "torch.storage"
					}
					s.pickle.Class(pickle.Class{Module: module, Name: class})
				case 2:
					s.pickle.Str(strconv.Itoa(number))
				case 3:
					s.pickle.Str("cpu")
				default:
					s.pickle.Int(count)
				}
			})
			s.pickle.Op('Q')
		case 1:
			s.pickle.Int(int64(offset))
		case 2:
			ints(shape)
		case 3:
			ints(stride)
		case 4:
			s.pickle.Bool(false)
		case 5:
			s.orderedDict()
		default:
			s.pickle.Class(pickle.Class{Module: "torch", Name: d.String()})
		}
	})
	return nil
}

// contiguous returns the strides of a tensor in row-major order.
func contiguous(shape []int) []int {
	stride, n := make([]int, len(shape)), 1
	for i := len(shape) - 1; i >= 0; i-- {
		stride[i] = n
		n *= max(1, shape[i])
	}
	return stride
}

// prepare makes what is written for a tensor, and finds the storage for it.
func (s *pytorchSaver) prepare(t *tensor.Tensor) error {
	x := s.prepared[t]
	if x != nil {
		return nil
	}
	x = t.Detach()
	if t.DType().IsComplex() {
		x = x.ResolveConj()
	}
	if x = x.ResolveNeg(); x.Err() != nil {
		return x.Err()
	}
	s.prepared[t] = x
	key := savedData{device: x.Device(), dtype: x.DType()}
	key.data, key.bytes = handle.Storage(x)
	if i, ok := s.byData[key]; ok && key.data != 0 {
		s.storages[i].shared = true
		s.number[x] = i
		return nil
	}
	s.byData[key] = len(s.storages)
	s.number[x] = len(s.storages)
	s.storages = append(s.storages, &savedStorage{of: x})
	return nil
}

// check reads the pickle as Load will.
func (s *pytorchSaver) check() error {
	object := s.pickle.Bytes()
	_, err := readObject(nil, bytes.NewReader(object), int64(len(object)), func(key string) (*storage, error) {
		i, err := strconv.Atoi(key)
		if err != nil {
			return nil, err
		}
		of := s.storages[i]
		return &storage{key: key, bytes: int64(of.count() * of.of.DType().Size()), known: true}, nil
	})
	return err
}

// alignment is that of the storages in the file.
const alignment = 64

// archive writes the zip archive: the members that PyTorch's reader needs, of which the storages are aligned.
func (s *pytorchSaver) archive(to io.Writer) error {
	w := &counter{to: to}
	z := zip.NewWriter(w)
	pending := int64(0) // bytes after the last member, which z writes with the next
	var failed error
	add := func(name string, bytes int64, write func(io.Writer) error) {
		if failed = cmp.Or(failed, z.Flush()); failed != nil {
			return
		}
		h := &zip.FileHeader{Name: "archive/" + name, Method: zip.Store}
		if strings.HasPrefix(name, "data/") {
			h.Extra = padding(w.n + pending + 30 + int64(len(h.Name)))
		}
		if pending = 16; bytes >= math.MaxUint32 {
			pending = 24
		}
		var m io.Writer
		if m, failed = z.CreateHeader(h); failed == nil {
			failed = write(m)
		}
	}
	text := func(text string) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		}
	}
	object := s.pickle.Bytes()
	add("data.pkl", int64(len(object)), text(string(object)))
	add("byteorder", 6, text("little"))
	for i, storage := range s.storages {
		add("data/"+strconv.Itoa(i), int64(storage.count()*storage.of.DType().Size()), storage.write)
	}
	add("version", 2, text("3\n"))
	return cmp.Or(failed, z.Close())
}

// padding returns an extra field after which a member that begins at that offset is aligned.
func padding(at int64) []byte {
	n := int((alignment - at%alignment) % alignment)
	if n > 0 && n < 4 {
		n += alignment
	}
	if n == 0 {
		return nil
	}
	// The identifier of the field is that of PyTorch's padding.
	return append(binary.LittleEndian.AppendUint16([]byte("FB"), uint16(n-4)), make([]byte, n-4)...)
}

// counter counts the bytes that are written to it.
type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

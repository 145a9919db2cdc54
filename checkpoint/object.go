package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/linstock-ml/linstock/internal/pickle"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// objects is the contents of a file of a format that stores nested objects: PyTorch's and NumPy's.
type objects struct {
	file    *File
	root    any
	entries []object // the tensors, sorted by name
	limit   int64    // of the bytes that the values may take
}

type object struct {
	name   string
	tensor *stored
}

// maxDepth is the maximum nesting of lists and dicts. Python writes up to 1,000.
const maxDepth = 1000

// newObjects names the tensors in root. use counts the memory for the names.
func newObjects(f *File, root any, use func(n int) error, limit int64) (contents, error) {
	if o, ok := root.(*pickle.Object); ok {
		return nil, notData("is", o.Class)
	}
	o := &objects{file: f, root: root, limit: limit}
	c := collector{use: use, within: map[any]bool{}}
	if err := c.visit(root); err != nil {
		return nil, err
	}
	o.entries = c.entries
	slices.SortFunc(o.entries, func(a, b object) int { return strings.Compare(a.name, b.name) })
	kept := o.entries[:0]
	for _, e := range o.entries {
		last := len(kept) - 1
		switch {
		case last < 0 || kept[last].name != e.name:
			kept = append(kept, e)
		case kept[last].tensor != e.tensor:
			kept[last].tensor = &stored{refused: "two tensors have this name"}
		}
	}
	o.entries = kept
	return o, nil
}

// collector finds the tensors in an object.
type collector struct {
	use     func(n int) error // counts memory, and work as if a step took a byte
	entries []object
	keys    []string     // on the way to the value that is visited
	within  map[any]bool // the dicts, lists and sets on the way
}

func (c *collector) visit(v any) error {
	switch v := v.(type) {
	case *stored:
		return c.add(v)
	case *pickle.Dict, *pickle.List, *pickle.Set:
		if c.within[v] { // its tensors have shorter names
			return nil
		}
		c.within[v] = true
		defer delete(c.within, v)
	}
	if len(c.keys) > maxDepth {
		return malformed("it nests deeper than %d levels", maxDepth)
	}
	if err := c.use(16 + count(v)); err != nil {
		return err
	}
	return children(v, func(child any) bool {
		_, is := child.(*stored)
		return is || count(child) > 0
	}, func(key string, child any) error {
		c.keys = append(c.keys, key)
		err := c.visit(child)
		c.keys = c.keys[:len(c.keys)-1]
		return err
	})
}

// add adds a tensor under the name that the keys give.
func (c *collector) add(t *stored) error {
	n := 0
	for _, key := range c.keys {
		n += len(key) + 1
	}
	if err := c.use(64 + 2*n); err != nil {
		return err
	}
	var name strings.Builder
	name.Grow(n)
	for _, key := range c.keys {
		if name.Len() > 0 {
			name.WriteByte('.')
		}
		name.WriteString(key)
	}
	c.entries = append(c.entries, object{name.String(), t})
	return nil
}

// count returns the number of elements of a container.
func count(v any) int {
	switch v := v.(type) {
	case *pickle.Dict:
		return len(v.Items)
	case *pickle.List:
		return len(v.Items)
	case *pickle.Set:
		return len(v.Items)
	case pickle.Tuple:
		return len(v)
	}
	return 0
}

// children calls f for those elements of a dict, list, tuple or set that wanted accepts, with their keys or numbers, but
// not for those under keys that have no name.
func children(v any, wanted func(child any) bool, f func(key string, child any) error) error {
	var list []any
	switch v := v.(type) {
	case *pickle.Dict:
		for _, i := range v.Items {
			key, err := keyName(i.Key)
			if err == errNoName {
				continue
			}
			if err == nil && wanted(i.Value) {
				err = f(key, i.Value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	case *pickle.List:
		list = v.Items
	case *pickle.Set:
		list = v.Items
	case pickle.Tuple:
		list = v
	}
	for i, child := range list {
		if !wanted(child) {
			continue
		}
		if err := f(strconv.Itoa(i), child); err != nil {
			return err
		}
	}
	return nil
}

// errNoName is the error of keys such as None, tuples and integers of more than 64 bits.
var errNoName = malformed("a dict has a key that is neither a string nor a number of at most 64 bits")

func keyName(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case pickle.Bytes:
		return string(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case bool, float64:
		return fmt.Sprint(v), nil
	case *pickle.Dict, *pickle.List:
		return "", malformed("a dict has a dict or a list as a key")
	}
	return "", errNoName
}

func (o *objects) names() []string {
	names := make([]string, len(o.entries))
	for i := range names {
		names[i] = o.entries[i].name
	}
	return names
}

func (o *objects) find(name string) (*stored, bool) {
	i, ok := slices.BinarySearchFunc(o.entries, name, func(e object, name string) int { return strings.Compare(e.name, name) })
	if !ok {
		return nil, false
	}
	return o.entries[i].tensor, true
}

func (o *objects) has(name string) bool {
	_, ok := o.find(name)
	return ok
}

func (o *objects) tensor(name string) (*tensor.Tensor, error) {
	t, ok := o.find(name)
	if !ok {
		return nil, errNoTensor
	}
	b := newBases(o.file, false)
	defer b.release()
	return b.tensor(t)
}

func (o *objects) tensors(accept func(name string) bool, add adder) error {
	b := newBases(o.file, true)
	defer b.release()
	for _, e := range o.entries {
		if !accept(e.name) {
			continue
		}
		t, err := b.tensor(e.tensor)
		if err := add(e.name, t, err); err != nil {
			return err
		}
	}
	return nil
}

func (o *objects) close() error { return nil }

// bases are the storages of tensors.
type bases struct {
	file *File
	// whole sets whether an unmapped storage is copied whole, for tensors that share it, rather than only the part of
	// one tensor.
	whole bool
	of    map[baseKey]*base
}

// baseKey is a storage, and whether it is a copy.
type baseKey struct {
	*storage
	copied, bools bool
}

// base is a storage, or a part of it, as a flat tensor of bytes.
type base struct {
	bytes *tensor.Tensor
	from  int64 // of the storage
	large bool  // a byte of a copy is neither 0 nor 1
}

func newBases(f *File, whole bool) *bases { return &bases{f, whole, map[baseKey]*base{}} }

func (b *bases) release() {
	for _, of := range b.of {
		of.bytes.Release()
	}
}

// tensor returns a view of its storage, in the current scope.
func (b *bases) tensor(t *stored) (*tensor.Tensor, error) {
	if t.refused != "" {
		return nil, errors.New(t.refused)
	}
	if slices.Contains(t.shape, 0) {
		return resultOf(tensor.Empty(t.shape, t.element.dtype))
	}
	of, err := b.base(t)
	if err != nil {
		return nil, err
	}
	from, to := t.span()
	first, n := int(from-of.from), int(to-from)
	if of.large && t.element.dtype == tensor.Bool { // perhaps in another part of the storage
		if err := checkBoolsOf(of.bytes, first, n); err != nil {
			return nil, err
		}
	}
	return resultOf(tensor.Tidy(func() *tensor.Tensor {
		size := int(t.element.bytes)
		x := of.bytes.Narrow(0, first, (of.bytes.Numel()-first)/size*size).ViewDType(t.element.dtype)
		x = x.AsStrided(t.shape, t.stride, tensor.StorageOffset(x.StorageOffset()))
		if t.conj {
			x = x.Conj()
		}
		if t.neg {
			x = x.Neg()
		}
		return x
	}))
}

func checkBoolsOf(bytes *tensor.Tensor, first, n int) error {
	part := bytes.Narrow(0, first, n)
	defer part.Release()
	data, err := tensor.Data[uint8](part)
	if err != nil {
		return err
	}
	return checkBools(data)
}

func resultOf(t *tensor.Tensor) (*tensor.Tensor, error) {
	if err := t.Err(); err != nil {
		return nil, err
	}
	return t, nil
}

// base returns the bytes of a tensor's storage: the mapped pages, or a copy where the file is not mapped, the storage
// is compressed or not aligned, or the tensor is of bools.
func (b *bases) base(t *stored) (*base, error) {
	s := t.storage
	m, err := b.file.pages()
	if err != nil {
		return nil, err
	}
	key := baseKey{storage: s, bools: t.element.dtype == tensor.Bool}
	if m == nil || s.member != nil && s.member.compressed() || key.bools {
		key.copied = true
	} else {
		start := uintptr(unsafe.Pointer(unsafe.SliceData(m.data))) + uintptr(s.begin) + uintptr(t.begin)
		key.copied = start%uintptr(min(t.element.bytes, 8)) != 0 || t.begin%t.element.bytes != 0
	}
	of := b.of[key]
	switch {
	case of != nil:
	case key.copied:
		from, to := int64(0), s.bytes
		if !b.whole {
			from, to = t.span()
		}
		of = &base{from: from}
		of.bytes = tensor.Tidy(func() *tensor.Tensor {
			var all *tensor.Tensor
			all, of.large, err = b.file.readStorage(s, from, to)
			return all
		})
	default:
		m.users.Add(1)
		of = &base{bytes: tensor.FromMapped(tensor.Uint8, []int{int(s.bytes)}, m.data[s.begin:s.begin+s.bytes:s.begin+s.bytes], m.release)}
	}
	if m != nil {
		m.release()
	}
	if err == nil {
		err = of.bytes.Err()
	}
	if err != nil {
		return nil, err
	}
	b.of[key] = of
	return of, nil
}

// readStorage reads a range of bytes of a storage into memory that libtorch allocates. large reports whether
// one is neither 0 nor 1.
func (f *File) readStorage(s *storage, from, to int64) (all *tensor.Tensor, large bool, err error) {
	var r io.Reader = io.NewSectionReader(f.file, s.begin+from, to-from)
	if s.member != nil {
		c, err := s.member.open()
		if err != nil {
			return nil, false, shortened(err)
		}
		defer c.Close()
		r = c
		if skip := s.skip + from; skip > 0 {
			if _, err := io.CopyN(io.Discard, r, skip); err != nil {
				return nil, false, shortened(err)
			}
		}
	}
	n := int(to - from)
	all = tensor.Empty([]int{n}, tensor.Uint8)
	piece := make([]byte, min(n, pieceBytes))
	for at := 0; at < n; at += len(piece) {
		piece = piece[:min(len(piece), n-at)]
		if _, err := io.ReadFull(r, piece); err != nil {
			return nil, false, shortened(err)
		}
		large = large || checkBools(piece) != nil
		from, to := tensor.FromSlice(piece, nil), all.Narrow(0, at, len(piece))
		err := to.Copy_(from).Err()
		from.Release()
		to.Release()
		if err != nil {
			return nil, false, err
		}
	}
	if s.member != nil { // reading up to the end checks the checksum
		if _, err := io.Copy(io.Discard, r); err != nil {
			return nil, false, malformed("the member %s: %v", quoted(s.member.Name), err)
		}
	}
	return all, large, nil
}

// shortened names the usual cause of a file that ends too early.
func shortened(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file was shortened after it was opened: %w", io.ErrUnexpectedEOF)
	}
	if errors.Is(err, os.ErrClosed) || errors.Is(err, ErrFormat) {
		return err
	}
	return fmt.Errorf("it cannot be read: %w", err)
}

// value returns the object of that name as Go values.
func (o *objects) value(name string) (any, error) {
	var v any
	if t, ok := o.find(name); ok && name != "" { // a tensor may have the key ""
		v = t
	} else if name == "" {
		v = o.root
	} else if v, ok = lookup(o.root, name, maxDepth); !ok {
		return nil, errNoValue
	}
	_, one := v.(*stored)
	c := &converter{bases: newBases(o.file, !one), left: o.limit, done: map[any]any{}}
	defer c.bases.release()
	out, err := c.value(v, 0)
	if err != nil {
		for _, t := range c.made {
			t.Release()
		}
	}
	return out, err
}

var (
	errNoTensor = errors.New("has no tensor")
	errNoValue  = errors.New("has no value")
)

// lookup returns the object under a name, whose keys may contain dots or be empty.
func lookup(v any, name string, depth int) (found any, ok bool) {
	if depth == 0 {
		return nil, false
	}
	_ = children(v, func(any) bool { return !ok }, func(key string, child any) error {
		if rest, is := strings.CutPrefix(name, key); is && rest == "" {
			found, ok = child, true
		} else if is && rest[0] == '.' && key != "" {
			found, ok = lookup(child, rest[1:], depth-1)
		}
		return nil
	})
	return found, ok
}

// converter makes Go values of objects.
type converter struct {
	bases *bases
	made  []*tensor.Tensor
	left  int64       // bytes that the values may take
	done  map[any]any // the values of lists, tuples, sets and dicts, which others may share
}

// tupleID is a tuple that is not empty.
type tupleID struct{ first *any }

func (c *converter) value(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, malformed("it contains itself, or nests deeper than %d levels", maxDepth)
	}
	if c.left -= 48; c.left < 0 {
		return nil, malformed("its values take too much memory for its size")
	}
	switch v := v.(type) {
	case nil, bool, float64, complex128, string, *big.Int:
		return v, nil
	case int64:
		return int(v), nil
	case pickle.Bytes:
		c.left -= int64(len(v))
		return []byte(v), nil
	case element:
		return "torch." + v.name, nil
	case *stored:
		t, err := c.bases.tensor(v)
		if err == nil {
			c.made = append(c.made, t)
		}
		return t, err
	case *pickle.List:
		return c.list(v, v.Items, depth)
	case *pickle.Set:
		return c.list(v, v.Items, depth)
	case pickle.Tuple:
		return c.list(tupleID{unsafe.SliceData(v)}, v, depth)
	case *pickle.Dict:
		return c.once(v, len(v.Items), func() (any, error) { return c.dict(v, depth) })
	case typedStorage:
		return nil, errors.New("it is a storage without a tensor")
	case *pickle.Object:
		return Object{Class: v.Class}, nil
	}
	return nil, errors.New("it is a class or function, not data")
}

// once returns the value of a container of n elements, which convert converts the first time.
func (c *converter) once(id any, n int, convert func() (any, error)) (any, error) {
	if n == 0 {
		return convert()
	}
	if v, ok := c.done[id]; ok {
		return v, nil
	}
	c.left -= 64
	v, err := convert()
	if err == nil {
		c.done[id] = v
	}
	return v, err
}

func (c *converter) list(id any, values []any, depth int) (any, error) {
	return c.once(id, len(values), func() (any, error) {
		out := make([]any, 0, min(len(values), 1024))
		for _, v := range values {
			x, err := c.value(v, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, x)
		}
		return out, nil
	})
}

func (c *converter) dict(d *pickle.Dict, depth int) (any, error) {
	numbers := len(d.Items) > 0
	for _, i := range d.Items {
		_, ok := i.Key.(int64)
		numbers = numbers && ok
	}
	strings, ints := map[string]any{}, map[int]any{}
	for _, i := range d.Items {
		v, err := c.value(i.Value, depth+1)
		if err != nil {
			return nil, err
		}
		c.left -= 64
		if numbers {
			ints[int(i.Key.(int64))] = v
			continue
		}
		key, err := keyName(i.Key)
		if err != nil {
			return nil, err
		}
		strings[key] = v
	}
	if len(strings)+len(ints) != len(d.Items) {
		return nil, malformed("a dict has a key twice")
	}
	if numbers {
		return ints, nil
	}
	return strings, nil
}

// optimizerState converts the value of an optimizer's state_dict().
func optimizerState(v any) (s optim.State, err error) {
	d, ok := v.(map[string]any)
	groups, isList := d["param_groups"].([]any)
	if !ok || !isList {
		return s, errors.New("it is not the state_dict() of an optimizer: it has no param_groups")
	}
	s.State = map[int]map[string]any{}
	switch state := d["state"].(type) {
	case map[int]any:
		for n, v := range state {
			values, ok := v.(map[string]any)
			if !ok {
				return s, fmt.Errorf("the state of parameter %d is not a dict", n)
			}
			s.State[n] = values
		}
	case map[string]any:
		if len(state) != 0 {
			return s, errors.New("its state is not keyed by the numbers of parameters")
		}
	default:
		return s, errors.New("it is not the state_dict() of an optimizer: it has no state")
	}
	for i, v := range groups {
		g, ok := v.(map[string]any)
		if !ok {
			return s, fmt.Errorf("the group %d of parameters is not a dict", i)
		}
		s.ParamGroups = append(s.ParamGroups, g)
	}
	return s, nil
}

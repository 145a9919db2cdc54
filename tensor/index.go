package tensor

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
)

// A Slice selects a range of a dimension, like Python's start:stop:step. Range(1, 3) is 1:3, From(2) is 2:, Until(-1)
// is :-1 and All is :. By sets the step: From(1).By(2) is 1::2. Bounds that are out of range are clamped.
type Slice struct {
	start, stop, step          int
	hasStart, hasStop, hasStep bool
}

// Range returns the slice start:stop.
func Range(start, stop int) Slice {
	return Slice{start: start, stop: stop, hasStart: true, hasStop: true}
}

// From returns the slice start:, which extends to the end.
func From(start int) Slice { return Slice{start: start, hasStart: true} }

// Until returns the slice :stop, which starts at the beginning.
func Until(stop int) Slice { return Slice{stop: stop, hasStop: true} }

// All is the slice ":", a whole dimension.
var All Slice

// By returns s with the given step, which must be positive.
func (s Slice) By(step int) Slice {
	s.step, s.hasStep = step, true
	return s
}

// String returns s in Python's notation.
func (s Slice) String() string {
	var b strings.Builder
	if s.hasStart {
		b.WriteString(strconv.Itoa(s.start))
	}
	b.WriteByte(':')
	if s.hasStop {
		b.WriteString(strconv.Itoa(s.stop))
	}
	if s.hasStep {
		b.WriteString(":" + strconv.Itoa(s.step))
	}
	return b.String()
}

type special struct{ name string }

func (s special) String() string { return s.name }

var (
	// Ellipsis stands for all dimensions that the other elements of an index do not mention. It is Python's "...".
	Ellipsis any = special{"..."}
	// NewAxis inserts a new dimension of size 1. It is Python's None; nil does the same.
	NewAxis any = special{"None"}
)

// Index returns a part of t, as Python's t[idx...] does. An element of idx is
//
//   - an integer, or a *Tensor of int64 or int32 and shape () with one, which selects an element of a dimension and
//     removes the dimension; a negative one counts from the end;
//   - a [Slice] (tensor.Range(1, 3), tensor.From(1), tensor.Until(3), each with an optional .By(step)) or [All];
//   - [Ellipsis]; [NewAxis] or nil;
//   - a *Tensor of int64 or int32, which selects elements along a dimension, or of bools or uint8, which is a mask over
//     as many dimensions as it has. Integers on a GPU are checked by the kernel: one that is out of bounds makes the
//     device unusable (ErrDeviceLost);
//   - []int or []bool, equivalent to such a tensor; or a bool, which is a mask without dimensions;
//   - a string of elements in Python's syntax: x.Index("1:3, ..., ::2, None, [0, 2]"). Lists in it may be nested and have
//     the same meaning as in Python.
//
// A []any that is the whole index stands for its elements, as in [Tensor.SetIndex].
//
// If idx has only integers, slices, Ellipsis and NewAxis, the result is a view that shares storage with t. Otherwise it
// is a copy, with its dimensions in the same order as in PyTorch. Dimensions that idx does not mention are selected
// whole. PyTorch: Tensor.__getitem__.
func (t *Tensor) Index(idx ...any) *Tensor {
	if !t.pin() {
		return passOn("Index", t)
	}
	defer t.unpin()
	if len(idx) == 1 {
		if elements, is := idx[0].([]any); is {
			idx = elements
		}
	}
	x := newIndexing("Index", t.h)
	defer x.release()
	if !x.run(idx) {
		return x.fail
	}
	if x.advanced == nil {
		if x.view == x.self {
			return callTensor(x.op, "aten::alias", x.self)
		}
		view := x.view
		x.view = x.self
		return view
	}
	return x.namedTensor(x.view.IndexTensors(x.advanced))
}

// SetIndex assigns to a part of t, as Python's t[idx] = value does. idx is an element as in [Tensor.Index], or several
// as []any, which corresponds to a Python tuple:
//
//	err := x.SetIndex(0, 1.5)
//	err = x.SetIndex("1:3, ...", v)
//	err = x.SetIndex([]any{tensor.All, mask}, v)
//
// value is a number, or a *Tensor whose shape broadcasts to the selected part after its leading dimensions of size 1
// are dropped. t must be dense or nested, not sparse.
//
// A number is converted to t's dtype as in PyTorch: an integer dtype drops the fraction, and in an unsigned one -1
// becomes the largest number. One beyond the dtype's range is an error, except where PyTorch does not check it: float16,
// bfloat16 and float8 then take an infinity (or the largest number or NaN, if they have none). This applies if integers
// and slices select a single element, if idx has several tensors and lists, or one of int32, and in float8 if it has one
// of int64 or a bool. A complex number without an imaginary part is taken at every index, also where PyTorch refuses it.
//
// A tensor is converted, too, if idx has only integers, slices, Ellipsis and NewAxis; otherwise it must have t's dtype,
// or be a single element assigned through a single mask. A value that shares memory with t must cover exactly the
// elements that are written, or none of them.
//
// An integer of shape () on t's GPU stays there if value is a number, or a tensor of shape () of t's dtype and device: the
// assignment then does not wait for the device, a graph can capture it, and the kernel checks the integer. PyTorch:
// Tensor.__setitem__.
func (t *Tensor) SetIndex(idx any, value any) error {
	const op = "SetIndex"
	if !t.pin() {
		return passOn(op, t).Err()
	}
	defer t.unpin()
	x := newIndexing(op, t.h)
	x.value = value
	defer x.release()
	if layout := x.self.Layout(); layout != Strided && layout != layoutNested { // the parts of others are copies
		return refused(op, ErrArgument, "cannot assign to a tensor of layout %v; convert it with ToDense first", layout)
	}
	v, isTensor := value.(*Tensor)
	if isTensor {
		if !v.pin() {
			return unusable(op, v)
		}
		defer v.unpin()
	} else if _, _, n := encodeNumber(value); n == 0 {
		return refused(op, ErrArgument, "the value must be a number or a *Tensor, got %s", typeName(value))
	}
	items, tuple := idx.([]any)
	if !tuple {
		items = []any{idx}
	}
	if on, is := idx.(bool); is || idx == "True" || idx == "False" {
		// As in Python, a bool that is the whole index is not a mask: either all elements are written or none.
		if !on && idx != "True" {
			return nil
		}
		items = []any{NewAxis}
	}
	if !x.run(items) {
		return x.fail.Err()
	}
	if !isTensor && x.advanced == nil {
		return x.named(x.view.Fill_(value).Err())
	}
	if !isTensor {
		if filled, err := x.fill(value); filled {
			return x.named(err)
		}
		if v = ScalarTensor(value, x.self.DType(), x.self.Device()); v.fail != nil {
			return x.namedTensor(v).Err()
		}
		defer v.Release()
	}
	shape := v.Shape()
	if x.advanced == nil && slices.Equal(shape, x.view.Shape()) {
		return x.named(x.view.Copy_(v).Err())
	}
	if x.advanced == nil && len(shape) == 0 && v.Device() == CPU {
		return x.named(x.view.Fill_(v).Err()) // a GPU gets the number, not a copy of the broadcast
	}
	src := v
	if len(shape) > 0 && shape[0] == 1 {
		for len(shape) > 0 && shape[0] == 1 {
			shape = shape[1:]
		}
		src = v.View(shape...)
		defer src.Release()
		if src.fail != nil {
			return x.named(src.Err())
		}
	}
	if x.advanced != nil {
		err := x.view.IndexPut_(x.advanced, src).Err()
		var e *Error
		if errors.As(err, &e) && strings.HasPrefix(e.Message, "Index put requires the source and destination dtypes match") {
			d := x.self.DType()
			return refused(op, ErrArgument, "the value is %v and the tensor %v; convert it with To(tensor.%s) first", src.DType(), d, goDType(d))
		}
		return x.named(err)
	}
	wide := src.Expand(x.view.Shape()...)
	defer wide.Release()
	if wide.fail != nil {
		return x.named(wide.Err())
	}
	return x.named(x.view.Copy_(wide).Err())
}

// fill assigns the number v through a single mask or a single index of int64. As in PyTorch, other indices get a tensor
// made of the number: fill then returns false.
func (x *indexing) fill(v any) (filled bool, err error) {
	var only *Tensor
	var dim int
	for i, t := range x.advanced {
		switch {
		case t == nil:
		case only != nil:
			return false, nil
		default:
			only, dim = t, i
		}
	}
	d, on, shape := x.self.DType(), x.self.Device(), only.Shape()
	first, second, _ := encodeNumber(v)
	mask := false
	switch i := only.DType(); {
	case i == Bool:
		mask = true
		sizes := x.view.Shape()
		if after := dim + len(shape); after > len(sizes) || !slices.Equal(shape, sizes[dim:after]) {
			return false, nil // IndexPut_ names the fault
		}
		for range len(sizes) - dim - len(shape) {
			shape = append(shape, 1)
		}
	case i != Int64 || d.IsFloat() && d.Size() == 1: // index_fill_ has no kernel for float8
		return false, nil
	case first.Tag == cshim.TagComplex && !d.IsComplex() && math.Float64frombits(second.Bits) != 0:
		return true, refused(x.op, ErrArgument, "a complex number cannot be converted to %v", d)
	case len(shape) > 1:
		shape = []int{only.Numel()}
	}
	if only.Device() != on {
		if only = only.To(on); !x.make(only) {
			return true, x.fail.Err()
		}
	}
	if len(shape) != only.Dim() {
		if only = only.Reshape(shape...); !x.make(only) {
			return true, x.fail.Err()
		}
	}
	if mask {
		return true, x.view.MaskedFill_(only, v).Err()
	}
	if first.Tag == cshim.TagComplex && !d.IsComplex() { // index_fill_ takes no complex number, whatever its value
		v = math.Float64frombits(first.Bits)
	}
	return true, x.view.IndexFill_(dim, only, v).Err()
}

// indexing is the state of one Index or SetIndex. Basic elements are applied to view at once; the others are collected in
// advanced, where nil selects a dimension whole and a mask stands for as many dimensions as it has. It follows
// python_variable_indexing.cpp.
type indexing struct {
	op       string
	self     *Tensor // has the handle of the indexed tensor
	view     *Tensor
	value    any // what SetIndex assigns; nil in Index
	advanced []*Tensor
	made     []*Tensor // index tensors to free
	fail     *Tensor
	dim      int // the dimension of view to which the next element applies
	covered  int // the number of dimensions for which advanced has elements
	realDim  int // dim in self
}

// newIndexing works on a Tensor of its own, which no other goroutine can release, with the handle of a pinned one.
func newIndexing(op string, h cshim.Handle) *indexing {
	self := &Tensor{h: h}
	return &indexing{op: op, self: self, view: self}
}

func (x *indexing) refuse(kind error, format string, args ...any) bool {
	if x.fail == nil {
		x.fail = failed(refused(x.op, kind, format, args...))
	}
	return false
}

// named attributes the error of an operator that the index calls to the index.
func (x *indexing) named(err error) error { return attribute(x.op, err) }

func (x *indexing) namedTensor(t *Tensor) *Tensor { return attributed(x.op, t) }

func (x *indexing) release() {
	for _, t := range x.made {
		t.Release()
	}
	if x.view != x.self {
		x.view.Release()
	}
}

// take makes next the view and frees the previous one.
func (x *indexing) take(next *Tensor) bool {
	if next.fail != nil {
		x.fail = x.namedTensor(next)
		return false
	}
	if x.view != x.self {
		x.view.Release()
	}
	x.view = next
	return true
}

func (x *indexing) make(t *Tensor) bool {
	if t.fail != nil {
		x.fail = x.namedTensor(t)
		return false
	}
	x.made = append(x.made, t)
	return true
}

func (x *indexing) run(idx []any) bool {
	var items []any
	for _, e := range idx {
		if s, ok := e.(string); ok {
			parsed, tuple, err := parseIndex(s)
			if err != nil {
				return x.refuse(ErrArgument, "%q: %v", s, err)
			}
			if len(idx) == 1 && !tuple {
				if list, is := parsed[0].(indexList); is && isTuple(list) {
					parsed = list
				}
			}
			items = append(items, parsed...)
			continue
		}
		items = append(items, e)
	}
	dims := x.self.Dim()
	specified := 0
	for i, e := range items {
		switch e := e.(type) {
		case nil, bool, special:
		case Slice:
			specified++
		case *Tensor:
			if !e.pin() {
				if e != nil && e.fail != nil {
					x.fail = passOn(x.op, e)
					return false
				}
				x.fail = failed(unusable(x.op, e))
				return false
			}
			d := e.DType()
			if d == Bool || d == Uint8 {
				specified += e.Dim()
			} else {
				specified++
			}
			e.unpin()
		case []int:
			list := FromSlice(e, nil, CPU)
			if !x.make(list) {
				return false
			}
			items[i] = list
			specified++
		case []bool:
			list := FromSlice(e, nil, CPU)
			if !x.make(list) {
				return false
			}
			items[i] = list
			specified++
		case indexList:
			shape, elements, mask, err := rectangle(e)
			if err != nil {
				return x.refuse(ErrArgument, "element %d: %v", i, err)
			}
			list := FromSlice(elements, shape, CPU)
			if mask {
				wide := list
				list = wide.To(Bool)
				wide.Release()
			}
			if !x.make(list) {
				return false
			}
			items[i] = list
			specified++
			if mask {
				specified += len(shape) - 1
			}
		default:
			n, ok := indexInt(e)
			if !ok {
				return x.refuse(ErrArgument, "element %d: invalid index of type %T: want int, Slice, Ellipsis, NewAxis, bool, *Tensor, []int, []bool or string", i, e)
			}
			items[i] = n
			specified++
		}
	}
	if specified > dims {
		return x.refuse(ErrIndex, "too many indices for a tensor of dimension %d", dims)
	}
	for _, e := range items {
		if !x.element(e, dims-specified) {
			return false
		}
	}
	return true
}

func indexInt(v any) (int, bool) {
	switch v := v.(type) {
	case int:
		return v, true
	case int64:
		return int(v), int64(int(v)) == v
	case int32:
		return int(v), true
	case int16:
		return int(v), true
	case int8:
		return int(v), true
	case uint:
		return int(v), uint64(v) <= math.MaxInt
	case uint64:
		return int(v), v <= math.MaxInt
	case uint32:
		return int(v), uint64(v) <= math.MaxInt
	case uint16:
		return int(v), true
	case uint8:
		return int(v), true
	}
	return 0, false
}

// element applies one element; rest is the number of dimensions for which an ellipsis stands.
func (x *indexing) element(e any, rest int) bool {
	switch e := e.(type) {
	case nil:
		return x.newAxis()
	case special:
		if e == Ellipsis {
			x.whole(rest)
			x.realDim += rest
			return true
		}
		return x.newAxis()
	case int:
		x.realDim++
		return x.selectOne(e)
	case Slice:
		x.realDim++
		return x.slice(e)
	case bool:
		return x.mask(e)
	case *Tensor:
		return x.tensor(e)
	}
	return x.refuse(ErrArgument, "invalid index of type %T", e)
}

// whole passes over n dimensions.
func (x *indexing) whole(n int) { x.dim += n }

func (x *indexing) newAxis() bool {
	dim := x.dim
	x.whole(1)
	return x.take(x.view.Unsqueeze(dim))
}

func (x *indexing) selectOne(i int) bool {
	return x.within(int64(i), x.view.Size(x.dim)) && x.take(x.view.Select(x.dim, i))
}

// within reports whether an index is within the bounds of a dimension of that size. If the size is -1, that of a nested
// tensor's dimension in which its elements differ, the operator checks.
func (x *indexing) within(i int64, size int) bool {
	if size >= 0 && (i >= int64(size) || i < -int64(size)) {
		return x.refuse(ErrIndex, "index %d is out of bounds for dimension %d with size %d", i, x.realDim-1, size)
	}
	return true
}

func (x *indexing) slice(s Slice) bool {
	step := 1
	if s.hasStep {
		step = s.step
	}
	if step <= 0 {
		return x.refuse(ErrArgument, "slice step must be positive, got %d", step)
	}
	dim := x.dim
	x.whole(1)
	if !s.hasStart && !s.hasStop && step == 1 {
		return true
	}
	// libtorch adds the size to a negative bound. Clamp it so that the sum does not overflow.
	clamp := func(v int) int { return max(-math.MaxInt, v) }
	opts := [3]Option{Step(step)}
	n := 1
	if s.hasStart {
		opts[n] = Start(clamp(s.start))
		n++
	}
	if s.hasStop {
		opts[n] = End(clamp(s.stop))
		n++
	}
	return x.take(x.view.Slice(dim, opts[:n]...))
}

// mask applies a mask without dimensions: it inserts a new dimension of size 1 and selects all of it or nothing.
func (x *indexing) mask(on bool) bool {
	if !x.take(x.view.Unsqueeze(x.dim)) {
		return false
	}
	index := Zeros([]int{int(bit(on))}, Int64, x.self.Device())
	return x.make(index) && x.record(index)
}

func (x *indexing) tensor(t *Tensor) bool {
	d := t.DType()
	dims := t.Dim()
	mask := d == Bool || d == Uint8
	switch {
	case mask:
		x.realDim += dims
	default:
		x.realDim++
	}
	if dims == 0 && (mask || !d.IsFloat() && !d.IsComplex()) && !x.staysOnDevice(t) {
		i, err := Item[int](t)
		if err != nil {
			x.fail = failed(x.named(err))
			return false
		}
		if mask {
			return x.mask(i != 0)
		}
		return x.selectOne(i)
	}
	if !mask && !d.IsFloat() && !d.IsComplex() && t.Device() == CPU && x.self.Device() != CPU && !x.inside(t) {
		return false
	}
	if d == Uint8 {
		// This equals a bool mask. libtorch would print a deprecation warning at each use of a uint8 mask.
		t = t.To(Bool)
		if !x.make(t) {
			return false
		}
	}
	return x.record(t)
}

// staysOnDevice reports whether an index of shape () is left on the GPU, as in PyTorch: an assignment of a single value then
// does not wait for the device. See canKeepScalarIndexOnDevice in ATen/TensorIndexing.h.
func (x *indexing) staysOnDevice(t *Tensor) bool {
	on, d, i := x.self.Device(), x.self.DType(), t.DType()
	switch {
	case x.value == nil || on.Type != CUDAType || t.Device() != on || i != Int64 && i != Int32:
		return false
	case d == Uint16 || d == Uint32 || d == Uint64 || quantised[d] != "": // CUDA's index_fill_ and index_put_ lack them
		return false
	}
	apart := func(t *Tensor) bool { return t.Layout() == Strided && !t.SharesStorage(x.self) }
	v, isTensor := x.value.(*Tensor)
	return x.self.Layout() == Strided && apart(t) && (!isTensor || v.Dim() == 0 && v.Device() == on && v.DType() == d && apart(v))
}

// inside reports whether the indices, which are on the CPU, are within the bounds of the dimension. libtorch leaves the
// check to the GPU's kernel, whose failure makes the device unusable.
func (x *indexing) inside(t *Tensor) bool {
	wide := t
	if t.DType() != Int64 {
		wide = t.To(Int64)
		defer wide.Release()
	}
	indices, err := Data[int64](wide)
	if err != nil {
		x.fail = failed(x.named(err))
		return false
	}
	size := x.view.Size(x.dim)
	for _, i := range indices {
		if !x.within(i, size) {
			return false
		}
	}
	return true
}

// record adds an index tensor, which stands for one dimension, or a mask, which stands for as many as it has.
func (x *indexing) record(t *Tensor) bool {
	x.advanced = append(append(x.advanced, make([]*Tensor, x.dim-x.covered)...), t)
	if t.DType() == Bool {
		x.dim += t.Dim()
	} else {
		x.dim++
	}
	x.covered = x.dim
	return true
}

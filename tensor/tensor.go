package tensor

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Tensor is a handle to a native tensor. It is made by operators and constructors, never by a literal, and
// may be used from any goroutine. A Tensor lives until its scope closes or until nobody can reach it,
// whichever is first (see the package comment).
type Tensor struct {
	h      cshim.Handle           // set once; 0 with an error
	fail   *failure               // set once
	owner  unsafe.Pointer         // the *Scope it is in, nil outside; atomic but for the birth of t
	anchor atomic.Pointer[anchor] // set once it was outside scopes
	state  atomic.Uint32          // pins in steps of 2, and the two bits below
	slot   int32                  // place in the scope's entries, under the scope's lock
	site   uint32                 // where it was made, plus one; 0: not noted. Set at birth
	asked  atomic.Bool            // RequiresGrad_ was called on it
}

const (
	released = 1       // nobody may pin any more
	freed    = 1 << 31 // the handle is given back, or about to be
)

// pin keeps the native tensor alive through an operator, whoever releases it meanwhile.
func (t *Tensor) pin() bool {
	if t == nil || t.h == 0 {
		return false
	}
	if t.state.Add(2)&released != 0 {
		t.unpin()
		return false
	}
	return true
}

// unpin also keeps the Go object reachable until here, so that no cleanup runs during the operator.
func (t *Tensor) unpin() {
	if t.state.Add(^uint32(1)) == released {
		t.free()
	}
}

// free gives the handle back; exactly one of those who see the last pin go does it.
func (t *Tensor) free() {
	if h := t.takeHandle(); h != 0 {
		cshim.TensorFree(h)
	}
}

func (t *Tensor) takeHandle() cshim.Handle {
	if !t.state.CompareAndSwap(released, released|freed) {
		return 0
	}
	return t.owned()
}

// owned is the handle, for the one who has set freed.
func (t *Tensor) owned() cshim.Handle {
	if a := t.anchor.Load(); a != nil {
		registry.remove(a.unscopedRef)
		return a.take()
	}
	return t.h
}

func (t *Tensor) handle() cshim.Handle {
	if t == nil {
		return 0
	}
	return t.h
}

// Replace sets *h to t and releases the tensor that *h held. It is for what a program carries from step to step, such
// as a hidden state or an average: t leaves all scopes, as with [Tensor.Keep], and stays until the next Replace or
// Release. Operators on other goroutines that still use the old tensor end first; its memory is freed then.
//
//	var h *tensor.Tensor
//	for batch, err := range loader.Batches(ctx) {
//		…
//		out, next := rnn(batch.Inputs, h)
//		if err := tensor.Replace(&h, next.Detach()); err != nil {
//			return err
//		}
//	}
//
// As in PyTorch, t carries the graph of gradients that it was computed in: without Detach each step's backward pass
// goes through all steps before it, and memory grows.
//
// *h may be nil. Where t is *h already, it only leaves its scope. Where t carries an error, was released or is nil,
// Replace returns that error and *h stays as it was. Replace itself must not run on several goroutines at once for one
// h.
func Replace(h **Tensor, t *Tensor) error {
	if h == nil {
		return refused("Replace", ErrNil, "a variable is needed, got nil")
	}
	if err := t.moveTo("Replace", nil); err != nil {
		return err
	}
	if old := *h; old != t {
		*h = t
		old.Release()
	}
	return nil
}

// Release frees the native tensor now, or as soon as the operators that use it on other goroutines are done.
// It may be called more than once. Later uses give ErrReleased.
func (t *Tensor) Release() {
	if t == nil || t.h == 0 {
		return
	}
	before := t.state.Or(released)
	if before&released != 0 {
		return
	}
	if s := t.inScope(); s != nil {
		s.forget(t)
	}
	if before == 0 {
		t.free()
	}
}

// Err returns the error that t carries, ErrReleased for a released tensor (with the place where it was made, where
// that was noted) and ErrNil for a nil one. It is nil for a tensor that can be used.
func (t *Tensor) Err() error {
	switch {
	case t == nil, t.h == 0, t.state.Load()&released != 0:
		return unusable("Err", t)
	}
	return nil
}

func (t *Tensor) inScope() *Scope { return (*Scope)(atomic.LoadPointer(&t.owner)) }

func (t *Tensor) setScope(s *Scope) { atomic.StorePointer(&t.owner, unsafe.Pointer(s)) }

// wrap makes the Tensor of a new handle, owned by the scope that the shim saw on this thread.
func wrap(h cshim.Handle, scope uint64) *Tensor {
	s := scopeOf(scope)
	// Nobody else knows t yet: its owner needs no atomic store, which on x86 is a locked instruction.
	t := &Tensor{h: h, owner: unsafe.Pointer(s)}
	if s == nil || !s.addNew(t) {
		t.owner = nil
		t.attach()
	}
	if pending.waiting() {
		pending.settle()
	}
	if scope&cshim.ScopeSampled != 0 || debugAlloc {
		t.noteSite(h, scope)
	}
	return t
}

// noteSite notes where t was made.
//
//go:noinline
func (t *Tensor) noteSite(h cshim.Handle, scope uint64) {
	if scope&cshim.ScopeSampled != 0 {
		t.site = sites.Attach(h) + 1
	} else if debugAlloc {
		t.site = sites.Here() + 1
	}
}

// debugAlloc makes every tensor and scope note where it was made.
var debugAlloc = slices.Contains(strings.Split(os.Getenv("LINSTOCK_DEBUG"), ","), "alloc")

// wrapResult is wrap for an operator that may have failed.
func wrapResult(op string, r cshim.Result, operands ...*Tensor) *Tensor {
	if r.Err != nil {
		return failed(newError(op, cshim.Take(r.Err), operands...))
	}
	if r.Handle == 0 {
		return failed(refused(op, ErrArgument, "the operator gave no tensor"))
	}
	return wrap(r.Handle, r.Scope)
}

// The fast paths of the typed entries: pin, call, unpin and wrap. Operands are named one by one, since a
// slice of them would be a heap allocation.

func pin1(o *op, a *Tensor) *Tensor {
	if cshim.Due() {
		boundary()
	}
	if !a.pin() {
		return passOn(o.goName, a)
	}
	return nil
}

func pin2(o *op, a, b *Tensor) *Tensor {
	if cshim.Due() {
		boundary()
	}
	if !a.pin() {
		return passOn(o.goName, a)
	}
	if !b.pin() {
		a.unpin()
		return passOn(o.goName, b)
	}
	return nil
}

// pinSame is pin2 for an operator that refuses to broadcast.
func pinSame(o *op, a, b *Tensor) *Tensor {
	if f := pin2(o, a, b); f != nil {
		return f
	}
	if f := o.sameShape([]*Tensor{a, b}); f != nil {
		a.unpin()
		b.unpin()
		return f
	}
	return nil
}

// optional has bit i set where the i-th operand may be nil.
func pin3(o *op, a, b, c *Tensor, optional uint8) *Tensor {
	if cshim.Due() {
		boundary()
	}
	if !a.pin() {
		return passOn(o.goName, a)
	}
	if (b != nil || optional&2 == 0) && !b.pin() {
		a.unpin()
		return passOn(o.goName, b)
	}
	if (c != nil || optional&4 == 0) && !c.pin() {
		a.unpin()
		if b != nil {
			b.unpin()
		}
		return passOn(o.goName, c)
	}
	return nil
}

func done1(o *op, r cshim.Result, a *Tensor) *Tensor {
	a.unpin()
	if r.Handle == 0 {
		return wrapResult(o.goName, r, a)
	}
	return wrap(r.Handle, r.Scope)
}

func done2(o *op, r cshim.Result, a, b *Tensor) *Tensor {
	a.unpin()
	b.unpin()
	if r.Handle == 0 {
		return wrapResult(o.goName, r, a, b)
	}
	return wrap(r.Handle, r.Scope)
}

func done3(o *op, r cshim.Result, a, b, c *Tensor) *Tensor {
	a.unpin()
	if b != nil {
		b.unpin()
	}
	if c != nil {
		c.unpin()
	}
	if r.Handle == 0 {
		return wrapResult(o.goName, r, a, b, c)
	}
	return wrap(r.Handle, r.Scope)
}

func wrote1(o *op, err cshim.ErrorRef, a *Tensor) *Tensor {
	named()
	a.unpin()
	if err != nil {
		return failed(newError(o.goName, cshim.Take(err), a))
	}
	return a
}

func wrote2(o *op, err cshim.ErrorRef, a, b *Tensor) *Tensor {
	named()
	a.unpin()
	b.unpin()
	if err != nil {
		return failed(newError(o.goName, cshim.Take(err), a, b))
	}
	return a
}

func wrote3(o *op, err cshim.ErrorRef, a, b, c *Tensor) *Tensor {
	named()
	a.unpin()
	b.unpin()
	c.unpin()
	if err != nil {
		return failed(newError(o.goName, cshim.Take(err), a, b, c))
	}
	return a
}

// use pins t and calls f with its handle, for what is not in the operator table.
func (t *Tensor) use(op string, f func(h cshim.Handle) error) error {
	if !t.pin() {
		return unusable(op, t)
	}
	defer t.unpin()
	return f(t.h)
}

// meta reads the metadata; what the native side refuses (nested and symbolic shapes) is an error.
func (t *Tensor) meta(op string, m *cshim.Meta) error {
	if !t.pin() {
		return unusable(op, t)
	}
	ref := cshim.TensorMeta(t.h, m)
	if ref != nil {
		// Shape, RequiresGrad and the like have no error to return: a failure that does not stay must not become a
		// wrong answer.
		cshim.Take(ref)
		ref = cshim.TensorMeta(t.h, m)
	}
	t.unpin()
	if ref != nil {
		return newError(op, cshim.Take(ref))
	}
	return nil
}

// Shape is a copy of the sizes; nil for a scalar and for a tensor that cannot be used. A dimension in which the
// tensors of a nested tensor differ has size -1.
func (t *Tensor) Shape() []int {
	s, _, _ := t.geometry("Shape")
	return s
}

// Stride is a copy of the strides, in elements. PyTorch: Tensor.stride.
func (t *Tensor) Stride() []int {
	_, s, _ := t.geometry("Stride")
	return s
}

func (t *Tensor) geometry(op string) (shape, stride []int, err error) {
	var m cshim.Meta
	if err := t.meta(op, &m); err != nil {
		return nil, nil, err
	}
	n := int(m.NDim)
	if m.Layout == layoutNested {
		shape = make([]int, min(n, len(m.Sizes)))
		for i := range shape {
			shape[i] = int(m.Sizes[i])
		}
		return shape, nil, nil
	}
	sizes, strides := m.Sizes[:], m.Strides[:]
	if n > len(sizes) {
		sizes, strides = make([]int64, n), make([]int64, n)
		if err := t.use(op, func(h cshim.Handle) error {
			return newError(op, asError(cshim.TensorSizes(h, sizes, strides)))
		}); err != nil {
			return nil, nil, err
		}
	}
	if n == 0 {
		return nil, nil, nil
	}
	shape, stride = make([]int, n), make([]int, n)
	for i := range n {
		shape[i], stride[i] = int(sizes[i]), int(strides[i])
	}
	return shape, stride, nil
}

// asError makes a plain error of a native one; a nil reference is a nil error.
func asError(ref cshim.ErrorRef) error {
	named()
	if ref == nil {
		return nil
	}
	return cshim.Take(ref)
}

// Dim is the number of dimensions; 0 for a tensor that cannot be used.
func (t *Tensor) Dim() int {
	var m cshim.Meta
	if t.meta("Dim", &m) != nil {
		return 0
	}
	return int(m.NDim)
}

// Size is the size of a dimension; a negative one counts from the end. It is 0 where there is no such
// dimension.
func (t *Tensor) Size(dim int) int {
	s := t.Shape()
	if dim < 0 {
		dim += len(s)
	}
	if dim < 0 || dim >= len(s) {
		return 0
	}
	return s[dim]
}

// Numel is the number of elements; 0 for a tensor that cannot be used.
func (t *Tensor) Numel() int {
	var m cshim.Meta
	if t.meta("Numel", &m) != nil {
		return 0
	}
	return int(m.Numel)
}

// DType is the elements' type; Invalid for a tensor that cannot be used.
func (t *Tensor) DType() DType {
	var m cshim.Meta
	if t.meta("DType", &m) != nil {
		return Invalid
	}
	return DType(m.DType)
}

// Device is where the tensor is; the CPU for one that cannot be used.
func (t *Tensor) Device() Device {
	var m cshim.Meta
	if t.meta("Device", &m) != nil {
		return CPU
	}
	return deviceOf(&m)
}

func deviceOf(m *cshim.Meta) Device {
	return Device{DeviceType(m.DeviceType), max(0, int(m.DeviceIndex))}
}

// IsContiguous says whether the elements lie in row-major order without gaps.
func (t *Tensor) IsContiguous() bool {
	var m cshim.Meta
	return t.meta("IsContiguous", &m) == nil && m.IsContiguous
}

// StorageOffset is the first element's place in the storage, in elements.
func (t *Tensor) StorageOffset() int {
	var m cshim.Meta
	if t.meta("StorageOffset", &m) != nil {
		return 0
	}
	return int(m.Offset)
}

// SharesStorage says whether two tensors are views of one storage.
func (t *Tensor) SharesStorage(other *Tensor) bool {
	var a, b cshim.Meta
	return t.meta("SharesStorage", &a) == nil && other.meta("SharesStorage", &b) == nil && a.Data != 0 && a.Data == b.Data
}

// StorageBytes is the size of the storage that t is a view of, in bytes.
func (t *Tensor) StorageBytes() int {
	var m cshim.Meta
	if t.meta("StorageBytes", &m) != nil {
		return 0
	}
	return int(m.Bytes)
}

// To converts to a dtype, moves to a device, or both: x.To(tensor.Float16), x.To(tensor.CUDA(0)). It shares
// storage where nothing has to change. PyTorch: Tensor.to.
func (t *Tensor) To(opts ...Option) *Tensor {
	dtype, device := int32(-1), int32(-1)
	for _, o := range opts {
		switch o := o.(type) {
		case DType:
			if o < 0 {
				return failed(refused("To", ErrArgument, "%v is no dtype to convert to", o))
			}
			dtype = int32(o)
		case Device:
			if !o.valid() {
				return failed(refused("To", ErrArgument, "%v is no device", o))
			}
			device = o.word()
		default:
			return failed(refused("To", ErrArgument, "takes a DType and a Device, not %s", optionName(o)))
		}
	}
	if !t.pin() {
		return passOn("To", t)
	}
	r := cshim.TensorTo(t.h, dtype, device, false)
	t.unpin()
	return wrapResult("To", r, t)
}

// Alias is a second handle to the same tensor, with a life of its own: releasing one leaves the other.
func (t *Tensor) Alias() *Tensor {
	if !t.pin() {
		return passOn("Alias", t)
	}
	r := cshim.TensorAlias(t.h)
	t.unpin()
	return wrapResult("Alias", r, t)
}

// describe is dtype and shape for an error: "float32(2, 3)".
func (t *Tensor) describe() string {
	var m cshim.Meta
	switch {
	case t == nil:
		return "nil"
	case t.fail != nil:
		return "a failed tensor"
	case t.meta("", &m) != nil:
		return "a released tensor"
	}
	shape, _, _ := t.geometry("")
	var b strings.Builder
	b.WriteString(DType(m.DType).String() + "(")
	for i, s := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.Itoa(s))
	}
	b.WriteByte(')')
	if d := deviceOf(&m); d != CPU {
		b.WriteString(" on " + d.String())
	}
	return b.String()
}

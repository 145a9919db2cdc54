package tensor

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Tensor is a handle to a native tensor. Operators and constructors return tensors; a Tensor literal cannot be used. It
// may be used from any goroutine. A Tensor lives until its scope closes or until it becomes unreachable, whichever is
// first; see the package documentation. It must not be copied (c := *t): the copy's memory is freed with the original's.
// go vet reports copies (copylocks).
type Tensor struct {
	h      cshim.Handle           // set once; 0 for a failed tensor
	fail   *failure               // set once
	owner  unsafe.Pointer         // the *Scope that owns t, nil outside scopes, &transit; atomic except while t is created
	anchor atomic.Pointer[anchor] // set once t was outside scopes
	state  atomic.Uint32          // number of pins times 2, and the two bits below
	slot   int32                  // index in the scope's entries, guarded by the scope's lock
	site   uint32                 // call site that made t, plus one; 0 if not recorded. Set at creation
	notes  atomic.Uint32          // noteAsked, and the line of the last use: see LastUse
}

// noteAsked is set in notes if RequiresGrad_ was called on the tensor.
const noteAsked = 1

const (
	released = 1       // no new pins are allowed
	freed    = 1 << 31 // the handle has been freed or is about to be
)

// pin keeps the native tensor alive during an operator, even if another goroutine releases it.
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

// free frees the handle. It is called once the last pin is gone; exactly one caller frees.
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

// owned returns the handle to the caller that has set freed.
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

// Replace sets *h to t and releases the tensor that *h held. Use it for a tensor that is carried from step to step,
// such as a hidden state or an average. t is removed from all scopes, as by [Tensor.Keep], and lives until the next
// Replace or Release. If operators on other goroutines still use the old tensor, its memory is freed when they end.
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
// As in PyTorch, t holds the autograd graph that computed it. Without Detach, the backward pass of each step goes
// through all previous steps, and memory grows.
//
// *h may be nil. If *h is t already, Replace only removes t from its scope. If t is failed, released or nil, Replace
// returns its error and does not change *h. Concurrent calls with the same h are not allowed.
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

// Release frees the native tensor now, or as soon as operators on other goroutines no longer use it. It may be called
// more than once. Later uses of t return ErrReleased.
func (t *Tensor) Release() {
	if t == nil || t.h == 0 {
		return
	}
	t.release()
}

// release reports whether it was this call that released t.
func (t *Tensor) release() bool {
	before := t.state.Or(released)
	if before&released != 0 {
		return false
	}
	if s := t.inScope(); s != nil {
		s.forget(t)
	}
	if before == 0 {
		t.free()
	}
	return true
}

// Err returns the error of a failed tensor, ErrReleased for a released tensor (with the line that made it, if that was
// recorded), ErrNil for a nil one, and nil otherwise.
func (t *Tensor) Err() error {
	switch {
	case t == nil, t.h == 0, t.state.Load()&released != 0:
		return unusable("Err", t)
	}
	return nil
}

// inScope returns the scope that owns t, or nil, also while t moves.
func (t *Tensor) inScope() *Scope {
	if s := (*Scope)(atomic.LoadPointer(&t.owner)); s != &transit {
		return s
	}
	return nil
}

func (t *Tensor) setScope(s *Scope) { atomic.StorePointer(&t.owner, unsafe.Pointer(s)) }

// wrap makes the Tensor of a new handle. Its owner is the scope that the shim saw on this thread.
func wrap(h cshim.Handle, scope uint64) *Tensor {
	s := scopeOf(scope)
	// No other goroutine can access t yet, so its owner needs no atomic store, which is a locked instruction on x86.
	t := &Tensor{h: h, owner: unsafe.Pointer(s)}
	// Once s owns t, another goroutine may free h.
	if scope&cshim.ScopeFlags != 0 || debugAlloc {
		t.note(h, scope)
	}
	if s == nil || !s.addNew(t) {
		t.owner = nil
		t.attach()
	}
	if pending.waiting() {
		pending.settle()
	}
	return t
}

// note records the line that made t, and yields, if scope says so.
//
//go:noinline
func (t *Tensor) note(h cshim.Handle, scope uint64) {
	if scope&cshim.ScopeSampled != 0 {
		t.site = sites.Attach(h) + 1
	} else if debugAlloc {
		t.site = sites.Here() + 1
	}
	if scope&cshim.ScopeYield != 0 {
		runtime.Gosched()
	}
}

// debugAlloc makes every tensor and scope record where it was made.
var debugAlloc = slices.Contains(strings.Split(os.Getenv("LINSTOCK_DEBUG"), ","), "alloc")

// wrapResult is wrap for the result of an operator that may have failed.
func wrapResult(op string, r cshim.Result, operands ...*Tensor) *Tensor {
	if r.Err != nil {
		return failed(newError(op, cshim.Take(r.Err), operands...))
	}
	if r.Handle == 0 {
		return failed(refused(op, ErrArgument, "the operator did not return a tensor"))
	}
	return wrap(r.Handle, r.Scope)
}

// The fast paths of operators with typed entries: pin, call, unpin and wrap. Operands are separate parameters, because
// a slice of them would be allocated on the heap.

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

// pinSame is pin2 for an operator that does not broadcast.
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

// pin3 pins three operands. Bit i of optional is set if operand i may be nil.
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

// use pins t and calls f with its handle, for functions that are not in the operator table.
func (t *Tensor) use(op string, f func(h cshim.Handle) error) error {
	if !t.pin() {
		return unusable(op, t)
	}
	defer t.unpin()
	return f(t.h)
}

// meta reads the metadata. It returns an error if the shim cannot represent it (nested and symbolic shapes).
func (t *Tensor) meta(op string, m *cshim.Meta) error {
	if !t.pin() {
		return unusable(op, t)
	}
	ref := cshim.TensorMeta(t.h, m)
	if ref != nil {
		// Callers of peek have no error result. Try again, so that a transient failure does not become a wrong answer.
		cshim.Take(ref)
		ref = cshim.TensorMeta(t.h, m)
	}
	t.unpin()
	if ref != nil {
		return newError(op, cshim.Take(ref))
	}
	return nil
}

// peek is meta for a function without an error result, such as Shape: the error of a failed tensor stays unread.
func (t *Tensor) peek(m *cshim.Meta) bool {
	return (t == nil || t.fail == nil) && t.meta("", m) == nil
}

// Shape returns a copy of the sizes: an empty slice for a scalar, and nil for a tensor that is failed, released or nil. A
// dimension in which the elements of a nested tensor differ has size -1.
func (t *Tensor) Shape() []int {
	var m cshim.Meta
	if !t.peek(&m) {
		return nil
	}
	s, _, _ := t.geometry("Shape", &m)
	return s
}

// IsSparse reports whether t has the sparse COO layout. PyTorch: Tensor.is_sparse.
func (t *Tensor) IsSparse() bool { return t.Layout() == SparseCOO }

// Layout returns how t is stored, and Strided if t is failed, released or nil. PyTorch: Tensor.layout.
func (t *Tensor) Layout() Layout {
	var m cshim.Meta
	if !t.peek(&m) {
		return Strided
	}
	return Layout(m.Layout)
}

// Stride returns a copy of the strides, counted in elements: an empty slice for a scalar, and nil for a nested tensor and
// one that is failed, released or nil. PyTorch: Tensor.stride.
func (t *Tensor) Stride() []int {
	var m cshim.Meta
	if !t.peek(&m) {
		return nil
	}
	_, s, _ := t.geometry("Stride", &m)
	return s
}

// geometry returns the sizes and strides of a tensor with the metadata m.
func (t *Tensor) geometry(op string, m *cshim.Meta) (shape, stride []int, err error) {
	n := int(m.NDim)
	if Layout(m.Layout) == layoutNested {
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
	shape, stride = make([]int, n), make([]int, n)
	for i := range n {
		shape[i], stride[i] = int(sizes[i]), int(strides[i])
	}
	return shape, stride, nil
}

// asError returns a Go error for a native one, and nil for a nil reference.
func asError(ref cshim.ErrorRef) error {
	named()
	if ref == nil {
		return nil
	}
	return cshim.Take(ref)
}

// Dim returns the number of dimensions, or 0 for a tensor that is failed, released or nil. PyTorch: Tensor.dim.
func (t *Tensor) Dim() int {
	var m cshim.Meta
	if !t.peek(&m) {
		return 0
	}
	return int(m.NDim)
}

// Size returns the size of dimension dim; a negative dim counts from the end. It is 0 if there is no such dimension.
// PyTorch: Tensor.size.
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

// Numel returns the number of elements, or 0 for a tensor that is failed, released or nil. PyTorch: Tensor.numel.
func (t *Tensor) Numel() int {
	var m cshim.Meta
	if !t.peek(&m) {
		return 0
	}
	return int(m.Numel)
}

// DType returns the type of the elements, or Invalid for a tensor that is failed, released or nil. PyTorch:
// Tensor.dtype.
func (t *Tensor) DType() DType {
	var m cshim.Meta
	if !t.peek(&m) {
		return Invalid
	}
	return DType(m.DType)
}

// Device returns the tensor's device, or CPU for a tensor that is failed, released or nil. PyTorch: Tensor.device.
func (t *Tensor) Device() Device {
	var m cshim.Meta
	if !t.peek(&m) {
		return CPU
	}
	return deviceOf(&m)
}

func deviceOf(m *cshim.Meta) Device {
	return Device{DeviceType(m.DeviceType), max(0, int(m.DeviceIndex))}
}

// IsContiguous reports whether the elements are stored in row-major order without gaps, or in the order of the given
// format: ChannelsLast for 4 dimensions, ChannelsLast3d for 5. PyTorch: Tensor.is_contiguous.
func (t *Tensor) IsContiguous(format ...MemoryFormat) bool {
	var order []int // of the dimensions, from the last in memory to the first
	for _, f := range format {
		switch f {
		case ContiguousFormat:
			order = nil
		case ChannelsLast:
			order = []int{1, 3, 2, 0}
		case ChannelsLast3d:
			order = []int{1, 4, 3, 2, 0}
		default:
			return false
		}
	}
	var m cshim.Meta
	if !t.peek(&m) {
		return false
	}
	if order == nil {
		return m.IsContiguous
	}
	shape, stride, err := t.geometry("IsContiguous", &m)
	if err != nil || len(shape) != len(order) || len(stride) != len(order) {
		return false
	}
	next := 1
	for _, d := range order {
		if shape[d] != 1 && stride[d] != next {
			return false
		}
		next *= shape[d]
	}
	return true
}

// StorageOffset returns the index of the first element in the storage, in elements. PyTorch: Tensor.storage_offset.
func (t *Tensor) StorageOffset() int {
	var m cshim.Meta
	if !t.peek(&m) {
		return 0
	}
	return int(m.Offset)
}

// SharesStorage reports whether two tensors are views of the same storage, if it is not empty.
func (t *Tensor) SharesStorage(other *Tensor) bool {
	var a, b cshim.Meta
	return t.peek(&a) && other.peek(&b) && a.Data != 0 && a.Data == b.Data
}

// StorageBytes returns the size in bytes of the storage of which t is a view.
func (t *Tensor) StorageBytes() int {
	var m cshim.Meta
	if !t.peek(&m) {
		return 0
	}
	return int(m.Bytes)
}

// To returns t converted to a dtype, copied to a device, laid out in a memory format, or several of these:
// x.To(tensor.Float16), x.To(tensor.CUDA(0)), x.To(tensor.ChannelsLast). If nothing has to change, the result shares storage
// with t. As in PyTorch, strides that are nearer to the format than to the others need no change, such as a transposed
// matrix's to ContiguousFormat; [Tensor.Contiguous] copies those, too. PyTorch: Tensor.to.
func (t *Tensor) To(opts ...Option) *Tensor {
	if !t.pin() { // before the options, which may be what a failed tensor's DType returned
		return passOn("To", t)
	}
	dtype, device, format, err := toOptions(opts)
	if err != nil {
		t.unpin()
		return failed(err)
	}
	r := cshim.TensorTo(t.h, dtype, device, format, false)
	t.unpin()
	return wrapResult("To", r, t)
}

// toOptions returns the options of To as the shim takes them, with -1 for those that are not given.
func toOptions(opts []Option) (dtype, device, format int32, err error) {
	dtype, device, format = -1, -1, -1
	for _, o := range opts {
		switch o := o.(type) {
		case DType:
			if o < 0 {
				return 0, 0, 0, refused("To", ErrArgument, "cannot convert to dtype %v", o)
			}
			dtype = int32(o)
		case Device:
			if err := o.check("To"); err != nil {
				return 0, 0, 0, err
			}
			device = o.word()
		case MemoryFormat:
			if o < 0 {
				return 0, 0, 0, refused("To", ErrArgument, "%v is not a memory format", o)
			}
			format = int32(o)
		default:
			return 0, 0, 0, refused("To", ErrArgument, "accepts a DType, a Device and a MemoryFormat, got %s", optionName(o))
		}
	}
	return dtype, device, format, nil
}

// Alias returns a second handle to the same native tensor with its own lifetime: releasing one does not affect the
// other.
func (t *Tensor) Alias() *Tensor {
	if !t.pin() {
		return passOn("Alias", t)
	}
	r := cshim.TensorAlias(t.h)
	t.unpin()
	return wrapResult("Alias", r, t)
}

// describe returns dtype and shape for an error: "float32(2, 3)".
func (t *Tensor) describe() string {
	var m cshim.Meta
	switch {
	case t == nil:
		return "nil"
	case t.fail != nil:
		return "a failed tensor"
	case !t.peek(&m):
		return "a released tensor"
	}
	shape, _, _ := t.geometry("", &m)
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

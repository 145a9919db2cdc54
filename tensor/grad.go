package tensor

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// Backward computes the gradients of t with respect to every leaf that requires a gradient, and adds them to the Grad
// of the leaves. t must be a scalar unless Gradient is given. Options: Gradient(g), RetainGraph(true),
// CreateGraph(true), Inputs(ts...). PyTorch: Tensor.backward.
func (t *Tensor) Backward(opts ...BackwardOption) error {
	return runBackward([]*Tensor{t}, opts...)
}

// BackwardOption is a keyword argument of Backward.
type BackwardOption func(*backwardSettings)

// backwardSettings holds the options of a backward pass.
type backwardSettings struct {
	Gradients   []*Tensor // one for each root; nil stands for ones
	Inputs      []*Tensor // leaves that get gradients
	Some        bool      // only Inputs get gradients; otherwise every leaf
	Retain      *bool     // nil means the value of CreateGraph
	Create      bool
	AllowUnused bool
}

// Gradient sets the gradients of the roots (gradient=, grad_tensors=, grad_outputs=), one for each, of its shape; nil
// stands for ones.
func Gradient(gs ...*Tensor) BackwardOption {
	return func(s *backwardSettings) { s.Gradients = gs }
}

// Inputs sets the leaves that get gradients (inputs=), at least one. Grad refuses it, since its inputs are an argument.
func Inputs(ts ...*Tensor) BackwardOption {
	return func(s *backwardSettings) { s.Inputs, s.Some = ts, true }
}

// RetainGraph keeps the graph for another backward pass (retain_graph=). The default is the value of CreateGraph.
func RetainGraph(on ...bool) BackwardOption {
	v := options.On(on)
	return func(s *backwardSettings) { s.Retain = &v }
}

// CreateGraph records the backward pass, so that the gradients can be differentiated (create_graph=); off by
// default.
func CreateGraph(on ...bool) BackwardOption {
	return func(s *backwardSettings) { s.Create = options.On(on) }
}

// AllowUnused makes Grad return nil, instead of an error, for an input that the outputs do not depend on
// (allow_unused=); off by default. Backward refuses it.
func AllowUnused(on ...bool) BackwardOption {
	return func(s *backwardSettings) { s.AllowUnused = options.On(on) }
}

// plain holds the settings of a backward pass without options.
var plain = &backwardSettings{Retain: new(bool)}

func settings(op string, opts []BackwardOption) (*backwardSettings, error) {
	if len(opts) == 0 {
		return plain, nil
	}
	s := &backwardSettings{}
	for _, o := range opts {
		if o == nil {
			return nil, refused(op, ErrArgument, "an option is nil")
		}
		o(s)
	}
	if s.Retain == nil {
		s.Retain = &s.Create
	}
	return s, nil
}

// pins is a list of pinned tensors and their handles.
type pins struct {
	ts []*Tensor
	hs []cshim.Handle
}

// pinAll pins ts. If nilAllowed, nil elements have the handle 0.
func pinAll(op string, ts []*Tensor, nilAllowed bool) (*pins, error) {
	if len(ts) == 0 {
		return &noPins, nil
	}
	return pinLists(op, len(ts), nilAllowed, ts)
}

var noPins pins

// pinPool reuses lists: a training step pins as many tensors as the one before.
var pinPool sync.Pool

// pinLists pins the n tensors of several lists.
func pinLists(op string, n int, nilAllowed bool, lists ...[]*Tensor) (*pins, error) {
	p := emptyPins(n)
	for _, ts := range lists {
		for _, t := range ts {
			if t == nil && nilAllowed {
				p.hs = append(p.hs, 0)
				continue
			}
			if !t.pin() {
				p.unpin()
				return nil, unusable(op, t)
			}
			p.ts, p.hs = append(p.ts, t), append(p.hs, t.h)
		}
	}
	return p, nil
}

// emptyPins returns an empty list with capacity n.
func emptyPins(n int) *pins {
	p, _ := pinPool.Get().(*pins)
	if p == nil {
		p = &pins{}
	}
	p.ts, p.hs = slices.Grow(p.ts, n), slices.Grow(p.hs, n)
	return p
}

// unpin unpins the tensors and returns p to the pool.
func (p *pins) unpin() {
	if p == nil || p == &noPins {
		return
	}
	for _, t := range p.ts {
		t.unpin()
	}
	clear(p.ts)
	p.ts, p.hs = p.ts[:0], p.hs[:0]
	if cap(p.hs) <= 1<<16 {
		pinPool.Put(p)
	}
}

// withHandles calls f with the handles of ts, which are pinned meanwhile.
func withHandles(op string, ts []*Tensor, f func(h []cshim.Handle) error) error {
	p, err := pinAll(op, ts, false)
	if err != nil {
		return err
	}
	defer p.unpin()
	return f(p.hs)
}

type backwardCall struct {
	roots, grads, inputs *pins
}

func (b backwardCall) unpin() { b.roots.unpin(); b.grads.unpin(); b.inputs.unpin() }

func prepare(op string, roots, inputs []*Tensor, s *backwardSettings) (b backwardCall, err error) {
	if len(roots) == 0 {
		return b, refused(op, ErrArgument, "at least one root is needed")
	}
	if len(s.Gradients) != 0 && len(s.Gradients) != len(roots) {
		return b, refused(op, ErrArgument, "%d gradients for %d roots", len(s.Gradients), len(roots))
	}
	if b.roots, err = pinAll(op, roots, false); err == nil {
		if b.grads, err = pinAll(op, s.Gradients, true); err == nil {
			b.inputs, err = pinAll(op, inputs, false)
		}
	}
	// libtorch would sum a gradient to whose shape the root broadcasts.
	for i, g := range s.Gradients {
		if err != nil || g == nil {
			continue
		}
		if got, want := g.Shape(), roots[i].Shape(); !slices.Equal(got, want) {
			err = refused(op, ErrArgument, "gradient %d has shape %v, want that of the root, %v", i, got, want)
		}
	}
	if err != nil {
		b.unpin()
	}
	return b, err
}

// runBackward implements autograd.Backward.
func runBackward(roots []*Tensor, opts ...BackwardOption) error {
	s, err := settings("Backward", opts)
	if err != nil {
		return err
	}
	if s.AllowUnused {
		return refused("Backward", ErrArgument, "AllowUnused is an option of autograd.Grad")
	}
	if s.Some && len(s.Inputs) == 0 {
		return refused("Backward", ErrArgument, "Inputs is empty: want the leaves that get gradients")
	}
	b, err := prepare("Backward", roots, s.Inputs, s)
	if err != nil {
		return err
	}
	defer b.unpin()
	var end func(err error) error
	if handle.BeginBackward != nil {
		end = handle.BeginBackward()
	}
	reclaim.BeforeBackward()
	ref := cshim.Backward(b.roots.hs, b.grads.hs, b.inputs.hs, *s.Retain, s.Create)
	reclaim.AfterBackward()
	cshim.Yield()
	err = newError("Backward", asError(ref), roots...)
	forgetDropped()
	if end != nil {
		err = end(err)
	}
	return err
}

// runGrad implements autograd.Grad.
func runGrad(outputs, inputs []*Tensor, opts ...BackwardOption) ([]*Tensor, error) {
	s, err := settings("Grad", opts)
	if err != nil {
		return nil, err
	}
	if s.Some {
		return nil, refused("Grad", ErrArgument, "Inputs is an option of Backward; Grad has the inputs as an argument")
	}
	if len(inputs) == 0 {
		return nil, refused("Grad", ErrArgument, "at least one input is needed")
	}
	b, err := prepare("Grad", outputs, inputs, s)
	if err != nil {
		return nil, err
	}
	defer b.unpin()
	defer forgetDropped()
	out := make([]cshim.Handle, len(inputs))
	scope, ref := cshim.Grad(b.roots.hs, b.grads.hs, b.inputs.hs, *s.Retain, s.Create, s.AllowUnused, out)
	if ref != nil {
		return nil, newError("Grad", cshim.Take(ref), outputs...)
	}
	gs := make([]*Tensor, len(out))
	for i, h := range out {
		if h != 0 {
			gs[i] = wrap(h, scope)
		}
	}
	return gs, nil
}

// Grad returns the accumulated gradient of t, or nil if there is none. A tensor that is not a leaf, such as an operator's
// result, has none unless RetainGrad was called before Backward. The result shares storage with the gradient that
// optimizers read. A sparse gradient must not be used while another goroutine's backward pass adds to it, which replaces
// its memory and can end the process. PyTorch: Tensor.grad.
func (t *Tensor) Grad() *Tensor {
	if !t.pin() {
		return passOn("Grad", t)
	}
	r := cshim.GradOf(t.h)
	t.unpin()
	if r.Err == nil && r.Handle == 0 {
		return nil
	}
	return wrapResult("Grad", r, t)
}

// SetGrad sets the gradient of t; nil removes it.
func (t *Tensor) SetGrad(g *Tensor) error {
	return t.use("SetGrad", func(h cshim.Handle) error {
		if g == nil {
			return newError("SetGrad", asError(cshim.SetGrad(h, 0)), t)
		}
		return g.use("SetGrad", func(gh cshim.Handle) error {
			return newError("SetGrad", asError(cshim.SetGrad(h, gh)), t, g)
		})
	})
}

// Grads returns the gradients of ts, nil for a tensor that has none, in one native call. Optimizers use it.
func Grads(ts []*Tensor) ([]*Tensor, error) {
	p, err := pinAll("Grads", ts, false)
	if err != nil {
		return nil, err
	}
	defer p.unpin()
	if len(ts) == 0 {
		return nil, nil
	}
	out := make([]cshim.Handle, len(ts))
	if ref := cshim.GradsOf(p.hs, out); ref != nil {
		return nil, newError("Grads", cshim.Take(ref))
	}
	scope := cshim.ScopeGet()
	gs := make([]*Tensor, len(ts))
	for i, h := range out {
		if h != 0 {
			gs[i] = wrap(h, scope)
		}
	}
	return gs, nil
}

// ZeroGrads sets the gradients of ts to nil if toNone, and otherwise to zero in place. PyTorch: Optimizer.zero_grad.
func ZeroGrads(ts []*Tensor, toNone bool) error {
	if len(ts) == 0 {
		return nil
	}
	p, err := pinAll("ZeroGrads", ts, false)
	if err != nil {
		return err
	}
	defer p.unpin()
	return newError("ZeroGrads", asError(cshim.ZeroGrads(p.hs, !toNone)))
}

// RequiresGrad reports whether gradients are computed for t. PyTorch: Tensor.requires_grad.
func (t *Tensor) RequiresGrad() bool {
	var m cshim.Meta
	return t.meta("RequiresGrad", &m) == nil && m.RequiresGrad
}

// RequiresGrad_ makes t, which must be a leaf, require a gradient, or with RequiresGrad_(false) not require one. It
// returns t. PyTorch: Tensor.requires_grad_.
func (t *Tensor) RequiresGrad_(on ...bool) *Tensor {
	if !t.pin() {
		return passOn("RequiresGrad_", t)
	}
	ref := cshim.SetRequiresGrad(t.h, len(on) == 0 || on[len(on)-1])
	t.unpin()
	if ref != nil {
		return failed(newError("RequiresGrad_", cshim.Take(ref), t))
	}
	t.notes.Or(noteAsked)
	return t
}

// IsLeaf reports whether t is a leaf of the autograd graph: it was not computed by an operator that recorded a
// gradient. PyTorch: Tensor.is_leaf.
func (t *Tensor) IsLeaf() bool {
	var m cshim.Meta
	return t.meta("IsLeaf", &m) == nil && m.IsLeaf
}

// IsInference reports whether t was made in inference mode. PyTorch: Tensor.is_inference.
func (t *Tensor) IsInference() bool {
	var m cshim.Meta
	return t.meta("IsInference", &m) == nil && m.IsInference
}

// Version returns the number of in-place writes to t's storage. Unlike in Python, the operator that fills a new tensor,
// such as Zeros or Randn, is one of them. It is -1 for tensors made in inference mode and for those that are failed,
// released or nil. PyTorch: Tensor._version.
func (t *Tensor) Version() int {
	var m cshim.Meta
	if t.meta("Version", &m) != nil {
		return -1
	}
	return int(m.Version)
}

// RetainGrad makes a tensor that is not a leaf keep its gradient. While another goroutine runs a backward pass through the
// tensor's graph, the error is ErrArgument. PyTorch: Tensor.retain_grad.
func (t *Tensor) RetainGrad() error {
	return t.use("RetainGrad", func(h cshim.Handle) error {
		return newError("RetainGrad", asError(cshim.RetainGrad(h)), t)
	})
}

// GradFn returns the name of the graph node that made t, such as "MulBackward0", or "" for a leaf. Where an operator of
// Linstock calls another overload than Python's, the name differs: it is "SumBackward1" for Sum without Dim, which is
// "SumBackward0" in Python. PyTorch: Tensor.grad_fn.
func (t *Tensor) GradFn() string {
	var name string
	_ = t.use("GradFn", func(h cshim.Handle) (err error) {
		name, err = cshim.GradFnName(h)
		return err
	})
	return name
}

// natives holds the Go values that native graphs refer to by id: hooks, functions, file mappings.
var (
	natives    sync.Map // id → any
	nextNative atomic.Uint64
	nativeLive atomic.Int64 // number of values in natives; if 0, no call has to check for dropped ones
)

func keepAlive(v any) uint64 {
	id := nextNative.Add(1)
	natives.Store(id, v)
	nativeLive.Add(1)
	return id
}

func forget(id uint64) { takeNative(id) }

func takeNative(id uint64) (any, bool) {
	v, ok := natives.LoadAndDelete(id)
	if ok {
		nativeLive.Add(-1)
	}
	return v, ok
}

// forgetDropped removes the values that no native graph refers to any more.
func forgetDropped() {
	var ids [64]uint64
	for nativeLive.Load() > 0 && cshim.DroppedCount() > 0 {
		n := cshim.TakeDropped(ids[:])
		for _, id := range ids[:n] {
			if v, ok := takeNative(id); ok {
				if drop, is := v.(func()); is {
					drop()
				}
			}
		}
	}
}

// takeCallbackError returns and removes the Go error that a callback stored under a number.
func takeCallbackError(id uint64) error {
	if v, ok := takeNative(id); ok {
		if err, is := v.(error); is {
			return err
		}
	}
	return errors.New("a callback failed")
}

// guarded runs the Go code of a callback. It turns a panic into an error, and stores an error under a number, which it
// returns.
//
// If f ends its goroutine with runtime.Goexit, the C++ code of the pass never continues, and its thread keeps the modes of
// the pass. The goroutine ends locked to that thread, so the Go runtime ends the thread, too.
func guarded(f func() error) (failed uint64) {
	err := func() (err error) {
		returned := false
		defer func() {
			if p := recover(); p != nil {
				err = &PanicError{p, debug.Stack()}
			} else if !returned {
				runtime.LockOSThread()
			}
		}()
		err = f()
		returned = true
		return err
	}()
	if err == nil {
		return 0
	}
	return keepAlive(err)
}

func init() {
	cshim.SetCallbacks(&cshim.Callbacks{Hook: runHook, Backward: runFunction, Recompute: runRecompute})
}

// lend makes a Tensor of a handle that its caller owns, for the duration of a callback.
func lend(h cshim.Handle) *Tensor {
	if h == 0 {
		return nil
	}
	return wrapResult("callback", cshim.TensorAlias(h))
}

// giveOut returns a handle that C owns, for a tensor that the scope of the callback will free.
func giveOut(op string, t *Tensor) (cshim.Handle, error) {
	var out cshim.Handle
	err := t.use(op, func(h cshim.Handle) error {
		r := cshim.TensorAlias(h)
		out = r.Handle
		return newError(op, asError(r.Err))
	})
	return out, err
}

type hook func(grad *Tensor) (*Tensor, error)

func runHook(id uint64, grad cshim.Handle) (out cshim.Handle, failed uint64) {
	failed = guarded(func() error {
		v, _ := natives.Load(id)
		if f, ok := v.(accumulateHook); ok {
			return WithScope(func() error { return f(lend(grad)) })
		}
		f, ok := v.(hook)
		if !ok {
			return nil
		}
		return WithScope(func() error {
			replaced, err := f(lend(grad))
			if err != nil || replaced == nil {
				return err
			}
			out, err = giveOut("RegisterHook", replaced)
			return err
		})
	})
	return out, failed
}

// RegisterHook calls f with the gradient of t each time it is computed. If f returns a tensor, it replaces the
// gradient; nil leaves it unchanged. f runs on a thread of the autograd engine, in a scope. The backward pass returns
// an error of f, or a panic as a [*PanicError]. The returned function removes the hook, also once t has been written to
// in place or released. If f refers to t, or to tensors computed from it, they are not freed before the hook is removed
// or t is released. f must not end its goroutine (runtime.Goexit, t.Fatal of a test): this leaks the pass, and ends the
// process for a tensor on a CUDA device, whose hooks run on libtorch's threads. Hooks may be registered and removed
// while other goroutines run passes that call them, with one exception: registering the first hook of a non-leaf tensor
// while another goroutine runs a pass through its graph is ErrArgument. PyTorch: Tensor.register_hook.
func (t *Tensor) RegisterHook(f func(grad *Tensor) (*Tensor, error)) (remove func(), err error) {
	if f == nil {
		return func() {}, refused("RegisterHook", ErrNil, "a function is needed, got nil")
	}
	// A view of a tensor that has been written to gets its new grad_fn only when grad_fn is read. Until then, hooks
	// would be added to the old one.
	t.GradFn()
	return t.register("RegisterHook", hook(f), cshim.RegisterHook, cshim.RemoveHook)
}

type accumulateHook func(leaf *Tensor) error

// RegisterPostAccumulateGradHook calls f with t, a leaf that requires gradients, each time a backward pass has added to
// its Grad: f may use the gradient and set it to nil before the pass computes the next ones. f runs on a thread of the
// autograd engine, in a scope; its argument is another handle of t, which ends with f. The backward pass returns an error
// or panic of f. The returned function removes the hook. If f refers to t or to what holds t, they are not freed before
// the hook is removed or t is released. PyTorch: Tensor.register_post_accumulate_grad_hook.
func (t *Tensor) RegisterPostAccumulateGradHook(f func(leaf *Tensor) error) (remove func(), err error) {
	const op = "RegisterPostAccumulateGradHook"
	if f == nil {
		return func() {}, refused(op, ErrNil, "a function is needed, got nil")
	}
	return t.register(op, accumulateHook(f), cshim.RegisterAccumulateHook, cshim.RemoveAccumulateHook)
}

// registerMulti registers f as a hook of several tensors. If first, f is called with the first gradient of a pass, and
// otherwise once all are there. It implements autograd.RegisterMultiGradHook and RegisterAnyGradHook.
func registerMulti(op string, ts []*Tensor, first bool, f func(grads []*Tensor) error) (remove func(), err error) {
	p, err := pinAll(op, ts, false)
	if err != nil {
		return func() {}, err
	}
	defer p.unpin()
	var live atomic.Pointer[func([]*Tensor) error] // nil once the hook is removed
	live.Store(&f)
	guard := func(grads []*Tensor) error {
		if f := live.Load(); f != nil {
			return (*f)(grads)
		}
		return nil
	}
	var v any = nativeFunction(func(grads, _ []*Tensor, _ []bool) ([]*Tensor, error) { return nil, guard(grads) })
	if first {
		v = accumulateHook(func(grad *Tensor) error { return guard([]*Tensor{grad}) })
	}
	id := keepAlive(v)
	slots := make([]uint32, len(ts))
	if ref := cshim.RegisterMultiHook(p.hs, id, first, slots); ref != nil {
		forget(id)
		forgetDropped()
		return func() {}, newError(op, cshim.Take(ref), ts...)
	}
	ts = slices.Clone(ts)
	lists := make([]hookList, len(ts))
	for i, t := range ts {
		lists[i] = hooksOf(t)
	}
	return func() {
		if live.Swap(nil) == nil {
			return
		}
		for i, t := range ts {
			if lists[i].current(t) {
				_ = t.use(op, func(h cshim.Handle) error { return asError(cshim.RemoveHook(h, slots[i])) })
			}
		}
		forgetDropped()
	}, nil
}

// hookList identifies the list of t's hooks in which their slots are indices. A write in place that gives t another
// grad_fn starts another list; the first one stays with the first grad_fn.
type hookList struct {
	version     int64
	hooks, leaf bool
}

func hooksOf(t *Tensor) hookList {
	var m cshim.Meta
	if t.meta("hook", &m) != nil {
		return hookList{}
	}
	return hookList{m.Version, m.RequiresGrad, m.IsLeaf}
}

// current reports whether l is certainly still t's list.
func (l hookList) current(t *Tensor) bool {
	now := hooksOf(t)
	return l.hooks && (now == l || now.leaf && l.leaf)
}

// register registers a hook and returns the function that removes it.
func (t *Tensor) register(op string, f any, add func(cshim.Handle, uint64) (uint32, cshim.ErrorRef), remove func(cshim.Handle, uint32) cshim.ErrorRef) (func(), error) {
	var slot uint32
	var id uint64
	err := t.use(op, func(h cshim.Handle) error {
		id = keepAlive(f)
		var ref cshim.ErrorRef
		if slot, ref = add(h, id); ref != nil {
			forget(id)
			return newError(op, cshim.Take(ref), t)
		}
		return nil
	})
	if err != nil {
		return func() {}, err
	}
	list := hooksOf(t)
	var once sync.Once
	return func() {
		once.Do(func() {
			if list.current(t) {
				_ = t.use(op, func(h cshim.Handle) error { return asError(remove(h, slot)) })
				forgetDropped()
			}
			forget(id) // a hook of another list, or of a handle that is released, stays in it and calls nothing
		})
	}, nil
}

// nativeFunction is the backward of a function written in Go, for package autograd. grads has one element for each
// output, nil if the output received no gradient; needs has one for each input. The result has one for each input, nil
// for none.
type nativeFunction = func(grads, saved []*Tensor, needs []bool) ([]*Tensor, error)

func runFunction(id uint64, grads, saved []cshim.Handle, needs []bool, out []cshim.Handle) uint64 {
	return guarded(func() error {
		v, _ := natives.Load(id)
		f, ok := v.(nativeFunction)
		if !ok {
			return errors.New("the function has been freed")
		}
		return WithScope(func() error {
			gs, ss := make([]*Tensor, len(grads)), make([]*Tensor, len(saved))
			for i, h := range grads {
				gs[i] = lend(h)
			}
			for i, h := range saved {
				ss[i] = lend(h)
			}
			result, err := f(gs, ss, append([]bool{}, needs...))
			if err != nil {
				return err
			}
			if len(result) != len(out) {
				return fmt.Errorf("backward returned %d gradients for %d inputs", len(result), len(out))
			}
			for i, t := range result {
				if t == nil {
					continue
				}
				if out[i], err = giveOut("backward", t); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// tieFunction connects outputs, which were computed without gradients, to inputs through f. It returns the tensors that
// replace outputs. autograd.Apply uses it.
func tieFunction(inputs, outputs, saved []*Tensor, f nativeFunction) ([]*Tensor, error) {
	const op = "Function"
	in, err := pinAll(op, inputs, false)
	if err != nil {
		return nil, err
	}
	defer in.unpin()
	outs, err := pinAll(op, outputs, false)
	if err != nil {
		return nil, err
	}
	defer outs.unpin()
	sv, err := pinAll(op, saved, false)
	if err != nil {
		return nil, err
	}
	defer sv.unpin()
	id := keepAlive(f)
	hs := make([]cshim.Handle, len(outputs))
	scope, ref := cshim.CustomFunction(id, in.hs, outs.hs, sv.hs, hs)
	if ref != nil {
		forget(id)
		forgetDropped()
		return nil, newError(op, cshim.Take(ref), inputs...)
	}
	ts := make([]*Tensor, len(hs))
	for i, h := range hs {
		ts[i] = wrap(h, scope)
	}
	return ts, nil
}

// withGrad runs f with the recording of gradients on or off on this goroutine, which is locked to its thread meanwhile.
// It implements autograd.NoGrad and autograd.EnableGrad.
func withGrad(on bool, f func() error) error {
	return withMode("mode", cshim.Mode{Kind: cshim.ModeGrad, On: on}, f)
}

// withInference runs f in inference mode. It implements autograd.Inference.
func withInference(on bool, f func() error) error {
	return withMode("mode", cshim.Mode{Kind: cshim.ModeInference, On: on}, f)
}

// withStream runs f with a stream and its device current on this goroutine. It implements cuda.WithStream.
func withStream(op string, device int32, id int64, f func() error) error {
	return withMode(op, cshim.Mode{Kind: cshim.ModeStream, Device: device, Stream: id}, f)
}

// withAnomaly runs f with the detection of anomalies. It implements autograd.DetectAnomaly.
func withAnomaly(checkNaN bool, f func() error) error {
	sites.AttachEveryCall(true)
	defer sites.AttachEveryCall(false)
	return withMode("DetectAnomaly", cshim.Mode{Kind: cshim.ModeAnomaly, On: checkNaN}, f)
}

// level is held by the goroutine that has libtorch's level of forward-mode differentiation.
var level sync.Mutex

// withForward runs f with the level. It implements autograd.DualLevel.
func withForward(f func() error) error {
	const op = "DualLevel"
	if err := cshim.Load(); err != nil {
		return err
	}
	// In inference mode ModeForward is off even within a level, for which this goroutine would wait.
	if modeOn(cshim.ModeInference) {
		return refused(op, ErrArgument, "in inference mode tensors have no tangents")
	}
	if modeOn(cshim.ModeForward) {
		return refused(op, ErrArgument, "this goroutine is in a level already, and levels do not nest")
	}
	level.Lock()
	defer level.Unlock()
	return withMode(op, cshim.Mode{Kind: cshim.ModeForward}, f)
}

// casting is the number of goroutines in regions of autocast, each counted once for each region.
var casting atomic.Int64

// withAutocast runs f with autocast of a device type to a dtype, which Float32 turns off. It implements
// autograd.Autocast.
func withAutocast(device DeviceType, dtype DType, f func() error) error {
	const op = "Autocast"
	if dtype != BFloat16 && dtype != Float16 && dtype != Float32 {
		return refused(op, ErrArgument, "the dtype is %v: want BFloat16, Float16, or Float32 for none", dtype)
	}
	if device < 0 {
		return refused(op, ErrArgument, "device type %d does not exist", device)
	}
	m := cshim.Mode{Kind: cshim.ModeAutocast, On: dtype != Float32, Device: int32(device), DType: int32(dtype)}
	if m.On {
		casting.Add(1)
		defer casting.Add(-1)
	}
	return withMode(op, m, f)
}

// autocastDType returns the dtype to which this goroutine casts for a device type, and Float32 outside autocast.
func autocastDType(device DeviceType) DType {
	if device < 0 || cshim.Load() != nil {
		return Float32
	}
	if m := cshim.ModeGet(cshim.ModeAutocast, int32(device)); m.On {
		return DType(m.DType)
	}
	return Float32
}

// forgetCasts drops the casts of weights that regions of autocast keep, because weights were changed: all of them if
// everywhere, and otherwise those of this goroutine's region.
func forgetCasts(everywhere bool) {
	if casting.Load() != 0 {
		cshim.ClearCasts(everywhere)
	}
}

// withMode runs f in a mode on this goroutine, which is locked to its thread meanwhile. An error of the mode itself names op.
func withMode(op string, m cshim.Mode, f func() error) error {
	return withThread(func() error {
		if err := cshim.ModePush(m); err != nil {
			return newError(op, err)
		}
		defer cshim.ModePop()
		return f()
	})
}

// withThread runs f on this goroutine, which is locked to its thread meanwhile: modes belong to threads.
func withThread(f func() error) (err error) {
	if err := cshim.Load(); err != nil {
		return err
	}
	if cshim.ScopeGet() != 0 { // The goroutine is locked already, but f may close the scope.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return f()
	}
	// The thread gets the marker, so that the limit on locked threads counts it.
	before, err := holdThread(marker)
	if err != nil {
		return err
	}
	defer func() {
		if inside := endInner(marker); err == nil { // of scopes that f opened and did not close
			err = inside
		}
		letThread(before, leave(marker, before))
	}()
	return f()
}

func modeOn(kind cshim.ModeKind) bool { return cshim.ModeGet(kind, 0).On }

// GradEnabled reports whether this goroutine records gradients, as it does outside autograd.NoGrad and
// autograd.Inference. PyTorch: torch.is_grad_enabled.
func GradEnabled() bool { return cshim.Load() == nil && modeOn(cshim.ModeGrad) }

// InferenceEnabled reports whether this goroutine is in inference mode. PyTorch: torch.is_inference_mode_enabled.
func InferenceEnabled() bool { return cshim.Load() == nil && modeOn(cshim.ModeInference) }

// recordStream records that a stream uses t's memory. It implements cuda.RecordStream.
func recordStream(t *Tensor, device int32, id int64) error {
	const op = "RecordStream"
	if !t.pin() {
		return unusable(op, t)
	}
	defer t.unpin()
	return newError(op, cshim.Stream{Device: device, ID: id}.Record(t.h), t)
}

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
	"github.com/linstock-ml/linstock/internal/reclaim"
)

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

// failures holds what is to be called because backward passes have failed; see atPassEnd.
var failures struct {
	sync.Mutex // held while values that were dropped become calls
	calls      []func()
	ending     sync.Mutex // held during the calls
}

// drops holds the functions of FromMapped whose memory no tensor uses any more. They are the program's.
var drops dropQueue

type dropQueue struct {
	n    atomic.Int64 // len(list)
	mu   sync.Mutex
	list []func()
}

func (q *dropQueue) waiting() bool { return q.n.Load() > 0 }

func (q *dropQueue) add(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, f)
	q.n.Add(1)
}

// take returns nil if the queue is empty.
func (q *dropQueue) take() (f func()) {
	if !q.waiting() {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return nil
	}
	f = q.list[0]
	q.list[0] = nil // what f refers to is garbage after the call
	if q.list = q.list[1:]; len(q.list) == 0 {
		q.list = nil
	}
	q.n.Add(-1)
	return f
}

// call calls the functions. If one does not return, the others stay in the queue.
func (q *dropQueue) call() {
	for f := q.take(); f != nil; f = q.take() {
		f()
	}
}

func init() { reclaim.DropsWaiting, reclaim.CallDrops = drops.waiting, drops.call }

// forgetDropped removes the values that no native graph refers to any more, and calls the functions of FromMapped.
func forgetDropped() {
	takeDropped()
	drops.call()
}

// takeDropped removes these values. Those that are to be called it adds to drops and failures.
func takeDropped() {
	for nativeLive.Load() > 0 && cshim.DroppedCount() > 0 {
		takeSomeDropped()
	}
}

func takeSomeDropped() {
	var ids [64]uint64
	failures.Lock()
	defer failures.Unlock()
	n := cshim.TakeDropped(ids[:])
	for _, id := range ids[:n] {
		v, _ := takeNative(id)
		switch v := v.(type) {
		case func():
			drops.add(v)
		case *passEnd:
			if !v.reached.Load() {
				failures.calls = append(failures.calls, v.failed)
			}
		}
	}
}

// endFailed calls what atPassEnd was given for passes that have failed. It may find what belongs to the pass of another
// goroutine, whose own call then returns after this one.
func endFailed() {
	forgetDropped()
	failures.ending.Lock()
	defer failures.ending.Unlock()
	failures.Lock()
	calls := failures.calls
	failures.calls = nil
	failures.Unlock()
	for _, f := range calls {
		f()
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
		if p, ok := v.(*passEnd); ok {
			p.reached.Store(true)
			return WithScope(p.f)
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

// RegisterHook calls f with the gradient of t each time it is computed; nil if t receives none. If f returns a tensor,
// it replaces the gradient; nil leaves it unchanged. f runs on a thread of the autograd engine, in a scope: to store the
// gradient, f calls Keep. The backward pass returns an error of f, or a panic as a [*PanicError]. The returned function
// removes the hook, also once t has been written to in place or released. If f refers to t, or to tensors computed from
// it, they are not freed before the hook is removed or t is released. f must not end its goroutine (runtime.Goexit,
// t.Fatal of a test): this leaks the pass, and ends the process for a tensor on a CUDA device, whose hooks run on
// libtorch's threads. Hooks may be registered and removed while other goroutines run passes that call them, with one
// exception: registering the first hook of a non-leaf tensor while another goroutine runs a pass through its graph is
// ErrArgument. PyTorch: Tensor.register_hook.
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
// the hook is removed or t is released. Registering the first one of t while another goroutine runs a pass that adds to its
// Grad is ErrArgument. PyTorch: Tensor.register_post_accumulate_grad_hook.
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
	if !t.peek(&m) {
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
		casting.Add(1)
		defer casting.Add(-1)
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

// tieFunction connects outputs, which were computed without gradients, to inputs through f. If materialize, f
// receives zeros for an output without a gradient, else nil. It returns the tensors that replace outputs. autograd.Apply
// uses it.
func tieFunction(inputs, outputs, saved []*Tensor, materialize bool, f nativeFunction) ([]*Tensor, error) {
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
	scope, ref := cshim.CustomFunction(id, in.hs, outs.hs, sv.hs, materialize, hs)
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

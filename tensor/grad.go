package tensor

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
)

// Backward computes gradients of t, a scalar unless Gradient says otherwise, for every leaf that requires them,
// and adds them to the leaves' Grad. Options: Gradient(g), RetainGraph(true), CreateGraph(true), Inputs(ts…).
// PyTorch: Tensor.backward.
func (t *Tensor) Backward(opts ...BackwardOption) error {
	return runBackward([]*Tensor{t}, opts...)
}

// BackwardOption is a keyword argument of Backward.
type BackwardOption func(*backwardSettings)

// backwardSettings are what the options of a backward pass come to.
type backwardSettings struct {
	Gradients   []*Tensor // one for each root; nil for "ones"
	Inputs      []*Tensor // only these get gradients; none: every leaf
	Retain      *bool     // nil: as CreateGraph
	Create      bool
	AllowUnused bool
}

// Gradient gives the roots' gradients (gradient=, grad_tensors=, grad_outputs=), one for each; a nil one stands
// for ones.
func Gradient(gs ...*Tensor) BackwardOption {
	return func(s *backwardSettings) { s.Gradients = gs }
}

// Inputs restricts which leaves get gradients (inputs=).
func Inputs(ts ...*Tensor) BackwardOption {
	return func(s *backwardSettings) { s.Inputs = ts }
}

// RetainGraph keeps the graph for another pass (retain_graph=). It is as CreateGraph by default.
func RetainGraph(on bool) BackwardOption {
	return func(s *backwardSettings) { s.Retain = &on }
}

// CreateGraph makes the gradients differentiable themselves (create_graph=).
func CreateGraph(on bool) BackwardOption {
	return func(s *backwardSettings) { s.Create = on }
}

// AllowUnused lets an input that the outputs do not depend on have no gradient (allow_unused=).
func AllowUnused(on bool) BackwardOption {
	return func(s *backwardSettings) { s.AllowUnused = on }
}

// plain are the settings without options.
var plain = &backwardSettings{Retain: new(bool)}

func settings(opts []BackwardOption) *backwardSettings {
	if len(opts) == 0 {
		return plain
	}
	s := &backwardSettings{}
	for _, o := range opts {
		if o != nil {
			o(s)
		}
	}
	if s.Retain == nil {
		s.Retain = &s.Create
	}
	return s
}

// pins is a list of pinned tensors and their handles.
type pins struct {
	ts []*Tensor
	hs []cshim.Handle
}

// pinAll pins ts; nil elements are 0 where that is allowed.
func pinAll(op string, ts []*Tensor, nilAllowed bool) (*pins, error) {
	if len(ts) == 0 {
		return &noPins, nil
	}
	return pinLists(op, len(ts), nilAllowed, ts)
}

var noPins pins

// pinPool keeps lists for the next call: a step of training pins as many as the one before.
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

// emptyPins is a list with room for n.
func emptyPins(n int) *pins {
	p, _ := pinPool.Get().(*pins)
	if p == nil {
		p = &pins{}
	}
	p.ts, p.hs = slices.Grow(p.ts, n), slices.Grow(p.hs, n)
	return p
}

// unpin lets go of the tensors and of p itself.
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

type backwardCall struct {
	roots, grads, inputs *pins
}

func (b backwardCall) unpin() { b.roots.unpin(); b.grads.unpin(); b.inputs.unpin() }

func prepare(op string, roots, inputs []*Tensor, s *backwardSettings) (b backwardCall, err error) {
	if len(roots) == 0 {
		return b, refused(op, ErrArgument, "no tensor to start from was given")
	}
	if len(s.Gradients) != 0 && len(s.Gradients) != len(roots) {
		return b, refused(op, ErrArgument, "%d gradients for %d roots", len(s.Gradients), len(roots))
	}
	if b.roots, err = pinAll(op, roots, false); err == nil {
		if b.grads, err = pinAll(op, s.Gradients, true); err == nil {
			b.inputs, err = pinAll(op, inputs, false)
		}
	}
	if err != nil {
		b.unpin()
	}
	return b, err
}

// runBackward is Backward from several roots. It is autograd.Backward.
func runBackward(roots []*Tensor, opts ...BackwardOption) error {
	s := settings(opts)
	b, err := prepare("Backward", roots, s.Inputs, s)
	if err != nil {
		return err
	}
	defer b.unpin()
	reclaim.BeforeBackward()
	ref := cshim.Backward(b.roots.hs, b.grads.hs, b.inputs.hs, *s.Retain, s.Create)
	reclaim.AfterBackward()
	err = newError("Backward", asError(ref), roots...)
	forgetDropped()
	return err
}

// runGrad returns the gradients of outputs with respect to inputs and touches no Grad. It is autograd.Grad.
func runGrad(outputs, inputs []*Tensor, opts ...BackwardOption) ([]*Tensor, error) {
	s := settings(opts)
	if len(inputs) == 0 {
		return nil, refused("Grad", ErrArgument, "no input was given")
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

// Grad is t's accumulated gradient; nil where there is none. It shares storage with what the optimizer reads.
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

// SetGrad sets the gradient; nil takes it away.
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

// Grads is the gradient of each, nil where there is none, in one crossing; for optimizers.
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

// ZeroGrads takes the gradients of all away (toNone), or sets them to zero in place. PyTorch:
// Optimizer.zero_grad.
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

// RequiresGrad says whether gradients are computed for t.
func (t *Tensor) RequiresGrad() bool {
	var m cshim.Meta
	return t.meta("RequiresGrad", &m) == nil && m.RequiresGrad
}

// RequiresGrad_ switches it on or off, for a leaf, and returns t. PyTorch: Tensor.requires_grad_.
func (t *Tensor) RequiresGrad_(on ...bool) *Tensor {
	if !t.pin() {
		return passOn("RequiresGrad_", t)
	}
	ref := cshim.SetRequiresGrad(t.h, len(on) == 0 || on[len(on)-1])
	t.unpin()
	if ref != nil {
		return failed(newError("RequiresGrad_", cshim.Take(ref), t))
	}
	t.asked.Store(true)
	return t
}

// IsLeaf says whether t was made by the user, not by an operator that recorded a gradient.
func (t *Tensor) IsLeaf() bool {
	var m cshim.Meta
	return t.meta("IsLeaf", &m) == nil && m.IsLeaf
}

// IsInference says whether t was made in inference mode.
func (t *Tensor) IsInference() bool {
	var m cshim.Meta
	return t.meta("IsInference", &m) == nil && m.IsInference
}

// Version counts the writes to t's storage; -1 for inference tensors and those that cannot be used. PyTorch:
// Tensor._version.
func (t *Tensor) Version() int {
	var m cshim.Meta
	if t.meta("Version", &m) != nil {
		return -1
	}
	return int(m.Version)
}

// RetainGrad makes a tensor that is no leaf keep its gradient. PyTorch: Tensor.retain_grad.
func (t *Tensor) RetainGrad() error {
	return t.use("RetainGrad", func(h cshim.Handle) error {
		return newError("RetainGrad", asError(cshim.RetainGrad(h)), t)
	})
}

// GradFn is the name of the graph node that made t, "MulBackward0"; empty for a leaf.
func (t *Tensor) GradFn() string {
	var name string
	_ = t.use("GradFn", func(h cshim.Handle) (err error) {
		name, err = cshim.GradFnName(h)
		return err
	})
	return name
}

// The Go side of what native graphs hold: hooks, functions, file mappings. C has only the ids.
var (
	natives    sync.Map // id → any
	nextNative atomic.Uint64
	nativeLive atomic.Int64 // how many are in natives: none, and no call has to ask what was dropped
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

// forgetDropped forgets what no native graph holds any more.
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

// takeCallbackError is the Go error that a callback left behind under its number.
func takeCallbackError(id uint64) error {
	if v, ok := takeNative(id); ok {
		if err, is := v.(error); is {
			return err
		}
	}
	return errors.New("a callback failed")
}

// guarded runs a callback's Go code: an error, and a panic turned into one, is kept under a number.
func guarded(f func() error) (failed uint64) {
	err := func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return f()
	}()
	if err == nil {
		return 0
	}
	return keepAlive(err)
}

func init() {
	cshim.SetCallbacks(&cshim.Callbacks{Hook: runHook, Backward: runFunction, Recompute: runRecompute})
}

// lend makes a Tensor of a handle that somebody else owns, for the time of a callback.
func lend(h cshim.Handle) *Tensor {
	if h == 0 {
		return nil
	}
	return wrapResult("callback", cshim.TensorAlias(h))
}

// giveOut makes a handle that C owns from a tensor that the scope around the callback will free.
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

// RegisterHook calls f with t's gradient each time it is computed; what f returns replaces it, unless nil. f
// runs on the engine's thread, in a scope of its own. Its error, or its panic, is the backward pass's error.
// The returned function takes the hook away. PyTorch: Tensor.register_hook.
func (t *Tensor) RegisterHook(f func(grad *Tensor) (*Tensor, error)) (remove func(), err error) {
	nothing := func() {}
	if f == nil {
		return nothing, refused("RegisterHook", ErrNil, "a function is needed, got nil")
	}
	var slot uint32
	err = t.use("RegisterHook", func(h cshim.Handle) error {
		id := keepAlive(hook(f))
		var ref cshim.ErrorRef
		if slot, ref = cshim.RegisterHook(h, id); ref != nil {
			forget(id)
			return newError("RegisterHook", cshim.Take(ref), t)
		}
		return nil
	})
	if err != nil {
		return nothing, err
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			_ = t.use("RegisterHook", func(h cshim.Handle) error { return asError(cshim.RemoveHook(h, slot)) })
			forgetDropped()
		})
	}, nil
}

// nativeFunction is the backward of a function written in Go, for package autograd: grads has one element for
// each output (nil where none came), needs one for each input; so has the result, nil for none.
type nativeFunction = func(grads, saved []*Tensor, needs []bool) ([]*Tensor, error)

func runFunction(id uint64, grads, saved []cshim.Handle, needs []bool, out []cshim.Handle) uint64 {
	return guarded(func() error {
		v, _ := natives.Load(id)
		f, ok := v.(nativeFunction)
		if !ok {
			return errors.New("the function is gone")
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

// tieFunction ties outputs, computed without gradients, to inputs through f. The outputs given are replaced by those
// returned. autograd.Apply uses it.
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

// withGrad runs f with gradient recording on or off on this goroutine, which holds its thread meanwhile. It
// is autograd.NoGrad and autograd.EnableGrad.
func withGrad(on bool, f func() error) error { return withMode(cshim.ModeGrad, on, f) }

// withInference runs f in inference mode. It is autograd.Inference.
func withInference(on bool, f func() error) error { return withMode(cshim.ModeInference, on, f) }

func withMode(m cshim.Mode, on bool, f func() error) error {
	if err := cshim.Load(); err != nil {
		return err
	}
	// Modes belong to threads: the goroutine must not wander. The scope word stays what it is, or becomes the
	// marker, so that the bound on held threads counts this one.
	word := cshim.ScopeGet()
	if word == 0 {
		word = marker
	}
	before, err := holdThread(word)
	if err != nil {
		return err
	}
	defer letThread(before)
	if err := cshim.ModePush(m, on); err != nil {
		return newError("mode", err)
	}
	defer cshim.ModePop()
	return f()
}

// GradEnabled says whether this goroutine records gradients. Outside NoGrad and EnableGrad it does.
func GradEnabled() bool { return cshim.Load() == nil && cshim.ModeGet(cshim.ModeGrad) }

// InferenceEnabled says whether this goroutine is in inference mode.
func InferenceEnabled() bool { return cshim.Load() == nil && cshim.ModeGet(cshim.ModeInference) }

package tensor

import (
	"fmt"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/reclaim"
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
	Inputs      []*Tensor // tensors that get gradients
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

// Inputs sets the tensors that get gradients (inputs=), at least one. Each must require gradients; for one that is not a
// leaf, Backward calls RetainGrad. Grad refuses it, since its inputs are an argument.
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
		return refused("Backward", ErrArgument, "Inputs is empty: want the tensors that get gradients")
	}
	b, err := prepare("Backward", roots, s.Inputs, s)
	if err != nil {
		return err
	}
	defer b.unpin()
	if err := retainGrads(s.Inputs); err != nil {
		return err
	}
	reclaim.BeforeBackward()
	var end func(err error) error
	if handle.BeginBackward != nil {
		end = handle.BeginBackward()
	}
	ref := cshim.Backward(b.roots.hs, b.grads.hs, b.inputs.hs, *s.Retain, s.Create)
	reclaim.AfterBackward()
	cshim.Yield()
	err = newError("Backward", asError(ref), roots...)
	if forgetDropped(); err != nil {
		endFailed()
	}
	if end != nil {
		err = end(err)
	}
	return err
}

// retainGrads makes the inputs of Backward that are not leaves keep their gradients. libtorch's pass would do so too, but
// without the lock of RetainGrad.
func retainGrads(inputs []*Tensor) error {
	for i, t := range inputs {
		if !t.RequiresGrad() {
			return refused("Backward", ErrArgument, "input %d of Inputs does not require gradients", i)
		}
		if err := t.RetainGrad(); err != nil {
			return fmt.Errorf("linstock: Backward: input %d of Inputs: %w", i, err)
		}
	}
	return nil
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
		err := newError("Grad", cshim.Take(ref), outputs...)
		endFailed()
		return nil, err
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
	return t.peek(&m) && m.RequiresGrad
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
	return t.peek(&m) && m.IsLeaf
}

// IsInference reports whether t was made in inference mode. PyTorch: Tensor.is_inference.
func (t *Tensor) IsInference() bool {
	var m cshim.Meta
	return t.peek(&m) && m.IsInference
}

// Version returns the number of in-place writes to t's storage. Unlike in Python, the operator that fills a new tensor,
// such as Zeros or Randn, is one of them. It is -1 for tensors made in inference mode and for those that are failed,
// released or nil. PyTorch: Tensor._version.
func (t *Tensor) Version() int {
	var m cshim.Meta
	if !t.peek(&m) {
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
	name, _ := t.gradFn()
	return name
}

func (t *Tensor) gradFn() (name string, err error) {
	err = t.use("GradFn", func(h cshim.Handle) (err error) {
		name, err = cshim.GradFnName(h)
		return err
	})
	return name, err
}

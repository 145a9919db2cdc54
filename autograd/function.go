package autograd

import (
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Function is a differentiable function written in Go. There is no mark_dirty and no mark_non_differentiable: inputs must
// not be changed in place, and every output of a floating-point or complex dtype is differentiable. PyTorch:
// torch.autograd.Function.
type Function interface {
	// Forward computes the outputs. It runs in a scope, with the recording of gradients disabled. It saves what
	// Backward needs with ctx.SaveForBackward (tensors) and ctx.Set (other values). It must not change weights; if it
	// changes an input, and gradients are recorded, Apply returns an error.
	Forward(ctx *Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error)
	// Backward receives a gradient for each output and returns a gradient for each input, nil for none. An output that
	// received no gradient gets zeros, or nil after ctx.SetMaterializeGrads(false), which outputs of layout SparseBSR or
	// SparseBSC need, as in PyTorch: libtorch makes no zeros of these. Backward runs in a scope on a thread of the autograd
	// engine, in the Autocast regions in which Forward ran. With CreateGraph, its own operators are recorded.
	Backward(ctx *Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error)
}

// Context passes values from Forward to Backward.
type Context struct {
	mu     sync.Mutex
	saved  []*tensor.Tensor
	needs  []bool
	values map[any]any
	fault  error // of Set
	nilled bool  // of SetMaterializeGrads(false)

	forward *Context // in Backward: Forward's context, which holds the values
}

// SaveForBackward saves tensors for Backward: inputs, outputs or others, including nil. A second call replaces what the
// first saved. PyTorch: ctx.save_for_backward.
func (c *Context) SaveForBackward(ts ...*tensor.Tensor) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = append([]*tensor.Tensor{}, ts...)
}

// Saved returns the tensors that SaveForBackward saved, in the same order. If one of them was changed in place since,
// the backward pass returns an error. PyTorch: ctx.saved_tensors.
func (c *Context) Saved() []*tensor.Tensor {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*tensor.Tensor{}, c.saved...)
}

// NeedsInputGrad reports whether the i-th input needs a gradient. Backward may return nil for the others. PyTorch:
// ctx.needs_input_grad.
func (c *Context) NeedsInputGrad(i int) bool {
	return c != nil && i >= 0 && i < len(c.needs) && c.needs[i]
}

// SetMaterializeGrads sets, in Forward, whether Backward receives zeros for an output that received no gradient, as by
// default, or nil, which saves their memory. PyTorch: ctx.set_materialize_grads.
func (c *Context) SetMaterializeGrads(on bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nilled = !on
}

// Set saves a value that is not a tensor under a key. If the key is not comparable, Apply or the backward pass returns
// an error.
func (c *Context) Set(key, value any) {
	if c == nil {
		return
	}
	if c.forward != nil {
		c = c.forward
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !keyable(key) {
		c.fault = refuse.Error("Set", tensor.ErrArgument, "a key of type %T is not comparable", key)
		return
	}
	if c.values == nil {
		c.values = map[any]any{}
	}
	c.values[key] = value
}

// keyable reports whether key can be a map key.
func keyable(key any) bool { return key == nil || reflect.ValueOf(key).Comparable() }

// failed returns the error of Set, and forgets it.
func (c *Context) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.fault
	c.fault = nil
	return err
}

// Value returns the value that Set saved under key, or nil.
func (c *Context) Value(key any) any {
	if c == nil || !keyable(key) {
		return nil
	}
	if c.forward != nil {
		c = c.forward
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.values[key]
}

// Apply computes f.Forward and connects its outputs to its inputs in the graph, so that the backward pass calls
// f.Backward. Apply returns an error or panic of Forward; the backward pass returns one of Backward. If an output is
// one of the inputs, Apply returns a view of it instead.
//
// As in PyTorch, a captured tensor that Forward returns becomes the result of f: if it is a weight, its gradient goes to
// f.Backward and no longer reaches it, and if it is a buffer, it requires a gradient from then on. Forward must return a
// View or a Clone of it instead.
//
// PyTorch: Function.apply.
func Apply(f Function, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	const op = "Apply"
	if f == nil {
		return nil, refuse.Nil(op, "a function")
	}
	ctx := &Context{needs: make([]bool, len(inputs))}
	recorded := tensor.GradEnabled() && !tensor.InferenceEnabled()
	tied := false
	for i, x := range inputs {
		if err := check(op, x); err != nil {
			return nil, err
		}
		ctx.needs[i] = recorded && x.RequiresGrad()
		tied = tied || ctx.needs[i]
	}
	return tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		if handle.ForwardEnabled() {
			for _, x := range inputs {
				if _, tangent := UnpackDual(x); tangent != nil {
					return nil, refuse.Error(op, tensor.ErrNotImplemented, "a Function has no forward derivative, and an input has a tangent")
				}
			}
		}
		var versions []int
		if tied {
			for _, x := range inputs {
				versions = append(versions, x.Version())
			}
		}
		outputs, err := forward(f, ctx, inputs)
		if err != nil || !tied {
			return outputs, err
		}
		for i, x := range inputs {
			if v := x.Version(); v >= 0 && v != versions[i] {
				return nil, refuse.Error(op, tensor.ErrArgument, "Forward of %T changed input %d in place: gradients computed from its handle would lack the change; change a Clone", f, i)
			}
		}
		return tie(f, ctx, inputs, outputs)
	})
}

// check returns an error if t cannot be an operand.
func check(op string, t *tensor.Tensor) error {
	return refuse.Unusable(op, "", t)
}

func forward(f Function, ctx *Context, inputs []*tensor.Tensor) (outputs []*tensor.Tensor, err error) {
	const op = "Apply"
	// Not NoGrad, which drops the casts that autocast keeps: Forward does not change weights.
	err = handle.WithGrad(false, func() error {
		outputs, err = recovered(func() ([]*tensor.Tensor, error) { return f.Forward(ctx, append([]*tensor.Tensor{}, inputs...)...) })
		if err == nil {
			err = ctx.failed()
		}
		if err != nil {
			return err
		}
		if len(outputs) == 0 {
			return refuse.Error(op, tensor.ErrArgument, "Forward of %T returned no output", f)
		}
		outputs = append([]*tensor.Tensor{}, outputs...)
		for i, y := range outputs {
			if err := check(op, y); err != nil {
				return fmt.Errorf("output %d of %T: %w", i, f, err)
			}
			for _, x := range inputs {
				if x == y {
					outputs[i] = x.ViewAs(x)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return outputs, nil
}

func tie(f Function, ctx *Context, inputs, outputs []*tensor.Tensor) ([]*tensor.Tensor, error) {
	// Native code holds the saved tensors, which the engine checks and frees; the context holds them only during
	// Backward. The engine's list has no nil tensors.
	ctx.mu.Lock()
	var saved []*tensor.Tensor
	at := make([]int, len(ctx.saved))
	for i, t := range ctx.saved {
		at[i] = -1
		if t != nil {
			at[i] = len(saved)
			saved = append(saved, t)
		}
	}
	ctx.saved = nil
	nilled := ctx.nilled
	ctx.mu.Unlock()
	shapes := make([][]int, len(inputs))
	for i, x := range inputs {
		shapes[i] = x.Shape()
	}
	return tieFunction(inputs, outputs, saved, !nilled, func(grads, saved []*tensor.Tensor, needs []bool) ([]*tensor.Tensor, error) {
		// Each pass has its own context, because several passes may use a retained graph, even at the same time.
		c := &Context{needs: needs, forward: ctx, saved: make([]*tensor.Tensor, len(at))}
		for i, k := range at {
			if k >= 0 {
				c.saved[i] = saved[k]
			}
		}
		results, err := recovered(func() ([]*tensor.Tensor, error) { return f.Backward(c, grads...) })
		if err == nil {
			err = ctx.failed()
		}
		if err == nil {
			err = checkGrads(results, shapes)
		}
		if err == nil && checkingNaN.Load() > 0 {
			err = checkNaN(results)
		}
		if err != nil {
			return nil, fmt.Errorf("Backward of %T: %w", f, err)
		}
		return results, nil
	})
}

// checkGrads returns an error if a gradient cannot be used or does not fit an input of these shapes. The engine sums a
// gradient over the dimensions along which its input broadcasts to it.
func checkGrads(grads []*tensor.Tensor, shapes [][]int) error {
	const op = "Apply"
	if len(grads) != len(shapes) {
		return refuse.Error(op, tensor.ErrArgument, "%d gradients for %d inputs", len(grads), len(shapes))
	}
	for i, g := range grads {
		if g == nil {
			continue
		}
		if err := check(op, g); err != nil {
			return fmt.Errorf("the gradient of input %d: %w", i, err)
		}
		got, want := g.Shape(), shapes[i]
		fits := len(want) <= len(got)
		for k := 1; fits && k <= len(want); k++ {
			n := want[len(want)-k]
			fits = n == 1 || n == got[len(got)-k]
		}
		if !fits {
			return refuse.Error(op, tensor.ErrArgument, "the gradient of input %d has shape %v, but the input has shape %v", i, got, want)
		}
	}
	return nil
}

// checkNaN returns an error if a gradient has a NaN. libtorch's own check does not know the Function's name.
func checkNaN(grads []*tensor.Tensor) error {
	for i, g := range grads {
		if g == nil {
			continue
		}
		if nan, err := g.IsNaN().Any().Item(); err == nil && nan != 0 {
			return refuse.Error("Apply", tensor.ErrNaN, "the gradient of input %d has NaN values", i)
		}
	}
	return nil
}

// recovered turns a panic into an error.
func recovered(f func() ([]*tensor.Tensor, error)) (ts []*tensor.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			ts, err = nil, &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// PanicError is the error of a panic in a [Function], a checkpointed function or a hook.
type PanicError = tensor.PanicError

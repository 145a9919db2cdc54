package autograd

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Function is a differentiable function written in Go. PyTorch: torch.autograd.Function.
type Function interface {
	// Forward computes the outputs, without recording gradients, in a scope of its own. What Backward will need it
	// puts aside with ctx.SaveForBackward (tensors) and ctx.Set (everything else).
	Forward(ctx *Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error)
	// Backward gets a gradient for each output, nil where none came, and gives one for each input, nil for none. It
	// runs on a thread of the engine's, in a scope of its own; under CreateGraph its own operators are recorded.
	Backward(ctx *Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error)
}

// Context carries what Forward leaves to Backward.
type Context struct {
	mu     sync.Mutex
	saved  []*tensor.Tensor
	needs  []bool
	values map[any]any

	forward *Context // in Backward: the one that Forward had, whose values these are
}

// SaveForBackward puts tensors aside for Backward: inputs, outputs, or others. Called again it replaces what was
// there. nil tensors may be among them.
func (c *Context) SaveForBackward(ts ...*tensor.Tensor) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = append([]*tensor.Tensor{}, ts...)
}

// Saved is what SaveForBackward put aside, in its order. A tensor that was changed in place since then is an error
// of the backward pass.
func (c *Context) Saved() []*tensor.Tensor {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*tensor.Tensor{}, c.saved...)
}

// NeedsInputGrad says whether the i-th input needs a gradient; Backward may give nil for the others.
func (c *Context) NeedsInputGrad(i int) bool {
	return c != nil && i >= 0 && i < len(c.needs) && c.needs[i]
}

// Set puts a value that is no tensor aside under a key.
func (c *Context) Set(key, value any) {
	if c == nil {
		return
	}
	if c.forward != nil {
		c = c.forward
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		c.values = map[any]any{}
	}
	c.values[key] = value
}

// Value is what Set put aside; nil where there is nothing.
func (c *Context) Value(key any) any {
	if c == nil {
		return nil
	}
	if c.forward != nil {
		c = c.forward
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.values[key]
}

// Apply computes f and ties its outputs to its inputs: the backward pass will call f.Backward. An error or a panic
// in Forward is Apply's error; one in Backward is the backward pass's. An output that is one of the inputs is
// replaced by a view of it.
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
		outputs, err := forward(f, ctx, inputs)
		if err != nil || !tied {
			return outputs, err
		}
		return tie(f, ctx, inputs, outputs)
	})
}

// check is the error of a tensor that operators will not take.
func check(op string, t *tensor.Tensor) error {
	return refuse.Unusable(op, "", t)
}

func forward(f Function, ctx *Context, inputs []*tensor.Tensor) (outputs []*tensor.Tensor, err error) {
	const op = "Apply"
	err = NoGrad(func() error {
		outputs, err = recovered(func() ([]*tensor.Tensor, error) { return f.Forward(ctx, append([]*tensor.Tensor{}, inputs...)...) })
		if err != nil {
			return err
		}
		if len(outputs) == 0 {
			return refuse.Error(op, tensor.ErrArgument, "%T's Forward gave no output", f)
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
	// Native code holds the saved tensors, which the engine checks and frees; the context has them only during
	// Backward. The engine knows no nil ones.
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
	ctx.mu.Unlock()
	return tieFunction(inputs, outputs, saved, func(grads, saved []*tensor.Tensor, needs []bool) ([]*tensor.Tensor, error) {
		// A context of its own for each pass: a retained graph may be gone through more than once, at once even.
		c := &Context{needs: needs, forward: ctx, saved: make([]*tensor.Tensor, len(at))}
		for i, k := range at {
			if k >= 0 {
				c.saved[i] = saved[k]
			}
		}
		return recovered(func() ([]*tensor.Tensor, error) { return f.Backward(c, grads...) })
	})
}

// recovered makes an error of a panic.
func recovered(f func() ([]*tensor.Tensor, error)) (ts []*tensor.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			ts, err = nil, &PanicError{p, debug.Stack()}
		}
	}()
	return f()
}

// PanicError is a panic in a Function.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("linstock: panic: %v\n%s", e.Value, e.Stack) }

// Unwrap gives the panic's value where it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

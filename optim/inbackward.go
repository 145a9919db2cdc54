package optim

import (
	"weak"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// StepInBackward makes each backward pass update a parameter as soon as its gradient is complete, and set the gradient to
// nil: the gradients of all parameters never exist at the same time. Step then finds no gradients and changes nothing, so
// a training loop stays as it is. It applies to the parameters that the optimizer has now, until remove is called. The
// parameters, as *tensor.Tensor, keep the optimizer until then.
//
// It cannot be combined with what needs all gradients: clipping, GradScaler, the accumulation of gradients, and LBFGS;
// nor with a dist.DDP, which averages a gradient after the parameter has been updated with this rank's gradient. Hooks
// of Step do not run. The backward pass returns the error of a step.
//
// PyTorch: torch.Tensor.register_post_accumulate_grad_hook, with an optimizer for each parameter.
func (b *Optimizer) StepInBackward() (remove func(), err error) {
	const op = "StepInBackward"
	var removes []func()
	remove = func() {
		for _, r := range removes {
			r()
		}
	}
	if b == nil {
		return remove, refuse.Nil(op, "an optimizer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ready(op); err != nil {
		return remove, err
	}
	if b.kind.whole {
		return remove, refuse.Error(op, tensor.ErrArgument, "%s needs all gradients", b.kind.Name)
	}
	// If a hook referred to the optimizer, it would keep the parameters, and they their hooks, alive forever. So the
	// parameters refer to the optimizer as Go objects, and all can be collected together.
	self := weak.Make(b)
	for gi, g := range b.groups {
		for pi, p := range g.params {
			r, err := p.RegisterPostAccumulateGradHook(func(*tensor.Tensor) error {
				if b := self.Value(); b != nil {
					return b.stepOne(gi, pi)
				}
				return refuse.Error(op, tensor.ErrArgument, "the optimizer and the parameters that it was given are gone")
			})
			if err != nil {
				remove()
				return func() {}, err
			}
			removes = append(removes, r, hold(p, b))
		}
	}
	return remove, nil
}

var hold = handle.Hold.(func(t *tensor.Tensor, v any) (drop func()))

// stepOne steps a parameter of a group and sets its gradient to nil.
func (b *Optimizer) stepOne(group, param int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.ready("Step"); err != nil {
		return err
	}
	defer handle.ForgetCasts(true)
	g := b.groups[group]
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error { return b.stepGradient(g, g.at[param]) })
	})
}

// stepGradient steps a parameter, if it has a gradient, and sets the gradient to nil.
func (b *Optimizer) stepGradient(g *Group, at place) error {
	bk := at.b
	param := bk.params[at.i : at.i+1]
	grads, err := tensor.Grads(param)
	if err != nil || grads[0] == nil {
		return err
	}
	sparse := grads[0].IsSparse()
	if err := b.check(g, at, grads[0], sparse); err != nil {
		return err
	}
	bk.grads[at.i] = grads[0]
	defer bk.clear()
	if err := b.stepSome(g, bk, []int{at.i}, sparse, !b.started(g, bk, at.i)); err != nil {
		return err
	}
	return tensor.ZeroGrads(param, true)
}

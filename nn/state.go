package nn

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/tensor"
)

// To converts the parameters and buffers of m, and their gradients, to a dtype or moves them to a device, or both, in
// place: nn.To(m, tensor.CUDA(0)). It changes the dtype only of floating-point tensors. The *Tensor handles stay the
// same, so an existing optimizer keeps its parameters, but its own state is not converted: make the optimizer after the
// call. PyTorch: Module.to.
func To(m any, opts ...tensor.Option) error {
	if err := Check(m); err != nil {
		return err
	}
	seen := map[*tensor.Tensor]bool{}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			for _, n := range tensors(m) {
				if seen[n.Tensor] {
					continue
				}
				seen[n.Tensor] = true
				if err := move(n.Tensor, opts); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func move(t *tensor.Tensor, opts []tensor.Option) error {
	kept := opts
	if d := t.DType(); !d.IsFloat() && !d.IsComplex() {
		kept = nil
		for _, o := range opts {
			if _, is := o.(tensor.DType); !is {
				kept = append(kept, o)
			}
		}
	}
	now := t.Detach().To(kept...)
	if err := now.Err(); err != nil {
		return err
	}
	grad := t.Grad()
	if grad != nil {
		if err := t.SetGrad(nil); err != nil {
			return err
		}
	}
	if _, err := tensor.CallUnchecked("aten::set_data", t, now); err != nil {
		return err
	}
	if grad == nil {
		return nil
	}
	return t.SetGrad(grad.To(kept...))
}

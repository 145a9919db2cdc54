package autograd

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// RegisterMultiGradHook calls f in each backward pass, once the pass has computed the gradients of all tensors in ts that
// it reaches. grads has one element for each of ts, in order, and nil for those that the pass does not reach. ts must
// require gradients. f runs on a thread of the autograd engine, in a scope whose end frees grads. The backward pass
// returns an error or panic of f. A pass that fails before all gradients are there does not call f, and neither does one
// that began before the hook was registered. The returned function removes the hook. While another goroutine runs a pass,
// it can fail as [tensor.Tensor.RegisterHook] can. PyTorch: torch.autograd.graph.register_multi_grad_hook with
// mode="all".
func RegisterMultiGradHook(ts []*tensor.Tensor, f func(grads []*tensor.Tensor) error) (remove func(), err error) {
	return register("RegisterMultiGradHook", ts, false, f)
}

// RegisterAnyGradHook is RegisterMultiGradHook for an f that is called with the first gradient of ts that a backward pass
// computes, once in each pass. It leaves out those of ts that require no gradients. PyTorch:
// torch.autograd.graph.register_multi_grad_hook with mode="any".
func RegisterAnyGradHook(ts []*tensor.Tensor, f func(grad *tensor.Tensor) error) (remove func(), err error) {
	if f == nil {
		return register("RegisterAnyGradHook", ts, true, nil)
	}
	return register("RegisterAnyGradHook", ts, true, func(grads []*tensor.Tensor) error { return f(grads[0]) })
}

func register(op string, ts []*tensor.Tensor, first bool, f func(grads []*tensor.Tensor) error) (remove func(), err error) {
	switch {
	case f == nil:
		return func() {}, refuse.Nil(op, "a function")
	case len(ts) == 0:
		return func() {}, refuse.Error(op, tensor.ErrArgument, "at least one tensor is needed")
	}
	return registerMulti(op, ts, first, f)
}

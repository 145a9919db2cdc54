package tensor

import (
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
)

// adamStep takes one step of Adam, or of AdamW if how.Decoupled, with libtorch's fused kernel, on those of params that
// have a gradient, in one native call. All tensors have the same dtype and device. avgs, sqs, maxs (only with AMSGrad)
// and steps (float32 scalars) hold the state of each parameter and are updated.
func adamStep(how handle.Adam, params, avgs, sqs, maxs, steps []*Tensor) error {
	const op = "Adam"
	n := len(params)
	if len(avgs) != n || len(sqs) != n || len(steps) != n || how.AMSGrad && len(maxs) != n {
		return refused(op, ErrArgument, "the state lists must have one tensor for each of the %d parameters", n)
	}
	if n == 0 {
		return nil
	}
	lists := [...][]*Tensor{params, avgs, sqs, steps, maxs}
	used := lists[:4]
	if how.AMSGrad {
		used = lists[:]
	}
	p, err := pinLists(op, n*len(used), false, used...)
	if err != nil {
		return err
	}
	defer p.unpin()
	of := func(list int) []cshim.Handle { return p.hs[list*n:][:n] }
	var last []cshim.Handle
	if how.AMSGrad {
		last = of(4)
	}
	return newError(op, asError(cshim.AdamStep(cshim.Adam(how), of(0), of(1), of(2), last, of(3))))
}

// roundStochastic rounds from, a float32 tensor, to bfloat16 into to, which has the same shape and device. Each element
// becomes one of the two nearest numbers at random, so that the mean is the value.
func roundStochastic(to, from *Tensor) error {
	const op = "StochasticRounding"
	p, err := pinAll(op, []*Tensor{to, from}, false)
	if err != nil {
		return err
	}
	defer p.unpin()
	return newError(op, asError(cshim.RoundStochastic(p.hs[0], p.hs[1])), to, from)
}

// linearActivation returns the activation of x.Linear(weight, bias), in one native call.
func linearActivation(x, weight, bias *Tensor, a cshim.Activation) *Tensor {
	if f := pin3(&opLinear, x, weight, bias, 4); f != nil {
		return f
	}
	r := cshim.LinearActivation(x.handle(), weight.handle(), bias.handle(), a)
	if r.Err != nil && again(&opLinear, r.Err) {
		r = cshim.LinearActivation(x.handle(), weight.handle(), bias.handle(), a)
	}
	return done3(&opLinear, r, x, weight, bias)
}

package tensor

import "github.com/linstock-ml/linstock/cshim"

// FusedAdam is one step of Adam, or of AdamW with Decoupled, by libtorch's fused kernel on those of Params that have a
// gradient, in one crossing; package optim is the place to use it from. All are of one dtype and device. Avgs, Sqs,
// Maxs (with AMSGrad only) and Steps (float32 scalars) are the state of each and are written to.
type FusedAdam struct {
	LR, Beta1, Beta2, WeightDecay, Eps float64
	AMSGrad, Maximize, Decoupled       bool
	Params, Avgs, Sqs, Maxs, Steps     []*Tensor
}

// Step makes the step.
func (f *FusedAdam) Step() error {
	const op = "FusedAdam"
	if f == nil {
		return refused(op, ErrNil, "settings are needed, got nil")
	}
	n := len(f.Params)
	if len(f.Avgs) != n || len(f.Sqs) != n || len(f.Steps) != n || f.AMSGrad && len(f.Maxs) != n {
		return refused(op, ErrArgument, "the lists differ in length from the %d parameters", n)
	}
	if n == 0 {
		return nil
	}
	lists := [...][]*Tensor{f.Params, f.Avgs, f.Sqs, f.Steps, f.Maxs}
	used := lists[:4]
	if f.AMSGrad {
		used = lists[:]
	}
	p, err := pinLists(op, n*len(used), false, used...)
	if err != nil {
		return err
	}
	defer p.unpin()
	of := func(list int) []cshim.Handle { return p.hs[list*n:][:n] }
	var maxs []cshim.Handle
	if f.AMSGrad {
		maxs = of(4)
	}
	how := cshim.Adam{LR: f.LR, Beta1: f.Beta1, Beta2: f.Beta2, WeightDecay: f.WeightDecay, Eps: f.Eps,
		AMSGrad: f.AMSGrad, Maximize: f.Maximize, Decoupled: f.Decoupled}
	return newError(op, asError(cshim.AdamStep(how, of(0), of(1), of(2), maxs, of(3))))
}

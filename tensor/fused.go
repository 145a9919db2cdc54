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
	var lists [5]*pins
	defer func() {
		for _, p := range lists {
			p.unpin()
		}
	}()
	given := [5][]*Tensor{f.Params, f.Avgs, f.Sqs, f.Steps, f.Maxs}
	if !f.AMSGrad {
		given[4] = nil
	}
	for i, ts := range given {
		var err error
		if lists[i], err = pinAll(op, ts, false); err != nil {
			return err
		}
	}
	if n == 0 {
		return nil
	}
	how := cshim.Adam{LR: f.LR, Beta1: f.Beta1, Beta2: f.Beta2, WeightDecay: f.WeightDecay, Eps: f.Eps,
		AMSGrad: f.AMSGrad, Maximize: f.Maximize, Decoupled: f.Decoupled}
	return newError(op, asError(cshim.AdamStep(how, lists[0].hs, lists[1].hs, lists[2].hs, lists[4].hs, lists[3].hs)))
}

package optim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Optimizer updates parameters from their gradients. NewSGD, NewAdam, New and the package's other constructors return
// one. Its methods may be called from several goroutines; they run one at a time. PyTorch: torch.optim.Optimizer.
type Optimizer struct {
	kind   *Algorithm
	mu     sync.Mutex
	groups []*Group
	init   Group // the constructor's hyperparameters
	sticky error
	seen   map[*tensor.Tensor]bool
	all    []*tensor.Tensor
	hooks  hooks
	search search // LBFGS
	drops  int    // how often the state was dropped
	busy   bool   // in a step of LBFGS, whose closure runs without mu

	// What the current step multiplies gradients in float16 by, in float32; 0 if they are not scaled.
	inverse float64
}

// bucket holds the parameters of a group that have the same dtype and device. One native call updates them all.
type bucket struct {
	dtype   tensor.DType
	device  tensor.Device
	params  []*tensor.Tensor
	masters []*tensor.Tensor   // float32 copies by parameter; nil until the first step, and without MasterWeights
	written []content          // by parameter: what it held once the last step had rounded its copy to it
	state   [][]*tensor.Tensor // by slot, then by parameter; nil until the parameter has had a gradient
	steps   []float64          // by parameter
	full    Batch              // of all parameters, once all have state
	part    Batch              // of some of the parameters with a gradient
	grads   []*tensor.Tensor   // of the current step, by parameter
	parts   [4]bool            // of the current step, by whether gradients are sparse and whether it is the first step
	missing bool               // whether a parameter has no gradient in the current step
}

// content identifies what a tensor holds. A change in place gives it another version. set_data does not, and the data
// may have the same address as before, so that its calls count for all tensors.
type content struct {
	version int
	dataSet int64
}

func contentOf(t *tensor.Tensor) content { return content{t.Version(), handle.DataSet()} }

type place struct {
	b *bucket
	i int
}

func newOptimizer(a *Algorithm, params []*tensor.Tensor, lr float64, opts []Option) (*Optimizer, error) {
	b := &Optimizer{kind: a, init: a.Defaults, seen: map[*tensor.Tensor]bool{}}
	b.init.LR = lr
	if err := a.apply(&b.init, opts); err != nil {
		return nil, err
	}
	if a.whole && b.init.MaxEval == 0 {
		b.init.MaxEval = b.init.MaxIter * 5 / 4
	}
	if err := b.add(params, nil); err != nil {
		return nil, err
	}
	if len(params) == 0 {
		return nil, refuse.Error(a.Name, tensor.ErrArgument, "there are no parameters to optimize")
	}
	return b, nil
}

// AddGroup adds parameters, or none, with their own hyperparameters. Hyperparameters that opts do not set are the
// constructor's. PyTorch: Optimizer.add_param_group.
func (b *Optimizer) AddGroup(params []*tensor.Tensor, opts ...Option) error {
	if b == nil {
		return refuse.Nil("AddGroup", "an optimizer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.add(params, opts)
}

func (b *Optimizer) add(params []*tensor.Tensor, opts []Option) error {
	if b.kind == nil {
		return refuse.Error("AddGroup", tensor.ErrArgument, "the optimizer was not made by its constructor")
	}
	op := b.kind.Name
	g := b.init
	if err := b.kind.apply(&g, opts); err != nil {
		return err
	}
	if why := atLeast0(g.LR); why != "" {
		return refuse.Error(op, tensor.ErrArgument, "LR %s, got %v", why, g.LR)
	}
	if err := b.kind.check(op, &g); err != nil {
		return err
	}
	if b.kind.checkNew != nil {
		if err := b.kind.checkNew(&g); err != nil {
			return refuse.Error(op, tensor.ErrArgument, "%v", err)
		}
	}
	if b.kind.whole && len(b.groups) > 0 {
		return refuse.Error(op, tensor.ErrArgument, "%s has one group of parameters", op)
	}
	g.params = append([]*tensor.Tensor{}, params...)
	g.Params = append([]*tensor.Tensor{}, params...)
	inGroup := make(map[*tensor.Tensor]bool, len(params))
	for i, p := range g.params {
		if err := refuse.Unusable(op, fmt.Sprintf("parameter %d", i), p); err != nil {
			return err
		}
		dtype := p.DType()
		switch {
		case dtype.IsComplex() && b.kind.real:
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is %v: %s takes real ones", i, dtype, op)
		case !dtype.IsFloat() && !dtype.IsComplex():
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is %v: want a floating-point dtype", i, dtype)
		case !p.IsLeaf():
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is not a leaf: %s computed it", i, p.GradFn())
		case p.IsSparse():
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is sparse: want a dense tensor", i)
		case b.seen[p] || inGroup[p]:
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is already in the optimizer", i)
		}
		if b.kind.CheckParam != nil {
			if err := b.kind.CheckParam(p); err != nil {
				return refuse.Error(op, tensor.ErrArgument, "parameter %d %v", i, err)
			}
		}
		inGroup[p] = true
	}
	for _, p := range g.params {
		b.seen[p] = true
		g.put(p, len(b.kind.Slots))
	}
	b.all = append(b.all, g.params...)
	tensor.Track(vram.Weights, g.params...)
	b.groups = append(b.groups, &g)
	return nil
}

// put adds p to the bucket of its dtype and device.
func (g *Group) put(p *tensor.Tensor, slots int) {
	dtype, device := p.DType(), p.Device()
	var home *bucket
	for _, b := range g.buckets {
		if b.dtype == dtype && b.device == device {
			home = b
		}
	}
	if home == nil {
		home = &bucket{dtype: dtype, device: device, state: make([][]*tensor.Tensor, slots)}
		g.buckets = append(g.buckets, home)
	}
	g.at = append(g.at, place{home, len(home.params)})
	home.params = append(home.params, p)
	home.masters = append(home.masters, nil)
	home.written = append(home.written, content{})
	home.steps = append(home.steps, 0)
	home.grads = append(home.grads, nil)
	for s := range home.state {
		home.state[s] = append(home.state[s], nil)
	}
}

// Groups returns the parameter groups, the constructor's first. Their hyperparameters may be changed between steps.
// PyTorch: Optimizer.param_groups.
func (b *Optimizer) Groups() []*Group {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Group{}, b.groups...)
}

// LR returns the learning rate of the first group.
func (b *Optimizer) LR() float64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.groups) == 0 {
		return 0
	}
	return b.groups[0].LR
}

// SetLR sets the learning rate of all groups. The next Step reports a NaN or infinite rate; it accepts a negative one,
// as PyTorch does for a rate that a program sets in param_groups.
func (b *Optimizer) SetLR(lr float64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, g := range b.groups {
		g.LR = lr
	}
}

// ZeroGrad sets the gradients of all parameters to nil. The next Step returns its error, if any. PyTorch:
// Optimizer.zero_grad.
func (b *Optimizer) ZeroGrad() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := tensor.ZeroGrads(b.all, true); err != nil && b.sticky == nil {
		b.sticky = err
	}
}

// Step updates each parameter that has a gradient; the others do not change. Inside cuda.Capture the error is
// tensor.ErrCapture if the algorithm counts its steps (Algorithm.Counts), because every replay would take the step with the
// captured number, or if a parameter's state or float32 copy does not exist, which every replay would make again. RMSprop,
// Adadelta and Rprop compute without the number: only that in their state dict does not count replays.
//
// A step is a change of the parameters in place, with all kernels: a backward pass that needs their values of before the
// step is an error, as with PyTorch's default optimizers. With fused=True PyTorch computes with the new values.
// PyTorch: Optimizer.step.
func (b *Optimizer) Step() error {
	if b == nil {
		return refuse.Nil("Step", "an optimizer")
	}
	return b.stepScaled(0)
}

// stepScaled is Step with gradients in float16 that are to be multiplied by inverse, unless that is 0.
func (b *Optimizer) stepScaled(inverse float64) error {
	if err := b.hooks.run(preStep, b); err != nil {
		return err
	}
	if err := b.lockedStep(inverse); err != nil {
		return err
	}
	return b.hooks.run(postStep, b)
}

func (b *Optimizer) lockedStep(inverse float64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inverse = inverse
	defer func() { b.inverse = 0 }()
	if err := b.ready("Step"); err != nil {
		return err
	}
	defer handle.ForgetCasts(true)
	if b.kind.whole {
		return refuse.Error("Step", tensor.ErrArgument, "%s evaluates the loss several times in a step: use StepClosure", b.kind.Name)
	}
	for _, g := range b.groups {
		if err := b.stepGroup(g); err != nil {
			return err
		}
	}
	return nil
}

// refuseInCapture returns an error, and makes the capture fail also if the program ignores it.
func refuseInCapture(op, format string, args ...any) error {
	cshim.GraphRefuse()
	return refuse.Error(op, tensor.ErrCapture, format, args...)
}

// ready returns the error of an optimizer that cannot step.
func (b *Optimizer) ready(op string) error {
	if b.kind == nil {
		return refuse.Error(op, tensor.ErrArgument, "the optimizer was not made by its constructor")
	}
	if err := b.sticky; err != nil {
		b.sticky = nil
		return err
	}
	if b.kind.Counts && !b.kind.steady && cshim.GraphCapturing() {
		return refuseInCapture(op, "%s computes with the number of the step, and a graph's replays would all have the same", b.kind.Name)
	}
	for _, g := range b.groups {
		if err := b.kind.check(b.kind.Name, g); err != nil {
			return err
		}
	}
	return nil
}

// StepClosure calls closure, which sets the gradients to nil, computes the loss, a scalar, and calls its Backward, and
// then updates the parameters. It returns the loss. LBFGS calls closure several times and returns the first loss. Each
// call runs in a scope, with the recording of gradients enabled. During a step of LBFGS,
// StepClosure and LoadStateDict return an error; if the closure calls Release, StepClosure does. PyTorch:
// Optimizer.step(closure).
func (b *Optimizer) StepClosure(closure func() (*tensor.Tensor, error)) (float64, error) {
	const op = "StepClosure"
	if b == nil {
		return 0, refuse.Nil(op, "an optimizer")
	}
	if closure == nil {
		return 0, refuse.Nil(op, "a closure")
	}
	evaluate := func() (loss float64, err error) {
		err = tensor.WithScope(func() error {
			return autograd.EnableGrad(func() error {
				t, err := closure()
				if err != nil {
					return err
				}
				if err := refuse.Unusable(op, "the closure's loss", t); err != nil {
					return err
				}
				if n := t.Numel(); n != 1 {
					return refuse.Error(op, tensor.ErrArgument, "the closure's loss must be one number, got shape %v", t.Shape())
				}
				loss, err = t.Item()
				return err
			})
		})
		return loss, err
	}
	if err := b.hooks.run(preStep, b); err != nil {
		return 0, err
	}
	if b.kind == nil || !b.kind.whole {
		loss, err := evaluate()
		if err != nil {
			return 0, err
		}
		if err := b.lockedStep(0); err != nil {
			return loss, err
		}
		return loss, b.hooks.run(postStep, b)
	}
	loss, err := b.minimize(evaluate)
	if err != nil {
		return 0, err
	}
	return loss, b.hooks.run(postStep, b)
}

func (b *Optimizer) stepGroup(g *Group) error {
	if b.kind.fast != nil && b.inverse == 0 && !g.MasterWeights && !g.StochasticRounding && b.allStarted(g) && !g.anyComplex() {
		return b.stepFast(g)
	}
	// The scope releases the gradients' handles in one native call.
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error { return b.step(g) })
	})
}

// stepFast steps a group whose parameters all have state. fast checks a bucket itself, but a later one only once the first
// has changed.
func (b *Optimizer) stepFast(g *Group) error {
	for i := 1; i < len(g.buckets); i++ {
		if err := b.checkGrads(g, g.buckets[i]); err != nil {
			return err
		}
	}
	for _, bk := range g.buckets {
		if err := b.kind.fast(g, bk); err != nil {
			if len(g.buckets) > 1 {
				// The number of a parameter in err counts those of the bucket.
				if inGroup := b.checkGrads(g, bk); inGroup != nil {
					return inGroup
				}
			}
			return err
		}
	}
	return nil
}

// checkGrads returns an error if the algorithm cannot step the parameters of a bucket.
func (b *Optimizer) checkGrads(g *Group, bk *bucket) error {
	return tensor.WithScope(func() error {
		grads, err := tensor.Grads(bk.params)
		if err != nil {
			return err
		}
		for i, grad := range grads {
			if grad == nil {
				continue
			}
			if err := b.check(g, place{bk, i}, grad, grad.IsSparse()); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *Optimizer) allStarted(g *Group) bool {
	for _, bk := range g.buckets {
		for i := range bk.params {
			if !b.started(g, bk, i) {
				return false
			}
		}
	}
	return true
}

func (b *Optimizer) step(g *Group) error {
	grads, err := tensor.Grads(g.params)
	if err != nil {
		return err
	}
	for i, at := range g.at {
		at.b.grads[at.i] = grads[i]
	}
	defer func() {
		for _, bk := range g.buckets {
			bk.clear()
		}
	}()
	for _, bk := range g.buckets { // before a parameter of the group changes
		if err := b.divide(g, bk); err != nil {
			return err
		}
	}
	for _, bk := range g.buckets {
		if err := b.stepBucket(g, bk); err != nil {
			return err
		}
	}
	return nil
}

// clear forgets the tensors of a step.
func (bk *bucket) clear() {
	clear(bk.grads)
	clear(bk.part.Grads)
	clear(bk.part.Params)
}

// anyComplex reports whether the group has complex parameters.
func (g *Group) anyComplex() bool {
	for _, bk := range g.buckets {
		if bk.dtype.IsComplex() {
			return true
		}
	}
	return false
}

// halved reports whether the group keeps float32 copies of the bucket's parameters.
func (g *Group) halved(bk *bucket) bool {
	return g.MasterWeights && (bk.dtype == tensor.BFloat16 || bk.dtype == tensor.Float16)
}

// halved reports for each parameter whether its group keeps float32 copies.
func (b *Optimizer) halved() (all []bool) {
	for _, g := range b.groups {
		for _, at := range g.at {
			all = append(all, g.halved(at.b))
		}
	}
	return all
}

// rounds reports whether the group rounds the bucket's parameters stochastically.
func (g *Group) rounds(bk *bucket) bool { return g.StochasticRounding && bk.dtype == tensor.BFloat16 }

// stored returns the tensor that the algorithm updates for a parameter: its float32 copy, for stochastic rounding a new
// one, or the parameter itself.
func (g *Group) stored(bk *bucket, i int) *tensor.Tensor {
	switch m := bk.masters[i]; {
	case m != nil:
		return m
	case g.rounds(bk):
		return bk.params[i].Detach().To(tensor.Float32)
	default:
		return bk.params[i]
	}
}

// divide sets the parts of a step. It returns an error if the algorithm cannot step the parameters.
func (b *Optimizer) divide(g *Group, bk *bucket) error {
	bk.parts, bk.missing = [4]bool{}, false
	for i, grad := range bk.grads {
		if grad == nil {
			bk.missing = true
			continue
		}
		sparse := grad.IsSparse()
		if err := b.check(g, place{bk, i}, grad, sparse); err != nil {
			return err
		}
		bk.parts[which(sparse, !b.started(g, bk, i))] = true
	}
	return nil
}

// check returns an error if the algorithm does not take a parameter's gradient, or if the parameter or the group's
// options have changed so that the gradient, the state or the options do not fit. Kernels for lists broadcast other
// shapes, and fused ones read and write beyond them. At another dtype some fail after they have updated the parameters
// that come before.
func (b *Optimizer) check(g *Group, at place, grad *tensor.Tensor, sparse bool) error {
	if err := b.kind.refuses(g, sparse); err != nil {
		return err
	}
	bk, p := at.b, at.b.params[at.i]
	refused := func(format string, args ...any) error {
		return refuse.Error(b.kind.Name, tensor.ErrArgument, "parameter %d "+format, append([]any{slices.Index(g.params, p)}, args...)...)
	}
	shape, dtype := shapeOf(p)
	gradShape, gradDType := shapeOf(grad)
	if (g.MasterWeights || g.StochasticRounding) && dtype != bk.dtype {
		return refused("is %v and was %v when the optimizer was made: convert parameters before", dtype, bk.dtype)
	}
	if b.inverse != 0 && gradDType == tensor.Float16 && !g.halved(bk) {
		return refused("has a gradient in float16 that is still scaled, and no longer MasterWeights")
	}
	if shape.Dims < 0 || gradShape != shape {
		return refused("has shape %v, its gradient %v", p.Shape(), grad.Shape())
	}
	copied := g.halved(bk) || g.rounds(bk)
	if copied {
		dtype = tensor.Float32 // the algorithm gets copies, also of the gradient
	} else if gradDType != dtype {
		return refused("is %v, its gradient %v", dtype, gradDType)
	}
	misfit := func(name string, t *tensor.Tensor) error {
		return refused("has shape %v, its %s has shape %v, of an earlier step: Release makes the optimizer begin again", p.Shape(), name, t.Shape())
	}
	for i := range bk.state {
		slot, t := &b.kind.Slots[i], bk.state[i][at.i]
		if t == nil || !slot.byShape && slot.Used != nil && !slot.Used(g, p) { // it may be of earlier settings
			continue
		}
		switch shapeFits, dtypeFits := slot.fits(p, shape, dtype, t); {
		case !shapeFits:
			return misfit(slot.Name, t)
		case !dtypeFits && (copied || !slot.promotes || t.DType().IsComplex() != dtype.IsComplex()):
			return refused("needs its %s in %v and has it in %v, of an earlier step: LoadStateDict of the StateDict converts it, "+
				"Release makes the optimizer begin again", slot.Name, dtype, t.DType())
		}
	}
	if m := bk.masters[at.i]; m != nil && !hasShape(m, shape) {
		return misfit("float32 copy", m)
	}
	return nil
}

var shapeOf = handle.ShapeOf.(func(t *tensor.Tensor) (handle.Shape, tensor.DType))

func hasShape(t *tensor.Tensor, shape handle.Shape) bool {
	has, _ := shapeOf(t)
	return has == shape
}

// fits reports whether t, a tensor of the state of p, has the shape that one of p's shape needs, and the dtype.
func (s *Slot) fits(p *tensor.Tensor, shape handle.Shape, dtype tensor.DType, t *tensor.Tensor) (shapeFits, dtypeFits bool) {
	if s.New != nil && !s.sameShape && s.shape == nil {
		return true, true
	}
	has, its := shapeOf(t)
	if s.shape != nil {
		return slices.Equal(t.Shape(), s.shape(p)), its == dtype
	}
	return has == shape, its == dtype
}

func (b *Optimizer) stepBucket(g *Group, bk *bucket) error {
	usual := [4]bool{}
	usual[which(false, false)] = true
	if !bk.missing && bk.parts == usual && !g.halved(bk) && !g.rounds(bk) {
		// In the usual case the lists are those of the previous step.
		if bk.full.Params == nil {
			bk.full = Batch{Params: bk.params, State: bk.state, Steps: bk.steps}
		}
		bk.full.Grads = bk.grads
		count(bk.steps, 1)
		err := b.run(g, &bk.full, false)
		if err != nil {
			count(bk.steps, -1)
		}
		return err
	}
	for _, first := range []bool{true, false} {
		for _, sparse := range []bool{false, true} {
			if !bk.parts[which(sparse, first)] {
				continue
			}
			if err := b.stepPart(g, bk, sparse, first); err != nil {
				return err
			}
		}
	}
	return nil
}

func which(sparse, first bool) int {
	n := 0
	if sparse {
		n |= 1
	}
	if first {
		n |= 2
	}
	return n
}

func count(steps []float64, by float64) {
	for i := range steps {
		steps[i] += by
	}
}

func (b *Optimizer) run(g *Group, batch *Batch, sparse bool) error {
	if err := b.kind.refuses(g, sparse); err != nil {
		return err
	}
	step := b.kind.Step
	if sparse {
		step = b.kind.SparseStep
	} else if batch.Params[0].DType().IsComplex() {
		batch = batch.real()
	}
	g.sparse = g.sparse || sparse
	if err := step(g, batch); err != nil {
		return fmt.Errorf("linstock: %s: %w", b.kind.Name, err)
	}
	return nil
}

// started reports whether the i-th parameter has all the state that the group needs.
func (b *Optimizer) started(g *Group, bk *bucket, i int) bool {
	for s := range bk.state {
		if used := b.kind.Slots[s].Used; bk.state[s][i] == nil && (used == nil || used(g, bk.params[i])) {
			return false
		}
	}
	return true
}

// stepPart steps the parameters that have a sparse or dense gradient: those without state if first, and those with state
// otherwise. A fused kernel cannot take both at once, because is_first_step applies to the whole list.
func (b *Optimizer) stepPart(g *Group, bk *bucket, sparse, first bool) error {
	var at []int
	for i, grad := range bk.grads {
		if grad != nil && b.started(g, bk, i) != first && grad.IsSparse() == sparse {
			at = append(at, i)
		}
	}
	if !g.rounds(bk) {
		return b.stepSome(g, bk, at, sparse, first)
	}
	for len(at) > 0 {
		// The float32 copies of only some parameters exist at a time.
		n, size := 1, bk.params[at[0]].Numel()
		for n < len(at) && size+bk.params[at[n]].Numel() <= roundedTogether {
			size += bk.params[at[n]].Numel()
			n++
		}
		if err := tensor.WithScope(func() error { return b.stepSome(g, bk, at[:n], sparse, first) }); err != nil {
			return err
		}
		at = at[n:]
	}
	return nil
}

// roundedTogether is the number of elements that are rounded stochastically in one go, if there is more than one
// parameter. Their copies and gradients in float32 have 8 bytes an element.
const roundedTogether = 1 << 20

// stepSome steps the parameters with the numbers at.
func (b *Optimizer) stepSome(g *Group, bk *bucket, at []int, sparse, first bool) error {
	part := &bk.part
	part.Params, part.Grads, part.Steps, part.First = part.Params[:0], part.Grads[:0], part.Steps[:0], first
	if part.State == nil {
		part.State = make([][]*tensor.Tensor, len(bk.state))
	}
	for s := range part.State {
		part.State[s] = part.State[s][:0]
	}
	counted := 0
	var made []**tensor.Tensor
	undo := func(err error) error {
		for _, t := range made {
			(*t).Release()
			*t = nil
		}
		for _, i := range at[:counted] {
			bk.steps[i]--
		}
		return err
	}
	rounded := make([]*tensor.Tensor, 0, len(at))
	for _, i := range at {
		if err := g.copyMaster(bk, i, &made); err != nil {
			return undo(err)
		}
		if first {
			if err := b.start(g, bk, i, &made); err != nil {
				return undo(err)
			}
		}
		grad, stored := bk.grads[i], g.stored(bk, i)
		if stored != bk.params[i] {
			scaled := b.inverse != 0 && grad.DType() == tensor.Float16
			grad = grad.To(tensor.Float32)
			if scaled {
				if err := elements(grad).Mul_(b.inverse).Err(); err != nil {
					return undo(err)
				}
			}
		}
		bk.steps[i]++
		counted++
		part.Params, part.Grads, part.Steps = append(part.Params, stored), append(part.Grads, grad), append(part.Steps, bk.steps[i])
		for s := range bk.state {
			part.State[s] = append(part.State[s], bk.state[s][i])
		}
		rounded = append(rounded, bk.params[i])
		// The parts that come next must not step it again.
		bk.grads[i] = nil
	}
	if len(made) > 0 && cshim.GraphCapturing() {
		return undo(refuseInCapture("Step", "a graph's replays would make the optimizer's state again: take the first step before the capture"))
	}
	if err := b.run(g, part, sparse); err != nil {
		return undo(err)
	}
	switch {
	case g.halved(bk):
		var f foreach
		f.do("copy_", rounded, part.Params)
		for _, i := range at {
			bk.written[i] = contentOf(bk.params[i])
		}
		return f.err
	case g.rounds(bk):
		for k, p := range rounded {
			if err := roundStochastic(p, part.Params[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

var roundStochastic = handle.RoundStochastic.(func(to, from *tensor.Tensor) error)

// copyMaster makes the float32 copy of a parameter, if the group keeps one and it does not exist, and adds it to made. If
// the program may have changed or replaced the parameter's data since the copy was rounded to it, the elements that
// differ replace the copy's.
func (g *Group) copyMaster(bk *bucket, i int, made *[]**tensor.Tensor) error {
	m, p := bk.masters[i], bk.params[i]
	switch {
	case !g.halved(bk) || m != nil && bk.written[i] == contentOf(p):
		return nil
	case m != nil:
		return tensor.WithScope(func() error { // one parameter at a time
			p := p.Detach()
			return m.Copy_(tensor.Where(m.To(bk.dtype).Eq(p), m, p.To(tensor.Float32))).Err()
		})
	}
	t, err := kept(p.Detach().To(tensor.Float32))
	if err == nil {
		bk.masters[i] = t
		*made = append(*made, &bk.masters[i])
	}
	return err
}

// start makes the state that a parameter lacks before a step, and adds it to made.
func (b *Optimizer) start(g *Group, bk *bucket, i int, made *[]**tensor.Tensor) error {
	stored := g.stored(bk, i)
	for s := range bk.state {
		slot := &b.kind.Slots[s]
		if bk.state[s][i] != nil || slot.Used != nil && !slot.Used(g, bk.params[i]) {
			continue
		}
		t, err := kept(slot.fresh(g, stored))
		if err != nil {
			return err
		}
		bk.state[s][i] = t
		*made = append(*made, &bk.state[s][i])
	}
	return nil
}

func (s *Slot) fresh(g *Group, p *tensor.Tensor) *tensor.Tensor {
	switch {
	case s.New == nil && s.shape != nil:
		return p.NewZeros(s.shape(p))
	case s.New == nil:
		return p.ZerosLike()
	}
	seen := asReal(p)
	t := s.New(g, seen)
	switch {
	case t == nil:
		return tensor.Failed(refuse.Nil(s.Name, "a tensor"))
	case seen != p && slices.Equal(t.Shape(), seen.Shape()):
		return t.ViewAsComplex()
	}
	return t
}

// kept keeps t after the scope as optimizer state.
func kept(t *tensor.Tensor) (*tensor.Tensor, error) {
	if err := t.Err(); err != nil {
		return nil, err
	}
	tensor.Track(vram.OptimizerState, t)
	return t.Keep(), nil
}

// Release frees the optimizer's state now, except tensors that a State of StateDict still holds. Otherwise the state is
// freed once the optimizer is unreachable. The next Step starts from new state.
func (b *Optimizer) Release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop()
}

func (b *Optimizer) drop() {
	b.drops++
	for _, g := range b.groups {
		for _, bk := range g.buckets {
			bk.full, bk.part = Batch{}, Batch{}
			for i := range bk.params {
				bk.drop(i)
			}
		}
	}
	b.search.drop()
}

// drop frees the state of a parameter.
func (bk *bucket) drop(i int) {
	for s := range bk.state {
		bk.state[s][i].Release()
		bk.state[s][i] = nil
	}
	bk.masters[i].Release()
	bk.masters[i] = nil
	bk.steps[i] = 0
}

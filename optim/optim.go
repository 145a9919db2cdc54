package optim

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Group is a set of parameters that share hyperparameters. An optimizer ignores the fields of other algorithms.
type Group struct {
	Params      []*tensor.Tensor // read only; AddGroup adds parameters
	LR          float64
	WeightDecay float64
	Maximize    bool

	Momentum, Dampening float64 // SGD
	Nesterov            bool    // SGD

	Beta1, Beta2, Eps float64 // Adam, AdamW
	AMSGrad           bool    // Adam, AdamW

	params  []*tensor.Tensor // a copy of Params that the caller cannot change
	buckets []*bucket
	at      []place // where each of params is stored
}

// Option is a keyword argument of a constructor or of AddGroup.
type Option struct {
	name string
	set  func(*Group)
}

// LR sets the learning rate of a group (lr=).
func LR(v float64) Option { return Option{"LR", func(g *Group) { g.LR = v }} }

// WeightDecay sets the weight decay (weight_decay=): 0.01 by default for AdamW, 0 for the others.
func WeightDecay(v float64) Option {
	return Option{"WeightDecay", func(g *Group) { g.WeightDecay = v }}
}

// Maximize makes the optimizer maximize the objective instead of minimizing it (maximize=True).
func Maximize() Option { return Option{"Maximize", func(g *Group) { g.Maximize = true }} }

// Momentum sets SGD's momentum factor (momentum=); 0 by default.
func Momentum(v float64) Option { return Option{"Momentum", func(g *Group) { g.Momentum = v }} }

// Dampening sets SGD's dampening for momentum (dampening=); 0 by default.
func Dampening(v float64) Option { return Option{"Dampening", func(g *Group) { g.Dampening = v }} }

// Nesterov enables Nesterov momentum for SGD (nesterov=True).
func Nesterov() Option { return Option{"Nesterov", func(g *Group) { g.Nesterov = true }} }

// Betas sets the decay rates of Adam's running averages of the gradient and of its square (betas=); 0.9 and 0.999 by
// default.
func Betas(b1, b2 float64) Option {
	return Option{"Betas", func(g *Group) { g.Beta1, g.Beta2 = b1, b2 }}
}

// Eps sets the value added to Adam's denominator (eps=); 1e-8 by default.
func Eps(v float64) Option { return Option{"Eps", func(g *Group) { g.Eps = v }} }

// AMSGrad makes Adam divide by the largest second moment so far (amsgrad=True).
func AMSGrad() Option { return Option{"AMSGrad", func(g *Group) { g.AMSGrad = true }} }

// State is the state of an optimizer in the flat form that a checkpoint stores: tensors under names such as
// "state.3.exp_avg" (of the fourth parameter, counted across groups) and numbers under names such as "group.0.lr". The
// tensors are the optimizer's own, not copies.
type State struct {
	Tensors map[string]*tensor.Tensor
	Numbers map[string]float64
}

// kind describes an optimization algorithm.
type kind struct {
	name     string
	options  []string
	slots    []string // names of the state tensors, as in PyTorch
	defaults Group
	// needs reports whether a group uses the given slot.
	needs func(g *Group, slot int) bool
	// run makes the native calls for the lists of a bucket.
	run func(g *Group, l *lists) error
	// fast steps a bucket whose parameters all have state, in one native call that reads the gradients itself. It is
	// nil if there is no such call.
	fast func(g *Group, bk *bucket) error
}

// Optimizer updates parameters from their gradients. NewSGD, NewAdam and NewAdamW return one. Its methods may be called
// from several goroutines; they run one at a time. PyTorch: torch.optim.Optimizer.
type Optimizer struct {
	kind   *kind
	mu     sync.Mutex
	groups []*Group
	init   Group // the constructor's hyperparameters
	sticky error
	seen   map[*tensor.Tensor]bool
	all    []*tensor.Tensor
}

// bucket holds the parameters of a group that have the same dtype and device. One native call updates them all.
type bucket struct {
	dtype  tensor.DType
	device tensor.Device
	params []*tensor.Tensor
	state  [][]*tensor.Tensor // by slot, then by parameter; nil until the parameter has had a gradient
	full   lists              // of all parameters, once all have state
	part   lists              // of the parameters with a gradient
	grads  []*tensor.Tensor   // of the current step, by parameter
}

type place struct {
	b *bucket
	i int
}

// lists holds the arguments of a native call; equal indices belong to the same parameter.
type lists struct {
	params, grads []*tensor.Tensor
	state         [][]*tensor.Tensor
	first         bool // no parameter in the lists has been stepped before
}

func newOptimizer(k *kind, params []*tensor.Tensor, lr float64, opts []Option) (*Optimizer, error) {
	b := &Optimizer{kind: k, init: k.defaults, seen: map[*tensor.Tensor]bool{}}
	b.init.LR = lr
	if err := apply(k, &b.init, opts); err != nil {
		return nil, err
	}
	if err := b.add(params, nil); err != nil {
		return nil, err
	}
	return b, nil
}

func apply(k *kind, g *Group, opts []Option) error {
	for _, o := range opts {
		if o.set == nil {
			return refuse.Error(k.name, tensor.ErrArgument, "an option is empty")
		}
		if known := append([]string{"LR", "WeightDecay", "Maximize"}, k.options...); !slices.Contains(known, o.name) {
			return refuse.Error(k.name, tensor.ErrArgument, "%s", options.Unknown(k.name, o.name, known))
		}
		o.set(g)
	}
	return nil
}

// check returns an error for hyperparameters that PyTorch rejects.
func (g *Group) check(op string) error {
	atLeast0 := []struct {
		name string
		v    float64
	}{{"LR", g.LR}, {"WeightDecay", g.WeightDecay}, {"Momentum", g.Momentum}, {"Eps", g.Eps}}
	for _, h := range atLeast0 {
		if !(h.v >= 0) || math.IsInf(h.v, 0) {
			return refuse.Error(op, tensor.ErrArgument, "%s must be finite and at least 0, got %v", h.name, h.v)
		}
	}
	if math.IsNaN(g.Dampening) || math.IsInf(g.Dampening, 0) {
		return refuse.Error(op, tensor.ErrArgument, "Dampening must be finite, got %v", g.Dampening)
	}
	if g.Nesterov && (g.Momentum == 0 || g.Dampening != 0) {
		return refuse.Error(op, tensor.ErrArgument, "Nesterov requires a positive Momentum and zero Dampening")
	}
	if !(g.Beta1 >= 0 && g.Beta1 < 1 && g.Beta2 >= 0 && g.Beta2 < 1) {
		return refuse.Error(op, tensor.ErrArgument, "Betas must be in [0, 1), got %v and %v", g.Beta1, g.Beta2)
	}
	return nil
}

// AddGroup adds parameters with their own hyperparameters. Hyperparameters that opts do not set are the constructor's.
// PyTorch: Optimizer.add_param_group.
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
	op := b.kind.name
	g := b.init
	if err := apply(b.kind, &g, opts); err != nil {
		return err
	}
	if err := g.check(op); err != nil {
		return err
	}
	if len(params) == 0 {
		return refuse.Error(op, tensor.ErrArgument, "there are no parameters to optimize")
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
		case !dtype.IsFloat():
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is %v: want a floating-point dtype", i, dtype)
		case !p.IsLeaf():
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is not a leaf: %s computed it", i, p.GradFn())
		case b.seen[p] || inGroup[p]:
			return refuse.Error(op, tensor.ErrArgument, "parameter %d is already in the optimizer", i)
		}
		inGroup[p] = true
	}
	for _, p := range g.params {
		b.seen[p] = true
		g.put(p, len(b.kind.slots))
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

// SetLR sets the learning rate of all groups. An invalid rate is reported by the next Step.
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

// Step updates each parameter that has a gradient; the others do not change. PyTorch: Optimizer.step.
func (b *Optimizer) Step() error {
	if b == nil {
		return refuse.Nil("Step", "an optimizer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kind == nil {
		return refuse.Error("Step", tensor.ErrArgument, "the optimizer was not made by its constructor")
	}
	if err := b.sticky; err != nil {
		b.sticky = nil
		return err
	}
	for _, g := range b.groups {
		if err := g.check(b.kind.name); err != nil {
			return err
		}
	}
	for _, g := range b.groups {
		if err := b.stepGroup(g); err != nil {
			return err
		}
	}
	return nil
}

func (b *Optimizer) stepGroup(g *Group) error {
	if b.kind.fast != nil && b.allStarted(g) {
		for _, bk := range g.buckets {
			if err := b.kind.fast(g, bk); err != nil {
				return err
			}
		}
		return nil
	}
	// The scope releases the gradients' handles in one native call.
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error { return b.step(g) })
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
			clear(bk.grads)
			clear(bk.part.grads)
		}
	}()
	for _, bk := range g.buckets {
		if err := b.stepBucket(g, bk); err != nil {
			return err
		}
	}
	return nil
}

func (b *Optimizer) stepBucket(g *Group, bk *bucket) error {
	fresh, stepped, missing := false, false, false
	for i, grad := range bk.grads {
		switch {
		case grad == nil:
			missing = true
		case b.started(g, bk, i):
			stepped = true
		default:
			fresh = true
		}
	}
	if !fresh && !missing && stepped {
		// In the usual case the lists are those of the previous step.
		if bk.full.params == nil {
			bk.full = lists{params: bk.params, state: bk.state}
		}
		bk.full.grads = bk.grads
		return b.kind.run(g, &bk.full)
	}
	for _, first := range []bool{true, false} {
		if first && !fresh || !first && !stepped {
			continue
		}
		if err := b.stepPart(g, bk, first); err != nil {
			return err
		}
	}
	return nil
}

// started reports whether the i-th parameter has all the state that the group needs.
func (b *Optimizer) started(g *Group, bk *bucket, i int) bool {
	for s := range bk.state {
		if b.kind.needs(g, s) && bk.state[s][i] == nil {
			return false
		}
	}
	return true
}

// stepPart steps the parameters that have a gradient: those without state if first, and those with state otherwise. A
// fused kernel cannot take both at once, because is_first_step applies to the whole list.
func (b *Optimizer) stepPart(g *Group, bk *bucket, first bool) error {
	part := &bk.part
	part.params, part.grads, part.first = part.params[:0], part.grads[:0], first
	if part.state == nil {
		part.state = make([][]*tensor.Tensor, len(bk.state))
	}
	for s := range part.state {
		part.state[s] = part.state[s][:0]
	}
	var fresh []int
	for i, grad := range bk.grads {
		if grad == nil || b.started(g, bk, i) == first {
			continue
		}
		for s := range bk.state {
			if b.kind.needs(g, s) && bk.state[s][i] == nil {
				t, err := b.fresh(s, bk.params[i])
				if err != nil {
					return err
				}
				bk.state[s][i] = t
			}
		}
		part.params, part.grads = append(part.params, bk.params[i]), append(part.grads, grad)
		for s := range bk.state {
			part.state[s] = append(part.state[s], bk.state[s][i])
		}
		if first {
			fresh = append(fresh, i)
			// stepPart(false), which comes next, must not step it again.
			bk.grads[i] = nil
		}
	}
	err := b.kind.run(g, part)
	clear(part.params)
	if err != nil {
		// Drop the state of parameters whose first step failed.
		for _, i := range fresh {
			for s := range bk.state {
				bk.state[s][i].Release()
				bk.state[s][i] = nil
			}
		}
	}
	return err
}

// fresh returns the state of a parameter before its first step.
func (b *Optimizer) fresh(slot int, p *tensor.Tensor) (*tensor.Tensor, error) {
	var t *tensor.Tensor
	if b.kind.slots[slot] == "step" {
		t = tensor.Zeros([]int{}, tensor.Float32, p.Device())
	} else {
		t = p.ZerosLike()
	}
	if err := t.Err(); err != nil {
		return nil, err
	}
	tensor.Track(vram.OptimizerState, t)
	return t.Keep(), nil
}

// Release frees the optimizer's state now. Without it the state is freed once the optimizer is unreachable. The next
// Step starts from new state.
func (b *Optimizer) Release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop()
}

func (b *Optimizer) drop() {
	for _, g := range b.groups {
		for _, bk := range g.buckets {
			bk.full, bk.part = lists{}, lists{}
			for s := range bk.state {
				for i, t := range bk.state[s] {
					t.Release()
					bk.state[s][i] = nil
				}
			}
		}
	}
}

// numbers returns the hyperparameters of a group by name.
func (g *Group) numbers() map[string]*float64 {
	return map[string]*float64{"lr": &g.LR, "weight_decay": &g.WeightDecay, "momentum": &g.Momentum,
		"dampening": &g.Dampening, "beta1": &g.Beta1, "beta2": &g.Beta2, "eps": &g.Eps}
}

func (g *Group) flags() map[string]*bool {
	return map[string]*bool{"maximize": &g.Maximize, "nesterov": &g.Nesterov, "amsgrad": &g.AMSGrad}
}

// StateDict returns the optimizer's state and hyperparameters, for a checkpoint. PyTorch: Optimizer.state_dict.
func (b *Optimizer) StateDict() State {
	s := State{map[string]*tensor.Tensor{}, map[string]float64{}}
	if b == nil {
		return s
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for gi, g := range b.groups {
		for name, v := range g.numbers() {
			s.Numbers[fmt.Sprintf("group.%d.%s", gi, name)] = *v
		}
		for name, v := range g.flags() {
			s.Numbers[fmt.Sprintf("group.%d.%s", gi, name)] = 0
			if *v {
				s.Numbers[fmt.Sprintf("group.%d.%s", gi, name)] = 1
			}
		}
		s.Numbers[fmt.Sprintf("group.%d.params", gi)] = float64(len(g.params))
		for _, at := range g.at {
			for slot, name := range b.kind.slots {
				if t := at.b.state[slot][at.i]; t != nil {
					s.Tensors[fmt.Sprintf("state.%d.%s", n, name)] = t
				}
			}
			n++
		}
	}
	return s
}

// LoadStateDict copies a state that StateDict returned for an optimizer of the same kind over the same parameters.
// Training then continues with the same bits as if it had not been interrupted. If LoadStateDict returns an error, it
// has changed nothing. PyTorch: Optimizer.load_state_dict.
func (b *Optimizer) LoadStateDict(s State) error {
	if b == nil {
		return refuse.Nil("LoadStateDict", "an optimizer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error { return b.load(s) })
	})
}

func (b *Optimizer) load(s State) error {
	const op = "LoadStateDict"
	left := len(s.Tensors)
	groups := make([]Group, len(b.groups))
	var fresh []*tensor.Tensor // in the order of groups, parameters and slots; nil if there is none
	n := 0
	for gi, g := range b.groups {
		groups[gi] = *g
		if want := s.Numbers[fmt.Sprintf("group.%d.params", gi)]; want != float64(len(g.params)) {
			return refuse.Error(op, tensor.ErrArgument, "group %d has %d parameters, the state's has %v", gi, len(g.params), want)
		}
		for name, v := range groups[gi].numbers() {
			if got, ok := s.Numbers[fmt.Sprintf("group.%d.%s", gi, name)]; ok {
				*v = got
			}
		}
		for name, v := range groups[gi].flags() {
			if got, ok := s.Numbers[fmt.Sprintf("group.%d.%s", gi, name)]; ok {
				*v = got != 0
			}
		}
		if err := groups[gi].check(op); err != nil {
			return err
		}
		for pi, p := range g.params {
			for slot, name := range b.kind.slots {
				t, err := b.restored(s, n, slot, name, p)
				if err != nil {
					return fmt.Errorf("group %d, parameter %d: %w", gi, pi, err)
				}
				if t != nil {
					left--
				}
				fresh = append(fresh, t)
			}
			n++
		}
	}
	if _, more := s.Numbers[fmt.Sprintf("group.%d.params", len(b.groups))]; more || left != 0 {
		return refuse.Error(op, tensor.ErrArgument, "the state does not match the optimizer: %d tensors of the state are unused, the optimizer has %d groups", left, len(b.groups))
	}
	b.drop()
	next := 0
	for gi, g := range b.groups {
		for name, v := range groups[gi].numbers() {
			*g.numbers()[name] = *v
		}
		for name, v := range groups[gi].flags() {
			*g.flags()[name] = *v
		}
		for _, at := range g.at {
			for slot := range b.kind.slots {
				if t := fresh[next]; t != nil {
					at.b.state[slot][at.i] = t.Keep()
				}
				next++
			}
		}
	}
	return nil
}

// restored returns a copy of a state tensor, with the dtype and device that the optimizer uses for p, or nil if the
// state has none.
func (b *Optimizer) restored(s State, n, slot int, name string, p *tensor.Tensor) (*tensor.Tensor, error) {
	src, ok := s.Tensors[fmt.Sprintf("state.%d.%s", n, name)]
	if !ok {
		return nil, nil
	}
	t, err := b.fresh(slot, p)
	if err != nil {
		return nil, err
	}
	if scope := tensor.CurrentScope(); scope != nil {
		if err := scope.Adopt(t); err != nil { // until the whole state has been checked
			return nil, err
		}
	}
	if have, want := src.Shape(), t.Shape(); fmt.Sprint(have) != fmt.Sprint(want) {
		return nil, refuse.Error("LoadStateDict", tensor.ErrArgument, "%s has shape %v, the parameter needs %v", name, have, want)
	}
	return t, t.Copy_(src).Err()
}

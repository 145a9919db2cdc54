package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

var lbfgs = &Algorithm{
	Name: "LBFGS",
	Options: []string{"max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn",
		"maximize"},
	Defaults: Group{MaxIter: 20, ToleranceGrad: 1e-7, ToleranceChange: 1e-9, HistorySize: 100},
	Check: func(g *Group) error {
		if g.LineSearchFn != "" && g.LineSearchFn != "strong_wolfe" {
			return fmt.Errorf("LineSearchFn must be strong_wolfe or empty, got %q", g.LineSearchFn)
		}
		return nil
	},
	CheckParam: undivided,
	whole:      true,
}

// NewLBFGS returns an optimizer that runs L-BFGS, a quasi-Newton method for whole batches; PyTorch's default learning rate
// is 1. It steps by StepClosure, has one group, and keeps HistorySize + 1 copies of all parameters. For bfloat16 and
// float16 parameters it computes step lengths in float32, where PyTorch rounds them to the parameters' dtype. Options:
// MaxIter, MaxEval, ToleranceGrad, ToleranceChange, HistorySize, LineSearchFn, Maximize. PyTorch: torch.optim.LBFGS.
func NewLBFGS(params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	return newOptimizer(lbfgs, params, lr, append([]Option{}, opts...))
}

// scalar is a number of PyTorch's LBFGS: a Python float, or the value of a tensor with one element. Arithmetic with a
// tensor has the tensor's precision, but for 16-bit tensors that of float32.
type scalar struct {
	v      float64
	single bool // a tensor of at most 32 bits
	tensor bool // a tensor of either dtype, which Python's float becomes when it meets one
}

func float(v float64) scalar { return scalar{v: v} }

// join returns the operands and what their result is.
func join(a, b scalar) (x, y float64, kind scalar) {
	kind = scalar{single: a.single || b.single, tensor: a.tensor || b.tensor}
	x, y = a.v, b.v
	if kind.single {
		x, y = float64(float32(x)), float64(float32(y))
	}
	return x, y, kind
}

func (s scalar) of(v float64) scalar {
	if s.single {
		v = float64(float32(v))
	}
	s.v = v
	return s
}

func (a scalar) add(b scalar) scalar  { x, y, k := join(a, b); return k.of(x + y) }
func (a scalar) sub(b scalar) scalar  { x, y, k := join(a, b); return k.of(x - y) }
func (a scalar) mul(b scalar) scalar  { x, y, k := join(a, b); return k.of(x * y) }
func (a scalar) abs() scalar          { return a.of(math.Abs(a.v)) }
func (a scalar) less(b scalar) bool   { x, y, _ := join(a, b); return x < y }
func (a scalar) atMost(b scalar) bool { x, y, _ := join(a, b); return x <= y }

// sqrt returns the square root with libtorch's rounding.
func (a scalar) sqrt() scalar {
	dtype := tensor.Float64
	if a.single {
		dtype = tensor.Float32
	}
	root := math.Sqrt(a.v)
	_ = tensor.WithScope(func() error {
		v, err := tensor.Full([]int{}, a.v, dtype).Sqrt().Item()
		if err == nil {
			root = v
		}
		return err
	})
	return a.of(root)
}

// div returns a/b. PyTorch divides a float by a tensor as reciprocal times float.
func (a scalar) div(b scalar) scalar {
	x, y, k := join(a, b)
	if b.tensor && !a.tensor {
		return k.of(k.of(1/y).v * x)
	}
	return k.of(x / y)
}

func least(a, b scalar) scalar {
	if b.less(a) {
		return b
	}
	return a
}

func most(a, b scalar) scalar {
	if a.less(b) {
		return b
	}
	return a
}

// search is the state of LBFGS.
type search struct {
	evals, iters int
	d, prevGrad  *tensor.Tensor
	t, diag      scalar
	dirs, steps  []*tensor.Tensor
	ro           []scalar
	al           []scalar
	prevLoss     float64
	started      bool
}

func (s *search) drop() {
	for _, t := range append(append([]*tensor.Tensor{s.d, s.prevGrad}, s.dirs...), s.steps...) {
		t.Release()
	}
	*s = search{}
}

// keep keeps t after the scope.
func keepAll(ts ...*tensor.Tensor) error {
	for _, t := range ts {
		if err := t.Err(); err != nil {
			return err
		}
		t.Keep()
	}
	tensor.Track(vram.OptimizerState, ts...)
	return nil
}

// flat works on all parameters as one vector.
type flat struct {
	b        *Optimizer
	g        *Group
	params   []*tensor.Tensor // complex ones as real numbers
	evaluate func() (float64, error)
	err      error
}

func (f *flat) fail(err error) {
	if f.err == nil {
		f.err = err
	}
}

// tidy runs fn in a scope of its own: what it makes and does not keep is freed before the closure is called again.
func (f *flat) tidy(fn func()) {
	if err := tensor.WithScope(func() error { fn(); return nil }); err != nil {
		f.fail(err)
	}
}

// item returns the value of a tensor with one element.
func (f *flat) item(compute func() *tensor.Tensor) (s scalar) {
	f.tidy(func() {
		t := compute()
		v, err := t.Item()
		if err != nil {
			f.fail(err)
		}
		s = scalar{v: v, tensor: true, single: t.DType() != tensor.Float64}
	})
	return s
}

func (f *flat) dot(a, b *tensor.Tensor) scalar {
	return f.item(func() *tensor.Tensor { return a.Dot(b) })
}

func (f *flat) largest(t *tensor.Tensor) scalar {
	return f.item(func() *tensor.Tensor { return t.Abs().Max() })
}

// loss evaluates the closure without the optimizer's lock, because the closure calls ZeroGrad.
func (f *flat) loss() float64 {
	if f.err != nil {
		return 0
	}
	drops := f.b.drops
	v, err := func() (float64, error) {
		f.b.mu.Unlock()
		defer f.b.mu.Lock() // also if the closure panics
		return f.evaluate()
	}()
	if err == nil && f.b.drops != drops {
		err = refuse.Error("StepClosure", tensor.ErrArgument, "the optimizer was released while its closure ran")
	}
	if err != nil {
		f.fail(err)
	}
	if f.g.Maximize {
		v = -v
	}
	return v
}

// grad returns the gradients of all parameters in one vector.
func (f *flat) grad() *tensor.Tensor {
	all := tensor.Tidy(f.gathered)
	f.fail(all.Err())
	return all
}

func (f *flat) gathered() *tensor.Tensor {
	grads, err := tensor.Grads(f.g.params)
	if err != nil {
		return tensor.Failed(err)
	}
	views := make([]*tensor.Tensor, len(grads))
	for i, g := range grads {
		shape, _ := shapeOf(f.g.params[i])
		switch {
		case g == nil:
			views[i] = f.params[i].Detach().ZerosLike().Reshape(-1)
		case shape.Dims < 0 || !hasShape(g, shape):
			return refuse.Tensor("LBFGS", tensor.ErrArgument, "parameter %d has shape %v, its gradient %v", i, f.g.params[i].Shape(), g.Shape())
		case g.IsSparse():
			views[i] = asReal(g.ToDense()).Reshape(-1)
		default:
			views[i] = asReal(g.ResolveConj()).Reshape(-1)
		}
	}
	all := tensor.Cat(views)
	if f.g.Maximize {
		all = all.Neg()
	}
	return all
}

// move adds t times d to the parameters.
func (f *flat) move(t scalar, d *tensor.Tensor) {
	f.tidy(func() { // the views would keep d's storage
		at := 0
		for _, p := range f.params {
			n := p.Numel()
			f.fail(p.Add_(d.Narrow(0, at, n).ViewAs(p), tensor.Alpha(t.v)).Err())
			at += n
		}
	})
}

// try returns loss and gradient at a distance t along d, and leaves the parameters at x.
func (f *flat) try(x []*tensor.Tensor, t scalar, d *tensor.Tensor) (float64, *tensor.Tensor) {
	f.move(t, d)
	loss := f.loss()
	grad := f.grad()
	for i, p := range f.params {
		f.fail(p.Copy_(x[i]).Err())
	}
	return loss, grad
}

// inStep returns the error of op, called during a step of LBFGS.
func (b *Optimizer) inStep(op string) error {
	return refuse.Error(op, tensor.ErrArgument, "a step of the optimizer is running: its closure and other goroutines cannot call %s meanwhile", op)
}

// minimize takes a step of LBFGS.
func (b *Optimizer) minimize(evaluate func() (float64, error)) (first float64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		return 0, b.inStep("StepClosure")
	}
	b.busy = true
	defer func() { b.busy = false }()
	if err := b.ready("StepClosure"); err != nil {
		return 0, err
	}
	if len(b.groups) == 0 {
		return 0, refuse.Error("StepClosure", tensor.ErrArgument, "the optimizer has no parameters")
	}
	finished := false
	defer func() {
		if !finished {
			b.search.drop() // tensors of an unfinished step may be gone
		}
	}()
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			f := &flat{b: b, g: b.groups[0], params: allReal(b.groups[0].params), evaluate: evaluate}
			first = f.step(&b.search)
			return f.err
		})
	})
	if err != nil {
		return 0, err
	}
	finished = true
	return first, nil
}

func (f *flat) step(s *search) (first float64) {
	g := f.g
	loss := f.loss()
	first = loss
	if g.Maximize {
		first = -loss
	}
	evals := 1
	s.evals++
	grad := f.grad()
	if f.err != nil || f.largest(grad).atMost(float(g.ToleranceGrad)) {
		return first
	}
	if s.started && s.prevGrad.Numel() != grad.Numel() {
		f.fail(errors.New("linstock: LBFGS: the parameters changed their sizes"))
		return first
	}
	for n := 1; n <= g.MaxIter && f.err == nil; n++ {
		s.iters++
		if s.iters == 1 || !s.started {
			s.replace(&s.d, grad.Neg(), f)
			s.diag = float(1)
		} else {
			f.tidy(func() { f.direction(s, grad) })
		}
		if s.prevGrad == nil {
			s.replace(&s.prevGrad, grad.Clone(), f)
		} else {
			f.fail(s.prevGrad.Copy_(grad).Err())
		}
		s.started = true
		s.prevLoss = loss
		s.t = float(g.LR)
		if s.iters == 1 {
			s.t = least(float(1), float(1).div(f.item(func() *tensor.Tensor { return grad.Abs().Sum() }))).mul(float(g.LR))
		}
		slope := f.dot(grad, s.d)
		if f.err != nil || float(-g.ToleranceChange).less(slope) {
			break
		}
		used, optimal, old := 0, false, grad
		if g.LineSearchFn != "" {
			x := make([]*tensor.Tensor, len(f.params))
			for i, p := range f.params {
				x[i] = p.Detach().Clone()
			}
			loss, grad, s.t, used = f.strongWolfe(x, s.t, s.d, loss, grad, slope, g.MaxEval-evals)
			for _, t := range x {
				t.Release()
			}
			f.move(s.t, s.d)
			optimal = f.largest(grad).atMost(float(g.ToleranceGrad))
		} else {
			f.move(s.t, s.d)
			if n != g.MaxIter {
				loss = f.loss()
				grad = f.grad()
				optimal = f.largest(grad).atMost(float(g.ToleranceGrad))
				used = 1
			}
		}
		if grad != old {
			old.Release()
		}
		evals += used
		s.evals += used
		if n == g.MaxIter || evals >= g.MaxEval || optimal ||
			f.item(func() *tensor.Tensor { return f.times(s.d, s.t).Abs().Max() }).atMost(float(g.ToleranceChange)) ||
			math.Abs(loss-s.prevLoss) < g.ToleranceChange {
			break
		}
	}
	return first
}

// times returns d*t.
func (f *flat) times(d *tensor.Tensor, t scalar) *tensor.Tensor { return d.Mul(t.v) }

// replace puts t, which is kept, in place of an old tensor.
func (s *search) replace(at **tensor.Tensor, t *tensor.Tensor, f *flat) {
	if err := keepAll(t); err != nil {
		f.fail(err)
		return
	}
	old := *at
	*at = t
	old.Release()
}

// direction updates the history, and sets the direction to the approximate inverse Hessian times the gradient.
func (f *flat) direction(s *search, grad *tensor.Tensor) {
	y, step := grad.Sub(s.prevGrad), f.times(s.d, s.t)
	ys := f.dot(y, step)
	if float(1e-10).less(ys) {
		if len(s.dirs) >= f.g.HistorySize {
			s.dirs[0].Release()
			s.steps[0].Release()
			s.dirs, s.steps, s.ro = s.dirs[1:], s.steps[1:], s.ro[1:]
		}
		if err := keepAll(y, step); err != nil {
			f.fail(err)
			return
		}
		s.dirs, s.steps, s.ro = append(s.dirs, y), append(s.steps, step), append(s.ro, float(1).div(ys))
		s.diag = ys.div(f.dot(y, y))
	}
	if len(s.al) < len(s.dirs) {
		s.al = append(s.al, make([]scalar, len(s.dirs)-len(s.al))...)
	}
	q := grad.Neg()
	for i := len(s.dirs) - 1; i >= 0; i-- {
		s.al[i] = f.dot(s.steps[i], q).mul(s.ro[i])
		q.Add_(s.dirs[i], tensor.Alpha(-s.al[i].v))
	}
	r := q.Mul(s.diag.v)
	for i := range s.dirs {
		be := f.dot(s.dirs[i], r).mul(s.ro[i])
		r.Add_(s.steps[i], tensor.Alpha(s.al[i].sub(be).v))
	}
	s.replace(&s.d, r, f)
}

// point is a point of a line search: distance, loss, gradient and slope.
type point struct {
	t     scalar
	f     float64
	g     *tensor.Tensor
	slope scalar
}

// cubic returns the minimum of the cubic through two points, within bounds.
func cubic(a, b point, low, high scalar) scalar {
	x1, f1, g1, x2, f2, g2 := a.t, float(a.f), a.slope, b.t, float(b.f), b.slope
	d1 := g1.add(g2).sub(float(3).mul(f1.sub(f2)).div(x1.sub(x2)))
	square := d1.mul(d1).sub(g1.mul(g2))
	if !float(0).atMost(square) {
		return low.add(high).div(float(2))
	}
	d2 := square.sqrt()
	var at scalar
	if x1.atMost(x2) {
		at = x2.sub(x2.sub(x1).mul(g2.add(d2).sub(d1).div(g2.sub(g1).add(float(2).mul(d2)))))
	} else {
		at = x1.sub(x1.sub(x2).mul(g1.add(d2).sub(d1).div(g1.sub(g2).add(float(2).mul(d2)))))
	}
	return least(most(at, low), high)
}

// strongWolfe returns loss, gradient and distance of a point along d that satisfies the strong Wolfe conditions, and the
// number of evaluations.
func (f *flat) strongWolfe(x []*tensor.Tensor, t scalar, d *tensor.Tensor, loss float64, grad *tensor.Tensor, slope scalar, limit int) (float64, *tensor.Tensor, scalar, int) {
	const c1, c2, tolerance = 1e-4, 0.9, 1e-9
	norm := f.largest(d)
	try := func(t scalar) point {
		l, g := f.try(x, t, d)
		return point{t, l, g, f.dot(g, d)}
	}
	tooHigh := func(p point) bool {
		return float(loss).add(float(c1).mul(p.t).mul(slope)).less(float(p.f))
	}
	flatEnough := func(p point) bool { return p.slope.abs().atMost(float(-c2).mul(slope)) }

	// free releases the gradients of points that are not needed any more. The caller releases start's.
	free := func(points []point, needed ...point) {
		for _, p := range points {
			if p.g != grad && !slices.ContainsFunc(needed, func(n point) bool { return n.g == p.g }) {
				p.g.Release()
			}
		}
	}

	start := point{float(0), loss, grad, slope}
	now, before := try(t), start
	evals, n, done := 1, 0, false
	var bracket []point
	for n < limit && f.err == nil {
		if tooHigh(now) || n > 1 && now.f >= before.f {
			bracket = []point{before, now}
			break
		}
		if flatEnough(now) {
			bracket, done = []point{now}, true
			break
		}
		if float(0).atMost(now.slope) {
			bracket = []point{before, now}
			break
		}
		low := now.t.add(float(0.01).mul(now.t.sub(before.t)))
		next := cubic(before, now, low, now.t.mul(float(10)))
		free([]point{before})
		before = now
		now = try(next)
		evals++
		n++
	}
	if bracket == nil {
		bracket = []point{start, now}
	}
	free([]point{before}, bracket...)
	low, high := 0, len(bracket)-1
	if high > 0 && !(bracket[0].f <= bracket[1].f) { // also where a loss is NaN
		low, high = 1, 0
	}
	stuck := false
	for !done && n < limit && f.err == nil {
		a, b := bracket[0], bracket[1]
		if b.t.sub(a.t).abs().mul(norm).less(float(tolerance)) {
			break
		}
		from, to := least(a.t, b.t), most(a.t, b.t)
		t := cubic(a, b, from, to)
		eps := float(0.1).mul(to.sub(from))
		if least(to.sub(t), t.sub(from)).less(eps) {
			if stuck || to.atMost(t) || t.atMost(from) {
				if t.sub(to).abs().less(t.sub(from).abs()) {
					t = to.sub(eps)
				} else {
					t = from.add(eps)
				}
				stuck = false
			} else {
				stuck = true
			}
		} else {
			stuck = false
		}
		now = try(t)
		evals++
		n++
		if tooHigh(now) || now.f >= bracket[low].f {
			free([]point{bracket[high]}, bracket[low])
			bracket[high] = now
			low, high = 0, 1
			if !(bracket[0].f <= bracket[1].f) {
				low, high = 1, 0
			}
			continue
		}
		if flatEnough(now) {
			done = true
		} else if float(0).atMost(now.slope.mul(bracket[high].t.sub(bracket[low].t))) {
			bracket[low], bracket[high] = bracket[high], bracket[low]
		}
		free([]point{bracket[low]}, bracket[high])
		bracket[low] = now
	}
	best := bracket[low]
	free(bracket, best)
	return best.f, best.g, best.t, evals
}

// state returns LBFGS's state as PyTorch stores it, or nil before the first step.
func (s *search) state() map[string]any {
	if s.evals == 0 {
		return nil
	}
	out := map[string]any{"func_evals": s.evals, "n_iter": s.iters}
	if !s.started {
		return out
	}
	numbers := func(ss []scalar) []any {
		list := make([]any, len(ss))
		for i, v := range ss {
			list[i] = v.v
		}
		return list
	}
	lend := func(ts []*tensor.Tensor) []any {
		list := make([]any, len(ts))
		for i, t := range ts {
			list[i] = lent(t)
		}
		return list
	}
	out["d"], out["t"], out["H_diag"] = lent(s.d), s.t.v, s.diag.v
	out["old_dirs"], out["old_stps"], out["ro"] = lend(s.dirs), lend(s.steps), numbers(s.ro)
	out["prev_flat_grad"], out["prev_loss"] = lent(s.prevGrad), s.prevLoss
	return out
}

// restoredSearch copies LBFGS's state. Without values it only checks that the state fits.
func (b *Optimizer) restoredSearch(state map[string]any, values bool) (s search, err error) {
	if b.kind == nil || !b.kind.whole || state == nil {
		return s, nil
	}
	bad := func(name string) error {
		return refuse.Error("LoadStateDict", tensor.ErrArgument, "LBFGS: %s is %v", name, state[name])
	}
	var ok bool
	if s.evals, ok = intOf(state["func_evals"]); !ok || s.evals < 0 {
		return s, bad("func_evals")
	}
	if s.iters, ok = intOf(state["n_iter"]); !ok || s.iters < 0 {
		return s, bad("n_iter")
	}
	if state["d"] == nil {
		return s, nil
	}
	size, dtype := b.flatSize()
	like := func(v any) (*tensor.Tensor, error) {
		return flatLike(v, size, dtype, b.groups[0].params[0].Device(), values)
	}
	var kept []*tensor.Tensor
	for name, to := range map[string]**tensor.Tensor{"d": &s.d, "prev_flat_grad": &s.prevGrad} {
		if *to, err = like(state[name]); err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		kept = append(kept, *to)
	}
	for name, to := range map[string]*[]*tensor.Tensor{"old_dirs": &s.dirs, "old_stps": &s.steps} {
		list, ok := listOf(state[name])
		if !ok {
			return s, bad(name)
		}
		for _, v := range list {
			t, err := like(v)
			if err != nil {
				return s, fmt.Errorf("%s: %w", name, err)
			}
			*to = append(*to, t)
			kept = append(kept, t)
		}
	}
	ro, ok := listOf(state["ro"])
	if !ok || len(ro) != len(s.dirs) || len(ro) != len(s.steps) {
		return s, bad("ro")
	}
	number := func(v any, isTensor bool) (scalar, bool) {
		n, ok := numberOf(v)
		return scalar{v: n, tensor: isTensor, single: isTensor && dtype != tensor.Float64}, ok && !math.IsNaN(n)
	}
	for _, v := range ro {
		r, ok := number(v, true)
		if !ok {
			return s, bad("ro")
		}
		s.ro = append(s.ro, r)
	}
	if s.t, ok = number(state["t"], false); !ok {
		return s, bad("t")
	}
	if s.diag, ok = number(state["H_diag"], false); !ok {
		return s, bad("H_diag")
	}
	if s.prevLoss, ok = numberOf(state["prev_loss"]); !ok {
		return s, bad("prev_loss")
	}
	s.started = true
	if !values {
		return s, nil
	}
	return s, keepAll(kept...)
}

// flatSize returns the number of real values in the parameters, and the dtype of their gradient as one vector.
func (b *Optimizer) flatSize() (size int, dtype tensor.DType) {
	_ = tensor.WithScope(func() error {
		var empty []*tensor.Tensor
		for _, p := range b.groups[0].params {
			p = asReal(p)
			size += p.Numel()
			empty = append(empty, p.NewEmpty([]int{0}))
		}
		dtype = tensor.Cat(empty).DType()
		return nil
	})
	return size, dtype
}

// flatLike copies v, a tensor of LBFGS's state, to a dtype and a device. Without values it only checks that this is
// possible.
func flatLike(v any, size int, dtype tensor.DType, device tensor.Device, values bool) (*tensor.Tensor, error) {
	src, ok := v.(*tensor.Tensor)
	if !ok || src == nil {
		return nil, errors.New("linstock: LBFGS: a tensor of the state is missing")
	}
	if err := refuse.Unusable("LoadStateDict", "LBFGS", src); err != nil {
		return nil, err
	}
	if src.Dim() != 1 || src.Numel() != size || !src.DType().IsFloat() {
		return nil, refuse.Error("LoadStateDict", tensor.ErrArgument, "LBFGS: a tensor of the state has shape %v, want [%d]", src.Shape(), size)
	}
	if src.Device() == tensor.Meta && device != tensor.Meta {
		return nil, refuse.Error("LoadStateDict", tensor.ErrArgument, "LBFGS: a tensor of the state is on the meta device, and has no values")
	}
	if !values {
		return nil, nil
	}
	t := tensor.Empty([]int{size}, dtype, device)
	return t, t.Copy_(src).Err()
}

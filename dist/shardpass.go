package dist

import (
	"context"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// A shardPass is one forward pass of an FSDPModule and the backward passes through it.
type shardPass struct {
	m       *FSDPModule
	sync    bool // reduce the gradients
	version []int
}

var withGrad = handle.WithGrad

// versions returns the versions of the parameters.
func (m *FSDPModule) versions() []int {
	all := make([]int, len(m.params))
	for i, p := range m.params {
		all[i] = p.Tensor.Version()
	}
	return all
}

// A gathering is the collective that gathers the whole parameters of an FSDPModule.
type gathering struct {
	work    *Work
	all     *tensor.Tensor // the parts of all ranks; belongs to no scope
	version []int          // of the parameters when it began
}

// drop releases what a gathering that is not needed holds. The collective goes on.
func (g *gathering) drop() {
	if g != nil {
		g.all.Release()
	}
}

// withoutGrad calls f in a scope. Unlike NoGrad it keeps the casts of autocast.
func withoutGrad(f func() error) error {
	return withGrad(false, func() error { return tensor.WithScope(f) })
}

// begin starts to gather the whole parameters.
func (m *FSDPModule) begin() (*gathering, error) {
	g := &gathering{version: m.versions()}
	err := withoutGrad(func() (err error) {
		var own []*tensor.Tensor
		for _, p := range m.params {
			_, rows := p.rows(m.g.rank)
			own = append(own, p.flat(p.Tensor, rows))
		}
		in := cast(tensor.Cat(own), m.o.param).To(m.device())
		all := in.NewEmpty([]int{m.g.size * m.per})
		if g.work, err = m.g.AllGatherIntoTensorAsync(all, in); err == nil {
			g.all = all.Keep()
		}
		return err
	})
	return g, err
}

// prefetch starts to gather the parameters of modules that have them neither whole nor on the way.
func prefetch(modules []*FSDPModule) error {
	for _, m := range modules {
		m.mu.Lock()
		needed := len(m.params) != 0 && !m.closed && m.ahead == nil && m.whole == nil
		m.mu.Unlock()
		if !needed {
			continue
		}
		g, err := m.begin()
		if err != nil {
			return err
		}
		m.mu.Lock()
		if m.closed {
			g.drop()
		} else {
			m.ahead = g
		}
		m.mu.Unlock()
	}
	return nil
}

// gather returns the whole parameters, which belong to no scope.
func (m *FSDPModule) gather() (whole []*tensor.Tensor, err error) {
	if len(m.params) == 0 { // other FSDPModules have them all
		return []*tensor.Tensor{}, nil
	}
	m.mu.Lock()
	g := m.ahead
	m.ahead = nil
	m.mu.Unlock()
	if g != nil && !slices.Equal(g.version, m.versions()) {
		g.drop()
		g = nil
	}
	if g == nil {
		if g, err = m.begin(); err != nil {
			return nil, err
		}
	}
	defer g.drop()
	if err := g.work.Wait(context.Background()); err != nil {
		return nil, err
	}
	err = withoutGrad(func() error {
		at := 0
		for _, p := range m.params {
			w := g.all.NewEmpty(p.Shape)
			if err := p.assemble(w, g.all.View(m.g.size, m.per).Narrow(1, at, p.chunk*p.row)); err != nil {
				return err
			}
			at += p.chunk * p.row
			if p.Tensor.RequiresGrad() {
				w.RequiresGrad_()
			}
			whole = append(whole, w.Keep())
		}
		return nil
	})
	if err != nil {
		release(whole)
		return nil, err
	}
	return whole, nil
}

// flat returns the elements of t, rows rows of p, with zeros for the rows that others have more.
func (p *ShardedParameter) flat(t *tensor.Tensor, rows int) *tensor.Tensor {
	t = t.Detach().Reshape(rows * p.row)
	if rows == p.chunk {
		return t
	}
	return tensor.Cat([]*tensor.Tensor{t, t.NewZeros([]int{(p.chunk - rows) * p.row})})
}

// assemble sets w, of p's shape, to the rows of all ranks, of which parts has one (chunk * row) for each.
func (p *ShardedParameter) assemble(w, parts *tensor.Tensor) error {
	if p.chunk*p.g.size == p.Shape[0] {
		return w.View(p.g.size, p.chunk*p.row).Copy_(parts).Err()
	}
	for r := range p.g.size {
		first, rows := p.rows(r)
		if err := w.Narrow(0, first, rows).Reshape(rows * p.row).Copy_(parts.Select(0, r).Narrow(0, 0, rows*p.row)).Err(); err != nil {
			return err
		}
	}
	return nil
}

func release(ts []*tensor.Tensor) {
	for _, t := range ts {
		t.Release()
	}
}

// install makes the module's fields hold ts, or this rank's rows for nil, and returns what they held.
func (m *FSDPModule) install(ts []*tensor.Tensor) (before []*tensor.Tensor) {
	for i, p := range m.params {
		t := p.Tensor
		if ts != nil {
			t = ts[i]
		}
		for _, at := range p.places {
			*at = t
		}
	}
	before, m.fields = m.fields, ts
	return before
}

// drop releases the whole parameters. The caller holds m.mu.
func (m *FSDPModule) drop() {
	release(m.whole)
	m.whole, m.version, m.current = nil, nil, nil
	if m.fields != nil {
		m.install(nil)
	}
}

// keep holds whole for backward passes.
func (m *FSDPModule) keep(whole []*tensor.Tensor, version []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		release(whole)
		return
	}
	m.whole, m.version = whole, version
}

// kept returns the whole parameters of this version, or nil. What passes with other ones have left, it drops.
func (m *FSDPModule) kept(version []int) []*tensor.Tensor {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole != nil && !slices.Equal(m.version, version) {
		m.drop()
	}
	return m.whole
}

// again returns whole parameter i for a backward pass.
func (p *shardPass) again(i int) (*tensor.Tensor, error) {
	if _, err := p.enter(nil); err != nil {
		return nil, err
	}
	whole, err := p.gathered()
	if err != nil {
		return nil, err
	}
	return whole[i].Detach(), nil
}

// gathered returns the whole parameters in a backward pass.
func (p *shardPass) gathered() ([]*tensor.Tensor, error) {
	const op = "Backward"
	m := p.m
	if err := m.check(op); err != nil {
		return nil, err
	}
	if !slices.Equal(m.versions(), p.version) {
		return nil, refuse.Error(op, tensor.ErrArgument, "a parameter was changed between the forward pass and its backward pass")
	}
	if whole := m.kept(p.version); whole != nil {
		return whole, nil
	}
	whole, err := m.gather()
	if err != nil {
		return nil, err
	}
	m.keep(whole, p.version)
	return whole, prefetch(m.nextBackward)
}

// enter is called before a backward pass goes through the module, for each result of the forward pass. It gathers the
// parameters, and puts them into the module's fields for the function of a Checkpoint.
func (p *shardPass) enter(*tensor.Tensor) (*tensor.Tensor, error) {
	m := p.m
	m.mu.Lock()
	again := m.current == p
	m.mu.Unlock()
	if again {
		return nil, nil
	}
	whole, err := p.gathered()
	if err != nil {
		return nil, err
	}
	if err := handle.AtPassEnd(p.end, func() { _ = p.end() }); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = p
	m.install(whole)
	return nil, nil
}

// end is called at the end of a backward pass. It drops the gathers that the pass, or a forward pass that it has computed
// again, has begun and not used.
func (p *shardPass) end() error {
	for _, m := range p.m.g.fsdpModules() {
		m.mu.Lock()
		m.ahead.drop()
		m.ahead = nil
		m.mu.Unlock()
	}
	return p.leave()
}

// input returns x, the input of Forward. If no parameter requires a gradient, a backward pass leaves the module when it
// has computed that of x.
func (p *shardPass) input(x *tensor.Tensor) *tensor.Tensor {
	if !tensor.GradEnabled() || slices.ContainsFunc(p.m.params, func(q *ShardedParameter) bool { return q.Tensor.RequiresGrad() }) || !x.RequiresGrad() {
		return x
	}
	made, err := tensor.CallUnchecked("aten::alias", x) // x may be used elsewhere, too
	if err != nil {
		return tensor.Failed(err)
	}
	x = made[0].(*tensor.Tensor)
	if _, err := x.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) { return nil, p.leave() }); err != nil {
		return tensor.Failed(err)
	}
	return x
}

// leave is called when a backward pass has computed the gradients of the whole parameters, or of the input if they have
// none, and at its end, since it may not compute them, or may fail.
func (p *shardPass) leave() error {
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == p {
		m.drop()
	}
	return nil
}

// connect returns the whole parameters as results of a function of this rank's rows.
func (p *shardPass) connect(whole []*tensor.Tensor) ([]*tensor.Tensor, error) {
	f := &gatherFunction{pass: p, whole: whole}
	var in []*tensor.Tensor
	for i, q := range p.m.params {
		if q.Tensor.RequiresGrad() {
			in, f.trained = append(in, q.Tensor), append(f.trained, i)
		}
	}
	if len(in) == 0 {
		return whole, nil
	}
	out, err := autograd.Apply(f, in...)
	if err != nil {
		return nil, err
	}
	whole = slices.Clone(whole)
	for i, k := range f.trained {
		whole[k] = out[i]
	}
	return whole, nil
}

// gatherFunction is the function whose results are the whole parameters. Its backward adds up the gradients over the ranks.
type gatherFunction struct {
	pass    *shardPass
	trained []int
	whole   []*tensor.Tensor // until Forward has returned
}

func (f *gatherFunction) Forward(ctx *autograd.Context, _ ...*tensor.Tensor) (out []*tensor.Tensor, err error) {
	ctx.SetMaterializeGrads(false)
	for _, k := range f.trained {
		out = append(out, f.whole[k].Detach())
	}
	f.whole = nil
	return out, nil
}

func (f *gatherFunction) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	_ = f.pass.leave() // so that whole parameters do not take memory during the reduction
	const op = "Backward"
	m := f.pass.m
	if err := m.check(op); err != nil {
		return nil, err
	}
	if tensor.GradEnabled() {
		return nil, refuse.Error(op, tensor.ErrNotImplemented, "gradients of divided parameters cannot be differentiated")
	}
	out := make([]*tensor.Tensor, len(grads))
	if err := m.accumulate(f.trained, grads); err != nil || !f.pass.sync {
		return out, err
	}
	return out, m.reduce(f.trained, out)
}

// device returns the device of the whole parameters.
func (m *FSDPModule) device() tensor.Device {
	if m.o.offload {
		return m.o.device
	}
	return m.params[0].Tensor.Device()
}

// accumulate adds gradients to the pending ones.
func (m *FSDPModule) accumulate(trained []int, grads []*tensor.Tensor) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, k := range trained {
		if grads[i] == nil {
			continue
		}
		sum := cast(grads[i].Detach(), m.o.reduce)
		if m.o.reduce == tensor.Invalid {
			sum = cast(sum, m.params[k].Tensor.DType())
		}
		before := m.pending[k]
		if before != nil {
			sum = before.Add(sum)
		}
		if err := sum.Err(); err != nil {
			return err
		}
		m.pending[k] = sum.Keep()
		before.Release()
	}
	return nil
}

// reduce sets out to this rank's rows of the averages over the ranks of the pending gradients. It is nil for a parameter
// that no rank has used.
func (m *FSDPModule) reduce(trained []int, out []*tensor.Tensor) error {
	n, ranks := m.g.size, m.g.size
	if m.o.replicas != nil {
		ranks *= m.o.replicas.size
	}
	dtype := m.o.reduce
	if dtype == tensor.Invalid {
		dtype = m.params[0].Tensor.DType()
	}
	// float16 has a small range: a part of the division comes before the sum.
	first := 1
	for dtype == tensor.Float16 && ranks%first == 0 && ranks/first > first {
		first *= 2
	}
	all := tensor.Tidy(func() *tensor.Tensor { return m.take(trained, dtype) })
	if err := all.Err(); err != nil {
		return err
	}
	per := all.Numel() / n
	if first > 1 {
		all.Div_(first)
	}
	sum := all.NewEmpty([]int{per})
	if err := m.g.ReduceScatterTensor(context.Background(), sum, all.View(n*per), Sum); err != nil {
		return err
	}
	if m.o.replicas != nil {
		if err := m.o.replicas.AllReduce(context.Background(), sum, Sum); err != nil {
			return err
		}
	}
	if err := sum.Div_(float64(ranks) / float64(first)).Err(); err != nil {
		return err
	}
	counts, err := tensor.Data[float32](sum.Narrow(0, per-len(trained), len(trained)).To(tensor.Float32))
	if err != nil {
		return err
	}
	at := 0
	for i, k := range trained {
		p := m.params[k]
		if _, rows := p.rows(m.g.rank); counts[i] > 0 {
			out[i] = sum.Narrow(0, at, rows*p.row).View(append([]int{rows}, p.Shape[1:]...)...).To(p.Tensor.DType()).To(p.Tensor.Device())
			if err := out[i].Err(); err != nil {
				return err
			}
		}
		at += p.chunk * p.row
	}
	return nil
}

// take returns the pending gradients as one tensor, with the parts of the ranks one after the other: the rows of each
// parameter, zeros for those that the last ranks lack, and counts of the parameters that this rank has used. The
// gradients are then no longer pending.
func (m *FSDPModule) take(trained []int, dtype tensor.DType) *tensor.Tensor {
	n := m.g.size
	m.mu.Lock()
	pending := slices.Clone(m.pending)
	for _, k := range trained {
		m.pending[k] = nil
	}
	m.mu.Unlock()
	var in []*tensor.Tensor
	used := make([]float32, n*len(trained))
	for i, k := range trained {
		g := pending[k]
		if g == nil {
			g = tensor.Zeros(m.params[k].Shape, dtype, m.device())
		} else {
			defer g.Release()
			for r := range n {
				used[r*len(trained)+i] = 1
			}
		}
		in = append(in, g.Contiguous())
	}
	// The ranks' counts travel with the gradients, so that messages have the same size on all ranks.
	in = append(in, tensor.FromSlice(used, []int{n, len(trained)}).To(dtype).To(m.device()))
	made, err := tensor.CallUnchecked("aten::_chunk_cat", in, 0, n)
	if err != nil {
		return tensor.Failed(err)
	}
	return made[0].(*tensor.Tensor)
}

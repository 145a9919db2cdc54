package dist

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	optional "github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// An FSDPModule is a module whose parameters are divided among the ranks of a group by their rows: fully sharded data
// parallel training, ZeRO-3, or ZeRO-2 with ReshardAfterForward(false). It is made by [Shard]. PyTorch:
// torch.distributed.fsdp.FSDPModule.
//
// One goroutine at a time uses an FSDPModule, and between the beginning of a backward pass and its end no other collective
// of the group may be started on this rank.
type FSDPModule struct {
	Module any `nn:"."` // what Shard was given

	g      *Group
	o      shardOptions
	params []*ShardedParameter                  `nn:"-"`
	of     map[*tensor.Tensor]*ShardedParameter `nn:"-"` // params by their tensors
	inner  []*FSDPModule                        `nn:"-"` // those of modules within Module
	per    int                                  // elements of a rank in a collective
	noSync bool

	nextForward, nextBackward []*FSDPModule `nn:"-"` // those whose gathers passes of this one start

	mu      sync.Mutex
	closed  bool
	whole   []*tensor.Tensor `nn:"-"` // the whole parameters while a backward pass may need them
	version []int            // of the parameters when whole was gathered
	fields  []*tensor.Tensor `nn:"-"` // what the module's fields hold in place of this rank's rows, or nil
	current *shardPass       `nn:"-"` // the one that a backward pass goes through
	pending []*tensor.Tensor `nn:"-"` // whole gradients of passes without a reduction
	ahead   *gathering       `nn:"-"` // one that was started before it was needed, or nil
}

// A ShardedParameter is a parameter of which each rank has some rows. A checkpoint that writes Tensor of each rank at
// Offset has the whole parameter.
type ShardedParameter struct {
	Name   string         // in the module that Shard was given; of a parameter with several names the first
	Tensor *tensor.Tensor // this rank's rows; a rank beyond the last row has none
	Shape  []int          // of the whole parameter
	Offset int            // the first row

	g      *Group
	chunk  int // rows of each rank, without the last ones
	row    int // elements of a row
	places []**tensor.Tensor
}

type shardOptions struct {
	reshard, castInputs    bool
	param, reduce, outputs tensor.DType // Invalid: none
	offload                bool
	device                 tensor.Device // of the whole parameters, with offload
	replicated             bool          // Replicas was given
	replicas               *Group        // or nil
}

// A ShardOption is an option of Shard.
type ShardOption func(*shardOptions)

// ReshardAfterForward(false) keeps the whole parameters between the forward and the backward pass (ZeRO-2), which saves a
// collective. By default they are freed and gathered again (ZeRO-3). PyTorch: reshard_after_forward.
func ReshardAfterForward(on ...bool) ShardOption {
	return func(o *shardOptions) { o.reshard = optional.On(on) }
}

// ParamDType makes forward and backward passes compute with parameters of this dtype; the optimizer's keep theirs. PyTorch:
// MixedPrecisionPolicy.param_dtype.
func ParamDType(dtype tensor.DType) ShardOption { return func(o *shardOptions) { o.param = dtype } }

// ReduceDType sends and accumulates gradients in this dtype; by default it is that of the optimizer's parameters. PyTorch:
// MixedPrecisionPolicy.reduce_dtype.
func ReduceDType(dtype tensor.DType) ShardOption { return func(o *shardOptions) { o.reduce = dtype } }

// OutputDType casts floating-point results of forward passes to this dtype. PyTorch: MixedPrecisionPolicy.output_dtype.
func OutputDType(dtype tensor.DType) ShardOption { return func(o *shardOptions) { o.outputs = dtype } }

// CastForwardInputs(false) makes Forward not cast its input to the dtype of ParamDType; the default is true. PyTorch:
// MixedPrecisionPolicy.cast_forward_inputs.
func CastForwardInputs(on ...bool) ShardOption {
	return func(o *shardOptions) { o.castInputs = optional.On(on) }
}

// CPUOffload keeps the rows, their gradients and so the optimizer's state on the CPU, and computes on the device d. Shard moves
// the rows to the CPU and buffers to the device. PyTorch: CPUOffloadPolicy.
func CPUOffload(d tensor.Device) ShardOption {
	return func(o *shardOptions) { o.offload, o.device = true, d }
}

// Replicas divides parameters among the ranks of Shard's group only, as many times as r, the group of the ranks with the same
// rows, has ranks (HSDP). Gradients are averaged over all of them: gathers stay within a machine, say, and gradients of rows cross
// machines. With mesh, err := NewDeviceMesh(ctx, g, []int{2, 8}, "replicate", "shard"), the group of Shard is
// mesh.Group("shard"), and r is mesh.Group("replicate"). PyTorch: fully_shard with a mesh of two dimensions.
func Replicas(r *Group) ShardOption {
	return func(o *shardOptions) { o.replicated, o.replicas = true, r }
}

// Shard divides the parameters of a module, the same on all ranks, among the ranks of g, and copies the parameters and
// buffers of rank 0 to the others before. Each tensor of the module becomes this rank's rows of the parameter, as in
// torch.chunk: an optimizer must be made afterwards, and its state is divided, too. nn.ClipGradNorm_ and optim.GradScaler
// consider all ranks' rows, so all ranks must call them; optimizers that need whole parameters (Adafactor, L-BFGS, Muon) return
// an error. All ranks must call Shard.
//
//	for i, block := range model.Blocks { // a []nn.Layer
//		if model.Blocks[i], err = dist.Shard(ctx, g, block); err != nil {
//			return err
//		}
//	}
//	root, err := dist.Shard(ctx, g, model) // the parameters that are left
//	…
//	opt, err := optim.NewAdamW(nn.Parameters(model), 3e-4)
//	…
//	loss := nn.CrossEntropy(root.Forward(x), y)
//	err = loss.Backward() // *PeerError if another rank is gone
//	err = opt.Step()
//
// The parameters of one Shard are gathered together. Those that a Shard of g has divided already stay in that one, so parts
// come before the module that holds them, which must hold and call the FSDPModule of each in the part's place. Parameters
// that several parts share belong to one that contains these: a part that shares a parameter with another one must not be
// divided alone.
// Rows of a Shard of another group, or of one that is closed, are an error, as are the parts of a ColwiseParallel that
// differ between the ranks of g. Parameters must be dense tensors with a dimension, of one floating-point dtype and on
// one device, and they must not have gradients. On a CUDA device the group needs the backends "cpu:gloo,cuda:nccl".
//
// A model that no rank can hold whole is made on the meta device. Its modules are then given to nn.ToEmpty and to Shard,
// one after the other, and LoadFullStateDict or dcp.Load sets the values. nn.Clone, nn.NewAveragedModel,
// nn.FunctionalCall and nn.ToEmpty refuse a divided module.
//
// Options: ReshardAfterForward, ParamDType, ReduceDType, OutputDType, CastForwardInputs, CPUOffload, Replicas. PyTorch:
// torch.distributed.fsdp.fully_shard.
func Shard(ctx context.Context, g *Group, module any, opts ...ShardOption) (*FSDPModule, error) {
	const op = "Shard"
	o := shardOptions{reshard: true, castInputs: true, param: tensor.Invalid, reduce: tensor.Invalid, outputs: tensor.Invalid}
	for _, opt := range opts {
		if opt == nil {
			return nil, refuse.NilOption(op)
		}
		opt(&o)
	}
	for _, d := range []tensor.DType{o.param, o.reduce, o.outputs} {
		if d != tensor.Invalid && !d.IsFloat() {
			return nil, refuse.Error(op, tensor.ErrArgument, "the dtype %v is not a floating-point one", d)
		}
	}
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return nil, err
	}
	if err := g.check(op); err != nil {
		return nil, err
	}
	if o.replicated {
		if err := o.replicas.check(op); err != nil {
			return nil, err
		}
	}
	if module == nil {
		return nil, refuse.Nil(op, "a module")
	}
	if err := nn.Check(module); err != nil {
		return nil, err
	}
	m := &FSDPModule{Module: module, g: g, o: o}
	if err := m.adopt(op); err != nil {
		return nil, err
	}
	var err error
	for _, g := range m.groups() {
		if err == nil {
			err = m.agree(ctx, op, g)
		}
	}
	if err == nil {
		err = m.divide(ctx, op)
	}
	for _, g := range m.groups() {
		err = g.rest(ctx, op, err) // the ranks of both groups are in the call
	}
	if err != nil {
		return nil, err
	}
	for _, p := range m.params {
		sharding.Hold(p.Tensor)
		g.mark(p.Tensor)
	}
	g.state.Lock()
	defer g.state.Unlock()
	g.parts[m] = struct{}{}
	return m, nil
}

// alone returns an error if the ranks of g have different values of p: their rows, or their parts of a tensor.
func (g *Group) alone(op, name string, p *tensor.Tensor) error {
	for _, by := range sharding.Groups(p) {
		if r, ok := by.(reducer); ok && r.g.meets(g) {
			return refuse.Error(op, tensor.ErrArgument, "%s is a part of a parameter that the group's ranks divide: their parts differ", name)
		}
	}
	return nil
}

// undivided is alone, and returns an error if p is rows of a Shard of any group, which may be closed.
func (g *Group) undivided(op, name string, p *tensor.Tensor) error {
	if sharding.Held(p) {
		return refuse.Error(op, tensor.ErrArgument, "%s is rows of a parameter that Shard has divided", name)
	}
	return g.alone(op, name, p)
}

// meets reports whether another process than this one is a member of both g and h.
func (g *Group) meets(h *Group) bool {
	return g.job == h.job && slices.ContainsFunc(g.members, func(r int) bool {
		return r != g.members[g.rank] && slices.Contains(h.members, r)
	})
}

// mark records that p is this rank's part of a parameter that g's ranks divide: nn.ClipGradNorm_ and optim.GradScaler then
// reduce over g.
func (g *Group) mark(p *tensor.Tensor) {
	if g.size > 1 {
		sharding.Mark(p, reducer{g})
	}
}

type reducer struct{ g *Group }

// AllReduce implements sharding.Group.
func (r reducer) AllReduce(t *tensor.Tensor, maximum bool) error {
	op := Sum
	if maximum {
		op = Max
	}
	return r.g.AllReduce(context.Background(), t, op)
}

var places = handle.Places.(func(model any) map[*tensor.Tensor][]**tensor.Tensor)

// adopt lists the parameters that no other FSDPModule of the group has.
func (m *FSDPModule) adopt(op string) error {
	owners := m.g.sharded()
	places := places(m.Module)
	within := map[*FSDPModule]bool{}
	for _, n := range nn.NamedModules(m.Module) {
		if f, ok := n.Module.(*FSDPModule); ok {
			within[f] = true
		}
	}
	for _, n := range nn.NamedParameters(m.Module) {
		t := n.Tensor
		if owner := owners[t]; owner != nil {
			if reflect.ValueOf(m.Module).Comparable() && m.Module == owner.module.Module {
				return refuse.Error(op, tensor.ErrArgument, "Shard has divided the module already")
			}
			if !within[owner.module] {
				return refuse.Error(op, tensor.ErrArgument, "%s is of a module that Shard has divided, and the FSDPModule that it returned is not in this one, which would compute with rows: "+
					"put it in the place of the module, or divide a module that contains all that share it", n.Name)
			}
			elsewhere := func(at **tensor.Tensor) bool { return !slices.Contains(owner.places, at) }
			if places[t] == nil || slices.ContainsFunc(places[t], elsewhere) {
				return refuse.Error(op, tensor.ErrArgument, "%s is shared with a module that Shard has divided, outside of which it is rows: divide a module that contains all that share it, and not these", n.Name)
			}
			if !slices.Contains(m.inner, owner.module) {
				m.inner = append(m.inner, owner.module)
			}
			continue
		}
		for _, g := range m.groups() {
			if err := g.undivided(op, n.Name, t); err != nil {
				return err
			}
		}
		switch {
		case t.Device() == tensor.Meta:
			return refuse.Error(op, tensor.ErrArgument, "%s is on the meta device: call nn.ToEmpty for the module before Shard", n.Name)
		case t.Dim() == 0 || t.Numel() == 0:
			return refuse.Error(op, tensor.ErrArgument, "%s of shape %v cannot be divided by rows", n.Name, t.Shape())
		case !t.IsLeaf() || t.Grad() != nil:
			return refuse.Error(op, tensor.ErrArgument, "%s has a gradient or a graph", n.Name)
		case !t.DType().IsFloat() || len(m.params) != 0 && t.DType() != m.params[0].Tensor.DType():
			return refuse.Error(op, tensor.ErrArgument, "%s is %v: the parameters must have one floating-point dtype", n.Name, t.DType())
		case len(m.params) != 0 && t.Device() != m.params[0].Tensor.Device():
			return refuse.Error(op, tensor.ErrArgument, "%s is on %v, %s on %v", n.Name, t.Device(), m.params[0].Name, m.params[0].Tensor.Device())
		case places[t] == nil:
			return refuse.Error(op, tensor.ErrArgument, "%s is in a map, a parametrization, or a struct that is not held by a pointer", n.Name)
		}
		if err := dense(op, n.Name, t); err != nil {
			return err
		}
		p := &ShardedParameter{Name: n.Name, Tensor: t, Shape: t.Shape(), g: m.g, places: places[t]}
		p.chunk = (p.Shape[0] + m.g.size - 1) / m.g.size
		p.row = t.Numel() / p.Shape[0]
		p.Offset, _ = p.rows(m.g.rank)
		m.params = append(m.params, p)
		m.per += p.chunk * p.row
	}
	for _, b := range nn.NamedBuffers(m.Module) {
		if err := dense(op, b.Name, b.Tensor); err != nil {
			return err
		}
	}
	m.pending = make([]*tensor.Tensor, len(m.params))
	m.of = make(map[*tensor.Tensor]*ShardedParameter, len(m.params))
	for _, p := range m.params {
		m.of[p.Tensor] = p
	}
	return nil
}

// rows returns the rows of a rank: the first and their number.
func (p *ShardedParameter) rows(rank int) (first, n int) {
	first = min(rank*p.chunk, p.Shape[0])
	return first, min(p.chunk, p.Shape[0]-first)
}

// groups returns the groups whose ranks have the same module, the replicas' first.
func (m *FSDPModule) groups() []*Group {
	if m.o.replicas == nil {
		return []*Group{m.g}
	}
	return []*Group{m.o.replicas, m.g}
}

// agree returns an error if other ranks of g divide other parameters.
func (m *FSDPModule) agree(ctx context.Context, op string, g *Group) error {
	o := m.o
	o.device.Index, o.replicas = 0, nil // each rank has its own
	own := []string{fmt.Sprintf("options %+v", o)}
	if g != m.g {
		own = append(own, fmt.Sprintf("part %d of %d", m.g.rank, m.g.size))
	}
	for _, p := range m.params {
		own = append(own, fmt.Sprintf("%s %v %v", p.Name, p.Tensor.DType(), p.Shape))
	}
	all, err := AllGatherObject(ctx, g, own)
	if err != nil {
		return err
	}
	for r, other := range all {
		for i := range max(len(own), len(other)) {
			a, b := "no further parameter", "no further parameter"
			if i < len(own) {
				a = own[i]
			}
			if i < len(other) {
				b = other[i]
			}
			if a != b {
				return refuse.Error(op, tensor.ErrArgument, "the ranks divide different modules: rank %d has %s, rank %d %s", g.rank, a, r, b)
			}
		}
	}
	return nil
}

// divide makes the parameters this rank's rows of those of rank 0.
func (m *FSDPModule) divide(ctx context.Context, op string) error {
	var ts []*tensor.Tensor
	for _, p := range m.params {
		ts = append(ts, p.Tensor)
	}
	buffers := nn.NamedBuffers(m.Module)
	for _, b := range buffers {
		ts = append(ts, b.Tensor)
	}
	byDevice := map[tensor.Device][]*tensor.Tensor{}
	for _, t := range ts {
		byDevice[t.Device()] = append(byDevice[t.Device()], t)
	}
	for _, d := range slices.SortedFunc(maps.Keys(byDevice), func(a, b tensor.Device) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Index, b.Index))
	}) {
		for _, g := range m.groups() {
			if err := g.broadcastCoalesced(ctx, op, byDevice[d], 0); err != nil {
				return err
			}
		}
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			if !m.o.offload {
				buffers = nil // they stay where they are
			}
			for _, b := range buffers {
				if _, err := tensor.CallUnchecked("aten::set_data", b.Tensor, b.Tensor.To(m.o.device)); err != nil {
					return err
				}
			}
			var rows []*tensor.Tensor
			for _, p := range m.params {
				first, n := p.rows(m.g.rank)
				t := p.Tensor.Detach().Narrow(0, first, n).Clone()
				if m.o.offload {
					t = t.To(tensor.CPU)
				}
				if err := t.Err(); err != nil {
					return err
				}
				rows = append(rows, t)
			}
			for i, p := range m.params {
				if _, err := tensor.CallUnchecked("aten::set_data", p.Tensor, rows[i]); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// An owner is an FSDPModule and one of its parameters.
type owner struct {
	module *FSDPModule
	*ShardedParameter
}

// sharded returns the parameters that are divided in the group.
func (g *Group) sharded() map[*tensor.Tensor]*owner {
	all := map[*tensor.Tensor]*owner{}
	for _, m := range g.fsdpModules() {
		for _, p := range m.params {
			all[p.Tensor] = &owner{m, p}
		}
	}
	return all
}

// fsdpModules returns the FSDPModules of the group that are not closed.
func (g *Group) fsdpModules() (all []*FSDPModule) {
	g.state.Lock()
	defer g.state.Unlock()
	for c := range g.parts {
		if m, ok := c.(*FSDPModule); ok {
			all = append(all, m)
		}
	}
	return all
}

// Close frees what the module holds besides the rows of its parameters. Afterwards it cannot be used. Close of the
// group does the same. A second Close does nothing.
func (m *FSDPModule) Close() error {
	if m == nil || m.g == nil {
		return nil
	}
	m.mu.Lock()
	m.closed = true
	m.reset()
	m.mu.Unlock()
	m.g.state.Lock()
	defer m.g.state.Unlock()
	delete(m.g.parts, m)
	return nil
}

// reset frees what passes have left. The caller holds m.mu.
func (m *FSDPModule) reset() {
	m.drop()
	m.ahead.drop()
	m.ahead = nil
	for i, t := range m.pending {
		t.Release()
		m.pending[i] = nil
	}
}

// ResetIterState frees what passes have left in m and the FSDPModules within it, whole gradients of NoSync or of a pass
// that has failed, so that the next pass does not add them to its own. Gradients of rows stay: ZeroGrad. All ranks must
// call it. PyTorch: FSDPModule.reset_iter_state.
func (m *FSDPModule) ResetIterState() error {
	if err := m.check("ResetIterState"); err != nil {
		return err
	}
	for _, m := range append([]*FSDPModule{m}, m.inner...) {
		m.mu.Lock()
		m.reset()
		m.mu.Unlock()
	}
	return nil
}

// Parameters returns the parameters that this FSDPModule has divided, without those of other ones within it.
func (m *FSDPModule) Parameters() []*ShardedParameter {
	if m == nil {
		return nil
	}
	return slices.Clone(m.params)
}

// check returns an error if m can no longer be used.
func (m *FSDPModule) check(op string) error {
	if m == nil {
		return refuse.Nil(op, "an FSDPModule")
	}
	if m.g == nil {
		return refuse.Error(op, tensor.ErrArgument, "the FSDPModule was not made by Shard")
	}
	if err := m.g.check(op); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return refuse.Error(op, ErrClosed, "the FSDPModule was closed")
	}
	return nil
}

// NoSync calls f. Gradients of backward passes whose forward pass is in f accumulate, whole, on each rank, and the next pass
// outside reduces their sums: it must reach the same modules. ResetIterState discards them. NoSync applies to the
// FSDPModules within m, too. PyTorch: FSDPModule.set_requires_gradient_sync.
func (m *FSDPModule) NoSync(f func() error) error {
	const op = "NoSync"
	if err := m.check(op); err != nil {
		return err
	}
	if f == nil {
		return refuse.Nil(op, "a function")
	}
	for _, m := range append([]*FSDPModule{m}, m.inner...) {
		before := m.noSync
		m.noSync = true
		defer func() { m.noSync = before }()
	}
	return f()
}

// SetModulesToForwardPrefetch makes forward passes of m start gathering the parameters of other FSDPModules of the
// group, usually the next one, so that the ranks exchange them while m computes. They take memory from then on. All
// ranks must set the same; a call without modules turns it off. PyTorch: FSDPModule.set_modules_to_forward_prefetch.
func (m *FSDPModule) SetModulesToForwardPrefetch(modules ...*FSDPModule) error {
	return m.prefetching("SetModulesToForwardPrefetch", modules, &m.nextForward)
}

// SetModulesToBackwardPrefetch is SetModulesToForwardPrefetch for backward passes, in which the next module is the one before.
// PyTorch: FSDPModule.set_modules_to_backward_prefetch.
func (m *FSDPModule) SetModulesToBackwardPrefetch(modules ...*FSDPModule) error {
	return m.prefetching("SetModulesToBackwardPrefetch", modules, &m.nextBackward)
}

func (m *FSDPModule) prefetching(op string, modules []*FSDPModule, into *[]*FSDPModule) error {
	if err := m.check(op); err != nil {
		return err
	}
	for _, next := range modules {
		if err := next.check(op); err != nil {
			return err
		}
		if next.g != m.g || next == m {
			return refuse.Error(op, tensor.ErrArgument, "another FSDPModule of the same group is needed")
		}
	}
	*into = slices.Clone(modules)
	return nil
}

// Forward calls the Forward of the module, which must be an nn.Layer; for other modules there is [FSDPModule.Run].
func (m *FSDPModule) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "Forward"
	if m == nil {
		return tensor.Failed(refuse.Nil(op, "an FSDPModule"))
	}
	layer, ok := m.Module.(nn.Layer)
	if !ok {
		return refuse.Tensor(op, tensor.ErrArgument, "%T has no method Forward(*tensor.Tensor) *tensor.Tensor: call Run", m.Module)
	}
	var pass *shardPass
	run := func(op string, f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
		return m.pass(op, func(p *shardPass) ([]*tensor.Tensor, error) {
			pass = p
			return f()
		})
	}
	return runOne(op, run, func() *tensor.Tensor {
		x = pass.input(x)
		if m.o.castInputs && x.DType().IsFloat() {
			x = cast(x, m.o.param)
		}
		return layer.Forward(x)
	})
}

// Run calls f, a forward pass of the module, and returns its result. The whole parameters are in the module's fields
// during f only. Tensors that f makes end with it, but for its result. If no parameter requires a gradient, a backward
// pass keeps the whole parameters until its end; with Forward, until it has computed the gradient of the input.
func (m *FSDPModule) Run(f func() *tensor.Tensor) *tensor.Tensor {
	return runOne("Run", m.run, f)
}

// RunAll is Run for forward passes with several results.
func (m *FSDPModule) RunAll(f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	return runAll("RunAll", m.run, f)
}

func cast(t *tensor.Tensor, dtype tensor.DType) *tensor.Tensor {
	if dtype == tensor.Invalid {
		return t
	}
	return t.To(dtype)
}

var withRemade = handle.WithRemade.(func(sources []*tensor.Tensor, again func(i int) (*tensor.Tensor, error), f func() error) error)

func (m *FSDPModule) run(op string, f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	return m.pass(op, func(*shardPass) ([]*tensor.Tensor, error) { return f() })
}

func (m *FSDPModule) pass(op string, f func(p *shardPass) ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	if err := m.check(op); err != nil {
		return nil, err
	}
	handle.EndFailed()
	recorded := tensor.GradEnabled() && !tensor.InferenceEnabled()
	pass := &shardPass{m: m, sync: !m.noSync, version: m.versions()}
	var reached bool              // by backward passes
	whole := m.kept(pass.version) // in a backward pass, which recomputes the forward pass
	if whole == nil {
		var err error
		if whole, err = m.gather(); err != nil {
			return nil, err
		}
		if err := prefetch(m.nextForward); err != nil {
			release(whole)
			return nil, err
		}
		if recorded && !m.o.reshard {
			m.keep(whole, pass.version)
			defer func() {
				if !reached { // no backward pass will free them
					m.mu.Lock()
					m.drop()
					m.mu.Unlock()
				}
			}()
		} else {
			defer release(whole)
		}
	}
	return tensor.TidyAll(func() (ys []*tensor.Tensor, err error) {
		fields := whole
		if recorded {
			if fields, err = pass.connect(whole); err != nil {
				return nil, err
			}
		}
		before := m.install(fields)
		defer m.install(before)
		forward := func() (err error) {
			ys, err = f(pass)
			return err
		}
		if recorded && m.o.reshard {
			err = withRemade(whole, pass.again, forward)
		} else {
			err = forward()
		}
		if err != nil {
			return nil, err
		}
		ys = slices.Clone(ys)
		for i, y := range ys {
			if m.o.outputs != tensor.Invalid && y.DType().IsFloat() {
				ys[i] = y.To(m.o.outputs)
			}
			if recorded && ys[i].RequiresGrad() && !ys[i].IsLeaf() {
				if _, err := ys[i].RegisterHook(pass.enter); err != nil {
					return nil, err
				}
				reached = true
			}
		}
		return ys, nil
	})
}

package dist

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/flight"
	"github.com/linstock-ml/linstock/internal/handle"
	optional "github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// A DDP trains a model on all ranks of a group: each rank computes on inputs of its own, and during the backward pass the
// gradients are averaged over the ranks, in buckets, while those of earlier layers are still being computed. So the
// replicas stay equal. PyTorch: torch.nn.parallel.DistributedDataParallel.
//
//	ddp, err := dist.NewDDP(ctx, g, model)
//	if err != nil {
//		return err
//	}
//	defer ddp.Close()
//	…
//	loss := nn.CrossEntropy(ddp.Forward(x), y)
//	err = loss.Backward() // *PeerError if another rank is gone
//	err = opt.Step()
//
// State dicts, optimizers and checkpoints take the model, not the DDP. Ranks in Python whose DistributedDataParallel has
// the same arguments can train along.
//
// One goroutine at a time uses a DDP. Between the beginning of a backward pass and its end no other collective of the group
// may be started on this rank; groups that NewGroup makes are independent.
type DDP struct {
	g          *Group
	model      any
	parameters []*tensor.Tensor `nn:"-"`
	hasBuffers bool             // in NewDDP; a model that has none then is not searched in each pass
	o          ddpOptions

	mu     sync.RWMutex // held for reading while native is used, for writing by Close
	native cshim.Reducer

	noSync        bool
	sparse        string // a parameter with a sparse gradient, for errors
	buffersToSync bool   // before the next forward pass
	join          *joining
	passes        atomic.Int64                  // that average gradients
	pass          atomic.Pointer[flight.Record] // of the backward pass that averages gradients
	stage         atomic.Int32                  // of that pass
}

type ddpOptions struct {
	cshim.ReducerOptions
	bucketCapMB   float64
	firstCapMB    float64 // of the first bucket
	ownBuffers    bool    // NewDDP does not copy them
	noForwardSync bool    // forward passes do not copy them
}

// A DDPOption is an option of NewDDP.
type DDPOption func(*ddpOptions)

// BucketCapMB sets the size of a bucket of gradients in MiB; the default is 1 for the first bucket and 25 for the
// others. In the first pass all gradients are one bucket, except with FindUnusedParameters and without StaticGraph.
// PyTorch: bucket_cap_mb.
func BucketCapMB(mb float64) DDPOption {
	return func(o *ddpOptions) { o.bucketCapMB, o.firstCapMB = mb, mb }
}

// FindUnusedParameters allows parameters to be unused in a forward pass, and results of it in the loss, on some or all
// ranks. It costs a walk through the graph and a collective in each step; off by default. PyTorch:
// find_unused_parameters.
func FindUnusedParameters(on ...bool) DDPOption {
	return func(o *ddpOptions) { o.FindUnused = optional.On(on) }
}

// StaticGraph promises that the same parameters are used in every step and in the same order, as is needed for parameters
// that a backward pass reaches several times (checkpoints, parameters that several layers share). Unused parameters are
// found in the first backward pass, which must average gradients: it cannot be in NoSync. A [Pipeline] cannot run such a
// DDP. It is off by default. PyTorch: static_graph.
func StaticGraph(on ...bool) DDPOption {
	return func(o *ddpOptions) { o.StaticGraph = optional.On(on) }
}

// GradientAsBucketView makes gradients views of the buckets, which saves a copy of all gradients; off by default.
// PyTorch: gradient_as_bucket_view.
func GradientAsBucketView(on ...bool) DDPOption {
	return func(o *ddpOptions) { o.BucketView = optional.On(on) }
}

// BroadcastBuffers copies the buffers of rank 0, such as running statistics, to the other ranks in NewDDP and before
// each forward pass that follows a step, but for the steps of a [Pipeline]; it is on by default. Without it each rank
// has buffers of its own. PyTorch: broadcast_buffers.
func BroadcastBuffers(on ...bool) DDPOption {
	return func(o *ddpOptions) { o.ownBuffers, o.noForwardSync = !optional.On(on), !optional.On(on) }
}

// ForwardSyncBuffers copies the buffers of rank 0 to the other ranks before each forward pass that follows a step, but
// for the steps of a [Pipeline]; it is on by default. NewDDP copies them in any case. PyTorch: forward_sync_buffers.
func ForwardSyncBuffers(on ...bool) DDPOption {
	return func(o *ddpOptions) { o.ownBuffers, o.noForwardSync = false, !optional.On(on) }
}

// CompressGradients sends gradients as tensor.Float16 or tensor.BFloat16. PyTorch: fp16_compress_hook and
// bf16_compress_hook of torch.distributed.algorithms.ddp_comm_hooks.
func CompressGradients(dtype tensor.DType) DDPOption {
	return func(o *ddpOptions) {
		switch dtype {
		case tensor.Float16:
			o.Compression = cshim.CompressFP16
		case tensor.BFloat16:
			o.Compression = cshim.CompressBF16
		default:
			o.Compression = -1
		}
	}
}

// PowerSGDState holds the settings of [PowerSGD]. PyTorch: PowerSGDState of
// torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.
type PowerSGDState struct {
	MatrixApproximationRank  int     // rank of the approximation that is sent for a matrix; 0 means 1
	StartIter                int     // the first backward pass, from 0, that compresses, at least 2; 0 means 1000
	MinCompressionRate       float64 // by how much a matrix must become smaller; 0 means 2
	OrthogonalizationEpsilon float64 // is added to norms of columns, for gradients that can be 0
}

// PowerSGD sends the gradient of a matrix, or of what is one with all dimensions but the first flattened, as the product of two small
// matrices. What that leaves out is added to the gradient of the next pass. It waits for its collectives within the backward pass, so
// nothing is computed concurrently with them, and ranks in Python cannot take part. It takes the memory of the
// gradients again. PyTorch: powerSGD_hook of torch.distributed.algorithms.ddp_comm_hooks.
func PowerSGD(s PowerSGDState) DDPOption {
	return func(o *ddpOptions) {
		o.Compression = cshim.CompressPowerSGD
		o.PowerRank, o.PowerStart = cmp.Or(s.MatrixApproximationRank, 1), cmp.Or(s.StartIter, 1000)
		o.PowerMinRate, o.PowerEpsilon = cmp.Or(s.MinCompressionRate, 2), s.OrthogonalizationEpsilon
	}
}

// NewDDP prepares a model, the same on all ranks, for training by all ranks of g, and copies the parameters and
// buffers of rank 0 to the others. All ranks must call it. Parameters that do not require gradients are only copied.
// Parameters must be dense tensors on a device that the group has a backend for, not divided by Shard or among g's
// ranks, with the same strides on all ranks, and must not be replaced afterwards. Buffers may be, in the same way on
// all ranks. The gradient of an nn.Embedding or nn.EmbeddingBag with SparseGrad is averaged as a sparse tensor; each
// pass must use the module, and NCCL, PowerSGD and Join do not support it.
// PyTorch: torch.nn.parallel.DistributedDataParallel.
func NewDDP(ctx context.Context, g *Group, model any, opts ...DDPOption) (*DDP, error) {
	const op = "NewDDP"
	o := ddpOptions{bucketCapMB: 25, firstCapMB: 1}
	for _, opt := range opts {
		if opt == nil {
			return nil, refuse.NilOption(op)
		}
		opt(&o)
	}
	switch {
	case !(o.bucketCapMB > 0) || o.bucketCapMB > 1<<40:
		return nil, refuse.Error(op, tensor.ErrArgument, "BucketCapMB must be positive and at most 2^40, got %v", o.bucketCapMB)
	case o.Compression < 0:
		return nil, refuse.Error(op, tensor.ErrArgument, "gradients can be sent as Float16 or BFloat16")
	case o.Compression == cshim.CompressPowerSGD && (o.PowerRank < 1 || o.PowerRank > math.MaxInt32 || o.PowerStart < 2 || !(o.PowerMinRate > 0) || !(o.PowerEpsilon >= 0)):
		return nil, refuse.Error(op, tensor.ErrArgument, "PowerSGD needs a rank of at least 1, a start of at least 2, a positive rate and an epsilon of at least 0, got %d, %d, %v and %v",
			o.PowerRank, o.PowerStart, o.PowerMinRate, o.PowerEpsilon)
	case ctx == nil:
		return nil, refuse.Nil(op, "a context")
	case model == nil:
		return nil, refuse.Nil(op, "a model")
	}
	if err := nn.Check(model); err != nil {
		return nil, err
	}
	o.BucketBytes, o.FirstBucketBytes = int64(o.bucketCapMB*(1<<20)), int64(o.firstCapMB*(1<<20))
	d := &DDP{g: g, model: model, o: o, buffersToSync: true}
	var trained []*tensor.Tensor
	var names []string
	var flags []uint8 // 1: the gradient is sparse
	sparse := sparseGrads(model)
	for _, p := range nn.NamedParameters(model) {
		d.parameters = append(d.parameters, p.Tensor)
		if sharding.Held(p.Tensor) {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s is divided by Shard, which averages its gradient itself", p.Name)
		}
		if g != nil {
			if err := g.alone(op, p.Name, p.Tensor); err != nil {
				return nil, err
			}
		}
		if err := dense(op, p.Name, p.Tensor); err != nil {
			return nil, err
		}
		if p.Tensor.RequiresGrad() {
			var flag uint8
			if slices.Contains(sparse, p.Name) {
				if o.Compression == cshim.CompressPowerSGD {
					return nil, refuse.Error(op, tensor.ErrArgument, "the gradient of %s is sparse, and PowerSGD sends dense ones: "+
						"make its Embedding or EmbeddingBag without SparseGrad", p.Name)
				}
				flag, d.sparse = 1, p.Name
			}
			trained, names, flags = append(trained, p.Tensor), append(names, p.Name), append(flags, flag)
		}
	}
	for _, b := range nn.NamedBuffers(model) {
		if err := dense(op, b.Name, b.Tensor); err != nil {
			return nil, err
		}
		d.hasBuffers = true
	}
	err := g.call(ctx, op, op, func(n cshim.Group) error {
		return withHandles(op, trained, func(h []cshim.Handle) (err error) {
			d.native, err = n.Reducer(h, flags, strings.Join(names, "\n"), o.ReducerOptions)
			return err
		})
	})
	if err == nil {
		state := d.parameters
		if !o.ownBuffers {
			state = slices.Concat(d.parameters, d.buffers())
		}
		err = g.rest(ctx, op, g.broadcastCoalesced(ctx, op, state, 0))
	}
	if err != nil {
		if d.native != 0 { // otherwise libtorch may not be loaded
			d.native.Free()
		}
		return nil, err
	}
	g.state.Lock()
	defer g.state.Unlock()
	g.parts[d] = struct{}{}
	register(d)
	return d, nil
}

// sparseGrads returns the names of the parameters of model whose gradients are sparse.
func sparseGrads(model any) (names []string) {
	for _, m := range nn.NamedModules(model) {
		var sparse bool
		switch l := m.Module.(type) {
		case *nn.Embedding:
			sparse = l.Sparse
		case *nn.EmbeddingBag:
			sparse = l.Sparse
		}
		if sparse {
			names = append(names, strings.TrimPrefix(m.Name+".weight", "."))
		}
	}
	return names
}

// Close ends the averaging of gradients; the model remains usable. Close of the group does the same. A second Close does
// nothing.
func (d *DDP) Close() error {
	if d == nil || d.g == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.native.Free()
	d.native = 0
	awaiting.CompareAndSwap(d, nil)
	unregister(d)
	d.g.state.Lock()
	defer d.g.state.Unlock()
	delete(d.g.parts, d)
	return nil
}

// Module returns the model. PyTorch: DistributedDataParallel.module.
func (d *DDP) Module() any {
	if d == nil {
		return nil
	}
	return d.model
}

// SetTraining sets the mode of the model and its submodules, as nn.Train and nn.Eval do, which call it for a DDP.
func (d *DDP) SetTraining(on bool) {
	if on {
		nn.Train(d.Module())
	} else {
		nn.Eval(d.Module())
	}
}

// Forward calls the Forward of the model, which must be an nn.Layer; for other models there is [DDP.Run].
func (d *DDP) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "Forward"
	if d == nil {
		return tensor.Failed(refuse.Nil(op, "a DDP"))
	}
	layer, ok := d.model.(nn.Layer)
	if !ok {
		return refuse.Tensor(op, tensor.ErrArgument, "%T has no method Forward(*tensor.Tensor) *tensor.Tensor: call Run", d.model)
	}
	return runOne(op, d.run, func() *tensor.Tensor { return layer.Forward(x) })
}

// Run calls f, a forward pass of the model, and returns its result. The backward pass must start from it.
func (d *DDP) Run(f func() *tensor.Tensor) *tensor.Tensor {
	return runOne("Run", d.run, f)
}

// RunAll is Run for forward passes with several results, of which some may be nil.
func (d *DDP) RunAll(f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	return runAll("RunAll", d.run, f)
}

// running runs f, the forward pass of a DDP or an FSDPModule.
type running func(op string, f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error)

func runAll(op string, run running, f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	if f == nil {
		return nil, refuse.Nil(op, "a function")
	}
	return run(op, f)
}

func runOne(op string, run running, f func() *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return tensor.Failed(refuse.Nil(op, "a function"))
	}
	all, err := run(op, func() ([]*tensor.Tensor, error) {
		t := f()
		return []*tensor.Tensor{t}, t.Err()
	})
	if err != nil {
		return tensor.Failed(err)
	}
	return all[0]
}

// awaiting is the DDP that ran the last forward pass.
var awaiting atomic.Pointer[DDP]

// open holds the DDPs that are open.
var open struct {
	sync.Mutex
	all []*DDP
}

func register(d *DDP) {
	open.Lock()
	defer open.Unlock()
	open.all = append(open.all, d)
}

func unregister(d *DDP) {
	open.Lock()
	defer open.Unlock()
	open.all = slices.DeleteFunc(open.all, func(o *DDP) bool { return o == d })
}

// those returns the open DDPs for which f is true.
func those(f func(d *DDP) bool) (all []*DDP) {
	open.Lock()
	defer open.Unlock()
	for _, d := range open.all {
		if f(d) {
			all = append(all, d)
		}
	}
	return all
}

// The stages of a backward pass of a DDP. They are known if there was a DDP of another group at the forward pass.
const (
	unknown int32 = iota
	ahead
	reached // the pass has come to the results of the forward pass
	passed  // and has begun to end: c10d may still wait for collectives
)

// watch tells d when a backward pass reaches outputs and when it ends, if there are DDPs of other groups, whose
// collective may be the one that fails.
func (d *DDP) watch(outputs []*tensor.Tensor) error {
	if len(those(func(o *DDP) bool { return o.g != d.g })) == 0 {
		d.stage.Store(unknown)
		return nil
	}
	d.stage.Store(ahead)
	for _, t := range outputs {
		if !t.RequiresGrad() || t.IsLeaf() {
			continue
		}
		if _, err := t.RegisterHook(func(*tensor.Tensor) (*tensor.Tensor, error) {
			if d.stage.Swap(reached) == reached {
				return nil, nil
			}
			return nil, handle.AtPassEnd(func() error {
				d.stage.Store(passed)
				return nil
			}, func() {})
		}); err != nil {
			return err
		}
	}
	return nil
}

// blamed returns the DDP in whose group a collective has failed in a backward pass, or nil if that is unknown.
func blamed() *DDP {
	all := those(func(d *DDP) bool { return d.stage.Load() >= reached })
	if len(all) == 0 {
		all = those(func(d *DDP) bool { return d.stage.Load() == unknown && d.passes.Load() != 0 })
	}
	if len(all) == 0 {
		return nil
	}
	same := func(a, b *DDP) bool { return a.g == b.g }
	if all = slices.CompactFunc(all, same); len(all) == 1 {
		return all[0]
	}
	found := make(chan *DDP, 1)
	go func() { // the store may not answer
		for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			for _, d := range all {
				if d.g.hasFailed() {
					found <- d
					return
				}
			}
		}
		found <- nil
	}()
	select {
	case d := <-found:
		return d
	case <-time.After(2 * grace):
		return nil
	}
}

func init() {
	handle.PeerFailure = func(op string, err error) error {
		d := blamed()
		if d == nil {
			return failed(op, err)
		}
		err = d.g.diagnose(op, nil, err)
		d.g.job.flight.End(d.pass.Load(), err)
		return err
	}
	handle.BeginBackward = func() (end func(err error) error) {
		d := awaiting.Load()
		if d == nil {
			return nil
		}
		var watched []func()
		var groups []*Group
		for _, o := range those(func(o *DDP) bool { return o == d || o.passes.Load() != 0 }) {
			if !slices.Contains(groups, o.g) {
				groups, watched = append(groups, o.g), append(watched, o.g.lookout())
			}
		}
		return func(err error) error {
			for _, stop := range watched {
				defer stop()
			}
			if err != nil {
				for _, o := range those(func(o *DDP) bool { return o.stage.Load() >= reached }) {
					o.stage.Store(ahead)
				}
				return err
			}
			over := those(func(o *DDP) bool { return o.stage.CompareAndSwap(passed, ahead) })
			if len(over) == 0 {
				over = []*DDP{d}
			}
			for _, o := range over {
				failure := o.g.drain("Backward")
				o.g.job.flight.End(o.pass.Load(), failure)
				err = cmp.Or(err, failure)
			}
			return err
		}
	}
}

// beginPass records a backward pass, whose collectives c10d starts.
func (d *DDP) beginPass() {
	d.passes.Add(1)
	d.g.start.Lock()
	defer d.g.start.Unlock()
	d.pass.Store(d.g.record(true, "Backward of a DDP"))
}

// check returns an error if d can no longer be used.
func (d *DDP) check(op string) error { return d.use(op, func(cshim.Reducer) error { return nil }) }

// use calls f with the native reducer, which Close does not free meanwhile.
func (d *DDP) use(op string, f func(n cshim.Reducer) error) error {
	if d == nil {
		return refuse.Nil(op, "a DDP")
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.g.check(op); err != nil { // with the lock: see inUse
		return err
	}
	if d.native == 0 {
		return refuse.Error(op, ErrClosed, "the DDP was closed")
	}
	return d.g.diagnose(op, nil, f(d.native))
}

func (d *DDP) run(op string, f func() ([]*tensor.Tensor, error)) ([]*tensor.Tensor, error) {
	if err := d.check(op); err != nil {
		return nil, err
	}
	if s := stepping(); s != nil {
		if err := s.adopt(op, d); err != nil {
			return nil, err
		}
		before := d.noSync
		d.noSync = true
		defer func() { d.noSync = before }()
		defer s.aborting(d)()
	}
	if err := d.begin(op); err != nil {
		return nil, err
	}
	all, err := f()
	if err == nil && d.syncs() && d.o.FindUnused && !d.o.StaticGraph {
		all, err = sunk(all)
	}
	if err != nil {
		return nil, err
	}
	d.buffersToSync = d.syncs()
	if err := d.expect(op, all); err != nil {
		return nil, err
	}
	return all, nil
}

// sink returns its inputs. A backward pass from some of its outputs also reaches what lies behind the inputs for the
// others, without a gradient, which tells c10d that parameters there are unused. PyTorch: _DDPSink of
// torch.nn.parallel.distributed.
type sink struct{}

func (sink) Forward(ctx *autograd.Context, in ...*tensor.Tensor) (out []*tensor.Tensor, err error) {
	ctx.SetMaterializeGrads(false)
	for _, t := range in {
		out = append(out, t.Clone()) // which can be changed in place without a change of t or of another result
	}
	return out, nil
}

func (sink) Backward(_ *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return grads, nil
}

// sunk returns outputs, of which those that have a graph have gone through a sink.
func sunk(outputs []*tensor.Tensor) ([]*tensor.Tensor, error) {
	var in []*tensor.Tensor
	var at []int
	for i, t := range outputs {
		if t.RequiresGrad() && !t.IsLeaf() {
			in, at = append(in, t), append(at, i)
		}
	}
	if len(in) == 0 {
		return outputs, nil
	}
	out, err := autograd.Apply(sink{}, in...)
	if err != nil {
		return nil, err
	}
	outputs = slices.Clone(outputs)
	for i, k := range at {
		outputs[k] = out[i]
	}
	return outputs, nil
}

// expect does what precedes a backward pass from outputs, of which some may be nil.
func (d *DDP) expect(op string, outputs []*tensor.Tensor) error {
	outputs = slices.DeleteFunc(slices.Clone(outputs), func(t *tensor.Tensor) bool { return t == nil })
	if d.syncs() {
		d.beginPass()
	}
	err := d.use(op, func(n cshim.Reducer) error {
		return withHandles(op, outputs, func(h []cshim.Handle) error { return n.AfterForward(d.syncs(), h) })
	})
	if err == nil && d.syncs() {
		err = d.watch(outputs)
	}
	if err != nil {
		d.g.job.flight.End(d.pass.Load(), err)
	}
	return err
}

// syncs reports whether the next backward pass averages gradients.
func (d *DDP) syncs() bool { return !d.noSync && tensor.GradEnabled() }

// begin does what precedes a forward pass. The caller has checked d.
func (d *DDP) begin(op string) error {
	var count cshim.Work
	divide := false
	if d.join != nil {
		w, err := d.notify()
		if err != nil {
			return err
		}
		count, divide = w.native, d.join.divide
		defer func() { _ = w.Wait(context.Background()) }() // the pass has the error
	}
	if d.syncs() {
		awaiting.Store(d)
	}
	err := d.use(op, func(n cshim.Reducer) error { return n.BeforeForward(d.syncs(), count, divide) })
	if err == nil {
		err = d.syncBuffers(op, true)
	}
	if err == nil && d.join != nil {
		_, err = d.anySyncs(d.syncs())
	}
	return err
}

// buffers returns the buffers that the model has now: a forward pass may have replaced them.
func (d *DDP) buffers() (all []*tensor.Tensor) {
	if !d.hasBuffers {
		return nil
	}
	for _, b := range nn.NamedBuffers(d.model) {
		all = append(all, b.Tensor)
	}
	return all
}

// syncBuffers copies the buffers of rank 0, or with Join those of the highest rank that has inputs, to the others.
func (d *DDP) syncBuffers(op string, active bool) error {
	if !d.buffersToSync || d.o.noForwardSync {
		return nil
	}
	buffers := d.buffers()
	if len(buffers) == 0 {
		return nil
	}
	src, err := 0, error(nil)
	if d.join != nil {
		if src, err = d.commonRank(active); err != nil {
			return err
		}
	}
	return tensor.WithScope(func() error {
		// Their data, so that a backward pass through an earlier forward pass does not find them modified.
		data := make([]*tensor.Tensor, len(buffers))
		for i, b := range buffers {
			out, err := tensor.CallUnchecked("aten::data", b)
			if err != nil {
				return err
			}
			data[i] = out[0].(*tensor.Tensor)
		}
		return d.g.broadcastCoalesced(context.Background(), op, data, src)
	})
}

// NoSync calls f. Gradients of backward passes whose forward pass is in f accumulate on each rank, and the next pass outside
// averages their sums. PyTorch: DistributedDataParallel.no_sync.
func (d *DDP) NoSync(f func() error) error {
	const op = "NoSync"
	switch {
	case d == nil:
		return refuse.Nil(op, "a DDP")
	case f == nil:
		return refuse.Nil(op, "a function")
	}
	before := d.noSync
	d.noSync = true
	defer func() { d.noSync = before }()
	return f()
}

// DDPTimes are mean times of a step. PyTorch: DistributedDataParallel._get_ddp_logging_data.
type DDPTimes struct {
	Forward, Backward time.Duration
	Communication     time.Duration // between the start of the first collective and the end of the last
	Overlap           time.Duration // the part of Communication in which gradients were computed
}

// Times returns the mean times of the steps that c10d has measured: the first ten, and then each hundredth, without those
// of a Pipeline.
func (d *DDP) Times() (t DDPTimes, err error) {
	err = d.use("Times", func(n cshim.Reducer) error {
		ns, err := n.Times()
		t = DDPTimes{time.Duration(ns[0]), time.Duration(ns[1]), time.Duration(ns[2]), time.Duration(ns[3])}
		return err
	})
	return t, err
}

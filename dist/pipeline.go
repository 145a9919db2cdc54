package dist

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	optional "github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// A Pipeline trains a model whose layers are divided into stages, one for each rank of a group, in their order. A batch is
// divided into microbatches, so that stages compute at the same time: while one computes on a microbatch, the one before it
// computes on the next. Gradients add up over the microbatches and are those of the whole batch, if its loss is the mean
// of its parts. PyTorch: torch.distributed.pipelining.
//
//	p, err := dist.NewPipeline(g, stages[g.Rank()], loss, 8)
//	…
//	opt.ZeroGrad()
//	loss, err := p.Step(ctx, x, y) // x is read on the first rank, y on the last
//	err = opt.Step()               // of this stage's parameters
//
// A stage may be a [DDP] over the ranks of the same stage in other pipelines. It averages the gradients of all
// microbatches in the backward pass of the last one. Each replica has buffers of its own after the first forward pass.
// A stage may also run DDPs in its Forward, if each runs in the last microbatch. A stage nn.Func(ddp.Forward) hides the
// model: [StageDevice] gives the device then, and nn.Eval takes the model.
//
// nn.ClipGradNorm_ sees the gradients of one stage, as in PyTorch. For the norm of all, add up the squares of
// nn.GetTotalNorm over the group, and call nn.ClipGradsWithNorm_ with the root.
type Pipeline struct {
	g            *Group
	stage        nn.Layer
	loss         func(output, target *tensor.Tensor) *tensor.Tensor
	microbatches int
	gpipe        bool
	device       tensor.Device
	met          bool // the ranks have compared their devices
}

// A PipelineOption is an option of NewPipeline.
type PipelineOption func(*Pipeline)

// GPipe runs the forward passes of all microbatches before the first backward pass. The default, 1F1B, alternates them as soon
// as the last stage has an output, so that a stage keeps at most as many microbatches as there are stages. PyTorch:
// ScheduleGPipe and Schedule1F1B.
func GPipe(on ...bool) PipelineOption { return func(p *Pipeline) { p.gpipe = optional.On(on) } }

// StageDevice sets the device of the stage. The default is that of its first parameter or buffer, or the CPU if it has none.
// PyTorch: the device of a PipelineStage.
func StageDevice(d tensor.Device) PipelineOption { return func(p *Pipeline) { p.device = d } }

// NewPipeline returns this rank's part of a pipeline over g, with the layers of its stage. loss is called on the last rank; it
// must return the mean over its microbatch, a scalar. All ranks must give the same number of microbatches, and all stages must be
// on the CPU or all on CUDA devices; a group of these needs the backends "cpu:gloo,cuda:nccl". Options: GPipe, StageDevice.
func NewPipeline(g *Group, stage nn.Layer, loss func(output, target *tensor.Tensor) *tensor.Tensor, microbatches int, opts ...PipelineOption) (*Pipeline, error) {
	const op = "NewPipeline"
	if err := g.check(op); err != nil {
		return nil, err
	}
	switch {
	case stage == nil:
		return nil, refuse.Nil(op, "a stage")
	case loss == nil && g.rank == g.size-1:
		return nil, refuse.Nil(op, "a loss")
	case microbatches < 1:
		return nil, refuse.Error(op, tensor.ErrArgument, "%d microbatches", microbatches)
	}
	model := any(stage)
	if d, ok := stage.(*DDP); ok {
		model = d.Module()
	}
	if err := nn.Check(model); err != nil {
		return nil, err
	}
	p := &Pipeline{g: g, stage: stage, loss: loss, microbatches: microbatches, device: tensor.CPU}
	if state := append(nn.NamedParameters(model), nn.NamedBuffers(model)...); len(state) != 0 {
		p.device = state[0].Tensor.Device()
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, refuse.NilOption(op)
		}
		opt(p)
	}
	return p, nil
}

// step is the state of one Step.
type step struct {
	*Pipeline
	op          string
	ctx         context.Context
	xs, targets []*tensor.Tensor // on the first and the last rank
	inputs      []*tensor.Tensor // of the microbatches in flight
	outputs     []*tensor.Tensor
	sends       []sending
	total       *tensor.Tensor // of the losses, on the last rank, nil elsewhere
	forwardOnly bool

	scope      *tensor.Scope
	microbatch int    // of the last forward pass
	ddps       []*DDP // that the stage has run
	final      []*DDP // those of the last microbatch
}

// steps holds the steps that have begun and not ended.
var steps struct {
	sync.Mutex
	all []*step
}

// begin makes the forward passes of DDPs parts of s until end is called.
func (s *step) begin() (end func()) {
	s.scope = tensor.CurrentScope()
	steps.Lock()
	defer steps.Unlock()
	steps.all = append(steps.all, s)
	return func() {
		steps.Lock()
		defer steps.Unlock()
		steps.all = slices.DeleteFunc(steps.all, func(o *step) bool { return o == s })
	}
}

// stepping returns the innermost step that this goroutine is in, or nil.
func stepping() *step {
	steps.Lock()
	defer steps.Unlock()
	for _, s := range slices.Backward(steps.all) {
		if handle.InScope(s.scope) {
			return s
		}
	}
	return nil
}

// adopt notes that the stage runs d. c10d averages gradients in one backward pass: that of the last microbatch.
func (s *step) adopt(op string, d *DDP) error {
	switch {
	case d.join != nil:
		return refuse.Error(op, tensor.ErrArgument, "a Pipeline cannot run a DDP in Join: ranks whose loop has returned would not take part in its passes")
	case !tensor.GradEnabled():
		return nil
	case d.o.StaticGraph:
		return refuse.Error(op, tensor.ErrArgument, "a Pipeline cannot run a DDP with StaticGraph, whose first backward pass must average gradients")
	case !d.syncs():
		return nil
	}
	if !slices.Contains(s.ddps, d) {
		s.ddps = append(s.ddps, d)
	}
	if s.microbatch == s.microbatches-1 && !slices.Contains(s.final, d) {
		s.final = append(s.final, d)
	}
	return nil
}

// average makes the backward pass of the last microbatch, from y, average the gradients of the DDPs.
func (s *step) average(y *tensor.Tensor) error {
	if len(s.final) != len(s.ddps) || len(s.ddps) != 0 && !y.RequiresGrad() {
		return refuse.Error(s.op, tensor.ErrArgument, "a DDP of the stage has not run in the last microbatch, or its output has no gradient: "+
			"the backward pass of that microbatch averages the gradients of all")
	}
	for _, d := range s.final {
		awaiting.Store(d)
		if err := d.expect(s.op, one(y)); err != nil {
			return err
		}
	}
	return nil
}

// aborting aborts d's group if the step's context ends before stop is called.
func (s *step) aborting(d *DDP) (stop func() bool) {
	return context.AfterFunc(s.ctx, func() { _ = d.g.Abort() })
}

// sending is what was sent for a microbatch: an output, or the gradient of an input. It is kept until it has arrived.
type sending struct {
	peer, microbatch int
	works            []*Work
}

// Step runs the forward and backward passes of a batch and returns its loss, on all ranks. x, on the first rank, and
// target, on the last, are divided along their first dimension, which must be a multiple of the number of microbatches;
// on other ranks they are not read. Stages before the first one with a parameter to train have no backward pass. If it
// fails, or a stage or the loss panics or ends the goroutine (runtime.Goexit), the group can only be closed. The same
// holds for the groups of the stage's DDPs if ctx ends.
func (p *Pipeline) Step(ctx context.Context, x, target *tensor.Tensor) (loss float64, err error) {
	return p.batch(ctx, "Step", x, target, false)
}

// Eval runs the forward passes of a batch, without gradients, and returns its loss, on all ranks. Its arguments and
// errors are those of Step. All ranks must call it, and nn.Eval puts their stages into evaluation mode. PyTorch: the
// method eval of a schedule of torch.distributed.pipelining.
func (p *Pipeline) Eval(ctx context.Context, x, target *tensor.Tensor) (loss float64, err error) {
	const op = "Eval"
	err = autograd.NoGrad(func() error {
		loss, err = p.batch(ctx, op, x, target, true)
		return err
	})
	return loss, err
}

func (p *Pipeline) batch(ctx context.Context, op string, x, target *tensor.Tensor, forwardOnly bool) (loss float64, err error) {
	if p == nil {
		return 0, refuse.Nil(op, "a pipeline")
	}
	if err := p.g.check(op); err != nil {
		return 0, err
	}
	if ctx == nil {
		return 0, refuse.Nil(op, "a context")
	}
	err = tensor.WithScope(func() error {
		s := &step{Pipeline: p, op: op, ctx: ctx, forwardOnly: forwardOnly,
			inputs: make([]*tensor.Tensor, p.microbatches), outputs: make([]*tensor.Tensor, p.microbatches)}
		defer s.begin()()
		err := p.g.orAbort(func() error {
			if err := s.run(x, target); err != nil {
				return err
			}
			total := tensor.Zeros([]int{1}, tensor.Float64) // which holds a loss of any dtype
			if s.total != nil {
				total.Copy_(s.total)
			}
			if err := p.g.Broadcast(ctx, total, p.g.size-1); err != nil {
				return err
			}
			loss, err = total.Item()
			return err
		})
		if errors.Is(err, ErrAborted) && ctx.Err() != nil {
			return abortedBy(op, ctx)
		}
		return err
	})
	return loss, err
}

func (s *step) run(x, target *tensor.Tensor) (err error) {
	if s.first() {
		if s.xs, err = s.divide("x", x); err != nil {
			return err
		}
	}
	if s.last() {
		if s.targets, err = s.divide("target", target); err != nil {
			return err
		}
		s.total = tensor.Zeros([]int{1}, tensor.Float64, s.device)
	}
	if err := s.meet(); err != nil {
		return err
	}
	ahead := s.ahead(s.g.rank)
	rounds := s.microbatches + ahead
	if s.forwardOnly {
		rounds = s.microbatches
	}
	// Where a rank sends to one that it then receives from, it does both at once.
	for i := range rounds {
		var y, gy *tensor.Tensor // to the next stage, and from it
		forward, backward := i < s.microbatches, i >= ahead
		if forward {
			if y, err = s.forward(i); err != nil {
				return err
			}
		}
		if y != nil && (!s.gpipe || s.forwardOnly) { // no gradient may tell that it has arrived
			if err := s.arrived(s.g.rank+1, i-max(1, s.g.size-1-s.g.rank)); err != nil {
				return err
			}
		}
		if !s.last() {
			requires := forward && s.outputs[i].RequiresGrad()
			if gy, err = s.exchange(y, i, requires, backward && s.outputs[i-ahead].RequiresGrad(), s.g.rank+1); err != nil {
				return err
			}
			if gy != nil {
				if err := s.arrived(s.g.rank+1, i-ahead); err != nil {
					return err
				}
			}
		}
		if s.forwardOnly {
			s.outputs[i].Release()
			if !s.first() {
				s.inputs[i].Release()
			}
		}
		if !backward {
			continue
		}
		gx, err := s.backward(i-ahead, gy)
		if err != nil {
			return err
		}
		if !s.first() {
			next := i + 1
			x, err := s.exchange(gx, i-ahead, false, next < s.microbatches, s.g.rank-1)
			if err != nil {
				return err
			}
			if x != nil {
				s.inputs[next] = x
				// The other rank sends it after its previous round.
				if err := s.arrived(s.g.rank-1, next-1-s.ahead(s.g.rank-1)); err != nil {
					return err
				}
			}
		}
	}
	return errors.Join(s.arrived(s.g.rank-1, s.microbatches), s.arrived(s.g.rank+1, s.microbatches))
}

// ahead returns the number of forward passes of a rank before its first backward pass.
func (s *step) ahead(rank int) int {
	if s.gpipe || s.forwardOnly {
		return s.microbatches
	}
	return min(s.g.size-1-rank, s.microbatches)
}

// arrived waits for the sends to a rank up to those for a microbatch, and drops them.
func (s *step) arrived(peer, microbatch int) error {
	rest := s.sends[:0]
	for _, x := range s.sends {
		if x.peer != peer || x.microbatch > microbatch {
			rest = append(rest, x)
			continue
		}
		for _, w := range x.works {
			if err := w.Wait(s.ctx); err != nil {
				return err
			}
		}
	}
	clear(s.sends[len(rest):])
	s.sends = rest
	return nil
}

func (s *step) first() bool { return s.g.rank == 0 }
func (s *step) last() bool  { return s.g.rank == s.g.size-1 }

// divide returns the microbatches of t.
func (s *step) divide(what string, t *tensor.Tensor) ([]*tensor.Tensor, error) {
	if err := refuse.Unusable(s.op, what, t); err != nil {
		return nil, err
	}
	if t.Dim() == 0 || t.Size(0)%s.microbatches != 0 || t.Size(0) == 0 {
		return nil, refuse.Error(s.op, tensor.ErrArgument, "%s of shape %v cannot be divided into %d microbatches", what, t.Shape(), s.microbatches)
	}
	return t.Chunk(s.microbatches)
}

// meet compares the stages' devices in the first step. On devices it connects all ranks, which NCCL needs before an exchange.
func (s *step) meet() error {
	if s.met {
		return nil
	}
	types, err := AllGatherObject(s.ctx, s.g, s.device.Type)
	if err != nil {
		return err
	}
	for r, t := range types {
		if t != s.device.Type {
			return refuse.Error(s.op, tensor.ErrArgument, "the stage of rank %d is on %v, that of rank %d on %v: see StageDevice", s.g.rank, s.device.Type, r, t)
		}
	}
	if s.device.Type != tensor.CPUType {
		if err := s.g.AllReduce(s.ctx, tensor.Zeros([]int{1}, s.device), Sum); err != nil {
			return err
		}
	}
	s.met = true
	return nil
}

// forward returns the output of the stage for microbatch i, for the next one.
func (s *step) forward(i int) (out *tensor.Tensor, err error) {
	if s.first() {
		s.inputs[i] = s.xs[i]
	} else if s.inputs[i] == nil {
		if s.inputs[i], err = s.exchange(nil, i, false, true, s.g.rank-1); err != nil {
			return nil, err
		}
	}
	s.microbatch = i
	y := tensor.Tidy(func() *tensor.Tensor {
		y := s.stage.Forward(s.inputs[i])
		if s.last() {
			y = s.loss(y, s.targets[i]).Div(s.microbatches)
		}
		return y
	})
	if err := y.Err(); err != nil {
		return nil, err
	}
	s.outputs[i] = y
	if s.last() {
		return nil, s.total.Add_(y.Detach()).Err()
	}
	if y.Device() != s.device {
		return nil, refuse.Error(s.op, tensor.ErrArgument, "the stage of rank %d is on %v and has returned a tensor on %v: see StageDevice", s.g.rank, s.device, y.Device())
	}
	return y.Detach(), nil
}

// backward runs the backward pass of microbatch i with the gradient of its output, which is nil on the last rank and if
// the output requires none. It returns the gradient of its input, or nil if the input requires none.
func (s *step) backward(i int, gy *tensor.Tensor) (gx *tensor.Tensor, err error) {
	x, y := s.inputs[i], s.outputs[i]
	if i == s.microbatches-1 {
		if err := s.average(y); err != nil {
			return nil, err
		}
		for _, d := range s.final {
			defer s.aborting(d)()
		}
	}
	switch {
	case s.last():
		err = y.Backward()
	case gy != nil:
		err = autograd.Backward([]*tensor.Tensor{y}, tensor.Gradient(gy))
	}
	if err != nil {
		return nil, err
	}
	gy.Release()
	if !s.first() {
		if gx = x.Grad(); gx == nil && x.RequiresGrad() {
			gx = x.Detach().ZerosLike()
		}
		x.Release()
	}
	y.Release()
	return gx, nil
}

// maxDims is the number of dimensions in a header.
const maxDims = 8

// exchange sends a microbatch's out, unless it is nil, to the rank peer and releases it, and receives from peer if in
// is set. requires reports whether peer must send back a gradient of out.
func (s *step) exchange(out *tensor.Tensor, microbatch int, requires, in bool, peer int) (received *tensor.Tensor, err error) {
	if out != nil {
		defer out.Release()
		s.sends = append(s.sends, sending{peer: peer, microbatch: microbatch})
		if err := s.sendHeader(out, requires, peer); err != nil {
			return nil, err
		}
		out = out.Contiguous()
		defer out.Release()
	}
	if in {
		if received, requires, err = s.receiveHeader(peer); err != nil {
			return nil, err
		}
		defer func() {
			if err == nil && requires {
				err = received.RequiresGrad_().Err()
			}
		}()
	}
	switch {
	case out != nil && in && s.device.Type != tensor.CPUType:
		err = s.g.run(s.ctx, "Exchange", func() (*Work, error) {
			return s.g.begin("Exchange", cshim.Collective{Kind: cshim.Exchange, Peer: int32(peer)}, one(received), one(out))
		})
		return received, err
	case out != nil:
		if err := s.send(out, peer); err != nil {
			return nil, err
		}
	}
	if in {
		err = s.g.Recv(s.ctx, received, peer, 0)
	}
	return received, err
}

// sendHeader starts to send the dtype and shape of t, and whether it requires a gradient.
func (s *step) sendHeader(t *tensor.Tensor, requires bool, to int) error {
	if err := t.Err(); err != nil {
		return err
	}
	shape := t.Shape()
	if len(shape) > maxDims {
		return refuse.Error(s.op, tensor.ErrArgument, "a stage returned a tensor of shape %v, of more than %d dimensions", shape, maxDims)
	}
	header := make([]int64, 3+maxDims)
	header[0], header[1] = int64(t.DType()), int64(len(shape))
	if requires {
		header[2] = 1
	}
	for i, n := range shape {
		header[3+i] = int64(n)
	}
	return s.send(tensor.FromSlice(header, []int{len(header)}), to)
}

// send starts to send t.
func (s *step) send(t *tensor.Tensor, to int) error {
	w, err := s.g.SendAsync(t, to, 0)
	if err == nil {
		last := &s.sends[len(s.sends)-1]
		last.works = append(last.works, w)
	}
	return err
}

// receiveHeader returns an empty tensor for what the rank sends next, and whether that requires a gradient.
func (s *step) receiveHeader(from int) (t *tensor.Tensor, requires bool, err error) {
	header := tensor.Zeros([]int{3 + maxDims}, tensor.Int64)
	if err := s.g.Recv(s.ctx, header, from, 0); err != nil {
		return nil, false, err
	}
	h, err := tensor.Data[int64](header)
	if err != nil {
		return nil, false, err
	}
	header.Release()
	if h[1] < 0 || h[1] > maxDims {
		return nil, false, refuse.Error(s.op, tensor.ErrArgument, "rank %d has sent something other than a stage's tensor", from)
	}
	shape := make([]int, h[1])
	for i := range shape {
		shape[i] = int(h[3+i])
	}
	t = tensor.Empty(shape, tensor.DType(h[0]), s.device)
	return t, h[2] != 0, t.Err()
}

// Package plan computes how much memory a training step needs before it runs. [New] runs the program's own step on the meta
// device, whose tensors have shapes and no memory, and reports what is live at the peak, which remedies would lower it
// and by how much:
//
//	model := newModel(nn.Device(tensor.Meta))
//	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-3)
//	p, err := plan.New(model, opt, 64, func(batch int) error {
//		x := tensor.Empty([]int{batch, 784}, tensor.Meta)
//		y := tensor.Empty([]int{batch}, tensor.Int64, tensor.Meta)
//		opt.ZeroGrad()
//		if err := nn.CrossEntropy(model.Forward(x), y).Backward(); err != nil {
//			return err
//		}
//		return opt.Step()
//	})
//	fmt.Println(p)
//
// [FindBatchSize] finds the largest batch that fits, on a device or in a plan. The package is apart from vram because it
// knows modules and optimizers, which vram cannot import.
//
// # Definitions
//
// A block is the storage of a tensor and its views. Its bytes are those that Linstock's CPU allocator takes, which rounds
// sizes up to classes (an eighth at most). The step runs twice, each time in a scope: the first run makes the optimizer's
// state. The plan covers both runs.
//
// The peak is the maximum over time of the bytes live: the blocks of the model, those of the optimizer, and all that the
// steps allocate. At the peak every live block belongs to one part:
//
//   - weights and buffers: those of the model;
//   - gradients: the Grad of a parameter of the model;
//   - masters: the float32 copies of [optim.MasterWeights];
//   - optimizer state: the other tensors of an optimizer;
//   - activations: allocated outside backward passes, and live when the next one begins;
//   - temporaries: all others. Without a backward pass that includes all results of the model.
//
// # Invariants
//
//   - The sum of the parts is the peak.
//   - A plan allocates no memory on any device for tensors, except what the step itself allocates on others.
//   - The model's and the optimizer's tensors are the same objects after New; the optimizer has state, and its step
//     counts have risen by one for each run of the step, which are six at most; the parameters have gradients if the
//     step leaves them.
//
// # What a plan leaves out
//
// A plan collects garbage before operators, as the default policy does, so that a tensor that the program has lost is not
// live. In a program that allocates faster than sweeps pay for, or with [vram.Off], the peak is higher.
//
// Only what the goroutine that calls the step allocates is recorded, not what other goroutines do that the step starts.
//
// Tensors made before New are counted only if they belong to the model, its gradients or the optimizer; make the step's
// inputs in it. Which operators run is decided as on the CPU: attention does not keep its weights, an LSTM is oneDNN's.
// The copies that oneDNN makes for convolutions and LSTMs are counted with measured sizes. Other scratch memory, and
// that of cuBLAS and cuDNN, is not counted. The allocator's cache and fragmentation are not counted (on the CPU the
// cache is bounded by a quarter of the peak).
//
// For the twelve models of make bench-peak, with small batches, a plan is 0.93 to 1.09 times the measured peak above
// what is live between steps (TestPlan of tests/bench/peak).
//
// The step must not read values (Item, Data): a meta tensor has none. An operator without a kernel for the meta device fails
// with an error that names it. Operators whose result's shape depends on values have none.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Masters is the part of the float32 copies of parameters. The names of the other parts are vram's: [vram.Weights],
// [vram.Buffers], [vram.Gradients], [vram.OptimizerState], [vram.Activations] and [vram.Temporaries].
const Masters = "masters"

var names = []string{vram.Weights, vram.Buffers, vram.Gradients, Masters, vram.OptimizerState, vram.Activations, vram.Temporaries}

// Part is what one purpose needs at the peak.
type Part struct {
	Name    string
	Bytes   int64
	ByDType map[tensor.DType]int64 // bytes not listed have no known dtype
}

// Block is a storage that is live at the peak.
type Block struct {
	Op    string // what allocated it: "aten::convolution"
	Part  string
	Bytes int64
}

// Plan is the memory of a training step. Bytes are those at the peak.
type Plan struct {
	Batch      int
	Parameters int64 // elements of the model's parameters: Ψ
	Peak       int64
	Parts      []Part  // weights, buffers, gradients, masters, optimizer state, activations, temporaries
	Largest    []Block // the largest activations and temporaries, at most ten
	Remedies   []Remedy

	trained []parameter // those that require a gradient
	line    []int64     // live bytes over the second step, in allocations
	saved   []int64     // the activations' blocks
}

// parameter is a parameter of the model.
type parameter struct {
	shape []int
	dtype tensor.DType
}

func (x parameter) elements() int64 {
	n := int64(1)
	for _, d := range x.shape {
		n *= int64(d)
	}
	return n
}

// bytes returns what a tensor of the parameter's shape takes.
func (x parameter) bytes(d tensor.DType) int64 {
	return cshim.PlanRounded(x.elements() * int64(d.Size()))
}

// Part returns the part with a name, or an empty one with that name.
func (p *Plan) Part(name string) Part {
	if p != nil {
		for _, x := range p.Parts {
			if x.Name == name {
				return x
			}
		}
	}
	return Part{Name: name}
}

// bytes returns the sum of parts.
func (p *Plan) bytes(names ...string) (n int64) {
	for _, name := range names {
		n += p.Part(name).Bytes
	}
	return n
}

// New plans step, a whole training step with a batch of the given size: forward pass, backward pass, optimizer. All
// parameters and buffers of model, a module, must be on the meta device ([nn.Device], [nn.To]). optimizer may be nil;
// the state of other optimizers that step uses counts too. step is called twice with batch, and twice with each
// smaller batch that a remedy needs; if it fails with that, the remedy is left out. New returns step's error with
// batch; it fails if model is not on the meta device. If another goroutine is planning, New waits for it, also if both
// have one model: step must not wait for another goroutine's plan.
func New(model any, optimizer *optim.Optimizer, batch int, step func(batch int) error) (*Plan, error) {
	p, err := once("plan.New", model, optimizer, batch, step)
	if err != nil {
		return nil, err
	}
	p.remedies(model, optimizer, step)
	return p, nil
}

// once is New without the remedies, for op.
func once(op string, model any, optimizer *optim.Optimizer, batch int, step func(batch int) error) (*Plan, error) {
	if step == nil {
		return nil, refuse.Nil(op, "a step")
	}
	if batch < 1 {
		return nil, refuse.Error(op, tensor.ErrArgument, "a batch of %d: want 1 or more", batch)
	}
	if err := nn.Check(model); err != nil {
		return nil, fmt.Errorf("linstock: %s: %w", op, err)
	}
	end, err := begin()
	if err != nil {
		return nil, fmt.Errorf("linstock: %s: %w", op, err)
	}
	defer end()
	params, buffers := nn.NamedParameters(model), nn.NamedBuffers(model)
	for _, t := range slices.Concat(params, buffers) {
		if d := t.Tensor.Device(); d != tensor.Meta {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s is on %v: make the model with nn.Device(tensor.Meta)", t.Name, d)
		}
	}
	r := &recorder{part: map[uint64]string{}, dtype: map[uint64]tensor.DType{}}
	p := &Plan{Batch: batch}
	for _, x := range params {
		p.Parameters += int64(x.Tensor.Numel())
		if x.Tensor.RequiresGrad() {
			p.trained = append(p.trained, parameter{x.Tensor.Shape(), x.Tensor.DType()})
		}
	}
	if err := r.run(model, params, optimizer, func() error { return step(batch) }); err != nil {
		return nil, fmt.Errorf("linstock: %s: the step with batch %d: %w", op, batch, err)
	}
	p.fill(r)
	return p, nil
}

// fill computes the peak and what is live there.
func (p *Plan) fill(r *recorder) {
	r.mu.Lock() // a goroutine that the step has left behind may be in a hook
	defer r.mu.Unlock()
	events := make([]int64, r.totals.Position)
	var backward []int64 // positions at which backward passes allocate
	for _, b := range r.blocks {
		events[b.Born] += b.Rounded
		if b.Died >= 0 {
			events[b.Died] -= b.Rounded
		}
		if b.Backward != 0 {
			backward = append(backward, b.Born)
		}
	}
	var live, most int64
	at := int64(-1)
	for i, e := range events {
		if live += e; live > most {
			most, at = live, int64(i)
		}
		events[i] = live
	}
	parts := map[string]*Part{}
	for _, name := range names {
		parts[name] = &Part{Name: name, ByDType: map[tensor.DType]int64{}}
	}
	base := int64(0)
	for _, k := range r.kept {
		parts[k.part].add(k.bytes, int32(k.dtype))
		base += k.bytes
	}
	for _, b := range r.blocks {
		if b.Born > at || b.Died >= 0 && b.Died <= at {
			continue
		}
		name, ok := r.part[b.Storage]
		if !ok {
			name = vram.Temporaries
			i, _ := slices.BinarySearch(backward, b.Born)
			if b.Backward == 0 && i < len(backward) && (b.Died < 0 || b.Died > backward[i]) {
				name = vram.Activations
				p.saved = append(p.saved, b.Rounded)
			}
			p.Largest = append(p.Largest, Block{r.ops[b.Op], name, b.Rounded})
		}
		dtype := b.DType
		if d, ok := r.dtype[b.Storage]; ok {
			dtype = int32(d)
		}
		parts[name].add(b.Rounded, dtype)
	}
	for _, name := range names {
		p.Parts = append(p.Parts, *parts[name])
		p.Peak += parts[name].Bytes
	}
	slices.SortStableFunc(p.Largest, func(a, b Block) int { return cmp.Compare(b.Bytes, a.Bytes) })
	p.Largest = slices.Clip(p.Largest[:min(10, len(p.Largest))])
	for _, n := range events[min(r.second, int64(len(events))):] {
		p.line = append(p.line, base+n)
	}
}

func (p *Part) add(bytes int64, dtype int32) {
	p.Bytes += bytes
	if dtype >= 0 {
		p.ByDType[tensor.DType(dtype)] += bytes
	}
}

// kept is a block that exists outside of the recording.
type kept struct {
	name  uint64
	part  string
	bytes int64
	dtype tensor.DType
}

// recorder records the steps of a plan and knows which storages belong to which part.
type recorder struct {
	mu     sync.Mutex        // guards part, dtype, kept and began: hooks run on each goroutine that calls Backward
	part   map[uint64]string // by the storage's name
	dtype  map[uint64]tensor.DType
	kept   []kept // claimed before the steps, whose recording does not have them
	blocks []cshim.PlanBlock
	ops    map[uint32]string
	totals cshim.PlanTotals
	second int64 // the position at which the second step began
	began  bool  // the steps
}

// claim assigns the storage of t to a part and returns its name; the first claim counts.
func (r *recorder) claim(part string, t *tensor.Tensor) (name uint64) {
	name, bytes := handle.Storage(t)
	device, dtype := t.Device(), t.DType()
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.part[name]; ok || name == 0 || device != tensor.Meta {
		return name
	}
	r.part[name], r.dtype[name] = part, dtype
	if !r.began {
		r.kept = append(r.kept, kept{name, part, cshim.PlanRounded(bytes), dtype})
	}
	return name
}

// claimAll claims the tensors that the model and the optimizer have now, and the gradients, and returns the names of
// their storages.
func (r *recorder) claimAll(model any, optimizer *optim.Optimizer) (names map[uint64]bool, err error) {
	names = map[uint64]bool{}
	claim := func(part string, t *tensor.Tensor) { names[r.claim(part, t)] = true }
	for _, b := range nn.NamedBuffers(model) {
		claim(vram.Buffers, b.Tensor)
	}
	params := nn.Parameters(model)
	for _, p := range params {
		claim(vram.Weights, p)
	}
	for _, state := range optimizer.StateDict().State {
		for name, v := range state {
			if t, ok := v.(*tensor.Tensor); ok && name == "master" {
				claim(Masters, t)
			} else if ok {
				claim(vram.OptimizerState, t)
			}
		}
	}
	err = tensor.WithScope(func() error {
		grads, err := tensor.Grads(params)
		for _, g := range grads {
			if g != nil {
				claim(vram.Gradients, g)
			}
		}
		return err
	})
	return names, err
}

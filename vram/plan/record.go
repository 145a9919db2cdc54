package plan

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// metaWord is the shim's number of the meta device.
const metaWord = int32(tensor.MetaType)<<8 | 0xff

// begin begins a recording, after that of another goroutine has ended, and returns a function that ends it. It refuses a
// recording within another one of the thread.
func begin() (end func(), err error) {
	runtime.LockOSThread() // the recording belongs to the thread
	if err := cshim.PlanBegin(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	recording.Lock()
	return func() {
		cshim.PlanEnd()
		recording.Unlock()
		runtime.UnlockOSThread()
	}, nil
}

// run records two steps. The caller has called begin.
func (r *recorder) run(model any, params []nn.Named, optimizer *optim.Optimizer, step func() error) (err error) {
	for _, p := range params {
		if !p.Tensor.RequiresGrad() {
			continue
		}
		remove, err := p.Tensor.RegisterPostAccumulateGradHook(func(leaf *tensor.Tensor) error {
			return tensor.WithScope(func() error {
				g, err := tensor.Grads([]*tensor.Tensor{leaf})
				if err == nil && g[0] != nil {
					r.claim(vram.Gradients, g[0])
				}
				return err
			})
		})
		if err != nil {
			return err
		}
		defer remove()
	}
	if _, err := r.claimAll(model, optimizer); err != nil {
		return err
	}
	if err := vram.Collect(); err != nil { // what is garbage now is not the step's
		return err
	}
	r.mu.Lock()
	r.began = true
	r.mu.Unlock()
	defer collectOften()()
	for i := range 2 {
		r.second = cshim.PlanRead().Position
		if err := tensor.WithScope(step); err != nil {
			return err
		}
		names, err := r.claimAll(model, optimizer)
		if err != nil {
			return err
		}
		if i == 0 {
			// What the step replaces is recorded in the second run, which begins with that of the first.
			r.mu.Lock()
			r.kept = slices.DeleteFunc(r.kept, func(k kept) bool { return !names[k.name] })
			r.mu.Unlock()
		}
		for _, c := range reclaim.Categories() {
			if c.Name == vram.OptimizerState {
				c.Each(func(s reclaim.Storage) {
					r.mu.Lock()
					defer r.mu.Unlock()
					if _, ok := r.part[s.Address]; !ok && s.Device == metaWord {
						r.part[s.Address] = vram.OptimizerState
					}
				})
			}
		}
	}
	r.blocks, r.totals = cshim.PlanBlocks(), cshim.PlanRead()
	r.ops = map[uint32]string{}
	for _, b := range r.blocks {
		if _, ok := r.ops[b.Op]; !ok {
			if r.ops[b.Op], err = cshim.PlanOp(b.Op); err != nil {
				return err
			}
		}
	}
	return nil
}

// recording is held from before a plan looks at the model until its steps have been recorded: the steps of two goroutines
// may have one model and one optimizer, and one policy at a time stands in for the program's.
var recording sync.Mutex

// often is the policy during a recording. Before an operator it collects if enough was allocated on the meta device
// since the last collection. The program's policy decides about real devices.
type often struct {
	vram.Policy
	last  atomic.Int64 // bytes that had been allocated at the last collection; of the recording thread
	ended atomic.Bool
}

// collectOften sets the policy and returns a function that restores the program's, unless the program has set another
// meanwhile. The caller holds recording.
func collectOften() func() {
	o := &often{Policy: vram.CurrentPolicy()}
	vram.SetPolicy(o)
	cshim.SetDue(true)
	return func() {
		o.ended.Store(true)
		if p, ok := vram.CurrentPolicy().(*often); ok && p == o {
			vram.SetPolicy(o.Policy)
		}
		cshim.SetDue(false)
	}
}

func (o *often) Decide(s vram.State) vram.Decision {
	if o.ended.Load() { // the program has kept it
		return o.Policy.Decide(s)
	}
	// Before an operator Due has just been cleared; it is set for the next one.
	if due := cshim.SetDue(true); s.Device == vram.Name("cpu") && (s.Backward || !due) {
		t := cshim.PlanRead() // zeros on other threads
		// A peak that is a sixty-fourth too high is near enough; a collection takes half a millisecond.
		if t.Total-o.last.Load() > t.Peak/64 {
			o.last.Store(t.Total)
			_ = vram.Collect()
		}
	}
	return o.Policy.Decide(s)
}

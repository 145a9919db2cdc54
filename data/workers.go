package data

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// team is the goroutines that prepare the batches of one loop. Batch i is passed in slots[i%len], so that the consumer
// gets the batches in order; room counts the free slots.
type team struct {
	plan   *plan
	ctx    context.Context
	cancel context.CancelFunc
	slots  []chan prepared
	room   chan struct{}
	taken  atomic.Int64 // index of the next batch to prepare
	wg     sync.WaitGroup
}

// prepared is what a worker passes to the loop: a batch or an error.
type prepared struct {
	tensors []*tensor.Tensor
	err     error
	kernels []kernels // that make the tensors
}

func newTeam(ctx context.Context, p *plan) *team {
	depth := p.config.prefetch
	t := &team{plan: p, slots: make([]chan prepared, depth), room: make(chan struct{}, depth)}
	t.ctx, t.cancel = context.WithCancel(ctx)
	t.taken.Store(int64(p.state.Batch))
	for i := range t.slots {
		t.slots[i] = make(chan prepared, 1)
		t.room <- struct{}{}
	}
	for range min(p.config.workers, p.last-p.state.Batch) {
		t.wg.Add(1)
		go t.work()
	}
	return t
}

func (t *team) work() {
	defer t.wg.Done()
	for t.ctx.Err() == nil {
		select {
		case <-t.ctx.Done():
			return
		case <-t.room:
		}
		i := int(t.taken.Add(1) - 1)
		if i >= t.plan.last {
			return
		}
		t.hand(i)
	}
}

// hand prepares batch i and passes it on, also if the dataset ends the goroutine with runtime.Goexit, because the
// consumer waits for it.
func (t *team) hand(i int) {
	made := prepared{err: errors.New("linstock: the dataset ended the worker's goroutine")}
	defer func() { t.slots[i%len(t.slots)] <- made }()
	made = t.plan.packed(t.plan.prepare(t.ctx, i))
}

// next waits for batch i and returns it.
func (t *team) next(i int) ([]*tensor.Tensor, error) {
	select {
	case <-t.ctx.Done():
		return nil, refuse.Cause(t.ctx)
	case made := <-t.slots[i%len(t.slots)]:
		t.room <- struct{}{}
		return made.take()
	}
}

// stop ends the workers, waits for the batches that they are preparing, and frees those that were not consumed.
func (t *team) stop() {
	t.cancel()
	t.wg.Wait()
	for _, slot := range t.slots {
		select {
		case made := <-slot:
			made.drop()
		default:
		}
	}
}

// Workers compute on the default streams of CUDA devices, because they begin as new goroutines. The loop's goroutine may
// have other current streams, with which toWorkers, packed and take order them.

// toWorkers makes the work of workers wait for the work that the loop's current streams have. It returns those of them that
// are not the workers' own.
func toWorkers() (loops []cshim.Stream, err error) {
	current, err := cshim.CurrentStreams()
	if err != nil {
		return nil, handle.NativeError("Batches", err)
	}
	for _, loop := range current {
		workers := cshim.Stream{Device: loop.Device}
		if loop == workers {
			continue
		}
		loops = append(loops, loop)
		if err := workers.WaitFor(loop); err != nil {
			return nil, handle.NativeError("Batches", err)
		}
	}
	return loops, nil
}

// kernels are those with which a worker makes the tensors of a batch on one device.
type kernels struct {
	end  cshim.StreamEvent // after them
	loop cshim.Stream      // waits for them
}

// packed returns what a worker passes to the loop: a batch that it has just made, or err.
func (p *plan) packed(tensors []*tensor.Tensor, err error) prepared {
	made := prepared{tensors: tensors, err: err}
	for _, loop := range p.loops {
		on := func(t *tensor.Tensor) bool {
			d := t.Device()
			return cshim.DeviceWord(int32(d.Type), d.Index) == loop.Device
		}
		if !slices.ContainsFunc(tensors, on) {
			continue
		}
		end, err := cshim.EventNew(loop.Device, false)
		if err == nil {
			made.kernels = append(made.kernels, kernels{end, loop})
			err = end.Record(cshim.Stream{Device: loop.Device})
		}
		if err != nil {
			made.drop()
			return prepared{err: handle.NativeError("Batches", err)}
		}
	}
	return made
}

// take returns the batch or the error. Later work of the loop's streams waits for the kernels that make the batch.
func (m prepared) take() ([]*tensor.Tensor, error) {
	defer m.free()
	for _, k := range m.kernels {
		if err := k.end.Wait(k.loop); err != nil {
			release(m.tensors)
			return nil, handle.NativeError("Batches", err)
		}
	}
	return m.tensors, m.err
}

// drop frees a batch that the loop does not take.
func (m prepared) drop() {
	m.free()
	release(m.tensors)
}

func (m prepared) free() {
	for _, k := range m.kernels {
		k.end.Free()
	}
}

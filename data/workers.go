package data

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
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

type prepared struct {
	tensors []*tensor.Tensor
	err     error
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
	made.tensors, made.err = t.plan.prepare(t.ctx, i)
}

// next waits for batch i and returns it.
func (t *team) next(i int) ([]*tensor.Tensor, error) {
	select {
	case <-t.ctx.Done():
		return nil, context.Cause(t.ctx)
	case made := <-t.slots[i%len(t.slots)]:
		t.room <- struct{}{}
		return made.tensors, made.err
	}
}

// stop ends the workers, waits for the batches that they are preparing, and frees those that were not consumed.
func (t *team) stop() {
	t.cancel()
	t.wg.Wait()
	for _, slot := range t.slots {
		select {
		case made := <-slot:
			release(made.tensors)
		default:
		}
	}
}

// Workers compute on the default streams of CUDA devices, because they begin as new goroutines. The loop's goroutine may
// have other current streams, with which toWorkers and fromWorkers order them.

// toWorkers makes the work of workers wait for the work that the loop's current streams have.
func toWorkers() error {
	if err := cshim.Load(); err != nil {
		return err
	}
	for i := range cshim.DeviceCount(int32(tensor.CUDAType)) {
		workers := cshim.Stream{Device: cshim.DeviceWord(int32(tensor.CUDAType), i)}
		loop, err := cshim.StreamCurrent(workers.Device)
		if err == nil {
			err = follow(workers, loop)
		}
		if err != nil {
			return handle.NativeError("Batches", err)
		}
	}
	return nil
}

// fromWorkers makes later work of the loop's current streams wait for the kernels with which workers made tensors.
func fromWorkers(tensors []*tensor.Tensor) error {
	for _, t := range tensors {
		d := t.Device()
		if d.Type != tensor.CUDAType {
			continue
		}
		workers := cshim.Stream{Device: cshim.DeviceWord(int32(d.Type), d.Index)}
		loop, err := cshim.StreamCurrent(workers.Device)
		if err == nil {
			err = follow(loop, workers)
		}
		if err != nil {
			return handle.NativeError("Batches", err)
		}
	}
	return nil
}

// follow makes later work of next wait for the work that before has.
func follow(next, before cshim.Stream) error {
	if next == before {
		return nil
	}
	e, err := cshim.EventNew(before.Device, false)
	if err != nil {
		return err
	}
	defer e.Free()
	if err := e.Record(before); err != nil {
		return err
	}
	return e.Wait(next)
}

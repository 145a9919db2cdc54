package fakecuda

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	scenarios["loader"], scenarios["locked"], scenarios["resident"], scenarios["queue"] = loader, locked, resident, queue
	scenarios["workers"], scenarios["uncopied"], scenarios["ahead"], scenarios["apart"] = workers, uncopied, ahead, apart
}

func TestLoaderCopiesBesideKernels(t *testing.T) { run(t, "loader", 1, 1<<30) }
func TestLoaderPins(t *testing.T)                { run(t, "locked", 1, 1<<30) }
func TestDatasetOnDevice(t *testing.T)           { run(t, "resident", 1, 1<<30) }
func TestLoaderOfQueue(t *testing.T)             { run(t, "queue", 1, 1<<30) }
func TestWorkersAndStreams(t *testing.T)         { run(t, "workers", 2, 1<<30) }
func TestLoaderAfterFailedEvents(t *testing.T)   { run(t, "uncopied", 1, 1<<30) }
func TestWorkersAheadOfTheLoop(t *testing.T)     { run(t, "ahead", 1, 1<<30) }
func TestWorkersAndOtherDevices(t *testing.T)    { run(t, "apart", 3, 1<<30) }

// loader: a loader copies batches from page-locked memory on a stream of its own.
func loader(c *Control) error {
	const batches, elements = 8, 3 << 20 // a batch has a segment of its own
	d := tensor.CUDA(0)
	x := tensor.Arange(0, batches, tensor.Float32).Reshape(batches, 1).Expand(batches, elements).Contiguous()
	defer x.Release()
	dataset, err := data.NewTensorDataset(x)
	if err != nil {
		return err
	}
	loop, err := cuda.DefaultStream(d)
	if err != nil {
		return err
	}
	// each runs the body for each batch of an epoch, and returns the time that all work took.
	each := func(kernel, copies time.Duration, body func(b data.Batch, from time.Duration) (bool, error)) (time.Duration, error) {
		l, err := data.NewLoader(dataset, data.Device(d), data.PinMemory(true))
		if err != nil {
			return 0, err
		}
		c.SetTimes(kernel, copies)
		defer c.SetTimes(0, 0)
		from := c.Clock()
		for b, err := range l.Batches(context.Background()) {
			if err != nil {
				return 0, err
			}
			more, err := body(b, from)
			if err != nil {
				return 0, fmt.Errorf("batch %d: %w", b.Index, err)
			}
			if !more {
				break
			}
		}
		return c.Clock() - from, nil
	}
	values := func(b data.Batch, _ time.Duration) (bool, error) {
		got, err := tensor.Data[float32](b.Inputs.To(tensor.CPU))
		if err == nil && (len(got) != elements || got[0] != float32(b.Index) || got[elements-1] != float32(b.Index)) {
			err = fmt.Errorf("%d elements from %v to %v", len(got), got[0], got[elements-1])
		}
		return true, err
	}
	if _, err := each(0, 0, values); err != nil {
		return err
	}
	live := c.Live(0)

	// The copy of the next batch runs beside the kernel of the current one; one after the other they take 16 ms.
	c.ResetPeak(0)
	took, err := each(time.Millisecond, time.Millisecond, func(b data.Batch, _ time.Duration) (bool, error) {
		err := b.Inputs.Add_(1).Err()
		if b.Index == batches-1 {
			err = errors.Join(err, loop.Synchronize())
		}
		return true, err
	})
	if err != nil || took != (batches+1)*time.Millisecond {
		return fmt.Errorf("the epoch took %v, want %d ms; %w", took, batches+1, err)
	}
	// The host is far ahead of the device, and yet two batches have been enough.
	if c.Peak(0) != live {
		return fmt.Errorf("the device has allocated %d bytes, %d before", c.Peak(0), live)
	}

	// The loop's stream waits for the batch, and not for the next one.
	_, err = each(0, 5*time.Millisecond, func(b data.Batch, from time.Duration) (bool, error) {
		err := loop.Synchronize()
		if at, want := c.Clock()-from, time.Duration(b.Index+1)*5*time.Millisecond; at != want {
			err = errors.Join(err, fmt.Errorf("there after %v, want %v", at, want))
		}
		return true, err
	})
	if err != nil {
		return err
	}

	// After break the memory of the next batch is reused only when its copy is done.
	start, events := c.Clock(), c.Events()
	_, err = each(0, 5*time.Millisecond, func(data.Batch, time.Duration) (bool, error) { return false, nil })
	if err = errors.Join(err, loop.Synchronize()); err != nil {
		return err
	}
	if took := c.Clock() - start; took != 10*time.Millisecond {
		return fmt.Errorf("after break the loop's stream waits until %v, want 10ms", took)
	}
	if n := c.Events(); n != events {
		return fmt.Errorf("%d events live, %d before", n, events)
	}
	return nil
}

// images is a dataset of one batch of images with the channels last.
type images struct{}

func (images) Len() int { return 1 }

func (images) Batch(context.Context, []int) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{tensor.Arange(0, 24, tensor.Float32).View(1, 2, 3, 4).Contiguous(tensor.ChannelsLast)}, nil
}

// locked: page-locked memory keeps the order of a batch's dimensions, as does the copy of it. A loader without a device
// leaves batches in page-locked memory, and one of the CPU does not lock any.
func locked(*Control) error {
	d := tensor.CUDA(0)
	for _, c := range []struct {
		opts   []data.Option
		device tensor.Device
		locked bool
	}{
		{[]data.Option{data.PinMemory(true), data.Device(d)}, d, false},
		{[]data.Option{data.Device(d)}, d, false},
		{[]data.Option{data.PinMemory(true)}, tensor.CPU, true},
		{[]data.Option{data.PinMemory(true), data.Workers(1)}, tensor.CPU, true},
		{[]data.Option{data.PinMemory(true), data.Device(tensor.CPU)}, tensor.CPU, false},
		{nil, tensor.CPU, false},
	} {
		l, err := data.NewLoader(images{}, c.opts...)
		if err != nil {
			return err
		}
		for b, err := range l.Batches(context.Background()) {
			if err != nil {
				return err
			}
			x := b.Inputs
			isLocked, err := tensor.Call("aten::is_pinned", x)
			if err != nil {
				return err
			}
			if x.Device() != c.device || isLocked[0] != c.locked || !slices.Equal(x.Stride(), []int{24, 1, 8, 2}) {
				return fmt.Errorf("%d options: a batch on %v, page-locked: %v, with the strides %v", len(c.opts), x.Device(), isLocked[0], x.Stride())
			}
			got, err := tensor.Data[float32](x.To(tensor.CPU).Flatten())
			if err != nil || got[0] != 0 || got[1] != 1 || got[23] != 23 {
				return fmt.Errorf("%d options: %v, %w", len(c.opts), got, err)
			}
			// Page-locked memory is not the CPU's allocator's.
			e, err := vram.Explain(tensor.CPU)
			if err != nil {
				return err
			}
			if n := e.Part(vram.Loader).Bytes; (n > 0) != (c.device == tensor.CPU && !c.locked) {
				return fmt.Errorf("%d options: %d bytes of the loader", len(c.opts), n)
			}
		}
	}
	return nil
}

// resident: the tensors of a dataset may be on a device, and samples that it does not have are refused before the
// kernel, which would end the use of the device.
func resident(*Control) error {
	d := tensor.CUDA(0)
	dataset, err := data.NewTensorDataset(tensor.Zeros([]int{5, 2}, d), tensor.Ones([]int{5}))
	if err != nil {
		return err
	}
	l, err := data.NewLoader(dataset, data.BatchSize(2))
	if err != nil {
		return err
	}
	for b, err := range l.Batches(context.Background()) {
		if err != nil {
			return err
		}
		if b.Inputs.Device() != d || b.Targets.Device() != tensor.CPU || !slices.Equal(b.Inputs.Shape(), []int{b.Size, 2}) {
			return fmt.Errorf("a batch of %v on %v and on %v", b.Inputs.Shape(), b.Inputs.Device(), b.Targets.Device())
		}
	}
	for _, at := range []int{-1, 5} {
		if _, err := dataset.Batch(context.Background(), []int{0, at}); !errors.Is(err, tensor.ErrIndex) {
			return fmt.Errorf("sample %d: %w", at, err)
		}
	}
	return nil
}

// queue: a batch of an iterable dataset does not wait for the next one, whose sample may be the answer to it. Those
// that the worker has ready are copied before their turn.
func queue(*Control) error {
	const answered, samples = 3, 8
	for workers := range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		answers, read := make(chan int, answered), make(chan struct{})
		dataset := data.IterableFunc[float32](func(ctx context.Context, _ int) iter.Seq2[float32, error] {
			return func(yield func(float32, error) bool) {
				for i := range samples {
					if 0 < i && i <= answered {
						select {
						case <-answers:
						case <-ctx.Done():
							return
						}
					}
					if !yield(float32(i), nil) {
						return
					}
				}
				close(read)
			}
		})
		l, err := data.NewIterableLoader(dataset, nil, data.Workers(workers), data.Prefetch(samples), data.PinMemory(), data.Device(tensor.CUDA(0)))
		if err != nil {
			return err
		}
		n := 0
		for b, err := range l.Batches(ctx) {
			if err != nil {
				return fmt.Errorf("%d workers, after %d batches: %w", workers, n, err)
			}
			got, err := tensor.Data[float32](b.Inputs.To(tensor.CPU))
			if err != nil || b.Inputs.Device() != tensor.CUDA(0) || !slices.Equal(got, []float32{float32(n)}) {
				return fmt.Errorf("%d workers: batch %d is %v on %v, %w", workers, n, got, b.Inputs.Device(), err)
			}
			switch n++; {
			case n <= answered:
				answers <- n
			case workers == 1:
				<-read
			}
		}
		if n != samples {
			return fmt.Errorf("%d workers: %d batches", workers, n)
		}
	}
	return nil
}

// made is a dataset whose batches are made on devices, by a kernel each.
type made struct {
	devices []tensor.Device
	before  func() error // called at the beginning of Batch
}

func (made) Len() int { return 4 }

func (m made) Batch(context.Context, []int) (batch []*tensor.Tensor, err error) {
	if err := m.before(); err != nil {
		return nil, err
	}
	for _, d := range m.devices {
		batch = append(batch, tensor.Zeros([]int{1}, d).Add_(1))
	}
	return batch, nil
}

// Iter yields as many samples.
func (m made) Iter(context.Context, int) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i := 0; i < m.Len() && yield(i, nil); i++ {
		}
	}
}

// workers: the work of workers waits for what the loop's current streams have when it begins, and those wait for the
// kernels of each batch.
func workers(c *Control) error {
	const kernel = time.Second
	devices := []tensor.Device{tensor.CUDA(0), tensor.CUDA(1)}
	var streams []*cuda.Stream
	for _, d := range devices {
		s, err := cuda.NewStream(d)
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	x := tensor.Zeros([]int{1}, devices[0])
	defer x.Release()
	first, err := cuda.DefaultStream(devices[0])
	if err != nil {
		return err
	}
	loaders := map[string]func(d made) (*data.Loader, error){
		"map": func(d made) (*data.Loader, error) { return data.NewLoader(d, data.Workers(2)) },
		"iterable": func(d made) (*data.Loader, error) {
			collate := func([]int) ([]*tensor.Tensor, error) { return d.Batch(context.Background(), nil) }
			return data.NewIterableLoader(d, collate, data.Workers(1))
		},
	}
	// each runs before and then a loop with both streams current. A kernel takes a second.
	each := func(name string, d made, before func() error, body func(b data.Batch, from time.Duration) error) error {
		l, err := loaders[name](d)
		if err != nil {
			return err
		}
		for _, s := range devices {
			if err := tensor.Synchronize(s); err != nil {
				return err
			}
		}
		events, from := c.Events(), c.Clock()
		c.SetTimes(kernel, 0)
		defer c.SetTimes(0, 0)
		err = cuda.WithStream(streams[0], func() error {
			return cuda.WithStream(streams[1], func() error {
				if err := before(); err != nil {
					return err
				}
				for b, err := range l.Batches(context.Background()) {
					if err == nil {
						err = body(b, from)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
		if n := c.Events(); err == nil && n != events {
			err = fmt.Errorf("%d events live, %d before", n, events)
		}
		return err
	}
	none := func() error { return nil }
	for name, loader := range loaders {
		// On default streams the loop and its workers have one queue, and need no events.
		l, err := loader(made{devices, none})
		if err != nil {
			return err
		}
		if err := c.AddRule(Rule{Function: "cudaEventRecord", Device: -1, Times: Forever, Error: 999}); err != nil {
			return err
		}
		for _, err := range l.Batches(context.Background()) {
			if err != nil {
				return fmt.Errorf("%s, on default streams: %w", name, err)
			}
		}
		c.ClearRules()
		err = each(name, made{devices, none}, none, func(b data.Batch, from time.Duration) error {
			for i, s := range streams {
				if err := s.Synchronize(); err != nil {
					return err
				}
				if now := c.Clock() - from; now < time.Duration(b.Index+1)*kernel {
					return fmt.Errorf("batch %d is there on %v after %v", b.Index, devices[i], now)
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		// The first kernel of a worker runs after the one that the loop's stream has got before it.
		start := c.Clock()
		there := func() error {
			err := first.Synchronize()
			if now := c.Clock() - start; now < kernel {
				err = errors.Join(err, fmt.Errorf("a worker computes after %v, before the loop's stream is done", now))
			}
			return err
		}
		err = each(name, made{devices[:1], there}, func() error { return x.Add_(1).Err() }, func(data.Batch, time.Duration) error { return nil })
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// apart: a loop over the batches of workers does not use devices that its dataset does not use, and is possible though
// one of them is lost.
func apart(c *Control) error {
	all := func() error {
		dataset := made{[]tensor.Device{tensor.CUDA(0)}, func() error { return nil }}
		l, err := data.NewLoader(dataset, data.Workers(1))
		if err != nil {
			return err
		}
		for _, err := range l.Batches(context.Background()) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := all(); err != nil {
		return err
	}
	if used := cshim.DeviceTypes[0].Used(); !slices.Equal(used, []int{0}) {
		return fmt.Errorf("the devices %v are in use", used)
	}
	lost := tensor.CUDA(1)
	if err := tensor.Ones([]int{1}, lost).Err(); err != nil {
		return err
	}
	c.Lose(1, 719)
	if err := expect("the lost device", tensor.Synchronize(lost), tensor.ErrDeviceLost); err != nil {
		return err
	}
	return all()
}

// ahead: the loop's stream waits for the kernels of a batch, and not for those of the batches that a worker has prepared
// since, and a loop that is left or fails frees the events of these.
func ahead(c *Control) error {
	const kernel = time.Second
	d := tensor.CUDA(0)
	s, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	dataset := made{[]tensor.Device{d}, func() error { return nil }}
	host, err := data.NewTensorDataset(tensor.Ones([]int{4, 1}))
	if err != nil {
		return err
	}
	loaders := map[string]func() (*data.Loader, error){
		"map": func() (*data.Loader, error) {
			return data.NewLoader(dataset, data.Workers(1), data.Prefetch(dataset.Len()))
		},
		"iterable": func() (*data.Loader, error) {
			collate := func([]int) ([]*tensor.Tensor, error) { return dataset.Batch(context.Background(), nil) }
			return data.NewIterableLoader(dataset, collate, data.Workers(1), data.Prefetch(dataset.Len()))
		},
		"host": func() (*data.Loader, error) { return data.NewLoader(host, data.Workers(1)) },
	}
	// each runs a loop with the stream current.
	each := func(name string, body func(b data.Batch) (bool, error)) error {
		l, err := loaders[name]()
		if err == nil {
			err = tensor.Synchronize(d)
		}
		if err != nil {
			return err
		}
		before, err := stats(d)
		if err != nil {
			return err
		}
		events := c.Events()
		err = cuda.WithStream(s, func() error {
			for b, err := range l.Batches(context.Background()) {
				if err != nil {
					return err
				}
				if more, err := body(b); err != nil || !more {
					return err
				}
			}
			return nil
		})
		after, failed := stats(d)
		if n := c.Events(); failed != nil || n != events || after.Allocated != before.Allocated {
			return fmt.Errorf("%s: %d events and %d bytes live, %d and %d before; %w", name, n, after.Allocated, events, before.Allocated, errors.Join(err, failed))
		}
		return err
	}
	all := func(data.Batch) (bool, error) { return true, nil }
	for _, name := range []string{"map", "iterable"} {
		before := c.Launches(0)
		if err := each(name, all); err != nil { // libtorch makes its events and handles
			return err
		}
		every := c.Launches(0) - before // kernels of all batches: libtorch 2.11 fills with one
		batch := time.Duration(every) * kernel / time.Duration(dataset.Len())
		c.SetTimes(kernel, 0)
		from, launched := c.Clock(), c.Launches(0)
		err := each(name, func(b data.Batch) (bool, error) {
			for c.Launches(0)-launched < every { // until all batches are prepared
				runtime.Gosched()
			}
			err := s.Synchronize()
			if at, want := c.Clock()-from, time.Duration(b.Index+1)*batch; at != want {
				err = errors.Join(err, fmt.Errorf("%s: batch %d is there after %v, want %v", name, b.Index, at, want))
			}
			return true, err
		})
		c.SetTimes(0, 0)
		if err != nil {
			return err
		}
		if err := each(name, func(data.Batch) (bool, error) { return false, nil }); err != nil {
			return err
		}
	}
	// The first event of a loop makes the workers wait for the loop's stream, and the second the loop's stream for a batch.
	for _, function := range []string{"cudaEventRecord", "cudaStreamWaitEvent"} {
		for skip := range int64(2) {
			for _, name := range []string{"map", "iterable"} {
				before := c.Errors()
				if err := c.AddRule(Rule{Function: function, Device: -1, Skip: skip, Times: 1, Error: 999}); err != nil {
					return err
				}
				n := 0
				err := each(name, func(data.Batch) (bool, error) { n++; return true, nil })
				c.ClearRules()
				var e *tensor.Error
				if !errors.As(err, &e) || e.Op != "Batches" || n != 0 || c.Errors() != before+1 {
					return fmt.Errorf("%s, call %d of %s: %d batches, %d errors; %w", name, skip, function, n, c.Errors()-before, err)
				}
			}
		}
	}
	// Batches of the host need no events.
	if err := c.AddRule(Rule{Function: "cudaEventRecord", Device: -1, Skip: 1, Times: Forever, Error: 999}); err != nil {
		return err
	}
	defer c.ClearRules()
	return each("host", all)
}

// uncopied: if the loader cannot record its copies for the loop's stream, or let that wait for them, it waits for them
// itself before it frees the batch.
func uncopied(c *Control) error {
	const copying = 5 * time.Millisecond
	dataset, err := data.NewTensorDataset(tensor.Ones([]int{4, 1 << 20}))
	if err != nil {
		return err
	}
	defer c.SetTimes(0, 0)
	defer c.ClearRules()
	for _, rule := range []Rule{
		{Function: "cudaEventRecord", Skip: 1}, // at the end of the first batch's copy
		{Function: "cudaStreamWaitEvent", Skip: 1},
	} {
		l, err := data.NewLoader(dataset, data.Device(tensor.CUDA(0)), data.PinMemory())
		if err != nil {
			return err
		}
		if err := tensor.Synchronize(tensor.CUDA(0)); err != nil {
			return err
		}
		c.SetTimes(0, copying)
		from, before := c.Clock(), c.Errors()
		rule.Device, rule.Times, rule.Error = -1, 1, 999
		if err := c.AddRule(rule); err != nil {
			return err
		}
		var failed error
		for _, failed = range l.Batches(context.Background()) {
		}
		took := c.Clock() - from
		c.ClearRules()
		if failed == nil || c.Errors() != before+1 || took < copying {
			return fmt.Errorf("%s: after %d errors the batch is free after %v, want %v; %w", rule.Function, c.Errors()-before, took, copying, failed)
		}
	}
	return nil
}

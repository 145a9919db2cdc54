package data

import (
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/tensor"
)

var withHandles = handle.WithHandles.(func(op string, ts []*tensor.Tensor, f func(h []cshim.Handle) error) error)

// copier copies batches from page-locked memory to a CUDA device on its own stream, concurrently with the kernels of
// the loop's current stream. The memory of the copies belongs to the loop's stream, which waits for the copies before a
// batch is yielded or freed. So it reuses the memory in its own order, and no batch has to be recorded for a second
// stream.
type copier struct {
	device int32
	stream cshim.Stream
	begin  cshim.StreamEvent // on the loop's stream, before the copies; 0: nothing was copied yet
	end    cshim.StreamEvent // on stream, after the last batch's copies
}

func newCopier(d tensor.Device) *copier {
	return &copier{device: cshim.DeviceWord(int32(d.Type), d.Index)}
}

// copy gives copies of the tensors in from to the copier's stream. The loop's stream may use them after wait.
func (c *copier) copy(to, from []*tensor.Tensor) error {
	const op = "Batches"
	if err := c.open(); err != nil {
		return handle.NativeError(op, err)
	}
	// Work that the loop's stream already has may still use the memory of the copies.
	loop, err := cshim.StreamCurrent(c.device)
	if err == nil {
		err = c.begin.Record(loop)
	}
	if err == nil {
		err = c.begin.Wait(c.stream)
	}
	if err != nil {
		return handle.NativeError(op, err)
	}
	for i := range to {
		err = withHandles(op, []*tensor.Tensor{to[i], from[i]}, func(h []cshim.Handle) error {
			return handle.NativeError(op, c.stream.Copy(h[0], h[1]))
		})
		if err != nil {
			break
		}
	}
	if ended := c.end.Record(c.stream); err == nil {
		err = handle.NativeError(op, ended)
	}
	if err != nil {
		_ = c.stream.Synchronize() // the caller frees the batch
	}
	return err
}

// open makes the stream and the events before the first copies.
func (c *copier) open() (err error) {
	if c.begin != 0 {
		return nil
	}
	if c.stream, err = cshim.StreamNew(c.device, 0); err != nil {
		return err
	}
	if c.end, err = cshim.EventNew(c.device, false); err != nil {
		return err
	}
	c.begin, err = cshim.EventNew(c.device, false)
	return err
}

// wait makes later work of the loop's stream, and later uses of memory that it frees, wait for the copies. If that fails,
// the program has waited for them.
func (c *copier) wait() error {
	if c == nil || c.begin == 0 {
		return nil
	}
	loop, err := cshim.StreamCurrent(c.device)
	if err == nil {
		err = c.end.Wait(loop)
	}
	if err != nil {
		_ = c.stream.Synchronize()
	}
	return handle.NativeError("Batches", err)
}

func (c *copier) close() {
	if c != nil {
		c.begin.Free()
		c.end.Free()
	}
}

package cuda

import (
	"errors"
	"runtime"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// A Graph is work of a device that Replay runs again. Several goroutines may use one Graph; CUDA runs its replays one
// after another. It is freed by Close, or after it has become unreachable. PyTorch: torch.cuda.CUDAGraph.
type Graph struct {
	device tensor.Device
	pool   cshim.Pool
	keeps  any // what the captured function refers to

	mu      sync.Mutex
	native  cshim.Graph
	cleanup runtime.Cleanup
}

// A CaptureOption is an option of Capture and MakeGraphedCallables.
type CaptureOption interface{ capture(*capture) }

type capture struct {
	warmup int
	warm   *Stream // of the warm-up
	stream *Stream // that is captured
	pool   *Graph
	shares bool
}

type captureOption func(*capture)

func (o captureOption) capture(c *capture) { o(c) }

// Warmup runs the function n times, on a stream of its own, before it is captured. Libraries initialize at their first
// use, and choose kernels, which cannot be captured; PyTorch's documentation advises 3 for a training step. Collectives of
// NCCL, and so passes of dist.DDP, cannot be captured: they return tensor.ErrCapture. The default is 0 for Capture and 3
// for MakeGraphedCallables, as in PyTorch.
func Warmup(n int) CaptureOption { return captureOption(func(c *capture) { c.warmup = n }) }

// On captures on s instead of a stream that each device has for captures. s must not be a default stream, nor the
// current stream of another goroutine, and should do no other work (12). With libtorch before 2.15, matrix products of
// graphs that were captured on one stream share a workspace of cuBLAS: capture graphs that are replayed at the same
// time on different streams. PyTorch: the argument stream of torch.cuda.graph.
func On(s *Stream) CaptureOption { return captureOption(func(c *capture) { c.stream = s }) }

// Pool lets a capture share g's memory pool. Graphs that share a pool must be replayed in the order in which they were
// captured, and not at the same time. The error is ErrClosed if g was closed. PyTorch: the argument pool of torch.cuda.graph, with g.pool().
func Pool(g *Graph) CaptureOption {
	return captureOption(func(c *capture) { c.pool, c.shares = g, true })
}

func settings(op string, d tensor.Device, c capture, opts []CaptureOption) (*capture, error) {
	for _, o := range opts {
		if o == nil {
			return nil, refuse.NilOption(op)
		}
		o.capture(&c)
	}
	if c.warmup < 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, "Warmup(%d): 0 or more is needed", c.warmup)
	}
	if c.shares {
		if c.pool == nil {
			return nil, refuse.Nil(op, "a graph whose pool to share")
		}
		if c.pool.closed() {
			return nil, refuse.Error(op, ErrClosed, "the graph whose pool is to be shared was closed")
		}
		if c.pool.device != d {
			return nil, refuse.Error(op, tensor.ErrArgument, "the pool is on %v, the capture on %v", c.pool.device, d)
		}
	}
	own, warm, err := cshim.CaptureStreams(word(d))
	if err != nil {
		return nil, handle.NativeError(op, err)
	}
	c.warm = &Stream{warm, d}
	if c.stream == nil {
		c.stream = &Stream{own, d}
	}
	if c.stream.device != d {
		return nil, refuse.Error(op, tensor.ErrArgument, "the stream is on %v, the capture on %v", c.stream.device, d)
	}
	if c.stream.native.ID == 0 {
		return nil, refuse.Error(op, tensor.ErrArgument, "the default stream cannot be captured; NewStream returns others")
	}
	return &c, nil
}

// IsCurrentStreamCapturing reports whether this goroutine is inside Capture, also in a hook or a Function that a captured
// backward pass calls. PyTorch: torch.cuda.is_current_stream_capturing.
func IsCurrentStreamCapturing() bool { return cshim.Load() == nil && cshim.GraphCapturing() }

// Capture records the work that f gives to d, without running it, and returns it as a graph. f runs once, in a scope of
// its own: keep tensors that are read after a replay (Tensor.Keep). f may use other streams if they wait for the
// current one (Stream.WaitStream) and the current one waits for them in the end. Options: Warmup, On, Pool.
//
// Capture begins with vram.Collect, because the autograd graph of an eager step refers to that step's stream. One that the
// program still holds can make the capture of a backward pass fail. In an autocast region, f casts weights each time
// that it uses them.
//
// If f returns an error or panics, or does what cannot be captured, there is no graph; the capture has ended, and the
// next one is possible. The error is tensor.ErrCapture in the last case, if this goroutine is inside Capture, if
// another one is capturing on d, or if the stream is the current one of another. PyTorch: torch.cuda.graph.
func Capture(d tensor.Device, f func() error, opts ...CaptureOption) (*Graph, error) {
	const op = "Capture"
	if err := check(op, d); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, refuse.Nil(op, "a function")
	}
	c, err := settings(op, d, capture{}, opts)
	if err != nil {
		return nil, err
	}
	if err := clean(op); err != nil {
		return nil, err
	}
	if err := c.prepare(d, f); err != nil {
		return nil, err
	}
	return c.record(op, d, f)
}

// clean is called before the warm-up. It frees unreachable tensors: while the autograd graph of an eager step exists, new
// graphs share the nodes of its leaves, which belong to that step's stream and cannot be captured. The casts that an
// autocast region keeps refer to such nodes, too.
func clean(op string) error {
	if cshim.GraphCapturing() {
		cshim.GraphRefuse() // the capture underway fails, too
		return refuse.Error(op, tensor.ErrCapture, "this goroutine is capturing a graph already")
	}
	cshim.ClearCasts(true)
	return vram.Collect()
}

// prepare runs f for its warm-up. It does so on a stream that is never captured, as in PyTorch's examples: what the
// captured stream has used must not be freed by other goroutines, such as those that sweep, during the capture.
func (c *capture) prepare(d tensor.Device, f func() error) (err error) {
	if c.warmup == 0 {
		return nil
	}
	current, err := CurrentStream(d)
	if err != nil {
		return err
	}
	if err := c.warm.WaitStream(current); err != nil {
		return err
	}
	defer func() { // also if f panics or ends the goroutine
		cshim.ClearCasts(true) // as in clean: eager steps run on another stream
		err = errors.Join(err, current.WaitStream(c.warm))
	}()
	return WithStream(c.warm, func() error {
		for range c.warmup {
			if err := tensor.WithScope(f); err != nil {
				return err
			}
		}
		return nil
	})
}

// record captures f.
func (c *capture) record(op string, d tensor.Device, f func() error) (*Graph, error) {
	freeDropped()
	// As PyTorch: what was given to the device is done, and memory in the cache, which the pool cannot use, is freed.
	if err := tensor.Synchronize(d); err != nil {
		return nil, err
	}
	tensor.Flush()
	if err := cshim.MemoryEmptyCache(word(d)); err != nil {
		return nil, handle.NativeError(op, err)
	}
	g := &Graph{device: d, keeps: f}
	var pool cshim.Pool
	if c.pool != nil {
		pool = c.pool.pool
	}
	err := handle.WithStream(op, c.stream.native.Device, c.stream.native.ID, func() error {
		native, err := cshim.GraphBegin(word(d), pool)
		if err != nil {
			return handle.NativeError(op, err)
		}
		captured := false
		defer func() {
			if !captured { // an error, a panic, or runtime.Goexit
				native.Abandon()
				native.Free()
			}
		}()
		failed := tensor.WithScope(f)
		g.pool, err = native.End()
		// After a refused call, libtorch's later errors have arbitrary texts.
		if err := errors.Join(failed, handle.NativeError(op, err)); err != nil {
			return err
		}
		captured = true
		g.native = native
		return nil
	})
	if err != nil {
		return nil, err
	}
	g.cleanup = runtime.AddCleanup(g, dropGraph, g.native)
	return g, nil
}

func (g *Graph) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.native == 0
}

// Device returns the graph's device.
func (g *Graph) Device() tensor.Device {
	if g == nil {
		return tensor.CPU
	}
	return g.device
}

// Replay gives the captured work to the current stream of the graph's device. It returns before the work is done. A replay
// draws random numbers of the device as one operator does. A tensor.Generator that the captured function used must not be
// used by other goroutines during Replay. The error is ErrClosed after Close, and tensor.ErrCapture inside Capture.
// PyTorch: CUDAGraph.replay.
func (g *Graph) Replay() error {
	if err := g.replay(); err != nil {
		return err
	}
	handle.ForgetCasts(true) // a captured step changes weights
	return nil
}

// replay is Replay of a graph that changes no weights.
func (g *Graph) replay() error {
	const op = "Replay"
	if g == nil {
		return refuse.Nil(op, "a graph")
	}
	freeDropped()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.native == 0 {
		return refuse.Error(op, ErrClosed, "the graph was closed")
	}
	err := g.native.Replay()
	runtime.KeepAlive(g)
	return handle.NativeError(op, err)
}

// Close frees the graph. Replays that were given to the device are completed; with the allocator's option
// expandable_segments Close waits for them, else the default stream does, if the graph draws random numbers. The memory of
// its pool can be reused when all graphs that share it are closed and the tensors in it are freed. Later uses return
// ErrClosed; a second Close does nothing. PyTorch: CUDAGraph.reset.
func (g *Graph) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.native != 0 {
		g.cleanup.Stop()
		g.native.Free()
	}
	g.native, g.keeps = 0, nil
	return nil
}

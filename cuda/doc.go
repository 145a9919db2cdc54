// Package cuda provides streams, events and graphs of CUDA devices. It corresponds to torch.cuda: torch.cuda.Stream,
// torch.cuda.Event, torch.cuda.CUDAGraph, torch.cuda.graph and torch.cuda.make_graphed_callables. Tensors choose their
// device by an option (tensor.CUDA(0)), [tensor.Synchronize] waits for a device, and package vram has its memory.
//
//	side, err := cuda.NewStream(tensor.CUDA(0))
//	if err != nil {
//		return err
//	}
//	err = cuda.WithStream(side, func() error { // a copy that runs concurrently with the current stream's kernels
//		return next.Copy_(pinned, tensor.NonBlocking(true)).Err()
//	})
//
// # Streams
//
// A stream is a queue of work on one device. Work in one stream runs in the order in which it was given; work in two
// streams may run at the same time, unless [Stream.WaitEvent] or [Stream.WaitStream] orders it. Operators give their work
// to the current stream of the goroutine that calls them and return before it is done. An event ([Event]) marks a point
// in a stream, for which other streams and the program can wait.
//
//  1. The current stream belongs to a goroutine. Inside [WithStream] it is the given stream, and its device is the
//     current device; elsewhere each device's default stream is current. WithStream locks the goroutine to its OS
//     thread, as autograd.NoGrad does, because libtorch keeps the current stream for each thread. Goroutines that it
//     starts have the default streams.
//  2. A backward pass runs each operator's gradient on the stream that the operator ran on. Before Backward returns, the
//     caller's current stream waits for all of them.
//  3. A stream owns no tensors. libtorch owns the streams: 32 for each device and priority, which [NewStream] returns in
//     turn, so two Streams may be the same queue. Two of priority 0 are for captures and their warm-ups and are not
//     returned. There is nothing to close.
//
// # Memory
//
// A tensor's memory belongs to the stream that was current when it was made: when the tensor is freed, later work of the
// same stream may reuse the memory at once, because it runs after all earlier work of that stream. Work of another stream
// may still be reading. So:
//
//  4. An operator that runs on another stream than the one its operand was made on records that stream for the
//     operand, as Tensor.record_stream does. When the tensor is freed, by Release, at the end of its scope or by a
//     sweep, its memory is reused only after the work that each recorded stream has at that time is done. Until then
//     it counts towards the hard limit and in vram's Memory.Active, but not in Memory.Allocated; at the limit an
//     allocation waits for the device before it fails, unless a graph is captured there. Recording starts with the
//     first WithStream of a stream other than a default one; programs with default streams alone do not pay for it. In
//     PyTorch, programs call record_stream themselves.
//  5. Only operators record streams. If memory is used in another way, such as by a kernel of the program's own or as
//     part of a sparse tensor, call [RecordStream].
//  6. Reads and writes are not ordered automatically, as in PyTorch: before a stream reads what another one writes, it
//     must wait for it.
//  7. Pinned memory is reused after the copies that were given to any stream are done.
//
// # Graphs
//
// [Capture] records the work that a function gives to the device instead of running it, and [Graph.Replay] runs all of it
// with one call, which takes a few microseconds however many kernels there are. A replay computes with the same
// addresses: inputs are tensors that are changed in place before it (Copy_), outputs are tensors that the function made
// and kept (Keep, Replace), and the next replay overwrites them.
//
//	x := tensor.Zeros([]int{64, 784}, tensor.CUDA(0)).Keep()
//	var y *tensor.Tensor
//	graph, err := cuda.Capture(tensor.CUDA(0), func() error {
//		return tensor.Replace(&y, model.Forward(x)) // kept
//	}, cuda.Warmup(3))
//	…
//	if err := x.Copy_(batch).Err(); err != nil {
//		return err
//	}
//	err = graph.Replay() // y holds the result
//
// A whole training step is captured in the same way, with SGD, Adam, AdamW or Muon, and [MakeGraphedCallables] makes layers
// whose forward and backward passes are graphs.
//
//  8. A capture belongs to the goroutine that calls Capture, and to one device. Captures do not nest, and one device has
//     one at a time. Other goroutines may compute, free and sweep meanwhile. They cannot use the captured stream, wait
//     for its events or the whole device, or, with libtorch 2.11, draw random numbers on it: the error is
//     tensor.ErrCapture, and the capture goes on. A stream that is current in another goroutine's WithStream can neither
//     be captured nor become part of a capture. Do not capture a stream on which another goroutine has computed what it
//     then differentiates outside of WithStream: that backward pass, on a thread of autograd, is not refused.
//     Hooks and Functions that a captured backward pass calls belong to the capture.
//  9. Calls that wait for the device cannot be captured: Item, Data, printing, Synchronize, Query, operators whose
//     result has a shape that depends on values (Nonzero, MaskedSelect), copies between the device and pageable
//     memory, and those of pinned memory without NonBlocking; neither can collectives of NCCL. Such a call returns
//     tensor.ErrCapture, and so does Capture. Go code runs once, during the capture: branches on values and numbers
//     such as a learning rate are fixed. So are the number of an optimizer's step and the values with which its state
//     begins: Optimizer.Step is tensor.ErrCapture if the algorithm computes with a number that it counts in Go, and
//     at the first step of a parameter that has state.
//  10. The memory that a captured function allocates comes from a pool of the graph. Tensors that are freed during the
//     capture, by Release or at the end of its scope, make room for later ones of the same capture. No other tensor gets
//     that memory until the graph is closed and the tensors in it are freed, so a replay never writes to memory that
//     another tensor has. Graphs that share a pool ([Pool]) must be replayed in the order of their captures.
//     With libtorch 2.11, graphs that draw random numbers share the memory of the seed: do not replay two of them at the
//     same time on different streams.
//  11. Tensors that a graph reads must live as long as the graph, and until its last replay is done. The Graph keeps the
//     captured function, and so the tensors that it refers to, from being collected, but not from being released or
//     from ending with their scope: keep them (Keep), and release them after Close.
//  12. During a capture the capturing goroutine does not sweep, unless it calls vram.Collect or a function that does,
//     such as vram.Measure. Pinned memory that any goroutine frees meanwhile is freed when the capture ends, because
//     libtorch would record events on the captured stream; vram.EmptyCache of the device takes effect then, too, and
//     that of the CPU does not free pinned memory. Other frees take effect at once, but for those of the
//     capturing goroutine after a call has made the capture invalid. While a graph is captured, another goroutine must
//     not free a tensor that an earlier capture on the same stream has read, or, on a stream of [On], other work:
//     libtorch 2.15 records an event on the captured stream, and the capture and allocations of other goroutines fail.
//     libtorch 2.11 and 2.12 forget the streams that operators of other goroutines record meanwhile (4): free what they
//     use after those streams are done.
//
// # Errors
//
// Without a CUDA device every constructor that returns an error returns ErrUnavailable, which wraps
// errors.ErrUnsupported. Methods of a closed event or graph return ErrClosed. Streams and tensors of different devices
// are tensor.ErrArgument, and what a capture does not allow is tensor.ErrCapture. After an error from which a device does
// not recover, calls return tensor.ErrDeviceLost.
package cuda

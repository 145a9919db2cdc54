package dist

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/flight"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// A Work is a collective in flight. Several goroutines may use it. Sends, receives and reduce-scatters by gloo must be waited
// for, and the group keeps them until then; other collectives go on without their Work. PyTorch: torch.distributed.Work.
type Work struct {
	g       *Group
	op      string
	peer    int // of a send, receive or exchange; -1 for another collective
	record  *flight.Record
	waiter  chan struct{} // full while a goroutine waits natively
	cleanup runtime.Cleanup

	mu       sync.Mutex
	native   cshim.Work // 0 once it is over
	byWait   bool       // only Wait completes it
	receives bool       // of Recv
	any      bool       // a receive from any rank by gloo, which does not notice that connections are closed
	source   int
	err      error
}

var withHandles = handle.WithHandles.(func(op string, ts []*tensor.Tensor, f func(h []cshim.Handle) error) error)

// byWait holds gloo's collectives that only a wait completes, as in the shim: sends and receives, and reductions that are
// scattered when they are waited for.
var byWait = map[cshim.CollectiveKind]bool{cshim.Send: true, cshim.Receive: true, cshim.ReduceScatter: true, cshim.ReduceScatterOne: true}

// pairwise holds the kinds of which only two ranks are part.
var pairwise = map[cshim.CollectiveKind]bool{cshim.Send: true, cshim.Receive: true, cshim.Exchange: true}

// copying holds the kinds that copy elements, for which gloo or NCCL has no complex dtypes. c10d itself makes
// views for the others.
var copying = map[cshim.CollectiveKind]bool{cshim.AllGather: true, cshim.AllGatherOne: true, cshim.Gather: true, cshim.Scatter: true,
	cshim.AllToAllOne: true, cshim.Send: true, cshim.Receive: true, cshim.Exchange: true}

// scattering holds the kinds whose tensors' dtypes and sizes libtorch does not compare, or only with a text for all
// ranks.
var scattering = map[cshim.CollectiveKind]bool{cshim.ReduceScatter: true, cshim.ReduceScatterOne: true, cshim.AllToAllOne: true}

// checkScattered returns an error if the inputs of a collective in scattering do not fit the output.
func (g *Group) checkScattered(op string, kind cshim.CollectiveKind, out, in []*tensor.Tensor) error {
	for _, t := range slices.Concat(out, in) {
		if t.Err() != nil {
			return nil // which withHandles reports
		}
	}
	for i, t := range in {
		o := out[0]
		if t.DType() != o.DType() {
			return refuse.Error(op, tensor.ErrArgument, "the output is %v, the input %v: want the same dtype", o.DType(), t.DType())
		}
		switch {
		case kind == cshim.ReduceScatter && t.Numel() != o.Numel():
			return refuse.Error(op, tensor.ErrArgument, "input %d has shape %v, the output %v: want as many elements in both", i, t.Shape(), o.Shape())
		case kind == cshim.ReduceScatterOne && t.Numel() != g.size*o.Numel():
			return refuse.Error(op, tensor.ErrArgument, "the input has shape %v, the output %v: the input needs %d times as many elements", t.Shape(), o.Shape(), g.size)
		}
	}
	return nil
}

// glooDTypes holds the dtypes of gloo's collectives, which get complex tensors as real ones.
var glooDTypes = map[tensor.DType]bool{tensor.Uint8: true, tensor.Int8: true, tensor.Int32: true, tensor.Int64: true, tensor.Bool: true,
	tensor.Float16: true, tensor.BFloat16: true, tensor.Float32: true, tensor.Float64: true}

// checkDTypes returns an error if gloo lacks a collective, which is not in pairwise, for the dtype of a tensor on the CPU.
func (g *Group) checkDTypes(op string, reduce ReduceOp, ts []*tensor.Tensor) error {
	for _, t := range ts {
		if t.Err() != nil || t.Device().Type != tensor.CPUType || g.backends&cshim.Gloo == 0 {
			continue // others report it
		}
		switch d := t.DType(); {
		case !glooDTypes[d] && !d.IsComplex():
			return refuse.Error(op, tensor.ErrArgument, "gloo has no %s of %v tensors: it only sends and receives them", op, d)
		case reduce == Avg && !d.IsFloat() && !d.IsComplex():
			return refuse.Error(op, tensor.ErrArgument, "gloo has no Avg of %v tensors, only of floating-point and complex ones", d)
		}
	}
	return nil
}

// asReal returns views of complex tensors as real ones, as Python's collectives do, and other tensors unchanged. Tensors that
// are only read may be lazily conjugated. free frees the views.
func asReal(ts []*tensor.Tensor, read bool) (real []*tensor.Tensor, free func()) {
	var views []*tensor.Tensor
	real = slices.Clone(ts)
	for i, t := range ts {
		if t.DType().IsComplex() {
			d := t.Detach()
			views = append(views, d)
			if read {
				d = d.ResolveConj()
				views = append(views, d)
			}
			real[i] = d.ViewAsReal()
			views = append(views, real[i])
		}
	}
	return real, func() {
		for _, v := range views {
			v.Release()
		}
	}
}

// asVectors returns views of one dimension of contiguous tensors, and other tensors unchanged. free frees the views.
func asVectors(ts []*tensor.Tensor) (vectors []*tensor.Tensor, free func()) {
	var views []*tensor.Tensor
	vectors = slices.Clone(ts)
	for i, t := range ts {
		if t.Err() == nil && t.IsContiguous() {
			d := t.Detach()
			vectors[i] = d.View(-1)
			views = append(views, d, vectors[i])
		}
	}
	return vectors, func() {
		for _, v := range views {
			v.Release()
		}
	}
}

// concatenated reports whether in consists of n tensors like out, one after the other in the first dimension.
func concatenated(out, in *tensor.Tensor, n int) bool {
	o, i := out.Shape(), in.Shape()
	return len(o) != 0 && len(i) == len(o) && i[0] == n*o[0] && slices.Equal(i[1:], o[1:])
}

// begin starts a collective without sizes of parts.
func (g *Group) begin(op string, c cshim.Collective, out, in []*tensor.Tensor) (*Work, error) {
	return g.beginSized(op, c, out, in, nil, nil)
}

// beginWith starts a collective that has a source or destination, the rank peer, and a tag.
func (g *Group) beginWith(op string, c cshim.Collective, peer, tag int, out, in []*tensor.Tensor) (*Work, error) {
	if err := g.check(op); err != nil {
		return nil, err
	}
	if anySource := peer == AnySource && c.Kind == cshim.Receive; !anySource && (peer < 0 || peer >= g.size) {
		return nil, refuse.Error(op, tensor.ErrArgument, "rank %d is not in a group of %d", peer, g.size)
	}
	if tag < 0 || tag > math.MaxInt32 {
		return nil, refuse.Error(op, tensor.ErrArgument, "tag %d: a number in [0, %d] is needed", tag, math.MaxInt32)
	}
	c.Peer, c.Tag = int32(peer), int32(tag)
	return g.begin(op, c, out, in)
}

func (g *Group) beginSized(op string, c cshim.Collective, out, in []*tensor.Tensor, outSizes, inSizes []int) (w *Work, err error) {
	var native cshim.Work
	var record *flight.Record
	var failure error
	if g != nil && scattering[c.Kind] {
		if err := g.checkScattered(op, c.Kind, out, in); err != nil {
			return nil, err
		}
	}
	if g != nil && !pairwise[c.Kind] {
		if err := g.checkDTypes(op, ReduceOp(c.Reduce), slices.Concat(out, in)); err != nil {
			return nil, err
		}
	}
	if len(out) != 0 && out[0].DType() == tensor.Bool && ReduceOp(c.Reduce) == Sum {
		c.Reduce = int32(Max) // as by NCCL: gloo would add the bytes
	}
	peer := -1
	if pairwise[c.Kind] {
		peer = int(c.Peer)
	}
	defer g.lookoutFor(peer)()
	if copying[c.Kind] {
		var freeOut, freeIn func()
		out, freeOut = asReal(out, false)
		in, freeIn = asReal(in, true)
		defer freeOut()
		defer freeIn()
	}
	// gloo reads the first dimension, which a tensor may not have, and takes only parts that are concatenated.
	if g != nil && c.Kind == cshim.ReduceScatterOne && !onDevice(out, in) && !concatenated(out[0], in[0], g.size) {
		var freeOut, freeIn func()
		out, freeOut = asVectors(out)
		in, freeIn = asVectors(in)
		defer freeOut()
		defer freeIn()
	}
	err = g.use(op, func(n cshim.Group) error {
		return withHandles(op, out, func(o []cshim.Handle) error {
			return withHandles(op, in, func(i []cshim.Handle) error {
				g.start.Lock()
				defer g.start.Unlock()
				record = g.recordCollective(op, c, out, in)
				native, failure = n.Start(c, o, i, outSizes, inSizes)
				if _, kind := network(failure); failure != nil && kind == nil && record != nil && record.Collective != 0 {
					g.collectives-- // the other ranks know nothing of it
				}
				return nil
			})
		})
	})
	switch {
	case err != nil:
		return nil, err
	case failure != nil: // of an argument, or because a connection is closed already
		err = g.diagnose(op, nil, failure)
		g.job.flight.End(record, err)
		return nil, err
	}
	w = &Work{g: g, op: op, peer: peer, record: record, waiter: make(chan struct{}, 1), native: native,
		byWait: byWait[c.Kind] && !onDevice(out, in), receives: c.Kind == cshim.Receive, source: -1}
	w.cleanup = runtime.AddCleanup(w, cshim.Work.Free, native)
	if w.byWait {
		w.any = w.receives && peer == AnySource
		g.state.Lock()
		g.kept[w] = struct{}{}
		severed := g.severed
		g.state.Unlock()
		if w.any && severed {
			w.interrupt()
		}
	}
	return w, nil
}

// onDevice reports whether tensors of a collective, which are all on one device, are not on the CPU.
func onDevice(out, in []*tensor.Tensor) bool {
	for _, t := range slices.Concat(out, in) {
		return t.Device().Type != tensor.CPUType
	}
	return false
}

// Wait waits until the collective is complete and returns its error, a *PeerError if other ranks have made it fail. If ctx
// ends first, Wait returns the context's error, and the collective goes on; for a reduce-scatter by gloo ctx is not read.
// PyTorch: Work.wait.
func (w *Work) Wait(ctx context.Context) error {
	const op = "Wait"
	if w == nil {
		return refuse.Nil(op, "a work")
	}
	if w.waiter == nil {
		return refuse.Error(op, tensor.ErrNil, "the work was not made by a collective")
	}
	if ctx == nil {
		return refuse.Nil(op, "a context")
	}
	select {
	case w.waiter <- struct{}{}:
		defer func() { <-w.waiter }()
	case <-ctx.Done():
		return endedBy(w.op, ctx.Err())
	}
	w.mu.Lock()
	native, err := w.native, w.err
	w.mu.Unlock()
	if native == 0 {
		return err
	}
	defer context.AfterFunc(ctx, w.interrupt)()
	if w.any {
		defer w.g.lookoutForSenders()()
	} else {
		defer w.g.lookoutFor(w.peer)()
	}
	begun := time.Now()
	defer func() { w.g.job.waited.Add(int64(time.Since(begun))) }()
	for {
		done, err := native.Wait()
		runtime.KeepAlive(w)
		if failed := handle.NativeError(op, err); errors.Is(failed, tensor.ErrCapture) {
			return failed // the collective goes on
		}
		switch {
		case done || err != nil:
			return w.end(err)
		case ctx.Err() != nil:
			return endedBy(w.op, ctx.Err())
		case w.any && w.g.isSevered():
			return w.end(&cshim.Error{Code: cshim.CodeConnection, Message: "the group's connections are closed"})
		}
	}
}

// interrupt ends the native wait.
func (w *Work) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.native != 0 {
		w.native.Interrupt()
	}
	runtime.KeepAlive(w)
}

// end records the end of the collective and frees the native work. The caller is the waiter.
func (w *Work) end(err error) error {
	if err != nil {
		var late []int
		if _, kind := network(err); kind == ErrTimeout && w.peer >= 0 {
			late = []int{w.peer}
		}
		err = w.g.diagnose(w.op, late, err)
	}
	w.g.job.flight.End(w.record, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil || !w.receives:
	case w.any:
		w.source = w.native.Source()
	default:
		w.source = w.peer
	}
	w.cleanup.Stop()
	w.native.Free()
	w.native, w.err = 0, err
	runtime.KeepAlive(w)
	if w.byWait {
		w.g.state.Lock()
		delete(w.g.kept, w)
		w.g.state.Unlock()
	}
	return err
}

// Done reports whether the collective is complete, with or without an error. For sends, receives and reduce-scatters by gloo,
// which Wait completes, it is false before. PyTorch: Work.is_completed.
func (w *Work) Done() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	done := w.native == 0 || w.native.Done()
	runtime.KeepAlive(w)
	return done
}

// Err returns the error of a collective that is complete, and nil for one in flight. PyTorch: Work.exception.
func (w *Work) Err() error {
	if w == nil {
		return refuse.Nil("Err", "a work")
	}
	if !w.Done() {
		return nil
	}
	return w.Wait(context.Background())
}

// Source returns the rank that a completed Recv has received from, and -1 otherwise. PyTorch: Work._source_rank.
func (w *Work) Source() int {
	if w == nil {
		return -1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.source
}

// run starts a collective and waits for it. If ctx ends, it aborts the group, so that the tensors are not in use afterwards.
func (g *Group) run(ctx context.Context, op string, start func() (*Work, error)) error {
	if err := refuse.Ended(op, ctx, ErrTimeout); err != nil {
		return err
	}
	// In a checked group, and for the first collective on a device, start already waits for the other ranks.
	defer context.AfterFunc(ctx, func() { _ = g.Abort() })()
	w, err := start()
	if err == nil {
		err = w.Wait(context.Background())
	}
	if errors.Is(err, ErrAborted) && ctx.Err() != nil {
		return abortedBy(op, ctx)
	}
	return err
}

// rest returns err, the error of a collective that is not the first of a call. If ctx ended before it started, the
// group is aborted, since the other ranks are also in the call.
func (g *Group) rest(ctx context.Context, op string, err error) error {
	if ended := ctx.Err(); err != nil && ended != nil && errors.Is(err, ended) {
		_ = g.Abort()
		return abortedBy(op, ctx)
	}
	return err
}

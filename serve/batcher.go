// Package serve computes the requests of many goroutines in batches: dynamic batching. A model answers a batch of 32
// rows in little more time than one row, as long as the cost is that of the calls and not of the arithmetic.
//
//	batcher, err := serve.NewBatcher(func(batch [][]float32) (answers []int64, err error) {
//		err = autograd.NoGrad(func() error {
//			x := tensor.FromSlice(slices.Concat(batch...), []int{len(batch), width})
//			answers, err = tensor.Data[int64](model.Forward(x).ArgMax(tensor.Dim(1)))
//			return err
//		})
//		return answers, err
//	}, serve.MaxBatch(64), serve.Queue(1024))
//	if err != nil {
//		return err
//	}
//	go batcher.Run()      // computes one batch at a time
//	defer batcher.Close() // answers the requests that wait, and ends Run
//
//	// In the handler of a request. Concat would join rows of any lengths, and shift those of other requests.
//	if len(row) != width {
//		return fmt.Errorf("want %d values, got %d", width, len(row))
//	}
//	answer, err := batcher.Do(r.Context(), row)
//
// The package starts no goroutine. Batches are computed by the goroutines that call Run, one batch at a time each. Run
// opens a scope around each batch, which frees the tensors that the model makes.
//
// # Definitions
//
// A request is one call of Do: one input, one answer. It waits from its admission until it leaves the queue: into a
// batch, or because its context is done. The shape of a request is what the function of the option Shape returns for
// its input. All requests of a batch have the same shape. Without the option all requests have the same shape. A shape
// that contains a NaN equals no other: its request is a batch of its own.
//
// The requests of a shape are due when there are MaxBatch of them, when the oldest has waited for Window, or when the
// batcher is closed. A batch holds the oldest requests of a shape that is due, in the order of their admission, MaxBatch
// at most. A goroutine in Run computes the batch whose first request is the oldest.
//
// # Invariants
//
//  1. At most Queue requests wait. Further ones get ErrFull at once.
//  2. An admitted request is in at most one batch and is answered once: with the output of its batch, the error of its
//     batch or of its caller's stream, the error of its context, ErrClosed, or, if a batch's function ends the last
//     goroutine in Run (runtime.Goexit) while the request waits, the error of that batch. Until Run is called again,
//     further requests get that error at once.
//  3. Do returns when the context is done. A request whose context is done while it waits leaves the queue and is not
//     computed.
//  4. While a goroutine in Run is idle, no request waits longer than Window.
//  5. A batch that fails or panics does not affect other batches.
//  6. After Close has returned, no request waits and no batch is computed.
//
// # Rounding
//
// A model sees a batch as one tensor, and libtorch may choose another kernel for another number of rows. An answer
// therefore agrees with that of a batch of one row up to the rounding of its dtype; the package's tests allow PyTorch's
// tolerances for float32 (relative 1.3e-6, absolute 1e-5). The answer of a batch of one row is that of a call of the
// model outside of a batcher, bit for bit.
package serve

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

var (
	// ErrFull is the error of Do if Queue requests wait. HTTP servers answer it with 503 and Retry-After.
	ErrFull = errors.New("linstock: serve: the queue is full")
	// ErrClosed is the error of Do after Close.
	ErrClosed = errors.New("linstock: serve: the batcher is closed")

	errExited = errors.New("linstock: serve: the batch's function ended its goroutine (runtime.Goexit)")
)

// PanicError is in the error of the requests of a batch whose function has panicked, for errors.As.
type PanicError = tensor.PanicError

// Option is an option of NewBatcher.
type Option func(*config)

type config struct {
	maxBatch, queue int
	window          time.Duration
	shape           any // func(In) any
}

// MaxBatch sets the maximum number of requests of a batch; the default is 32.
func MaxBatch(n int) Option { return func(c *config) { c.maxBatch = n } }

// Window sets how long a request may wait for others of its shape although a goroutine in Run is idle. The default is
// 0: an idle goroutine computes at once what there is, and batches form of the requests that arrive meanwhile. Larger
// windows make larger batches and add at most the window to the time of an answer.
func Window(d time.Duration) Option { return func(c *config) { c.window = d } }

// Queue sets the maximum number of requests that wait; the default is 1,024.
func Queue(n int) Option { return func(c *config) { c.queue = n } }

// Shape makes batches of requests for which f returns equal values, for example the length of the input. In must be
// the type of the batcher's inputs. f is called by the goroutine that calls Do, which returns an error for an interface
// whose value cannot be compared, such as a slice.
func Shape[In any, K comparable](f func(In) K) Option {
	return func(c *config) {
		if f == nil {
			c.shape = nil
			return
		}
		c.shape = func(in In) any { return f(in) }
	}
}

// Batcher computes requests in batches. All methods may be called by any goroutine.
type Batcher[In, Out any] struct {
	config
	run   func([]In) ([]Out, error)
	shape func(In) any // nil: all requests have the same shape

	wake  chan struct{} // wakes one idle goroutine in Run
	ended chan struct{} // closed by Close

	mu       sync.Mutex
	left     sync.Cond // a goroutine has left Run
	groups   []*group[In, Out]
	admitted uint64 // requests so far: gives them their order
	closed   bool
	exited   bool // a batch's function has ended the last goroutine in Run
	runners  int  // goroutines in Run
	idle     int  // those of them that wait for a batch
	stats    Stats
}

// group is the waiting requests of a shape in the order of their admission. None in Batcher.groups is empty.
type group[In, Out any] struct {
	shape    any
	requests []*request[In, Out]
}

type request[In, Out any] struct {
	ctx     context.Context
	in      In
	streams []cshim.Stream // current where Do was called, those that are not default ones
	number  uint64
	taken   bool      // into a batch; guarded by Batcher.mu
	gone    bool      // Do returns without the answer; guarded by Batcher.mu
	at      time.Time // of admission; not set without a window
	group   *group[In, Out]

	answered chan struct{} // closed when out and err are set
	out      Out
	err      error // until then that of the caller's stream
}

// Stats counts requests and batches.
type Stats struct {
	Waiting int // requests that wait
	Running int // requests of the batches that are being computed

	Batches  int64 // batches computed so far, including those that failed
	Computed int64 // their requests
	Full     int64 // requests that got ErrFull
	Expired  int64 // requests whose context was done while they waited
}

// NewBatcher returns a batcher of the model that run calls. run gets the inputs of a batch, one at least, and returns
// an output for each, in the same order. It runs in a scope, so that the tensors it makes are freed when it returns:
// outputs are Go values, or tensors that it has taken out with Keep. An output that is a *tensor.Tensor belongs to the
// caller of Do; if the request's context is done or the batch fails, it is released. With n goroutines in Run, up to n
// calls of run are active at once. A call that is active is not cancelled when the requests' contexts are done.
//
// Check inputs before Do, because a wrong one concerns its whole batch. If run returns an error or panics, each request
// of the batch gets that error. Where run joins the inputs without a check of their lengths, as slices.Concat does, one
// that is too long and one that is too short make wrong answers of all, and no error. The option Shape keeps inputs of
// different lengths in different batches.
func NewBatcher[In, Out any](run func(batch []In) ([]Out, error), opts ...Option) (*Batcher[In, Out], error) {
	c := config{maxBatch: 32, queue: 1024}
	for _, o := range opts {
		if o == nil {
			return nil, refuse.NilOption("NewBatcher")
		}
		o(&c)
	}
	shape, ok := c.shape.(func(In) any)
	switch {
	case run == nil:
		return nil, refuse.Nil("NewBatcher", "a function")
	case c.maxBatch < 1:
		return nil, refuse.Error("NewBatcher", tensor.ErrArgument, "MaxBatch must be at least 1, got %d", c.maxBatch)
	case c.queue < 1:
		return nil, refuse.Error("NewBatcher", tensor.ErrArgument, "Queue must be at least 1, got %d", c.queue)
	case c.window < 0:
		return nil, refuse.Error("NewBatcher", tensor.ErrArgument, "Window must be at least 0, got %v", c.window)
	case c.shape != nil && !ok:
		return nil, refuse.Error("NewBatcher", tensor.ErrArgument, "the function of Shape does not take the batcher's inputs, %v", reflect.TypeFor[In]())
	}
	b := &Batcher[In, Out]{config: c, run: run, shape: shape, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	b.left.L = &b.mu
	return b, nil
}

// Do returns the output for in, from a batch that a goroutine in Run computes, and waits until there is one. Without a
// deadline it waits for ever if the program never calls Run, or if the batch's function calls Do of its own batcher and no
// other goroutine is in Run: the function must not.
//
// Do returns when the context is done; with errors.Is its error matches ctx.Err() and the context's cause. If its batch is
// then being computed, the batch's function may still read in. For a
// *tensor.Tensor the function gets an alias, which lives as long as the batch's scope, so that the caller may release
// its own; tensors in another form, such as a slice, must stay alive. Other errors are ErrFull, ErrClosed, that of a
// *tensor.Tensor that is failed, released or nil, that of a shape that cannot be compared, and those of the batch's
// function.
//
// On CUDA devices the batch's work waits for the work that the caller's current streams have, and those wait for the
// batch's, so that Do may be called within cuda.WithStream. If a stream cannot wait for the batch, for example because
// its device was lost meanwhile, only the requests of that stream get the error. Within cuda.Capture Do returns
// tensor.ErrCapture, because another goroutine computes the batch.
func (b *Batcher[In, Out]) Do(ctx context.Context, in In) (out Out, err error) {
	switch {
	case b == nil || b.run == nil:
		return out, refuse.Error("Do", tensor.ErrArgument, "the batcher was not made by NewBatcher")
	case ctx == nil:
		return out, refuse.Nil("Do", "a context")
	case ctx.Err() != nil:
		return out, refuse.Cause(ctx)
	}
	streams, err := callerStreams()
	if err != nil {
		return out, err
	}
	r := &request[In, Out]{ctx: ctx, in: in, streams: streams, answered: make(chan struct{})}
	if t, ok := any(in).(*tensor.Tensor); ok {
		if err := refuse.Unusable("Do", "", t); err != nil { // it would fail the whole batch
			return out, err
		}
		alias := t.Alias().Keep()
		if err := alias.Err(); err != nil {
			return out, refuse.Named("Do", err)
		}
		r.in = any(alias).(In)
		defer func() {
			if !b.isTaken(r) { // otherwise the batch's scope frees it
				alias.Release()
			}
		}()
	}
	var shape any
	if b.shape != nil {
		shape = b.shape(in)
		if !reflect.ValueOf(shape).Comparable() {
			return out, refuse.Error("Do", tensor.ErrArgument, "the function of Shape returned a value that cannot be compared, %T", shape)
		}
	}
	if err := b.admit(shape, r); err != nil {
		return out, err
	}
	select {
	case <-r.answered:
		return r.out, r.err
	case <-ctx.Done():
	}
	if !b.leave(r) {
		return r.out, r.err
	}
	return out, refuse.Cause(ctx)
}

// isTaken reports whether the request is in a batch.
func (b *Batcher[In, Out]) isTaken(r *request[In, Out]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return r.taken
}

// admit adds a request to the queue.
func (b *Batcher[In, Out]) admit(shape any, r *request[In, Out]) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrClosed
	case b.exited:
		return errExited
	case b.stats.Waiting >= b.queue:
		b.stats.Full++
		return ErrFull
	}
	if b.window > 0 {
		r.at = time.Now()
	}
	r.number = b.admitted
	g := b.group(shape)
	if g == nil {
		g = &group[In, Out]{shape: shape}
		b.groups = append(b.groups, g)
	}
	r.group = g
	g.requests = append(g.requests, r)
	b.admitted++
	b.stats.Waiting++
	// Further requests change nothing for the goroutines that wait for the first one's window.
	if n := len(g.requests); b.window == 0 || n == 1 || n >= b.maxBatch {
		b.rouse()
	}
	return nil
}

// rouse wakes an idle goroutine in Run. Called with the lock.
func (b *Batcher[In, Out]) rouse() {
	if b.idle == 0 {
		return // the others look for a batch before they become idle
	}
	select {
	case b.wake <- struct{}{}:
	default: // one is waking up; it wakes the next if there is more to do
	}
}

func (b *Batcher[In, Out]) group(shape any) *group[In, Out] {
	for _, g := range b.groups {
		if g.shape == shape {
			return g
		}
	}
	return nil
}

// leave gives up a request, and removes it from the queue if it still waits. It returns false if there is an answer.
func (b *Batcher[In, Out]) leave(r *request[In, Out]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-r.answered:
		return false
	default:
	}
	r.gone = true
	g := r.group
	if i := slices.Index(g.requests, r); i >= 0 {
		g.requests = slices.Delete(g.requests, i, i+1)
		b.drop(g)
		b.stats.Waiting--
		b.stats.Expired++
	}
	return true
}

// drop forgets a group that has become empty.
func (b *Batcher[In, Out]) drop(g *group[In, Out]) {
	if len(g.requests) == 0 {
		i := slices.Index(b.groups, g)
		b.groups = slices.Delete(b.groups, i, i+1)
	}
}

// Run computes batches until Close has been called and no request waits. Each goroutine that calls Run computes one
// batch at a time: for small models on a CPU call it from as many goroutines as there are cores, with one thread for
// each operator (tensor.SetNumThreads), for a GPU from one.
func (b *Batcher[In, Out]) Run() {
	if b == nil || b.run == nil {
		return
	}
	b.mu.Lock()
	b.runners++
	b.exited = false
	b.mu.Unlock()
	exits := true // a batch's function ends this goroutine; unless replaced below
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.runners--
		switch {
		case b.closed:
			b.abandon(ErrClosed)
		case exits:
			b.exited = b.runners == 0
			b.abandon(errExited)
		}
		b.left.Broadcast()
	}()
	for batch := b.await(); batch != nil; batch = b.await() {
		b.compute(batch)
	}
	exits = false
}

// await returns the next batch when it is due, or nil if the batcher is closed and no request waits.
func (b *Batcher[In, Out]) await() []*request[In, Out] {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		batch, wait := b.take()
		if batch != nil {
			if b.stats.Waiting > 0 {
				b.rouse()
			}
			return batch
		}
		if b.closed {
			return nil
		}
		b.idle++
		b.mu.Unlock()
		b.sleep(wait)
		b.mu.Lock()
		b.idle--
	}
}

// sleep waits for a call of rouse or Close, or for wait if it is not 0.
func (b *Batcher[In, Out]) sleep(wait time.Duration) {
	var window <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		window = t.C
	}
	select {
	case <-b.wake:
	case <-window:
	case <-b.ended:
	}
}

// take removes the next batch that is due from the queue. If there is none, wait is the time until one is due, or 0 if
// no request waits. Called with the lock.
func (b *Batcher[In, Out]) take() (batch []*request[In, Out], wait time.Duration) {
	for {
		var next *group[In, Out]
		wait = 0
		for _, g := range b.groups {
			if d := b.until(g); d > 0 {
				if wait == 0 || d < wait {
					wait = d
				}
			} else if next == nil || g.requests[0].number < next.requests[0].number {
				next = g
			}
		}
		if next == nil {
			return nil, wait
		}
		n := 0
		for _, r := range next.requests {
			if len(batch) == b.maxBatch {
				break
			}
			n++
			if r.ctx.Err() == nil {
				r.taken = true
				batch = append(batch, r)
			}
		}
		next.requests = slices.Delete(next.requests, 0, n)
		b.drop(next)
		b.stats.Waiting -= n
		b.stats.Expired += int64(n - len(batch))
		if len(batch) > 0 {
			b.stats.Running += len(batch)
			return batch, 0
		}
	}
}

// until returns the time until a group is due; it is not positive if the group is due.
func (b *Batcher[In, Out]) until(g *group[In, Out]) time.Duration {
	if b.window == 0 || b.closed || len(g.requests) >= b.maxBatch {
		return 0
	}
	return b.window - time.Since(g.requests[0].at)
}

// compute runs the batch's function and answers its requests.
func (b *Batcher[In, Out]) compute(batch []*request[In, Out]) {
	var outs []Out
	err := errExited // unless replaced below
	defer func() {
		if v := recover(); v != nil {
			err = &tensor.Error{Op: "serve", Message: fmt.Sprintf("the batch's function panicked: %v", v), Kind: &PanicError{Value: v, Stack: debug.Stack()}}
		}
		b.answer(batch, outs, err)
	}()
	err = b.call(batch, &outs)
}

func (b *Batcher[In, Out]) call(batch []*request[In, Out], outs *[]Out) error {
	ins := make([]In, len(batch))
	for i, r := range batch {
		ins[i] = r.in
	}
	n, opened := len(ins), false
	err := tensor.WithScope(func() (err error) {
		opened = true
		for _, in := range ins {
			if t, ok := any(in).(*tensor.Tensor); ok {
				_ = tensor.CurrentScope().Adopt(t) // Do has checked t
			}
		}
		pairs, err := pairsOf(batch)
		if err != nil {
			return err
		}
		if err := fromCallers(pairs); err != nil {
			return err
		}
		if *outs, err = b.run(ins); err != nil {
			return err
		}
		toCallers(pairs, batch)
		return nil
	})
	if !opened { // no scope frees the aliases that Do has made
		for _, in := range ins {
			if t, ok := any(in).(*tensor.Tensor); ok {
				t.Release()
			}
		}
	}
	if err == nil && len(*outs) != n {
		err = fmt.Errorf("linstock: serve: the batch's function returned %d outputs for %d inputs", len(*outs), n)
	}
	return err
}

// answer answers the requests of a batch, and releases the outputs that none of them gets.
func (b *Batcher[In, Out]) answer(batch []*request[In, Out], outs []Out, err error) {
	b.mu.Lock()
	b.stats.Running -= len(batch)
	b.stats.Batches++
	b.stats.Computed += int64(len(batch))
	var given, left []*tensor.Tensor
	for i, out := range outs {
		switch t, ok := any(out).(*tensor.Tensor); {
		case ok && err == nil && batch[i].err == nil && !batch[i].gone:
			given = append(given, t)
		case ok:
			left = append(left, t)
		}
	}
	for i, r := range batch {
		switch {
		case err != nil:
			r.err = err
		case r.err == nil && !r.gone:
			r.out = outs[i]
		}
		close(r.answered)
	}
	b.mu.Unlock()
	for _, t := range left {
		if !slices.Contains(given, t) {
			t.Release()
		}
	}
}

// abandon answers the waiting requests with err if no goroutine is left in Run to compute them. Called with the lock.
func (b *Batcher[In, Out]) abandon(err error) {
	if b.runners > 0 {
		return
	}
	for _, g := range b.groups {
		for _, r := range g.requests {
			r.err = err
			close(r.answered)
		}
		g.requests = nil
	}
	b.groups, b.stats.Waiting = nil, 0
}

// Close makes Do refuse new requests and waits until the goroutines in Run have computed those that wait, without
// waiting for their windows, and have left Run. Requests that wait while no goroutine is in Run get ErrClosed. The
// batch's function must not call Close.
func (b *Batcher[In, Out]) Close() {
	if b == nil || b.run == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.closed = true
		close(b.ended)
	}
	b.abandon(ErrClosed)
	for b.runners > 0 {
		b.left.Wait()
	}
}

// Stats returns the counters.
func (b *Batcher[In, Out]) Stats() Stats {
	if b == nil || b.run == nil {
		return Stats{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

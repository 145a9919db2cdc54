package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// IterableDataset is a dataset that is read in order, such as lines of a file or messages of a queue. PyTorch:
// torch.utils.data.IterableDataset.
type IterableDataset[T any] interface {
	// Iter iterates over the samples of an epoch, counted from 0. An error ends the epoch. A run that was continued
	// reads and skips the samples that it has seen; if the dataset returns the same samples each time that it is called
	// with the same epoch, the run is continued exactly. When the loop is left, ctx ends, and the loop waits until Iter
	// has returned: while Iter waits for anything else, such as a message, it must wait for ctx, too.
	Iter(ctx context.Context, epoch int) iter.Seq2[T, error]
}

// IterableFunc is a function as an IterableDataset.
type IterableFunc[T any] func(ctx context.Context, epoch int) iter.Seq2[T, error]

// Iter calls f.
func (f IterableFunc[T]) Iter(ctx context.Context, epoch int) iter.Seq2[T, error] {
	if f == nil {
		return broken[T](refuse.Nil("IterableFunc", "a function"))
	}
	return f(ctx, epoch)
}

// broken returns a sequence of err alone.
func broken[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		yield(zero, err)
	}
}

// ChainDataset is several iterable datasets one after another. PyTorch: torch.utils.data.ChainDataset.
type ChainDataset[T any] struct{ datasets []IterableDataset[T] }

// NewChainDataset returns datasets one after another.
func NewChainDataset[T any](datasets ...IterableDataset[T]) (*ChainDataset[T], error) {
	for i, d := range datasets {
		if isNil(d) {
			return nil, refuse.Error("NewChainDataset", tensor.ErrNil, "dataset %d is nil", i)
		}
	}
	return &ChainDataset[T]{slices.Clone(datasets)}, nil
}

// Iter iterates over the samples of each dataset in order.
func (c *ChainDataset[T]) Iter(ctx context.Context, epoch int) iter.Seq2[T, error] {
	if c == nil {
		return broken[T](unmade("ChainDataset"))
	}
	return func(yield func(T, error) bool) {
		for i, d := range c.datasets {
			samples := d.Iter(ctx, epoch)
			if samples == nil {
				samples = broken[T](refuse.Error("ChainDataset", tensor.ErrArgument, "dataset %d: Iter returned nil", i))
			}
			for sample, err := range samples {
				if !yield(sample, err) || err != nil {
					return
				}
			}
		}
	}
}

// Shard returns every count-th sample of seq, beginning with sample index: the part of one process among count. An error
// is returned to all.
func Shard[T any](seq iter.Seq2[T, error], index, count int) iter.Seq2[T, error] {
	switch {
	case seq == nil:
		return broken[T](refuse.Nil("Shard", "a sequence"))
	case index < 0 || index >= count:
		return broken[T](refuse.Error("Shard", tensor.ErrArgument, "want an index in 0…count-1, got %d and %d", index, count))
	}
	return func(yield func(T, error) bool) {
		i := 0
		for sample, err := range seq {
			if (err != nil || i%count == index) && !yield(sample, err) {
				return
			}
			i++
		}
	}
}

// stream yields the batches of an epoch after the first skip ones.
type stream func(ctx context.Context, p *plan, skip int) iter.Seq2[[]*tensor.Tensor, error]

// NewIterableLoader returns a loader of an iterable dataset. collate makes the tensors of a batch from its samples, in a
// scope; nil means DefaultCollate. Its options are BatchSize, DropLast, Prefetch, PinMemory, Device, and Workers, which
// is 0 or 1. With 1, a goroutine reads and collates batches ahead of the loop. With 0, the loop's own goroutine reads a
// batch when the loop asks for it: modes around the loop, such as autograd.NoGrad, hold in Iter, too, and modes and
// scopes that Iter has open when it yields a sample are open in the loop's body, as in a loop over Iter itself. The loop
// locks its goroutine to an OS thread, and Go ends a program that resumes there an iter.Pull that began elsewhere: Iter
// must make its own, or the loader have a worker. If there is a scope around the loop, tensors that Iter makes belong to
// that and live until it closes: let Iter Keep those that it yields and make them in a scope of its own, or let a worker
// read. Loader.Len returns -1. PyTorch: torch.utils.data.DataLoader of an
// IterableDataset.
func NewIterableLoader[T any](dataset IterableDataset[T], collate func(samples []T) ([]*tensor.Tensor, error), opts ...Option) (*Loader, error) {
	const op = "NewIterableLoader"
	c, err := apply(op, opts, "BatchSize", "DropLast", "Workers", "Prefetch", "PinMemory", "Device")
	if err != nil {
		return nil, err
	}
	if collate == nil {
		collate = DefaultCollate[T]
	}
	switch {
	case isNil(dataset):
		return nil, refuse.Nil(op, "a dataset")
	case c.batch < 1 || c.batch > maxBatch:
		return nil, refuse.Error(op, tensor.ErrArgument, "BatchSize must be at least 1 and at most 2^28, got %d", c.batch)
	case c.workers < 0 || c.workers > 1 || c.prefetch < 0 || c.prefetch > maxAhead:
		return nil, refuse.Error(op, tensor.ErrArgument, "Workers must be 0 or 1 and Prefetch in 0…%d, got %d and %d", maxAhead, c.workers, c.prefetch)
	}
	if c.prefetch == 0 {
		c.prefetch = 2
	}
	return &Loader{config: c, state: State{Sampler: "IterableDataset"}, stream: func(ctx context.Context, p *plan, skip int) iter.Seq2[[]*tensor.Tensor, error] {
		return func(yield func([]*tensor.Tensor, error) bool) {
			number := 0
			pass := func(samples []T) bool {
				number++
				if number <= skip {
					return true
				}
				made, err := p.own(func() ([]*tensor.Tensor, error) {
					return caught(func() ([]*tensor.Tensor, error) { return collate(samples) })
				})
				if err != nil {
					release(made)
					yield(nil, fmt.Errorf("linstock: batch %d of epoch %d: %w", number-1, p.state.Epoch, err))
					return false
				}
				if !yield(made, nil) {
					return false
				}
				return true
			}
			all := dataset.Iter(ctx, p.state.Epoch)
			if all == nil {
				all = broken[T](errors.New("the dataset's Iter returned nil"))
			}
			var samples []T // new for each batch, because collate may keep it
			for sample, err := range all {
				if err == nil {
					err = refuse.Cause(ctx)
				}
				if err != nil {
					yield(nil, fmt.Errorf("linstock: batch %d of epoch %d: %w", number, p.state.Epoch, err))
					return
				}
				if samples == nil {
					samples = make([]T, 0, min(c.batch, 1<<16))
				}
				if samples = append(samples, sample); len(samples) == c.batch {
					if !pass(samples) {
						return
					}
					samples = nil
				}
			}
			if err := refuse.Cause(ctx); err != nil { // Iter may have ended for that
				yield(nil, err)
				return
			}
			if len(samples) > 0 && !c.dropLast && !pass(samples) {
				return
			}
			if number < skip {
				yield(nil, fmt.Errorf("linstock: the loader's position is batch %d of epoch %d, which has only %d batches", skip, p.state.Epoch, number))
			}
		}
	}}, nil
}

// caught turns a panic of f into an error.
func caught(f func() ([]*tensor.Tensor, error)) (made []*tensor.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			made, err = nil, newPanic("collate", p)
		}
	}()
	return f()
}

// streaming is a goroutine that reads a stream for one loop.
type streaming struct {
	pull  func() ([]*tensor.Tensor, error) // returns no tensors after the last batch
	ready func() bool                      // reports whether pull returns a batch without waiting for it
	end   func()                           // ends the goroutine and frees what was not pulled
}

// newStreaming starts reading at the plan's position, ahead of the loop.
func newStreaming(ctx context.Context, of stream, p *plan) *streaming {
	ctx, cancel := context.WithCancel(ctx)
	source := func(yield func([]*tensor.Tensor, error) bool) {
		defer func() {
			if r := recover(); r != nil {
				yield(nil, fmt.Errorf("linstock: %w", newPanic("the dataset", r)))
			}
		}()
		for made, err := range of(ctx, p, p.state.Batch) {
			if !yield(made, err) || err != nil {
				return
			}
		}
	}
	ready := make(chan prepared, p.config.prefetch)
	var wg sync.WaitGroup
	var ended error // why the goroutine ended early; set before ready is closed
	wg.Go(func() {
		ended = errors.New("linstock: the dataset ended the goroutine that reads it")
		defer close(ready)
		defer func() {
			if ended != nil && ctx.Err() != nil {
				ended = refuse.Cause(ctx)
			}
		}()
		source(func(made []*tensor.Tensor, err error) bool {
			batch := p.packed(made, err)
			select {
			case ready <- batch:
				return true
			case <-ctx.Done():
				batch.drop()
				return false
			}
		})
		ended = refuse.Cause(ctx)
	})
	return &streaming{pull: func() ([]*tensor.Tensor, error) {
		select {
		case made, ok := <-ready:
			if !ok {
				return nil, ended
			}
			return made.take()
		case <-ctx.Done():
			return nil, refuse.Cause(ctx)
		}
	}, ready: func() bool { return len(ready) > 0 }, end: func() {
		cancel()
		for made := range ready {
			made.drop()
		}
		wg.Wait()
	}}
}

// panicked is the error of a panic in the program's code. Its text is one line; the chain has a *tensor.PanicError.
type panicked struct {
	what string // where: "the dataset"
	tensor.PanicError
}

// newPanic returns the error of a panic with the value v, to be called where v was recovered.
func newPanic(what string, v any) error {
	return &panicked{what, tensor.PanicError{Value: v, Stack: debug.Stack()}}
}

func (p *panicked) Error() string { return fmt.Sprintf("%s panicked: %v", p.what, p.Value) }

func (p *panicked) Unwrap() error { return &p.PanicError }

// direct reads a stream on the loop's goroutine and yields its batches, from the position to the end of the epoch. The
// caller yields the error that it returns.
func (l *Loader) direct(ctx context.Context, p *plan, yield func(Batch, error) bool) (err error) {
	if err := refuse.Cause(ctx); err != nil {
		return err
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	i, more, inBody := p.state.Batch, true, false
	defer func() {
		if inBody {
			return // a panic of the loop's body passes through
		}
		if r := recover(); r != nil && more {
			err = fmt.Errorf("linstock: %w", newPanic("the dataset", r))
		}
	}()
	l.stream(reading, p, i)(func(made []*tensor.Tensor, failed error) bool {
		more = false
		defer func() {
			if !more {
				cancel() // which the dataset may wait for before it returns, also if the body panics
			}
		}()
		if err = failed; err != nil {
			return false
		}
		if err = p.move(made, nil); err != nil {
			release(made)
			return false
		}
		inBody = true
		more, err = l.body(p, i, made, false, yield)
		inBody = false
		i++
		if more && err == nil {
			err = refuse.Cause(ctx)
		}
		more = more && err == nil
		return more
	})
	if more {
		l.over()
	}
	return err
}

// Items is a dataset whose samples a function returns one by one, and a collate function joins in batches.
type Items[T any] struct {
	n       int
	get     func(ctx context.Context, i int) (T, error)
	collate func(samples []T) ([]*tensor.Tensor, error)
}

// NewItems returns a dataset of n samples, which get returns. collate makes the tensors of a batch from its samples; nil
// means DefaultCollate. With workers, both are called from several goroutines at once, in scopes. A loop whose context has
// ended waits until get has returned: where get waits, for example for a network, it must wait for its ctx, too. PyTorch:
// a Dataset with __getitem__, and collate_fn.
func NewItems[T any](n int, get func(ctx context.Context, i int) (T, error), collate func(samples []T) ([]*tensor.Tensor, error)) (*Items[T], error) {
	switch {
	case get == nil:
		return nil, refuse.Nil("NewItems", "a function")
	case n < 0:
		return nil, refuse.Error("NewItems", tensor.ErrArgument, "n must be at least 0, got %d", n)
	}
	if collate == nil {
		collate = DefaultCollate[T]
	}
	return &Items[T]{n, get, collate}, nil
}

// Len returns the number of samples.
func (d *Items[T]) Len() int {
	if d == nil {
		return 0
	}
	return d.n
}

// Batch collates the samples at indices.
func (d *Items[T]) Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error) {
	if d == nil || d.get == nil {
		return nil, unmade("Batch")
	}
	if ctx == nil {
		return nil, refuse.Nil("Batch", "a context")
	}
	samples := make([]T, len(indices))
	for k, i := range indices {
		if err := refuse.Cause(ctx); err != nil {
			return nil, err
		}
		sample, err := d.get(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("sample %d: %w", i, err)
		}
		samples[k] = sample
	}
	return d.collate(samples)
}

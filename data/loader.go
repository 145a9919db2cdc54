// Package data provides datasets and a loader that batches, shuffles and prefetches them for training loops. It
// corresponds to torch.utils.data.
//
//	for epoch := range epochs {
//		for batch, err := range loader.Batches(ctx) {
//			if err != nil {
//				return err
//			}
//			loss := nn.CrossEntropy(model.Forward(batch.Inputs), batch.Targets)
//			opt.ZeroGrad()
//			if err := loss.Backward(); err != nil {
//				return err
//			}
//			if err := opt.Step(); err != nil {
//				return err
//			}
//		}
//	}
//
// The loop needs no code for lifetimes. Batches opens a scope before each iteration of the loop's body and closes it
// afterwards, also on break, return and panic. The batch and the tensors that the body makes belong to that scope and
// are freed when it closes; Tensor.Keep takes a tensor out of it.
package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Batch is a batch of samples. Its tensors belong to the scope of the current iteration.
type Batch struct {
	Inputs  *tensor.Tensor   // the dataset's first tensor, of shape (Size, ...)
	Targets *tensor.Tensor   // the second tensor, of shape (Size, ...); nil if there is none
	Tensors []*tensor.Tensor // all tensors of the batch
	Size    int              // number of samples
	Epoch   int              // counted from 0
	Index   int              // number of the batch in its epoch, counted from 0
}

// Loader iterates over the batches of a dataset, epoch by epoch. The contents and order of the batches depend only on
// the seed, not on the number of workers.
type Loader struct {
	dataset Dataset
	config  config

	mu      sync.Mutex
	state   State
	set     bool // SetState set the position, and no batch was returned since: the next Batches starts there
	running bool
}

// State is the position of a loader: the batch that comes next. A loader with the same dataset and options, restored to
// it by SetState, returns the same batches.
type State struct {
	Epoch int    `json:"epoch"` // counted from 0
	Batch int    `json:"batch"` // number of the next batch in the epoch, counted from 0
	Seed  uint64 `json:"seed"`  // of the option Seed
}

type config struct {
	batch, workers, prefetch int
	shuffle, dropLast        bool
	seed                     uint64
	device                   *tensor.Device
}

// Option is a keyword argument of NewLoader.
type Option func(*config)

// BatchSize sets the number of samples in a batch; 1 by default.
func BatchSize(n int) Option { return func(c *config) { c.batch = n } }

// Shuffle makes each epoch return the samples in a different random order.
func Shuffle(on bool) Option { return func(c *config) { c.shuffle = on } }

// Seed sets the seed of Shuffle; 0 by default. It is independent of tensor.ManualSeed.
func Seed(seed uint64) Option { return func(c *config) { c.seed = seed } }

// Workers sets the number of goroutines that prepare batches ahead of the loop. With 0, the default, the loop's own
// goroutine prepares each batch. A dataset that uses libtorch's random generator is reproducible only without workers.
func Workers(n int) Option { return func(c *config) { c.workers = n } }

// Prefetch sets the maximum number of batches that are prepared ahead; the default is two per worker.
func Prefetch(n int) Option { return func(c *config) { c.prefetch = n } }

// DropLast omits the last batch of an epoch if it is smaller than the others.
func DropLast(on bool) Option { return func(c *config) { c.dropLast = on } }

// Device sets the device to which batches are copied, on the loop's goroutine.
func Device(d tensor.Device) Option { return func(c *config) { c.device = &d } }

// NewLoader returns a loader of dataset. PyTorch: torch.utils.data.DataLoader.
func NewLoader(dataset Dataset, opts ...Option) (*Loader, error) {
	c := config{batch: 1}
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	if c.prefetch == 0 {
		c.prefetch = 2 * c.workers
	}
	switch {
	case dataset == nil:
		return nil, errors.New("linstock: NewLoader: a dataset is needed, got nil")
	case c.batch < 1:
		return nil, fmt.Errorf("linstock: NewLoader: BatchSize must be at least 1, got %d", c.batch)
	case c.workers < 0 || c.prefetch < 0:
		return nil, fmt.Errorf("linstock: NewLoader: Workers and Prefetch must be at least 0, got %d and %d", c.workers, c.prefetch)
	}
	c.prefetch = max(c.prefetch, c.workers)
	return &Loader{dataset: dataset, config: c, state: State{Seed: c.seed}}, nil
}

// Len returns the number of batches in an epoch.
func (l *Loader) Len() int {
	n, size := l.dataset.Len(), l.config.batch
	if !l.config.dropLast {
		n += size - 1
	}
	return n / size
}

// State returns the loader's position. In the loop's body it is the batch after the current one. After break or an
// error it is the first batch that the body has not processed: a run restored from it (SetState, checkpoint.Loader)
// continues there.
func (l *Loader) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// SetState sets the position at which the next loop starts, over Batches or Resume.
func (l *Loader) SetState(s State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.running:
		return errors.New("linstock: SetState: a loop over the loader's batches is running")
	case s.Epoch < 0 || s.Batch < 0 || s.Batch > 0 && s.Batch >= l.Len():
		return fmt.Errorf("linstock: SetState: invalid position: batch %d in an epoch of %d batches (epoch %d)", s.Batch, l.Len(), s.Epoch)
	}
	l.state, l.set = s, true
	return nil
}

// Batches iterates over the batches of one epoch; each call takes the next epoch. Leaving the loop in the middle of an
// epoch (break, return, an error) ends that epoch: the next Batches starts the following one, in a different order if
// the loader shuffles, as iterating over PyTorch's DataLoader does. Resume continues the epoch instead. Only the first
// Batches after SetState starts in the middle of an epoch, at the position that was set.
//
// An error ends the loop: an error or panic of the dataset, the error of ctx, or the error of an operator in the loop's
// body that the body did not read, which the next iteration yields. Only one loop at a time may run over a loader.
//
// The goroutine is locked to its OS thread during the loop, because libtorch's thread pool belongs to that thread.
func (l *Loader) Batches(ctx context.Context) iter.Seq2[Batch, error] { return l.loop(ctx, false) }

// Resume is like Batches, but after a loop that was left in the middle of an epoch it iterates over the rest of that
// epoch: it starts at State.
func (l *Loader) Resume(ctx context.Context) iter.Seq2[Batch, error] { return l.loop(ctx, true) }

func (l *Loader) loop(ctx context.Context, resume bool) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if err := l.begin(resume); err != nil {
			yield(Batch{}, err)
			return
		}
		defer l.end()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := l.run(ctx, yield); err != nil {
			yield(Batch{}, err)
		}
	}
}

func (l *Loader) begin(resume bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return errors.New("linstock: Batches: a loop over the loader's batches is running already")
	}
	if l.state.Batch > 0 && !resume && !l.set {
		l.state.Epoch, l.state.Batch = l.state.Epoch+1, 0
	}
	l.running = true
	return nil
}

func (l *Loader) end() {
	l.mu.Lock()
	l.running = false
	l.mu.Unlock()
}

// advance moves the position past the batch that the body gets next.
func (l *Loader) advance() {
	l.mu.Lock()
	l.set = false
	if l.state.Batch++; l.state.Batch >= l.Len() {
		l.state.Epoch, l.state.Batch = l.state.Epoch+1, 0
	}
	l.mu.Unlock()
}

// run yields the batches from the position to the end of the epoch. The caller yields the error that it returns.
func (l *Loader) run(ctx context.Context, yield func(Batch, error) bool) error {
	at := l.State()
	p := &plan{
		dataset: l.dataset, config: l.config, state: at, last: l.Len(),
		order: order(l.dataset.Len(), l.config.shuffle, at.Seed, at.Epoch),
	}
	var next func(i int) ([]*tensor.Tensor, error)
	if l.config.workers > 0 {
		team := newTeam(ctx, p)
		defer team.stop()
		next = team.next
	} else {
		next = func(i int) ([]*tensor.Tensor, error) { return p.prepare(ctx, i) }
	}
	for i := at.Batch; i < p.last; i++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		more, err := l.body(p, i, next, yield)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// body yields one batch in a scope.
func (l *Loader) body(p *plan, i int, next func(int) ([]*tensor.Tensor, error), yield func(Batch, error) bool) (more bool, err error) {
	tensors, err := next(i)
	if err != nil {
		return false, err
	}
	scope, err := tensor.NewScope()
	if err != nil {
		release(tensors)
		return false, err
	}
	defer func() {
		closeErr := scope.Close()
		// After the loop was left, errors cannot be reported any more.
		if more && err == nil {
			err = closeErr
		}
	}()
	if err := scope.Adopt(tensors...); err != nil {
		release(tensors)
		return false, err
	}
	if err := p.move(tensors); err != nil {
		return false, err
	}
	batch := Batch{Inputs: tensors[0], Tensors: tensors, Size: p.size(i), Epoch: p.state.Epoch, Index: i}
	if len(tensors) > 1 {
		batch.Targets = tensors[1]
	}
	l.advance()
	return yield(batch, nil), nil
}

func release(tensors []*tensor.Tensor) {
	for _, t := range tensors {
		t.Release()
	}
}

// plan holds what determines the batches of an epoch.
type plan struct {
	dataset Dataset
	config  config
	state   State
	last    int // number of batches in the epoch
	order   func(i int) int
}

// size returns the number of samples in batch i.
func (p *plan) size(i int) int {
	return min(p.config.batch, p.dataset.Len()-i*p.config.batch)
}

// prepare makes batch i, outside every scope.
func (p *plan) prepare(ctx context.Context, i int) (tensors []*tensor.Tensor, err error) {
	defer func() {
		if err != nil {
			release(tensors)
			tensors, err = nil, fmt.Errorf("linstock: batch %d of epoch %d: %w", i, p.state.Epoch, err)
		}
	}()
	indices := make([]int, p.size(i))
	for k := range indices {
		indices[k] = p.order(i*p.config.batch + k)
	}
	err = tensor.WithScope(func() error {
		made, err := guarded(ctx, p.dataset, indices)
		if err != nil {
			return err
		}
		if len(made) == 0 {
			return errors.New("the dataset returned no tensor")
		}
		for i, t := range made {
			// Make a second handle, because the dataset may keep the tensor that it returned.
			if err := refuse.Unusable("Batch", fmt.Sprintf("tensor %d of the dataset", i), t); err != nil {
				return err
			}
			own := t.Alias().Keep()
			if err := own.Err(); err != nil {
				return err
			}
			tensors = append(tensors, own)
		}
		return nil
	})
	if err == nil {
		tensor.Track(vram.Loader, tensors...)
	}
	return tensors, err
}

// guarded turns a panic in the dataset into an error.
func guarded(ctx context.Context, d Dataset, indices []int) (made []*tensor.Tensor, err error) {
	defer func() {
		if p := recover(); p != nil {
			buf := make([]byte, 8<<10)
			err = fmt.Errorf("panic: %v\n%s", p, buf[:runtime.Stack(buf, false)])
		}
	}()
	return d.Batch(ctx, indices)
}

// move copies a batch to the loader's device.
func (p *plan) move(tensors []*tensor.Tensor) error {
	if p.config.device == nil {
		return nil
	}
	for i, t := range tensors {
		if t.Device() == *p.config.device {
			continue
		}
		moved := t.To(*p.config.device)
		if err := moved.Err(); err != nil {
			return err
		}
		t.Release()
		tensor.Track(vram.Loader, moved)
		tensors[i] = moved
	}
	return nil
}

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
//
// A Dataset returns batches: TensorDataset, Samples, Windows, or Items, whose samples are Go values that DefaultCollate
// joins. Subset, RandomSplit, ConcatDataset and StackDataset combine datasets. A Sampler determines which samples an
// epoch has; with the same seed they are PyTorch's. NewIterableLoader reads an IterableDataset in order. Every loader
// continues from its State exactly.
package data

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"sync"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/options"
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
// the seed, not on the number of workers. Only one loop at a time may run over a loader; a second one is an error
// ("running already").
type Loader struct {
	dataset Dataset
	stream  stream // in place of dataset, for an IterableDataset
	config  config

	mu      sync.Mutex
	state   State
	from    int  // samples that all processes saw of the epoch before its batch 0, with a distributed sampler
	set     bool // SetState set the position, and no batch was returned since: the next Batches starts there
	running bool
}

// State is the position of a loader: the batch that comes next. A loader with the same dataset and options, restored to
// it by SetState, returns the same batches.
//
// With a distributed sampler, also that of a NewBatchSampler, the state is that of all processes, and a loader restored
// to it may have another number of processes or another batch size: it continues with the samples that no process has
// seen, see [NewDistributedSampler]. The epoch's batches are then counted from 0 again.
type State struct {
	Epoch int    `json:"epoch"`          // counted from 0
	Batch int    `json:"batch"`          // number of the next batch in the epoch, counted from 0
	Seed  uint64 `json:"seed"`           // of the option Seed
	Seen  int    `json:"seen,omitempty"` // with a distributed sampler: samples of the epoch that all processes have seen

	// What determines the orders: a sampler of this package, such as "RandomSampler" or "RandomSampler with Replacement",
	// "SequentialSampler" also without a sampler, "Shuffle", or "IterableDataset". It is empty if that is unknown: for
	// samplers that are not of this package, and in states that were saved before the field existed.
	Sampler string `json:"sampler,omitempty"`
	// Seed of the sampler, or of the option Generator; 0 if the sampler is not one of this package or does not draw.
	SamplerSeed uint64 `json:"sampler_seed,omitempty"`
	Generator   bool   `json:"generator,omitempty"` // whether the option Generator makes the orders
}

// order returns the fields that say what determines the orders, for errors.
func (s State) order() string {
	return fmt.Sprintf("Sampler %q, SamplerSeed %d, Generator %v", s.Sampler, s.SamplerSeed, s.Generator)
}

type config struct {
	batch, workers, prefetch int
	shuffle, dropLast, pin   bool
	seed                     uint64
	device                   *tensor.Device
	generator                *tensor.Generator
	sampler                  Sampler
	batchSampler             BatchSampler
	replacement              *bool
	numSamples               *int
	given                    map[string]bool
}

// Option is a keyword argument of NewLoader and of the constructors of samplers.
type Option struct {
	name string
	set  func(*config)
}

// apply returns the settings of opts for op, which accepts the options named in known.
func apply(op string, opts []Option, known ...string) (config, error) {
	c := config{batch: 1, given: map[string]bool{}}
	for _, o := range opts {
		if err := refuse.Option(op, o.name, known); err != nil {
			return c, err
		}
		o.set(&c)
		c.given[o.name] = true
	}
	return c, nil
}

// BatchSize sets the number of samples in a batch; 1 by default. A batch has at most 2^28 samples.
func BatchSize(n int) Option { return Option{"BatchSize", func(c *config) { c.batch = n }} }

// Shuffle makes each epoch return the samples in a different random order; off by default, but for NewDistributedSampler.
// The order depends only on Seed, which is 0 by default, and the epoch: each run of a program has the same orders,
// whatever tensor.ManualSeed is, and a loader does not draw from that generator. Its orders are not those of PyTorch's
// shuffle=True. With the option Generator they are those of shuffle=True with a generator, and WithSampler with
// NewRandomSampler has those of PyTorch's RandomSampler.
func Shuffle(on ...bool) Option {
	return Option{"Shuffle", func(c *config) { c.shuffle = options.On(on) }}
}

// Seed sets the seed of Shuffle, of a sampler, and of SampleSeed; 0 by default. It is independent of tensor.ManualSeed.
// For a loader with the option Generator or with a sampler it is the seed of SampleSeed alone.
func Seed(seed uint64) Option { return Option{"Seed", func(c *config) { c.seed = seed }} }

// Generator makes Shuffle draw the orders of PyTorch's DataLoader(shuffle=True, generator=g), with any number of workers.
// They are those of a generator that was given g's seed and from which nothing else draws, if PyTorch reads each epoch to
// its end: NewLoader reads g.InitialSeed, and the loader does not draw from g. It stores the order of an epoch, of at most
// 2^30 samples. An order depends on the orders before it, so that the dataset's Len must stay what it was for NewLoader:
// a loop over a dataset with another Len is an error. g must be one of the CPU. Without Shuffle it has no effect. A sampler
// has its own option Seed. PyTorch: generator.
func Generator(g *tensor.Generator) Option {
	return Option{"Generator", func(c *config) { c.generator = g }}
}

// WithSampler sets the sampler that determines the samples of an epoch, in place of Shuffle. PyTorch: sampler.
func WithSampler(s Sampler) Option { return Option{"WithSampler", func(c *config) { c.sampler = s }} }

// WithBatchSampler sets the sampler that determines the batches of an epoch, in place of BatchSize, Shuffle and DropLast.
// PyTorch: batch_sampler.
func WithBatchSampler(s BatchSampler) Option {
	return Option{"WithBatchSampler", func(c *config) { c.batchSampler = s }}
}

// PinMemory copies batches to page-locked memory where they are prepared, so that the copy to the Device, an accelerator,
// runs while the program continues: the loop copies the next batch before it yields the current one; of an
// IterableDataset only a batch that the worker has ready, so that no batch waits for the next one. On a CUDA device the
// copy has its own stream, so that it overlaps with the kernels of the current batch, and the loop's current stream
// waits for it before the batch is yielded. Without the option Device batches stay in page-locked memory, from which
// the program copies them with NonBlocking. With the CPU as Device, or without an accelerator, PinMemory does
// nothing. It is off by default. PyTorch: pin_memory, with a copy with non_blocking=True.
func PinMemory(on ...bool) Option {
	return Option{"PinMemory", func(c *config) { c.pin = options.On(on) }}
}

// Workers sets the number of goroutines that prepare batches ahead of the loop. With 0, the default, the loop's own
// goroutine prepares each batch. A dataset that uses libtorch's random generator is reproducible only without workers,
// and its run continues exactly only if PinMemory prepares no batch ahead either; see SampleSeed. The maximum is 4,096.
// Each worker prepares a batch in a scope, of which tensor.SetMaxScopedGoroutines allows 1,000 at once, those of other
// goroutines included. The end of a loop waits until the calls of Dataset.Batch have returned. On CUDA devices workers
// compute on the default streams; they wait for the work that the loop's current streams have when it begins, and those
// wait for each batch.
func Workers(n int) Option { return Option{"Workers", func(c *config) { c.workers = n }} }

// Prefetch sets the number of batches that workers prepare ahead of the loop, including unfinished ones. It is at least
// Workers, because each worker prepares a batch (use fewer workers to lower it), and at most 65,536. The default is two
// per worker. A loader of an IterableDataset reads one batch more. PyTorch's prefetch_factor is a number per worker.
func Prefetch(n int) Option { return Option{"Prefetch", func(c *config) { c.prefetch = n }} }

// DropLast omits the last batch of an epoch if it is smaller than the others; off by default.
func DropLast(on ...bool) Option {
	return Option{"DropLast", func(c *config) { c.dropLast = options.On(on) }}
}

// Device sets the device to which batches are copied, on the loop's goroutine.
func Device(d tensor.Device) Option { return Option{"Device", func(c *config) { c.device = &d }} }

const (
	maxBatch   = 1 << 28 // samples in a batch
	maxWorkers = 1 << 12 // each holds an OS thread in its scope, and Go allows 10,000
	maxAhead   = 1 << 16 // batches that are prepared ahead
)

// NewLoader returns a loader of dataset. Options: BatchSize, Shuffle, Seed, Generator, WithSampler, WithBatchSampler,
// PinMemory, Workers, Prefetch, DropLast, Device. With Shuffle each run with the same Seed has the same order, which is
// PyTorch's only with Generator; see [Shuffle]. PyTorch: torch.utils.data.DataLoader.
func NewLoader(dataset Dataset, opts ...Option) (*Loader, error) {
	c, err := apply("NewLoader", opts, "BatchSize", "Shuffle", "Seed", "Generator", "WithSampler", "WithBatchSampler", "PinMemory", "Workers", "Prefetch", "DropLast", "Device")
	if err != nil {
		return nil, err
	}
	switch {
	case isNil(dataset):
		return nil, refuse.Nil("NewLoader", "a dataset")
	case c.given["WithSampler"] && isNil(c.sampler) || c.given["WithBatchSampler"] && isNil(c.batchSampler):
		return nil, refuse.Nil("NewLoader", "a sampler")
	case c.given["Generator"] && c.generator == nil:
		return nil, refuse.Nil("NewLoader", "a generator")
	case c.generator != nil && (c.sampler != nil || c.batchSampler != nil):
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "Generator is that of Shuffle: give the seed to the sampler, with its option Seed")
	case c.sampler != nil && c.shuffle:
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "WithSampler and Shuffle exclude each other")
	case c.batchSampler != nil && (c.given["BatchSize"] || c.given["DropLast"] || c.shuffle || c.sampler != nil):
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "WithBatchSampler excludes BatchSize, Shuffle, WithSampler and DropLast")
	case c.batch < 1:
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "BatchSize must be at least 1, got %d", c.batch)
	case c.workers < 0 || c.workers > maxWorkers:
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "Workers must be in 0…%d, got %d", maxWorkers, c.workers)
	case c.prefetch < 0 || c.prefetch > maxAhead:
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "Prefetch must be in 0…%d, got %d", maxAhead, c.prefetch)
	}
	if b, ok := c.batchSampler.(*batches); ok {
		c.sampler, c.batch, c.dropLast, c.batchSampler = b.sampler, b.size, b.dropLast, nil
	}
	if c.shuffle && c.generator != nil {
		if c.sampler, err = shuffled(dataset, c.generator); err != nil {
			return nil, err
		}
	}
	if c.prefetch == 0 {
		c.prefetch = 2 * c.workers
	}
	c.prefetch = max(c.prefetch, c.workers)
	state := State{Seed: c.seed, Generator: c.shuffle && c.generator != nil}
	state.Sampler, state.SamplerSeed = c.drawer()
	return &Loader{dataset: dataset, config: c, state: state}, nil
}

// Len returns the number of batches in an epoch; for a loader of an IterableDataset, which does not know it, -1.
func (l *Loader) Len() int {
	switch {
	case !l.made():
		return 0
	case l.stream != nil:
		return -1
	case l.config.batchSampler != nil:
		return max(0, l.config.batchSampler.Len())
	}
	n := 0
	if l.config.sampler != nil {
		n = max(0, l.config.sampler.Len())
	} else {
		n = max(0, l.dataset.Len())
	}
	return count(n, l.config.batch, l.config.dropLast)
}

// count returns the number of batches of n samples.
func count(n, size int, dropLast bool) int {
	if dropLast || n%size == 0 {
		return n / size
	}
	return n/size + 1
}

// made reports whether a constructor made l.
func (l *Loader) made() bool { return l != nil && (l.dataset != nil || l.stream != nil) }

// State returns the loader's position. In the loop's body it is the batch after the current one. After the last batch of
// an iterable dataset it names the same epoch, because its end is found only when the loop goes on. After the loop it is
// the batch after the last one that the body got, also if the body broke off or failed: a run restored from it (SetState,
// checkpoint.Loader) continues there. To repeat a batch whose body fails, use the State from before the loop or from the
// end of the body before.
func (l *Loader) State() State {
	if l == nil {
		return State{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// SetState sets the position at which the next loop starts, over Batches or Resume. The seed of s replaces that of the
// option Seed, so that a run continues with the order that it had: for another position of the same run, change the fields
// of State rather than make a new one. A sampler keeps its seed, as does the option Generator, and SetState returns an
// error if that of s is another one, if only one of the two loaders has the option Generator, or if both have a Sampler
// and these differ: the samples after the position would be those of another order. An empty Sampler is not compared. At
// the beginning of an epoch, where Batch and Seen are 0, no order is under way, and Sampler may be another one with any
// SamplerSeed and Generator.
//
// To continue in the order of this loader in spite of the error, give s the fields Sampler, SamplerSeed and Generator of
// its State. A position that is in a checkpoint gets into a State by a loader with the options of the one that was saved:
//
//	if err := checkpoint.LoadValues(path, checkpoint.Loader(former)); err != nil {
//		return err
//	}
//	s, own := former.State(), loader.State()
//	s.Sampler, s.SamplerSeed, s.Generator = own.Sampler, own.SamplerSeed, own.Generator
//	err := loader.SetState(s)
//
// If only the former loader has a distributed sampler, set Seen to 0, too: Batch is then a number of this loader's batches.
func (l *Loader) SetState(s State) error {
	if !l.made() {
		return refuse.Error("SetState", tensor.ErrArgument, "the loader was not made by NewLoader")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d, _ := l.config.sampler.(*distributed)
	if s.Batch == 0 && s.Seen == 0 && unlike(s.Sampler, l.state.Sampler) {
		s.Sampler, s.SamplerSeed, s.Generator = l.state.Sampler, l.state.SamplerSeed, l.state.Generator
	}
	switch {
	case l.running:
		return refuse.Error("SetState", tensor.ErrArgument, "a loop over the loader's batches is running")
	case s.SamplerSeed != l.state.SamplerSeed, s.Generator != l.state.Generator, unlike(s.Sampler, l.state.Sampler):
		return refuse.Error("SetState", tensor.ErrArgument, "the position is that of a loader with %s, and this loader has %s: "+
			"to continue in this loader's order, set these fields of the position to its values", s.order(), l.state.order())
	case s.Seen != 0 && d == nil:
		return refuse.Error("SetState", tensor.ErrArgument, "the position is that of a loader with a distributed sampler: "+
			"set Seen to 0 to continue at its Batch in this loader's order")
	case s.Seen < 0 || d != nil && s.Seen >= d.n:
		return refuse.Error("SetState", tensor.ErrArgument, "invalid position: %d samples seen of an epoch of %d (epoch %d)", s.Seen, d.n, s.Epoch)
	}
	from := 0
	// The position is that of other processes or batches. Those may have as many samples in a step, and more steps.
	if s.Seen != 0 && (s.Seen != s.Batch*l.config.batch*d.replicas || s.Batch >= l.Len()) {
		from, s.Batch = s.Seen, 0
	}
	if s.Epoch < 0 || s.Batch < 0 || s.Batch > 0 && l.stream == nil && s.Batch >= l.Len() {
		return refuse.Error("SetState", tensor.ErrArgument, "invalid position: batch %d in an epoch of %d batches (epoch %d)", s.Batch, l.Len(), s.Epoch)
	}
	s.Sampler = l.state.Sampler
	l.state, l.from, l.set = s, from, true
	return nil
}

// unlike reports whether two samplers are known and differ.
func unlike(a, b string) bool { return a != "" && b != "" && a != b }

// nextEpoch moves the position to the beginning of the next epoch.
func (l *Loader) nextEpoch() {
	l.state.Epoch, l.state.Batch, l.state.Seen, l.from = l.state.Epoch+1, 0, 0, 0
}

// Batches iterates over the batches of one epoch; each call takes the next epoch. Leaving the loop in the middle of an
// epoch (break, return, an error) ends that epoch: the next Batches starts the following one, in a different order if
// the loader shuffles, as iterating over PyTorch's DataLoader does. Resume continues the epoch instead. Only the first
// Batches after SetState starts in the middle of an epoch, at the position that was set.
//
// An error ends the loop: an error or panic of the dataset, the end of ctx, or the error of an operator in the loop's body
// that the body did not read, which the next iteration yields. With errors.Is the error of ctx's end matches ctx.Err() and
// the context's cause; with errors.As that of a panic is a *tensor.PanicError, which has the stack. Only one loop at a time
// may run over a loader.
//
// The loop ends when calls of the dataset have returned, also after a break or the end of ctx: a dataset that waits must
// wait for its ctx, too.
//
// The goroutine is locked to its OS thread during the loop, because libtorch's thread pool belongs to that thread. So
// do not use Batches with iter.Pull: Go ends the process if the lock has changed since the call of Pull
// (docs/lifetimes.md).
func (l *Loader) Batches(ctx context.Context) iter.Seq2[Batch, error] { return l.loop(ctx, false) }

// Resume is like Batches, but after a loop that was left in the middle of an epoch it iterates over the rest of that
// epoch: it starts at State. After an epoch's last batch that is the beginning of the next epoch, so that a program
// that counts epochs itself must take their number from State().Epoch or from Batch.Epoch.
func (l *Loader) Resume(ctx context.Context) iter.Seq2[Batch, error] { return l.loop(ctx, true) }

func (l *Loader) loop(ctx context.Context, resume bool) iter.Seq2[Batch, error] {
	op := "Batches"
	if resume {
		op = "Resume"
	}
	return func(yield func(Batch, error) bool) {
		switch {
		case !l.made():
			yield(Batch{}, refuse.Error(op, tensor.ErrArgument, "the loader was not made by NewLoader"))
			return
		case ctx == nil:
			yield(Batch{}, refuse.Nil(op, "a context"))
			return
		}
		if err := l.begin(op, resume); err != nil {
			yield(Batch{}, err)
			return
		}
		defer l.end()
		handle.LockThread()
		defer runtime.UnlockOSThread()
		if err := l.run(ctx, yield); err != nil {
			yield(Batch{}, err)
		}
	}
}

func (l *Loader) begin(op string, resume bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running {
		return refuse.Error(op, tensor.ErrArgument, "a loop over the loader's batches is running already")
	}
	if l.state.Batch > 0 && !resume && !l.set {
		l.nextEpoch()
	}
	l.running = true
	return nil
}

func (l *Loader) end() {
	l.mu.Lock()
	l.running = false
	l.mu.Unlock()
}

// advance moves the position past the batch that the body gets next, which is the last of the epoch or not.
func (l *Loader) advance(last bool) {
	l.mu.Lock()
	l.set = false
	l.state.Batch++
	if d, ok := l.config.sampler.(*distributed); ok {
		l.state.Seen = l.from + l.state.Batch*l.config.batch*d.replicas
	}
	if last {
		l.nextEpoch()
	}
	l.mu.Unlock()
}

// run yields the batches from the position to the end of the epoch. The caller yields the error that it returns.
func (l *Loader) run(ctx context.Context, yield func(Batch, error) bool) error {
	at := l.State()
	p, err := l.plan(ctx, at)
	if err != nil {
		return err
	}
	if at.Batch > p.last {
		return fmt.Errorf("linstock: the loader's position is batch %d of epoch %d, which has only %d batches", at.Batch, at.Epoch, p.last)
	}
	if p.config.workers > 0 {
		if p.loops, err = toWorkers(); err != nil {
			return err
		}
	}
	var next func(i int) ([]*tensor.Tensor, error) // returns no tensors after the last batch
	early := p.overlaps
	switch {
	case l.stream != nil && l.config.workers == 0:
		return l.direct(ctx, p, yield)
	case l.stream != nil:
		s := newStreaming(ctx, l.stream, p)
		defer s.end()
		next = func(int) ([]*tensor.Tensor, error) { return s.pull() }
		// Its samples may depend on what the body does with the current batch.
		early = func() bool { return p.overlaps() && s.ready() }
	case l.config.workers > 0:
		team := newTeam(ctx, p)
		defer team.stop()
		next = team.next
	default:
		next = func(i int) ([]*tensor.Tensor, error) { return p.prepare(ctx, i) }
	}
	var side *copier
	if p.overlaps() && p.config.device.Type == tensor.CUDAType {
		side = newCopier(*p.config.device)
		defer side.close()
	}
	// For a copy that overlaps, the next batch is taken, and its copy begun, before the current one is yielded.
	ahead := &taken{next: func(i int) ([]*tensor.Tensor, error) {
		if i >= p.last {
			return nil, nil
		}
		return next(i)
	}, early: early, side: side}
	defer func() {
		_ = side.wait()
		release(ahead.tensors)
	}()
	for i := at.Batch; ; i++ {
		if err := refuse.Cause(ctx); err != nil {
			return err
		}
		tensors, last, err := ahead.take(i, p)
		if err != nil {
			return err
		}
		if tensors == nil {
			l.over()
			return nil
		}
		more, err := l.body(p, i, tensors, last, yield)
		if err != nil || !more {
			return err
		}
		if last {
			return nil
		}
	}
}

// over ends an epoch that has no more batches, if the previous batch did not tell the loop so.
func (l *Loader) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set = false
	l.nextEpoch()
}

// taken is a batch that was taken before its turn.
type taken struct {
	next    func(i int) ([]*tensor.Tensor, error)
	early   func() bool // whether to take the next batch before its turn
	side    *copier     // copies from page-locked memory; nil: the current stream does
	held    bool
	tensors []*tensor.Tensor
	err     error
}

// take returns batch i, nil after the last one, and whether it is the last; for a stream that is not known.
func (t *taken) take(i int, p *plan) (tensors []*tensor.Tensor, last bool, err error) {
	if !t.held {
		t.tensors, t.err = t.moved(i, p)
	}
	tensors, err = t.tensors, t.err
	t.tensors, t.err, t.held = nil, nil, false
	if err != nil || tensors == nil {
		return nil, true, err
	}
	if err := t.side.wait(); err != nil {
		release(tensors)
		return nil, true, err
	}
	if t.early() {
		// An error of the next batch is returned when its turn comes.
		t.tensors, t.err = t.moved(i+1, p)
		t.held = true
	}
	return tensors, i+1 >= p.last, nil
}

// moved returns batch i on the loader's device.
func (t *taken) moved(i int, p *plan) ([]*tensor.Tensor, error) {
	tensors, err := t.next(i)
	if err != nil {
		return nil, err
	}
	if err := p.move(tensors, t.side); err != nil {
		release(tensors)
		return nil, err
	}
	return tensors, nil
}

// body yields one batch in a scope.
func (l *Loader) body(p *plan, i int, tensors []*tensor.Tensor, last bool, yield func(Batch, error) bool) (more bool, err error) {
	scope, err := tensor.NewScope()
	if err != nil {
		release(tensors)
		return false, err
	}
	defer func() {
		closeErr := scope.Close()
		// After the loop has ended, errors can no longer be reported.
		if more && err == nil {
			err = closeErr
		}
	}()
	if err := scope.Adopt(tensors...); err != nil {
		release(tensors)
		return false, err
	}
	batch := Batch{Inputs: tensors[0], Tensors: tensors, Size: p.size(i), Epoch: p.state.Epoch, Index: i}
	if len(tensors) > 1 {
		batch.Targets = tensors[1]
	}
	if l.stream != nil {
		batch.Size = tensors[0].Size(0)
	}
	l.advance(last)
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
	last    int             // number of batches in the epoch
	order   func(i int) int // the samples of the epoch
	n       int             // their number
	batches [][]int         // of a batch sampler, in place of order
	loops   []cshim.Stream  // the loop's current streams that are not those of its workers
}

// plan returns the plan of the epoch at a position.
func (l *Loader) plan(ctx context.Context, at State) (p *plan, err error) {
	p = &plan{dataset: l.dataset, config: l.config, state: at, last: math.MaxInt}
	if l.stream != nil {
		return p, nil
	}
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("linstock: %w", newPanic("the sampler", r))
		}
	}()
	switch c := p.config; {
	case c.batchSampler != nil:
		if p.batches, err = collected(ctx, c.batchSampler.Batches(at.Epoch)); err != nil {
			return nil, err
		}
		p.last = len(p.batches)
		return p, nil
	case c.sampler == nil:
		if p.n, err = length(l.dataset); err != nil {
			return nil, fmt.Errorf("linstock: %w", err)
		}
		p.order = order(p.n, c.shuffle, at.Seed, at.Epoch)
	default:
		switch s := c.sampler.(type) {
		case sequential:
			p.n, p.order = int(s), func(i int) int { return i }
		case *distributed:
			p.n, p.order = s.each(l.from), s.order(at.Epoch, l.from) // only the loop, which is running, changes from
		default:
			var indices []int
			if d, ok := s.(*drawn); ok {
				if at.Generator {
					err = l.unchanged(d.n)
				}
				if err == nil {
					indices, err = d.epoch(ctx, at.Epoch)
				}
			} else {
				indices, err = collected(ctx, s.Indices(at.Epoch))
			}
			if err != nil {
				return nil, err
			}
			p.n, p.order = len(indices), func(i int) int { return indices[i] }
		}
	}
	p.last = count(p.n, p.config.batch, p.config.dropLast)
	return p, nil
}

// unchanged returns an error if the dataset's Len is not n, what it was when the option Generator made the orders' sampler.
func (l *Loader) unchanged(n int) error {
	switch now, err := length(l.dataset); {
	case err != nil:
		return fmt.Errorf("linstock: %w", err)
	case now != n:
		return fmt.Errorf("linstock: the dataset has %d samples, and had %d for NewLoader: with the option Generator their number must stay", now, n)
	}
	return nil
}

// length returns the number of samples of d. A negative one, and a panic of Len, are errors.
func length(d Dataset) (n int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = newPanic("the dataset's Len", r)
		}
	}()
	if n = d.Len(); n < 0 {
		return 0, fmt.Errorf("the dataset's Len is %d", n)
	}
	return n, nil
}

// collected returns what a sampler yields.
func collected[T any](ctx context.Context, all iter.Seq[T]) (out []T, err error) {
	for v := range all {
		if len(out)%1024 == 0 && ctx.Err() != nil {
			return nil, refuse.Cause(ctx)
		}
		if len(out) == maxStored {
			return nil, errors.New("linstock: the sampler yields more than 2^30 samples or batches in an epoch")
		}
		out = append(out, v)
	}
	return out, nil
}

// size returns the number of samples in batch i.
func (p *plan) size(i int) int {
	if p.batches != nil {
		return len(p.batches[i])
	}
	return min(p.config.batch, p.n-i*p.config.batch)
}

// indices returns the samples of batch i.
func (p *plan) indices(i int) ([]int, error) {
	if size := p.size(i); size > maxBatch {
		return nil, fmt.Errorf("a batch has at most 2^28 samples, got %d", size)
	}
	indices := make([]int, p.size(i))
	n := p.dataset.Len()
	for k := range indices {
		if p.batches != nil {
			indices[k] = p.batches[i][k]
		} else {
			indices[k] = p.order(i*p.config.batch + k)
		}
		if indices[k] < 0 || indices[k] >= n {
			return nil, fmt.Errorf("the sampler returns %d for a dataset of %d samples", indices[k], n)
		}
	}
	return indices, nil
}

// copies reports whether batches are copied to an accelerator.
func (p *plan) copies() bool {
	d := p.config.device
	return d != nil && d.Type != tensor.CPUType && d.Type != tensor.MetaType
}

// overlaps reports whether batches are copied to an accelerator while the program continues.
func (p *plan) overlaps() bool { return p.config.pin && p.copies() }

// pins reports whether batches are prepared in page-locked memory: for the copy to the loader's device or, if it has
// none, for that of the program.
func (p *plan) pins() bool {
	return p.overlaps() || p.config.pin && p.config.device == nil && cshim.Load() == nil && cshim.DeviceCount(int32(tensor.CUDAType)) > 0
}

// prepare makes batch i, outside every scope.
func (p *plan) prepare(ctx context.Context, i int) (tensors []*tensor.Tensor, err error) {
	defer func() {
		if err != nil {
			release(tensors)
			tensors, err = nil, fmt.Errorf("linstock: batch %d of epoch %d: %w", i, p.state.Epoch, err)
		}
	}()
	ctx = context.WithValue(ctx, epochKey{}, p.state)
	return p.own(func() ([]*tensor.Tensor, error) { return p.guarded(ctx, i) })
}

// epochKey is the key of the State in the context of a dataset.
type epochKey struct{}

// SampleSeed returns a seed for random changes of sample i, such as augmentation. ctx is that of Dataset.Batch or of the
// function of NewItems. The seed depends on the loader's option Seed, the epoch and i alone, so that samples are the same with
// any number of workers, and when an epoch continues from a checkpoint:
//
//	rng := rand.New(rand.NewPCG(data.SampleSeed(ctx, i), 0))
//
// With another context it depends on i alone.
func SampleSeed(ctx context.Context, i int) uint64 {
	x := uint64(0)
	if ctx != nil {
		if s, ok := ctx.Value(epochKey{}).(State); ok {
			x = mix(mix(x^s.Seed) ^ uint64(s.Epoch))
		}
	}
	return mix(x ^ uint64(i))
}

// own returns handles, outside every scope, to the tensors that f makes.
func (p *plan) own(f func() ([]*tensor.Tensor, error)) (tensors []*tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		made, err := f()
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
			own, err := p.pinned(t)
			if err != nil {
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

// pinned returns a second handle to t outside every scope, or a copy of t in page-locked memory.
func (p *plan) pinned(t *tensor.Tensor) (*tensor.Tensor, error) {
	own := t.Alias()
	if p.pins() && t.Device() == tensor.CPU {
		results, err := tensor.Call("aten::pin_memory", t)
		if err != nil {
			return nil, err
		}
		if page, ok := results[0].(*tensor.Tensor); ok {
			own = page
		}
	}
	own.Keep()
	return own, own.Err()
}

// guarded returns the tensors of batch i. It turns a panic in the dataset into an error.
func (p *plan) guarded(ctx context.Context, i int) (made []*tensor.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = newPanic("the dataset", r)
		}
	}()
	indices, err := p.indices(i)
	if err != nil {
		return nil, err
	}
	return p.dataset.Batch(ctx, indices)
}

// move copies a batch to the loader's device, from page-locked memory with side unless it is nil.
func (p *plan) move(tensors []*tensor.Tensor, side *copier) error {
	if p.config.device == nil {
		return nil
	}
	var to, from []*tensor.Tensor // what side copies
	defer func() { release(from) }()
	for i, t := range tensors {
		if t.Device() == *p.config.device {
			continue
		}
		var moved *tensor.Tensor
		pinned := p.overlaps() && t.Device() == tensor.CPU && !t.RequiresGrad()
		switch {
		case !pinned:
			moved = t.To(*p.config.device)
		case side != nil:
			moved = t.EmptyLike(*p.config.device)
		default:
			moved = t.EmptyLike(*p.config.device).Copy_(t, tensor.NonBlocking(true))
		}
		moved.Keep()
		if err := moved.Err(); err != nil {
			return err
		}
		if pinned && side != nil {
			to, from = append(to, moved), append(from, t)
		} else {
			t.Release()
		}
		tensor.Track(vram.Loader, moved)
		tensors[i] = moved
	}
	if len(to) == 0 {
		return nil
	}
	return side.copy(to, from)
}

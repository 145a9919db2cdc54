package data

import (
	"cmp"
	"context"
	"iter"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Sampler determines which samples an epoch has, and in which order. PyTorch: torch.utils.data.Sampler.
type Sampler interface {
	// Len returns the number of samples in an epoch.
	Len() int
	// Indices iterates over the samples of an epoch, counted from 0. It returns the same indices each time it is
	// called with the same epoch, so that a run that was continued sees them too.
	Indices(epoch int) iter.Seq[int]
}

// BatchSampler determines the batches of an epoch. PyTorch: torch.utils.data.BatchSampler.
type BatchSampler interface {
	// Len returns the number of batches in an epoch.
	Len() int
	// Batches iterates over the batches of an epoch, each a new slice of indices. It returns the same batches each
	// time it is called with the same epoch.
	Batches(epoch int) iter.Seq[[]int]
}

// Replacement makes a sampler draw with replacement; false by default, true by default for NewWeightedRandomSampler.
// PyTorch: replacement.
func Replacement(on ...bool) Option {
	v := options.On(on)
	return Option{"Replacement", func(c *config) { c.replacement = &v }}
}

// NumSamples sets the number of samples that a RandomSampler draws in an epoch; by default the size of the dataset.
// PyTorch: num_samples.
func NumSamples(n int) Option { return Option{"NumSamples", func(c *config) { c.numSamples = &n }} }

type sequential int

// NewSequentialSampler returns a sampler of 0…n-1 in this order. PyTorch: torch.utils.data.SequentialSampler.
func NewSequentialSampler(n int) (Sampler, error) {
	if n < 0 {
		return nil, refuse.Error("NewSequentialSampler", tensor.ErrArgument, "n must be at least 0, got %d", n)
	}
	return sequential(n), nil
}

// Len implements Sampler.
func (s sequential) Len() int { return int(s) }

// Indices implements Sampler.
func (s sequential) Indices(int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range int(s) {
			if !yield(i) {
				return
			}
		}
	}
}

// drawn is a sampler that draws epoch after epoch from one generator, as PyTorch's samplers do. It keeps the generator
// after the last epoch, so that going through epochs in order draws each once, and the one before it, so that
// continuing an epoch draws only that epoch again.
type drawn struct {
	name string // for State.Sampler
	n    int
	seed uint64
	draw func(g *generator) []int

	mu     sync.Mutex
	g      *generator
	next   int       // the epoch that g draws next
	before generator // draws epoch next-1, if that is not negative
}

// Len implements Sampler.
func (d *drawn) Len() int { return d.n }

// Indices implements Sampler.
func (d *drawn) Indices(epoch int) iter.Seq[int] {
	indices, _ := d.epoch(context.Background(), epoch)
	return slices.Values(indices)
}

// epoch returns the indices of an epoch. It may have to draw the epochs before it, and returns the cause of ctx if that
// ends meanwhile.
func (d *drawn) epoch(ctx context.Context, epoch int) (indices []int, err error) {
	if epoch < 0 {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.g != nil && d.next == epoch+1:
		again := d.before
		return d.draw(&again), nil
	case d.g == nil || d.next > epoch:
		d.g, d.next = newGenerator(d.seed), 0
	}
	for ; d.next <= epoch; d.next++ {
		if ctx.Err() != nil {
			return nil, refuse.Cause(ctx)
		}
		d.before = *d.g
		indices = d.draw(d.g)
	}
	return indices, nil
}

// shuffled returns the sampler of PyTorch's DataLoader(shuffle=True, generator=g). In each epoch PyTorch draws
// a seed for workers, the order, and another order, of which it uses nothing.
func shuffled(d Dataset, g *tensor.Generator) (Sampler, error) {
	n, err := length(d)
	if err != nil {
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "%v", err)
	}
	if n > maxStored {
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "with Generator the dataset must have no more than 2^30 samples, got %d", n)
	}
	if g.Device() != tensor.CPU {
		return nil, refuse.Error("NewLoader", tensor.ErrArgument, "Generator must be one of the CPU, got one of %v", g.Device())
	}
	seed, err := g.InitialSeed()
	if err != nil {
		return nil, err
	}
	return &drawn{name: "Shuffle", n: n, seed: seed, draw: func(g *generator) []int {
		g.random64()
		order := g.perm(n)
		g.skip(n)
		return order
	}}, nil
}

// NewRandomSampler returns a sampler of 0…n-1 in random order, or with Replacement(true) of random numbers below n. With
// the same seed it draws the indices of PyTorch's RandomSampler with torch.Generator().manual_seed(seed), epoch by epoch,
// if PyTorch reads each epoch to its end, because it draws while it reads. It stores the order of an epoch, of at most 2^30
// samples; a loader's option Shuffle stores only those up to 2^20. Options: Seed, Replacement, NumSamples. PyTorch:
// torch.utils.data.RandomSampler.
func NewRandomSampler(n int, opts ...Option) (Sampler, error) {
	c, err := apply("NewRandomSampler", opts, "Seed", "Replacement", "NumSamples")
	if err != nil {
		return nil, err
	}
	samples := n
	if c.numSamples != nil {
		samples = *c.numSamples
	}
	replace := c.replacement != nil && *c.replacement
	if n < 1 || samples < 1 || samples > maxStored || n > maxStored && !replace {
		return nil, refuse.Error("NewRandomSampler", tensor.ErrArgument, "n and NumSamples must be at least 1 and no larger than 2^30, got %d and %d", n, samples)
	}
	name := "RandomSampler"
	if replace {
		name += " with Replacement"
	}
	return &drawn{name: name, n: samples, seed: c.seed, draw: func(g *generator) []int {
		indices := make([]int, 0, samples)
		if replace {
			for range samples {
				indices = append(indices, g.below(n))
			}
			return indices
		}
		for range samples / n {
			indices = append(indices, g.perm(n)...)
		}
		// PyTorch draws another order, also if it uses nothing of it.
		if samples%n == 0 {
			g.skip(n)
			return indices
		}
		return append(indices, g.perm(n)[:samples%n]...)
	}}, nil
}

const (
	maxSamples = 1 << 40 // in an epoch
	maxStored  = 1 << 30 // in an order that is stored, with 8 bytes each
)

// NewSubsetRandomSampler returns a sampler of indices in random order, which with the same seed is that of PyTorch's
// SubsetRandomSampler. Options: Seed. PyTorch: torch.utils.data.SubsetRandomSampler.
func NewSubsetRandomSampler(indices []int, opts ...Option) (Sampler, error) {
	c, err := apply("NewSubsetRandomSampler", opts, "Seed")
	if err != nil {
		return nil, err
	}
	indices = slices.Clone(indices)
	return &drawn{name: "SubsetRandomSampler", n: len(indices), seed: c.seed, draw: func(g *generator) []int {
		out := g.perm(len(indices))
		for i, at := range out {
			out[i] = indices[at]
		}
		return out
	}}, nil
}

// NewWeightedRandomSampler returns a sampler of n indices of weights, each drawn with a probability proportional to its
// weight: with replacement, or with Replacement(false) without. With the same seed it draws the indices of PyTorch's
// WeightedRandomSampler. n is at most 2^30. Options: Seed, Replacement. PyTorch: torch.utils.data.WeightedRandomSampler.
func NewWeightedRandomSampler(weights []float64, n int, opts ...Option) (Sampler, error) {
	const op = "NewWeightedRandomSampler"
	c, err := apply(op, opts, "Seed", "Replacement")
	if err != nil {
		return nil, err
	}
	replace := c.replacement == nil || *c.replacement
	total, positive := 0.0, 0
	for i, w := range weights {
		if !(w >= 0) || math.IsInf(w, 0) {
			return nil, refuse.Error(op, tensor.ErrArgument, "weights must be finite and at least 0, got %v at %d", w, i)
		}
		total += w
		if w > 0 {
			positive++
		}
	}
	switch {
	case n < 1 || n > maxStored:
		return nil, refuse.Error(op, tensor.ErrArgument, "n must be at least 1 and no larger than 2^30, got %d", n)
	case positive == 0 || math.IsInf(total, 0):
		return nil, refuse.Error(op, tensor.ErrArgument, "the sum of the weights must be positive and finite, got %v", total)
	case !replace && n > positive:
		return nil, refuse.Error(op, tensor.ErrArgument, "%d samples cannot be drawn without replacement from %d positive weights", n, positive)
	}
	weights = slices.Clone(weights)
	draw := withReplacement(weights, n)
	if !replace || n == 1 {
		draw = withoutReplacement(weights, n)
	}
	name := "WeightedRandomSampler"
	if !replace {
		name += " without Replacement"
	}
	return &drawn{name: name, n: n, seed: c.seed, draw: draw}, nil
}

// withReplacement draws as torch.multinomial does: by binary search in the cumulative distribution.
func withReplacement(weights []float64, n int) func(g *generator) []int {
	cumulative := make([]float64, len(weights))
	sum := 0.0
	for i, w := range weights {
		sum += w
		cumulative[i] = sum
	}
	for i := range cumulative {
		cumulative[i] /= sum
	}
	cumulative[len(cumulative)-1] = 1
	return func(g *generator) []int {
		indices := make([]int, n)
		for i := range indices {
			u := g.uniform()
			indices[i] = sort.Search(len(cumulative)-1, func(k int) bool { return cumulative[k] >= u })
		}
		return indices
	}
}

// withoutReplacement draws as torch.multinomial does: the largest of the weights divided by exponential variables.
func withoutReplacement(weights []float64, n int) func(g *generator) []int {
	type key struct {
		value float64
		index int
	}
	return func(g *generator) []int {
		keys := make([]key, len(weights))
		for i, w := range weights {
			keys[i] = key{w / -math.Log1p(-g.uniform()), i}
		}
		// The first of equal keys comes first.
		slices.SortFunc(keys, func(a, b key) int {
			if a.value != b.value {
				return cmp.Compare(b.value, a.value)
			}
			return a.index - b.index
		})
		indices := make([]int, n)
		for i := range indices {
			indices[i] = keys[i].index
		}
		return indices
	}
}

// distributed is the sampler of one process among several.
type distributed struct {
	n, replicas, rank int
	shuffle, dropLast bool
	seed              uint64
}

// NewDistributedSampler returns the sampler of process rank among replicas processes, which share an epoch of 0…n-1
// without overlap. Each gets the same number of samples: some are repeated, or with DropLast the last ones omitted. The
// order is that of PyTorch's DistributedSampler with set_epoch(epoch). n is at most 2^40, and with Shuffle, which stores
// the order, 2^30. Options: Shuffle (true by default), Seed, DropLast.
//
// The order of an epoch does not depend on replicas: of its n samples, rank takes those at rank, rank+replicas,
// rank+2*replicas and so on, and after k samples the ranks have seen the first k*replicas. So a run can continue in the
// middle of an epoch with another number of processes, and see the rest of it once: after seen samples of the epoch (the
// Seen of a loader's [State]) rank takes those at seen+rank+i*replicas, for i from 0 to ceil((n-seen)/replicas), or with
// DropLast floor. Positions from n on mean the first samples of the order again.
//
// PyTorch: torch.utils.data.DistributedSampler.
func NewDistributedSampler(n, replicas, rank int, opts ...Option) (Sampler, error) {
	c, err := apply("NewDistributedSampler", append([]Option{Shuffle(true)}, opts...), "Shuffle", "Seed", "DropLast")
	if err != nil {
		return nil, err
	}
	if n < 1 || replicas < 1 || rank < 0 || rank >= replicas || n > maxSamples || replicas > maxSamples {
		return nil, refuse.Error("NewDistributedSampler", tensor.ErrArgument, "want at least 1 sample and a rank in 0…replicas-1, got n = %d, replicas = %d, rank = %d", n, replicas, rank)
	}
	if c.shuffle && n > maxStored {
		return nil, refuse.Error("NewDistributedSampler", tensor.ErrArgument, "with Shuffle n must be no larger than 2^30, got %d", n)
	}
	return &distributed{n: n, replicas: replicas, rank: rank, shuffle: c.shuffle, dropLast: c.dropLast, seed: c.seed}, nil
}

// each returns the number of samples of a process after seen samples of an epoch.
func (d *distributed) each(seen int) int {
	if d.dropLast {
		return (d.n - seen) / d.replicas
	}
	return (d.n - seen + d.replicas - 1) / d.replicas
}

// Len implements Sampler.
func (d *distributed) Len() int { return d.each(0) }

// Indices implements Sampler.
func (d *distributed) Indices(epoch int) iter.Seq[int] {
	return func(yield func(int) bool) {
		at := d.order(epoch, 0)
		for i := range d.each(0) {
			if !yield(at(i)) {
				return
			}
		}
	}
}

// order returns the samples of an epoch after the first seen of all processes.
func (d *distributed) order(epoch, seen int) func(i int) int {
	// Beyond the last sample the epoch starts over.
	place := func(i int) int { return (seen + d.rank + i*d.replicas) % d.n }
	if !d.shuffle {
		return place
	}
	perm := newGenerator(d.seed + uint64(epoch)).perm(d.n)
	return func(i int) int { return perm[place(i)] }
}

// drawer returns what determines the orders of a loader of a map-style dataset, for State.Sampler and State.SamplerSeed.
func (c *config) drawer() (name string, seed uint64) {
	switch s := c.sampler.(type) {
	case *drawn:
		return s.name, s.seed
	case *distributed:
		if s.shuffle {
			return "DistributedSampler", s.seed
		}
		return "DistributedSampler without Shuffle", 0
	case sequential:
		return "SequentialSampler", 0
	case nil:
		switch {
		case c.batchSampler != nil: // of the user's own
		case c.shuffle:
			return "Shuffle", 0
		default:
			return "SequentialSampler", 0
		}
	}
	return "", 0
}

type batches struct {
	sampler  Sampler
	size     int
	dropLast bool
}

// NewBatchSampler returns a sampler of batches of size samples of s. The last may be smaller, or is omitted with
// dropLast. PyTorch: torch.utils.data.BatchSampler.
func NewBatchSampler(s Sampler, size int, dropLast bool) (BatchSampler, error) {
	if isNil(s) {
		return nil, refuse.Nil("NewBatchSampler", "a sampler")
	}
	if size < 1 {
		return nil, refuse.Error("NewBatchSampler", tensor.ErrArgument, "size must be at least 1, got %d", size)
	}
	return &batches{s, size, dropLast}, nil
}

// Len implements BatchSampler.
func (b *batches) Len() int {
	n := max(0, b.sampler.Len())
	if b.dropLast {
		return n / b.size
	}
	return n/b.size + min(1, n%b.size)
}

// Batches implements BatchSampler.
func (b *batches) Batches(epoch int) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		var batch []int
		for i := range b.sampler.Indices(epoch) {
			if batch = append(batch, i); len(batch) == b.size {
				if !yield(batch) {
					return
				}
				batch = nil
			}
		}
		if len(batch) > 0 && !b.dropLast {
			yield(batch)
		}
	}
}

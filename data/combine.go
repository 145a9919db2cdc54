package data

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Subset is a dataset of some samples of another. PyTorch: torch.utils.data.Subset.
type Subset struct {
	dataset Dataset
	indices []int
}

// NewSubset returns the samples of dataset at indices, in this order. An index may occur more than once.
func NewSubset(dataset Dataset, indices []int) (*Subset, error) {
	if isNil(dataset) {
		return nil, refuse.Nil("NewSubset", "a dataset")
	}
	n := dataset.Len()
	for _, i := range indices {
		if i < 0 || i >= n {
			return nil, refuse.Error("NewSubset", tensor.ErrArgument, "index %d of a dataset of %d samples", i, n)
		}
	}
	return &Subset{dataset, slices.Clone(indices)}, nil
}

// Len returns the number of samples.
func (s *Subset) Len() int {
	if s == nil {
		return 0
	}
	return len(s.indices)
}

// Indices returns the indices in the dataset.
func (s *Subset) Indices() []int {
	if s == nil {
		return nil
	}
	return slices.Clone(s.indices)
}

// Batch returns the batch of the dataset.
func (s *Subset) Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error) {
	if s == nil || s.dataset == nil {
		return nil, unmade("Batch")
	}
	at := make([]int, len(indices))
	for k, i := range indices {
		if i < 0 || i >= len(s.indices) {
			return nil, refuse.Error("Batch", tensor.ErrIndex, "sample %d of a subset of %d", i, len(s.indices))
		}
		at[k] = s.indices[i]
	}
	return s.dataset.Batch(ctx, at)
}

// RandomSplit divides dataset at random into subsets that do not overlap. lengths are their numbers of samples, which add
// up to dataset.Len(), or as floating-point numbers their fractions, which add up to 1. With the same seed the subsets
// have the indices of PyTorch's random_split with torch.Generator().manual_seed(seed). dataset has at most 2^30
// samples. Options: Seed. PyTorch: torch.utils.data.random_split.
func RandomSplit[N int | float64](dataset Dataset, lengths []N, opts ...Option) ([]*Subset, error) {
	c, err := apply("RandomSplit", opts, "Seed")
	if err != nil {
		return nil, err
	}
	if isNil(dataset) {
		return nil, refuse.Nil("RandomSplit", "a dataset")
	}
	n := dataset.Len()
	if n > maxStored {
		return nil, refuse.Error("RandomSplit", tensor.ErrArgument, "the dataset must have at most 2^30 samples, got %d", n)
	}
	counts, sum := make([]int, len(lengths)), 0
	switch lengths := any(lengths).(type) {
	case []int:
		copy(counts, lengths)
	case []float64:
		if counts, err = fractions(lengths, n); err != nil {
			return nil, err
		}
	}
	for i, k := range counts {
		if k < 0 || k > n {
			return nil, refuse.Error("RandomSplit", tensor.ErrArgument, "invalid length %d at %d", k, i)
		}
		sum += k
	}
	if sum != n {
		return nil, refuse.Error("RandomSplit", tensor.ErrArgument, "the lengths %v add up to %d, but the dataset has %d samples", lengths, sum, n)
	}
	perm := newGenerator(c.seed).perm(n)
	out := make([]*Subset, len(counts))
	at := 0
	for i, k := range counts {
		out[i] = &Subset{dataset, perm[at : at+k : at+k]}
		at += k
	}
	return out, nil
}

// fractions returns the numbers of samples, as PyTorch rounds them: down, and the rest is distributed in order.
func fractions(lengths []float64, n int) ([]int, error) {
	// The compensated sum of Neumaier, as Python's sum has it since 3.12.
	sum, lost := 0.0, 0.0
	for i, f := range lengths {
		if !(f >= 0 && f <= 1) {
			return nil, refuse.Error("RandomSplit", tensor.ErrArgument, "fractions must be in [0, 1], got %v at %d", f, i)
		}
		next := sum + f
		if sum >= f {
			lost += (sum - next) + f
		} else {
			lost += (f - next) + sum
		}
		sum = next
	}
	sum += lost
	if sum > 1 || math.Abs(sum-1) > 1e-9 {
		return nil, refuse.Error("RandomSplit", tensor.ErrArgument, "the fractions %v add up to %v, want 1", lengths, sum)
	}
	counts, total := make([]int, len(lengths)), 0
	for i, f := range lengths {
		counts[i] = int(math.Floor(float64(n) * f))
		total += counts[i]
	}
	for i := range n - total {
		counts[i%len(counts)]++
	}
	return counts, nil
}

// ConcatDataset is several datasets one after another. PyTorch: torch.utils.data.ConcatDataset.
type ConcatDataset struct {
	datasets []Dataset
	ends     []int // cumulative numbers of samples
}

// NewConcatDataset returns datasets one after another. Their batches have the same number of tensors, of the same
// dtypes and of the same shapes except for the first dimension; a batch across datasets that differ is an error.
func NewConcatDataset(datasets ...Dataset) (*ConcatDataset, error) {
	if len(datasets) == 0 {
		return nil, refuse.Error("NewConcatDataset", tensor.ErrArgument, "at least one dataset is needed")
	}
	c := &ConcatDataset{datasets: slices.Clone(datasets)}
	n := 0
	for i, d := range datasets {
		if isNil(d) {
			return nil, refuse.Error("NewConcatDataset", tensor.ErrNil, "dataset %d is nil", i)
		}
		n += d.Len()
		c.ends = append(c.ends, n)
	}
	return c, nil
}

// Len returns the number of samples.
func (c *ConcatDataset) Len() int {
	if c == nil || len(c.ends) == 0 {
		return 0
	}
	return c.ends[len(c.ends)-1]
}

// Batch returns a batch whose samples may be of several datasets.
func (c *ConcatDataset) Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error) {
	if c == nil || len(c.datasets) == 0 {
		return nil, unmade("Batch")
	}
	of := make([][]int, len(c.datasets))    // the samples of each dataset
	place := make([][]int, len(c.datasets)) // and where they are in the batch
	for k, i := range indices {
		d := sort.SearchInts(c.ends, i+1)
		if i < 0 || d == len(c.ends) {
			return nil, refuse.Error("Batch", tensor.ErrIndex, "sample %d of a dataset of %d", i, c.Len())
		}
		start := 0
		if d > 0 {
			start = c.ends[d-1]
		}
		of[d], place[d] = append(of[d], i-start), append(place[d], k)
	}
	var parts [][]*tensor.Tensor
	first := 0                           // the dataset of parts[0]
	order := make([]int64, len(indices)) // where each sample of the batch is in the parts
	n := 0
	for d := range c.datasets {
		if len(of[d]) == 0 {
			continue
		}
		ts, err := c.datasets[d].Batch(ctx, of[d])
		if err != nil {
			return nil, fmt.Errorf("dataset %d: %w", d, err)
		}
		if len(parts) > 0 && len(ts) != len(parts[0]) {
			return nil, refuse.Error("Batch", tensor.ErrArgument, "dataset %d returns %d tensors, dataset %d %d", d, len(ts), first, len(parts[0]))
		}
		if len(parts) == 0 {
			first = d
		}
		parts = append(parts, ts)
		for i, t := range ts {
			if got, want := t.DType(), parts[0][i].DType(); got != want && got != tensor.Invalid && want != tensor.Invalid {
				return nil, refuse.Error("Batch", tensor.ErrArgument, "tensor %d has dtype %v in dataset %d, and %v in dataset %d", i, got, d, want, first)
			}
		}
		for j, k := range place[d] {
			order[k] = int64(n + j)
		}
		n += len(of[d])
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	if len(parts) == 0 {
		return nil, errors.New("a batch without samples")
	}
	index := tensor.FromSlice(order, nil)
	out := make([]*tensor.Tensor, len(parts[0]))
	for i := range out {
		column := make([]*tensor.Tensor, len(parts))
		for j, ts := range parts {
			column[j] = ts[i]
		}
		all := tensor.Cat(column)
		out[i] = all.IndexSelect(0, index.To(all.Device()))
	}
	return out, nil
}

// StackDataset is several datasets side by side: a batch has the tensors of all of them. PyTorch:
// torch.utils.data.StackDataset.
type StackDataset struct{ datasets []Dataset }

// NewStackDataset returns datasets of equally many samples side by side.
func NewStackDataset(datasets ...Dataset) (*StackDataset, error) {
	if len(datasets) == 0 {
		return nil, refuse.Error("NewStackDataset", tensor.ErrArgument, "at least one dataset is needed")
	}
	for i, d := range datasets {
		if isNil(d) {
			return nil, refuse.Error("NewStackDataset", tensor.ErrNil, "dataset %d is nil", i)
		}
		if n, want := d.Len(), datasets[0].Len(); n != want {
			return nil, refuse.Error("NewStackDataset", tensor.ErrArgument, "dataset %d has %d samples, the first has %d", i, n, want)
		}
	}
	return &StackDataset{slices.Clone(datasets)}, nil
}

// Len returns the number of samples.
func (s *StackDataset) Len() int {
	if s == nil || len(s.datasets) == 0 {
		return 0
	}
	return s.datasets[0].Len()
}

// Batch returns the tensors of each dataset, in order.
func (s *StackDataset) Batch(ctx context.Context, indices []int) (all []*tensor.Tensor, err error) {
	if s == nil || len(s.datasets) == 0 {
		return nil, unmade("Batch")
	}
	for i, d := range s.datasets {
		ts, err := d.Batch(ctx, indices)
		if err != nil {
			return nil, fmt.Errorf("dataset %d: %w", i, err)
		}
		all = append(all, ts...)
	}
	return all, nil
}

package data

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Dataset is a set of samples that are read a batch at a time.
type Dataset interface {
	// Len is the number of samples.
	Len() int
	// Batch makes the tensors of the samples at indices, each with the samples along its first dimension. The
	// first is the batch's Inputs, the second, if there is one, its Targets. It is called from several
	// goroutines at once when the loader has workers, each time in a scope of its own, which frees what is not
	// returned. A failed tensor among the results is an error.
	Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error)
}

// TensorDataset is tensors whose first dimension counts the samples. PyTorch: torch.utils.data.TensorDataset.
type TensorDataset struct {
	tensors []*tensor.Tensor
	n       int
}

// NewTensorDataset makes a dataset of tensors with equally long first dimensions. A batch holds copies of their
// rows. The dataset shares the tensors' storage and keeps it until Release, whatever becomes of the tensors
// given.
func NewTensorDataset(tensors ...*tensor.Tensor) (*TensorDataset, error) {
	if len(tensors) == 0 {
		return nil, errors.New("linstock: NewTensorDataset: no tensor was given")
	}
	d := &TensorDataset{}
	for i, t := range tensors {
		if err := refuse.Unusable("NewTensorDataset", fmt.Sprintf("tensor %d", i), t); err != nil {
			d.Release()
			return nil, err
		}
		own := t.Alias().Keep()
		if err := own.Err(); err != nil {
			d.Release()
			return nil, err
		}
		d.tensors = append(d.tensors, own)
		switch {
		case own.Dim() == 0:
			d.Release()
			return nil, fmt.Errorf("linstock: NewTensorDataset: tensor %d has no dimension to count samples by", i)
		case i > 0 && own.Size(0) != d.n:
			err := fmt.Errorf("linstock: NewTensorDataset: tensor %d has %d samples, the first has %d", i, own.Size(0), d.n)
			d.Release()
			return nil, err
		}
		d.n = own.Size(0)
	}
	return d, nil
}

// Len is the number of samples.
func (d *TensorDataset) Len() int { return d.n }

// Batch selects rows.
func (d *TensorDataset) Batch(_ context.Context, indices []int) ([]*tensor.Tensor, error) {
	index := tensor.FromSlice(indices, nil)
	rows := make([]*tensor.Tensor, len(d.tensors))
	for i, t := range d.tensors {
		rows[i] = t.IndexSelect(0, index)
	}
	return rows, nil
}

// Release lets go of the tensors. Without it they go once the garbage collector finds the dataset unreachable.
func (d *TensorDataset) Release() {
	for _, t := range d.tensors {
		t.Release()
	}
}

// Samples is a dataset whose samples a function writes, one at a time, straight into the memory of the batch.
// I and T are the types of the elements of inputs and targets.
type Samples[I, T tensor.Element] struct {
	n             int
	input, target []int
	get           func(i int, input []I, target []T) error
	inputs        bufferPool[I]
	targets       bufferPool[T]
}

// NewSamples makes a dataset of n samples. get writes the i-th into input and target, which have inputShape's and
// targetShape's number of elements, in row-major order, and are zero before. A batch of b samples has inputs of
// shape (b, inputShape…) and targets of shape (b, targetShape…); a nil targetShape is a number a sample, (b).
// get is called from several goroutines at once when the loader has workers.
func NewSamples[I, T tensor.Element](n int, inputShape, targetShape []int, get func(i int, input []I, target []T) error) (*Samples[I, T], error) {
	if n < 0 || get == nil {
		return nil, fmt.Errorf("linstock: NewSamples: %d samples of a function (nil: %t)", n, get == nil)
	}
	for _, shape := range [][]int{inputShape, targetShape} {
		if _, err := elements(shape); err != nil {
			return nil, fmt.Errorf("linstock: NewSamples: %w", err)
		}
	}
	return &Samples[I, T]{n: n, input: append([]int{}, inputShape...), target: append([]int{}, targetShape...), get: get}, nil
}

func elements(shape []int) (int, error) {
	n := 1
	for _, s := range shape {
		if s < 0 || s > 0 && n > math.MaxInt32/s {
			return 0, fmt.Errorf("%v is no shape of a sample", shape)
		}
		n *= s
	}
	return n, nil
}

// Len is the number of samples.
func (d *Samples[I, T]) Len() int { return d.n }

// Batch collates in Go's memory and crosses into libtorch once for each tensor.
func (d *Samples[I, T]) Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error) {
	ni, err := elements(d.input)
	if err != nil {
		return nil, err
	}
	nt, err := elements(d.target)
	if err != nil {
		return nil, err
	}
	inputs, targets := d.inputs.get(ni*len(indices)), d.targets.get(nt*len(indices))
	defer d.inputs.put(inputs)
	defer d.targets.put(targets)
	for k, i := range indices {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := d.get(i, (*inputs)[k*ni:(k+1)*ni:(k+1)*ni], (*targets)[k*nt:(k+1)*nt:(k+1)*nt]); err != nil {
			return nil, fmt.Errorf("sample %d: %w", i, err)
		}
	}
	return []*tensor.Tensor{
		tensor.FromSlice(*inputs, append([]int{len(indices)}, d.input...)),
		tensor.FromSlice(*targets, append([]int{len(indices)}, d.target...)),
	}, nil
}

// bufferPool lends slices of zeros: a batch is as large as the one before, and FromSlice copies.
type bufferPool[T any] struct{ pool sync.Pool }

func (p *bufferPool[T]) get(n int) *[]T {
	b, ok := p.pool.Get().(*[]T)
	if !ok || cap(*b) < n {
		s := make([]T, n)
		return &s
	}
	*b = (*b)[:n]
	clear(*b)
	return b
}

func (p *bufferPool[T]) put(b *[]T) { p.pool.Put(b) }

// Token is what a text may consist of.
type Token interface {
	~uint8 | ~uint16 | ~uint32 | ~int16 | ~int32 | ~int64 | ~int
}

// Windows is a text for a language model: sample i is the length tokens from i·stride on, and its target the
// same one token later. Inputs and targets are int64 of shape (b, length).
type Windows[T Token] struct {
	tokens         []T
	length, stride int
	buffers        bufferPool[int64]
}

// NewWindows makes windows of tokens, which it does not copy. With stride 1 and a shuffling loader a batch is
// windows at random places; with stride length and no shuffling the windows run through the text once.
func NewWindows[T Token](tokens []T, length, stride int) (*Windows[T], error) {
	if length < 1 || stride < 1 {
		return nil, fmt.Errorf("linstock: NewWindows: windows of length %d at a stride of %d", length, stride)
	}
	return &Windows[T]{tokens: tokens, length: length, stride: stride}, nil
}

// Len is the number of windows that fit.
func (d *Windows[T]) Len() int {
	last := len(d.tokens) - d.length - 1 // the last token is a target only
	if last < 0 {
		return 0
	}
	return last/d.stride + 1
}

// Batch collates in Go's memory and crosses into libtorch once for each tensor.
func (d *Windows[T]) Batch(_ context.Context, indices []int) ([]*tensor.Tensor, error) {
	n := d.length * len(indices)
	buffer := d.buffers.get(2 * n)
	defer d.buffers.put(buffer)
	inputs, targets := (*buffer)[:n], (*buffer)[n:]
	for k, i := range indices {
		if i < 0 || i >= d.Len() {
			return nil, fmt.Errorf("window %d of %d", i, d.Len())
		}
		window := d.tokens[i*d.stride:][: d.length+1 : d.length+1]
		at := k * d.length
		for j := range d.length {
			inputs[at+j], targets[at+j] = int64(window[j]), int64(window[j+1])
		}
	}
	shape := []int{len(indices), d.length}
	return []*tensor.Tensor{tensor.FromSlice(inputs, shape), tensor.FromSlice(targets, shape)}, nil
}

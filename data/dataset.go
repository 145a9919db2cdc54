package data

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"sync"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Dataset is a set of samples that is read in batches.
type Dataset interface {
	// Len returns the number of samples.
	Len() int
	// Batch returns tensors that hold the samples at indices, with the samples along the first dimension. The first
	// tensor becomes Batch.Inputs, and the second, if there is one, Batch.Targets. A failed tensor is treated as an
	// error. With workers, Batch is called from several goroutines at once. Each call runs in a scope, which frees the
	// tensors that are not returned. ctx ends when the loop's does, and with workers also when the loop is left, which
	// waits until Batch has returned: while Batch waits for anything else, it must wait for ctx, too.
	Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error)
}

// unmade returns the error of op of a dataset that is nil or a literal.
func unmade(op string) error {
	return refuse.Error(op, tensor.ErrArgument, "a dataset that no constructor made")
}

// isNil reports whether v, an interface, is nil or holds a nil pointer or function.
func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return r.IsNil()
	}
	return false
}

// TensorDataset is a dataset of tensors whose first dimension is the sample. PyTorch: torch.utils.data.TensorDataset.
type TensorDataset struct {
	tensors []*tensor.Tensor
	n       int
}

// NewTensorDataset returns a dataset of tensors with equal first dimensions. A batch holds copies of their rows, on the
// tensors' devices. The dataset shares the tensors' storage and keeps it alive until Release, even if the given tensors
// are released.
func NewTensorDataset(tensors ...*tensor.Tensor) (*TensorDataset, error) {
	if len(tensors) == 0 {
		return nil, refuse.Error("NewTensorDataset", tensor.ErrArgument, "at least one tensor is needed")
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
			return nil, refuse.Error("NewTensorDataset", tensor.ErrArgument, "tensor %d is a scalar: its first dimension must be the number of samples", i)
		case i > 0 && own.Size(0) != d.n:
			err := refuse.Error("NewTensorDataset", tensor.ErrArgument, "tensor %d has %d samples, the first has %d", i, own.Size(0), d.n)
			d.Release()
			return nil, err
		}
		d.n = own.Size(0)
	}
	return d, nil
}

// Len returns the number of samples.
func (d *TensorDataset) Len() int {
	if d == nil {
		return 0
	}
	return d.n
}

// Batch returns the rows at indices of each tensor.
func (d *TensorDataset) Batch(_ context.Context, indices []int) ([]*tensor.Tensor, error) {
	if d == nil || len(d.tensors) == 0 {
		return nil, unmade("Batch")
	}
	for _, i := range indices { // a kernel of CUDA that found one would end the use of the device
		if i < 0 || i >= d.n {
			return nil, refuse.Error("Batch", tensor.ErrIndex, "sample %d of a dataset of %d", i, d.n)
		}
	}
	index := tensor.FromSlice(indices, nil)
	there, device := index, tensor.CPU
	rows := make([]*tensor.Tensor, len(d.tensors))
	for i, t := range d.tensors {
		if at := t.Device(); at != device { // one copy for tensors in succession on one device
			there, device = index.To(at), at
		}
		rows[i] = t.IndexSelect(0, there)
	}
	return rows, nil
}

// Release releases the tensors. Without it they are freed once the dataset is unreachable.
func (d *TensorDataset) Release() {
	if d == nil {
		return
	}
	for _, t := range d.tensors {
		t.Release()
	}
}

// Samples is a dataset whose samples a function writes directly into the memory of the batch. I and T are the element
// types of inputs and targets.
type Samples[I, T tensor.Element] struct {
	n             int
	input, target []int
	get           func(i int, input []I, target []T) error
	inputs        bufferPool[I]
	targets       bufferPool[T]
}

// NewSamples returns a dataset of n samples. get writes sample i into input and target, slices in row-major order with
// the number of elements of inputShape and targetShape, which are zero before the call. A batch of b samples has inputs
// of shape (b, inputShape...) and targets of shape (b, targetShape...); with a nil targetShape each target is a number
// and targets have shape (b). With workers, get is called from several goroutines at once.
func NewSamples[I, T tensor.Element](n int, inputShape, targetShape []int, get func(i int, input []I, target []T) error) (*Samples[I, T], error) {
	switch {
	case get == nil:
		return nil, refuse.Nil("NewSamples", "a function")
	case n < 0:
		return nil, refuse.Error("NewSamples", tensor.ErrArgument, "n must be at least 0, got %d", n)
	}
	for _, shape := range [][]int{inputShape, targetShape} {
		if _, err := elements(shape); err != nil {
			return nil, refuse.Error("NewSamples", tensor.ErrArgument, "%v", err)
		}
	}
	return &Samples[I, T]{n: n, input: append([]int{}, inputShape...), target: append([]int{}, targetShape...), get: get}, nil
}

// maxElements bounds the elements of a batch in Go memory.
const maxElements = 1 << 32

// batchElements returns the number of elements of a batch of b samples with n elements each.
func batchElements(n, b int) (int, error) {
	if n > 0 && b > maxElements/n {
		return 0, fmt.Errorf("a batch of %d samples with %d elements each is too large", b, n)
	}
	return n * b, nil
}

func elements(shape []int) (int, error) {
	n := 1
	for _, s := range shape {
		if s < 0 || s > 0 && n > math.MaxInt32/s {
			return 0, fmt.Errorf("invalid sample shape %v", shape)
		}
		n *= s
	}
	return n, nil
}

// Len returns the number of samples.
func (d *Samples[I, T]) Len() int {
	if d == nil {
		return 0
	}
	return d.n
}

// Batch writes the samples at indices into Go memory and makes each tensor in one native call.
func (d *Samples[I, T]) Batch(ctx context.Context, indices []int) ([]*tensor.Tensor, error) {
	if d == nil || d.get == nil {
		return nil, unmade("Batch")
	}
	if ctx == nil {
		return nil, refuse.Nil("Batch", "a context")
	}
	ni, err := elements(d.input)
	if err != nil {
		return nil, err
	}
	nt, err := elements(d.target)
	if err != nil {
		return nil, err
	}
	allInputs, err := batchElements(ni, len(indices))
	if err != nil {
		return nil, err
	}
	allTargets, err := batchElements(nt, len(indices))
	if err != nil {
		return nil, err
	}
	inputs, targets := d.inputs.get(allInputs), d.targets.get(allTargets)
	defer d.inputs.put(inputs)
	defer d.targets.put(targets)
	for k, i := range indices {
		if err := refuse.Cause(ctx); err != nil {
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

// bufferPool reuses zeroed slices. A slice can be reused after FromSlice, which copies it.
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

// Token is the constraint for the elements of a text.
type Token interface {
	~uint8 | ~uint16 | ~uint32 | ~int16 | ~int32 | ~int64 | ~int
}

// Windows is a text as a dataset for a language model. The input of sample i is the length tokens that start at
// i·stride; its target is the same window one token later. Inputs and targets are int64 tensors of shape (b, length).
type Windows[T Token] struct {
	tokens         []T
	length, stride int
	buffers        bufferPool[int64]
}

// NewWindows returns windows over tokens, which it does not copy. With stride 1 and a shuffling loader, a batch is
// windows at random positions; with stride length and no shuffling, the windows cover the text once.
func NewWindows[T Token](tokens []T, length, stride int) (*Windows[T], error) {
	if length < 1 || stride < 1 {
		return nil, refuse.Error("NewWindows", tensor.ErrArgument, "length and stride must be at least 1, got %d and %d", length, stride)
	}
	return &Windows[T]{tokens: tokens, length: length, stride: stride}, nil
}

// Len returns the number of complete windows.
func (d *Windows[T]) Len() int {
	if d == nil || d.stride == 0 {
		return 0
	}
	last := len(d.tokens) - d.length - 1 // the last token is only a target
	if last < 0 {
		return 0
	}
	return last/d.stride + 1
}

// Batch copies the windows into Go memory and makes each tensor in one native call.
func (d *Windows[T]) Batch(_ context.Context, indices []int) ([]*tensor.Tensor, error) {
	if d == nil || d.stride == 0 {
		return nil, unmade("Batch")
	}
	for _, i := range indices {
		if i < 0 || i >= d.Len() {
			return nil, refuse.Error("Batch", tensor.ErrIndex, "window %d of %d", i, d.Len())
		}
	}
	n, err := batchElements(d.length, len(indices))
	if err != nil {
		return nil, err
	}
	buffer := d.buffers.get(2 * n)
	defer d.buffers.put(buffer)
	inputs, targets := (*buffer)[:n], (*buffer)[n:]
	for k, i := range indices {
		window := d.tokens[i*d.stride:][: d.length+1 : d.length+1]
		at := k * d.length
		for j := range d.length {
			inputs[at+j], targets[at+j] = int64(window[j]), int64(window[j+1])
		}
	}
	shape := []int{len(indices), d.length}
	return []*tensor.Tensor{tensor.FromSlice(inputs, shape), tensor.FromSlice(targets, shape)}, nil
}

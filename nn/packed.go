package nn

import (
	"slices"
	"sort"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// PackedSequence holds sequences of different lengths without padding, as RNN, LSTM and GRU take them. PyTorch:
// torch.nn.utils.rnn.PackedSequence.
type PackedSequence struct {
	// Data has the elements of all sequences, (sum of the lengths, *): the first elements of all sequences, then the
	// second ones, and so on, the longest sequence first.
	Data *tensor.Tensor
	// BatchSizes has the number of sequences that are longer than i at index i.
	BatchSizes []int
	// SortedIndices has the index that the sequence at each place had before sorting, and UnsortedIndices is the
	// inverse. Both are empty if the sequences came in the order of their lengths.
	SortedIndices, UnsortedIndices []int
}

// Err returns the error of the function that made p, or nil.
func (p *PackedSequence) Err() error {
	if p == nil {
		return refuse.Nil("PackedSequence", "a packed sequence")
	}
	return refuse.Unusable("PackedSequence", "Data", p.Data)
}

// check returns an error if p's fields do not fit together.
func (p *PackedSequence) check(op string) error {
	if p == nil {
		return refuse.Nil(op, "a packed sequence")
	}
	if err := refuse.Unusable(op, "Data", p.Data); err != nil {
		return err
	}
	sum := 0
	for i, n := range p.BatchSizes {
		if n < 1 || n > maxSize || i > 0 && n > p.BatchSizes[i-1] {
			return refuse.Error(op, tensor.ErrArgument, "BatchSizes must be positive and must not grow, got %v", p.BatchSizes)
		}
		sum += n
	}
	if p.Data.Dim() < 1 || sum == 0 || p.Data.Size(0) != sum {
		return refuse.Error(op, tensor.ErrArgument, "BatchSizes add up to %d, Data has shape %v", sum, p.Data.Shape())
	}
	if len(p.SortedIndices) != len(p.UnsortedIndices) {
		return refuse.Error(op, tensor.ErrArgument, "SortedIndices and UnsortedIndices have %d and %d elements", len(p.SortedIndices), len(p.UnsortedIndices))
	}
	if n := len(p.SortedIndices); n != 0 {
		if n != p.BatchSizes[0] {
			return refuse.Error(op, tensor.ErrArgument, "SortedIndices has %d elements for %d sequences", n, p.BatchSizes[0])
		}
		for i, at := range p.SortedIndices {
			if at < 0 || at >= n || p.UnsortedIndices[at] != i {
				return refuse.Error(op, tensor.ErrArgument, "SortedIndices and UnsortedIndices are not inverse permutations")
			}
		}
	}
	return nil
}

// with returns a PackedSequence of the same lengths with other data, or one that carries the error of a failed data.
func (p *PackedSequence) with(data *tensor.Tensor) *PackedSequence {
	if handle.Failed(data) {
		return &PackedSequence{Data: data}
	}
	return &PackedSequence{data, p.BatchSizes, p.SortedIndices, p.UnsortedIndices}
}

// lengths returns the lengths of the sequences in the order of Data.
func (p *PackedSequence) lengths() []int {
	out := make([]int, p.BatchSizes[0])
	for _, n := range p.BatchSizes {
		for i := range n {
			out[i]++
		}
	}
	return out
}

func failedPack(err error) *PackedSequence { return &PackedSequence{Data: tensor.Failed(err)} }

// vector returns ints as an int64 tensor.
func vector(v []int) *tensor.Tensor {
	return tensor.FromSlice(v, []int{len(v)}, tensor.Int64, tensor.CPU)
}

// reorder returns x with its elements along dim at indices, or x itself if there are no indices.
func reorder(x *tensor.Tensor, dim int, indices []int) *tensor.Tensor {
	if len(indices) == 0 || x == nil {
		return x
	}
	return x.IndexSelect(dim, vector(indices).To(x.Device()))
}

// PackPaddedSequence packs padded sequences x (T, N, *), or (N, T, *) with BatchFirst, whose lengths are given. Each
// length is between 1 and T. Sequences in any order of lengths are sorted, as with enforce_sorted=False. A failure is in
// the result's Err. PyTorch: torch.nn.utils.rnn.pack_padded_sequence.
func PackPaddedSequence(x *tensor.Tensor, lengths []int, opts ...Option) *PackedSequence {
	const op = "PackPaddedSequence"
	b := build(op, opts, "BatchFirst")
	b.note(refuse.Unusable(op, "", x))
	if b.err == nil && x.Dim() < 2 {
		b.fail("x must have at least 2 dimensions, got shape %v", x.Shape())
	}
	if b.err != nil {
		return failedPack(b.err)
	}
	time, batch := 0, 1
	if b.batchFirst {
		time, batch = 1, 0
	}
	if len(lengths) == 0 || len(lengths) != x.Size(batch) {
		return failedPack(refuse.Error(op, tensor.ErrArgument, "%d lengths for %d sequences", len(lengths), x.Size(batch)))
	}
	for _, n := range lengths {
		if n < 1 || n > x.Size(time) {
			return failedPack(refuse.Error(op, tensor.ErrArgument, "a length must be between 1 and %d, got %v", x.Size(time), lengths))
		}
	}
	p := &PackedSequence{}
	sorted := slices.Clone(lengths)
	if !slices.IsSortedFunc(sorted, func(a, b int) int { return b - a }) {
		p.SortedIndices, p.UnsortedIndices = make([]int, len(lengths)), make([]int, len(lengths))
		for i := range p.SortedIndices {
			p.SortedIndices[i] = i
		}
		sort.SliceStable(p.SortedIndices, func(i, j int) bool { return lengths[p.SortedIndices[i]] > lengths[p.SortedIndices[j]] })
		for i, at := range p.SortedIndices {
			p.UnsortedIndices[at], sorted[i] = i, lengths[at]
		}
	}
	for t := range sorted[0] {
		p.BatchSizes = append(p.BatchSizes, sort.Search(len(sorted), func(i int) bool { return sorted[i] <= t }))
	}
	p.Data = tidy(func(*tensor.Scope) *tensor.Tensor {
		out, err := tensor.CallUnchecked("aten::_pack_padded_sequence", reorder(x, batch, p.SortedIndices), vector(sorted), b.batchFirst)
		if err != nil {
			return tensor.Failed(err)
		}
		return out[0].(*tensor.Tensor)
	})
	return p
}

// PadPackedSequence returns the sequences of p as (T, N, *), or (N, T, *) with BatchFirst, with padding at the end, and
// their lengths, in the order that they had before packing. Options: BatchFirst, PaddingValue (0 by default),
// TotalLength (the longest length by default). PyTorch: torch.nn.utils.rnn.pad_packed_sequence.
func PadPackedSequence(p *PackedSequence, opts ...Option) (*tensor.Tensor, []int) {
	const op = "PadPackedSequence"
	b := build(op, opts, "BatchFirst", "PaddingValue", "TotalLength")
	b.note(p.check(op))
	if b.err != nil {
		return tensor.Failed(b.err), nil
	}
	total := len(p.BatchSizes)
	if b.hasTotalLength {
		if b.totalLength < total || b.totalLength > maxSize {
			return refuse.Tensor(op, tensor.ErrArgument, "TotalLength must be at least %d, the longest length, got %d", total, b.totalLength), nil
		}
		total = b.totalLength
	}
	batch := 1
	if b.batchFirst {
		batch = 0
	}
	y := tidy(func(*tensor.Scope) *tensor.Tensor {
		out, err := tensor.CallUnchecked("aten::_pad_packed_sequence", p.Data, vector(p.BatchSizes), b.batchFirst, b.paddingValue, total)
		if err != nil {
			return tensor.Failed(err)
		}
		return reorder(out[0].(*tensor.Tensor), batch, p.UnsortedIndices)
	})
	lengths := p.lengths()
	if len(p.UnsortedIndices) != 0 {
		sorted := lengths
		lengths = make([]int, len(sorted))
		for i, at := range p.UnsortedIndices {
			lengths[i] = sorted[at]
		}
	}
	return y, lengths
}

// PadSequence stacks sequences (L, *) to (T, N, *), or (N, T, *) with BatchFirst, where T is the longest L. Options:
// BatchFirst, PaddingValue (0 by default), PadLeft. PyTorch: torch.nn.utils.rnn.pad_sequence.
func PadSequence(sequences []*tensor.Tensor, opts ...Option) *tensor.Tensor {
	const op = "PadSequence"
	b := build(op, opts, "BatchFirst", "PaddingValue", "PadLeft")
	for _, s := range sequences {
		b.note(refuse.Unusable(op, "", s))
		if b.err == nil && s.Dim() == 0 {
			b.fail("a sequence has no dimension")
		}
	}
	if len(sequences) == 0 {
		b.fail("at least one sequence is needed")
	}
	if b.err != nil {
		return tensor.Failed(b.err)
	}
	side := "right"
	if b.padLeft {
		side = "left"
	}
	return one(op, "aten::pad_sequence", sequences, b.batchFirst, b.paddingValue, side)
}

// UnpadSequence splits padded sequences (T, N, *), or (N, T, *) with BatchFirst, into N sequences of the given lengths,
// which are views. PyTorch: torch.nn.utils.rnn.unpad_sequence.
func UnpadSequence(x *tensor.Tensor, lengths []int, opts ...Option) ([]*tensor.Tensor, error) {
	const op = "UnpadSequence"
	b := build(op, opts, "BatchFirst")
	b.note(refuse.Unusable(op, "", x))
	if b.err == nil && x.Dim() < 2 {
		b.fail("x must have at least 2 dimensions, got shape %v", x.Shape())
	}
	if b.err != nil {
		return nil, b.err
	}
	time, batch := 0, 1
	if b.batchFirst {
		time, batch = 1, 0
	}
	if len(lengths) != x.Size(batch) {
		return nil, refuse.Error(op, tensor.ErrArgument, "%d lengths for %d sequences", len(lengths), x.Size(batch))
	}
	for _, n := range lengths {
		if n < 0 || n > x.Size(time) {
			return nil, refuse.Error(op, tensor.ErrArgument, "a length must be between 0 and %d, got %v", x.Size(time), lengths)
		}
	}
	return tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		out := make([]*tensor.Tensor, len(lengths))
		for i, n := range lengths {
			out[i] = x.Select(batch, i).Narrow(0, 0, n)
			if err := out[i].Err(); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// PackSequence packs sequences (L, *) of different lengths. PyTorch: torch.nn.utils.rnn.pack_sequence.
func PackSequence(sequences []*tensor.Tensor) *PackedSequence {
	if len(sequences) == 0 {
		return failedPack(refuse.Error("PackSequence", tensor.ErrArgument, "at least one sequence is needed"))
	}
	x := PadSequence(sequences)
	if err := x.Err(); err != nil {
		return failedPack(err)
	}
	defer x.Release()
	lengths := make([]int, len(sequences))
	for i, s := range sequences {
		lengths[i] = s.Size(0)
	}
	return PackPaddedSequence(x, lengths)
}

// UnpackSequence returns the sequences of p in the order that they had before packing. PyTorch:
// torch.nn.utils.rnn.unpack_sequence.
func UnpackSequence(p *PackedSequence) ([]*tensor.Tensor, error) {
	x, lengths := PadPackedSequence(p, BatchFirst())
	if err := x.Err(); err != nil {
		return nil, err
	}
	defer x.Release()
	return UnpadSequence(x, lengths, BatchFirst())
}

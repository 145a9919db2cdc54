package nn

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// table is the common form of Embedding and EmbeddingBag.
type table struct {
	Weight            *tensor.Tensor
	MaxNorm, NormType float64 // rows that are looked up are scaled to at most MaxNorm in place; 0 for no limit
	ByFrequency       bool    // gradients are divided by how often a row occurs in the batch
	Sparse            bool    // the gradient of Weight is sparse
	LastOffset        bool    // the offsets of an EmbeddingBag end with the number of ids
	Reduce            string  // how an EmbeddingBag reduces: "mean", "sum" or "max"
	padded            bool
	pad               int
	err               error
}

func newTable(op string, count, width int, weight *tensor.Tensor, opts []Option, own ...string) *table {
	known := append(own, "PaddingIdx", "MaxNorm", "NormType", "ScaleGradByFreq", "SparseGrad")
	if weight == nil {
		known = append(known, "DType", "Device")
	}
	b := build(op, opts, known...)
	b.features("count", count, "width", width)
	pad := b.paddingIdx
	if b.hasPaddingIdx && b.err == nil {
		if pad < -count || pad >= count {
			b.fail("PaddingIdx %d is outside %d rows", pad, count)
		} else if pad < 0 {
			pad += count
		}
	}
	if b.maxNorm < 0 || math.IsNaN(b.maxNorm) || !(b.normType > 0) {
		b.fail("MaxNorm must be at least 0 and NormType positive, got %v and %v", b.maxNorm, b.normType)
	}
	if !slices.Contains([]string{"mean", "sum", "max"}, b.bagMode) {
		b.fail("BagMode must be mean, sum or max, got %q", b.bagMode)
	}
	if b.bagMode == "max" && (b.byFrequency || b.sparse) {
		b.fail("BagMode max excludes ScaleGradByFreq and SparseGrad")
	}
	e := &table{padded: b.hasPaddingIdx, pad: pad, MaxNorm: b.maxNorm, NormType: b.normType, ByFrequency: b.byFrequency, Sparse: b.sparse, LastOffset: b.lastOffset,
		Reduce: b.bagMode}
	if weight != nil {
		e.Weight = weight
	} else {
		e.Weight = b.parameter([]int{count, width}, func(t *tensor.Tensor) *tensor.Tensor {
			if t = t.Normal_(0, 1); !e.padded || t.Err() != nil {
				return t
			}
			row := t.Select(0, pad)
			defer row.Release()
			if zeroed := row.Zero_(); zeroed.Err() != nil {
				return zeroed
			}
			return t
		})
	}
	if err := b.done(); err != nil {
		return &table{err: err}
	}
	return e
}

func (e *table) failure(op string) error {
	if e == nil {
		return nilModule(op)
	}
	return e.err
}

// renorm scales the rows at ids to the norm MaxNorm, if it is set.
func (e *table) renorm(op string, ids *tensor.Tensor) error {
	if e.MaxNorm == 0 {
		return nil
	}
	rows := e.Weight.Detach()
	defer rows.Release()
	y := one(op, "aten::embedding_renorm_", rows, ids, e.MaxNorm, e.NormType)
	defer y.Release()
	return y.Err()
}

func fromPretrained(op string, weight *tensor.Tensor, freeze bool, opts []Option, own ...string) *table {
	if err := refuse.Unusable(op, "", weight); err != nil {
		return &table{err: err}
	}
	if weight.Dim() != 2 {
		return &table{err: refuse.Error(op, tensor.ErrArgument, "the weight must be (count, width), got shape %v", weight.Shape())}
	}
	p := NewParameter(weight)
	if p.Err() == nil && freeze {
		p.RequiresGrad_(false)
	}
	if err := p.Err(); err != nil {
		return &table{err: err}
	}
	e := newTable(op, p.Size(0), p.Size(1), p, opts, own...)
	if e.err != nil {
		p.Release()
	}
	return e
}

// Embedding looks up rows of Weight (count, width). Ids of shape (*), int64 or int32, give (*, width). Its further fields are
// MaxNorm, NormType, ByFrequency and Sparse. PyTorch: torch.nn.Embedding.
type Embedding table

// NewEmbedding returns an Embedding of count rows of the given width, drawn from the standard normal distribution.
// Options: PaddingIdx, MaxNorm, NormType, ScaleGradByFreq, SparseGrad, DType, Device.
func NewEmbedding(count, width int, opts ...Option) *Embedding {
	return (*Embedding)(newTable("NewEmbedding", count, width, nil, opts))
}

// NewEmbeddingFromPretrained returns an Embedding of weight (count, width), whose storage it shares. With freeze it is not
// trained. Options: those of NewEmbedding without DType and Device. PyTorch: torch.nn.Embedding.from_pretrained.
func NewEmbeddingFromPretrained(weight *tensor.Tensor, freeze bool, opts ...Option) *Embedding {
	return (*Embedding)(fromPretrained("NewEmbeddingFromPretrained", weight, freeze, opts))
}

// Err returns the error of the constructor that made e, or nil.
func (e *Embedding) Err() error { return (*table)(e).failure("Embedding") }

// PaddingIdx returns the row that gets no gradient, or -1 if there is none. PyTorch: Embedding.padding_idx.
func (e *Embedding) PaddingIdx() int {
	if e == nil || !e.padded {
		return -1
	}
	return e.pad
}

// Forward returns the rows of Weight at ids.
func (e *Embedding) Forward(ids *tensor.Tensor) *tensor.Tensor {
	if err := e.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := badIDs("Embedding", ids); bad != nil {
		return bad
	}
	if e.MaxNorm == 0 && !e.ByFrequency && !e.Sparse {
		if e.padded {
			return tensor.Embedding(e.Weight, ids, tensor.PaddingIdx(e.pad))
		}
		return tensor.Embedding(e.Weight, ids)
	}
	if bad := unusable("Embedding", e.Weight); bad != nil {
		return bad
	}
	if err := (*table)(e).renorm("Embedding", ids); err != nil {
		return tensor.Failed(err)
	}
	pad := -1
	if e.padded {
		pad = e.pad
	}
	return one("Embedding", "aten::embedding", e.Weight, ids, pad, e.ByFrequency, e.Sparse)
}

// EmbeddingBag looks up rows of Weight (count, width) and reduces each bag of them to their mean, sum or maximum. Its
// further fields are Reduce, MaxNorm, NormType, ByFrequency, Sparse and LastOffset. PyTorch: torch.nn.EmbeddingBag.
type EmbeddingBag table

// NewEmbeddingBag returns an EmbeddingBag of count rows of the given width, drawn from the standard normal distribution.
// Options: BagMode ("mean" by default, "sum" or "max"), IncludeLastOffset, PaddingIdx, MaxNorm, NormType,
// ScaleGradByFreq, SparseGrad, DType, Device.
func NewEmbeddingBag(count, width int, opts ...Option) *EmbeddingBag {
	return (*EmbeddingBag)(newTable("NewEmbeddingBag", count, width, nil, opts, "BagMode", "IncludeLastOffset"))
}

// NewEmbeddingBagFromPretrained returns an EmbeddingBag of weight (count, width), whose storage it shares. With freeze it
// is not trained. Options: those of NewEmbeddingBag without DType and Device. PyTorch:
// torch.nn.EmbeddingBag.from_pretrained.
func NewEmbeddingBagFromPretrained(weight *tensor.Tensor, freeze bool, opts ...Option) *EmbeddingBag {
	return (*EmbeddingBag)(fromPretrained("NewEmbeddingBagFromPretrained", weight, freeze, opts, "BagMode", "IncludeLastOffset"))
}

// Err returns the error of the constructor that made e, or nil.
func (e *EmbeddingBag) Err() error { return (*table)(e).failure("EmbeddingBag") }

// Forward reduces each row of ids (N, B), int64 or int32, and returns (N, width).
func (e *EmbeddingBag) Forward(ids *tensor.Tensor) *tensor.Tensor {
	return e.ForwardBags(ids, nil, nil)
}

// ForwardBags reduces bags of ids, int64 or int32, and returns one row for each. Bag i of ids (L) begins at
// offsets[i] and ends at the next offset or the end of ids. If offsets is nil, ids (N, B) are N bags. weights, if not nil,
// has the shape of ids and multiplies the rows; BagMode is then "sum" (per_sample_weights=).
func (e *EmbeddingBag) ForwardBags(ids, offsets, weights *tensor.Tensor) *tensor.Tensor {
	const op = "EmbeddingBag"
	if err := e.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, ids, e.Weight); bad != nil {
		return bad
	}
	for _, t := range tensorsOf(offsets, weights) {
		if bad := unusable(op, t); bad != nil {
			return bad
		}
	}
	shape := ids.Shape()
	if len(shape) != 1 && len(shape) != 2 || (len(shape) == 1) != (offsets != nil) {
		return refuse.Tensor(op, tensor.ErrArgument, "ids must be (L) with offsets, or (N, B) without, got shape %v", shape)
	}
	if bad := badIDs(op, ids); bad != nil {
		return bad
	}
	if weights != nil && (!slices.Equal(weights.Shape(), shape) || e.Reduce != "sum") {
		return refuse.Tensor(op, tensor.ErrArgument, "weights must have the shape %v of ids, and BagMode must be sum, got %v and %q", shape, weights.Shape(), e.Reduce)
	}
	mode := slices.Index([]string{"sum", "mean", "max"}, e.Reduce)
	if mode < 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "Reduce must be mean, sum or max, got %q", e.Reduce)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		last := e.LastOffset
		if offsets == nil {
			if shape[1] == 0 {
				return tensor.Zeros([]int{shape[0], e.Weight.Size(-1)}, e.Weight.DType(), e.Weight.Device())
			}
			offsets, last = tensor.Arange(0, ids.Numel(), ids.DType(), ids.Device(), tensor.Step(shape[1])), false
			ids = ids.Reshape(-1)
			if weights != nil {
				weights = weights.Reshape(-1)
			}
		}
		if err := (*table)(e).renorm(op, ids); err != nil {
			return tensor.Failed(err)
		}
		var pad any
		if e.padded {
			pad = e.pad
		}
		return one(op, "aten::embedding_bag.padding_idx", e.Weight, ids, offsets, e.ByFrequency, mode, e.Sparse, weights, last, pad)
	})
}

// badIDs returns a failed tensor if ids cannot be the ids of an embedding, and nil if they can.
func badIDs(op string, ids *tensor.Tensor) *tensor.Tensor {
	if bad := unusable(op, ids); bad != nil {
		return bad
	}
	if d := ids.DType(); d != tensor.Int64 && d != tensor.Int32 {
		return refuse.Tensor(op, tensor.ErrArgument, "ids must be int64 or int32, got %v", d)
	}
	return nil
}

// tensorsOf returns those of ts that are not nil.
func tensorsOf(ts ...*tensor.Tensor) []*tensor.Tensor {
	return slices.DeleteFunc(ts, func(t *tensor.Tensor) bool { return t == nil })
}

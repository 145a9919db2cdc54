package nn

import (
	"math"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// CausalSelfAttention is the self-attention of a GPT block. QKV computes the queries, keys and values of x (N, T, C) in
// one product; each position attends to itself and earlier positions; Proj combines the results of the heads. It uses
// torch.nn.functional.scaled_dot_product_attention.
type CausalSelfAttention struct {
	Mode
	QKV   *Linear // C to 3C
	Proj  *Linear // C to C
	Heads int
	Drop  float64 // dropout probability of the attention weights in training
	err   error
}

// NewCausalSelfAttention returns a CausalSelfAttention of the given width, which must be a multiple of heads. Options:
// NoBias, DropoutP, DType, Device.
func NewCausalSelfAttention(width, heads int, opts ...Option) *CausalSelfAttention {
	b := build("NewCausalSelfAttention", opts, "NoBias", "DropoutP", "DType", "Device")
	b.heads(width, heads)
	a := &CausalSelfAttention{Heads: heads, Drop: b.dropout, QKV: b.linear(width, 3*width), Proj: b.linear(width, width)}
	if err := b.done(); err != nil {
		return &CausalSelfAttention{err: err}
	}
	return a
}

// linear makes a projection with the constructor's options.
func (b *builder) linear(in, out int) *Linear {
	if b.err != nil {
		return nil
	}
	opts := []Option{DType(b.dtype), Device(b.device)}
	if b.noBias {
		opts = append(opts, NoBias())
	}
	l := NewLinear(in, out, opts...)
	b.part(l)
	return l
}

func (b *builder) heads(width, heads int) {
	b.sizes("width", width, "heads", heads)
	if b.err == nil && width%heads != 0 {
		b.fail("a width of %d cannot be split into %d heads", width, heads)
	}
	b.probability("DropoutP", b.dropout)
}

// Err returns the error of the constructor that made a, or nil.
func (a *CausalSelfAttention) Err() error {
	if a == nil {
		return nilModule("CausalSelfAttention")
	}
	return a.err
}

// Forward applies self-attention to x (N, T, C) and returns the same shape.
func (a *CausalSelfAttention) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "CausalSelfAttention"
	if err := a.Err(); err != nil {
		return tensor.Failed(err)
	}
	if a.QKV == nil || a.Proj == nil {
		return noModule(op)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	return Pipe(x, internal(func(x *tensor.Tensor) *tensor.Tensor {
		return tidy(func(s *tensor.Scope) *tensor.Tensor {
			qkv := a.QKV.Forward(x)
			return CausalAttention(qkv, a.Heads, a.dropout()...)
		})
	}), a.Proj)
}

func (a *CausalSelfAttention) dropout() []tensor.Option {
	if a.Drop > 0 && a.Training() {
		return []tensor.Option{tensor.DropoutP(a.Drop)}
	}
	return nil
}

// CausalAttention applies causal attention to fused queries, keys and values (N, T, 3C), three parts of C one after the
// other, split into heads. Each position attends to itself and earlier positions. The result is (N, T, C). The options
// are those of tensor.ScaledDotProductAttention.
func CausalAttention(qkv *tensor.Tensor, heads int, opts ...tensor.Option) *tensor.Tensor {
	const op = "CausalAttention"
	if bad := unusable(op, qkv); bad != nil {
		return bad
	}
	shape := qkv.Shape()
	if len(shape) != 3 || heads < 1 || shape[2]%3 != 0 || shape[2]/3%heads != 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "%v must be (N, T, 3C) with C divisible by %d heads", shape, heads)
	}
	return tidy(func(s *tensor.Scope) *tensor.Tensor {
		parts, err := qkv.Split(shape[2]/3, tensor.Dim(2))
		if err != nil {
			return tensor.Failed(err)
		}
		return attend(parts, heads, false, append([]tensor.Option{tensor.IsCausal(true)}, opts...))
	})
}

// attend applies attention to queries, keys and values (N, T, C). It returns (N, T, C), or (T, N, C) if sequenceFirst.
// Intermediate results belong to the current scope.
func attend(qkv []*tensor.Tensor, heads int, sequenceFirst bool, opts []tensor.Option) *tensor.Tensor {
	var split [3]*tensor.Tensor
	for i, p := range qkv {
		shape := p.Shape()
		if len(shape) != 3 {
			return refuse.Tensor("attention", tensor.ErrArgument, "%v must be (N, T, C)", shape)
		}
		// This is a view: the projection's result is not copied.
		split[i] = p.View(shape[0], shape[1], heads, shape[2]/heads).Transpose(1, 2)
	}
	y := tensor.ScaledDotProductAttention(split[0], split[1], split[2], opts...)
	shape := y.Shape() // (N, heads, T, C/heads)
	if len(shape) != 4 {
		return y
	}
	if sequenceFirst {
		return y.Permute(2, 0, 1, 3).Reshape(shape[2], shape[0], shape[1]*shape[3])
	}
	return y.Transpose(1, 2).Reshape(shape[0], shape[2], shape[1]*shape[3])
}

// unusable returns a failed tensor if x cannot be an operand, and nil otherwise.
func unusable(op string, x *tensor.Tensor) *tensor.Tensor {
	if err := refuse.Unusable(op, "", x); err != nil {
		return tensor.Failed(err)
	}
	return nil
}

// MultiheadAttention is multi-head attention. InProjWeight (3E, E) and InProjBias (3E) project queries, keys and
// values; OutProj projects the result. Its state has PyTorch's names: in_proj_weight, in_proj_bias, out_proj.weight,
// out_proj.bias. PyTorch: torch.nn.MultiheadAttention with need_weights=False.
type MultiheadAttention struct {
	Mode
	InProjWeight, InProjBias *tensor.Tensor
	OutProj                  *Linear
	Heads                    int
	Drop                     float64 // dropout probability of the attention weights in training
	batchFirst, causal       bool
	err                      error
}

// NewMultiheadAttention returns a MultiheadAttention of the given width E, which must be a multiple of heads,
// initialized as in PyTorch. Options: BatchFirst, Causal, NoBias, DropoutP, DType, Device.
func NewMultiheadAttention(width, heads int, opts ...Option) *MultiheadAttention {
	b := build("NewMultiheadAttention", opts, "BatchFirst", "Causal", "NoBias", "DropoutP", "DType", "Device")
	b.heads(width, heads)
	a := &MultiheadAttention{Heads: heads, Drop: b.dropout, batchFirst: b.batchFirst, causal: b.causal}
	// PyTorch initializes the output projection first.
	a.OutProj = b.linear(width, width)
	a.InProjWeight = b.parameter([]int{3 * width, width}, uniform(xavier(3*width, width)))
	if !b.noBias {
		a.InProjBias = b.parameter([]int{3 * width}, fillWith(0))
		if b.err == nil {
			b.note(Constant_(a.OutProj.Bias, 0).Err())
		}
	}
	if err := b.done(); err != nil {
		return &MultiheadAttention{err: err}
	}
	return a
}

// Err returns the error of the constructor that made a, or nil.
func (a *MultiheadAttention) Err() error {
	if a == nil {
		return nilModule("MultiheadAttention")
	}
	return a.err
}

// xavier returns the bound of xavier_uniform_ with gain 1. It computes in the order of torch.nn.init.
func xavier(fanOut, fanIn int) float64 {
	std := math.Sqrt(2.0 / float64(fanIn+fanOut))
	return math.Sqrt(3.0) * std
}

// Forward applies self-attention to x: (L, N, E), or (N, L, E) with BatchFirst, or (L, E) without a batch. It returns
// the same shape.
func (a *MultiheadAttention) Forward(x *tensor.Tensor) *tensor.Tensor { return a.Attend(x, x, x) }

// Attend applies attention with query (L, N, E) to key and value (S, N, E). With BatchFirst the shapes are (N, L, E)
// and (N, S, E), and without a batch (L, E) and (S, E). It returns the shape of query, with PyTorch's strides. The
// options are those of tensor.ScaledDotProductAttention, for example AttnMask.
func (a *MultiheadAttention) Attend(query, key, value *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor {
	const op = "MultiheadAttention"
	if err := a.Err(); err != nil {
		return tensor.Failed(err)
	}
	if a.InProjWeight == nil || a.OutProj == nil {
		return noModule(op)
	}
	in := []*tensor.Tensor{query, key, value}
	dims := 0
	for i, x := range in {
		if bad := unusable(op, x); bad != nil {
			return bad
		}
		shape := x.Shape()
		if i == 0 {
			dims = len(shape)
		}
		if len(shape) != dims || dims < 2 || dims > 3 || a.Heads < 1 || shape[dims-1]%a.Heads != 0 {
			return refuse.Tensor(op, tensor.ErrArgument, "query, key and value must all have 3 dimensions or all 2, the last divisible by %[2]d heads, got %[1]v", shape, a.Heads)
		}
	}
	sequenceFirst := !a.fast(in, opts)
	if a.causal {
		opts = append([]tensor.Option{tensor.IsCausal(true)}, opts...)
	}
	if a.Drop > 0 && a.Training() {
		opts = append([]tensor.Option{tensor.DropoutP(a.Drop)}, opts...)
	}
	return Pipe(query, internal(func(*tensor.Tensor) *tensor.Tensor {
		return tidy(func(*tensor.Scope) *tensor.Tensor {
			projected, err := a.project(in, dims == 2)
			if err != nil {
				return tensor.Failed(err)
			}
			return attend(projected, a.Heads, sequenceFirst, opts)
		})
	}), a.OutProj, internal(func(y *tensor.Tensor) *tensor.Tensor {
		switch {
		case dims == 2:
			return y.SqueezeDim(1)
		case a.batchFirst && sequenceFirst:
			return y.Transpose(0, 1)
		}
		return y
	}))
}

// fast reports whether PyTorch would take its fast path for inference, whose result is laid out with the batch first.
func (a *MultiheadAttention) fast(in []*tensor.Tensor, opts []tensor.Option) bool {
	if !a.batchFirst || a.Training() || a.causal || len(opts) != 0 || a.InProjBias == nil || a.OutProj.Bias == nil || a.Heads%2 != 0 ||
		in[0] != in[1] || in[1] != in[2] || in[0].Dim() != 3 {
		return false
	}
	if !tensor.GradEnabled() {
		return true
	}
	for _, t := range []*tensor.Tensor{in[0], a.InProjWeight, a.InProjBias, a.OutProj.Weight, a.OutProj.Bias} {
		if t.RequiresGrad() {
			return false
		}
	}
	return true
}

// project returns queries, keys and values (N, L, E).
func (a *MultiheadAttention) project(in []*tensor.Tensor, unbatched bool) ([]*tensor.Tensor, error) {
	batched := make([]*tensor.Tensor, len(in))
	for i, x := range in {
		switch {
		case unbatched:
			batched[i] = x.Unsqueeze(0)
		case a.batchFirst:
			batched[i] = x
		default:
			batched[i] = x.Transpose(0, 1)
		}
	}
	if in[0] == in[1] && in[1] == in[2] {
		return batched[0].Linear(a.InProjWeight, a.InProjBias).Chunk(3, tensor.Dim(-1))
	}
	weights, err := a.InProjWeight.Chunk(3)
	if err != nil {
		return nil, err
	}
	biases := make([]*tensor.Tensor, 3)
	if a.InProjBias != nil {
		if biases, err = a.InProjBias.Chunk(3); err != nil {
			return nil, err
		}
	}
	if len(weights) != 3 || len(biases) != 3 {
		return nil, refuse.Error("MultiheadAttention", tensor.ErrArgument, "InProjWeight and InProjBias must have 3E rows")
	}
	for i, x := range batched {
		batched[i] = x.Linear(weights[i], biases[i])
	}
	return batched, nil
}

package nn

import (
	"cmp"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// CausalSelfAttention is the self-attention of a GPT block. QKV computes the queries, keys and values of x (N, T, C) in
// one product; each position attends to itself and earlier positions; Proj combines the results of the heads. It uses
// torch.nn.functional.scaled_dot_product_attention.
type CausalSelfAttention struct {
	Mode
	QKV   Layer // C to 3C; a Linear at first
	Proj  Layer // C to C; a Linear at first
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
	return Pipe(x, a.QKV, internal(func(qkv *tensor.Tensor) *tensor.Tensor {
		return CausalAttention(qkv, a.Heads, a.dropout()...)
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

// MultiheadAttention is multi-head attention of width E. InProjWeight (3E, E) projects queries, keys and values, or with
// KDim or VDim QProjWeight (E, E), KProjWeight (E, kdim) and VProjWeight (E, vdim) do; InProjBias is (3E). OutProj projects
// the result. BiasK and BiasV (1, 1, E) are appended to the keys and values (AddBiasKV). Its state has PyTorch's names.
//
// With BatchFirst its results and gradients differ from those of batch_first=True in rounding: it projects its inputs as
// they are, while PyTorch transposes them, which costs a copy, or runs another kernel for inference without gradients.
// PyTorch: torch.nn.MultiheadAttention.
type MultiheadAttention struct {
	Mode
	InProjWeight                          *tensor.Tensor
	QProjWeight, KProjWeight, VProjWeight *tensor.Tensor
	InProjBias                            *tensor.Tensor
	BiasK, BiasV                          *tensor.Tensor
	OutProj                               *Linear
	Heads                                 int
	Drop                                  float64 // dropout probability of the attention weights in training
	batchFirst, causal, zero              bool
	err                                   error
}

// NewMultiheadAttention returns a MultiheadAttention of the given width E, which must be a multiple of heads,
// initialized as in PyTorch. Options: BatchFirst, Causal, NoBias, DropoutP, KDim, VDim, AddBiasKV, AddZeroAttn, DType,
// Device.
func NewMultiheadAttention(width, heads int, opts ...Option) *MultiheadAttention {
	b := build("NewMultiheadAttention", opts, "BatchFirst", "Causal", "NoBias", "DropoutP", "KDim", "VDim", "AddBiasKV", "AddZeroAttn", "DType", "Device")
	b.heads(width, heads)
	a := &MultiheadAttention{Heads: heads, Drop: b.dropout, batchFirst: b.batchFirst, causal: b.causal, zero: b.zeroAttention}
	// PyTorch initializes the output projection first.
	a.OutProj = b.linear(width, width)
	kdim, vdim := cmp.Or(b.keyWidth, width), cmp.Or(b.valueWidth, width)
	if kdim == width && vdim == width {
		a.InProjWeight = b.parameter([]int{3 * width, width}, uniform(xavier(3*width, width)))
	} else {
		b.sizes("KDim", kdim, "VDim", vdim)
		a.QProjWeight = b.parameter([]int{width, width}, uniform(xavier(width, width)))
		a.KProjWeight = b.parameter([]int{width, kdim}, uniform(xavier(width, kdim)))
		a.VProjWeight = b.parameter([]int{width, vdim}, uniform(xavier(width, vdim)))
	}
	if !b.noBias {
		a.InProjBias = b.parameter([]int{3 * width}, fillWith(0))
		if b.err == nil {
			b.note(Constant_(a.OutProj.Bias, 0).Err())
		}
	}
	if b.biasKV {
		normal := func(t *tensor.Tensor) *tensor.Tensor { return XavierNormal_(t, 1) }
		a.BiasK = b.parameter([]int{1, 1, width}, normal)
		a.BiasV = b.parameter([]int{1, 1, width}, normal)
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

// Masks says which positions attention leaves out. A mask of dtype bool is true where a position is left out, which is
// the opposite of tensor.AttnMask; a floating-point mask is added to the attention scores. A position is left out if any
// of the masks says so; PyTorch, where is_causal= is a hint, applies only one of attn_mask= and is_causal=.
type Masks struct {
	Attn       *tensor.Tensor // (L, S), or (N*heads, L, S) (attn_mask=)
	KeyPadding *tensor.Tensor // (N, S), or (S) without a batch (key_padding_mask=)
	Causal     bool           // query i attends to the keys 0 to i only, also where L and S differ (is_causal=)
}

// Forward applies self-attention to x: (L, N, E), or (N, L, E) with BatchFirst, or (L, E) without a batch. It returns
// the same shape.
func (a *MultiheadAttention) Forward(x *tensor.Tensor) *tensor.Tensor {
	return a.Attend(x, x, x, Masks{})
}

// Attend applies attention with query (L, N, E) to key (S, N, E or kdim) and value (S, N, E or vdim). With BatchFirst the
// batch comes first, and without a batch the shapes are (L, E) and (S, E). It returns the shape of query, with PyTorch's
// strides. PyTorch: need_weights=False.
func (a *MultiheadAttention) Attend(query, key, value *tensor.Tensor, masks Masks) *tensor.Tensor {
	in := []*tensor.Tensor{query, key, value}
	dims, err := a.ready(in, masks)
	if err != nil {
		return tensor.Failed(err)
	}
	masks.Causal = masks.Causal || a.causal
	if masks.Attn != nil || masks.KeyPadding != nil || a.InProjWeight == nil || a.BiasK != nil || a.zero {
		y, _ := a.attend(in, masks, false, false)
		return y
	}
	sequenceFirst := !a.fast(in, masks)
	var opts []tensor.Option
	if masks.Causal {
		opts = append(opts, tensor.IsCausal(true))
	}
	if a.Drop > 0 && a.Training() {
		opts = append(opts, tensor.DropoutP(a.Drop))
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

// AttendWeights is Attend, and also returns the attention weights: (N, L, S) averaged over the heads, or (N, heads, L, S)
// if perHead, without N if there is no batch. PyTorch: need_weights=True, average_attn_weights=!perHead.
func (a *MultiheadAttention) AttendWeights(query, key, value *tensor.Tensor, masks Masks, perHead bool) (y, weights *tensor.Tensor) {
	in := []*tensor.Tensor{query, key, value}
	if _, err := a.ready(in, masks); err != nil {
		return broken(err)
	}
	masks.Causal = masks.Causal || a.causal
	return a.attend(in, masks, true, perHead)
}

// ready checks the arguments and returns the number of their dimensions.
func (a *MultiheadAttention) ready(in []*tensor.Tensor, masks Masks) (int, error) {
	const op = "MultiheadAttention"
	if err := a.Err(); err != nil {
		return 0, err
	}
	if a.OutProj == nil || a.InProjWeight == nil && (a.QProjWeight == nil || a.KProjWeight == nil || a.VProjWeight == nil) || (a.BiasK == nil) != (a.BiasV == nil) {
		return 0, nilModule(op)
	}
	dims := 0
	shapes := make([][]int, len(in))
	for i, x := range in {
		if err := refuse.Unusable(op, "", x); err != nil {
			return 0, err
		}
		shape := x.Shape()
		shapes[i] = shape
		if i == 0 {
			dims = len(shape)
		}
		if len(shape) != dims || dims < 2 || dims > 3 || a.Heads < 1 || i == 0 && shape[dims-1]%a.Heads != 0 {
			return 0, refuse.Error(op, tensor.ErrArgument, "query, key and value must all have 3 dimensions or all 2, and the last of query must be divisible by %[2]d heads, got %[1]v", shape, a.Heads)
		}
	}
	q, k, v := shapes[0], shapes[1], shapes[2]
	if !slices.Equal(k[:dims-1], v[:dims-1]) {
		return 0, refuse.Error(op, tensor.ErrArgument, "key and value must have the same length and batch, got the shapes %v and %v", k, v)
	}
	batch := 1
	if a.batchFirst {
		batch = 0
	}
	if dims == 3 && q[batch] != k[batch] {
		return 0, refuse.Error(op, tensor.ErrArgument, "query and key must have the same batch, got the shapes %v and %v", q, k)
	}
	for i, m := range []*tensor.Tensor{masks.Attn, masks.KeyPadding} {
		if m == nil {
			continue
		}
		if err := refuse.Unusable(op, []string{"Attn", "KeyPadding"}[i], m); err != nil {
			return 0, err
		}
		if d := m.DType(); d != tensor.Bool && !d.IsFloat() {
			return 0, refuse.Error(op, tensor.ErrArgument, "a mask must be bool or floating-point, got %v", d)
		}
	}
	return dims, nil
}

// fast reports whether PyTorch would take its fast path for inference, whose result is laid out with the batch first.
func (a *MultiheadAttention) fast(in []*tensor.Tensor, masks Masks) bool {
	if !a.batchFirst || a.Training() || masks.Causal || a.InProjWeight == nil || a.InProjBias == nil || a.OutProj.Bias == nil || a.Heads%2 != 0 ||
		a.BiasK != nil || a.zero || in[0] != in[1] || in[1] != in[2] || in[0].Dim() != 3 {
		return false
	}
	for _, m := range []*tensor.Tensor{masks.Attn, masks.KeyPadding} {
		if m != nil && m.DType() != tensor.Bool {
			return false
		}
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

// project returns queries, keys and values (N, L, E). Like PyTorch it projects (L, N, E) without transposing it first,
// so that Linear does not copy it and adds the bias within the product, and transposes the result. PyTorch also
// transposes BatchFirst's (N, L, E) first, which costs a copy; here the last bits may then differ.
func (a *MultiheadAttention) project(in []*tensor.Tensor, unbatched bool) ([]*tensor.Tensor, error) {
	parts, err := a.linears(in)
	if err != nil {
		return nil, err
	}
	for i, p := range parts {
		switch {
		case unbatched:
			parts[i] = p.Unsqueeze(0)
		case !a.batchFirst:
			parts[i] = p.Transpose(0, 1)
		}
	}
	return parts, nil
}

// linears returns queries, keys and values in the layout of in. Those computed from one tensor are one product, whose
// gradient is rounded once.
func (a *MultiheadAttention) linears(in []*tensor.Tensor) ([]*tensor.Tensor, error) {
	for _, t := range []*tensor.Tensor{a.InProjWeight, a.InProjBias} {
		if t != nil && t.Size(0)%3 != 0 {
			return nil, refuse.Error("MultiheadAttention", tensor.ErrArgument, "InProjWeight and InProjBias must have 3E rows")
		}
	}
	q, k, v := in[0], in[1], in[2]
	shared := a.InProjWeight != nil && k == v
	if shared && q == k {
		return q.Linear(a.InProjWeight, a.InProjBias).Chunk(3, tensor.Dim(-1))
	}
	// split returns the rows of t for queries, keys and values, those for keys and values as one tensor if shared.
	split := func(t *tensor.Tensor) ([]*tensor.Tensor, error) {
		if n := t.Size(0) / 3; shared {
			return t.SplitWithSizes([]int{n, 2 * n})
		}
		return t.Chunk(3)
	}
	weights, biases := []*tensor.Tensor{a.QProjWeight, a.KProjWeight, a.VProjWeight}, make([]*tensor.Tensor, 3)
	var err error
	if a.InProjWeight != nil {
		if weights, err = split(a.InProjWeight); err != nil {
			return nil, err
		}
	}
	if a.InProjBias != nil {
		if biases, err = split(a.InProjBias); err != nil {
			return nil, err
		}
	}
	if !shared {
		return []*tensor.Tensor{q.Linear(weights[0], biases[0]), k.Linear(weights[1], biases[1]), v.Linear(weights[2], biases[2])}, nil
	}
	both, err := k.Linear(weights[1], biases[1]).Chunk(2, tensor.Dim(-1))
	if err != nil {
		return nil, err
	}
	return append([]*tensor.Tensor{q.Linear(weights[0], biases[0])}, both...), nil
}

// additive returns a mask as a floating-point mask, which is added to scores.
func additive(m, like *tensor.Tensor) *tensor.Tensor {
	if m == nil || m.DType() != tensor.Bool {
		return m
	}
	return tensor.Zeros(m.Shape(), like.DType(), m.Device()).MaskedFill(m, math.Inf(-1))
}

// GenerateSquareSubsequentMask returns the causal mask (n, n) to add to scores: minus infinity above the diagonal and 0
// elsewhere. Options: a DType, a Device. PyTorch: torch.nn.Transformer.generate_square_subsequent_mask.
func GenerateSquareSubsequentMask(n int, opts ...tensor.Option) *tensor.Tensor {
	if n < 0 || n > 1<<20 {
		return refuse.Tensor("GenerateSquareSubsequentMask", tensor.ErrArgument, "the size must be from 0 to 2^20, got %d", n)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		return tensor.Full([]int{n, n}, math.Inf(-1), append([]tensor.Option{tensor.DefaultDType()}, opts...)...).Triu(tensor.Diagonal(1))
	})
}

// attend follows torch.nn.functional.multi_head_attention_forward for all options.
func (a *MultiheadAttention) attend(in []*tensor.Tensor, masks Masks, needWeights, perHead bool) (y, weights *tensor.Tensor) {
	out, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		y, weights := a.attendAll(in, masks, needWeights, perHead)
		if err := y.Err(); err != nil {
			return nil, err
		}
		if weights == nil {
			return []*tensor.Tensor{y}, nil
		}
		return []*tensor.Tensor{y, weights}, weights.Err()
	})
	if err != nil {
		return broken(err)
	}
	if !needWeights {
		return out[0], nil
	}
	return out[0], out[1]
}

func (a *MultiheadAttention) attendAll(in []*tensor.Tensor, masks Masks, needWeights, perHead bool) (y, weights *tensor.Tensor) {
	unbatched := in[0].Dim() == 2
	parts, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) { return a.split(in, unbatched) })
	if err != nil {
		return broken(err)
	}
	q, k, v := parts[0], parts[1], parts[2]
	if err := cmp.Or(q.Err(), k.Err(), v.Err()); err != nil {
		return broken(err)
	}
	length, batch, width, source := q.Size(1), q.Size(0)/a.Heads, q.Size(2)*a.Heads, k.Size(1)
	more := a.more()
	mask, padding, err := a.masks(q, source-more, masks, needWeights, unbatched)
	if err != nil {
		return broken(err)
	}
	causal := masks.Causal && mask == nil
	if mask != nil && more > 0 {
		mask = mask.Pad([]int{0, more})
	}
	if padding != nil {
		if more > 0 {
			padding = padding.Pad([]int{0, more})
		}
		padding = padding.View(batch, 1, 1, source).Expand(-1, a.Heads, -1, -1).Reshape(batch*a.Heads, 1, source)
		if mask == nil {
			mask = padding
		} else {
			mask = mask.Add(padding)
		}
	}
	drop := 0.0
	if a.Training() {
		drop = a.Drop
	}
	if needWeights {
		y, weights = a.weighted(q, k, v, mask, drop)
		y = free.After(tidy(func(*tensor.Scope) *tensor.Tensor { return y.Transpose(0, 1).Reshape(length*batch, width) }), y)
		weights = weights.View(batch, a.Heads, length, source)
		if !perHead {
			weights = weights.Mean(tensor.Dim(1))
		}
		if unbatched {
			weights = weights.SqueezeDim(0)
		}
	} else {
		y = tidy(func(*tensor.Scope) *tensor.Tensor { return a.fused(q, k, v, mask, batch, drop, causal) })
		free.After(y, q, k, v)
		y = free.After(tidy(func(*tensor.Scope) *tensor.Tensor { return y.Permute(2, 0, 1, 3).Reshape(length*batch, width) }), y)
	}
	y = free.After(a.OutProj.Forward(y), y)
	y = y.View(length, batch, y.Size(-1))
	switch {
	case unbatched:
		y = y.SqueezeDim(1)
	case a.batchFirst:
		if y = y.Transpose(0, 1); a.fast(in, masks) {
			y = y.Contiguous()
		}
	}
	return y, weights
}

// more returns the number of keys that are added to those of the caller.
func (a *MultiheadAttention) more() int {
	n := 0
	if a.BiasK != nil {
		n++
	}
	if a.zero {
		n++
	}
	return n
}

// split returns queries, keys and values (N * Heads, L, E / Heads), with the keys and values that are added.
func (a *MultiheadAttention) split(in []*tensor.Tensor, unbatched bool) ([]*tensor.Tensor, error) {
	parts, err := a.project(in, unbatched)
	if err != nil {
		return nil, err
	}
	// From here on as in PyTorch: q (L, N, E), k and v (S, N, E).
	for i, p := range parts {
		if parts[i] = p.Transpose(0, 1); parts[i].Err() != nil {
			return nil, parts[i].Err()
		}
	}
	q, k, v := parts[0], parts[1], parts[2]
	length, batch, width, source := q.Size(0), q.Size(1), q.Size(2), k.Size(0)
	if k.Size(2) != width || v.Size(2) != width || width%a.Heads != 0 {
		return nil, refuse.Error("MultiheadAttention", tensor.ErrArgument, "query, key and value have the shapes %v, %v and %v", in[0].Shape(), in[1].Shape(), in[2].Shape())
	}
	heads, each := batch*a.Heads, width/a.Heads
	if a.BiasK != nil {
		bias := a.BiasK.Repeat(1, batch, 1)
		k = free.After(tensor.Cat([]*tensor.Tensor{k, bias}), bias)
		bias = a.BiasV.Repeat(1, batch, 1)
		v = free.After(tensor.Cat([]*tensor.Tensor{v, bias}), bias)
		source++
	}
	q = q.Reshape(length, heads, each).Transpose(0, 1)
	k = k.Reshape(source, heads, each).Transpose(0, 1)
	v = v.Reshape(source, heads, each).Transpose(0, 1)
	if a.zero {
		none := tensor.Zeros([]int{heads, 1, each}, k.DType(), k.Device())
		k, v = tensor.Cat([]*tensor.Tensor{k, none}, tensor.Dim(1)), tensor.Cat([]*tensor.Tensor{v, none}, tensor.Dim(1))
	}
	return []*tensor.Tensor{q, k, v}, nil
}

// masks returns the masks to add to scores for q (N * Heads, L, E / Heads): mask (1 or N * Heads, L, source) and padding
// (N, source), or nil. A causal mask is nil where scaled_dot_product_attention can make it.
func (a *MultiheadAttention) masks(q *tensor.Tensor, source int, masks Masks, needWeights, unbatched bool) (mask, padding *tensor.Tensor, err error) {
	const op = "MultiheadAttention"
	heads, length := q.Size(0), q.Size(1)
	batch := heads / a.Heads
	mask, padding = additive(masks.Attn, q), additive(masks.KeyPadding, q)
	if masks.Causal && mask == nil && (padding != nil || needWeights || a.BiasK != nil || a.zero) {
		mask = tensor.Full([]int{length, source}, math.Inf(-1), q.DType(), q.Device()).Triu(tensor.Diagonal(1))
	}
	if mask != nil {
		shape := mask.Shape()
		switch {
		case len(shape) == 2 && shape[0] == length && shape[1] == source:
			mask = mask.Unsqueeze(0)
		case len(shape) == 3 && shape[0] == heads && shape[1] == length && shape[2] == source:
		default:
			return nil, nil, refuse.Error(op, tensor.ErrArgument, "Attn must be %v or %v, got shape %v", []int{length, source}, []int{heads, length, source}, shape)
		}
		if masks.Causal && masks.Attn != nil { // filled, not added: a mask may hold +Inf
			mask = mask.MaskedFill(tensor.Ones([]int{length, source}, tensor.Bool, q.Device()).Triu(tensor.Diagonal(1)), math.Inf(-1))
		}
	}
	if padding != nil {
		if unbatched {
			padding = padding.Unsqueeze(0)
		}
		if shape := padding.Shape(); len(shape) != 2 || shape[0] != batch || shape[1] != source {
			return nil, nil, refuse.Error(op, tensor.ErrArgument, "KeyPadding must be %v, got shape %v", []int{batch, source}, masks.KeyPadding.Shape())
		}
	}
	return mask, padding, nil
}

// weighted returns the values v weighted by the scores of q and k, and the weights. It frees q, k and v.
func (a *MultiheadAttention) weighted(q, k, v, mask *tensor.Tensor, drop float64) (y, weights *tensor.Tensor) {
	scaled, turned := free.After(q.Mul(math.Sqrt(1/float64(q.Size(2)))), q), free.After(k.Transpose(-2, -1), k)
	var scores *tensor.Tensor
	if mask != nil {
		scores = mask.BAddBMM(scaled, turned)
	} else {
		scores = scaled.BMM(turned)
	}
	free.After(scores, scaled, turned)
	if weights = free.After(scores.Softmax(-1), scores); drop > 0 {
		weights = free.After(weights.Dropout(drop, tensor.Train(true)), weights)
	}
	return free.After(weights.BMM(v), v), weights
}

// fused is weighted without the weights, as (N, Heads, L, E / Heads).
func (a *MultiheadAttention) fused(q, k, v, mask *tensor.Tensor, batch int, drop float64, causal bool) *tensor.Tensor {
	opts := []tensor.Option{tensor.DropoutP(drop), tensor.IsCausal(causal)}
	if mask != nil {
		if mask.Size(0) == 1 && mask.Dim() == 3 {
			mask = mask.Unsqueeze(0)
		} else {
			mask = mask.View(batch, a.Heads, mask.Size(1), k.Size(1))
		}
		opts = append(opts, tensor.AttnMask(mask))
	}
	split := func(t *tensor.Tensor) *tensor.Tensor { return t.Reshape(batch, a.Heads, t.Size(1), t.Size(2)) }
	return tensor.ScaledDotProductAttention(split(q), split(k), split(v), opts...)
}

package nn

import (
	"math"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// RotaryEmbedding rotates pairs of elements of queries and keys by angles that grow with the position (Su et al. 2021). The
// first Width elements of the last dimension are rotated, the rest pass. Its buffer InvFreq, float32 of Width/2 elements, is
// not saved, and To does not change its dtype. PyTorch has none; the results are those of Llama's in Hugging Face's
// transformers, or of GPT-J's with Interleaved.
type RotaryEmbedding struct {
	InvFreq     *tensor.Tensor `nn:"inv_freq,nonpersistent"`
	Width       int
	base        float64
	interleaved bool
	err         error
}

// NewRotaryEmbedding returns a RotaryEmbedding of an even width. Options: Base (10000 by default), Interleaved, Device,
// and DType, which has no effect, so that all layers of a model can have the same options.
func NewRotaryEmbedding(width int, opts ...Option) *RotaryEmbedding {
	b := build("NewRotaryEmbedding", opts, "Base", "Interleaved", "Device", "DType")
	b.sizes("width", width)
	if width%2 != 0 {
		b.fail("width must be even, got %d", width)
	}
	if !(b.base > 0) || math.IsInf(b.base, 0) {
		b.fail("Base must be positive, got %v", b.base)
	}
	r := &RotaryEmbedding{Width: width, base: b.base, interleaved: b.interleaved}
	if b.err == nil {
		r.InvFreq = b.tensor([]int{width / 2}, tensor.Float32, func(t *tensor.Tensor) *tensor.Tensor {
			if t.Device() == tensor.Meta {
				return t
			}
			return tensor.Tidy(func() *tensor.Tensor { return t.Copy_(r.frequencies()) })
		})
	}
	if err := b.done(); err != nil {
		return &RotaryEmbedding{err: err}
	}
	return r
}

// frequencies returns the values of InvFreq. Its caller has a scope.
func (r *RotaryEmbedding) frequencies() *tensor.Tensor {
	powers := tensor.Arange(0, r.Width, tensor.Float32, tensor.Step(2)).Div(float64(r.Width))
	return one("RotaryEmbedding", "aten::pow.Scalar", r.base, powers).Reciprocal()
}

// computed implements computedBuffers.
func (r *RotaryEmbedding) computed() []computedBuffer {
	if r == nil || r.err != nil || r.base == 0 {
		return nil
	}
	return []computedBuffer{{&r.InvFreq, r.frequencies}}
}

func (r *RotaryEmbedding) fixedDTypes() []*tensor.Tensor {
	if r == nil {
		return nil
	}
	return []*tensor.Tensor{r.InvFreq}
}

// Err returns the error of the constructor that made r, or nil.
func (r *RotaryEmbedding) Err() error {
	if r == nil {
		return nilModule("RotaryEmbedding")
	}
	return r.err
}

// Forward rotates x (*, T, D) for the positions 0 to T-1, with D of at least Width, and returns the same shape and dtype.
func (r *RotaryEmbedding) Forward(x *tensor.Tensor) *tensor.Tensor { return r.ForwardFrom(x, 0) }

// ForwardFrom rotates x (*, T, D) for T positions from first on, as for the tokens behind those in a KVCache.
func (r *RotaryEmbedding) ForwardFrom(x *tensor.Tensor, first int) *tensor.Tensor {
	const op = "RotaryEmbedding"
	if bad := r.ready(op, x); bad != nil {
		return bad
	}
	t := x.Size(-2)
	if first < 0 || first > maxSize {
		return refuse.Tensor(op, tensor.ErrArgument, "the first position must be at least 0, got %d", first)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		return r.rotate(x, tensor.Arange(first, first+t, tensor.Int64, x.Device()))
	})
}

// ForwardAt rotates x for the given positions, integers: (T) for x (*, T, D), or (N, T) for x (N, H, T, D).
func (r *RotaryEmbedding) ForwardAt(x, positions *tensor.Tensor) *tensor.Tensor {
	const op = "RotaryEmbedding"
	if bad := r.ready(op, x); bad != nil {
		return bad
	}
	if bad := unusable(op, positions); bad != nil {
		return bad
	}
	shape, want := positions.Shape(), x.Shape()
	switch {
	case len(shape) == 1 && shape[0] == x.Size(-2):
	case len(shape) == 2 && x.Dim() == 4 && shape[0] == want[0] && shape[1] == want[2]:
	default:
		return refuse.Tensor(op, tensor.ErrArgument, "positions must be (T) for x (*, T, D), or (N, T) for x (N, H, T, D), got %v for %v", shape, want)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		if len(shape) == 2 {
			positions = positions.Unsqueeze(1)
		}
		return r.rotate(x, positions)
	})
}

func (r *RotaryEmbedding) ready(op string, x *tensor.Tensor) *tensor.Tensor {
	if err := r.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable(op, x, r.InvFreq); bad != nil {
		return bad
	}
	if x.Dim() < 2 || x.Size(-1) < r.Width || r.Width < 2 || !x.DType().IsFloat() {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (*, T, D), floating-point, with D of at least %d, got %v %v", r.Width, x.DType(), x.Shape())
	}
	return nil
}

// rotate rotates x; positions broadcast to x without its last dimension.
func (r *RotaryEmbedding) rotate(x, positions *tensor.Tensor) *tensor.Tensor {
	angles := positions.To(tensor.Float32).Unsqueeze(-1).Mul(r.InvFreq)
	cos, sin := angles.Cos().To(x.DType()), angles.Sin().To(x.DType())
	part := x
	rest := x.Size(-1) - r.Width
	if rest > 0 {
		part = x.Narrow(-1, 0, r.Width)
	}
	half := r.Width / 2
	var a, b *tensor.Tensor
	var pairs *tensor.Tensor
	if r.interleaved {
		pairs = part.Unflatten(-1, half, 2)
		a, b = pairs.Select(-1, 0), pairs.Select(-1, 1)
	} else {
		a, b = part.Narrow(-1, 0, half), part.Narrow(-1, half, half)
	}
	first, second := a.Mul(cos), b.Mul(sin)
	turned := []*tensor.Tensor{free.After(first.Sub(second), first, second)}
	first, second = b.Mul(cos), a.Mul(sin)
	turned = append(turned, free.After(first.Add(second), first, second))
	var y *tensor.Tensor
	if r.interleaved {
		y = tensor.Stack(turned, tensor.Dim(-1)).Flatten(tensor.StartDim(-2))
	} else {
		y = tensor.Cat(turned, tensor.Dim(-1))
	}
	if rest > 0 {
		free.After(y, turned...)
		y = tensor.Cat([]*tensor.Tensor{y, x.Narrow(-1, r.Width, rest)}, tensor.Dim(-1))
	}
	return y
}

// SwiGLU is the feed-forward part of a transformer block with a gate (Shazeer 2020): DownProj(silu(GateProj(x)) *
// UpProj(x)) for x (*, width). Its state has the names of Llama's, whose weights need NoBias: there are biases by default.
// PyTorch has none.
type SwiGLU struct {
	GateProj, UpProj Layer // width to hidden; a Linear each at first
	DownProj         Layer // hidden to width
	err              error
}

// NewSwiGLU returns a SwiGLU with the given widths. Options: NoBias (as in Llama), DType, Device.
func NewSwiGLU(width, hidden int, opts ...Option) *SwiGLU {
	b := build("NewSwiGLU", opts, "NoBias", "DType", "Device")
	b.sizes("width", width, "hidden", hidden)
	s := &SwiGLU{}
	s.GateProj = b.linear(width, hidden)
	s.UpProj = b.linear(width, hidden)
	s.DownProj = b.linear(hidden, width)
	if err := b.done(); err != nil {
		return &SwiGLU{err: err}
	}
	return s
}

// Err returns the error of the constructor that made s, or nil.
func (s *SwiGLU) Err() error {
	if s == nil {
		return nilModule("SwiGLU")
	}
	return s.err
}

// Forward returns the result of shape (*, width).
func (s *SwiGLU) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "SwiGLU"
	if err := s.Err(); err != nil {
		return tensor.Failed(err)
	}
	if s.GateProj == nil || s.UpProj == nil || s.DownProj == nil {
		return noModule(op)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	return Pipe(x, internal(func(x *tensor.Tensor) *tensor.Tensor {
		gate, ownGate := through(op, x, false, []Layer{s.GateProj, &SiLU{}}, 0)
		up, ownUp := through(op, x, false, []Layer{s.UpProj}, 0)
		y := gate.Mul(up)
		if ownGate {
			gate.Release()
		}
		if ownUp {
			up.Release()
		}
		return y
	}), s.DownProj)
}

// DropPath sets the whole result of a residual branch to zero for samples chosen at random in training, each with the
// probability P, and divides the others by 1-P (stochastic depth, Huang et al. 2016). PyTorch has none; the results are those
// of timm's.
type DropPath struct {
	Mode
	P   float64
	err error
}

// NewDropPath returns a DropPath with probability p.
func NewDropPath(p float64) *DropPath {
	b := build("NewDropPath", nil)
	b.probability("p", p)
	return &DropPath{P: p, err: b.err}
}

// Err returns the error of the constructor that made d, or nil.
func (d *DropPath) Err() error {
	if d == nil {
		return nilModule("DropPath")
	}
	return d.err
}

// Forward returns x (N, *) with samples set to zero in training, and x in evaluation.
func (d *DropPath) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "DropPath"
	if err := d.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	if !(d.P >= 0 && d.P <= 1) {
		return refuse.Tensor(op, tensor.ErrArgument, "P must be in [0, 1], got %v", d.P)
	}
	if !d.Training() || d.P == 0 {
		return x
	}
	shape := x.Shape()
	if len(shape) < 1 || !x.DType().IsFloat() {
		return refuse.Tensor(op, tensor.ErrArgument, "x must be (N, *), floating-point, got %v %v", x.DType(), shape)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		for i := range shape[1:] {
			shape[i+1] = 1
		}
		keep := 1 - d.P
		mask := x.Detach().NewEmpty(shape).Bernoulli_(tensor.P(keep))
		if keep > 0 {
			mask = mask.Div(keep)
		}
		return x.Mul(mask)
	})
}

// KVCache holds the keys and values of the tokens so far for generation with an attention layer, in memory that is allocated
// once:
//
//	k, v := cache.Update(keys, values) // of T new tokens
//	y := tensor.ScaledDotProductAttention(q, k, v, tensor.AttnMask(cache.Mask(T)))
//
// A single token attends to all others, and needs no mask. tensor.IsCausal is correct only for the first tokens: its
// mask is for queries from position 0 on.
//
// The cache belongs to no scope, so a tensor.WithScope around each token frees the token's temporaries. Truncate(0)
// empties the cache for the next sequence; a new one for each leaves the old ones to sweeps.
//
// Its buffers Keys and Values (N, H, length, D) are not saved, and gradients are not recorded through them. It must not be
// used by several goroutines at a time. PyTorch has none.
type KVCache struct {
	Keys   *tensor.Tensor `nn:",nonpersistent"`
	Values *tensor.Tensor `nn:",nonpersistent"`
	used   int
	err    error
}

// NewKVCache returns an empty cache for batches of the given size, with H heads of width D, and up to length tokens.
// Options: DType, Device.
func NewKVCache(batch, heads, length, width int, opts ...Option) *KVCache {
	b := build("NewKVCache", opts, "DType", "Device")
	b.sizes("batch", batch, "heads", heads, "length", length, "width", width)
	c := &KVCache{}
	for _, t := range []**tensor.Tensor{&c.Keys, &c.Values} {
		if *t = b.tensor([]int{batch, heads, length, width}, b.dtype, fillWith(0)); b.err == nil {
			tensor.Track(vram.Buffers, *t)
		}
	}
	if err := b.done(); err != nil {
		return &KVCache{err: err}
	}
	return c
}

// Err returns the error of the constructor that made c, or nil.
func (c *KVCache) Err() error {
	if c == nil {
		return nilModule("KVCache")
	}
	return c.err
}

// Len returns the number of tokens in the cache.
func (c *KVCache) Len() int {
	if c == nil {
		return 0
	}
	return c.used
}

func (c *KVCache) ready(op string) error {
	if err := c.Err(); err != nil {
		return err
	}
	for _, t := range []*tensor.Tensor{c.Keys, c.Values} {
		if err := refuse.Unusable(op, "", t); err != nil {
			return err
		}
	}
	if c.Keys.Dim() != 4 || !slices.Equal(c.Keys.Shape(), c.Values.Shape()) || c.used > c.Keys.Size(2) {
		return refuse.Error(op, tensor.ErrArgument, "the cache is incomplete: use NewKVCache")
	}
	return nil
}

// Update writes keys and values (N, H, T, D) of T further tokens behind those in the cache, in place, and returns views
// (N, H, Len, D) of all tokens. It is an error if there is no room for them, if they have another dtype than the cache, or if
// they require gradients and gradients are recorded.
func (c *KVCache) Update(keys, values *tensor.Tensor) (allKeys, allValues *tensor.Tensor) {
	const op = "Update"
	if err := c.ready(op); err != nil {
		return broken(err)
	}
	for _, t := range []*tensor.Tensor{keys, values} {
		if err := refuse.Unusable(op, "", t); err != nil {
			return broken(err)
		}
	}
	shape, want := keys.Shape(), c.Keys.Shape()
	if !slices.Equal(shape, values.Shape()) || len(shape) != 4 || shape[0] != want[0] || shape[1] != want[1] || shape[3] != want[3] {
		return broken(refuse.Error(op, tensor.ErrArgument, "keys and values must be (%d, %d, T, %d), got %v and %v", want[0], want[1], want[3], shape, values.Shape()))
	}
	if shape[2] > want[2]-c.used {
		return broken(refuse.Error(op, tensor.ErrArgument, "%d tokens do not fit after %d of at most %d", shape[2], c.used, want[2]))
	}
	if tensor.GradEnabled() && (keys.RequiresGrad() || values.RequiresGrad()) {
		return broken(refuse.Error(op, tensor.ErrArgument, "the keys or values require gradients, which a cache does not record: generate in autograd.NoGrad, or use Detach"))
	}
	if keys.DType() != c.Keys.DType() || values.DType() != c.Values.DType() {
		return broken(refuse.Error(op, tensor.ErrArgument, "the keys are %v and the values %v, but the cache is %v", keys.DType(), values.DType(), c.Keys.DType()))
	}
	out, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		var views []*tensor.Tensor
		err := autograd.NoGrad(func() error {
			for _, pair := range [][2]*tensor.Tensor{{c.Keys, keys}, {c.Values, values}} {
				if err := pair[0].Narrow(2, c.used, shape[2]).Copy_(pair[1]).Err(); err != nil {
					return err
				}
				views = append(views, pair[0].Narrow(2, 0, c.used+shape[2]))
			}
			return views[1].Err()
		})
		return views, err
	})
	if err != nil {
		return broken(err)
	}
	c.used += shape[2]
	return out[0], out[1]
}

// Mask returns the causal mask (T, Len), of dtype bool, for the queries of the last tokens tokens, T, in the cache: true at
// the keys of a query's own and of earlier positions, as tensor.AttnMask takes it.
func (c *KVCache) Mask(tokens int) *tensor.Tensor {
	const op = "Mask"
	if err := c.ready(op); err != nil {
		return tensor.Failed(err)
	}
	if tokens < 0 || tokens > c.used {
		return refuse.Tensor(op, tensor.ErrArgument, "tokens must be in [0, %d], got %d", c.used, tokens)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		return tensor.Ones([]int{tokens, c.used}, tensor.Bool, c.Keys.Device()).Tril(tensor.Diagonal(c.used - tokens))
	})
}

// Truncate forgets all but the first n tokens; Truncate(0) empties the cache.
func (c *KVCache) Truncate(n int) error {
	if err := c.ready("Truncate"); err != nil {
		return err
	}
	if n < 0 || n > c.used {
		return refuse.Error("Truncate", tensor.ErrArgument, "n must be in [0, %d], got %d", c.used, n)
	}
	c.used = n
	return nil
}

// Reorder makes row i of the batch a copy of row rows[i], as beam search needs it. rows (N) are integers.
func (c *KVCache) Reorder(rows *tensor.Tensor) error {
	const op = "Reorder"
	if err := c.ready(op); err != nil {
		return err
	}
	if err := refuse.Unusable(op, "rows", rows); err != nil {
		return err
	}
	if !slices.Equal(rows.Shape(), []int{c.Keys.Size(0)}) {
		return refuse.Error(op, tensor.ErrArgument, "rows must have shape [%d], got %v", c.Keys.Size(0), rows.Shape())
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			for _, t := range []*tensor.Tensor{c.Keys, c.Values} {
				part := t.Narrow(2, 0, c.used)
				if err := part.Copy_(part.IndexSelect(0, rows)).Err(); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// LoRALinear is a frozen linear layer with a trained update of low rank (Hu et al. 2021): x (*, in) gives Base(x) +
// Scale * B(A(x)), in the dtype of Base(x). A is applied to x in A's dtype. Its state has the names of Hugging Face's
// peft: base_layer.weight, lora_A.weight, lora_B.weight.
type LoRALinear struct {
	Mode
	Base   Layer   `nn:"base_layer"` // a *Linear, *Int8Linear or *Float8Linear
	A      *Linear `nn:"lora_A"`     // in to rank
	B      *Linear `nn:"lora_B"`     // rank to out, zeros at first
	Scale  float64
	Drop   float64 // dropout probability of A's input in training
	merged bool
	err    error
}

// frozenLinear is a layer that can be the base of a LoRALinear.
type frozenLinear interface {
	Layer
	Err() error
	frozen() (weight, dtype, bias *tensor.Tensor) // dtype has that of A and B by default
}

func (l *Linear) frozen() (weight, dtype, bias *tensor.Tensor)     { return l.Weight, l.Weight, l.Bias }
func (q *Int8Linear) frozen() (weight, dtype, bias *tensor.Tensor) { return q.Weight, q.Scales, q.Bias }
func (q *Float8Linear) frozen() (weight, dtype, bias *tensor.Tensor) {
	return q.Weight, q.Scales, q.Bias
}

// NewLoRALinear returns a LoRALinear around base, a *Linear, *Int8Linear or *Float8Linear, whose parameters it freezes. A is
// initialized as a Linear's weight, and B with zeros, so that the result is base's at first. Options: Alpha (the scale times
// the rank; the rank by default), DropoutP, DType of A and B (by default that of a Linear's weight, or of the scales).
// SetSubmodule puts it in base's place in a model:
//
//	err := nn.SetSubmodule(model, "blocks.0.attn.qkv", nn.NewLoRALinear(model.Blocks[0].Attn.QKV, 8))
func NewLoRALinear(base Layer, rank int, opts ...Option) *LoRALinear {
	b := build("NewLoRALinear", opts, "Alpha", "DropoutP", "DType")
	b.sizes("rank", rank)
	b.probability("DropoutP", b.dropout)
	alpha := b.alpha
	if !b.hasAlpha {
		alpha = float64(rank)
	}
	if math.IsNaN(alpha) || math.IsInf(alpha, 0) {
		b.fail("Alpha must be finite, got %v", alpha)
	}
	var w, like, bias *tensor.Tensor
	if frozen, ok := base.(frozenLinear); !ok {
		b.fail("the base must be a *Linear, *Int8Linear or *Float8Linear, got %T", base)
	} else if b.note(frozen.Err()); b.err == nil {
		w, like, bias = frozen.frozen()
		b.note(refuse.Unusable(b.op, "the weight", w))
		b.note(refuse.Unusable(b.op, "the scales", like))
	}
	l := &LoRALinear{Base: base, Scale: alpha / float64(max(1, rank)), Drop: b.dropout}
	if b.err == nil {
		if w.Dim() != 2 {
			b.fail("the weight must be a matrix, got shape %v", w.Shape())
		} else {
			if !slices.ContainsFunc(opts, func(o Option) bool { return o.name == "DType" }) {
				b.dtype = like.DType()
			}
			b.device, b.noBias = w.Device(), true
			l.A = b.linear(w.Size(1), rank)
			l.B = b.linear(rank, w.Size(0))
		}
	}
	if b.err == nil {
		b.note(Zeros_(l.B.Weight).Err())
		for _, t := range tensorsOf(w, bias) {
			b.note(t.RequiresGrad_(false).Err())
		}
	}
	if err := b.done(); err != nil {
		return &LoRALinear{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *LoRALinear) Err() error {
	if l == nil {
		return nilModule("LoRALinear")
	}
	return l.err
}

func (l *LoRALinear) ready() error {
	if err := l.Err(); err != nil {
		return err
	}
	if l.Base == nil || l.A == nil || l.B == nil {
		return nilModule("LoRALinear")
	}
	return nil
}

// Forward returns the result of shape (*, out).
func (l *LoRALinear) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "LoRALinear"
	if err := l.ready(); err != nil {
		return tensor.Failed(err)
	}
	if l.merged {
		return l.Base.Forward(x)
	}
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	if bad := firstUnusable(op, l.A.Weight); bad != nil {
		return bad
	}
	base, own := through(op, x, false, []Layer{l.Base}, 0)
	y := tidy(func(*tensor.Scope) *tensor.Tensor {
		in := x.To(l.A.Weight.DType())
		if l.Drop > 0 && l.Training() {
			in = in.Dropout(l.Drop, tensor.Train(true))
		}
		update := Pipe(in, l.A, l.B, internal(func(y *tensor.Tensor) *tensor.Tensor { return y.Mul(l.Scale) }))
		sum := base.Add(update)
		return sum.To(base.DType())
	})
	if own {
		base.Release()
	}
	return y
}

// Merged reports whether the update is part of the base's weight.
func (l *LoRALinear) Merged() bool { return l != nil && l.merged }

// Merge adds the update to the base's weight, in place, so that Forward costs no more than the base's. It does nothing if that
// is done already. The base must be a *Linear: a weight in 8 bits would round the update away. A model with a merged
// layer can be neither saved nor loaded, since its state does not show that the update is in the base's weight: Unmerge
// first, or replace the layer by its Base. A base that several LoRALinears share changes for all of them. No other
// goroutine may use the layer during Merge or Unmerge: it would see a partly changed weight.
func (l *LoRALinear) Merge() error { return l.merge(true) }

// Unmerge subtracts the update from the base's weight again, for further training. Rounding may leave a difference from the
// weight before. It does nothing if the update is not merged.
func (l *LoRALinear) Unmerge() error { return l.merge(false) }

func (l *LoRALinear) merge(on bool) error {
	if err := l.ready(); err != nil {
		return err
	}
	if l.merged == on {
		return nil
	}
	base, ok := l.Base.(*Linear)
	if !ok {
		return refuse.Error("Merge", tensor.ErrArgument, "the base must be a *Linear, got %T", l.Base)
	}
	if err := base.Err(); err != nil {
		return err
	}
	scale := l.Scale
	if !on {
		scale = -scale
	}
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			update := l.B.Weight.MM(l.A.Weight).Mul_(scale) // Add_ with Alpha would round differently from PEFT's product
			return base.Weight.Add_(update).Err()
		})
	})
	if err == nil {
		l.merged = on
	}
	return err
}

// unmerged returns an error of op if a LoRALinear in m is merged, which the state of m does not show.
func unmerged(op string, m any) error {
	for _, n := range NamedModules(m) {
		if l, ok := n.Module.(*LoRALinear); ok && l.Merged() {
			return refuse.Error(op, tensor.ErrArgument, "the update of the LoRALinear %q is merged into its base, which the state would not show: "+
				"Unmerge it first, or put its Base in its place", n.Name)
		}
	}
	return nil
}

// LoRAState returns the tensors of the updates of all LoRALinears in m under their names in StateDict, to save them alone.
// It also takes merged ones, whose updates are the same. LoadStateDict with Strict(false) loads them.
func LoRAState(m any) State {
	var out State
	var prefixes []string
	for _, n := range NamedModules(m) {
		if _, ok := n.Module.(*LoRALinear); ok {
			prefixes = append(prefixes, join(n.Name, "lora_"))
		}
	}
	for _, n := range checked(m, saved(m)) {
		if n.Name == "" || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(n.Name, p) }) {
			out = append(out, n)
		}
	}
	return out
}

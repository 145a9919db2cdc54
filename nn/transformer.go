package nn

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// transformerOptions are the options of the transformer layers.
var transformerOptions = []string{"FeedForward", "DropoutP", "Activation", "Eps", "BatchFirst", "NormFirst", "NoBias", "DType", "Device"}

// transformer starts the constructor of a transformer layer.
func transformer(op string, width, heads int, opts []Option, own ...string) *builder {
	b := build(op, append([]Option{DropoutP(0.1)}, opts...), append(own, transformerOptions...)...)
	b.heads(width, heads)
	b.sizes("FeedForward", b.hidden)
	b.positiveEps()
	_, err := activate(op, b.activation)
	b.note(err)
	return b
}

// common returns the options that a transformer layer passes to its parts.
func (b *builder) common(more ...Option) []Option {
	opts := append(more, DType(b.dtype), Device(b.device))
	if b.noBias {
		opts = append(opts, NoBias())
	}
	return opts
}

func (b *builder) attention(width, heads int) *MultiheadAttention {
	if b.err != nil {
		return nil
	}
	opts := b.common(DropoutP(b.dropout))
	if b.batchFirst {
		opts = append(opts, BatchFirst())
	}
	a := NewMultiheadAttention(width, heads, opts...)
	b.part(a)
	return a
}

func (b *builder) norm(width int) *LayerNorm {
	if b.err != nil {
		return nil
	}
	l := NewLayerNorm(width, b.common(Eps(b.eps))...)
	b.part(l)
	return l
}

// activate returns the activation by its name, "" for the default.
func activate(op, name string) (Layer, error) {
	switch name {
	case "", "relu":
		return &ReLU{}, nil
	case "gelu":
		return &GELU{}, nil
	}
	return nil, refuse.Error(op, tensor.ErrArgument, "Activation must be relu or gelu, got %q", name)
}

// whole returns an error if a part is nil, as in a zero value.
func whole(op string, parts ...bool) error {
	for _, ok := range parts {
		if !ok {
			return refuse.Error(op, tensor.ErrNil, "the module is incomplete: use its constructor")
		}
	}
	return nil
}

// addNorm returns norm(x + the result of the layers), or with first x + the result of the layers for norm(x).
func addNorm(x *tensor.Tensor, first bool, norm *LayerNorm, layers ...Layer) *tensor.Tensor {
	if first {
		return Residual(x, append([]Layer{norm}, layers...)...)
	}
	sum := Residual(x, layers...)
	y := norm.Forward(sum)
	sum.Release()
	return y
}

// then applies f to x, a tensor that no other code has seen, and frees x.
func then(x *tensor.Tensor, f func(x *tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	y := f(x)
	if y != x {
		x.Release()
	}
	return y
}

// TransformerEncoderLayer is self-attention followed by two linear layers, each with dropout, a residual connection and
// layer normalization (Vaswani et al. 2017). PyTorch: torch.nn.TransformerEncoderLayer.
type TransformerEncoderLayer struct {
	SelfAttn           *MultiheadAttention
	Linear1            Layer // width to hidden; a Linear at first
	Dropout            *Dropout
	Linear2            Layer // hidden to width; a Linear at first
	Norm1, Norm2       *LayerNorm
	Dropout1, Dropout2 *Dropout
	NormFirst          bool
	Activation         string // "relu" or "", or "gelu"
	err                error
}

// NewTransformerEncoderLayer returns a TransformerEncoderLayer of the given width, a multiple of heads. Options:
// FeedForward (2048 by default), DropoutP (0.1 by default), Activation ("relu" by default, or "gelu"), Eps, BatchFirst,
// NormFirst, NoBias, DType, Device.
func NewTransformerEncoderLayer(width, heads int, opts ...Option) *TransformerEncoderLayer {
	b := transformer("NewTransformerEncoderLayer", width, heads, opts)
	return b.encoderLayer(width, heads)
}

func (b *builder) encoderLayer(width, heads int) *TransformerEncoderLayer {
	l := &TransformerEncoderLayer{NormFirst: b.normFirst, Activation: b.activation}
	l.SelfAttn = b.attention(width, heads)
	l.Linear1, l.Linear2 = b.linear(width, b.hidden), b.linear(b.hidden, width)
	l.Norm1, l.Norm2 = b.norm(width), b.norm(width)
	l.Dropout, l.Dropout1, l.Dropout2 = NewDropout(b.dropout), NewDropout(b.dropout), NewDropout(b.dropout)
	if err := b.done(); err != nil {
		return &TransformerEncoderLayer{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *TransformerEncoderLayer) Err() error {
	if l == nil {
		return nilModule("TransformerEncoderLayer")
	}
	return l.err
}

// Forward applies the layer to x: (L, N, E), or (N, L, E) with BatchFirst, or (L, E) without a batch. It returns the same
// shape.
func (l *TransformerEncoderLayer) Forward(x *tensor.Tensor) *tensor.Tensor {
	return l.ForwardMasked(x, Masks{})
}

// ForwardMasked is Forward with masks for the self-attention.
func (l *TransformerEncoderLayer) ForwardMasked(x *tensor.Tensor, masks Masks) *tensor.Tensor {
	const op = "TransformerEncoderLayer"
	err := l.Err()
	if err == nil {
		err = whole(op, l.SelfAttn != nil, l.Linear1 != nil, l.Linear2 != nil, l.Norm1 != nil, l.Norm2 != nil, l.Dropout != nil, l.Dropout1 != nil, l.Dropout2 != nil)
	}
	var activation Layer
	if err == nil {
		activation, err = activate(op, l.Activation)
	}
	if err == nil {
		err = refuse.Unusable(op, "", x)
	}
	if err != nil {
		return tensor.Failed(err)
	}
	attention := internal(func(x *tensor.Tensor) *tensor.Tensor { return l.SelfAttn.Attend(x, x, x, masks) })
	return then(addNorm(x, l.NormFirst, l.Norm1, attention, l.Dropout1), func(x *tensor.Tensor) *tensor.Tensor {
		return addNorm(x, l.NormFirst, l.Norm2, l.Linear1, activation, l.Dropout, l.Linear2, l.Dropout2)
	})
}

// TransformerDecoderLayer is a TransformerEncoderLayer with attention to the output of an encoder between its two parts.
// PyTorch: torch.nn.TransformerDecoderLayer.
type TransformerDecoderLayer struct {
	SelfAttn                     *MultiheadAttention
	MultiheadAttn                *MultiheadAttention
	Linear1                      Layer // width to hidden; a Linear at first
	Dropout                      *Dropout
	Linear2                      Layer // hidden to width; a Linear at first
	Norm1, Norm2, Norm3          *LayerNorm
	Dropout1, Dropout2, Dropout3 *Dropout
	NormFirst                    bool
	Activation                   string // "relu" or "", or "gelu"
	err                          error
}

// NewTransformerDecoderLayer returns a TransformerDecoderLayer of the given width, a multiple of heads. Options: those of
// NewTransformerEncoderLayer.
func NewTransformerDecoderLayer(width, heads int, opts ...Option) *TransformerDecoderLayer {
	b := transformer("NewTransformerDecoderLayer", width, heads, opts)
	return b.decoderLayer(width, heads)
}

func (b *builder) decoderLayer(width, heads int) *TransformerDecoderLayer {
	l := &TransformerDecoderLayer{NormFirst: b.normFirst, Activation: b.activation}
	l.SelfAttn, l.MultiheadAttn = b.attention(width, heads), b.attention(width, heads)
	l.Linear1, l.Linear2 = b.linear(width, b.hidden), b.linear(b.hidden, width)
	l.Norm1, l.Norm2, l.Norm3 = b.norm(width), b.norm(width), b.norm(width)
	l.Dropout, l.Dropout1, l.Dropout2, l.Dropout3 = NewDropout(b.dropout), NewDropout(b.dropout), NewDropout(b.dropout), NewDropout(b.dropout)
	if err := b.done(); err != nil {
		return &TransformerDecoderLayer{err: err}
	}
	return l
}

// Err returns the error of the constructor that made l, or nil.
func (l *TransformerDecoderLayer) Err() error {
	if l == nil {
		return nilModule("TransformerDecoderLayer")
	}
	return l.err
}

// Forward applies the layer to x, which attends to memory, the output of an encoder. Both are (L, N, E), or (N, L, E) with
// BatchFirst, or (L, E) without a batch; the lengths may differ. It returns the shape of x.
func (l *TransformerDecoderLayer) Forward(x, memory *tensor.Tensor) *tensor.Tensor {
	return l.ForwardMasked(x, memory, Masks{}, Masks{})
}

// ForwardMasked is Forward with masks for the self-attention and for the attention to memory.
func (l *TransformerDecoderLayer) ForwardMasked(x, memory *tensor.Tensor, self, cross Masks) *tensor.Tensor {
	const op = "TransformerDecoderLayer"
	err := l.Err()
	if err == nil {
		err = whole(op, l.SelfAttn != nil, l.MultiheadAttn != nil, l.Linear1 != nil, l.Linear2 != nil, l.Norm1 != nil, l.Norm2 != nil, l.Norm3 != nil,
			l.Dropout != nil, l.Dropout1 != nil, l.Dropout2 != nil, l.Dropout3 != nil)
	}
	var activation Layer
	if err == nil {
		activation, err = activate(op, l.Activation)
	}
	if err == nil {
		err = refuse.Unusable(op, "", x)
	}
	if err == nil {
		err = refuse.Unusable(op, "memory", memory)
	}
	if err != nil {
		return tensor.Failed(err)
	}
	attention := internal(func(x *tensor.Tensor) *tensor.Tensor { return l.SelfAttn.Attend(x, x, x, self) })
	toMemory := internal(func(x *tensor.Tensor) *tensor.Tensor { return l.MultiheadAttn.Attend(x, memory, memory, cross) })
	x = then(addNorm(x, l.NormFirst, l.Norm1, attention, l.Dropout1), func(x *tensor.Tensor) *tensor.Tensor {
		return addNorm(x, l.NormFirst, l.Norm2, toMemory, l.Dropout2)
	})
	return then(x, func(x *tensor.Tensor) *tensor.Tensor {
		return addNorm(x, l.NormFirst, l.Norm3, l.Linear1, activation, l.Dropout, l.Linear2, l.Dropout3)
	})
}

// TransformerEncoder is a stack of encoder layers. Norm, if not nil, normalizes the result. With Masks.KeyPadding the results
// at padded positions are ordinary values; PyTorch's fast path, in evaluation without gradients, returns zeros there.
// PyTorch: torch.nn.TransformerEncoder.
type TransformerEncoder struct {
	Layers []*TransformerEncoderLayer
	Norm   *LayerNorm `nn:",optional"`
	err    error
}

// NewTransformerEncoder returns a TransformerEncoder of n copies of layer, made by Clone, and norm, which may be nil. The
// copies start with the same weights, as in PyTorch; layer itself is not part of the result.
func NewTransformerEncoder(layer *TransformerEncoderLayer, n int, norm *LayerNorm) *TransformerEncoder {
	layers, err := copies("NewTransformerEncoder", layer, n, norm)
	if err != nil {
		return &TransformerEncoder{err: err}
	}
	return &TransformerEncoder{Layers: layers, Norm: norm}
}

// copies returns n copies of layer, for a stack with norm, which may be nil.
func copies[L interface{ Err() error }](op string, layer L, n int, norm *LayerNorm) (layers []L, err error) {
	b := build(op, nil)
	b.sizes("n", n)
	b.note(layer.Err())
	for i := 0; i < n && b.err == nil; i++ {
		l := Clone(layer)
		b.note(Check(l))
		b.part(l)
		layers = append(layers, l)
	}
	if norm != nil {
		b.note(norm.Err())
	}
	return layers, b.done()
}

// stacked applies the layers to x, each by forward, and then norm unless it is nil.
func stacked[L any](x *tensor.Tensor, layers []L, norm *LayerNorm, forward func(l L, x *tensor.Tensor) *tensor.Tensor) *tensor.Tensor {
	all := make([]Layer, 0, len(layers)+1)
	for _, l := range layers {
		all = append(all, internal(func(x *tensor.Tensor) *tensor.Tensor { return forward(l, x) }))
	}
	if norm != nil {
		all = append(all, norm)
	}
	return Pipe(x, all...)
}

// Err returns the error of the constructor that made e, or nil.
func (e *TransformerEncoder) Err() error {
	if e == nil {
		return nilModule("TransformerEncoder")
	}
	return e.err
}

// Forward applies the layers to x, whose shapes are those of TransformerEncoderLayer.
func (e *TransformerEncoder) Forward(x *tensor.Tensor) *tensor.Tensor {
	return e.ForwardMasked(x, Masks{})
}

// ForwardMasked is Forward with masks for each layer.
func (e *TransformerEncoder) ForwardMasked(x *tensor.Tensor, masks Masks) *tensor.Tensor {
	if err := e.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := unusable("TransformerEncoder", x); bad != nil {
		return bad
	}
	return stacked(x, e.Layers, e.Norm, func(l *TransformerEncoderLayer, x *tensor.Tensor) *tensor.Tensor { return l.ForwardMasked(x, masks) })
}

// TransformerDecoder is a stack of decoder layers. Norm, if not nil, normalizes the result. PyTorch:
// torch.nn.TransformerDecoder.
type TransformerDecoder struct {
	Layers []*TransformerDecoderLayer
	Norm   *LayerNorm `nn:",optional"`
	err    error
}

// NewTransformerDecoder returns a TransformerDecoder of n copies of layer, made by Clone, and norm, which may be nil. The
// copies start with the same weights, as in PyTorch; layer itself is not part of the result.
func NewTransformerDecoder(layer *TransformerDecoderLayer, n int, norm *LayerNorm) *TransformerDecoder {
	layers, err := copies("NewTransformerDecoder", layer, n, norm)
	if err != nil {
		return &TransformerDecoder{err: err}
	}
	return &TransformerDecoder{Layers: layers, Norm: norm}
}

// Err returns the error of the constructor that made d, or nil.
func (d *TransformerDecoder) Err() error {
	if d == nil {
		return nilModule("TransformerDecoder")
	}
	return d.err
}

// Forward applies the layers to x and memory, whose shapes are those of TransformerDecoderLayer.
func (d *TransformerDecoder) Forward(x, memory *tensor.Tensor) *tensor.Tensor {
	return d.ForwardMasked(x, memory, Masks{}, Masks{})
}

// ForwardMasked is Forward with masks for the self-attention and for the attention to memory of each layer.
func (d *TransformerDecoder) ForwardMasked(x, memory *tensor.Tensor, self, cross Masks) *tensor.Tensor {
	if err := d.Err(); err != nil {
		return tensor.Failed(err)
	}
	if bad := firstUnusable("TransformerDecoder", x, memory); bad != nil {
		return bad
	}
	return stacked(x, d.Layers, d.Norm, func(l *TransformerDecoderLayer, x *tensor.Tensor) *tensor.Tensor {
		return l.ForwardMasked(x, memory, self, cross)
	})
}

// Transformer is an encoder and a decoder (Vaswani et al. 2017). PyTorch: torch.nn.Transformer.
type Transformer struct {
	Encoder *TransformerEncoder
	Decoder *TransformerDecoder
	err     error
}

// NewTransformer returns a Transformer of the given width, a multiple of heads; PyTorch's defaults are 512 and 8. All
// matrices are initialized by XavierUniform_. Options: EncoderLayers and DecoderLayers (6 by default), and those of
// NewTransformerEncoderLayer.
func NewTransformer(width, heads int, opts ...Option) *Transformer {
	const op = "NewTransformer"
	b := transformer(op, width, heads, opts, "EncoderLayers", "DecoderLayers")
	b.sizes("EncoderLayers", b.encoders, "DecoderLayers", b.decoders)
	if b.err != nil {
		return &Transformer{err: b.err}
	}
	// The layers that are copied have a builder of their own, so that their tensors are not part of the result.
	parts := func() *builder { return &builder{op: op, settings: b.settings} }
	t := &Transformer{}
	encoder := parts().encoderLayer(width, heads)
	t.Encoder = NewTransformerEncoder(encoder, b.encoders, b.norm(width))
	b.part(t.Encoder)
	Release(encoder)
	if b.err == nil {
		decoder := parts().decoderLayer(width, heads)
		t.Decoder = NewTransformerDecoder(decoder, b.decoders, b.norm(width))
		b.part(t.Decoder)
		Release(decoder)
	}
	if b.err == nil {
		for _, n := range collect(t, false) {
			if n.Tensor.Dim() > 1 {
				b.note(XavierUniform_(n.Tensor, 1).Err())
			}
		}
	}
	if err := b.done(); err != nil {
		return &Transformer{err: err}
	}
	return t
}

// Err returns the error of the constructor that made t, or nil.
func (t *Transformer) Err() error {
	if t == nil {
		return nilModule("Transformer")
	}
	return t.err
}

// TransformerMasks are the masks of a Transformer: of the self-attention over the source and over the target, and of the
// attention of the target to the encoder's output.
type TransformerMasks struct{ Source, Target, Memory Masks }

// Forward encodes source and decodes target with attention to it. Both are (L, N, E), or (N, L, E) with BatchFirst, or
// (L, E) without a batch; the lengths may differ. It returns the shape of target.
func (t *Transformer) Forward(source, target *tensor.Tensor) *tensor.Tensor {
	return t.ForwardMasked(source, target, TransformerMasks{})
}

// ForwardMasked is Forward with masks.
func (t *Transformer) ForwardMasked(source, target *tensor.Tensor, masks TransformerMasks) *tensor.Tensor {
	if err := t.Err(); err != nil {
		return tensor.Failed(err)
	}
	memory := t.Encoder.ForwardMasked(source, masks.Source)
	y := t.Decoder.ForwardMasked(target, memory, masks.Target, masks.Memory)
	if memory != source {
		memory.Release()
	}
	return y
}

package nn

import (
	"fmt"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// weightNorm computes g * v / |v|.
type weightNorm struct {
	Dim int // -1 for one norm over all
}

func (*weightNorm) torchName() string { return "_WeightNorm" }

// Forward returns the parameter of the magnitudes and the directions.
func (n *weightNorm) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	const op = "WeightNorm"
	if n == nil || len(originals) != 2 {
		return noModule(op)
	}
	g, v := originals[0], originals[1]
	if bad := firstUnusable(op, g, v); bad != nil {
		return bad
	}
	// The operator does not check its arguments.
	var want []int
	for d, size := range v.Shape() {
		if n.Dim >= 0 && d != n.Dim {
			size = 1
		}
		if n.Dim >= 0 {
			want = append(want, size)
		}
	}
	if n.Dim >= v.Dim() || !slices.Equal(g.Shape(), want) || g.DType() != v.DType() || g.Device() != v.Device() || !v.DType().IsFloat() {
		return refuse.Tensor(op, tensor.ErrArgument, "the magnitudes of a %v %v on %v must have shape %v, got %v %v on %v", v.DType(), v.Shape(), v.Device(), want, g.DType(), g.Shape(), g.Device())
	}
	out, err := tensor.CallUnchecked("aten::_weight_norm", v, g, n.Dim)
	if err != nil {
		return tensor.Failed(refuse.Named(op, err))
	}
	return out[0].(*tensor.Tensor)
}

// RightInverse returns the magnitudes and w.
func (n *weightNorm) RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error) {
	g := one("WeightNorm", "aten::norm_except_dim", w, 2, n.Dim)
	return []*tensor.Tensor{g, w}, g.Err()
}

// WeightNorm separates the magnitude of a parameter of layer from its direction: the parameter is original0 * original1 /
// |original1|, with a norm for each slice along a dimension (Salimans and Kingma 2016). The result is that of
// RegisterParametrization. Options: NormDim, OldNames (weight_g and weight_v). A state with the old names loads in either
// form. PyTorch: torch.nn.utils.parametrizations.weight_norm, and the deprecated torch.nn.utils.weight_norm.
func WeightNorm(layer Layer, name string, opts ...Option) *Parametrized {
	const op = "WeightNorm"
	b := build(op, opts, "NormDim", "OldNames")
	w, l, err := parametrizable(op, layer, name)
	b.note(err)
	if d := b.normDim; b.err == nil && l == nil && (d < -1 || d >= w.Dim()) {
		b.fail("NormDim must be in [-1, %d], got %d", w.Dim()-1, d)
	}
	if b.err != nil {
		return &Parametrized{err: b.err}
	}
	if l != nil {
		return &Parametrized{err: refuse.Error(op, tensor.ErrArgument, "%q is parametrized already", name)}
	}
	var suffixes []string
	if b.oldNames {
		suffixes = []string{"_g", "_v"}
	}
	return parametrize(op, layer, name, &weightNorm{b.normDim}, suffixes, false)
}

// spectralNorm divides a matrix by an estimate of its largest singular value.
type spectralNorm struct {
	Mode
	U               *tensor.Tensor `nn:"_u,buffer"` // the left singular vector; nil for a vector
	V               *tensor.Tensor `nn:"_v,buffer"`
	Dim, Iterations int
	Eps             float64
	old             bool // the order of the deprecated form
}

func (*spectralNorm) torchName() string { return "_SpectralNorm" }

// matrix returns w with Dim as its rows.
func (n *spectralNorm) matrix(w *tensor.Tensor) *tensor.Tensor {
	if w.Dim() == 1 {
		return w.Unsqueeze(1)
	}
	if n.Dim != 0 {
		order := []int{n.Dim}
		for d := range w.Dim() {
			if d != n.Dim {
				order = append(order, d)
			}
		}
		w = w.Permute(order...)
	}
	return w.Flatten(tensor.StartDim(1))
}

// iterate improves U and V in place. Gradients are not recorded.
func (n *spectralNorm) iterate(m *tensor.Tensor, times int) error {
	adjoint := one("SpectralNorm", "aten::mH", m)
	if n.old {
		adjoint = m.Transpose(0, 1) // without conjugation, as in PyTorch
	}
	u := func() error { return n.U.Copy_(n.unit(m.MV(n.V))).Err() }
	v := func() error { return n.V.Copy_(n.unit(adjoint.MV(n.U))).Err() }
	if n.old {
		u, v = v, u
	}
	for range times {
		if err := u(); err != nil {
			return err
		}
		if err := v(); err != nil {
			return err
		}
	}
	return nil
}

func (n *spectralNorm) unit(v *tensor.Tensor) *tensor.Tensor { return Normalize(v, 2, 0, n.Eps) }

// Forward returns the divided parameter. In training it improves the estimate first.
func (n *spectralNorm) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	const op = "SpectralNorm"
	if n == nil || len(originals) != 1 {
		return noModule(op)
	}
	w := originals[0]
	if bad := unusable(op, w); bad != nil {
		return bad
	}
	if w.Dim() == 1 && !n.old {
		return n.unit(w)
	}
	if bad := firstUnusable(op, n.U, n.V); bad != nil {
		return bad
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		m := n.matrix(w)
		if n.Training() {
			if err := autograd.NoGrad(func() error { return n.iterate(m, n.Iterations) }); err != nil {
				return tensor.Failed(err)
			}
		}
		// A later pass changes U and V, which the backward pass of this one needs.
		u, v := n.U.Clone(), n.V.Clone()
		if n.old {
			return w.Div(u.Dot(m.MV(v))) // without conjugation, as in PyTorch
		}
		return w.Div(u.VDot(m.MV(v)))
	})
}

// RightInverse returns w: a parameter with the norm 1 is its own original.
func (n *spectralNorm) RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{w}, w.Err()
}

// SpectralNorm divides a parameter of layer by an estimate of its largest singular value, which each forward pass in training
// improves (Miyato et al. 2018). A parameter with more than 2 dimensions is treated as a matrix. The result is that of
// RegisterParametrization. Options: PowerIterations, Eps (1e-12 by default), NormDim, OldNames (weight_orig, weight_u and
// weight_v; it begins with a poorer estimate, as in PyTorch). PyTorch: torch.nn.utils.parametrizations.spectral_norm, and the
// deprecated torch.nn.utils.spectral_norm.
func SpectralNorm(layer Layer, name string, opts ...Option) *Parametrized {
	const op = "SpectralNorm"
	b := build(op, append([]Option{Eps(1e-12)}, opts...), "PowerIterations", "Eps", "NormDim", "OldNames")
	w, l, err := parametrizable(op, layer, name)
	b.note(err)
	b.positiveEps()
	if b.iterations < 1 {
		b.fail("PowerIterations must be positive, got %d", b.iterations)
	}
	n := &spectralNorm{Iterations: b.iterations, Eps: b.eps, Dim: b.normDim, old: b.oldNames}
	if b.err == nil {
		b.note(tensor.WithScope(func() error {
			if l != nil {
				w = l.standIn
				y := l.compute()
				if err := y.Err(); err != nil {
					return err
				}
				w = y
			}
			n.begin(b, layer, w)
			return nil
		}))
	}
	if err := b.done(); err != nil {
		return &Parametrized{err: err}
	}
	var suffixes []string
	if n.old {
		suffixes = []string{"_orig"}
	}
	p := parametrize(op, layer, name, n, suffixes, !n.old)
	if p.err != nil {
		Release(n)
	}
	return p
}

// begin sets Dim and draws U and V for the parameter w.
func (n *spectralNorm) begin(b *builder, layer Layer, w *tensor.Tensor) {
	dims := w.Dim()
	if p, ok := layer.(*Parametrized); ok {
		layer = p.Layer
	}
	switch layer.(type) {
	case *ConvTranspose1d, *ConvTranspose2d, *ConvTranspose3d:
		if !b.hasNormDim {
			n.Dim = 1
		}
	}
	if n.Dim < -dims || n.Dim >= dims {
		b.fail("NormDim must be in [%d, %d], got %d", -dims, dims-1, n.Dim)
		return
	}
	if n.Dim < 0 {
		n.Dim += dims
	}
	if dims == 1 && !n.old {
		return
	}
	m := n.matrix(w)
	if m.Numel() == 0 {
		b.fail("the parameter must not be empty, got shape %v", w.Shape())
		return
	}
	b.device = w.Device()
	unit := func(size int) *tensor.Tensor {
		return b.tensor([]int{size}, w.DType(), func(t *tensor.Tensor) *tensor.Tensor {
			if err := t.Normal_(0, 1).Err(); err != nil {
				return tensor.Failed(err)
			}
			return t.Copy_(n.unit(t))
		})
	}
	n.U, n.V = unit(m.Size(0)), unit(m.Size(1))
	if b.err == nil && !n.old {
		b.note(autograd.NoGrad(func() error { return n.iterate(m, 15) }))
	}
}

// orthogonal computes a matrix with orthonormal columns or rows.
type orthogonal struct {
	Base  *tensor.Tensor `nn:"base,buffer"` // nil without trivialization
	Map   string
	Plain bool // without trivialization
}

func (*orthogonal) torchName() string { return "_Orthogonal" }

// Forward returns the orthogonal matrix, or the batch of them.
func (o *orthogonal) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	const op = "Orthogonal"
	if o == nil || len(originals) != 1 {
		return noModule(op)
	}
	x := originals[0]
	if bad := unusable(op, x); bad != nil {
		return bad
	}
	if !o.Plain {
		if bad := unusable(op, o.Base); bad != nil {
			return bad
		}
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		n, k := x.Size(-2), x.Size(-1)
		turned := n < k
		if turned {
			x, n, k = x.Transpose(-2, -1), k, n
		}
		var q *tensor.Tensor
		if o.Map == "householder" {
			a := x.Tril(tensor.Diagonal(-1))
			square := a.Mul(a)
			tau := free.After(square.Sum(tensor.Dim(-2)), square).Add(1).Reciprocal().Mul(2)
			q = one(op, "aten::linalg_householder_product", a, tau)
			q = q.Mul(x.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).To(tensor.Int32).Unsqueeze(-2))
		} else {
			x = x.Tril()
			if n != k {
				shape := append(leading(x, 1), n-k)
				x = tensor.Cat([]*tensor.Tensor{x, x.NewZeros(shape)}, tensor.Dim(-1))
			}
			a := x.Sub(one(op, "aten::mH", x))
			if o.Map == "cayley" {
				id := tensor.Eye(n, a.DType(), a.Device())
				q = id.Add(a, tensor.Alpha(-0.5)).LinalgSolve(id.Add(a, tensor.Alpha(0.5)))
			} else {
				q = one(op, "aten::matrix_exp", a)
			}
			if n != k {
				q = q.Narrow(-1, 0, k)
			}
		}
		if !o.Plain {
			q = o.Base.MatMul(q)
		}
		if turned {
			q = q.Transpose(-2, -1)
		}
		return q
	})
}

// RightInverse returns the tensor for which Forward returns w, or a w made orthogonal. It sets Base, or writes to it.
func (o *orthogonal) RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error) {
	const op = "Orthogonal"
	n, k := w.Size(-2), w.Size(-1)
	q, turned := w, n < k
	if turned {
		q, n, k = w.Transpose(-2, -1), k, n
	}
	if o.Plain {
		if o.Map != "householder" {
			return nil, fmt.Errorf("%s: %w of the map %s with NoTrivialization", op, errNoInverse, o.Map)
		}
		a, tau := two(op, "aten::geqrf", q)
		if err := a.Err(); err != nil {
			return nil, err
		}
		d := a.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1))
		sign := d.Sign().Mul(tau.Eq(0).To(a.DType()).Mul(-2).Add(1))
		if err := d.Copy_(sign).Err(); err != nil {
			return nil, err
		}
		if turned {
			a = a.Transpose(-2, -1)
		}
		return []*tensor.Tensor{a}, nil
	}
	if n != k {
		shape := append(leading(q, 2), n, n-k)
		q = tensor.Cat([]*tensor.Tensor{q, tensor.Randn(shape, q.DType(), q.Device())}, tensor.Dim(-1))
	}
	ready := false
	if n == k {
		eps := 0x1p-23
		if q.DType() == tensor.Float64 || q.DType() == tensor.Complex128 {
			eps = 0x1p-52
		}
		product := one(op, "aten::mH", q).MatMul(q)
		near := one(op, "aten::isclose", product, tensor.Eye(n, q.DType(), q.Device()), 1e-5, 10*float64(n)*eps, false).All()
		ok, err := tensor.Item[bool](near)
		if err != nil {
			return nil, err
		}
		ready = ok
	}
	if ready {
		q = q.Clone()
	} else {
		x, tau := two(op, "aten::geqrf", q)
		q = one(op, "aten::linalg_householder_product", x, tau)
		q = q.Mul(one(op, "aten::sgn", x.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1))).Unsqueeze(-2))
	}
	start := w.ZerosLike()
	if err := start.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).Fill_(-1).Err(); err != nil {
		return nil, err
	}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if o.Base != nil {
		if err := o.Base.Copy_(q).Err(); err != nil {
			return nil, err
		}
	} else {
		o.Base = q.Keep()
	}
	return []*tensor.Tensor{start}, nil
}

// Orthogonal makes a parameter of layer, a matrix (m, n) or a batch of them (*, m, n), orthogonal, or unitary if it is
// complex: its columns are orthonormal if m >= n, its rows otherwise. It begins as the nearest such matrix that a QR
// decomposition finds. The result is that of RegisterParametrization. Options: OrthogonalMap, NoTrivialization. PyTorch:
// torch.nn.utils.parametrizations.orthogonal.
func Orthogonal(layer Layer, name string, opts ...Option) *Parametrized {
	const op = "Orthogonal"
	b := build(op, opts, "OrthogonalMap", "NoTrivialization")
	w, l, err := parametrizable(op, layer, name)
	b.note(err)
	if b.err == nil && l != nil {
		w = l.standIn
	}
	o := &orthogonal{Map: b.orthogonalMap, Plain: b.noTrivialization}
	if b.err == nil {
		switch shape := w.Shape(); {
		case len(shape) < 2 || w.Numel() == 0:
			b.fail("a matrix or a batch of matrices is needed, got shape %v", shape)
		case o.Map == "" && (w.Size(-2) == w.Size(-1) || w.DType().IsComplex()):
			o.Map = "matrix_exp"
		case o.Map == "":
			o.Map = "householder"
		case !slices.Contains([]string{"matrix_exp", "cayley", "householder"}, o.Map):
			b.fail("OrthogonalMap must be matrix_exp, cayley or householder, got %q", o.Map)
		case o.Map == "householder" && w.DType().IsComplex():
			b.fail("OrthogonalMap householder does not support %v", w.DType())
		case l != nil && !o.Plain:
			b.fail("%q is parametrized already: use NoTrivialization", name)
		}
	}
	if b.err != nil {
		return &Parametrized{err: b.err}
	}
	p := parametrize(op, layer, name, o, nil, false)
	if p.err != nil {
		Release(o)
	}
	return p
}

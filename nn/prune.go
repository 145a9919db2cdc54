package nn

import (
	"math"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Pruning sets elements of a parameter to zero and keeps them there. The functions below return a Parametrized whose
// parameter weight is weight_orig * weight_mask; both are in the state under these names, as in PyTorch. A parameter that is
// pruned again keeps its zeros: what is pruned is chosen among the rest. RemoveParametrizations makes the zeros permanent.
// PyTorch: torch.nn.utils.prune.

// pruned multiplies a parameter by a mask.
type pruned struct {
	Mask *tensor.Tensor `nn:"_mask,buffer"`
}

// Forward returns the pruned parameter.
func (p *pruned) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	const op = "Prune"
	if p == nil || len(originals) != 1 {
		return noModule(op)
	}
	if bad := firstUnusable(op, originals[0], p.Mask); bad != nil {
		return bad
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor { return p.Mask.To(originals[0].DType()).Mul(originals[0]) })
}

// pruned returns the pruning of l if l has nothing else, or nil.
func (l *ParametrizationList) pruned() (p *pruned) {
	if l != nil && len(l.Originals) == 1 && len(l.Parametrizations) == 1 {
		p, _ = l.Parametrizations[0].(*pruned)
	}
	return p
}

// PruneAmount is how much is pruned: Fraction or Count.
type PruneAmount struct {
	n        int
	fraction float64
	whole    bool
}

// Fraction prunes a part of the weights that are left, from 0 to 1, rounded to the nearest number of elements or channels.
func Fraction(v float64) PruneAmount { return PruneAmount{fraction: v} }

// Count prunes n of the elements or channels that are left.
func Count(n int) PruneAmount { return PruneAmount{n: n, whole: true} }

// of returns the number to prune among size.
func (a PruneAmount) of(op string, size int) (int, error) {
	n := a.n
	if !a.whole {
		if !(a.fraction >= 0 && a.fraction <= 1) {
			return 0, refuse.Error(op, tensor.ErrArgument, "the fraction must be in [0, 1], got %v", a.fraction)
		}
		n = int(math.RoundToEven(a.fraction * float64(size)))
	}
	if n < 0 || n > size {
		return 0, refuse.Error(op, tensor.ErrArgument, "%d of %d cannot be pruned", n, size)
	}
	return n, nil
}

// method computes a mask for scores, of the shape of mask; mask has the ones that may become zero.
type method func(scores, mask *tensor.Tensor) (*tensor.Tensor, error)

// prune applies a method to a parameter. f sees scores and the mask so far.
func prune(op string, layer Layer, name string, opts []Option, f method) *Parametrized {
	fail := func(err error) *Parametrized { return &Parametrized{err: err} }
	b := build(op, opts, "ImportanceScores")
	if b.err != nil {
		return fail(b.err)
	}
	w, l, err := parametrizable(op, layer, name)
	if err != nil {
		return fail(err)
	}
	now := l.pruned()
	if l != nil {
		if now == nil {
			return fail(refuse.Error(op, tensor.ErrArgument, "%q is parametrized already", name))
		}
		w = l.Originals[0]
	}
	next := &pruned{}
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			scores, mask := w.Detach(), w.OnesLike()
			if now != nil {
				scores, mask = now.Forward(w), now.Mask.Clone()
			}
			if b.importance != nil {
				scores = b.importance
			}
			if err := refuse.Unusable(op, "ImportanceScores", scores); err != nil {
				return err
			}
			if !slices.Equal(scores.Shape(), w.Shape()) {
				return refuse.Error(op, tensor.ErrArgument, "ImportanceScores must have shape %v, got %v", w.Shape(), scores.Shape())
			}
			if w.Numel() == 0 {
				return refuse.Error(op, tensor.ErrArgument, "the parameter must not be empty, got shape %v", w.Shape())
			}
			made, err := f(scores.Detach(), mask)
			if err != nil {
				return err
			}
			if err := refuse.Unusable(op, "the mask", made); err != nil {
				return err
			}
			if !slices.Equal(made.Shape(), w.Shape()) {
				return refuse.Error(op, tensor.ErrArgument, "the mask must have shape %v, got %v", w.Shape(), made.Shape())
			}
			next.Mask = made.To(mask.DType(), mask.Device()).Clone()
			if err := next.Mask.Err(); err != nil {
				return err
			}
			next.Mask.Keep()
			return nil
		})
	})
	if err != nil {
		return fail(err)
	}
	if now != nil {
		now.Mask.Release()
		now.Mask = next.Mask
		return layer.(*Parametrized)
	}
	p := parametrize(op, layer, name, next, []string{"_orig"}, false)
	if p.err != nil {
		Release(next)
	}
	return p
}

// unstructured applies f to the elements that mask keeps, as vectors, and puts the results into mask.
func unstructured(f method) method {
	return func(scores, mask *tensor.Tensor) (*tensor.Tensor, error) {
		kept := mask.Ne(0)
		flat, err := f(scores.MaskedSelect(kept), mask.MaskedSelect(kept))
		if err != nil {
			return nil, err
		}
		return mask.MaskedScatter(kept, flat), nil
	}
}

// structured applies f to the slices along dim that mask does not prune wholly, and puts the results into mask.
func structured(op string, dim int, f func(scores, mask *tensor.Tensor, dim int) (*tensor.Tensor, error)) method {
	return func(scores, mask *tensor.Tensor) (*tensor.Tensor, error) {
		dims := mask.Dim()
		if dim < -dims || dim >= dims {
			return nil, refuse.Error(op, tensor.ErrArgument, "the dimension must be in [%d, %d], got %d", -dims, dims-1, dim)
		}
		at := (dim + dims) % dims
		// PyTorch's structured methods are for tensors of at least 2 dimensions.
		if dims < 2 {
			return nil, refuse.Error(op, tensor.ErrArgument, "the parameter must have at least 2 dimensions, got shape %v", mask.Shape())
		}
		kept := mask.Transpose(0, at).Flatten(tensor.StartDim(1)).Sum(tensor.Dim(1)).NonZero().Flatten()
		part, err := f(scores.IndexSelect(at, kept), mask.IndexSelect(at, kept), at)
		if err != nil {
			return nil, err
		}
		return mask.IndexCopy(at, kept, part), nil
	}
}

// zero sets the elements of a vector at index to zero.
func zero(mask, index *tensor.Tensor) *tensor.Tensor { return mask.IndexFill(0, index, 0) }

// PruneIdentity prunes nothing: the mask is all ones. PyTorch: torch.nn.utils.prune.identity.
func PruneIdentity(layer Layer, name string) *Parametrized {
	return prune("PruneIdentity", layer, name, nil, func(_, mask *tensor.Tensor) (*tensor.Tensor, error) { return mask, nil })
}

// PruneRandomUnstructured prunes elements at random. PyTorch: torch.nn.utils.prune.random_unstructured.
func PruneRandomUnstructured(layer Layer, name string, amount PruneAmount) *Parametrized {
	const op = "PruneRandomUnstructured"
	return prune(op, layer, name, nil, unstructured(randomElements(op, amount)))
}

func randomElements(op string, amount PruneAmount) method {
	return func(scores, mask *tensor.Tensor) (*tensor.Tensor, error) {
		n, err := amount.of(op, scores.Numel())
		if err != nil || n == 0 {
			return mask, err
		}
		_, index := scores.RandLike().TopK(n)
		return zero(mask, index), nil
	}
}

// PruneL1Unstructured prunes the elements with the smallest magnitudes. Options: ImportanceScores. PyTorch:
// torch.nn.utils.prune.l1_unstructured.
func PruneL1Unstructured(layer Layer, name string, amount PruneAmount, opts ...Option) *Parametrized {
	const op = "PruneL1Unstructured"
	return prune(op, layer, name, opts, unstructured(smallElements(op, amount)))
}

func smallElements(op string, amount PruneAmount) method {
	return func(scores, mask *tensor.Tensor) (*tensor.Tensor, error) {
		n, err := amount.of(op, scores.Numel())
		if err != nil || n == 0 {
			return mask, err
		}
		_, index := scores.Abs().TopK(n, tensor.Largest(false))
		return zero(mask, index), nil
	}
}

// PruneRandomStructured prunes slices along a dimension at random, for example channels. PyTorch:
// torch.nn.utils.prune.random_structured, whose default of dim is -1.
func PruneRandomStructured(layer Layer, name string, amount PruneAmount, dim int) *Parametrized {
	const op = "PruneRandomStructured"
	return prune(op, layer, name, nil, structured(op, dim, func(scores, mask *tensor.Tensor, dim int) (*tensor.Tensor, error) {
		channels := scores.Size(dim)
		n, err := amount.of(op, channels)
		if err != nil || n == 0 {
			return mask, err
		}
		chance := tensor.Rand([]int{channels}, tensor.CPU)
		limit, _ := chance.KthValue(n)
		return slicesOf(mask, chance.Le(limit).NonZero().Flatten().To(mask.Device()), dim), nil
	}))
}

// slicesOf sets slices of mask to zero.
func slicesOf(mask, index *tensor.Tensor, dim int) *tensor.Tensor {
	return mask.IndexFill(dim, index, 0)
}

// PruneLnStructured prunes the slices along a dimension that have the smallest n-norms, for example channels. Options:
// ImportanceScores. PyTorch: torch.nn.utils.prune.ln_structured, whose default of dim is -1.
func PruneLnStructured(layer Layer, name string, amount PruneAmount, n float64, dim int, opts ...Option) *Parametrized {
	const op = "PruneLnStructured"
	if math.IsNaN(n) {
		return &Parametrized{err: refuse.Error(op, tensor.ErrArgument, "n must be a number, got NaN")}
	}
	return prune(op, layer, name, opts, structured(op, dim, func(scores, mask *tensor.Tensor, dim int) (*tensor.Tensor, error) {
		channels := scores.Size(dim)
		less, err := amount.of(op, channels)
		if err != nil || less == 0 {
			return mask, err
		}
		norms := scores.Transpose(0, dim).Flatten(tensor.StartDim(1)).LinalgVectorNorm(tensor.Ord(n), tensor.Dim(1))
		_, keep := norms.TopK(channels - less)
		gone := tensor.Ones([]int{channels}, tensor.Bool, keep.Device()).IndexFill(0, keep, false).NonZero().Flatten()
		return slicesOf(mask, gone, dim), nil
	}))
}

// PruneCustomFromMask prunes the elements where mask, of the parameter's shape, is zero. PyTorch:
// torch.nn.utils.prune.custom_from_mask.
func PruneCustomFromMask(layer Layer, name string, mask *tensor.Tensor) *Parametrized {
	const op = "PruneCustomFromMask"
	if err := refuse.Unusable(op, "mask", mask); err != nil {
		return &Parametrized{err: err}
	}
	return prune(op, layer, name, nil, func(scores, now *tensor.Tensor) (*tensor.Tensor, error) {
		if !slices.Equal(mask.Shape(), now.Shape()) {
			return nil, refuse.Error(op, tensor.ErrArgument, "the mask must have shape %v, got %v", now.Shape(), mask.Shape())
		}
		return now.Mul(mask.To(now.DType(), now.Device())), nil
	})
}

// PruneCustom prunes by the mask that f returns for the parameter's values and the mask so far, of the same shape. f runs in a
// scope, and gradients are not recorded. PyTorch: a subclass of torch.nn.utils.prune.BasePruningMethod.
func PruneCustom(layer Layer, name string, f func(values, mask *tensor.Tensor) *tensor.Tensor) *Parametrized {
	const op = "PruneCustom"
	if f == nil {
		return &Parametrized{err: refuse.Nil(op, "a function")}
	}
	return prune(op, layer, name, nil, func(scores, mask *tensor.Tensor) (*tensor.Tensor, error) { return f(scores, mask), nil })
}

// PruneTarget is a parameter for PruneGlobalUnstructured: that of Layer with the name Name. Scores, if not nil, are in place of
// its values (importance_scores=).
type PruneTarget struct {
	Layer  Layer
	Name   string
	Scores *tensor.Tensor
}

// PruneMethod is a method of PruneGlobalUnstructured: PruneL1 or PruneRandom.
type PruneMethod int

const (
	PruneL1     PruneMethod = iota // the elements with the smallest magnitudes
	PruneRandom                    // elements at random
)

// PruneGlobalUnstructured prunes elements of all targets together, as if they were one parameter, and returns a
// Parametrized for each in the order of targets. On failure all targets are unchanged. PyTorch:
// torch.nn.utils.prune.global_unstructured.
func PruneGlobalUnstructured(targets []PruneTarget, how PruneMethod, amount PruneAmount) ([]*Parametrized, error) {
	const op = "PruneGlobalUnstructured"
	choose := smallElements(op, amount)
	switch {
	case how == PruneRandom:
		choose = randomElements(op, amount)
	case how != PruneL1:
		return nil, refuse.Error(op, tensor.ErrArgument, "%d is not a PruneMethod", how)
	case len(targets) == 0:
		return nil, refuse.Error(op, tensor.ErrArgument, "there is nothing to prune")
	}
	out := make([]*Parametrized, len(targets))
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() (err error) {
			var undo []func()
			defer func() {
				if err != nil {
					for _, f := range slices.Backward(undo) {
						f()
					}
				}
			}()
			var scores, masks []*tensor.Tensor
			shapes := make([][]int, len(targets))
			for i, t := range targets {
				s, m, err := t.state(op)
				if err != nil {
					return err
				}
				scores, masks, shapes[i] = append(scores, s.Reshape(-1)), append(masks, m.Reshape(-1)), m.Shape()
			}
			mask, err := unstructured(choose)(tensor.Cat(scores), tensor.Cat(masks))
			if err != nil {
				return err
			}
			at := 0
			around := map[Layer]Layer{} // several targets may be in one layer
			for i, t := range targets {
				n := masks[i].Numel()
				layer := t.Layer
				if p := around[layer]; p != nil {
					layer = p
				}
				p, back := pruneByMask(layer, t.Name, mask.Narrow(0, at, n).Reshape(shapes[i]...))
				if p.err != nil {
					return p.err
				}
				out[i], around[t.Layer], undo = p, p, append(undo, back)
				at += n
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// pruneByMask is PruneCustomFromMask, and returns a function that undoes it while the current scope is open.
func pruneByMask(layer Layer, name string, mask *tensor.Tensor) (*Parametrized, func()) {
	var now *pruned
	if p, ok := layer.(*Parametrized); ok {
		now = p.list(name).pruned()
	}
	if now == nil {
		p := PruneCustomFromMask(layer, name, mask)
		return p, func() { _, _ = RemoveParametrizations(p, name, false) }
	}
	old := now.Mask.Alias()
	if err := old.Err(); err != nil {
		return &Parametrized{err: err}, nil
	}
	return PruneCustomFromMask(layer, name, mask), func() {
		now.Mask.Release()
		now.Mask = old.Keep()
	}
}

// state returns the scores and the mask of a target.
func (t PruneTarget) state(op string) (scores, mask *tensor.Tensor, err error) {
	w, l, err := parametrizable(op, t.Layer, t.Name)
	if err != nil {
		return nil, nil, err
	}
	if l == nil {
		scores, mask = w.Detach(), w.OnesLike()
	} else {
		p := l.pruned()
		if p == nil {
			return nil, nil, refuse.Error(op, tensor.ErrArgument, "%q is parametrized already", t.Name)
		}
		scores, mask = p.Forward(l.Originals...), p.Mask
	}
	if t.Scores != nil {
		scores = t.Scores
	}
	if err := refuse.Unusable(op, "Scores", scores); err != nil {
		return nil, nil, err
	}
	if !slices.Equal(scores.Shape(), mask.Shape()) {
		return nil, nil, refuse.Error(op, tensor.ErrArgument, "Scores must have shape %v, got %v", mask.Shape(), scores.Shape())
	}
	return scores, mask, nil
}

// IsPruned reports whether m or one of its submodules has a pruned parameter. PyTorch: torch.nn.utils.prune.is_pruned.
func IsPruned(m any) bool {
	for _, n := range NamedModules(m) {
		p, ok := n.Module.(*Parametrized)
		if !ok {
			continue
		}
		for _, l := range p.Lists {
			if l != nil && slices.ContainsFunc(l.Parametrizations, func(part Parametrization) bool { _, ok := part.(*pruned); return ok }) {
				return true
			}
		}
	}
	return false
}

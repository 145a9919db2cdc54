package distributions

import (
	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// BijectTo returns a bijection from all numbers to the region of c, for example to sample a distribution's support in
// unconstrained space. For a constraint without one, it returns a transform with an error. PyTorch:
// torch.distributions.biject_to.
func BijectTo(c constraints.Constraint) Transform { return transformFor("BijectTo", c, true) }

// TransformTo returns a transform from all numbers to the region of c that suits optimization by coordinates; it need
// not be a bijection. For a constraint without one, it returns a transform with an error. PyTorch:
// torch.distributions.transform_to.
//
//	scale := distributions.TransformTo(constraints.Positive).Forward(unconstrained)
func TransformTo(c constraints.Constraint) Transform { return transformFor("TransformTo", c, false) }

func transformFor(op string, c constraints.Constraint, bijective bool) Transform {
	if c == nil {
		return composed{&transform{name: "ComposeTransform", err: refuse.Nil(op, "a constraint")}}
	}
	info := constraints.Describe(c)
	parts := func() []Transform {
		ts := make([]Transform, len(info.Parts))
		for i, p := range info.Parts {
			ts[i] = transformFor(op, p, bijective)
		}
		return ts
	}
	switch info.Kind {
	case constraints.KindReal:
		return IdentityTransform
	case constraints.KindIndependent:
		return NewIndependentTransform(parts()[0], info.Dim)
	case constraints.KindGreaterThan, constraints.KindGreaterThanEq:
		if v, ok := number(info.Lower); ok && v == 0 {
			return NewExpTransform()
		}
		return NewComposeTransform(NewExpTransform(), NewAffineTransform(info.Lower, 1))
	case constraints.KindLessThan:
		return NewComposeTransform(NewExpTransform(), NewAffineTransform(info.Upper, -1))
	case constraints.KindInterval, constraints.KindHalfOpenInterval:
		low, isLow := number(info.Lower)
		high, isHigh := number(info.Upper)
		if isLow && isHigh {
			if low == 0 && high == 1 {
				return NewSigmoidTransform()
			}
			return NewComposeTransform(NewSigmoidTransform(), NewAffineTransform(low, high-low))
		}
		return NewComposeTransform(NewSigmoidTransform(), NewAffineTransform(info.Lower, difference(info.Upper, info.Lower)))
	case constraints.KindSimplex:
		if bijective {
			return NewStickBreakingTransform()
		}
		return NewSoftmaxTransform()
	case constraints.KindLowerCholesky:
		if !bijective {
			return NewLowerCholeskyTransform()
		}
	case constraints.KindPositiveDefinite, constraints.KindPositiveSemidefinite:
		if !bijective {
			return NewPositiveDefiniteTransform()
		}
	case constraints.KindCorrCholesky:
		return NewCorrCholeskyTransform()
	case constraints.KindCat:
		return NewCatTransform(parts(), Dim(info.Dim), Lengths(info.Lengths...))
	case constraints.KindStack:
		return NewStackTransform(parts(), Dim(info.Dim))
	}
	return composed{&transform{name: "ComposeTransform", err: refuse.Error(op, tensor.ErrNotImplemented, "there is no transform to %v", c)}}
}

// difference returns high - low, one of which is a tensor.
func difference(high, low any) any {
	if h, ok := high.(*tensor.Tensor); ok {
		return h.Sub(low)
	}
	if l, ok := low.(*tensor.Tensor); ok {
		return l.RSub(high)
	}
	return 0.0
}

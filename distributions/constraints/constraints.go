// Package constraints describes the regions in which parameters of distributions and their samples are valid. It
// corresponds to torch.distributions.constraints. This program reports which rows of a tensor are probabilities:
//
//	p := tensor.FromSlice([]float32{0.25, 0.75, 0.5, 0.6}, []int{2, 2})
//	fmt.Println(constraints.Simplex.Check(p)) // tensor([ True, False])
package constraints

import (
	"fmt"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/repr"
	"github.com/linstock-ml/linstock/tensor"
)

// Constraint is a region of values. PyTorch: torch.distributions.constraints.Constraint.
type Constraint interface {
	// Check returns a bool tensor that has value's shape without its last EventDim dimensions: whether each event
	// is in the region.
	Check(value *tensor.Tensor) *tensor.Tensor
	// EventDim returns the number of last dimensions that are one event.
	EventDim() int
	// IsDiscrete reports whether the region consists of separate points.
	IsDiscrete() bool
	// String returns the constraint as PyTorch prints it.
	String() string
}

// region implements Constraint.
type region struct {
	kind     Kind
	text     string        // how it prints
	format   func() string // returns how it prints, where that depends on bounds or parts; it may wait for the device
	event    int
	discrete bool
	bounds   [2]any
	parts    []Constraint
	dim      int
	lengths  []int
	check    func(v *tensor.Tensor) *tensor.Tensor
}

// Kind is the kind of a constraint: the class that PyTorch gives it. Constraints from outside this package have the kind
// KindOther.
type Kind string

// Kinds of constraints.
const (
	KindOther                Kind = "other"
	KindDependent            Kind = "dependent"
	KindBoolean              Kind = "boolean"
	KindOneHot               Kind = "one_hot"
	KindIntegerInterval      Kind = "integer_interval"
	KindIntegerGreaterThan   Kind = "integer_greater_than"
	KindReal                 Kind = "real"
	KindGreaterThan          Kind = "greater_than"
	KindGreaterThanEq        Kind = "greater_than_eq"
	KindLessThan             Kind = "less_than"
	KindInterval             Kind = "interval"
	KindHalfOpenInterval     Kind = "half_open_interval"
	KindSimplex              Kind = "simplex"
	KindMultinomial          Kind = "multinomial"
	KindLowerTriangular      Kind = "lower_triangular"
	KindLowerCholesky        Kind = "lower_cholesky"
	KindCorrCholesky         Kind = "corr_cholesky"
	KindSquare               Kind = "square"
	KindSymmetric            Kind = "symmetric"
	KindPositiveSemidefinite Kind = "positive_semidefinite"
	KindPositiveDefinite     Kind = "positive_definite"
	KindIndependent          Kind = "independent"
	KindMixtureSameFamily    Kind = "MixtureSameFamilyConstraint"
	KindCat                  Kind = "cat"
	KindStack                Kind = "stack"
)

// Info describes a constraint of this package.
type Info struct {
	Kind         Kind
	Lower, Upper any          // the bounds, numbers or tensors; nil where there is none
	Parts        []Constraint // of Independent, MixtureSameFamily, Cat and Stack
	Dim          int          // of Cat and Stack; of Independent, the number of dimensions
	Lengths      []int        // of Cat
}

// Describe returns the kind of c and its arguments.
func Describe(c Constraint) Info {
	r, ok := c.(*region)
	if !ok || r == nil {
		return Info{Kind: KindOther}
	}
	return Info{Kind: r.kind, Lower: r.bounds[0], Upper: r.bounds[1], Parts: slices.Clone(r.parts), Dim: r.dim, Lengths: slices.Clone(r.lengths)}
}

// Check implements Constraint.
func (r *region) Check(v *tensor.Tensor) *tensor.Tensor {
	if r == nil || r.check == nil {
		return refuse.Tensor("Check", tensor.ErrArgument, "the validity of a dependent constraint cannot be determined")
	}
	if err := refuse.Unusable("Check", "", v); err != nil {
		return tensor.Failed(err)
	}
	if v.Dim() < r.event {
		return refuse.Tensor("Check", tensor.ErrArgument, "%v needs a tensor of at least %d dimensions, got shape %v", r, r.event, v.Shape())
	}
	return tensor.Tidy(func() *tensor.Tensor { return r.check(v) })
}

// EventDim implements Constraint.
func (r *region) EventDim() int {
	if r == nil {
		return 0
	}
	return r.event
}

// IsDiscrete implements Constraint.
func (r *region) IsDiscrete() bool { return r != nil && r.discrete }

// String implements Constraint.
func (r *region) String() string {
	switch {
	case r == nil:
		return "Dependent()"
	case r.format != nil:
		return r.format()
	}
	return r.text
}

// show formats a bound as Python does.
func show(v any) string {
	switch v := v.(type) {
	case *tensor.Tensor:
		if v.Err() != nil || v.Dim() != 0 {
			return v.String()
		}
		if d := v.DType(); d.IsFloat() {
			if x, err := v.Item(); err == nil {
				return repr.Float(x)
			}
		} else if x, err := tensor.Item[int64](v); err == nil && d != tensor.Bool && !d.IsComplex() {
			return fmt.Sprint(x)
		}
	case float32:
		return repr.Float(float64(v))
	case float64:
		return repr.Float(v)
	}
	return fmt.Sprint(v)
}

// all returns whether all elements of the last n dimensions are true.
func all(t *tensor.Tensor, n int) *tensor.Tensor {
	for range n {
		t = t.All(tensor.Dim(-1))
	}
	return t
}

// Dependent is the constraint of a value whose region depends on other values. Its Check returns an error.
var Dependent Constraint = &region{kind: KindDependent, text: "Dependent()"}

// IsDependent reports whether c is Dependent or has a part that is: its Check returns an error. PyTorch: is_dependent,
// which does not look at the parts.
func IsDependent(c Constraint) bool {
	info := Describe(c)
	return info.Kind == KindDependent || slices.ContainsFunc(info.Parts, IsDependent)
}

// Boolean allows 0 and 1.
var Boolean Constraint = &region{kind: KindBoolean, text: "Boolean()", discrete: true, check: func(v *tensor.Tensor) *tensor.Tensor {
	return v.Eq(0).LogicalOr(v.Eq(1))
}}

// OneHot allows vectors with one 1 and otherwise 0.
var OneHot Constraint = &region{kind: KindOneHot, text: "OneHot()", event: 1, discrete: true, check: func(v *tensor.Tensor) *tensor.Tensor {
	return v.Eq(0).LogicalOr(v.Eq(1)).All(tensor.Dim(-1)).LogicalAnd(v.Sum(tensor.Dim(-1)).Eq(1))
}}

// Real allows every number but NaN.
var Real Constraint = &region{kind: KindReal, text: "Real()", check: func(v *tensor.Tensor) *tensor.Tensor { return v.Eq(v) }}

// RealVector allows vectors of Real.
var RealVector = Independent(Real, 1)

// Positive allows numbers greater than 0.
var Positive = GreaterThan(0.0)

// Nonnegative allows numbers of at least 0.
var Nonnegative = GreaterThanEq(0.0)

// UnitInterval allows numbers in [0, 1].
var UnitInterval = Interval(0.0, 1.0)

// NonnegativeInteger allows whole numbers of at least 0.
var NonnegativeInteger = integerGreaterThan(0)

// PositiveInteger allows whole numbers of at least 1.
var PositiveInteger = integerGreaterThan(1)

// Simplex allows vectors of numbers of at least 0 whose sum is 1 within 1e-6.
var Simplex Constraint = &region{kind: KindSimplex, text: "Simplex()", event: 1, check: func(v *tensor.Tensor) *tensor.Tensor {
	return v.Ge(0).All(tensor.Dim(-1)).LogicalAnd(v.Sum(tensor.Dim(-1)).Sub(1).Abs().Lt(1e-6))
}}

func integerGreaterThan(low int) Constraint {
	return &region{kind: KindIntegerGreaterThan, text: fmt.Sprintf("IntegerGreaterThan(lower_bound=%d)", low), discrete: true, bounds: [2]any{low, nil},
		check: func(v *tensor.Tensor) *tensor.Tensor { return v.Remainder(1).Eq(0).LogicalAnd(v.Ge(low)) }}
}

// bounded returns the constraint of a name in PyTorch and two bounds, numbers or tensors.
func bounded(kind Kind, name string, lower, upper any, check func(v *tensor.Tensor) *tensor.Tensor) *region {
	format := func() string {
		var args []string
		if lower != nil {
			args = append(args, "lower_bound="+show(lower))
		}
		if upper != nil {
			args = append(args, "upper_bound="+show(upper))
		}
		return name + "(" + strings.Join(args, ", ") + ")"
	}
	return &region{kind: kind, format: format, bounds: [2]any{lower, upper}, check: check}
}

// GreaterThan allows numbers greater than lower, a number or a tensor. PyTorch: greater_than.
func GreaterThan(lower any) Constraint {
	return bounded(KindGreaterThan, "GreaterThan", lower, nil, func(v *tensor.Tensor) *tensor.Tensor { return v.Gt(lower) })
}

// GreaterThanEq allows numbers of at least lower, a number or a tensor. PyTorch: greater_than_eq.
func GreaterThanEq(lower any) Constraint {
	return bounded(KindGreaterThanEq, "GreaterThanEq", lower, nil, func(v *tensor.Tensor) *tensor.Tensor { return v.Ge(lower) })
}

// LessThan allows numbers less than upper, a number or a tensor. PyTorch: less_than.
func LessThan(upper any) Constraint {
	return bounded(KindLessThan, "LessThan", nil, upper, func(v *tensor.Tensor) *tensor.Tensor { return v.Lt(upper) })
}

// Interval allows numbers in [lower, upper], which are numbers or tensors. PyTorch: interval.
func Interval(lower, upper any) Constraint {
	return bounded(KindInterval, "Interval", lower, upper, func(v *tensor.Tensor) *tensor.Tensor { return v.Ge(lower).LogicalAnd(v.Le(upper)) })
}

// HalfOpenInterval allows numbers in [lower, upper). PyTorch: half_open_interval.
func HalfOpenInterval(lower, upper any) Constraint {
	return bounded(KindHalfOpenInterval, "HalfOpenInterval", lower, upper, func(v *tensor.Tensor) *tensor.Tensor { return v.Ge(lower).LogicalAnd(v.Lt(upper)) })
}

// IntegerInterval allows whole numbers in [lower, upper]. PyTorch: integer_interval.
func IntegerInterval(lower, upper any) Constraint {
	r := bounded(KindIntegerInterval, "IntegerInterval", lower, upper, func(v *tensor.Tensor) *tensor.Tensor {
		return v.Remainder(1).Eq(0).LogicalAnd(v.Ge(lower)).LogicalAnd(v.Le(upper))
	})
	r.discrete = true
	return r
}

// Multinomial allows vectors of numbers of at least 0 whose sum is at most upper. PyTorch: multinomial.
func Multinomial(upper int) Constraint {
	return &region{kind: KindMultinomial, text: "Multinomial()", event: 1, discrete: true, bounds: [2]any{nil, upper}, check: func(v *tensor.Tensor) *tensor.Tensor {
		return v.Ge(0).All(tensor.Dim(-1)).LogicalAnd(v.Sum(tensor.Dim(-1)).Le(upper))
	}}
}

// LowerTriangular allows matrices that are 0 above the diagonal.
var LowerTriangular Constraint = &region{kind: KindLowerTriangular, text: "LowerTriangular()", event: 2, check: lowerTriangular}

func lowerTriangular(v *tensor.Tensor) *tensor.Tensor { return all(v.Tril().Eq(v), 2) }

// LowerCholesky allows lower triangular matrices with a positive diagonal.
var LowerCholesky Constraint = &region{kind: KindLowerCholesky, text: "LowerCholesky()", event: 2, check: lowerCholesky}

func lowerCholesky(v *tensor.Tensor) *tensor.Tensor {
	return lowerTriangular(v).LogicalAnd(all(v.Diagonal(tensor.Dim1(-2), tensor.Dim2(-1)).Gt(0), 1))
}

// CorrCholesky allows lower triangular matrices with a positive diagonal and rows of norm 1.
var CorrCholesky Constraint = &region{kind: KindCorrCholesky, text: "CorrCholesky()", event: 2, check: func(v *tensor.Tensor) *tensor.Tensor {
	eps := map[tensor.DType]float64{tensor.Float64: 0x1p-52, tensor.Float32: 0x1p-23, tensor.Float16: 0x1p-10, tensor.BFloat16: 0x1p-7}[v.DType()]
	norm := v.Detach().LinalgVectorNorm(tensor.Dim(-1))
	return lowerCholesky(v).LogicalAnd(norm.Sub(1).Abs().Le(eps * float64(v.Size(-1)) * 10).All(tensor.Dim(-1)))
}}

// Square allows square matrices.
var Square Constraint = &region{kind: KindSquare, text: "Square()", event: 2, check: func(v *tensor.Tensor) *tensor.Tensor {
	shape := v.Shape()
	return tensor.Full(shape[:len(shape)-2], square(v), tensor.Bool, v.Device())
}}

func square(v *tensor.Tensor) bool { return v.Size(-1) == v.Size(-2) }

// symmetric returns whether v's matrices are square and symmetric within 1e-6, and whether all are.
func symmetric(v *tensor.Tensor) (each *tensor.Tensor, every bool) {
	if !square(v) {
		return Square.Check(v), false
	}
	each = all(v.IsClose(v.MT(), tensor.Atol(1e-6)), 2)
	n, err := each.All().Item()
	return each, err == nil && n == 1
}

// Symmetric allows symmetric matrices, within 1e-6.
var Symmetric Constraint = &region{kind: KindSymmetric, text: "Symmetric()", event: 2, check: func(v *tensor.Tensor) *tensor.Tensor {
	each, _ := symmetric(v)
	return each
}}

// PositiveSemidefinite allows symmetric matrices whose eigenvalues are at least 0.
var PositiveSemidefinite Constraint = &region{kind: KindPositiveSemidefinite, text: "PositiveSemidefinite()", event: 2, check: func(v *tensor.Tensor) *tensor.Tensor {
	each, every := symmetric(v)
	if !every {
		return each
	}
	return v.LinalgEigvalsh().Ge(0).All(tensor.Dim(-1))
}}

// PositiveDefinite allows symmetric matrices that have a Cholesky decomposition.
var PositiveDefinite Constraint = &region{kind: KindPositiveDefinite, text: "PositiveDefinite()", event: 2, check: func(v *tensor.Tensor) *tensor.Tensor {
	each, every := symmetric(v)
	if !every {
		return each
	}
	results, err := tensor.Call("aten::linalg_cholesky_ex", v)
	if err != nil {
		return tensor.Failed(err)
	}
	info, ok := results[1].(*tensor.Tensor)
	if !ok {
		return tensor.Failed(nil)
	}
	return info.Eq(0)
}}

// Independent requires all of base's events in the n dimensions before them, and so makes one event of them. PyTorch:
// independent.
func Independent(base Constraint, n int) Constraint {
	if base == nil || n < 0 {
		return invalid(fmt.Sprintf("Independent(%v, %d)", base, n))
	}
	format := func() string { return fmt.Sprintf("IndependentConstraint(%v, %d)", base, n) }
	return &region{kind: KindIndependent, format: format, event: base.EventDim() + n, discrete: base.IsDiscrete(),
		parts: []Constraint{base}, dim: n, check: func(v *tensor.Tensor) *tensor.Tensor {
			each := base.Check(v)
			if !handle.Usable(each) || each.Dim() < n {
				return each
			}
			return all(each, n)
		}}
}

// invalid returns a constraint whose Check returns an error.
func invalid(text string) Constraint {
	return &region{kind: KindOther, text: text, check: func(*tensor.Tensor) *tensor.Tensor {
		return refuse.Tensor("Check", tensor.ErrArgument, "invalid constraint %s", text)
	}}
}

// MixtureSameFamily is base for the components of a mixture, applied to the mixture's values. PyTorch:
// MixtureSameFamilyConstraint.
func MixtureSameFamily(base Constraint) Constraint {
	if base == nil {
		return invalid("MixtureSameFamily(nil)")
	}
	event := base.EventDim()
	format := func() string { return fmt.Sprintf("MixtureSameFamilyConstraint(%v)", base) }
	return &region{kind: KindMixtureSameFamily, format: format, event: event, discrete: base.IsDiscrete(),
		parts: []Constraint{base}, check: func(v *tensor.Tensor) *tensor.Tensor {
			each := base.Check(v.Unsqueeze(-1 - event))
			return all(each, each.Dim()-(v.Dim()-event))
		}}
}

// Cat applies parts to successive slices along dim, of the given lengths; nil means that each has length 1. PyTorch: cat.
func Cat(parts []Constraint, dim int, lengths []int) Constraint {
	if lengths == nil {
		lengths = slices.Repeat([]int{1}, len(parts))
	}
	if slices.Contains(parts, nil) || len(parts) == 0 || len(lengths) != len(parts) {
		return invalid(fmt.Sprintf("Cat(%v, %d, %v)", parts, dim, lengths))
	}
	parts, lengths = slices.Clone(parts), slices.Clone(lengths)
	r := &region{kind: KindCat, text: "Cat()", parts: parts, dim: dim, lengths: lengths, check: func(v *tensor.Tensor) *tensor.Tensor {
		var each []*tensor.Tensor
		at := 0
		for i, c := range parts {
			each = append(each, c.Check(v.Narrow(dim, at, lengths[i])))
			at += lengths[i]
		}
		return tensor.Cat(each, tensor.Dim(dim))
	}}
	for _, c := range parts {
		r.event, r.discrete = max(r.event, c.EventDim()), r.discrete || c.IsDiscrete()
	}
	return r
}

// Stack applies parts to the elements along dim. PyTorch: stack.
func Stack(parts []Constraint, dim int) Constraint {
	if slices.Contains(parts, nil) || len(parts) == 0 {
		return invalid(fmt.Sprintf("Stack(%v, %d)", parts, dim))
	}
	parts = slices.Clone(parts)
	r := &region{kind: KindStack, text: "Stack()", parts: parts, dim: dim, check: func(v *tensor.Tensor) *tensor.Tensor {
		var each []*tensor.Tensor
		for i := range min(v.Size(dim), len(parts)) {
			each = append(each, parts[i].Check(v.Select(dim, i)))
		}
		return tensor.Stack(each, tensor.Dim(dim))
	}}
	for _, c := range parts {
		r.event, r.discrete = max(r.event, c.EventDim()), r.discrete || c.IsDiscrete()
	}
	if dim+r.event < 0 {
		r.event++
	}
	return r
}

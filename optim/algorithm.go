package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/internal/strides"
	"github.com/linstock-ml/linstock/tensor"
)

// Algorithm describes an optimization algorithm, one of this package or your own. New returns an optimizer that runs
// it. PyTorch: a subclass of torch.optim.Optimizer.
//
// An optimizer calls Step for the parameters of a group that have a gradient, in a scope, with the recording of
// gradients disabled, once for each dtype and device. The functions must not call the optimizer's methods, which wait for
// the step to end.
type Algorithm struct {
	Name string // for errors

	// Options names the hyperparameters that the algorithm has besides lr, as PyTorch does: "weight_decay", "betas".
	// Other names are options of its own, which Set sets and Group.Extra holds.
	Options  []string
	Defaults Group

	// Slots describes the tensors that the optimizer keeps for each parameter.
	Slots []Slot
	// Counts includes the number of steps of each parameter in the optimizer's state, as "step". Set it if Step reads
	// Batch.Steps. A step of such an algorithm cannot be captured by package cuda.
	Counts bool

	// Check returns an error for hyperparameters that the algorithm rejects; nil accepts what the options accept.
	Check func(g *Group) error
	// CheckParam returns an error for a parameter that the algorithm rejects; nil accepts all.
	CheckParam func(p *tensor.Tensor) error

	// Step updates b.Params. Nil means that gradients must be sparse.
	Step func(g *Group, b *Batch) error
	// SparseStep is Step for parameters with sparse gradients. Nil means that gradients must be dense.
	SparseStep func(g *Group, b *Batch) error

	checkNew    func(g *Group) error // is Check for a new group alone: schedules may set what it rejects later
	checkSparse func(g *Group) error // returns an error for hyperparameters with which SparseStep cannot run

	fast    func(g *Group, bk *bucket) error // steps a bucket whose parameters all have state; reads the gradients itself
	whole   bool                             // all parameters together, in a step with a closure; no master weights
	real    bool                             // rejects complex parameters
	intStep bool                             // PyTorch's "step" is an int
	steady  bool                             // Step does not read Batch.Steps
	torch   map[string]any                   // other keys of PyTorch's groups: how it computes the same
}

// Slot describes a tensor of an optimizer's state.
type Slot struct {
	Name string // in the state dict
	// Used reports whether p, in group g, has the tensor; nil means always.
	Used func(g *Group, p *tensor.Tensor) bool
	// New returns the tensor before p's first step; nil means zeros with p's shape, dtype and device. For a complex
	// parameter p is its view as real numbers, as in Batch.
	New func(g *Group, p *tensor.Tensor) *tensor.Tensor

	counts    bool                         // a number of steps
	scalar    bool                         // a number with scalarDType
	byShape   bool                         // Used depends on the parameter alone
	shape     func(p *tensor.Tensor) []int // the tensor's; nil means p's, and with New any
	sameShape bool                         // p's shape, with New
	promotes  bool                         // Step also computes with one of another dtype than p's, as PyTorch does
}

// scalarDType returns the dtype of the numbers that PyTorch keeps as tensors in the state of a parameter.
func scalarDType() tensor.DType {
	if tensor.DefaultDType() == tensor.Float64 {
		return tensor.Float64
	}
	return tensor.Float32
}

// Batch holds the parameters that one call of Algorithm.Step updates. They have the same dtype and device. Equal indices
// belong to the same parameter. With MasterWeights, Params are the float32 copies and Grads are float32. Complex
// parameters, their dense gradients and their state are views as real numbers, of shape (*, 2), as in PyTorch's optimizers.
type Batch struct {
	Params, Grads []*tensor.Tensor
	State         [][]*tensor.Tensor // by slot, in the order of Slots, then by parameter; nil if not used
	Steps         []float64          // the number of this step, 1 at the parameter's first
	First         bool               // whether this is the first step of all of them
}

// real returns b with the views as real numbers of its complex tensors.
func (b *Batch) real() *Batch {
	r := &Batch{Params: allReal(b.Params), Steps: b.Steps, First: b.First}
	for _, g := range b.Grads {
		r.Grads = append(r.Grads, asReal(g.ResolveConj()))
	}
	for _, ts := range b.State {
		r.State = append(r.State, allReal(ts))
	}
	return r
}

func allReal(ts []*tensor.Tensor) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(ts))
	for i, t := range ts {
		out[i] = asReal(t)
	}
	return out
}

// asReal returns the view of a complex tensor as real numbers, and others themselves.
func asReal(t *tensor.Tensor) *tensor.Tensor {
	if t == nil || !t.DType().IsComplex() {
		return t
	}
	return t.Detach().ViewAsReal()
}

// each calls step for each parameter, in its own scope: otherwise the temporaries of all would add up until the
// optimizer's step ends.
func (b *Batch) each(step func(i int) error) error {
	for i := range b.Params {
		if err := tensor.WithScope(func() error { return step(i) }); err != nil {
			return err
		}
	}
	return nil
}

// New returns an optimizer that runs a. Options: LR, MasterWeights, StochasticRounding, and those that a.Options names.
func New(a Algorithm, params []*tensor.Tensor, lr float64, opts ...Option) (*Optimizer, error) {
	if a.Name == "" {
		a.Name = "New"
	}
	if a.Step == nil && a.SparseStep == nil && !a.whole {
		return nil, refuse.Error(a.Name, tensor.ErrNil, "the algorithm has no Step")
	}
	names := map[string]bool{"step": a.Counts, "master": true}
	for _, s := range a.Slots {
		if s.Name == "" || names[s.Name] {
			return nil, refuse.Error(a.Name, tensor.ErrArgument, "slot %q has no name or one that another has", s.Name)
		}
		names[s.Name] = true
	}
	return newOptimizer(&a, params, lr, opts)
}

// refuses returns the error of sparse or dense gradients that the algorithm does not take with the group's settings.
func (a *Algorithm) refuses(g *Group, sparse bool) error {
	switch {
	case sparse && a.SparseStep == nil:
		return refuse.Error(a.Name, tensor.ErrArgument, "the gradients must be dense")
	case !sparse && a.Step == nil:
		return refuse.Error(a.Name, tensor.ErrArgument, "the gradients must be sparse")
	case sparse && a.checkSparse != nil:
		if err := a.checkSparse(g); err != nil {
			return refuse.Error(a.Name, tensor.ErrArgument, "%v", err)
		}
	}
	return nil
}

// undivided is a CheckParam for algorithms whose steps combine the elements of a parameter.
func undivided(p *tensor.Tensor) error {
	if sharding.Groups(p) != nil {
		return errors.New("is this process's part of a parameter that package dist divides, and the algorithm needs whole ones")
	}
	return nil
}

// foreach runs operators on lists of tensors until one fails.
type foreach struct{ err error }

// do runs an operator that changes its first list in place, such as "mul_.Scalar".
func (f *foreach) do(op string, args ...any) {
	if f.err == nil {
		_, f.err = tensor.CallUnchecked("aten::_foreach_"+op, args...)
	}
}

// list runs an operator that returns a list.
func (f *foreach) list(op string, args ...any) []*tensor.Tensor {
	if f.err != nil {
		return nil
	}
	out, err := tensor.CallUnchecked("aten::_foreach_"+op, args...)
	if err == nil {
		if len(out) == 1 {
			if ts, ok := out[0].([]*tensor.Tensor); ok {
				return ts
			}
		}
		err = fmt.Errorf("linstock: %s returned no list", op)
	}
	f.err = err
	return nil
}

// release frees tensors of a list before the scope does.
func (f *foreach) release(lists ...[]*tensor.Tensor) {
	for _, ts := range lists {
		for _, t := range ts {
			t.Release()
		}
	}
}

// gradients returns the gradients with maximize and weight decay applied, and whether they are copies.
func (f *foreach) gradients(g *Group, b *Batch, decay float64) (grads []*tensor.Tensor, fresh bool) {
	grads = b.Grads
	if g.Maximize {
		grads, fresh = f.list("neg", grads), true
	}
	if decay != 0 {
		if fresh {
			f.do("add_.List", grads, b.Params, decay)
		} else {
			grads, fresh = f.list("add.List", grads, b.Params, decay), true
		}
	}
	return grads, fresh
}

// layOut copies the gradients whose strides differ from their parameters', and returns an error if those of a list of state
// differ. libtorch's fused kernels read all lists in the order of memory and check nothing; Optimizer.check has compared
// the shapes.
func (b *Batch) layOut(state ...[]*tensor.Tensor) error {
	for i, p := range b.Params {
		contiguous := p.IsContiguous()
		if !contiguous && !strides.Dense(p.Shape(), p.Stride()) {
			return fmt.Errorf("a parameter of shape %v is not dense in memory: its strides are %v", p.Shape(), p.Stride())
		}
		laidOut := func(t *tensor.Tensor) bool {
			return contiguous && t.IsContiguous() || slices.Equal(p.Stride(), t.Stride())
		}
		for _, s := range state {
			if !laidOut(s[i]) {
				return fmt.Errorf("the strides of a parameter of shape %v have changed since its first step, from %v to %v", p.Shape(), s[i].Stride(), p.Stride())
			}
		}
		if laidOut(b.Grads[i]) {
			continue
		}
		b.Grads[i] = p.EmptyLike().Copy_(b.Grads[i])
		if err := b.Grads[i].Err(); err != nil {
			return err
		}
	}
	return nil
}

// each returns f of each number of steps.
func each[T any](steps []float64, f func(step float64) T) []T {
	out := make([]T, len(steps))
	for i, s := range steps {
		if i > 0 && s == steps[i-1] {
			out[i] = out[i-1]
			continue
		}
		out[i] = f(s)
	}
	return out
}

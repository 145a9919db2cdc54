package dist

import (
	"context"
	"encoding/gob"
	"fmt"
	"maps"
	"slices"

	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// ZeroRedundancyOptimizer is an optimizer whose state is divided among the ranks of a group (ZeRO-1): each rank updates a
// part of the parameters, of which alone it has the state, and sends them to the others. It computes what the same
// optimizer of all parameters would. PyTorch: torch.distributed.optim.ZeroRedundancyOptimizer.
type ZeroRedundancyOptimizer struct {
	g      *Group
	local  *optim.Optimizer
	params []*tensor.Tensor
	parts  [][]int // the numbers of each rank's parameters
	sticky error   // of ZeroGrad, for the next Step
}

// NewZeroRedundancyOptimizer divides params, the same on all ranks of g, and calls build with this rank's part:
//
//	opt, err := dist.NewZeroRedundancyOptimizer(g, nn.Parameters(model), func(part []*tensor.Tensor) (*optim.Optimizer, error) {
//		return optim.NewAdamW(part, 3e-4)
//	})
//
// There must be at least as many parameters as ranks, dense in memory. They are one parameter group: for several
// groups, for example with different learning rates, make one ZeroRedundancyOptimizer for each. Their gradients must be
// equal on all ranks when Step is called, as they are with a DDP.
func NewZeroRedundancyOptimizer(g *Group, params []*tensor.Tensor, build func(part []*tensor.Tensor) (*optim.Optimizer, error)) (*ZeroRedundancyOptimizer, error) {
	const op = "NewZeroRedundancyOptimizer"
	if err := g.check(op); err != nil {
		return nil, err
	}
	if build == nil {
		return nil, refuse.Nil(op, "a function")
	}
	if len(params) < g.size {
		return nil, refuse.Error(op, tensor.ErrArgument, "%d parameters cannot be divided among %d ranks", len(params), g.size)
	}
	for i, p := range params {
		if err := refuse.Unusable(op, fmt.Sprintf("parameter %d", i), p); err != nil {
			return nil, err
		}
		if err := g.alone(op, fmt.Sprintf("parameter %d", i), p); err != nil {
			return nil, err
		}
		if err := dense(op, fmt.Sprintf("parameter %d", i), p); err != nil {
			return nil, err
		}
	}
	z := &ZeroRedundancyOptimizer{g: g, params: slices.Clone(params), parts: partition(params, g.size)}
	mine := z.part(g.rank)
	var err error
	if z.local, err = build(mine); err != nil {
		return nil, err
	}
	if z.local == nil {
		return nil, refuse.Nil(op, "an optimizer")
	}
	if groups := z.local.Groups(); len(groups) != 1 || !slices.Equal(groups[0].Params, mine) {
		z.local.Release()
		return nil, refuse.Error(op, tensor.ErrArgument, "the optimizer must have one group, of the parameters that the function was given")
	}
	return z, nil
}

// partition divides the parameters among n ranks, the largest first, each to the rank with the fewest elements. As PyTorch.
func partition(params []*tensor.Tensor, n int) [][]int {
	order := make([]int, len(params))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return params[b].Numel() - params[a].Numel() })
	parts, sizes := make([][]int, n), make([]int, n)
	for _, i := range order {
		r := slices.Index(sizes, slices.Min(sizes))
		parts[r] = append(parts[r], i)
		// One at least, so that tensors without elements are divided, too.
		sizes[r] += max(1, params[i].Numel())
	}
	return parts
}

// made reports whether NewZeroRedundancyOptimizer made z.
func (z *ZeroRedundancyOptimizer) made() bool { return z != nil && z.g != nil }

// part returns the parameters of a rank.
func (z *ZeroRedundancyOptimizer) part(rank int) []*tensor.Tensor {
	var ps []*tensor.Tensor
	for _, i := range z.parts[rank] {
		ps = append(ps, z.params[i])
	}
	return ps
}

// Local returns the optimizer of this rank's part, for schedules, which all ranks must step alike, and hooks. Its Step and
// ZeroGrad are not for the program. A GradScaler cannot be used with it, since the ranks might decide differently.
func (z *ZeroRedundancyOptimizer) Local() *optim.Optimizer {
	if z == nil {
		return nil
	}
	return z.local
}

// Release frees the state of this rank's part.
func (z *ZeroRedundancyOptimizer) Release() {
	if z.made() {
		z.local.Release()
	}
}

// Step updates this rank's parameters and copies those of the other ranks from them. All ranks must call it. If it fails,
// or a hook panics or ends the goroutine (runtime.Goexit), the group can only be closed. In DDP.Join of the same group it
// is an error.
func (z *ZeroRedundancyOptimizer) Step() error {
	if !z.made() {
		return refuse.Nil("Step", "an optimizer")
	}
	if err := z.g.unjoined("Step"); err != nil {
		return err
	}
	err := z.g.orAbort(func() error {
		err := z.sticky
		if z.sticky = nil; err == nil {
			err = z.local.Step()
		}
		return err
	})
	if err != nil {
		return err
	}
	for r := range z.parts {
		if err := z.g.broadcastCoalesced(context.Background(), "Step", z.part(r), r); err != nil {
			return err
		}
	}
	return nil
}

// ZeroGrad sets the gradients of all parameters to nil. The next Step returns its error, if any.
func (z *ZeroRedundancyOptimizer) ZeroGrad() {
	if !z.made() {
		return
	}
	if err := tensor.ZeroGrads(z.params, true); err != nil && z.sticky == nil {
		z.sticky = err
	}
}

// Part returns the parameters of which this rank has the state, by their numbers among all.
func (z *ZeroRedundancyOptimizer) Part() map[int]*tensor.Tensor {
	part := map[int]*tensor.Tensor{}
	if z.made() {
		for _, i := range z.parts[z.g.rank] {
			part[i] = z.params[i]
		}
	}
	return part
}

// StateDict returns this rank's part of the state of an optimizer of all parameters: State has this rank's alone, and
// ParamGroups has the numbers of all.
func (z *ZeroRedundancyOptimizer) StateDict() (s optim.State) {
	if !z.made() {
		return s
	}
	own := z.local.StateDict()
	s.State = map[int]map[string]any{}
	for local, i := range z.parts[z.g.rank] {
		if values, ok := own.State[local]; ok {
			s.State[i] = values
		}
	}
	for _, group := range own.ParamGroups {
		group = maps.Clone(group)
		group["params"] = numbers(len(z.params))
		s.ParamGroups = append(s.ParamGroups, group)
	}
	return s
}

// stateEntry is one value of a parameter's state, or the form of a tensor, which follows.
type stateEntry struct {
	Param  int
	Name   string
	Value  any
	Tensor bool
	DType  int
	Shape  []int
}

func init() { gob.Register([]any{}) }

// ConsolidateState returns, on the rank dst, the state of an optimizer of all parameters, and on the others an empty one. All
// ranks must call it. On dst the result takes the memory of the whole state, on the CPU. PyTorch:
// ZeroRedundancyOptimizer.consolidate_state_dict.
func (z *ZeroRedundancyOptimizer) ConsolidateState(ctx context.Context, dst int) (s optim.State, err error) {
	const op = "ConsolidateState"
	if !z.made() {
		return s, refuse.Nil(op, "an optimizer")
	}
	if dst < 0 || dst >= z.g.Size() {
		return s, refuse.Error(op, tensor.ErrArgument, "rank %d is not in a group of %d", dst, z.g.Size())
	}
	own := z.StateDict()
	var entries []stateEntry
	var tensors []*tensor.Tensor
	for i, values := range own.State {
		for name, value := range values {
			e := stateEntry{Param: i, Name: name}
			if t, ok := value.(*tensor.Tensor); ok {
				e.Tensor, e.DType, e.Shape = true, int(t.DType()), t.Shape()
				tensors = append(tensors, t)
			} else {
				e.Value = value
			}
			entries = append(entries, e)
		}
	}
	all, err := AllGatherObject(ctx, z.g, entries)
	if err != nil {
		return s, err
	}
	if z.g.rank != dst {
		return s, tensor.WithScope(func() error {
			for _, t := range tensors {
				if err := z.g.rest(ctx, op, z.g.Send(ctx, t.To(tensor.CPU).Contiguous(), dst, 0)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	s.State = map[int]map[string]any{}
	for r, entries := range all {
		for _, e := range entries {
			if s.State[e.Param] == nil {
				s.State[e.Param] = map[string]any{}
			}
			if !e.Tensor {
				s.State[e.Param][e.Name] = e.Value
				continue
			}
			t := tensor.Empty(e.Shape, tensor.DType(e.DType))
			if r == dst {
				t.Copy_(tensors[0])
				tensors = tensors[1:]
				err = t.Err()
			} else {
				err = z.g.rest(ctx, op, z.g.Recv(ctx, t, r, 0))
			}
			if err != nil {
				return optim.State{}, err
			}
			s.State[e.Param][e.Name] = t
		}
	}
	s.ParamGroups = own.ParamGroups
	return s, nil
}

// LoadStateDict sets the state to this rank's part of s, the state of an optimizer of all parameters, whose group has their
// numbers in the order of NewZeroRedundancyOptimizer's parameters.
// PyTorch: ZeroRedundancyOptimizer.load_state_dict.
func (z *ZeroRedundancyOptimizer) LoadStateDict(s optim.State) error {
	const op = "LoadStateDict"
	if !z.made() {
		return refuse.Nil(op, "an optimizer")
	}
	if len(s.ParamGroups) != 1 {
		return refuse.Error(op, tensor.ErrArgument, "the state has %d groups, not one", len(s.ParamGroups))
	}
	used := map[int]bool{}
	have, err := handle.ParamNumbers(s.ParamGroups[0], used)
	if err != nil {
		return refuse.Error(op, tensor.ErrArgument, "%v", err)
	}
	if len(have) != len(z.params) {
		return refuse.Error(op, tensor.ErrArgument, "the state is that of %d parameters, not of %d", len(have), len(z.params))
	}
	for number := range s.State {
		if !used[number] {
			return refuse.Error(op, tensor.ErrArgument, "the state has a parameter %d that is not in its group", number)
		}
	}
	own := optim.State{State: map[int]map[string]any{}}
	for local, i := range z.parts[z.g.rank] {
		if values, ok := s.State[have[i]]; ok {
			own.State[local] = values
		}
	}
	group := maps.Clone(s.ParamGroups[0])
	group["params"] = numbers(len(z.parts[z.g.rank]))
	own.ParamGroups = []map[string]any{group}
	return z.local.LoadStateDict(own)
}

// numbers returns 0…n-1 in the form of optim.State.
func numbers(n int) []any {
	all := make([]any, n)
	for i := range all {
		all[i] = i
	}
	return all
}

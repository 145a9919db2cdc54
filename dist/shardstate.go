package dist

import (
	"context"
	"maps"
	"slices"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// Gather returns, on the rank dst, the whole of which t is this rank's rows, and nil on the others. t is p.Tensor, or has its
// shape, as the state of an optimizer. All ranks must call it. PyTorch: DTensor.full_tensor.
func (p *ShardedParameter) Gather(ctx context.Context, t *tensor.Tensor, dst int) (whole *tensor.Tensor, err error) {
	const op = "Gather"
	if p == nil || p.g == nil {
		return nil, refuse.Nil(op, "a parameter of an FSDPModule")
	}
	if err := refuse.Unusable(op, "", t); err != nil {
		return nil, err
	}
	_, rows := p.rows(p.g.rank)
	if want := append([]int{rows}, p.Shape[1:]...); !slices.Equal(t.Shape(), want) {
		return nil, refuse.Error(op, tensor.ErrArgument, "a tensor of shape %v is needed, got %v", want, t.Shape())
	}
	all, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		own := p.flat(t, rows)
		var parts *tensor.Tensor
		var out []*tensor.Tensor
		if p.g.rank == dst {
			parts = own.NewEmpty([]int{p.g.size, own.Numel()})
			for r := range p.g.size {
				out = append(out, parts.Select(0, r))
			}
		}
		if err := p.g.Gather(ctx, out, own, dst); err != nil || parts == nil {
			return nil, err
		}
		whole := own.NewEmpty(p.Shape)
		return []*tensor.Tensor{whole}, p.assemble(whole, parts)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// Sharding returns the shape of the whole parameter of which t is this rank's rows, and where t begins in it; nil if m has
// not divided t, and in a group of one rank. See package dcp: its Model takes the outermost FSDPModule.
func (m *FSDPModule) Sharding(t *tensor.Tensor) (global, offsets []int) {
	if m == nil || m.of[t] == nil || m.g.size == 1 {
		return nil, nil
	}
	p := m.of[t]
	offsets = make([]int, len(p.Shape))
	offsets[0] = p.Offset
	return slices.Clone(p.Shape), offsets
}

// FullStateDict returns, on the rank dst, the state of a model with whole parameters, as nn.StateDict does for an
// undivided one, and an empty map on the others. Tensors that are not divided are the model's own. Parts of tensors
// that no FSDPModule of g has divided, such as those of a ColwiseParallel, are an error, as is a merged nn.LoRALinear. All
// ranks must call it.
// PyTorch: torch.distributed.checkpoint.state_dict.get_model_state_dict with full_state_dict.
func FullStateDict(ctx context.Context, g *Group, model any, dst int) (map[string]*tensor.Tensor, error) {
	const op = "FullStateDict"
	if err := g.check(op); err != nil {
		return nil, err
	}
	if dst < 0 || dst >= g.size {
		return nil, refuse.Error(op, tensor.ErrArgument, "rank %d is not in a group of %d", dst, g.size)
	}
	if err := nn.Check(model); err != nil {
		return nil, err
	}
	own := nn.StateDict(model)
	if len(own) > 0 && own[0].Name == "" {
		if err := own[0].Tensor.Err(); err != nil { // of a merged LoRALinear
			return nil, refuse.Named(op, err)
		}
	}
	owners, state := g.sharded(), map[string]*tensor.Tensor{}
	done := map[*tensor.Tensor]*tensor.Tensor{}
	begun := false // the first collective
	for _, n := range own {
		whole, again := done[n.Tensor]
		owner := owners[n.Tensor]
		for _, by := range sharding.Groups(n.Tensor) {
			if owner == nil || by != sharding.Group(reducer{g}) {
				return nil, refuse.Error(op, tensor.ErrArgument, "%s is a part of a tensor, which no FSDPModule of the group has divided", n.Name)
			}
		}
		if !again && owner != nil {
			var err error
			whole, err = owner.Gather(ctx, n.Tensor, dst)
			if begun {
				err = g.rest(ctx, op, err)
			}
			if err != nil {
				return nil, err
			}
			begun = true
		} else if !again {
			whole = n.Tensor
		}
		if done[n.Tensor] = whole; g.rank == dst {
			state[n.Name] = whole
		}
	}
	return state, nil
}

// LoadFullStateDict sets a model to a state with whole parameters, of which each rank takes its rows. Each rank needs the
// whole state, which FullStateDict returns on one rank only. PyTorch:
// torch.distributed.checkpoint.state_dict.set_model_state_dict with full_state_dict.
func LoadFullStateDict(g *Group, model any, state map[string]*tensor.Tensor) error {
	const op = "LoadFullStateDict"
	if err := g.check(op); err != nil {
		return err
	}
	if err := nn.Check(model); err != nil {
		return err
	}
	owners := g.sharded()
	return tensor.WithScope(func() error {
		own := maps.Clone(state)
		for _, n := range nn.StateDict(model) {
			owner, t := owners[n.Tensor], state[n.Name]
			if owner == nil || t == nil {
				continue
			}
			if !slices.Equal(t.Shape(), owner.Shape) {
				return refuse.Error(op, tensor.ErrArgument, "%s has shape %v, the state's %v", n.Name, owner.Shape, t.Shape())
			}
			_, rows := owner.rows(g.rank)
			own[n.Name] = t.Narrow(0, owner.Offset, rows)
		}
		return nn.LoadStateDict(model, own)
	})
}

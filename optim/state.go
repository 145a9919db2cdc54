package optim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// State is the state of an optimizer in the layout of PyTorch's Optimizer.state_dict(), so that one stored as nested
// dictionaries loads there, and PyTorch's loads here. Values are *tensor.Tensor, float64, int, bool, string, nil (None) and
// []any (a list or tuple). The tensors of StateDict share the optimizer's memory, and their handles live as long as the
// State.
type State struct {
	// State holds what the optimizer keeps for each parameter, by the number in ParamGroups and PyTorch's name:
	// State[3]["exp_avg"]. Parameters that were never stepped are missing.
	State map[int]map[string]any `json:"state"`
	// ParamGroups holds the hyperparameters of each group by PyTorch's name, and as "params" the numbers of its
	// parameters.
	ParamGroups []map[string]any `json:"param_groups"`
}

// torchKey is PyTorch's name of a hyperparameter.
func (h *hyper) torchKey() string { return strings.Fields(h.key)[0] }

// value returns a hyperparameter as PyTorch stores it.
func (h *hyper) value(g *Group) any {
	var out []any
	for _, f := range h.fields(g) {
		switch f := f.(type) {
		case *float64:
			if f == &g.Eps1 && *f == 0 {
				out = append(out, nil)
			} else {
				out = append(out, *f)
			}
		case *bool:
			out = append(out, *f)
		case *int:
			out = append(out, *f)
		case *string:
			if *f == "" {
				out = append(out, nil)
			} else {
				out = append(out, *f)
			}
		}
	}
	if h.tuple {
		return out
	}
	return out[0]
}

// setValue sets a hyperparameter to what PyTorch stored.
func (h *hyper) setValue(g *Group, v any) error {
	fields := h.fields(g)
	values := []any{v}
	if h.tuple {
		var ok bool
		if values, ok = listOf(v); !ok || len(values) != len(fields) {
			return fmt.Errorf("%s is %v: want %d numbers", h.torchKey(), v, len(fields))
		}
	}
	for i, f := range fields {
		switch f := f.(type) {
		case *string:
			s, ok := values[i].(string)
			if !ok && values[i] != nil {
				return fmt.Errorf("%s is %v: want a string", h.torchKey(), v)
			}
			*f = s
		case *bool:
			n, ok := numberOf(values[i])
			if !ok {
				return fmt.Errorf("%s is %v: want a bool", h.torchKey(), v)
			}
			*f = n != 0
		case *int:
			n, ok := numberOf(values[i])
			if !ok || n != math.Trunc(n) || math.Abs(n) > 1<<31 {
				return fmt.Errorf("%s is %v: want an integer", h.torchKey(), v)
			}
			*f = int(n)
		case *float64:
			if values[i] == nil && f == &g.Eps1 {
				*f = 0
				continue
			}
			n, ok := numberOf(values[i])
			if !ok {
				return fmt.Errorf("%s is %v: want a number", h.torchKey(), v)
			}
			*f = n
		}
	}
	return nil
}

// numberOf returns the number that a value of a state is, or that a tensor with one element holds.
func numberOf(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	case int64:
		return float64(v), true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case *tensor.Tensor:
		if v.Err() != nil || v.Numel() != 1 {
			return 0, false
		}
		n, err := v.Item()
		return n, err == nil
	}
	return 0, false
}

func init() { handle.ParamNumbers = paramNumbers } // for dist.ZeroRedundancyOptimizer

// intOf returns the integer that numberOf returns.
func intOf(v any) (int, bool) {
	n, ok := numberOf(v)
	if !ok || n != math.Trunc(n) || math.Abs(n) > 1<<53 {
		return 0, false
	}
	return int(n), true
}

// paramNumbers returns the numbers of the parameters of a state's group, and adds them to used, which must have none of
// them.
func paramNumbers(group map[string]any, used map[int]bool) ([]int, error) {
	list, _ := listOf(group["params"])
	numbers := make([]int, len(list))
	for i, v := range list {
		number, ok := intOf(v)
		if !ok {
			return nil, fmt.Errorf("the number of parameter %d is %v", i, v)
		}
		if used[number] {
			return nil, fmt.Errorf("parameter %d has the number %d of another", i, number)
		}
		used[number], numbers[i] = true, number
	}
	return numbers, nil
}

// listOf returns the elements of a list or tuple.
func listOf(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case []int:
		return anys(v), true
	case []int64:
		return anys(v), true
	case []float64:
		return anys(v), true
	}
	return nil, false
}

func anys[T any](vs []T) []any {
	out := make([]any, len(vs))
	for i, v := range vs {
		out[i] = v
	}
	return out
}

// StateDict returns the optimizer's state and hyperparameters, for a checkpoint. The flags of PyTorch's implementation
// (fused, foreach, differentiable, capturable) are those of the state that was loaded, if any, as are a group's other
// strings, bools and lists. Groups with complex parameters or sparse gradients are not fused, which PyTorch would
// refuse. A tensor needed by an option that was set since the parameter's last step is nil. PyTorch:
// Optimizer.state_dict.
func (b *Optimizer) StateDict() State {
	s := State{map[int]map[string]any{}, nil}
	if b == nil {
		return s
	}
	_ = b.hooks.run(preState, b)
	b.snapshot(s.State, &s.ParamGroups)
	if changed, err := b.hooks.change(&b.hooks.state, b, s); err == nil {
		s = changed
	}
	return s
}

func (b *Optimizer) snapshot(state map[int]map[string]any, groups *[]map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kind == nil {
		return
	}
	hs, _ := b.kind.hypers()
	n := 0
	for _, g := range b.groups {
		torch := map[string]any{}
		for k, v := range b.kind.torch {
			torch[k] = v
		}
		for k, v := range g.flags {
			if list, ok := v.([]any); ok {
				v = slices.Clone(list)
			}
			torch[k] = v
		}
		if torch["fused"] == true && (g.sparse || g.anyComplex()) {
			torch["fused"] = nil // PyTorch's fused kernels take neither
		}
		for _, h := range hs {
			if v := h.value(g); !ours[h.key] || v == true {
				torch[h.torchKey()] = v
			}
		}
		for k, v := range g.Extra {
			torch[k] = v
		}
		numbers := []any{}
		for _, at := range g.at {
			if s := b.kind.stateOf(g, at); len(s) > 0 {
				state[n] = s
			}
			numbers = append(numbers, n)
			n++
		}
		torch["params"] = numbers
		*groups = append(*groups, torch)
	}
	if s := b.search.state(); s != nil {
		state[0] = s
	}
}

// stateOf returns the state of a parameter.
func (a *Algorithm) stateOf(g *Group, at place) map[string]any {
	s, p := map[string]any{}, at.b.params[at.i]
	shape, dtype := shapeOf(p)
	var lacks []string
	for i := range a.Slots {
		slot := &a.Slots[i]
		used := slot.Used != nil && slot.Used(g, p)
		t := at.b.state[i][at.i]
		fits := func() bool {
			shapeFits, _ := slot.fits(p, shape, dtype, t)
			return shapeFits
		}
		switch {
		case t != nil && (used || slot.Used == nil || slot.byShape || fits()):
			s[slot.Name] = lent(t)
		case t == nil && used:
			lacks = append(lacks, slot.Name)
		} // else it is of earlier settings and another shape, which a load would refuse
	}
	if m := at.b.masters[at.i]; m != nil {
		s["master"] = lent(m)
	}
	if steps := at.b.steps[at.i]; a.Counts && (steps > 0 || len(s) > 0) {
		if a.intStep {
			s["step"] = int(steps)
		} else {
			s["step"] = steps
		}
	}
	if len(s) > 0 {
		for _, name := range lacks {
			s[name] = nil // an option that was set since the last step needs it
		}
	}
	return s
}

// lent returns a handle of t for the program: a later step or LoadStateDict may release the optimizer's own.
func lent(t *tensor.Tensor) *tensor.Tensor {
	alias := t.Alias().Keep()
	tensor.Track(vram.OptimizerState, alias)
	return alias
}

// LoadStateDict copies a state that StateDict, here or in PyTorch, returned for an optimizer of the same kind over
// the same parameters. Training then continues with the same bits as if it had not been interrupted. The state of a
// parameter is empty or has all that the optimizer keeps for it. Group.Extra loses the numbers that s does not have, as
// "initial_lr", but not an Algorithm's options. A state that does not fit is an error, and changes nothing. Then the
// tensors of each parameter's state are freed before those of s are copied, so that the optimizer never has two states,
// except those that a State of StateDict still holds; if memory runs out meanwhile, it has none left.
//
// A state knows parameters by their numbers alone: if those of the optimizer have another order but the same shapes, it
// loads into the wrong ones without an error. A map in a module and PyTorch's ModuleDict may have different orders; see
// package nn. PyTorch: Optimizer.load_state_dict.
func (b *Optimizer) LoadStateDict(s State) error {
	if b == nil {
		return refuse.Nil("LoadStateDict", "an optimizer")
	}
	s, err := b.hooks.change(&b.hooks.load, b, s)
	if err != nil {
		return err
	}
	err = tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.busy {
				return b.inStep("LoadStateDict")
			}
			return b.load(s)
		})
	})
	if err != nil {
		return err
	}
	return b.hooks.run(postLoad, b)
}

// ownOptions returns those of a group's other numbers that are the algorithm's options. A state may lack them, as it
// may lack hyperparameters.
func (a *Algorithm) ownOptions(g *Group) map[string]float64 {
	own := map[string]float64{}
	for name, v := range g.Extra {
		if _, preset := a.Defaults.Extra[name]; preset || slices.Contains(a.Options, name) {
			own[name] = v
		}
	}
	return own
}

// flags returns what StateDict writes back for a group: PyTorch's implementation flags, and unknown entries other than
// numbers, which Group.Extra holds.
func (a *Algorithm) flags(from map[string]any, known map[string]bool) map[string]any {
	flags := map[string]any{}
	for k, v := range from {
		if _, has := a.torch[k]; has {
			if _, isBool := v.(bool); isTorchFlag[k] && (isBool || v == nil) {
				flags[k] = v
			}
		} else if v, ok := unknown(v); ok && !known[k] && !isTorchFlag[k] {
			flags[k] = v
		}
	}
	return flags
}

var isTorchFlag = map[string]bool{"fused": true, "foreach": true, "differentiable": true, "capturable": true}

// unknown returns a copy of a value of a group that is neither a number nor a tensor.
func unknown(v any) (any, bool) {
	switch v := v.(type) {
	case nil, bool, string:
		return v, true
	}
	list, ok := listOf(v)
	for _, x := range list {
		switch x.(type) {
		case nil, bool, string, int, int64, float64:
		default:
			return nil, false
		}
	}
	return slices.Clone(list), ok
}

// loaded is the copy of a parameter's state that is not yet put in place.
type loaded struct {
	slots  []*tensor.Tensor
	master *tensor.Tensor
	steps  float64
}

func (b *Optimizer) load(s State) error {
	const op = "LoadStateDict"
	bad := func(format string, args ...any) error { return refuse.Error(op, tensor.ErrArgument, format, args...) }
	if len(s.ParamGroups) != len(b.groups) {
		return bad("the state has %d groups, the optimizer %d", len(s.ParamGroups), len(b.groups))
	}
	if b.kind == nil {
		return nil
	}
	hs, _ := b.kind.hypers()
	groups := make([]Group, len(b.groups))
	var states []map[string]any // of all parameters
	used := map[int]bool{}
	for gi, g := range b.groups {
		groups[gi] = *g
		groups[gi].Extra = b.kind.ownOptions(g)
		from := s.ParamGroups[gi]
		numbers, err := paramNumbers(from, used)
		if err != nil {
			return bad("group %d: %v", gi, err)
		}
		if len(numbers) != len(g.params) {
			return bad("group %d has %d parameters, the state's has %d", gi, len(g.params), len(numbers))
		}
		known := map[string]bool{"params": true}
		for _, h := range hs {
			known[h.torchKey()] = true
			if v, ok := from[h.torchKey()]; ok {
				if err := h.setValue(&groups[gi], v); err != nil {
					return bad("group %d: %v", gi, err)
				}
			}
		}
		groups[gi].flags = b.kind.flags(from, known)
		for k, v := range from {
			if _, isBool := v.(bool); isBool || known[k] {
				continue
			}
			if n, ok := numberOf(v); ok {
				groups[gi].note(k, n)
			}
		}
		if err := b.kind.check(op, &groups[gi]); err != nil {
			return err
		}
		for pi := range g.params {
			state := s.State[numbers[pi]]
			if err := tensor.WithScope(func() error {
				_, err := b.kind.restored(&groups[gi], g.at[pi], state, false)
				return err
			}); err != nil {
				return fmt.Errorf("group %d, parameter %d: %w", gi, pi, err)
			}
			states = append(states, state)
		}
	}
	for number := range s.State {
		if !used[number] {
			return bad("the state has a parameter %d that is in none of its groups", number)
		}
	}
	if _, err := b.restoredSearch(s.State[0], false); err != nil {
		return err
	}
	if err := b.replace(groups, states, s.State[0]); err != nil {
		b.drop()
		return err
	}
	for gi, g := range b.groups {
		for _, h := range hs {
			_ = h.setValue(g, h.value(&groups[gi]))
		}
		g.Extra, g.flags = groups[gi].Extra, groups[gi].flags
	}
	return nil
}

// replace copies the states of all parameters, which fit, and of the search into place. It frees what each copy
// replaces before it makes the copy.
func (b *Optimizer) replace(groups []Group, states []map[string]any, search map[string]any) (err error) {
	b.drops++
	b.search.drop()
	if b.search, err = b.restoredSearch(search, true); err != nil {
		return err
	}
	for gi, g := range b.groups {
		for _, bk := range g.buckets {
			bk.full, bk.part = Batch{}, Batch{}
		}
		for pi, at := range g.at {
			at.b.drop(at.i)
			if err := tensor.WithScope(func() error {
				l, err := b.kind.restored(&groups[gi], at, states[pi], true)
				if err != nil {
					return err
				}
				at.b.steps[at.i] = l.steps
				for slot, t := range l.slots {
					if t != nil {
						tensor.Track(vram.OptimizerState, t)
						at.b.state[slot][at.i] = t.Keep()
					}
				}
				if l.master != nil {
					tensor.Track(vram.OptimizerState, l.master)
					at.b.masters[at.i], at.b.written[at.i] = l.master.Keep(), content{version: -1}
				}
				return nil
			}); err != nil {
				return fmt.Errorf("group %d, parameter %d: %w", gi, pi, err)
			}
		}
		states = states[len(g.at):]
	}
	return nil
}

// restored copies the state of a parameter, with the dtypes and devices that the optimizer uses for it. Without
// values it only checks that the state fits.
func (a *Algorithm) restored(g *Group, at place, state map[string]any, values bool) (l loaded, err error) {
	const op = "LoadStateDict"
	left := len(state)
	l.slots = make([]*tensor.Tensor, len(a.Slots))
	if a.whole {
		return l, nil
	}
	p := at.b.params[at.i]
	if m, ok := state["master"]; ok && g.halved(at.b) {
		left--
		if l.master, err = filled("master", p.Detach().To(tensor.Float32), m, values); err != nil {
			return l, err
		}
		if values {
			p = l.master
		}
	} else if g.halved(at.b) || g.rounds(at.b) {
		p = p.Detach().To(tensor.Float32)
	}
	missing := func(name string) error {
		return refuse.Error(op, tensor.ErrArgument, "the state has no %s, which %s needs", name, a.Name)
	}
	if v, ok := state["step"]; ok && a.Counts {
		left--
		n, ok := intOf(v)
		if !ok || n < 0 {
			return l, refuse.Error(op, tensor.ErrArgument, "step is %v: want a number of steps", v)
		}
		l.steps = float64(n)
	} else if a.Counts && len(state) > 0 {
		return l, missing("step")
	}
	for i := range a.Slots {
		slot := &a.Slots[i]
		v, ok := state[slot.Name]
		used := slot.Used == nil || slot.Used(g, p)
		if !ok {
			if used && len(state) > 0 {
				return l, missing(slot.Name)
			}
			continue
		}
		left--
		switch n, whole := intOf(v); {
		case !used && slot.byShape, v == nil && slot.Used != nil && !slot.byShape:
			continue // PyTorch has None for a momentum buffer that is not used
		case v == nil:
			return l, missing(slot.Name)
		case slot.counts && (!whole || n < 0):
			return l, refuse.Error(op, tensor.ErrArgument, "%s is %v: want a number of steps", slot.Name, v)
		}
		t := p // zeros like p need not be made to see whether they fit
		if values || slot.New != nil || slot.shape != nil {
			t = slot.fresh(g, p)
		}
		if src, ok := v.(*tensor.Tensor); ok && values && slot.scalar && (src.DType() == tensor.Float32 || src.DType() == tensor.Float64) {
			t = t.To(src.DType()) // the default dtype may have been another
		}
		if l.slots[i], err = filled(slot.Name, t, v, values); err != nil {
			return l, err
		}
	}
	if left != 0 {
		var names []string
		for name := range state {
			names = append(names, name)
		}
		slices.Sort(names)
		return l, refuse.Error(op, tensor.ErrArgument, "%d of the state's entries are not %s's: %s", left, a.Name, strings.Join(names, ", "))
	}
	return l, nil
}

// filled sets a new tensor of the optimizer's state to a value of a state dict. Without values it only checks that
// this is possible.
func filled(name string, t *tensor.Tensor, v any, values bool) (*tensor.Tensor, error) {
	const op = "LoadStateDict"
	if err := t.Err(); err != nil {
		return nil, err
	}
	if src, ok := v.(*tensor.Tensor); ok && src != nil {
		if err := refuse.Unusable(op, name, src); err != nil {
			return nil, err
		}
		if have, want := src.Shape(), t.Shape(); !slices.Equal(have, want) && !(src.Numel() == 1 && t.Numel() == 1) {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s has shape %v, the parameter needs %v", name, have, want)
		}
		if src.Device() == tensor.Meta && t.Device() != tensor.Meta {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s is on the meta device, and has no values", name)
		}
		if src.Layout() != t.Layout() {
			return nil, refuse.Error(op, tensor.ErrArgument, "%s is %v, the parameter needs %v", name, src.Layout(), t.Layout())
		}
		if !values {
			return nil, nil
		}
		return t, t.Copy_(src).Err()
	}
	n, ok := numberOf(v)
	if !ok || t.Numel() != 1 {
		return nil, refuse.Error(op, tensor.ErrArgument, "%s is %v: want a tensor of shape %v", name, v, t.Shape())
	}
	if !values {
		return nil, nil
	}
	return t, t.Fill_(n).Err()
}

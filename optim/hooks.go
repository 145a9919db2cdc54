package optim

import "sync"

// The hooks of an optimizer, by when they run.
const (
	preStep = iota
	postStep
	preState
	postLoad
	hookKinds
)

// hooks holds functions that an optimizer calls without its lock, so that they may call its methods.
type hooks struct {
	mu    sync.Mutex
	lists [hookKinds][]*func(*Optimizer) error
	state []*func(*Optimizer, State) (State, error)
	load  []*func(*Optimizer, State) (State, error)
}

// add adds f to a list and returns a function that removes it.
func add[F any](mu *sync.Mutex, list *[]*F, f F) (remove func()) {
	mu.Lock()
	defer mu.Unlock()
	entry := &f
	*list = append(*list, entry)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		kept := make([]*F, 0, len(*list))
		for _, e := range *list {
			if e != entry {
				kept = append(kept, e)
			}
		}
		*list = kept
	}
}

func (h *hooks) run(which int, b *Optimizer) error {
	h.mu.Lock()
	list := h.lists[which]
	h.mu.Unlock()
	for _, f := range list {
		if err := (*f)(b); err != nil {
			return err
		}
	}
	return nil
}

// change passes a state through the functions of a list.
func (h *hooks) change(list *[]*func(*Optimizer, State) (State, error), b *Optimizer, s State) (State, error) {
	h.mu.Lock()
	fs := *list
	h.mu.Unlock()
	for _, f := range fs {
		var err error
		if s, err = (*f)(b, s); err != nil {
			return State{}, err
		}
	}
	return s, nil
}

func (b *Optimizer) hook(which int, f func(*Optimizer) error) (remove func()) {
	if b == nil || f == nil {
		return func() {}
	}
	return add(&b.hooks.mu, &b.hooks.lists[which], f)
}

// RegisterStepPreHook calls f before each step, and before the closure of StepClosure. If f returns an error, Step returns
// it and changes nothing. The result removes the hook. PyTorch: Optimizer.register_step_pre_hook.
func (b *Optimizer) RegisterStepPreHook(f func(*Optimizer) error) (remove func()) {
	return b.hook(preStep, f)
}

// RegisterStepPostHook calls f after each step that succeeded; Step returns f's error. The result removes the hook.
// PyTorch: Optimizer.register_step_post_hook.
func (b *Optimizer) RegisterStepPostHook(f func(*Optimizer) error) (remove func()) {
	return b.hook(postStep, f)
}

// RegisterStateDictPreHook calls f before StateDict, which ignores f's error. The result removes the hook. PyTorch:
// Optimizer.register_state_dict_pre_hook.
func (b *Optimizer) RegisterStateDictPreHook(f func(*Optimizer) error) (remove func()) {
	return b.hook(preState, f)
}

// RegisterStateDictPostHook passes each state that StateDict makes through f, whose result StateDict returns. If f
// returns an error, StateDict returns the state without f. The result removes the hook. PyTorch:
// Optimizer.register_state_dict_post_hook.
func (b *Optimizer) RegisterStateDictPostHook(f func(*Optimizer, State) (State, error)) (remove func()) {
	if b == nil || f == nil {
		return func() {}
	}
	return add(&b.hooks.mu, &b.hooks.state, f)
}

// RegisterLoadStateDictPreHook passes each state through f before LoadStateDict loads f's result. If f returns an error,
// LoadStateDict returns it and changes nothing. The result removes the hook. PyTorch:
// Optimizer.register_load_state_dict_pre_hook.
func (b *Optimizer) RegisterLoadStateDictPreHook(f func(*Optimizer, State) (State, error)) (remove func()) {
	if b == nil || f == nil {
		return func() {}
	}
	return add(&b.hooks.mu, &b.hooks.load, f)
}

// RegisterLoadStateDictPostHook calls f after each LoadStateDict that succeeded; LoadStateDict then returns f's error.
// The result removes the hook. PyTorch: Optimizer.register_load_state_dict_post_hook.
func (b *Optimizer) RegisterLoadStateDictPostHook(f func(*Optimizer) error) (remove func()) {
	return b.hook(postLoad, f)
}

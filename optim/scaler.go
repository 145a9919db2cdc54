package optim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/tensor"
)

// GradScaler multiplies the loss of training in float16, so that small gradients do not round to 0, divides the gradients
// by the same scale before the optimizer's step, and skips steps whose gradients have infinities or NaN. PyTorch:
// torch.amp.GradScaler.
//
//	loss := autograd.Autocast(tensor.CUDAType, tensor.Float16, func() *tensor.Tensor {
//		return nn.CrossEntropy(model.Forward(x), targets)
//	})
//	opt.ZeroGrad()
//	if err := scaler.Scale(loss).Backward(); err != nil {
//		return err
//	}
//	if err := scaler.Step(opt); err != nil {
//		return err
//	}
//	scaler.Update()
//
// With parameters that package dist divides among processes, all of them skip a step together, and all must call Step.
//
// To clip gradients, call Unscale before that. To accumulate gradients, call Scale for each batch, and Step and Update
// once.
type GradScaler struct {
	mu              sync.Mutex
	disabled        bool
	scale           float64
	growth, backoff float64
	interval        int
	tracker         int
	found           map[*Optimizer]finding // of the optimizers whose gradients are unscaled
	stepped         map[*Optimizer]bool
}

// finding is what was found when an optimizer's gradients were unscaled.
type finding struct {
	checked   bool // false if there were none
	nonfinite bool // one was infinite or NaN
	// The step multiplies the gradients in float16 by it, once they are float32; 0 if there are none.
	inverse float64
}

// ScalerOption is a keyword argument of NewGradScaler.
type ScalerOption func(*GradScaler)

// InitScale sets the first scale (init_scale=); 65536 by default.
func InitScale(v float64) ScalerOption { return func(s *GradScaler) { s.scale = v } }

// GrowthFactor sets the factor by which the scale grows after GrowthInterval steps that were not skipped, above 1
// (growth_factor=); 2 by default.
func GrowthFactor(v float64) ScalerOption { return func(s *GradScaler) { s.growth = v } }

// BackoffFactor sets the factor by which the scale shrinks after a step that was skipped, in (0, 1) (backoff_factor=); 0.5
// by default.
func BackoffFactor(v float64) ScalerOption { return func(s *GradScaler) { s.backoff = v } }

// GrowthInterval sets the number of steps in succession after which the scale grows (growth_interval=); 2000 by default.
func GrowthInterval(n int) ScalerOption { return func(s *GradScaler) { s.interval = n } }

// Enabled makes a scaler that scales nothing if on is false (enabled=), so that a program needs no second code path for
// training without float16: Scale returns a tensor with the loss's value, Step only calls opt.Step, Unscale, Update and
// LoadStateDict do nothing, GetScale returns 1, and StateDict an empty map.
func Enabled(on bool) ScalerOption { return func(s *GradScaler) { s.disabled = !on } }

// NewGradScaler returns a GradScaler. Options: InitScale, GrowthFactor, BackoffFactor, GrowthInterval, Enabled. PyTorch:
// torch.amp.GradScaler.
func NewGradScaler(opts ...ScalerOption) (*GradScaler, error) {
	s := &GradScaler{scale: 65536, growth: 2, backoff: 0.5, interval: 2000, found: map[*Optimizer]finding{}, stepped: map[*Optimizer]bool{}}
	for _, o := range opts {
		if o == nil {
			return nil, refuse.NilOption("NewGradScaler")
		}
		o(s)
	}
	if err := s.check("NewGradScaler"); err != nil && !s.disabled {
		return nil, err
	}
	s.scale = float64(float32(s.scale))
	return s, nil
}

func (s *GradScaler) check(op string) error {
	switch {
	case positive(float64(float32(s.scale))) != "":
		return refuse.Error(op, tensor.ErrArgument, "InitScale %s as float32, got %v", positive(0), s.scale)
	case !(s.growth > 1) || finite(s.growth) != "":
		return refuse.Error(op, tensor.ErrArgument, "GrowthFactor must be finite and larger than 1, got %v", s.growth)
	case !(s.backoff > 0 && s.backoff < 1):
		return refuse.Error(op, tensor.ErrArgument, "BackoffFactor must be in (0, 1), got %v", s.backoff)
	case s.interval < 1:
		return refuse.Error(op, tensor.ErrArgument, "GrowthInterval must be at least 1, got %d", s.interval)
	}
	return nil
}

// Scale returns the loss times the scale, which is a float32 tensor of shape (): the result for a float16 or bfloat16
// loss of shape () is float32. PyTorch: GradScaler.scale.
func (s *GradScaler) Scale(loss *tensor.Tensor) *tensor.Tensor {
	if s == nil || s.found == nil {
		return tensor.Failed(refuse.Nil("Scale", "a scaler"))
	}
	if s.disabled {
		return loss.Alias() // not loss: the program may release what Scale returns and still use the loss
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A Go number would not take part in the promotion of dtypes, and the product in float16 would overflow.
	scale := tensor.Full([]int{}, s.scale, tensor.Float32, loss.Device())
	defer scale.Release()
	return loss.Mul(scale)
}

// Unscale divides the gradients of opt's parameters by the scale, for example before they are clipped; Step does it
// otherwise. Call it once for each step. If no parameter has a gradient, Unscale does nothing, and Step returns an error.
// A float16 gradient is an error: small ones would round to 0. PyTorch: GradScaler.unscale_.
func (s *GradScaler) Unscale(opt *Optimizer) error {
	if s == nil || s.found == nil {
		return refuse.Nil("Unscale", "a scaler")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unscale("Unscale", opt)
}

func (s *GradScaler) unscale(op string, opt *Optimizer) error {
	if opt == nil {
		return refuse.Nil(op, "an optimizer")
	}
	if s.disabled {
		return nil
	}
	if _, done := s.found[opt]; done {
		return refuse.Error(op, tensor.ErrArgument, "the gradients are unscaled since the last Update")
	}
	opt.mu.Lock()
	params, halved := slices.Clone(opt.all), opt.halved()
	opt.mu.Unlock()
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			all, err := tensor.Grads(params)
			if err != nil {
				return err
			}
			type kind struct {
				device tensor.Device
				half   bool
			}
			kinds := map[kind][]*tensor.Tensor{}
			for i, g := range all {
				switch {
				case g == nil:
					continue
				case g.DType().IsComplex():
					return refuse.Error(op, tensor.ErrArgument, "the gradient of parameter %d is %v: want a real one", i, g.DType())
				case g.DType() == tensor.Float16 && (op == "Unscale" || !halved[i]):
					return refuse.Error(op, tensor.ErrArgument, "the gradient of parameter %d is float16, in which small ones round to 0 when they are unscaled: keep the parameters in float32, use MasterWeights without Unscale, or bfloat16 without a scaler", i)
				}
				if g = elements(g); g.Err() != nil {
					return g.Err()
				}
				k := kind{g.Device(), g.DType() == tensor.Float16}
				kinds[k] = append(kinds[k], g)
			}
			// Processes that have parts of the same parameters skip a step together.
			groups := sharding.GroupsOf(params)
			if len(kinds) == 0 && groups == nil {
				s.found[opt] = finding{}
				return nil
			}
			found, left := false, 0.0
			for k, grads := range kinds {
				by := 1 / float64(float32(s.scale))
				if k.half {
					by, left = 1, by
				}
				inf := tensor.Zeros([]int{}, tensor.Float32, k.device)
				inverse := tensor.Full([]int{}, by, tensor.Float32, k.device)
				if _, err := tensor.CallUnchecked("aten::_amp_foreach_non_finite_check_and_unscale_", grads, inf, inverse); err != nil {
					return fmt.Errorf("linstock: %s: %w", op, err)
				}
				v, err := inf.Item()
				if err != nil {
					return err
				}
				found = found || v != 0
			}
			for _, g := range groups {
				if found, err = inAny(g, found, params[0].Device()); err != nil {
					return err
				}
			}
			s.found[opt] = finding{checked: true, nonfinite: found, inverse: left}
			return nil
		})
	})
}

// inAny reports whether one of g's processes has found an infinity or NaN.
func inAny(g sharding.Group, found bool, d tensor.Device) (bool, error) {
	t := tensor.Zeros([]int{}, tensor.Float32, d)
	if found {
		t.Fill_(1)
	}
	if err := g.AllReduce(t, true); err != nil {
		return false, err
	}
	v, err := t.Item()
	return v != 0, err
}

// Step unscales the gradients, unless Unscale did, and calls opt.Step unless one is infinite or NaN. Float16 gradients of
// parameters with MasterWeights stay scaled; only the step's float32 copies of them are unscaled. Other float16 gradients
// are an error, although PyTorch takes them with fused optimizers. After an error try Step again, not opt.Step, for
// which float16 gradients would still be scaled. PyTorch: GradScaler.step.
func (s *GradScaler) Step(opt *Optimizer) error {
	const op = "GradScaler.Step"
	if s == nil || s.found == nil {
		return refuse.Nil(op, "a scaler")
	}
	if s.disabled {
		return opt.Step()
	}
	found, err := s.beforeStep(op, opt)
	if found.nonfinite || err != nil {
		return err
	}
	err = opt.stepScaled(found.inverse) // without the lock: a hook of the step may call the scaler
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.stepped, opt) // Step can be tried again: found has the scale that float16 gradients still have
	}
	return err
}

// beforeStep unscales the gradients, unless Unscale did, and returns what was found: the step is skipped if one is not
// finite.
func (s *GradScaler) beforeStep(op string, opt *Optimizer) (finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stepped[opt] {
		return finding{}, refuse.Error(op, tensor.ErrArgument, "the optimizer was stepped since the last Update")
	}
	if _, done := s.found[opt]; !done {
		if err := s.unscale(op, opt); err != nil {
			return finding{}, err
		}
	}
	found := s.found[opt]
	if !found.checked {
		delete(s.found, opt) // it can be tried again with gradients
		return finding{}, refuse.Error(op, tensor.ErrArgument, "no parameter had a gradient to unscale")
	}
	s.stepped[opt] = true
	return found, nil
}

// Update changes the scale after the steps of all optimizers: it shrinks if one was skipped and grows after
// GrowthInterval updates without a skipped step. If no Step or Unscale before it found gradients, the scale stays.
// PyTorch: GradScaler.update.
func (s *GradScaler) Update() {
	if s == nil || s.found == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	checked, skipped := false, false
	for _, found := range s.found {
		checked, skipped = checked || found.checked, skipped || found.nonfinite
	}
	clear(s.found)
	clear(s.stepped)
	if !checked {
		return
	}
	if skipped {
		s.tracker = 0
		if v := float64(float32(s.scale * s.backoff)); v > 0 {
			s.scale = v
		}
		return
	}
	s.tracker++
	if s.tracker == s.interval {
		s.tracker = 0
		if v := s.scale * s.growth; finite(float64(float32(v))) == "" {
			s.scale = float64(float32(v))
		}
	}
}

// IsEnabled reports whether the scaler scales; see the option Enabled. PyTorch: GradScaler.is_enabled.
func (s *GradScaler) IsEnabled() bool { return s != nil && s.found != nil && !s.disabled }

// GetScale returns the scale. PyTorch: GradScaler.get_scale.
func (s *GradScaler) GetScale() float64 {
	if s == nil {
		return 0
	}
	if s.disabled {
		return 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scale
}

// StateDict returns the scaler's state under PyTorch's names, for a checkpoint. PyTorch: GradScaler.state_dict.
func (s *GradScaler) StateDict() map[string]any {
	if s == nil {
		return nil
	}
	if s.disabled {
		return map[string]any{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]any{"scale": s.scale, "growth_factor": s.growth, "backoff_factor": s.backoff, "growth_interval": s.interval,
		"_growth_tracker": s.tracker}
}

// LoadStateDict restores a state that StateDict, here or in PyTorch, returned. If LoadStateDict returns an error, it has
// changed nothing. PyTorch: GradScaler.load_state_dict.
func (s *GradScaler) LoadStateDict(state map[string]any) error {
	const op = "LoadStateDict"
	if s == nil || s.found == nil {
		return refuse.Nil(op, "a scaler")
	}
	if s.disabled {
		return nil
	}
	if len(state) == 0 {
		return refuse.Error(op, tensor.ErrArgument, "the state is empty, as that of a scaler with Enabled(false) is")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := GradScaler{}
	for name, to := range map[string]*float64{"scale": &next.scale, "growth_factor": &next.growth, "backoff_factor": &next.backoff} {
		v, ok := numberOf(state[name])
		if !ok {
			return refuse.Error(op, tensor.ErrArgument, "%s is %v: want a number", name, state[name])
		}
		*to = v
	}
	for name, to := range map[string]*int{"growth_interval": &next.interval, "_growth_tracker": &next.tracker} {
		v, ok := intOf(state[name])
		if !ok || v < 0 {
			return refuse.Error(op, tensor.ErrArgument, "%s is %v: want a number of steps", name, state[name])
		}
		*to = v
	}
	if err := next.check(op); err != nil {
		return err
	}
	s.scale, s.growth, s.backoff, s.interval, s.tracker = float64(float32(next.scale)), next.growth, next.backoff, next.interval, next.tracker
	return nil
}

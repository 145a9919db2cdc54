package optim

import (
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Group is a set of parameters that share hyperparameters. An optimizer ignores the fields of other algorithms. PyTorch:
// an element of Optimizer.param_groups.
type Group struct {
	Params      []*tensor.Tensor // read only; AddGroup adds parameters
	LR          float64
	WeightDecay float64
	Maximize    bool

	Momentum             float64 // SGD, RMSprop, Muon
	Dampening            float64 // SGD
	Nesterov             bool    // SGD, Muon
	Beta1, Beta2         float64 // Adam, AdamW, Adamax, NAdam, RAdam, SparseAdam
	Eps                  float64 // all but SGD, ASGD, LBFGS, Rprop
	AMSGrad              bool    // Adam, AdamW
	DecoupledWeightDecay bool    // Adam, NAdam, RAdam
	MomentumDecay        float64 // NAdam
	Rho                  float64 // Adadelta
	Alpha                float64 // ASGD, RMSprop
	Centered             bool    // RMSprop
	Lambd, T0            float64 // ASGD
	LRDecay              float64 // Adagrad

	// InitialAccumulatorValue is Adagrad's sum of squares before the first step.
	InitialAccumulatorValue float64

	EtaMinus, EtaPlus        float64 // Rprop: factors of the step size
	StepSizeMin, StepSizeMax float64 // Rprop

	Beta2Decay float64 // Adafactor
	Eps1       float64 // Adafactor; 0 stands for the epsilon of the parameter's dtype. Eps is its second epsilon.
	D          float64 // Adafactor: the clipping threshold

	NSCoefficients [3]float64 // Muon
	NSSteps        int        // Muon
	AdjustLRFn     string     // Muon: "original", "match_rms_adamw", "spectral_unclamped" or "" for "original"

	MaxIter, MaxEval               int     // LBFGS
	ToleranceGrad, ToleranceChange float64 // LBFGS
	HistorySize                    int     // LBFGS
	LineSearchFn                   string  // LBFGS: "strong_wolfe" or ""

	// MasterWeights keeps a float32 copy of each bfloat16 and float16 parameter, which the optimizer updates and rounds
	// to the parameter. It and StochasticRounding must not be changed after the first step.
	MasterWeights bool
	// StochasticRounding rounds bfloat16 parameters up or down at random after each step.
	StochasticRounding bool

	// Extra holds other numbers by name: the options of an Algorithm that is not this package's, and what schedulers
	// record, such as "initial_lr". The optimizer's state includes them.
	Extra map[string]float64

	params  []*tensor.Tensor // a copy of Params that the caller cannot change
	buckets []*bucket
	at      []place        // where each of params is stored
	sparse  bool           // a gradient was sparse
	flags   map[string]any // of PyTorch's state that was loaded
}

// hyper describes a hyperparameter. key is PyTorch's name, options are the names of the Option functions that set it, and
// fields returns pointers to the fields of a group: *float64, *bool, *int or *string.
type hyper struct {
	key     string
	option  string
	fields  func(g *Group) []any
	tuple   bool // PyTorch has a tuple
	refuses func(v float64) string
}

func atLeast0(v float64) string {
	if v >= 0 && !math.IsInf(v, 0) {
		return ""
	}
	return "must be finite and at least 0"
}

func finite(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "must be finite"
	}
	return ""
}

func fraction(v float64) string {
	if v >= 0 && v < 1 {
		return ""
	}
	return "must be in [0, 1)"
}

func positive(v float64) string {
	if v > 0 && !math.IsInf(v, 0) {
		return ""
	}
	return "must be finite and larger than 0"
}

func atMost0(v float64) string {
	if v <= 0 && !math.IsInf(v, 0) {
		return ""
	}
	return "must be finite and at most 0"
}

func atLeast1(v float64) string {
	if v >= 1 && !math.IsInf(v, 0) {
		return ""
	}
	return "must be finite and at least 1"
}

// hypers are the hyperparameters of this package's algorithms.
var hypers = []hyper{
	{"lr", "LR", func(g *Group) []any { return []any{&g.LR} }, false, finite}, // schedules may make it negative
	{"weight_decay", "WeightDecay", func(g *Group) []any { return []any{&g.WeightDecay} }, false, atLeast0},
	{"maximize", "Maximize", func(g *Group) []any { return []any{&g.Maximize} }, false, nil},
	{"momentum", "Momentum", func(g *Group) []any { return []any{&g.Momentum} }, false, atLeast0},
	{"dampening", "Dampening", func(g *Group) []any { return []any{&g.Dampening} }, false, finite},
	{"nesterov", "Nesterov", func(g *Group) []any { return []any{&g.Nesterov} }, false, nil},
	{"betas", "Betas", func(g *Group) []any { return []any{&g.Beta1, &g.Beta2} }, true, fraction},
	{"eps", "Eps", func(g *Group) []any { return []any{&g.Eps} }, false, atLeast0},
	{"amsgrad", "AMSGrad", func(g *Group) []any { return []any{&g.AMSGrad} }, false, nil},
	{"decoupled_weight_decay", "DecoupledWeightDecay", func(g *Group) []any { return []any{&g.DecoupledWeightDecay} }, false, nil},
	{"momentum_decay", "MomentumDecay", func(g *Group) []any { return []any{&g.MomentumDecay} }, false, atLeast0},
	{"rho", "Rho", func(g *Group) []any { return []any{&g.Rho} }, false, upTo1},
	{"alpha", "Alpha", func(g *Group) []any { return []any{&g.Alpha} }, false, atLeast0},
	{"centered", "Centered", func(g *Group) []any { return []any{&g.Centered} }, false, nil},
	{"lambd", "Lambd", func(g *Group) []any { return []any{&g.Lambd} }, false, atLeast0},
	{"t0", "T0", func(g *Group) []any { return []any{&g.T0} }, false, finite},
	{"lr_decay", "LRDecay", func(g *Group) []any { return []any{&g.LRDecay} }, false, atLeast0},
	{"initial_accumulator_value", "InitialAccumulatorValue", func(g *Group) []any { return []any{&g.InitialAccumulatorValue} }, false, atLeast0},
	{"etas", "Etas", func(g *Group) []any { return []any{&g.EtaMinus, &g.EtaPlus} }, true, positive},
	{"step_sizes", "StepSizes", func(g *Group) []any { return []any{&g.StepSizeMin, &g.StepSizeMax} }, true, atLeast0},
	{"beta2_decay", "Beta2Decay", func(g *Group) []any { return []any{&g.Beta2Decay} }, false, atMost0},
	{"eps (Adafactor)", "AdafactorEps", func(g *Group) []any { return []any{&g.Eps1, &g.Eps} }, true, atLeast0},
	{"d", "D", func(g *Group) []any { return []any{&g.D} }, false, atLeast1},
	{"ns_coefficients", "NSCoefficients", func(g *Group) []any {
		return []any{&g.NSCoefficients[0], &g.NSCoefficients[1], &g.NSCoefficients[2]}
	}, true, finite},
	{"ns_steps", "NSSteps", func(g *Group) []any { return []any{&g.NSSteps} }, false, atLeast0},
	{"adjust_lr_fn", "AdjustLRFn", func(g *Group) []any { return []any{&g.AdjustLRFn} }, false, nil},
	{"max_iter", "MaxIter", func(g *Group) []any { return []any{&g.MaxIter} }, false, atLeast1},
	{"max_eval", "MaxEval", func(g *Group) []any { return []any{&g.MaxEval} }, false, atLeast0},
	{"tolerance_grad", "ToleranceGrad", func(g *Group) []any { return []any{&g.ToleranceGrad} }, false, atLeast0},
	{"tolerance_change", "ToleranceChange", func(g *Group) []any { return []any{&g.ToleranceChange} }, false, atLeast0},
	{"history_size", "HistorySize", func(g *Group) []any { return []any{&g.HistorySize} }, false, atLeast1},
	{"line_search_fn", "LineSearchFn", func(g *Group) []any { return []any{&g.LineSearchFn} }, false, nil},
	{"master_weights", "MasterWeights", func(g *Group) []any { return []any{&g.MasterWeights} }, false, nil},
	{"stochastic_rounding", "StochasticRounding", func(g *Group) []any { return []any{&g.StochasticRounding} }, false, nil},
}

func upTo1(v float64) string {
	if v >= 0 && v <= 1 {
		return ""
	}
	return "must be in [0, 1]"
}

// hypersOf returns the hyperparameters that an algorithm has, and the names of its options.
func (a *Algorithm) hypers() (hs []*hyper, names []string) {
	for i := range hypers {
		h := &hypers[i]
		if h.key == "lr" || slices.Contains(a.Options, h.key) || ours[h.key] && !a.whole {
			hs, names = append(hs, h), append(names, h.option)
		}
	}
	for _, key := range a.Options {
		if !slices.ContainsFunc(hypers, func(h hyper) bool { return h.key == key }) {
			names = append(names, key)
		}
	}
	return hs, names
}

// ours are the hyperparameters that PyTorch does not have. A state has them if they are set.
var ours = map[string]bool{"master_weights": true, "stochastic_rounding": true}

// Option is a keyword argument of a constructor or of AddGroup.
type Option struct {
	name string
	set  func(*Group)
}

func number(name string, v float64, field func(*Group) *float64) Option {
	return Option{name, func(g *Group) { *field(g) = v }}
}

func whole(name string, v int, field func(*Group) *int) Option {
	return Option{name, func(g *Group) { *field(g) = v }}
}

func flag(name string, on []bool, field func(*Group) *bool) Option {
	return Option{name, func(g *Group) { *field(g) = options.On(on) }}
}

// LR sets the learning rate of a group (lr=).
func LR(v float64) Option { return number("LR", v, func(g *Group) *float64 { return &g.LR }) }

// WeightDecay sets the weight decay (weight_decay=): 0.01 by default for AdamW, 0.1 for Muon, 0 for the others.
func WeightDecay(v float64) Option {
	return number("WeightDecay", v, func(g *Group) *float64 { return &g.WeightDecay })
}

// Maximize makes the optimizer maximize the objective instead of minimizing it (maximize=True); off by
// default.
func Maximize(on ...bool) Option {
	return flag("Maximize", on, func(g *Group) *bool { return &g.Maximize })
}

// Momentum sets the momentum factor (momentum=); 0.95 by default for Muon, 0 for SGD and RMSprop.
func Momentum(v float64) Option {
	return number("Momentum", v, func(g *Group) *float64 { return &g.Momentum })
}

// Dampening sets SGD's dampening for momentum (dampening=); 0 by default.
func Dampening(v float64) Option {
	return number("Dampening", v, func(g *Group) *float64 { return &g.Dampening })
}

// Nesterov enables or disables Nesterov momentum (nesterov=): off by default for SGD, on for Muon.
func Nesterov(on ...bool) Option {
	return flag("Nesterov", on, func(g *Group) *bool { return &g.Nesterov })
}

// Betas sets the decay rates of the running averages of the gradient and of its square (betas=); 0.9 and 0.999 by
// default.
func Betas(b1, b2 float64) Option {
	return Option{"Betas", func(g *Group) { g.Beta1, g.Beta2 = b1, b2 }}
}

// Eps sets the value added to the denominator (eps=): 1e-8 by default for the Adam family and RMSprop, 1e-6 for Adadelta,
// 1e-10 for Adagrad, 1e-7 for Muon.
func Eps(v float64) Option { return number("Eps", v, func(g *Group) *float64 { return &g.Eps }) }

// AMSGrad makes Adam divide by the largest second moment so far (amsgrad=True); off by default.
func AMSGrad(on ...bool) Option {
	return flag("AMSGrad", on, func(g *Group) *bool { return &g.AMSGrad })
}

// DecoupledWeightDecay makes Adam, NAdam and RAdam decay the weights as AdamW does (decoupled_weight_decay=True); off
// by default.
func DecoupledWeightDecay(on ...bool) Option {
	return flag("DecoupledWeightDecay", on, func(g *Group) *bool { return &g.DecoupledWeightDecay })
}

// MomentumDecay sets NAdam's momentum decay (momentum_decay=); 0.004 by default.
func MomentumDecay(v float64) Option {
	return number("MomentumDecay", v, func(g *Group) *float64 { return &g.MomentumDecay })
}

// Rho sets the decay rate of Adadelta's running averages (rho=); 0.9 by default.
func Rho(v float64) Option { return number("Rho", v, func(g *Group) *float64 { return &g.Rho }) }

// Alpha sets RMSprop's smoothing constant, 0.99 by default, or the power of ASGD's update of eta, 0.75 by default
// (alpha=).
func Alpha(v float64) Option { return number("Alpha", v, func(g *Group) *float64 { return &g.Alpha }) }

// Centered makes RMSprop divide by an estimate of the gradient's variance (centered=True); off by default.
func Centered(on ...bool) Option {
	return flag("Centered", on, func(g *Group) *bool { return &g.Centered })
}

// Lambd sets ASGD's decay term (lambd=); 1e-4 by default.
func Lambd(v float64) Option { return number("Lambd", v, func(g *Group) *float64 { return &g.Lambd }) }

// T0 sets the step at which ASGD starts averaging (t0=); 1e6 by default.
func T0(v float64) Option { return number("T0", v, func(g *Group) *float64 { return &g.T0 }) }

// LRDecay sets Adagrad's decay of the learning rate (lr_decay=); 0 by default.
func LRDecay(v float64) Option {
	return number("LRDecay", v, func(g *Group) *float64 { return &g.LRDecay })
}

// InitialAccumulatorValue sets Adagrad's sum of squares before the first step (initial_accumulator_value=); 0 by default.
func InitialAccumulatorValue(v float64) Option {
	return number("InitialAccumulatorValue", v, func(g *Group) *float64 { return &g.InitialAccumulatorValue })
}

// Etas sets the factors by which Rprop changes a step size (etas=): minus, in (0, 1), after the gradient's sign changed,
// and plus, above 1, otherwise; 0.5 and 1.2 by default.
func Etas(minus, plus float64) Option {
	return Option{"Etas", func(g *Group) { g.EtaMinus, g.EtaPlus = minus, plus }}
}

// StepSizes sets Rprop's smallest and largest step size (step_sizes=); 1e-6 and 50 by default.
func StepSizes(least, most float64) Option {
	return Option{"StepSizes", func(g *Group) { g.StepSizeMin, g.StepSizeMax = least, most }}
}

// Beta2Decay sets the exponent of Adafactor's decay rate, at most 0 (beta2_decay=); -0.8 by default.
func Beta2Decay(v float64) Option {
	return number("Beta2Decay", v, func(g *Group) *float64 { return &g.Beta2Decay })
}

// AdafactorEps sets Adafactor's two epsilons (eps=): the first is added to the second moment, where 0 stands for the
// epsilon of the parameter's dtype (None), and the second is the least scale of a parameter. 0 and 1e-3 by default.
func AdafactorEps(eps1, eps2 float64) Option {
	return Option{"AdafactorEps", func(g *Group) { g.Eps1, g.Eps = eps1, eps2 }}
}

// D sets Adafactor's clipping threshold of an update, at least 1 (d=); 1 by default.
func D(v float64) Option { return number("D", v, func(g *Group) *float64 { return &g.D }) }

// NSCoefficients sets the coefficients of Muon's Newton–Schulz iteration (ns_coefficients=); 3.4445, -4.775 and 2.0315
// by default.
func NSCoefficients(a, b, c float64) Option {
	return Option{"NSCoefficients", func(g *Group) { g.NSCoefficients = [3]float64{a, b, c} }}
}

// NSSteps sets the number of Muon's Newton–Schulz iterations, below 100 (ns_steps=); 5 by default.
func NSSteps(n int) Option { return whole("NSSteps", n, func(g *Group) *int { return &g.NSSteps }) }

// AdjustLRFn sets how Muon adjusts the learning rate to a matrix's shape (adjust_lr_fn=): "original",
// "match_rms_adamw" or "spectral_unclamped".
func AdjustLRFn(name string) Option {
	return Option{"AdjustLRFn", func(g *Group) { g.AdjustLRFn = name }}
}

// MaxIter sets LBFGS's largest number of iterations in a step (max_iter=); 20 by default.
func MaxIter(n int) Option { return whole("MaxIter", n, func(g *Group) *int { return &g.MaxIter }) }

// MaxEval sets LBFGS's largest number of evaluations of the closure in a step (max_eval=); 5/4 of MaxIter by default.
func MaxEval(n int) Option { return whole("MaxEval", n, func(g *Group) *int { return &g.MaxEval }) }

// ToleranceGrad makes LBFGS end a step when no element of the gradient is larger (tolerance_grad=); 1e-7 by default.
func ToleranceGrad(v float64) Option {
	return number("ToleranceGrad", v, func(g *Group) *float64 { return &g.ToleranceGrad })
}

// ToleranceChange makes LBFGS end a step when parameters or loss change by less (tolerance_change=); 1e-9 by default.
func ToleranceChange(v float64) Option {
	return number("ToleranceChange", v, func(g *Group) *float64 { return &g.ToleranceChange })
}

// HistorySize sets the number of updates that LBFGS remembers (history_size=); 100 by default.
func HistorySize(n int) Option {
	return whole("HistorySize", n, func(g *Group) *int { return &g.HistorySize })
}

// LineSearchFn sets LBFGS's line search: "strong_wolfe" or "" for none, the default (line_search_fn=).
func LineSearchFn(name string) Option {
	return Option{"LineSearchFn", func(g *Group) { g.LineSearchFn = name }}
}

// MasterWeights keeps a float32 copy of each bfloat16 and float16 parameter of the group, updates the copy, and rounds it
// to the parameter after each step: updates too small for the parameter's dtype add up. It costs 4 bytes a parameter. The
// copies are made at the first step; the state includes them as "master". If the program changes elements of a parameter
// between steps, as by loading or pruning weights, the next step starts from those. Make the optimizer
// after parameters are converted to another dtype: a step is an error otherwise. Other parameters do not change.
// GradScaler.Step takes float16 gradients of such parameters.
// PyTorch has no such option; Apex calls it master_weights.
func MasterWeights(on ...bool) Option {
	return flag("MasterWeights", on, func(g *Group) *bool { return &g.MasterWeights })
}

// StochasticRounding trains the bfloat16 parameters of the group without float32 copies: a step computes in float32, with
// state in float32, and rounds each element to one of the two nearest bfloat16 numbers at random, up with the
// probability (value - lower) / (upper - lower). The mean of the result is the value, so updates too small for bfloat16
// add up on average. Rounding to nearest would drop them. It draws from the generator of the parameters' device. Make
// the optimizer after parameters are converted to another dtype: a step is an error otherwise. Other parameters do not
// change. It cannot be combined with MasterWeights. PyTorch has no such option.
func StochasticRounding(on ...bool) Option {
	return flag("StochasticRounding", on, func(g *Group) *bool { return &g.StochasticRounding })
}

// Set sets an option of an Algorithm that is not this package's: the number Extra[name] of the group.
func Set(name string, v float64) Option {
	return Option{name, func(g *Group) { g.note(name, v) }}
}

// note sets Extra[name].
func (g *Group) note(name string, v float64) {
	extra := make(map[string]float64, len(g.Extra)+1) // groups share the constructor's
	for k, old := range g.Extra {
		extra[k] = old
	}
	extra[name] = v
	g.Extra = extra
}

func (a *Algorithm) apply(g *Group, opts []Option) error {
	_, known := a.hypers()
	for _, o := range opts {
		if err := refuse.Option(a.Name, o.name, known); err != nil {
			return err
		}
		o.set(g)
	}
	return nil
}

// check returns an error of op for hyperparameters that PyTorch rejects.
func (a *Algorithm) check(op string, g *Group) error {
	hs, _ := a.hypers()
	for _, h := range hs {
		for _, f := range h.fields(g) {
			v := 0.0
			switch f := f.(type) {
			case *float64:
				v = *f
			case *int:
				v = float64(*f)
			default:
				continue
			}
			if why := h.refuses(v); why != "" {
				return refuse.Error(op, tensor.ErrArgument, "%s %s, got %v", h.option, why, v)
			}
		}
	}
	if g.MasterWeights && g.StochasticRounding {
		return refuse.Error(op, tensor.ErrArgument, "MasterWeights and StochasticRounding cannot be combined")
	}
	for name, v := range g.Extra {
		if why := finite(v); why != "" {
			return refuse.Error(op, tensor.ErrArgument, "%s %s, got %v", name, why, v)
		}
	}
	if a.Check != nil {
		if err := a.Check(g); err != nil {
			return refuse.Error(op, tensor.ErrArgument, "%v", fmt.Sprint(err))
		}
	}
	return nil
}

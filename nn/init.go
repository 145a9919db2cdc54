package nn

import (
	"math"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/free"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// The functions below correspond to torch.nn.init. Each fills t in place without recording a gradient, draws the same
// values as PyTorch under the same seed, and returns t, or a failed tensor. Those that draw take a generator to draw from
// (generator=) in place of that of the device.

func fill(op string, t *tensor.Tensor, f func() *tensor.Tensor) *tensor.Tensor {
	if bad := unusable(op, t); bad != nil {
		return bad
	}
	if err := autograd.NoGrad(func() error { return f().Err() }); err != nil {
		return tensor.Failed(err)
	}
	return t
}

// fillData is fill for an f that reads t or draws values for other tensors. It returns a t on the meta device as it is.
func fillData(op string, t *tensor.Tensor, f func() *tensor.Tensor) *tensor.Tensor {
	return fill(op, t, func() *tensor.Tensor {
		if t.Device() == tensor.Meta {
			return t
		}
		return f()
	})
}

// from returns the option with which an operator draws from the last of g that is not nil.
func from(g []*tensor.Generator) []tensor.Option {
	for i := len(g) - 1; i >= 0; i-- {
		if g[i] != nil {
			return []tensor.Option{g[i]}
		}
	}
	return nil
}

func finite(op string, named ...any) *tensor.Tensor {
	for i := 0; i+1 < len(named); i += 2 {
		if v := named[i+1].(float64); math.IsNaN(v) || math.IsInf(v, 0) {
			return refuse.Tensor(op, tensor.ErrArgument, "%s must be finite, got %v", named[i], v)
		}
	}
	return nil
}

// Uniform_ fills t with samples of the uniform distribution over [low, high). PyTorch: torch.nn.init.uniform_.
func Uniform_(t *tensor.Tensor, low, high float64, g ...*tensor.Generator) *tensor.Tensor {
	return fill("Uniform_", t, func() *tensor.Tensor { return t.Uniform_(low, high, from(g)...) })
}

// Normal_ fills t with samples of the normal distribution. PyTorch: torch.nn.init.normal_.
func Normal_(t *tensor.Tensor, mean, std float64, g ...*tensor.Generator) *tensor.Tensor {
	return fill("Normal_", t, func() *tensor.Tensor { return t.Normal_(mean, std, from(g)...) })
}

// Constant_ sets all elements to v. PyTorch: torch.nn.init.constant_.
func Constant_(t *tensor.Tensor, v float64) *tensor.Tensor {
	return fill("Constant_", t, func() *tensor.Tensor { return t.Fill_(v) })
}

// TruncNormal_ fills t with samples of the normal distribution truncated to [low, high]. PyTorch:
// torch.nn.init.trunc_normal_.
func TruncNormal_(t *tensor.Tensor, mean, std, low, high float64, g ...*tensor.Generator) *tensor.Tensor {
	const op = "TruncNormal_"
	if bad := finite(op, "mean", mean, "std", std, "low", low, "high", high); bad != nil {
		return bad
	}
	if std <= 0 || low >= high {
		return refuse.Tensor(op, tensor.ErrArgument, "std must be positive and low below high, got %v, [%v, %v]", std, low, high)
	}
	return fillData(op, t, func() *tensor.Tensor {
		return tensor.Tidy(func() *tensor.Tensor {
			cdf := func(x float64) float64 { return (1 + math.Erf(x/math.Sqrt(2))) / 2 }
			if cdf((high-mean)/std)-cdf((low-mean)/std) > 0.3 {
				return rejectNormal(t, mean, std, low, high, from(g))
			}
			return rejectUniform(t, mean, std, low, high, from(g))
		})
	})
}

// rejectNormal draws from the normal distribution and redraws samples outside [low, high]. It is used where enough
// samples fall inside.
func rejectNormal(t *tensor.Tensor, mean, std, low, high float64, g []tensor.Option) *tensor.Tensor {
	// Round the bounds to t's dtype.
	bounds, err := tensor.Data[float64](tensor.FromSlice([]float64{low, high}, nil, t.DType()).To(tensor.Float64))
	if err != nil {
		return tensor.Failed(err)
	}
	if err := t.Normal_(mean, std, g...).Err(); err != nil {
		return tensor.Failed(err)
	}
	for {
		below, above := t.Lt(bounds[0]), t.Gt(bounds[1])
		outside := free.After(below.LogicalOr(above), below, above)
		if some, err := tensor.Item[bool](outside.Any()); err != nil {
			return tensor.Failed(err)
		} else if !some {
			return t
		}
		drawn := t.EmptyLike().Normal_(mean, std, g...)
		chosen := free.After(tensor.Where(outside, drawn, t), outside, drawn)
		if err := free.After(t.Copy_(chosen), chosen).Err(); err != nil {
			return tensor.Failed(err)
		}
	}
}

// rejectUniform draws uniformly from [low, high] and accepts each sample with a probability proportional to the normal
// density. It is used where few normal samples would fall inside.
func rejectUniform(t *tensor.Tensor, mean, std, low, high float64, g []tensor.Option) *tensor.Tensor {
	peak := (max(low, min(mean, high)) - mean) / std
	refused := func(candidates *tensor.Tensor) *tensor.Tensor {
		density := candidates.Sub(mean).Div_(std).Pow_(2).Mul_(-0.5).Sub_(-0.5 * peak * peak)
		log := candidates.EmptyLike().Uniform_(0, 1, g...).Log_()
		return free.After(log.Gt(density), log, density)
	}
	pending := refused(t.Uniform_(low, high, g...))
	for {
		if some, err := tensor.Item[bool](pending.Any()); err != nil {
			return tensor.Failed(err)
		} else if !some {
			return t
		}
		candidates := t.EmptyLike().Uniform_(low, high, g...)
		chosen := tensor.Where(pending, candidates, t)
		if err := free.After(t.Copy_(chosen), chosen).Err(); err != nil {
			return tensor.Failed(err)
		}
		again := free.After(refused(candidates), candidates)
		pending = free.After(tensor.Where(pending, again, pending), pending, again)
	}
}

// InitOption is a keyword argument of the Kaiming initializers.
type InitOption func(*kaimingSettings)

type kaimingSettings struct {
	a            float64
	fanOut       bool
	nonlinearity string
	generator    *tensor.Generator
}

// FanOut preserves the variance of the gradients instead of the variance of the outputs (mode="fan_out"); off by
// default.
func FanOut(on ...bool) InitOption { return func(s *kaimingSettings) { s.fanOut = options.On(on) } }

// Slope sets the negative slope of the leaky ReLU that follows the layer (a=); 0 by default.
func Slope(a float64) InitOption { return func(s *kaimingSettings) { s.a = a } }

// Nonlinearity names the activation that follows the layer: "leaky_relu" (the default), "relu", "tanh", "sigmoid",
// "selu" or "linear" (nonlinearity=).
func Nonlinearity(name string) InitOption { return func(s *kaimingSettings) { s.nonlinearity = name } }

// Generator sets the generator to draw from in place of that of the device (generator=).
func Generator(g *tensor.Generator) InitOption { return func(s *kaimingSettings) { s.generator = g } }

func gain(s kaimingSettings) (float64, bool) {
	switch s.nonlinearity {
	case "leaky_relu":
		return math.Sqrt(2.0 / (1 + s.a*s.a)), true
	case "relu":
		return math.Sqrt(2.0), true
	case "tanh":
		return 5.0 / 3, true
	case "selu":
		return 3.0 / 4, true
	case "linear", "sigmoid", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d":
		return 1, true
	}
	return 0, false
}

// fans returns the fan-in and fan-out of a weight (out, in, window...).
func fans(op string, t *tensor.Tensor) (in, out int, bad *tensor.Tensor) {
	if bad := unusable(op, t); bad != nil {
		return 0, 0, bad
	}
	shape := t.Shape()
	if len(shape) < 2 {
		return 0, 0, refuse.Tensor(op, tensor.ErrArgument, "the weight must have at least 2 dimensions, got shape %v", shape)
	}
	window := product(shape[2:])
	if in, out = shape[1]*window, shape[0]*window; in+out == 0 {
		return 0, 0, refuse.Tensor(op, tensor.ErrArgument, "the weight has neither inputs nor outputs: shape %v", shape)
	}
	return in, out, nil
}

func kaimingStd(op string, t *tensor.Tensor, opts []InitOption) (float64, *tensor.Generator, *tensor.Tensor) {
	s := kaimingSettings{nonlinearity: "leaky_relu"}
	for _, o := range opts {
		if o == nil {
			return 0, nil, tensor.Failed(refuse.NilOption(op))
		}
		o(&s)
	}
	g, ok := gain(s)
	if !ok || math.IsNaN(g) || math.IsInf(g, 0) {
		return 0, nil, refuse.Tensor(op, tensor.ErrArgument, "there is no gain for nonlinearity %q with slope %v", s.nonlinearity, s.a)
	}
	if t.Err() == nil && t.Numel() == 0 {
		return 0, s.generator, nil
	}
	in, out, bad := fans(op, t)
	if s.fanOut {
		in = out
	}
	return g / math.Sqrt(float64(in)), s.generator, bad
}

// KaimingUniform_ fills t with samples of a uniform distribution with the variance gain²/fan of He et al. 2015. A t
// without elements is returned. Options: FanOut, Slope, Nonlinearity, Generator. PyTorch: torch.nn.init.kaiming_uniform_.
func KaimingUniform_(t *tensor.Tensor, opts ...InitOption) *tensor.Tensor {
	std, g, bad := kaimingStd("KaimingUniform_", t, opts)
	if bad != nil {
		return bad
	}
	bound := math.Sqrt(3.0) * std
	return Uniform_(t, -bound, bound, g)
}

// KaimingNormal_ fills t with samples of the normal distribution with the variance gain²/fan of He et al. 2015. A t
// without elements is returned. Options: FanOut, Slope, Nonlinearity, Generator. PyTorch: torch.nn.init.kaiming_normal_.
func KaimingNormal_(t *tensor.Tensor, opts ...InitOption) *tensor.Tensor {
	std, g, bad := kaimingStd("KaimingNormal_", t, opts)
	if bad != nil {
		return bad
	}
	return Normal_(t, 0, std, g)
}

func xavierStd(op string, t *tensor.Tensor, gain float64) (float64, *tensor.Tensor) {
	if bad := finite(op, "gain", gain); bad != nil {
		return 0, bad
	}
	in, out, bad := fans(op, t)
	return gain * math.Sqrt(2.0/float64(in+out)), bad
}

// XavierUniform_ fills t with samples of a uniform distribution with the variance gain²·2/(in+out) of Glorot and Bengio
// 2010; gain is usually 1. PyTorch: torch.nn.init.xavier_uniform_.
func XavierUniform_(t *tensor.Tensor, gain float64, g ...*tensor.Generator) *tensor.Tensor {
	std, bad := xavierStd("XavierUniform_", t, gain)
	if bad != nil {
		return bad
	}
	bound := math.Sqrt(3.0) * std
	return Uniform_(t, -bound, bound, g...)
}

// XavierNormal_ fills t with samples of the normal distribution with the variance gain²·2/(in+out) of Glorot and Bengio
// 2010. PyTorch: torch.nn.init.xavier_normal_.
func XavierNormal_(t *tensor.Tensor, gain float64, g ...*tensor.Generator) *tensor.Tensor {
	std, bad := xavierStd("XavierNormal_", t, gain)
	if bad != nil {
		return bad
	}
	return Normal_(t, 0, std, g...)
}

// Orthogonal_ fills t with gain times an orthogonal matrix; a t with more than 2 dimensions is treated as a matrix of
// its first dimension by the rest. PyTorch: torch.nn.init.orthogonal_.
func Orthogonal_(t *tensor.Tensor, gain float64, g ...*tensor.Generator) *tensor.Tensor {
	const op = "Orthogonal_"
	if bad := finite(op, "gain", gain); bad != nil {
		return bad
	}
	if bad := unusable(op, t); bad != nil {
		return bad
	}
	if t.Dim() < 2 {
		return refuse.Tensor(op, tensor.ErrArgument, "the weight must have at least 2 dimensions, got shape %v", t.Shape())
	}
	return fillData(op, t, func() *tensor.Tensor {
		if t.Numel() == 0 {
			return t
		}
		return tensor.Tidy(func() *tensor.Tensor {
			rows := t.Size(0)
			cols := t.Numel() / rows
			flat := t.NewEmpty([]int{rows, cols}).Normal_(0, 1, from(g)...)
			if rows < cols {
				flat = flat.T()
			}
			q, r := flat.LinalgQR()
			q = q.Mul_(r.Diagonal().Sign())
			if rows < cols {
				q = q.T()
			}
			return t.Copy_(q.ViewAs(t)).Mul_(gain)
		})
	})
}

// Ones_ sets all elements to 1. PyTorch: torch.nn.init.ones_.
func Ones_(t *tensor.Tensor) *tensor.Tensor {
	return fill("Ones_", t, func() *tensor.Tensor { return t.Fill_(1) })
}

// Zeros_ sets all elements to 0. PyTorch: torch.nn.init.zeros_.
func Zeros_(t *tensor.Tensor) *tensor.Tensor {
	return fill("Zeros_", t, func() *tensor.Tensor { return t.Zero_() })
}

// Eye_ sets a matrix to ones on its diagonal and zeros elsewhere. PyTorch: torch.nn.init.eye_.
func Eye_(t *tensor.Tensor) *tensor.Tensor {
	const op = "Eye_"
	if bad := unusable(op, t); bad != nil {
		return bad
	}
	if t.Dim() != 2 {
		return refuse.Tensor(op, tensor.ErrArgument, "a matrix is needed, got shape %v", t.Shape())
	}
	return fill(op, t, func() *tensor.Tensor {
		return tensor.Tidy(func() *tensor.Tensor { return t.Copy_(tensor.EyeM(t.Size(0), t.Size(1), t.DType(), t.Device())) })
	})
}

// Dirac_ sets the weight of a convolution (out, in, window...), with 3 to 5 dimensions, so that in each of the given number
// of groups as many input channels as possible pass unchanged. PyTorch: torch.nn.init.dirac_, whose default of groups is 1.
func Dirac_(t *tensor.Tensor, groups int) *tensor.Tensor {
	const op = "Dirac_"
	if bad := unusable(op, t); bad != nil {
		return bad
	}
	shape := t.Shape()
	if len(shape) < 3 || len(shape) > 5 || groups < 1 || shape[0]%groups != 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "the weight must have 3 to 5 dimensions, the first divisible by %d groups, got shape %v", groups, shape)
	}
	if product(shape[2:]) == 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "the window must not be empty, got shape %v", shape)
	}
	each := shape[0] / groups
	return fill(op, t, func() *tensor.Tensor {
		return tensor.Tidy(func() *tensor.Tensor {
			y := t.Zero_()
			for g := range groups {
				for d := range min(each, shape[1]) {
					at := t.Detach().Select(0, g*each+d).Select(0, d)
					for _, n := range shape[2:] {
						at = at.Select(0, n/2)
					}
					if err := at.Fill_(1).Err(); err != nil {
						return tensor.Failed(err)
					}
				}
			}
			return y
		})
	})
}

// Sparse_ fills a matrix with samples of the normal distribution with mean 0, and sets a part of each column, chosen at
// random and rounded up, to 0 (Martens 2010). The generator draws the samples, and that of the CPU the zeros, as in PyTorch.
// PyTorch: torch.nn.init.sparse_, whose default of std is 0.01.
func Sparse_(t *tensor.Tensor, sparsity, std float64, g ...*tensor.Generator) *tensor.Tensor {
	const op = "Sparse_"
	if bad := unusable(op, t); bad != nil {
		return bad
	}
	if t.Dim() != 2 || !(sparsity >= 0 && sparsity <= 1) || !(std >= 0) || math.IsInf(std, 0) {
		return refuse.Tensor(op, tensor.ErrArgument, "a matrix, a sparsity in [0, 1] and a finite std are needed, got shape %v, %v and %v", t.Shape(), sparsity, std)
	}
	rows, cols := t.Size(0), t.Size(1)
	zeros := int(math.Ceil(sparsity * float64(rows)))
	return fillData(op, t, func() *tensor.Tensor {
		return tensor.Tidy(func() *tensor.Tensor {
			y := t.Normal_(0, std, from(g)...)
			for c := range cols {
				chosen := tensor.RandPerm(rows, tensor.CPU).Narrow(0, 0, zeros).To(t.Device())
				if err := t.Detach().Select(1, c).IndexFill_(0, chosen, 0).Err(); err != nil {
					return tensor.Failed(err)
				}
			}
			return y
		})
	})
}

// CalculateGain returns the gain that KaimingUniform_ and KaimingNormal_ use for a nonlinearity, and an error for an
// unknown one: "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
// "sigmoid", "tanh", "relu", "leaky_relu" or "selu". slope is that of leaky_relu; PyTorch's default is 0.01. PyTorch:
// torch.nn.init.calculate_gain.
func CalculateGain(nonlinearity string, slope float64) (float64, error) {
	g, ok := gain(kaimingSettings{nonlinearity: nonlinearity, a: slope})
	if !ok || math.IsNaN(g) {
		return 0, refuse.Error("CalculateGain", tensor.ErrArgument, "there is no gain for nonlinearity %q with slope %v", nonlinearity, slope)
	}
	return g, nil
}

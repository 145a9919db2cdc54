package nn_test

import (
	"errors"
	"fmt"
	"strings"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// symmetric and scaled are the parametrizations of torch_nn.py.
type symmetric struct{}

func (*symmetric) Forward(originals ...*tensor.Tensor) *tensor.Tensor {
	x := originals[0]
	return x.Triu().Add(x.Triu(tensor.Diagonal(1)).Transpose(0, 1))
}

func (*symmetric) RightInverse(w *tensor.Tensor) ([]*tensor.Tensor, error) {
	return tensors(w.Triu()), nil
}

type scaled struct{}

func (*scaled) Forward(originals ...*tensor.Tensor) *tensor.Tensor { return originals[0].Mul(2) }

// unparametrized removes the parametrization of the weight.
func unparametrized(p *nn.Parametrized, leave bool) nn.Layer {
	l, err := nn.RemoveParametrizations(p, "weight", leave)
	if err != nil {
		return nn.Func(func(*tensor.Tensor) *tensor.Tensor { return tensor.Failed(err) })
	}
	return l
}

// dry makes a lazy layer by a pass on zeros.
func dry(l nn.Layer, shape ...int) nn.Layer {
	_ = tensor.WithScope(func() error { return l.Forward(tensor.Zeros(shape)).Err() })
	return l
}

// inRows computes a LinearCrossEntropyLoss two rows at a time.
func inRows(m any, x []*tensor.Tensor) []*tensor.Tensor {
	l := m.(*nn.LinearCrossEntropyLoss)
	l.Rows = 2
	return pairOf(m, x)
}

// linearOf computes a LinearCrossEntropy of x, a weight, a bias if there is one, and targets.
func linearOf(rows int, bias bool) torchModule {
	return torchModule{func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor {
		if !bias {
			return tensors(nn.LinearCrossEntropy(x[0], x[1], nil, x[2].Detach(), rows))
		}
		return tensors(nn.LinearCrossEntropy(x[0], x[1], x[2], x[3], rows, tensor.Weight(lossWeight()), tensor.IgnoreIndex(1)))
	}}
}

// weightedOf computes a loss of x, targets and weights.
func weightedOf(loss func(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor, opts ...tensor.Option) torchModule {
	return torchModule{func() any { return &nn.Identity{} }, func(_ any, x []*tensor.Tensor) []*tensor.Tensor {
		return tensors(loss(x[0], x[1], append([]tensor.Option{tensor.Weight(x[2])}, opts...)...))
	}}
}

func init() {
	for name, c := range map[string]torchModule{
		"weight_norm":       {make: func() any { return nn.WeightNorm(nn.NewLinear(3, 4), "weight") }},
		"weight_norm_whole": {make: func() any { return nn.WeightNorm(nn.NewConv1d(2, 3, 2), "weight", nn.NormDim(-1)) }},
		"weight_norm_dim":   {make: func() any { return nn.WeightNorm(nn.NewConv2d(2, 3, 2, nn.NoBias()), "weight", nn.NormDim(1)) }},
		"weight_norm_lstm": {func() any { return nn.WeightNorm(nn.NewLSTM(3, 2), "weight_hh_l0") }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			l, err := m.(*nn.Parametrized).Module()
			if err != nil {
				return tensors(tensor.Failed(err))
			}
			return recurrentOf(l, x)
		}},
		"weight_norm_old": {make: func() any { return nn.WeightNorm(nn.NewLinear(3, 4), "weight", nn.OldNames()) }},
		"spectral_norm":   {make: func() any { return nn.SpectralNorm(nn.NewLinear(3, 4), "weight") }},
		"spectral_norm_conv": {make: func() any {
			return nn.SpectralNorm(nn.NewConv2d(2, 3, 2), "weight", nn.PowerIterations(2), nn.Eps(1e-6))
		}},
		"spectral_norm_transposed": {make: func() any { return nn.SpectralNorm(nn.NewConvTranspose1d(2, 3, 2), "weight") }},
		"spectral_norm_dim":        {make: func() any { return nn.SpectralNorm(nn.NewLinear(3, 4), "weight", nn.NormDim(-1)) }},
		"spectral_norm_vector":     {make: func() any { return nn.SpectralNorm(nn.NewLinear(3, 4), "bias") }},
		"spectral_norm_old": {make: func() any {
			return nn.SpectralNorm(nn.NewConv2d(2, 3, 2), "weight", nn.PowerIterations(2), nn.OldNames())
		}},
		"spectral_norm_removed": {make: func() any { return unparametrized(nn.SpectralNorm(nn.NewLinear(3, 4), "weight"), true) }},
		"spectral_norm_old_removed": {make: func() any {
			return unparametrized(nn.SpectralNorm(nn.NewLinear(3, 4), "weight", nn.OldNames()), true)
		}},
		"weight_norm_removed":  {make: func() any { return unparametrized(nn.WeightNorm(nn.NewLinear(3, 4), "weight"), true) }},
		"orthogonal":           {make: func() any { return nn.Orthogonal(nn.NewLinear(3, 3), "weight") }},
		"orthogonal_wide":      {make: func() any { return nn.Orthogonal(nn.NewLinear(5, 3), "weight") }},
		"orthogonal_tall":      {make: func() any { return nn.Orthogonal(nn.NewLinear(3, 5), "weight", nn.OrthogonalMap("matrix_exp")) }},
		"orthogonal_cayley":    {make: func() any { return nn.Orthogonal(nn.NewLinear(3, 5), "weight", nn.OrthogonalMap("cayley")) }},
		"orthogonal_plain":     {make: func() any { return nn.Orthogonal(nn.NewLinear(5, 3), "weight", nn.NoTrivialization()) }},
		"orthogonal_plain_exp": {make: func() any { return nn.Orthogonal(nn.NewLinear(3, 3), "weight", nn.NoTrivialization()) }},
		"orthogonal_removed":   {make: func() any { return unparametrized(nn.Orthogonal(nn.NewLinear(3, 3), "weight"), false) }},
		"parametrize_chain": {make: func() any {
			p := nn.RegisterParametrization(nn.NewLinear(3, 3), "weight", &symmetric{})
			return nn.WeightNorm(nn.RegisterParametrization(p, "weight", &scaled{}), "bias")
		}},
		"prune_identity":          {make: func() any { return nn.PruneIdentity(nn.NewLinear(3, 4), "weight") }},
		"prune_random":            {make: func() any { return nn.PruneRandomUnstructured(nn.NewLinear(6, 5), "weight", nn.Fraction(0.3)) }},
		"prune_l1":                {make: func() any { return nn.PruneL1Unstructured(nn.NewLinear(6, 5), "weight", nn.Count(7)) }},
		"prune_random_structured": {make: func() any { return nn.PruneRandomStructured(nn.NewLinear(6, 5), "weight", nn.Count(2), 0) }},
		"prune_ln_structured":     {make: func() any { return nn.PruneLnStructured(nn.NewConv1d(3, 4, 2), "weight", nn.Fraction(0.5), 2, 1) }},
		"prune_twice": {make: func() any {
			return nn.PruneL1Unstructured(nn.PruneL1Unstructured(nn.NewLinear(6, 5), "weight", nn.Fraction(0.25)), "weight", nn.Fraction(0.25))
		}},
		"prune_twice_structured": {make: func() any {
			return nn.PruneRandomStructured(nn.PruneLnStructured(nn.NewLinear(6, 5), "weight", nn.Count(2), 1, 0), "weight", nn.Fraction(0.5), -2)
		}},
		"prune_mask": {make: func() any {
			eye := tensor.Eye(3)
			defer eye.Release()
			return nn.PruneCustomFromMask(nn.NewLinear(3, 3), "weight", eye)
		}},
		"prune_global": {make: func() any {
			a, b := nn.NewLinear(3, 4), nn.NewLinear(4, 2)
			p, err := nn.PruneGlobalUnstructured([]nn.PruneTarget{{Layer: a, Name: "weight"}, {Layer: b, Name: "weight"}, {Layer: a, Name: "bias"}}, nn.PruneL1, nn.Fraction(0.4))
			if err != nil || p[0] != p[2] {
				return nn.Func(func(*tensor.Tensor) *tensor.Tensor {
					return tensor.Failed(errors.Join(err, errors.New("two wrappers")))
				})
			}
			return nn.NewSequential(p[0], p[1])
		}},
		"prune_removed": {make: func() any {
			return unparametrized(nn.PruneL1Unstructured(nn.NewLinear(6, 5), "weight", nn.Fraction(0.5)), true)
		}},
		"LazyLinear": {make: func() any { return dry(nn.NewLazyLinear(4), 1, 3) }},
		"AdaptiveLogSoftmaxWithLoss": {func() any {
			return nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{2, 5}, nn.DivValue(2), nn.HeadBias())
		}, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			return tensors(m.(*nn.AdaptiveLogSoftmaxWithLoss).Forward(x[0], tensor.FromSlice([]int{0, 5, 2, 9, 3}, nil)))
		}},
		"AdaptiveLogSoftmaxWithLoss_unbatched": {func() any { return nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{4}) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			return tensors(m.(*nn.AdaptiveLogSoftmaxWithLoss).Forward(x[0], tensor.ScalarTensor(7, tensor.Int64)))
		}},
		"AdaptiveLogSoftmaxWithLoss_prob": {func() any { return nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{2, 5}, nn.DivValue(2)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			a := m.(*nn.AdaptiveLogSoftmaxWithLoss)
			return tensors(a.LogProb(x[0]), a.Predict(x[0]))
		}},
		"LinearCrossEntropyLoss": {func() any {
			w := lossWeight()
			defer w.Release()
			return nn.NewLinearCrossEntropyLoss(4, 3, []nn.Option{nn.HeadBias()}, tensor.Weight(w), tensor.IgnoreIndex(1), tensor.LabelSmoothing(0.1))
		}, pairOf},
		"LinearCrossEntropyLoss_rows": {func() any {
			w := lossWeight()
			defer w.Release()
			return nn.NewLinearCrossEntropyLoss(4, 3, []nn.Option{nn.HeadBias()}, tensor.Weight(w), tensor.IgnoreIndex(1), tensor.LabelSmoothing(0.1))
		}, inRows},
		"linear_cross_entropy_dims":                    linearOf(0, true),
		"linear_cross_entropy_dims_rows":               linearOf(2, true),
		"linear_cross_entropy_dims_probabilities":      linearOf(0, false),
		"linear_cross_entropy_dims_probabilities_rows": linearOf(2, false),
		"mse_loss_weight_none":                         weightedOf(nn.MSELoss, tensor.ReduceNone),
		"mse_loss_weight_mean":                         weightedOf(nn.MSELoss),
		"mse_loss_weight_sum":                          weightedOf(nn.MSELoss, tensor.ReduceSum),
		"l1_loss_weight_none":                          weightedOf(nn.L1Loss, tensor.ReduceNone),
		"l1_loss_weight_mean":                          weightedOf(nn.L1Loss, tensor.ReduceMean),
		"l1_loss_weight_sum":                           weightedOf(nn.L1Loss, tensor.ReduceSum),
		"huber_loss_weight_none":                       weightedOf(nn.HuberLoss, tensor.Delta(0.7), tensor.ReduceNone),
		"huber_loss_weight_mean":                       weightedOf(nn.HuberLoss, tensor.Delta(0.7)),
		"huber_loss_weight_sum":                        weightedOf(nn.HuberLoss, tensor.ReduceSum, tensor.Delta(0.7)),
		"MaxUnpool2d_shape": {func() any { return nn.NewMaxUnpool2d(2) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			y := withIndices(nn.NewMaxPool2d(2), x)
			return tensors(m.(*nn.MaxUnpool2d).Forward(y[0], y[1], x[0].Shape()...))
		}},
		"LinearCrossEntropyLoss_sum":           {func() any { return nn.NewLinearCrossEntropyLoss(4, 3, nil, tensor.ReduceSum) }, inRows},
		"LinearCrossEntropyLoss_probabilities": {func() any { return nn.NewLinearCrossEntropyLoss(4, 3, nil, tensor.LabelSmoothing(0.1)) }, inRows},
		"RotaryEmbedding":                      {make: func() any { return nn.NewRotaryEmbedding(4) }},
		"RotaryEmbedding_part": {func() any { return nn.NewRotaryEmbedding(4, nn.Base(500)) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			return tensors(m.(*nn.RotaryEmbedding).ForwardFrom(x[0], 5))
		}},
		"RotaryEmbedding_interleaved": {func() any { return nn.NewRotaryEmbedding(6, nn.Interleaved()) }, func(m any, x []*tensor.Tensor) []*tensor.Tensor {
			return tensors(m.(*nn.RotaryEmbedding).ForwardAt(x[0], tensor.FromSlice([]int{3, 0, 7, 1, 1, 2}, []int{2, 3})))
		}},
		"SwiGLU":   {make: func() any { return nn.NewSwiGLU(4, 6, nn.NoBias()) }},
		"DropPath": {make: func() any { return nn.NewDropPath(0.3) }},
		"Int8Linear": {make: func() any {
			l := nn.NewLinear(4, 3)
			defer nn.Release(l)
			return nn.NewInt8Linear(l)
		}},
		"LoRALinear": {make: func() any { return nn.NewLoRALinear(nn.NewLinear(4, 3), 2) }},
		"LoRALinear_trained": {make: func() any {
			l := nn.NewLoRALinear(nn.NewLinear(4, 3), 2, nn.Alpha(6), nn.DropoutP(0.3))
			nn.Normal_(l.B.Weight, 0, 1)
			return l
		}},
	} {
		torchModules[name] = c
	}
	sizes := [][]int{{5}, {4, 5}, {3, 4, 3}}
	for kind, layers := range map[string][3]func() nn.Layer{
		"LazyConv": {func() nn.Layer { return nn.NewLazyConv1d(2, 2, nn.Groups(2)) }, func() nn.Layer { return nn.NewLazyConv2d(2, 2, nn.Groups(2)) },
			func() nn.Layer { return nn.NewLazyConv3d(2, 2, nn.Groups(2)) }},
		"LazyConvTranspose": {func() nn.Layer { return nn.NewLazyConvTranspose1d(2, 2, nn.Stride(2), nn.NoBias()) },
			func() nn.Layer { return nn.NewLazyConvTranspose2d(2, 2, nn.Stride(2), nn.NoBias()) }, func() nn.Layer { return nn.NewLazyConvTranspose3d(2, 2, nn.Stride(2), nn.NoBias()) }},
		"LazyBatchNorm": {func() nn.Layer { return nn.NewLazyBatchNorm1d(nn.Momentum(0.3)) }, func() nn.Layer { return nn.NewLazyBatchNorm2d(nn.Momentum(0.3)) },
			func() nn.Layer { return nn.NewLazyBatchNorm3d(nn.Momentum(0.3)) }},
		"LazyInstanceNorm": {func() nn.Layer { return nn.NewLazyInstanceNorm1d() }, func() nn.Layer { return nn.NewLazyInstanceNorm2d() }, func() nn.Layer { return nn.NewLazyInstanceNorm3d() }},
	} {
		for d, make := range layers {
			batch := 1
			if strings.HasSuffix(kind, "Norm") {
				batch = 2
			}
			torchModules[fmt.Sprintf("%s%dd", kind, d+1)] = torchModule{make: func() any { return dry(make(), append([]int{batch, 4}, sizes[d]...)...) }}
		}
	}
}

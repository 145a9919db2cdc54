package nn_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// here returns the caller's file and line.
func here() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line)
}

// TestConstructorErrors tests that a constructor's error names the constructor, the fault and the user's line, and that
// every function that uses the module returns it.
func TestConstructorErrors(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		line, bad := here(), nn.NewLinear(-3, 2)
		want := "linstock: NewLinear: in must be at least 0 and no larger than 2^40, got -3 at " + line
		first := nn.NewLinear(2, 2)
		defer nn.Release(first)
		model := nn.NewSequential(first, bad)
		x := tensor.Ones([]int{1, 2})
		_, adam := optim.NewAdam(nn.Parameters(model), 1e-3)
		for what, err := range map[string]error{
			"Err": bad.Err(), "Forward": bad.Forward(x).Err(), "a model's Forward": model.Forward(x).Err(), "Pipe": nn.Pipe(x, model).Err(),
			"Residual": nn.Residual(x, model).Err(), "Check": nn.Check(model), "NewAdam": adam, "ZeroGrad": nn.ZeroGrad(model), "To": nn.To(model, tensor.CPU),
			"LoadStateDict": nn.LoadStateDict(model, nil), "ClipGradNorm_": nn.ClipGradNorm_(nn.Parameters(model), 1).Err(),
			"ClipGradValue_": nn.ClipGradValue_(nn.Parameters(model), 1), "RequiresGrad_": nn.RequiresGrad_(model, true),
		} {
			if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%s: %v, want %s", what, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestConstructorErrorsOfParts tests that the error of a submodule names the outer constructor, and that no tensor
// leaks.
func TestConstructorErrorsOfParts(t *testing.T) {
	leak.Check(t)
	line, a := here(), nn.NewMultiheadAttention(8, 2, nn.Device(tensor.CUDA(99)))
	err := a.Err()
	if err == nil || !strings.HasPrefix(err.Error(), "linstock: NewMultiheadAttention: ") || !strings.HasSuffix(err.Error(), "at "+line) {
		t.Errorf("the error is %v", err)
	}
	for _, m := range []interface {
		nn.Layer
		Err() error
	}{(*nn.Linear)(nil), (*nn.Embedding)(nil), (*nn.Conv1d)(nil), (*nn.Conv2d)(nil), (*nn.LayerNorm)(nil), (*nn.RMSNorm)(nil), (*nn.BatchNorm2d)(nil),
		(*nn.MaxPool2d)(nil), (*nn.AvgPool2d)(nil), (*nn.AdaptiveAvgPool2d)(nil), (*nn.Dropout)(nil), (*nn.CausalSelfAttention)(nil), (*nn.MultiheadAttention)(nil)} {
		if !errors.Is(m.Err(), tensor.ErrNil) {
			t.Errorf("Err of a nil %T returns %v", m, m.Err())
		}
	}
}

// TestMargins tests that the triplet losses reject margins that are not positive, as PyTorch's do.
func TestMargins(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{2, 3})
	defer x.Release()
	for _, margin := range []any{-1.0, 0} {
		for what, err := range map[string]error{
			"TripletMarginLoss":                nn.TripletMarginLoss(x, x, x, tensor.Margin(margin)).Err(),
			"TripletMarginWithDistanceLoss":    nn.TripletMarginWithDistanceLoss(x, x, x, nil, tensor.Margin(margin)).Err(),
			"NewTripletMarginLoss":             nn.NewTripletMarginLoss(tensor.Margin(margin)).Err(),
			"NewTripletMarginWithDistanceLoss": nn.NewTripletMarginWithDistanceLoss(nil, tensor.Margin(margin)).Err(),
		} {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), fmt.Sprintf("%s: Margin must be positive, got %v", what, margin)) {
				t.Errorf("%s of margin %v: %v", what, margin, err)
			}
		}
	}
	y := nn.TripletMarginLoss(x, x, x, tensor.Margin(-1), tensor.Margin(1))
	defer y.Release()
	if err := errors.Join(y.Err(), nn.NewTripletMarginLoss().Err()); err != nil {
		t.Error(err)
	}
}

// TestMultiMarginLossOfP tests that MultiMarginLoss rejects a P that is neither 1 nor 2, as PyTorch's does.
func TestMultiMarginLossOfP(t *testing.T) {
	leak.Check(t)
	x, classes := tensor.Ones([]int{2, 3}), tensor.Zeros([]int{2}, tensor.Int64)
	defer x.Release()
	defer classes.Release()
	for _, p := range []any{1.5, 2.9, 0, 3, -1.0} {
		for what, err := range map[string]error{
			"MultiMarginLoss":    nn.MultiMarginLoss(x, classes, tensor.P(p)).Err(),
			"NewMultiMarginLoss": nn.NewMultiMarginLoss(tensor.P(p)).Err(),
		} {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), fmt.Sprintf("%s: P must be 1 or 2, got %v", what, p)) {
				t.Errorf("%s of P %v: %v", what, p, err)
			}
		}
	}
	for _, p := range []any{1, 2, 1.0, 2.0} {
		y := nn.NewMultiMarginLoss(tensor.P(p)).Forward(x, classes)
		if err := y.Err(); err != nil {
			t.Errorf("P %v: %v", p, err)
		}
		y.Release()
	}
}

// TestUnknownOptions tests that the error for an unknown option lists the constructor's options.
func TestUnknownOptions(t *testing.T) {
	leak.Check(t)
	weight := tensor.Ones([]int{2, 2})
	defer weight.Release()
	for want, m := range map[string]interface{ Err() error }{
		"NewLinear: unknown option Stride; the options are NoBias, DType, Device":                                                                               nn.NewLinear(2, 2, nn.Stride(2)),
		"NewEmbedding: unknown option NoBias; the options are PaddingIdx, MaxNorm, NormType, ScaleGradByFreq, SparseGrad, DType, Device":                        nn.NewEmbedding(2, 2, nn.NoBias()),
		"NewEmbeddingFromPretrained: unknown option DType; the options are PaddingIdx, MaxNorm, NormType, ScaleGradByFreq, SparseGrad":                          nn.NewEmbeddingFromPretrained(weight, true, nn.DType(tensor.Float64)),
		"NewEmbeddingBagFromPretrained: unknown option Device; the options are BagMode, IncludeLastOffset, PaddingIdx,":                                         nn.NewEmbeddingBagFromPretrained(weight, true, nn.Device(tensor.Meta)),
		"NewConv1d: unknown option Kernel; the options are Stride, Padding, PaddingSame, PaddingMode, Dilation, Groups, NoBias, DType, Device":                  nn.NewConv1d(2, 2, 2, nn.Kernel(2)),
		"NewConv2d: unknown option Eps; the options are Kernel, Stride, Padding, PaddingSame, PaddingMode, Dilation, Groups, NoBias, DType, Device":             nn.NewConv2d(2, 2, 2, nn.Eps(1)),
		"NewMaxPool2d: unknown option DType; the options are Kernel, Stride, Padding, Dilation, CeilMode":                                                       nn.NewMaxPool2d(2, nn.DType(tensor.Float64)),
		"NewAvgPool2d: unknown option Dilation; the options are Kernel, Stride, Padding, CeilMode, NotCountPadding, DivisorOverride":                            nn.NewAvgPool2d(2, nn.Dilation(2)),
		"NewLayerNorm: unknown option Momentum; the options are Eps, NoAffine, NoBias, DType, Device":                                                           nn.NewLayerNorm(2, nn.Momentum(1)),
		"NewRMSNorm: unknown option NoBias; the options are Eps, NoAffine, DType, Device":                                                                       nn.NewRMSNorm(2, nn.NoBias()),
		"NewBatchNorm2d: unknown option Causal; the options are Momentum, CumulativeAverage, Eps, NoAffine, NoBias, NoRunningStats, DType, ":                    nn.NewBatchNorm2d(2, nn.Causal()),
		"NewInstanceNorm1d: unknown option CumulativeAverage; the options are Momentum, Eps, Affine, NoBias, RunningStats, DType, Device":                       nn.NewInstanceNorm1d(2, nn.CumulativeAverage()),
		"NewLazyInstanceNorm2d: unknown option CumulativeAverage; the options are Momentum, Eps, NoAffine, NoBias, NoRunningStats, DType, ":                     nn.NewLazyInstanceNorm2d(nn.CumulativeAverage()),
		"NewCausalSelfAttention: unknown option Causal; the options are NoBias, DropoutP, DType, Device":                                                        nn.NewCausalSelfAttention(2, 2, nn.Causal()),
		"NewMultiheadAttention: unknown option Groups; the options are BatchFirst, Causal, NoBias, DropoutP, KDim, VDim, AddBiasKV, AddZeroAttn, DType, Device": nn.NewMultiheadAttention(2, 2, nn.Groups(2)),
	} {
		if err := m.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

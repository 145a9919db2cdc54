package distributions_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// methods calls every method of d with the value v, and returns the tensors.
func methods(d distributions.Distribution, v *tensor.Tensor) map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{"Sample": d.Sample(2), "RSample": d.RSample(), "LogProb": d.LogProb(v), "CDF": d.CDF(v), "ICDF": d.ICDF(v), "Entropy": d.Entropy(),
		"Perplexity": d.Perplexity(), "Mean": d.Mean(), "Mode": d.Mode(), "Variance": d.Variance(), "Stddev": d.Stddev(), "EnumerateSupport": d.EnumerateSupport(true)}
}

// TestConstructorErrors tests that the error of a constructor names it, the fault and the user's line, and that every
// method returns it.
func TestConstructorErrors(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		_, file, line, _ := runtime.Caller(0)
		d := distributions.NewNormal(0, -1) // on the next line
		want := fmt.Sprintf("at %s:%d", file, line+1)
		err := d.Err()
		if err == nil || !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "NewNormal: expected parameter scale") ||
			!strings.Contains(err.Error(), "GreaterThan(lower_bound=0.0)") || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("the error is %v, want %s", err, want)
		}
		for what, y := range methods(d, tensor.Ones([]int{})) {
			if y.Err() != err {
				t.Errorf("%s returns %v", what, y.Err())
			}
		}
		if d.Expand(2).Err() == nil || distributions.KLDivergence(d, d).Err() != err || d.Loc().Err() != err {
			t.Error("Expand, KLDivergence or Loc does not return the error")
		}
		if distributions.NewIndependent(d, 0).Err() == nil || distributions.NewTransformedDistribution(d, nil).Err() == nil {
			t.Error("a distribution made of a failed one has no error")
		}
		if ok := distributions.NewNormal(0, -1, distributions.ValidateArgs(false)); ok.Err() != nil {
			t.Errorf("ValidateArgs(false) checks: %v", ok.Err())
		}
		distributions.SetDefaultValidateArgs(false)
		if ok := distributions.NewNormal(0, -1); ok.Err() != nil {
			t.Errorf("SetDefaultValidateArgs(false) checks: %v", ok.Err())
		}
		distributions.SetDefaultValidateArgs(true)
		return nil
	})
	tensor.Flush()
}

// TestValidateArgs tests that values outside the support and values of the wrong shape are errors.
func TestValidateArgs(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{0.5, -2}, nil)
		for what, y := range map[string]*tensor.Tensor{
			"Exponential.LogProb": distributions.NewExponential(1).LogProb(x), "Exponential.CDF": distributions.NewExponential(1).CDF(x),
			"Bernoulli.LogProb": distributions.NewBernoulli(distributions.Probs(0.5)).LogProb(x), "Uniform.LogProb": distributions.NewUniform(0, 1).LogProb(x),
			"Categorical.LogProb": distributions.NewCategorical(distributions.Probs(tensor.Ones([]int{2}))).LogProb(x), "Beta.LogProb": distributions.NewBeta(1, 1).LogProb(x),
		} {
			err := y.Err()
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "support") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := distributions.NewExponential(1, distributions.ValidateArgs(false)).LogProb(x).Err(); err != nil {
			t.Errorf("ValidateArgs(false): %v", err)
		}
		three := distributions.NewNormal(tensor.Zeros([]int{3}), 1)
		if err := three.LogProb(x).Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "broadcast") {
			t.Errorf("a value of another shape: %v", err)
		}
		if err := distributions.NewIndependent(three, 1).LogProb(x).Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "broadcast") {
			t.Errorf("Independent, a value of another event shape: %v", err)
		}
		rows := distributions.NewDirichlet(tensor.Ones([]int{3}))
		if err := rows.LogProb(x).Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "event shape") {
			t.Errorf("a value of another event shape: %v", err)
		}
		return nil
	})
}

// TestIndependentBroadcasts tests that LogProb of Independent broadcasts values over the reinterpreted dimensions.
func TestIndependentBroadcasts(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		half, whole := -1.0439385, 3*-1.0439385 // the logarithm of a standard normal density at 0.5, and that of three
		for _, c := range []struct {
			loc, value, want []int
			each             float64
		}{
			{[]int{5, 3}, nil, []int{5}, whole},
			{[]int{5, 3}, []int{2, 5, 1}, []int{2, 5}, whole},
			{[]int{5, 1}, []int{5, 3}, []int{5}, whole},
			{[]int{5, 1}, []int{5, 1}, []int{5}, half},
		} {
			d := distributions.NewIndependent(distributions.NewNormal(tensor.Zeros(c.loc), 1), 1)
			y := d.LogProb(tensor.Full(c.value, 0.5))
			if !slices.Equal(y.Shape(), c.want) {
				t.Errorf("loc %v, value %v: the result has shape %v: %v", c.loc, c.value, y.Shape(), y.Err())
			}
			golden.Near(t, fmt.Sprintf("loc %v, value %v", c.loc, c.value), y, slices.Repeat([]float64{c.each}, y.Numel()), 1e-6, 1e-6)
		}
		if err := distributions.NewIndependent(distributions.NewNormal(tensor.Zeros([]int{2}), 1), 1).LogProb(nil).Err(); !errors.Is(err, tensor.ErrNil) {
			t.Errorf("no value: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestIndependentLeavesChecks tests that LogProb of Independent checks values if its base does.
func TestIndependentLeavesChecks(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		rate, x := tensor.Ones([]int{2}), tensor.FromSlice([]float32{7.3, 2}, nil)
		for _, on := range []bool{false, true} {
			base := distributions.NewPoisson(rate, distributions.ValidateArgs(on))
			for _, n := range []int{0, 1} {
				for _, own := range []bool{false, true} {
					y := distributions.NewIndependent(base, n, distributions.ValidateArgs(own)).LogProb(x)
					if err := y.Err(); errors.Is(err, tensor.ErrArgument) != on {
						t.Errorf("a base with ValidateArgs(%t) in Independent with ValidateArgs(%t): %v", on, own, err)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMixtureBroadcasts tests mixtures whose batch shape is broadcast to that of the components, against the same ones
// with all weights given.
func TestMixtureBroadcasts(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		values := func(y *tensor.Tensor) []float64 {
			v, err := tensor.Data[float64](y.Contiguous().To(tensor.Float64))
			if err != nil {
				t.Error(err)
			}
			return v
		}
		weights := tensor.Arange(1, 5, tensor.Float64).Reshape(4, 1).PowTensor(tensor.Arange(0, 3, tensor.Float64)) // of 4 mixtures of 3 components
		for _, c := range []struct{ mixture, batch []int }{
			{nil, nil}, {nil, []int{2}}, {[]int{1}, []int{2}}, {[]int{2}, []int{2}}, {nil, []int{2, 2}}, {[]int{1}, []int{2, 2}}, {[]int{2}, []int{2, 2}},
			{[]int{2, 1}, []int{2, 2}}, {[]int{1, 2}, []int{2, 2}}, {[]int{2, 2}, []int{2, 2}}, {[]int{2, 1}, []int{3, 2, 2}}, {[]int{2, 2}, []int{3, 2, 2}},
		} {
			n := 1
			for _, k := range c.mixture {
				n *= k
			}
			probs := weights.Narrow(0, 0, n).Reshape(append(slices.Clone(c.mixture), 3)...)
			given := probs.Expand(append(slices.Clone(c.batch), 3)...).Contiguous()
			for _, event := range [][]int{nil, {2}} {
				shape := slices.Concat(c.batch, []int{3}, event)
				loc := tensor.Ones(shape, tensor.Float64).Reshape(-1).CumSum(0).Reshape(shape...)
				mix := func(p *tensor.Tensor) distributions.Distribution {
					var component distributions.Distribution = distributions.NewNormal(loc, 0.5)
					if event != nil {
						component = distributions.NewIndependent(component, 1)
					}
					return distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(p)), component)
				}
				what := fmt.Sprintf("mixture of batch shape %v in %v, event shape %v", c.mixture, c.batch, event)
				type outputs map[string]*tensor.Tensor
				of := func(d distributions.Distribution) outputs {
					if err := errors.Join(d.Err(), tensor.ManualSeed(4)); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					x := tensor.Full(slices.Concat([]int{2}, c.batch, event), 2.5, tensor.Float64)
					all := outputs{"Sample": d.Sample(5), "Sample of one": d.Sample(), "Mean": d.Mean(), "Variance": d.Variance(), "LogProb": d.LogProb(x)}
					if event == nil {
						all["CDF"] = d.CDF(x)
					}
					return all
				}
				got := of(mix(probs))
				for name, want := range of(mix(given)) {
					if y := got[name]; y.Err() != nil || !slices.Equal(y.Shape(), want.Shape()) {
						t.Errorf("%s: %s has shape %v, want %v: %v", what, name, y.Shape(), want.Shape(), y.Err())
						continue
					}
					golden.Near(t, what+": "+name, got[name], values(want), 1e-14, 1e-14)
				}
				if want := slices.Concat([]int{5}, c.batch, event); !slices.Equal(got["Sample"].Shape(), want) {
					t.Errorf("%s: draws of shape %v, want %v", what, got["Sample"].Shape(), want)
				}
			}
		}
		// One component or the other: PyTorch's means are of the wrong components.
		ones := tensor.Eye(2, tensor.Float64).Expand(2, 2, 2)
		pick := distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(ones)), distributions.NewNormal(tensor.Arange(0, 16, tensor.Float64).Reshape(2, 2, 2, 2), 1.0))
		golden.Near(t, "Mean", pick.Mean(), []float64{0, 3, 4, 7, 8, 11, 12, 15}, 0, 0)
		golden.Near(t, "Variance", pick.Variance(), slices.Repeat([]float64{1}, 8), 0, 0)
		for _, c := range []struct{ mixture, component []int }{{[]int{3, 2}, []int{2}}, {[]int{3, 2}, []int{1, 2}}, {[]int{1, 2}, []int{2}}, {[]int{3, 2}, []int{2, 2}}} {
			d := distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(tensor.Ones(c.mixture))), distributions.NewNormal(tensor.Zeros(c.component), 1))
			if err := d.Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "does not fit") {
				t.Errorf("weights of shape %v for components of batch shape %v: %v", c.mixture, c.component, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMixtureChoices tests that each distribution of a batch chooses a component of its own where they share weights.
func TestMixtureChoices(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		for _, shape := range [][]int{{2}, {1, 2}} {
			d := distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(tensor.Ones(shape))), distributions.NewNormal(tensor.FromSlice([]float32{-10, 10}, nil).Expand(2, 2), 1))
			if err := tensor.ManualSeed(1); err != nil {
				return err
			}
			high := d.Sample(1000).Gt(0)
			if v, err := high.Narrow(-1, 0, 1).Ne(high.Narrow(-1, 1, 1)).To(tensor.Float32).Mean().Item(); !(math.Abs(v-0.5) <= 0.1) || err != nil {
				t.Errorf("weights of shape %v: the two distributions differ in %v of the draws, want about 0.5: %v", shape, v, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDTypeOfLogProb tests the dtypes of LogProb of values of another dtype than the parameters, which are PyTorch's.
func TestDTypeOfLogProb(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		scalar, two := tensor.ScalarTensor(2.0, tensor.Float64), tensor.Full([]int{2}, 2.5, tensor.Float64)
		poisson := distributions.NewPoisson(1)
		for what, c := range map[string]struct {
			got  *tensor.Tensor
			want tensor.DType
		}{
			"Poisson":                           {poisson.LogProb(scalar), tensor.Float64},
			"Poisson, expanded":                 {poisson.Expand(3).LogProb(scalar), tensor.Float64},
			"HalfCauchy":                        {distributions.NewHalfCauchy(1).LogProb(two), tensor.Float32},
			"HalfCauchy of float64":             {distributions.NewHalfCauchy(two).LogProb(scalar.To(tensor.Float32)), tensor.Float64},
			"HalfNormal":                        {distributions.NewHalfNormal(1).LogProb(two), tensor.Float64},
			"HalfNormal of float64, a scalar":   {distributions.NewHalfNormal(two).LogProb(scalar.To(tensor.Float32)), tensor.Float64},
			"HalfCauchy, expanded and a scalar": {distributions.NewHalfCauchy(1).Expand(3).LogProb(scalar), tensor.Float32},
		} {
			if d := c.got.DType(); d != c.want {
				t.Errorf("%s: %v, PyTorch's is %v", what, c.got, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTypeOfExpand tests that Expand returns a distribution of the same type, also if the constructor or Expand failed.
func TestTypeOfExpand(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		for _, v := range []any{"x", tensor.Ones([]int{2}), tensor.Eye(2)} {
			for _, d := range all(v) {
				for _, shape := range [][]int{{-1}, {2, 2}} {
					e := d.Expand(shape...)
					if reflect.TypeOf(e) != reflect.TypeOf(d) {
						t.Errorf("%T.Expand(%v) returns a %T", d, shape, e)
					}
					if err := d.Err(); err != nil && e.Err() != err {
						t.Errorf("%T.Expand(%v): %v, want %v", d, shape, e.Err(), err)
					}
				}
			}
		}
		return nil
	})
	tensor.Flush()
}

// TestParametersOfTwoDTypes tests that LogProb of Gamma rounds a value to the dtype of the rate, and that draws of
// FisherSnedecor are at least the least positive number of df2's dtype, as in PyTorch.
func TestParametersOfTwoDTypes(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		two := func(d tensor.DType) *tensor.Tensor { return tensor.Full([]int{2}, 2.0, d) }
		x, one := tensor.FromSlice([]float64{1e-50, 0.1}, nil), tensor.Ones([]int{2}, tensor.Float64)
		for what, c := range map[string]struct {
			got  *tensor.Tensor
			want []float64
		}{
			"Gamma, a rate of float64":        {distributions.NewGamma(two(tensor.Float32), one).LogProb(x), []float64{-115.12925464970229, -2.4025850929940455}},
			"Gamma, a rate of float32":        {distributions.NewGamma(two(tensor.Float64), one.To(tensor.Float32)).LogProb(x.Narrow(0, 1, 1)), []float64{-2.402585079583001, -2.402585079583001}},
			"InverseGamma, a rate of float64": {distributions.NewInverseGamma(two(tensor.Float32), one).LogProb(x.Reciprocal()), []float64{-345.3877639491069, -7.007755278982137}},
		} {
			golden.Near(t, what, c.got, c.want, 0, 1e-14)
		}
		y := distributions.NewFisherSnedecor(tensor.Full([]int{64}, 0.001, tensor.Float64), tensor.Full([]int{64}, 2.0)).Sample()
		if v, err := y.Min().Item(); v < 0x1p-126 || err != nil {
			t.Errorf("FisherSnedecor, a df2 of float32: the least draw is %v, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDevices tests that the total count and a value of Gamma are moved to the device of the parameters, as in PyTorch.
// tests/fakecuda has HalfCauchy, which lacks an operator on the meta device.
func TestDevices(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		here := tensor.Full([]int{2}, 3.0)
		there := tensor.Full([]int{2}, 0.5, tensor.Meta)
		off := distributions.ValidateArgs(false)
		binomial := distributions.NewBinomial(here, distributions.Probs(there), off)
		negative := distributions.NewNegativeBinomial(here, distributions.Logits(there), off)
		for what, got := range map[string]*tensor.Tensor{
			"TotalCount of Binomial": binomial.TotalCount(), "Mean of Binomial": binomial.Mean(),
			"TotalCount of NegativeBinomial": negative.TotalCount(), "Mean of NegativeBinomial": negative.Mean(),
			"LogProb of Gamma": distributions.NewGamma(there, there, off).LogProb(here),
		} {
			if err := got.Err(); err != nil || got.Device() != tensor.Meta {
				t.Errorf("%s: device %v, %v", what, got.Device(), err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestIntegerWeights tests distributions of categories whose weights are integers or bools, against PyTorch's.
func TestIntegerWeights(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		type odds interface {
			distributions.Distribution
			Probs() *tensor.Tensor
		}
		probs, logits := []float64{0.25, 0.5, 0.25}, []float64{0.2119415576170855, 0.5761168847658291, 0.2119415576170855}
		ints, small, flags := tensor.FromSlice([]int64{1, 2, 1}, nil), tensor.FromSlice([]uint8{1, 2, 1}, nil), tensor.FromSlice([]bool{true, false, true}, nil)
		for name, of := range map[string]func(distributions.Option) odds{
			"Categorical":       func(o distributions.Option) odds { return distributions.NewCategorical(o) },
			"OneHotCategorical": func(o distributions.Option) odds { return distributions.NewOneHotCategorical(o) },
			"Multinomial":       func(o distributions.Option) odds { return distributions.NewMultinomial(4, o) },
			"RelaxedOneHot":     func(o distributions.Option) odds { return distributions.NewRelaxedOneHotCategorical(1, o) },
		} {
			for _, c := range []struct {
				what string
				opt  distributions.Option
				want []float64
			}{
				{"probs of int64", distributions.Probs(ints), probs}, {"logits of int64", distributions.Logits(ints), logits},
				{"probs of uint8", distributions.Probs(small), probs}, {"logits of uint8", distributions.Logits(small), logits},
				{"probs of bool", distributions.Probs(flags), []float64{0.5, 0, 0.5}},
			} {
				d := of(c.opt)
				golden.Near(t, name+", "+c.what, d.Probs(), c.want, 1e-7, 0)
				if err := errors.Join(d.Sample(2).Err(), d.Err()); err != nil || d.Probs().DType() != tensor.Float32 {
					t.Errorf("%s, %s: %v, %v", name, c.what, d.Probs().DType(), err)
				}
			}
			for what, o := range map[string]distributions.Option{"logits of bool": distributions.Logits(flags), "a scalar": distributions.Probs(tensor.FromScalar(1)),
				"complex probs": distributions.Probs(ints.To(tensor.Complex64)), "complex logits": distributions.Logits(ints.To(tensor.Complex64))} {
				if of(o).Err() == nil {
					t.Errorf("%s accepts %s", name, what)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestStudentTVarianceGradients tests the gradients of a variance that is infinite or undefined, which are PyTorch's: 0.
func TestStudentTVarianceGradients(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		df := tensor.FromSlice([]float32{0.5, 1, 1.5, 2, 3}, nil).RequiresGrad_()
		scale := tensor.Full([]int{5}, 2.0).RequiresGrad_()
		if err := distributions.NewStudentT(df, distributions.Scale(scale)).Variance().Sum().Backward(); err != nil {
			return err
		}
		for what, c := range map[string]struct {
			of   *tensor.Tensor
			want float32
		}{"df": {df, -8}, "scale": {scale, 12}} {
			if same, err := c.of.Grad().AllClose(tensor.FromSlice([]float32{0, 0, 0, 0, c.want}, nil)); err != nil || !same {
				t.Errorf("the gradient of %s is %v, PyTorch's is 0, and %v in the last element", what, c.of.Grad(), c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTrueResults tests results that are wrong in PyTorch, and the infinities and NaNs next to them.
func TestTrueResults(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		from := func(v ...float64) *tensor.Tensor { return tensor.FromSlice(v, nil) }
		inf, nan := math.Inf(1), math.NaN()
		kl := distributions.KLDivergence
		probs := distributions.Probs(from(0.3, 0.5, 0.9))
		continuous := distributions.NewContinuousBernoulli(probs)
		uniform := func(low, high float64) distributions.Distribution {
			return distributions.NewUniform(from(low, low, low), high)
		}
		poisson := func(rate ...float64) distributions.Distribution { return distributions.NewPoisson(from(rate...)) }
		for what, c := range map[string]struct {
			got  *tensor.Tensor
			want []float64
		}{
			// By Simpson's rule.
			"ContinuousBernoulli, Uniform(0, 1)":     {kl(continuous, uniform(0, 1)), []float64{0.02938620223213, 0, 0.1796311160000559}},
			"ContinuousBernoulli, Uniform(-1, 2)":    {kl(continuous, uniform(-1, 2)), []float64{1.1279984909002478, 1.0986122886679588, 1.2782434046681652}},
			"ContinuousBernoulli, Uniform(0.1, 2)":   {kl(continuous, uniform(0.1, 2)), []float64{inf, inf, inf}},
			"ContinuousBernoulli, Uniform(-1, 0.9)":  {kl(continuous, uniform(-1, 0.9)), []float64{inf, inf, inf}},
			"Uniform(0, 1), ContinuousBernoulli":     {kl(uniform(0, 1), continuous), []float64{0.02973612325187544, 0, 0.19363424483508193}},
			"Uniform(1/4, 3/4), ContinuousBernoulli": {kl(uniform(0.25, 0.75), continuous), []float64{0.722883303811821, 0.6931471805599542, 0.8867814253950276}},
			"Uniform(-1, 1), ContinuousBernoulli":    {kl(uniform(-1, 1), continuous), []float64{inf, inf, inf}},
			"Uniform(0, 2), ContinuousBernoulli":     {kl(uniform(0, 2), continuous), []float64{inf, inf, inf}},

			"Poisson(0), Poisson":                    {kl(poisson(0, 0, 2), poisson(3, 0, 0)), []float64{3, 0, inf}},
			"Bernoulli(0), Poisson":                  {kl(distributions.NewBernoulli(distributions.Probs(from(0, 0, 0.5))), poisson(3, 0, 0)), []float64{3, 0, inf}},
			"Mode of Kumaraswamy":                    {distributions.NewKumaraswamy(from(2, 1.25, 1, 3, 1, 0.5, 3, 1e300), from(3, 2.5, 3, 1, 1, 3, 0.5, 10)).Mode(), []float64{math.Sqrt(0.2), 0.18049486853234245, 0, 1, nan, nan, nan, 1}},
			"Mode of FisherSnedecor":                 {distributions.NewFisherSnedecor(from(2, 1, 4), 6.0).Mode(), []float64{0, nan, 0.375}},
			"Mode of a Kumaraswamy close to Uniform": {distributions.NewKumaraswamy(from(1+0x1p-52, 1+0x1p-51), from(1+0x1p-51, 1+0x1p-52)).Mode(), []float64{1.0 / 3, 2.0 / 3}},
		} {
			if same, err := c.got.AllClose(from(c.want...), tensor.EqualNan(true), tensor.Rtol(1e-9), tensor.Atol(1e-9)); err != nil || !same {
				t.Errorf("%s: %v, want %v (%v)", what, c.got, c.want, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestErrorTexts tests the texts of errors of methods.
func TestErrorTexts(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{0.25, 0.5}, nil)
		same := func(x *tensor.Tensor) *tensor.Tensor { return x }
		turned := distributions.NewTransform("Turned", constraints.Real, constraints.Real, same, same, nil)
		d := distributions.NewTransformedDistribution(distributions.NewNormal(0, 1), []distributions.Transform{turned})
		for want, err := range map[string]error{
			"TransformedDistribution.CDF: a transform of the distribution has no sign":                                     d.CDF(x).Err(),
			"TransformedDistribution.ICDF: a transform of the distribution has no sign":                                    d.ICDF(x).Err(),
			"VonMises.Sample: rejection sampling does not end: the concentration is not finite or too large":               distributions.NewVonMises(0, 1e17).Sample().Err(),
			"KLDivergence: no divergence is registered for distributions.Normal and distributions.Poisson; see RegisterKL": distributions.KLDivergence(distributions.NewNormal(0, 1), distributions.NewPoisson(1)).Err(),
		} {
			if err == nil || !strings.HasPrefix(err.Error(), "linstock: "+want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// all returns a distribution of each type, with its error-prone parameters as given.
func all(v any) []distributions.Distribution {
	m, _ := v.(*tensor.Tensor)
	p, l := distributions.Probs(v), distributions.Logits(v)
	return []distributions.Distribution{distributions.NewNormal(v, v), distributions.NewUniform(v, v), distributions.NewExponential(v), distributions.NewLaplace(v, v),
		distributions.NewCauchy(v, v), distributions.NewGeneralizedPareto(v, v, v), distributions.NewVonMises(v, v), distributions.NewGamma(v, v), distributions.NewChi2(v),
		distributions.NewDirichlet(m), distributions.NewBeta(v, v), distributions.NewStudentT(v, distributions.Loc(v), distributions.Scale(v)), distributions.NewFisherSnedecor(v, v),
		distributions.NewBernoulli(p), distributions.NewBernoulli(l), distributions.NewContinuousBernoulli(p), distributions.NewContinuousBernoulli(l), distributions.NewGeometric(p),
		distributions.NewBinomial(v, p), distributions.NewBinomial(v, l), distributions.NewNegativeBinomial(v, p), distributions.NewPoisson(v), distributions.NewCategorical(p),
		distributions.NewCategorical(l), distributions.NewOneHotCategorical(p), distributions.NewOneHotCategoricalStraightThrough(l), distributions.NewMultinomial(3, p),
		distributions.NewMultivariateNormal(m, distributions.CovarianceMatrix(m)), distributions.NewMultivariateNormal(m, distributions.PrecisionMatrix(m)),
		distributions.NewMultivariateNormal(m, distributions.ScaleTril(m)), distributions.NewLowRankMultivariateNormal(m, m, m), distributions.NewExpRelaxedCategorical(v, p),
		distributions.NewRelaxedOneHotCategorical(v, l), distributions.NewLogitRelaxedBernoulli(v, p), distributions.NewRelaxedBernoulli(v, l),
		distributions.NewLKJCholesky(3, distributions.Concentration(v)), distributions.NewWishart(v, distributions.CovarianceMatrix(m)), distributions.NewLogNormal(v, v),
		distributions.NewLogisticNormal(v, v), distributions.NewGumbel(v, v), distributions.NewHalfNormal(v), distributions.NewHalfCauchy(v), distributions.NewInverseGamma(v, v),
		distributions.NewKumaraswamy(v, v), distributions.NewPareto(v, v), distributions.NewWeibull(v, v), distributions.NewIndependent(distributions.NewNormal(v, v), 1),
		distributions.NewTransformedDistribution(distributions.NewNormal(v, v), []distributions.Transform{distributions.NewAffineTransform(v, v), distributions.NewStickBreakingTransform()}),
		distributions.NewMixtureSameFamily(distributions.NewCategorical(l), distributions.NewNormal(v, v)),
	}
}

// TestHostile calls every constructor and method with unusable arguments, from several goroutines. Only errors may
// result.
func TestHostile(t *testing.T) {
	leak.Check(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_ = tensor.WithScope(func() error {
				released := tensor.Ones([]int{2})
				released.Release()
				failed := tensor.Ones([]int{2}).View(5)
				bad := []any{nil, (*tensor.Tensor)(nil), &tensor.Tensor{}, released, failed, "x", math.NaN(), complex(1, 1), tensor.Ones([]int{2}, tensor.Complex64),
					tensor.Ones([]int{2}, tensor.Bool), tensor.Ones([]int{2}, tensor.Int64)}
				odd := []any{0, -1, 1, math.Inf(1), tensor.Zeros([]int{0}), tensor.Zeros([]int{2, 0}), tensor.Ones([]int{}), tensor.Ones([]int{3, 3}), tensor.Ones([]int{2, 3, 3}),
					tensor.Full([]int{3, 3}, math.NaN()), tensor.Ones([]int{2}, tensor.Float16), tensor.Ones([]int{2}, tensor.Meta)}
				if testing.Short() {
					bad, odd = bad[3:6], odd[4:7]
				}
				values := []*tensor.Tensor{nil, {}, released, failed, tensor.Ones([]int{}), tensor.Ones([]int{7}), tensor.Zeros([]int{0}), tensor.Ones([]int{3, 3}, tensor.Complex64),
					tensor.Full([]int{3}, -1, tensor.Int64), tensor.Ones([]int{1, 2, 3, 3})}
				for i, v := range append(slices.Clone(bad), odd...) {
					for _, d := range all(v) {
						if i < min(6, len(bad)) && d.Err() == nil && !strings.HasPrefix(d.String(), "LKJ") {
							t.Errorf("%T accepts %v", d, v)
						}
						few := values
						if d.Err() != nil {
							few = values[:1]
						}
						for _, x := range few {
							for what, y := range methods(d, x) {
								if y == nil {
									t.Errorf("%T.%s returns nil", d, what)
								}
							}
						}
						for _, shape := range [][]int{{-1}, {0}, {math.MaxInt, math.MaxInt}, {1 << 40}, {2, 3}} {
							e := d.Expand(shape...)
							if shape[0] < 1<<40 {
								_, _, _ = d.Sample(shape...), e.Mean(), e.String()
							}
						}
						_, _, _, _ = d.Support(), d.ArgConstraints(), d.String(), distributions.KLDivergence(d, d)
						for _, f := range []distributions.Transform{distributions.BijectTo(d.Support()), distributions.TransformTo(d.Support())} {
							for _, x := range few {
								_, _, _ = f.Forward(x), f.Inverse(x), f.LogAbsDetJacobian(x, x)
							}
						}
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	tensor.Flush()
}

// TestZeroValues calls the methods of distributions that no constructor made.
func TestZeroValues(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		for _, d := range []distributions.Distribution{distributions.Normal{}, distributions.Chi2{}, distributions.Binomial{}, distributions.Multinomial{}, distributions.MixtureSameFamily{},
			distributions.TransformedDistribution{}, distributions.GeneralizedPareto{}, distributions.Wishart{}, distributions.RelaxedBernoulli{}, (*distributions.Base)(nil), &distributions.Base{}} {
			if d.Err() == nil || d.HasRSample() || d.HasEnumerateSupport() || d.BatchShape() != nil || d.EventShape() != nil || d.Expand(2).Err() == nil {
				t.Errorf("a zero %T can be used", d)
			}
			for what, y := range methods(d, nil) {
				if y.Err() == nil {
					t.Errorf("%s of a zero %T returns no error", what, d)
				}
			}
			_, _, _ = d.Support(), d.ArgConstraints(), d.String()
			if distributions.KLDivergence(d, distributions.NewNormal(0, 1)).Err() == nil || distributions.NewIndependent(d, 0).Err() == nil ||
				distributions.NewCumulativeDistributionTransform(d).Err() == nil {
				t.Errorf("a zero %T is accepted", d)
			}
		}
		if distributions.KLDivergence(nil, nil).Err() == nil || distributions.NewTransformedDistribution(distributions.NewNormal(0, 1), ([]distributions.Transform{nil})).Err() == nil ||
			distributions.NewComposeTransform(nil).Err() == nil || distributions.NewMixtureSameFamily((distributions.Categorical{}), nil).Err() == nil {
			t.Error("nil is accepted")
		}
		for _, y := range []*tensor.Tensor{distributions.Normal{}.Loc(), distributions.Chi2{}.DF(), distributions.Bernoulli{}.Probs(), distributions.Wishart{}.ScaleTril(),
			distributions.MultivariateNormal{}.PrecisionMatrix(), distributions.RelaxedBernoulli{}.Temperature(), distributions.GeneralizedPareto{}.LogCDF(nil)} {
			if y.Err() == nil {
				t.Error("an accessor of a zero distribution returns no error")
			}
		}
		if (distributions.Multinomial{}).TotalCount() != 0 || (distributions.TransformedDistribution{}).Transforms() != nil || (distributions.Independent{}).BaseDist().Err() == nil {
			t.Error("an accessor of a zero distribution returns a value")
		}
		distributions.RegisterKL[distributions.Normal, distributions.Normal](nil)
		return nil
	})
	tensor.Flush()
}

// TestHostileTransforms gives transforms and constraints invalid arguments.
// TestParameters tests options and accessors by what PyTorch's formulas give.
func TestParameters(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		from := func(v ...float64) *tensor.Tensor { return tensor.FromSlice(v, nil) }
		factor := tensor.FromSlice([]float64{1, 2}, []int{2, 1})
		low := distributions.NewLowRankMultivariateNormal(from(0, 0), factor, from(3, 4))
		f := distributions.NewFisherSnedecor(3, 6)
		mixture := distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(from(0.25, 0.75))), distributions.NewNormal(from(0, 4), 1.0))
		category, ok := mixture.MixtureDistribution().(distributions.Categorical)
		if !ok {
			t.Errorf("the mixture is by a %T", mixture.MixtureDistribution())
		}
		for what, c := range map[string]struct {
			got  *tensor.Tensor
			want []float64
		}{
			"TotalCount, Binomial":         {distributions.NewBinomial(4, distributions.Probs(from(0.25, 0.75))).TotalCount(), []float64{4, 4}},
			"TotalCount, NegativeBinomial": {distributions.NewNegativeBinomial(5, distributions.Probs(from(0.25))).TotalCount(), []float64{5}},
			// p/(2p-1) + 1/(2 atanh(1-2p)), and its Taylor series 1/2 + (1/3 + 16/45 x^2) x with x = p - 1/2.
			"without Lims":          {distributions.NewContinuousBernoulli(distributions.Probs(from(0.3))).Mean(), []float64{0.43022259}},
			"Lims":                  {distributions.NewContinuousBernoulli(distributions.Probs(from(0.3)), distributions.Lims(0.2, 0.8)).Mean(), []float64{0.43048889}},
			"DF1":                   {f.DF1(), []float64{3}},
			"DF2":                   {f.DF2(), []float64{6}},
			"mean of DF2":           {f.Mean(), []float64{1.5}},
			"CovFactor":             {low.CovFactor(), []float64{1, 2}},
			"CovDiag":               {low.CovDiag(), []float64{3, 4}},
			"covariance":            {low.CovarianceMatrix(), []float64{4, 2, 2, 8}},
			"MixtureDistribution":   {category.Probs(), []float64{0.25, 0.75}},
			"ComponentDistribution": {mixture.ComponentDistribution().Mean(), []float64{0, 4}},
			"mean of a mixture":     {mixture.Mean(), []float64{3}},
		} {
			got, err := tensor.Data[float64](c.got.To(tensor.Float64))
			if err != nil || len(got) != len(c.want) {
				t.Errorf("%s: got %v, %v, want %v", what, got, err, c.want)
				continue
			}
			for i := range got {
				if !(math.Abs(got[i]-c.want[i]) <= 1e-7) {
					t.Errorf("%s: got %v, want %v", what, got, c.want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestErrorsHaveOneName tests that the error for shapes that do not fit begins with the user's call, and only once.
func TestErrorsHaveOneName(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		ones := func(shape ...int) *tensor.Tensor { return tensor.Ones(shape) }
		eyes := tensor.Eye(2).Expand(3, 2, 2)
		power := distributions.NewPowerTransform(ones(3))
		_, shape := power.ForwardShape([]int{2})
		_, inner := distributions.NewComposeTransform(distributions.NewStickBreakingTransform()).ForwardShape(nil)
		for want, err := range map[string]error{
			"NewMultivariateNormal: BroadcastShapes: the shapes [[3] [2]]":               distributions.NewMultivariateNormal(ones(2, 2), distributions.ScaleTril(eyes)).Err(),
			"NewLowRankMultivariateNormal: BroadcastShapes: the shapes [[2] [3] []]":     distributions.NewLowRankMultivariateNormal(ones(2, 2), ones(3, 2, 1), ones(2)).Err(),
			"NewWishart: BroadcastShapes: the shapes [[3] [2]]":                          distributions.NewWishart(tensor.FromSlice([]float32{3, 4}, nil), distributions.ScaleTril(eyes)).Err(),
			"PowerTransform: BroadcastShapes: the shapes [[2] [3]]":                      shape,
			"ComposeTransform: StickBreakingTransform: vectors are needed, got shape []": inner,
		} {
			if !errors.Is(err, tensor.ErrArgument) || !strings.HasPrefix(err.Error(), "linstock: "+want) || strings.Count(err.Error(), "linstock: ") != 1 {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		return nil
	})
}

func TestHostileTransforms(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		exp := distributions.NewExpTransform()
		for i, f := range []distributions.Transform{distributions.NewPowerTransform(nil), distributions.NewPowerTransform("x"), distributions.NewPowerTransform((*tensor.Tensor)(nil)),
			distributions.NewAffineTransform(nil, 1), distributions.NewAffineTransform(1, "x"), distributions.NewAffineTransform(1, 1, distributions.EventDim(-1)),
			distributions.NewExpTransform(distributions.CacheSize(2)), distributions.NewExpTransform(distributions.Dim(1)), distributions.NewExpTransform(distributions.Option{}),
			distributions.NewCatTransform(nil), distributions.NewCatTransform([]distributions.Transform{exp}, distributions.Lengths(1, 2)), distributions.NewCatTransform([]distributions.Transform{exp}, distributions.Lengths(-1)),
			distributions.NewStackTransform(nil), distributions.NewStackTransform([]distributions.Transform{nil}), distributions.NewIndependentTransform(nil, 1), distributions.NewIndependentTransform(exp, -1), distributions.NewIndependentTransform(exp, 1, distributions.CacheSize(2)),
			distributions.NewReshapeTransform([]int{2}, []int{3}), distributions.NewReshapeTransform([]int{-2}, []int{-2}), distributions.NewCumulativeDistributionTransform(nil),
			distributions.BijectTo(nil), distributions.BijectTo(constraints.Boolean), distributions.BijectTo(constraints.PositiveDefinite), distributions.TransformTo(constraints.Dependent),
			distributions.NewComposeTransform(distributions.NewExpTransform(distributions.CacheSize(2)))} {
			x := tensor.Ones([]int{2})
			if f.Err() == nil || f.Forward(x).Err() == nil || f.Inverse(x).Err() == nil || f.LogAbsDetJacobian(x, x).Err() == nil {
				t.Errorf("transform %d is accepted", i)
			}
			if inv := f.Inv(); inv.Err() != f.Err() || inv.Forward(x).Err() == nil || inv.Inverse(x).Err() == nil || inv.LogAbsDetJacobian(x, x).Err() == nil {
				t.Errorf("the inverse of transform %d is accepted: %v", i, inv.Err())
			}
			if f.Sign() != nil || f.Bijective() {
				t.Errorf("transform %d has the sign %v, bijective %t", i, f.Sign(), f.Bijective())
			}
			_, _, _ = f.Domain(), f.Codomain(), f.String()
			if _, err := f.ForwardShape([]int{2}); err == nil {
				t.Errorf("transform %d has a shape", i)
			}
		}
		for _, f := range transforms() {
			for _, shape := range [][]int{nil, {0}, {1}, {2, 0}, {2, 3}, {5, 5}, {3, 2, 2}} {
				x := tensor.Ones(shape)
				_, _, _, _ = f.Forward(x), f.Inverse(x), f.LogAbsDetJacobian(x, x), f.Inv().LogAbsDetJacobian(x, x)
				_, _ = f.ForwardShape(shape)
				_, _ = f.InverseShape(shape)
			}
			_ = f.Equal(nil)
		}
		for _, c := range []constraints.Constraint{constraints.Independent(nil, 1), constraints.Independent(constraints.Real, -1), constraints.MixtureSameFamily(nil), constraints.Cat(nil, 0, nil),
			constraints.Cat([]constraints.Constraint{constraints.Real}, 0, []int{1, 2}), constraints.Stack(nil, 0), constraints.Dependent, constraints.GreaterThan("x"), constraints.Interval(nil, 1)} {
			if c.Check(tensor.Ones([]int{2})).Err() == nil {
				t.Errorf("the constraint %v is accepted", c)
			}
		}
		for _, c := range []constraints.Constraint{constraints.Simplex, constraints.PositiveDefinite, constraints.Symmetric, constraints.CorrCholesky, constraints.LowerTriangular, constraints.OneHot,
			constraints.Cat([]constraints.Constraint{constraints.Real}, 3, nil), constraints.Stack([]constraints.Constraint{constraints.Real, constraints.Real}, 1)} {
			for _, v := range []*tensor.Tensor{nil, {}, tensor.Ones([]int{}), tensor.Ones([]int{0}), tensor.Ones([]int{2, 0}), tensor.Ones([]int{2, 3}, tensor.Bool), tensor.Ones([]int{3, 3}, tensor.Complex64)} {
				_ = c.Check(v)
			}
		}
		return nil
	})
	tensor.Flush()
}

// TestLifetimes tests that methods free their temporaries, that releasing a result leaves the distribution usable, and
// that a distribution outlives inner scopes.
func TestLifetimes(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		d := distributions.NewLogNormal(tensor.Zeros([]int{3}), tensor.Ones([]int{3}))
		for range 2 {
			if err := tensor.WithScope(func() error {
				d.Loc().Release()
				d.Mean().Release()
				e := d.Expand(2, 3)
				e.Mean().Release()
				return errors.Join(d.Sample(4).Err(), d.LogProb(tensor.Ones([]int{3})).Err(), e.Entropy().Err())
			}); err != nil {
				return err
			}
		}
		before := tensor.ReadStatistics().TotalCount
		y := d.LogProb(tensor.Ones([]int{3}))
		if got := tensor.ReadStatistics().TotalCount - before; got != 2 {
			t.Errorf("LogProb leaves %d tensors, want its argument and its result", got)
		}
		return y.Err()
	})
	if err != nil {
		t.Error(err)
	}
	// A distribution outside all scopes is freed once it is unreachable.
	if v, err := distributions.NewGumbel(0, 1).Mean().Item(); err != nil || !(math.Abs(v-0.5772) <= 1e-4) {
		t.Errorf("the mean is %v, %v", v, err)
	}
	tensor.Flush()
}

// TestCacheSize tests that a transform with a cache inverts the tensor that it returned last without rounding, also
// inside a distribution whose temporaries are freed.
func TestCacheSize(t *testing.T) {
	leak.Check(t)
	f := distributions.NewTanhTransform(distributions.CacheSize(1))
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{20}, nil) // tanh is 1, whose inverse is infinite
		if v, err := f.Inverse(f.Forward(x)).Item(); v != 20 || err != nil {
			t.Errorf("the inverse is %v, %v", v, err)
		}
		d := distributions.NewTransformedDistribution(distributions.NewNormal(15, 0.01), []distributions.Transform{f}, distributions.ValidateArgs(false))
		y := d.RSample()
		if v, err := d.LogProb(y).Item(); math.IsInf(v, 0) || math.IsNaN(v) || err != nil {
			t.Errorf("the log probability of a draw is %v, %v", v, err)
		}
		if v, err := d.LogProb(y.Clone()).Item(); !math.IsInf(v, 0) && !math.IsNaN(v) || err != nil {
			t.Errorf("the log probability of a copy is %v, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(f)
	f = nil
	tensor.Flush()
}

// TestCacheSizeOfAChain tests that the caches of the parts of a transform recognize each other's tensors.
func TestCacheSizeOfAChain(t *testing.T) {
	leak.Check(t)
	one := distributions.CacheSize(1)
	chain := func() []distributions.Transform {
		return []distributions.Transform{distributions.NewTanhTransform(one), distributions.NewAffineTransform(0, 3, one)}
	}
	err := tensor.WithScope(func() error {
		for i, f := range []distributions.Transform{
			distributions.NewComposeTransform(chain()...), distributions.NewIndependentTransform(distributions.NewComposeTransform(chain()...), 1),
			distributions.NewComposeTransform(distributions.NewIndependentTransform(distributions.NewComposeTransform(chain()...), 1, one)),
			distributions.NewComposeTransform(distributions.NewComposeTransform(chain()...).Inv().Inv()),
		} {
			x := tensor.FromSlice([]float32{20}, nil).RequiresGrad_()
			y := f.Forward(x)
			back := f.Inverse(y)
			if v, err := back.Item(); v != 20 || err != nil {
				t.Errorf("transform %d: the inverse is %v, %v", i, v, err)
			}
			if err := back.Backward(); err != nil {
				t.Error(err)
			}
			if v, err := x.Grad().Item(); v != 1 || err != nil {
				t.Errorf("transform %d: the gradient of the inverse is %v, %v", i, v, err)
			}
			// Tensors at the addresses of freed ones are not in the cache.
			for range 20 {
				x.Release()
				y.Release()
				x = tensor.FromSlice([]float32{0.5}, nil)
				y = x.Mul(2)
				if v, err := f.Inverse(y).Item(); !(math.Abs(v-math.Atanh(1.0/3)) <= 1e-6) || err != nil {
					t.Fatalf("transform %d: the inverse of another tensor is %v, %v", i, v, err)
				}
			}
		}
		d := distributions.NewTransformedDistribution(distributions.NewNormal(15, 0.01), chain(), distributions.ValidateArgs(false))
		if v, err := d.LogProb(d.RSample()).Item(); math.IsInf(v, 0) || math.IsNaN(v) || err != nil {
			t.Errorf("the log probability of a draw is %v, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	tensor.Flush()
}

// TestTemperatureOfDouble tests that a number as temperature has the precision of the parameters, as in PyTorch.
func TestTemperatureOfDouble(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		probs := distributions.Probs(tensor.FromSlice([]float64{0.2, 0.3, 0.5}, nil))
		for name, of := range map[string]func(temperature any) distributions.Distribution{
			"RelaxedBernoulli":      func(v any) distributions.Distribution { return distributions.NewRelaxedBernoulli(v, probs) },
			"LogitRelaxedBernoulli": func(v any) distributions.Distribution { return distributions.NewLogitRelaxedBernoulli(v, probs) },
			"RelaxedOneHotCategorical": func(v any) distributions.Distribution {
				return distributions.NewRelaxedOneHotCategorical(v, probs)
			},
			"ExpRelaxedCategorical": func(v any) distributions.Distribution { return distributions.NewExpRelaxedCategorical(v, probs) },
		} {
			var draws [2]*tensor.Tensor
			for i, v := range []any{0.7, tensor.FromScalar(0.7, tensor.Float64)} {
				if err := tensor.ManualSeed(1); err != nil {
					t.Fatal(err)
				}
				draws[i] = of(v).RSample()
			}
			if same, err := draws[0].Equal(draws[1]); !same || err != nil || draws[0].DType() != tensor.Float64 {
				t.Errorf("%s: %v with a number, %v with a tensor: %v", name, draws[0], draws[1], err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInverseText tests that the inverse of a transform prints as PyTorch's.
func TestInverseText(t *testing.T) {
	leak.Check(t)
	inv := distributions.NewExpTransform().Inv()
	if got, want := inv.String(), "_InverseTransform(ExpTransform())"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	got, want := distributions.NewComposeTransform(inv).String(), "ComposeTransform(\n    _InverseTransform(ExpTransform())\n)"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAffineEvents tests LogAbsDetJacobian of an AffineTransform whose scale has fewer dimensions than the events, which is
// PyTorch's.
func TestAffineEvents(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{2, 3, 2})
		for _, c := range []struct {
			scale any
			event int
			want  float64
			shape []int
		}{
			{tensor.FromSlice([]float32{-2, 3}, nil), 1, math.Log(6), []int{2, 3}}, {tensor.FromSlice([]float32{-2, 3}, nil), 2, math.Log(6), []int{2}},
			{tensor.FromSlice([]float32{-2, 3}, nil), 3, math.Log(6), []int{}}, {tensor.FromScalar(3, tensor.Float32), 2, math.Log(3), []int{2}},
			{3.0, 2, 6 * math.Log(3), []int{2}},
		} {
			f := distributions.NewAffineTransform(0.5, c.scale, distributions.EventDim(c.event))
			got := f.LogAbsDetJacobian(x, f.Forward(x))
			if same, err := got.AllClose(tensor.Full(c.shape, c.want)); err != nil || !same || !slices.Equal(got.Shape(), c.shape) {
				t.Errorf("scale %v, EventDim(%d): %v, PyTorch's is %v of shape %v", c.scale, c.event, got, c.want, c.shape)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestEqualOfNumbersAndTensors tests that Equal compares a number with a tensor, as PyTorch does, and that two
// distributions with such transforms have a divergence.
func TestEqualOfNumbersAndTensors(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		affine := func(loc, scale any) distributions.Transform { return distributions.NewAffineTransform(loc, scale) }
		tenth := tensor.FromScalar(0.1, tensor.Float32)
		for i, c := range []struct {
			x, y distributions.Transform
			want bool
		}{
			{affine(tenth, 2), affine(0.1, 2), true}, {affine(1, tensor.Full([]int{2}, 2.0)), affine(1, 2), true}, {affine(1, tenth), affine(tensor.Ones([]int{2}), 0.1), true},
			{affine(1, tensor.FromSlice([]float32{2, 3}, nil)), affine(1, 2), false}, {affine(tenth, 2), affine(0.1, 3), false}, {affine(tenth, 2), affine(0.2, 2), false},
			{affine(1, 2), affine(1, 2), true}, {affine(1, 2), affine(1, 3), false}, {affine(tenth, tenth), affine(tensor.Ones([]int{2}), tenth), false},
		} {
			if c.x.Equal(c.y) != c.want || c.y.Equal(c.x) != c.want {
				t.Errorf("pair %d: Equal is not %t", i, c.want)
			}
		}
		of := func(loc any) distributions.Distribution {
			return distributions.NewTransformedDistribution(distributions.NewNormal(0, 1), []distributions.Transform{affine(loc, 2)})
		}
		if v, err := distributions.KLDivergence(of(tenth), of(0.1)).Item(); v != 0 || err != nil {
			t.Errorf("the divergence is %v, %v", v, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// coupling returns a coupling layer of the events (x1, x2): x2 is scaled and shifted as x1 decides.
func coupling(opts ...distributions.Option) distributions.Transform {
	net := func(v *tensor.Tensor) (x1, x2, scale, shift *tensor.Tensor) {
		x1, x2 = v.Narrow(-1, 0, 1), v.Narrow(-1, 1, 1)
		return x1, x2, x1.Mul(0.5).Tanh(), x1.Mul(2).Sub(1)
	}
	return distributions.NewTransform("Coupling", constraints.RealVector, constraints.RealVector,
		func(x *tensor.Tensor) *tensor.Tensor {
			x1, x2, scale, shift := net(x)
			return tensor.Cat([]*tensor.Tensor{x1, x2.Mul(scale.Exp()).Add(shift)}, tensor.Dim(-1))
		},
		func(y *tensor.Tensor) *tensor.Tensor {
			y1, y2, scale, shift := net(y)
			return tensor.Cat([]*tensor.Tensor{y1, y2.Sub(shift).Mul(scale.Neg().Exp())}, tensor.Dim(-1))
		},
		func(x, _ *tensor.Tensor) *tensor.Tensor {
			_, _, scale, _ := net(x)
			return scale.Sum(tensor.Dim(-1))
		}, opts...)
}

// negative is a transform outside the package that replaces methods.
type negative struct{ distributions.Transform }

func (n negative) Sign() any                    { return -1 }
func (n negative) Inv() distributions.Transform { return distributions.InverseOf(n) }

// TestOwnTransform tests NewTransform and InverseOf against a subclass of PyTorch's Transform with the same formulas.
func TestOwnTransform(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		near := func(what string, got *tensor.Tensor, want ...float64) {
			if same, err := got.AllClose(tensor.FromSlice(want, got.Shape())); err != nil || !same {
				t.Errorf("%s: %v, want %v (%v)", what, got, want, err)
			}
		}
		x := tensor.FromSlice([]float64{0.3, -1.2, 1.5, 2}, []int{2, 2})
		base := distributions.NewIndependent(distributions.NewNormal(tensor.Zeros([]int{2}, tensor.Float64), tensor.Ones([]int{2}, tensor.Float64)), 1)
		f := coupling()
		flow := func(t distributions.Transform) distributions.Distribution {
			return distributions.NewTransformedDistribution(base, []distributions.Transform{t})
		}
		near("Forward", f.Forward(x), 0.3, -1.792647470213407, 1.5, 5.774606477692231)
		near("LogAbsDetJacobian", f.LogAbsDetJacobian(x, f.Forward(x)), 0.14888503362331798, 0.6351489523872873)
		near("LogProb", flow(f).LogProb(x), -2.2693531524366772, -3.5980260187966326)
		for what, inv := range map[string]distributions.Transform{"Inv": f.Inv(), "InverseOf": distributions.InverseOf(f), "of a chain": distributions.NewComposeTransform(f).Inv(), "thrice": distributions.InverseOf(f.Inv()).Inv()} {
			near(what, inv.Forward(x), 0.3, -0.6893345376578978, 1.5, 0)
			near(what+", LogProb", flow(inv).LogProb(x), -3.3407845090172916, -19.0007681001246)
		}
		if f.String() != "Coupling()" || !f.Bijective() || f.Sign() != nil || !f.Equal(f) || f.Equal(coupling()) || !f.Inv().Equal(distributions.InverseOf(f)) {
			t.Errorf("%v: bijective %v, sign %v", f, f.Bijective(), f.Sign())
		}
		cached := coupling(distributions.CacheSize(1))
		big := tensor.FromSlice([]float64{1e6, 1e-20}, nil) // the shift rounds 1e-20 away
		if same, err := cached.Inverse(cached.Forward(big)).Equal(big); err != nil || !same {
			t.Errorf("the cache does not invert without rounding (%v)", err)
		}
		// A function may return its argument, which stays the caller's.
		same := func(x *tensor.Tensor) *tensor.Tensor { return x }
		id := negative{distributions.NewTransform("Same", constraints.Real, constraints.Real, same, same, func(x, _ *tensor.Tensor) *tensor.Tensor { return x })}
		id.LogAbsDetJacobian(x, x).Release()
		y := id.Forward(x)
		y.Release()
		near("the argument", id.Inv().Forward(x), 0.3, -1.2, 1.5, 2)
		if id.Inv().Sign() != -1 {
			t.Errorf("sign %v", id.Inv().Sign())
		}
		half := distributions.NewTransform("Half", constraints.Real, constraints.Real, same, nil, nil)
		if half.Bijective() || !errors.Is(half.Inverse(x).Err(), tensor.ErrNotImplemented) || !errors.Is(half.LogAbsDetJacobian(x, x).Err(), tensor.ErrNotImplemented) {
			t.Errorf("without an inverse and logDet: %v, %v", half.Inverse(x).Err(), half.LogAbsDetJacobian(x, x).Err())
		}
		none := func(*tensor.Tensor) *tensor.Tensor { return nil }
		for what, err := range map[string]error{
			"no name": distributions.NewTransform("", constraints.Real, constraints.Real, same, same, nil).Err(), "no domain": distributions.NewTransform("N", nil, constraints.Real, same, same, nil).Err(),
			"no codomain": distributions.NewTransform("N", constraints.Real, nil, same, same, nil).Err(), "no forward": distributions.NewTransform("N", constraints.Real, constraints.Real, nil, same, nil).Err(),
			"an option": coupling(distributions.Dim(1)).Err(), "no result": distributions.NewTransform("N", constraints.Real, constraints.Real, none, none, nil, distributions.CacheSize(1)).Forward(x).Err(),
			"no transform": distributions.InverseOf(nil).Forward(x).Err(), "a failed one": distributions.InverseOf(coupling(distributions.Dim(1))).Forward(x).Err(),
			"a vector is needed": f.Forward(tensor.Ones([]int{})).Err(),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		runtime.KeepAlive(cached)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	tensor.Flush()
}

// named is a transform outside the package that cannot be compared with ==, and has the Equal of the one that it embeds.
type named struct {
	distributions.Transform
	names []string
}

// compared is named with its own Equal.
type compared struct{ named }

func (c compared) Equal(other distributions.Transform) bool {
	o, ok := other.(compared)
	return ok && slices.Equal(c.names, o.names)
}

// TestEqualOfOwnTransforms tests which distributions with transforms outside the package have a divergence.
func TestEqualOfOwnTransforms(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		exp, again := distributions.NewExpTransform(), distributions.NewExpTransform()
		a, b := []string{"a"}, []string{"b"}
		for i, c := range []struct {
			x, y distributions.Transform
			want bool
		}{
			{negative{exp}, negative{exp}, true}, {negative{exp}, exp, false}, {exp, negative{exp}, false}, {negative{exp}, negative{again}, false}, {exp, again, true},
			{named{exp, a}, named{exp, a}, false}, {compared{named{exp, a}}, compared{named{again, a}}, true}, {compared{named{exp, a}}, compared{named{exp, b}}, false},
			{compared{named{exp, a}}, named{exp, a}, false}, {&named{exp, a}, &named{exp, a}, false},
		} {
			for what, of := range map[string]func(distributions.Transform) distributions.Transform{
				"alone":      func(f distributions.Transform) distributions.Transform { return f },
				"inverse":    distributions.InverseOf,
				"in a chain": func(f distributions.Transform) distributions.Transform { return distributions.NewComposeTransform(f) },
				"independent": func(f distributions.Transform) distributions.Transform {
					return distributions.NewIndependentTransform(f, 0)
				},
			} {
				d := func(f distributions.Transform) distributions.Distribution {
					return distributions.NewTransformedDistribution(distributions.NewNormal(0, 1), []distributions.Transform{of(f)})
				}
				v, err := distributions.KLDivergence(d(c.x), d(c.y)).Item()
				if c.want && (v != 0 || err != nil) || !c.want && !errors.Is(err, tensor.ErrNotImplemented) {
					t.Errorf("pair %d, %s: the divergence is %v, %v; equal %t", i, what, v, err, c.want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// triangular is a distribution outside the package.
type triangular struct{ *distributions.Base }

func (d triangular) LogProb(v *tensor.Tensor) *tensor.Tensor { return v.Abs().RSub(1).Log() }

// TestOwnDistribution tests NewBase and RegisterKL.
func TestOwnDistribution(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		d := triangular{distributions.NewBase("Triangular", nil, nil, constraints.Interval(-1.0, 1.0))}
		if v, err := distributions.NewIndependent(d, 0).LogProb(tensor.Zeros([]int{})).Item(); v != 0 || err != nil {
			t.Errorf("LogProb through Independent: %v, %v", v, err)
		}
		if err := d.Entropy().Err(); !errors.Is(err, tensor.ErrNotImplemented) || !strings.Contains(err.Error(), "Triangular") {
			t.Errorf("Entropy: %v", err)
		}
		if err := distributions.KLDivergence(d, d).Err(); !errors.Is(err, tensor.ErrNotImplemented) {
			t.Errorf("KLDivergence before RegisterKL: %v", err)
		}
		distributions.RegisterKL(func(_, _ distributions.Distribution) *tensor.Tensor { return tensor.Ones([]int{}) })
		if err := distributions.KLDivergence(d, d).Err(); !errors.Is(err, tensor.ErrNotImplemented) {
			t.Errorf("KLDivergence with a function of an interface: %v", err)
		}
		distributions.RegisterKL(func(_, _ triangular) *tensor.Tensor { return tensor.Zeros([]int{}) })
		if err := distributions.KLDivergence(d, d).Err(); err != nil {
			t.Errorf("KLDivergence: %v", err)
		}
		if err := d.Expand(2).Err(); !errors.Is(err, tensor.ErrNotImplemented) {
			t.Errorf("Expand: %v", err)
		}
		if distributions.NewBase("x", []int{-1}, nil, nil).Err() == nil {
			t.Error("a negative batch shape is accepted")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// flat is a distribution outside the package without a support.
type flat struct{ *distributions.Base }

func (d flat) LogProb(v *tensor.Tensor) *tensor.Tensor { return v.Mul(0) }
func (d flat) CDF(v *tensor.Tensor) *tensor.Tensor     { return v.Mul(0.5) }

// TestNoSupport tests that the values of a distribution without a support are not checked, whatever it is a part of.
func TestNoSupport(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{1, 2}, nil)
		none := flat{distributions.NewBase("Flat", []int{2}, nil, nil)}
		if c := none.Support(); !constraints.IsDependent(c) || c.Check(x).Err() == nil {
			t.Errorf("the support is %v", c)
		}
		cdf := distributions.NewCumulativeDistributionTransform(none)
		for what, f := range map[string]distributions.Transform{"alone": cdf, "in a chain": distributions.NewComposeTransform(cdf), "inverted twice": cdf.Inv().Inv()} {
			if same, err := f.Forward(x).Equal(x.Mul(0.5)); err != nil || !same {
				t.Errorf("CumulativeDistributionTransform %s: %v", what, f.Forward(x))
			}
		}
		of := func(base distributions.Distribution) distributions.Distribution {
			return distributions.NewTransformedDistribution(base, nil)
		}
		mix := func(d distributions.Distribution) distributions.Distribution {
			return distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(tensor.Ones([]int{2}))), d)
		}
		rows := flat{distributions.NewBase("Flat", []int{2, 2}, nil, nil)}
		vectors := flat{distributions.NewBase("Flat", []int{2}, []int{2}, constraints.Independent(constraints.Dependent, 1))}
		for what, d := range map[string]distributions.Distribution{
			"transformed": of(none), "transformed, independent": of(distributions.NewIndependent(none, 1)), "mixture": mix(none),
			"mixture, independent": mix(distributions.NewIndependent(rows, 1)), "mixture of vectors": mix(vectors),
		} {
			if v, err := d.LogProb(x).Sum().Item(); err != nil || !(math.Abs(v) <= 1e-6) {
				t.Errorf("%s: LogProb is %v, want 0", what, d.LogProb(x))
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestMoments compares the moments of many draws with Mean and Variance, within six standard errors, and CDF with ICDF.
func TestMoments(t *testing.T) {
	leak.Check(t)
	if testing.Short() {
		t.Skip("statistical")
	}
	data := readGolden(t)
	inverted := map[string]bool{}
	for name, build := range cases {
		err := tensor.WithScope(func() error {
			if err := tensor.ManualSeed(5); err != nil {
				return err
			}
			d := build(makeParams(data.Cases[name].Params))
			mean, variance := d.Mean(), d.Variance()
			if errors.Join(mean.Err(), variance.Err()) != nil || strings.HasPrefix(name, "Categorical") {
				return nil
			}
			_ = tensor.WithScope(func() error { // whose error says that there is no ICDF
				for _, p := range []float64{0.1, 0.5, 0.9} {
					back := d.CDF(d.ICDF(tensor.FromScalar(p, mean.DType())))
					if back.Err() != nil {
						return nil
					}
					inverted[name] = true
					golden.Near(t, name+": CDF of ICDF", back, slices.Repeat([]float64{p}, back.Numel()), 1e-5, 0)
				}
				return nil
			})
			const n = 20000
			x := d.Sample(n)
			if name == "VonMises" {
				return nil // its variance is circular
			}
			values := func(x *tensor.Tensor) ([]float64, error) {
				return tensor.Data[float64](x.Detach().Contiguous().To(tensor.Float64))
			}
			far := x.To(tensor.Float64).Sub(mean.Detach().To(tensor.Float64))
			for what, moment := range map[string]struct{ draws, want *tensor.Tensor }{"mean": {x.To(tensor.Float64), mean}, "variance": {far.Square(), variance}} {
				got, err := values(moment.draws.Mean(tensor.Dim(0)))
				spread, err2 := values(moment.draws.Std(tensor.Dim(0)))
				want, err3 := values(moment.want)
				if err := errors.Join(err, err2, err3); err != nil {
					return err
				}
				for i := range want {
					// The draws do not tell the spread of moments that are infinite or nearly so.
					heavy := what == "variance" && slices.Contains(strings.Fields("Pareto LogNormal FisherSnedecor InverseGamma StudentT"), name)
					if math.IsNaN(want[i]) || math.IsInf(want[i], 0) || heavy || name == "Pareto" || name == "InverseGamma" {
						continue
					}
					if !(math.Abs(got[i]-want[i]) <= 6*spread[i]/math.Sqrt(n)+1e-5*(1+math.Abs(want[i]))) {
						t.Errorf("%s: the %s of draws is %v, want %v", name, what, got[i], want[i])
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if t.Logf("%d distributions have CDF and ICDF", len(inverted)); len(inverted) < 10 {
		t.Errorf("only %v have CDF and ICDF", inverted)
	}
}

// TestPeaks compares the peaks of methods of several operators with PyTorch's: each frees what it has used.
func TestPeaks(t *testing.T) {
	leak.Check(t)
	const unit = 1 << 20
	err := tensor.WithScope(func() error {
		x, pos := tensor.Randn([]int{512, 512}), tensor.Rand([]int{512, 512}).Add(0.5)
		normal, other := distributions.NewNormal(x, pos), distributions.NewNormal(pos, pos)
		laplace, logNormal := distributions.NewLaplace(x, pos), distributions.NewLogNormal(x, pos)
		gamma, beta := distributions.NewGamma(pos, pos), distributions.NewBeta(pos, pos)
		for _, c := range []struct {
			name  string
			limit float64 // the peak of PyTorch 2.15 in bytes of x, and for Beta that of the concentrations, which it keeps, too
			f     func() *tensor.Tensor
		}{
			{"Normal.LogProb", 5, func() *tensor.Tensor { return normal.LogProb(x) }},
			{"Normal.CDF", 3, func() *tensor.Tensor { return normal.CDF(x) }},
			{"Normal.RSample", 3, func() *tensor.Tensor { return normal.RSample() }},
			{"KLDivergence", 5, func() *tensor.Tensor { return distributions.KLDivergence(normal, other) }},
			{"Laplace.LogProb", 3, func() *tensor.Tensor { return laplace.LogProb(x) }},
			{"LogNormal.LogProb", 7, func() *tensor.Tensor { return logNormal.LogProb(pos) }},
			{"Gamma.LogProb", 3, func() *tensor.Tensor { return gamma.LogProb(pos) }},
			{"Beta.LogProb", 9, func() *tensor.Tensor { return beta.LogProb(pos.Div(2)) }},
		} {
			peak, err := vram.Measure(vram.CPU, func() error {
				return tensor.WithScope(func() error { return c.f().Err() })
			})
			if got := float64(peak) / unit; got > c.limit+0.02 {
				t.Errorf("%s: the peak is %.2f times the bytes of x, PyTorch's is %.2f", c.name, got, c.limit)
			}
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestUnreadErrors checks that a scope returns the error of a tensor that only package distributions has seen.
func TestUnreadErrors(t *testing.T) {
	leak.Check(t)
	for name, f := range map[string]func(bad *tensor.Tensor){
		"a check of an independent constraint": func(bad *tensor.Tensor) { constraints.Independent(constraints.Positive, 1).Check(bad) },
		"a transform that caches":              func(bad *tensor.Tensor) { distributions.NewExpTransform(distributions.CacheSize(1)).Forward(bad) },
	} {
		err := tensor.WithScope(func() error {
			f(tensor.FromSlice([]float64{1, 2}, []int{3}))
			return nil
		})
		if !errors.Is(err, tensor.ErrArgument) {
			t.Errorf("%s: the scope returned %v", name, err)
		}
	}
}

package distributions_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/distributions/constraints"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/tensor"
)

// number is a number of the golden data: JSON has no infinities.
type number float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(text []byte) error {
	var f float64
	s := strings.Trim(string(text), `"`)
	if err := json.Unmarshal(text, &f); err != nil {
		if f, err = strconv.ParseFloat(s, 64); err != nil {
			return err
		}
	}
	*n = number(f)
	return nil
}

// array is a tensor of the golden data.
type array struct {
	Shape []int
	Data  []number
	DType string
}

// make returns a as a tensor.
func (a *array) make() *tensor.Tensor {
	dtype, err := tensor.ParseDType(a.DType)
	if err != nil {
		return tensor.Failed(err)
	}
	v := make([]float64, len(a.Data))
	for i, x := range a.Data {
		v[i] = float64(x)
	}
	return tensor.FromSlice(v, a.Shape).To(dtype)
}

// alike compares the dtype and the shape of got with those of PyTorch's want.
func alike(t *testing.T, what string, got *tensor.Tensor, want *array) bool {
	t.Helper()
	if err := got.Err(); err != nil {
		t.Errorf("%s: %v", what, err)
		return false
	}
	if !slices.Equal(got.Shape(), want.Shape) || got.DType().String() != want.DType {
		t.Errorf("%s: %v of shape %v, PyTorch %s of shape %v", what, got.DType(), got.Shape(), want.DType, want.Shape)
		return false
	}
	return true
}

// drawn is same for what depends on random numbers, and alike on a device, whose generator draws other ones.
func drawn(t *testing.T, what string, got *tensor.Tensor, want *array) {
	t.Helper()
	if testdevice.On {
		alike(t, what, got, want)
		return
	}
	same(t, what, got, want)
}

// same compares got with PyTorch's want: dtype, shape, and elements within a few units in the last place, as vectorized
// functions differ by one between processors.
func same(t *testing.T, what string, got *tensor.Tensor, want *array) {
	t.Helper()
	if !alike(t, what, got, want) {
		return
	}
	tolerance := 1e-12
	if want.DType == "float32" {
		tolerance = 2e-6
	}
	if testdevice.On && got.Device() != tensor.CPU {
		tolerance = max(tolerance*100, 1e-7)
	}
	v, err := tensor.Data[float64](got.Detach().To(tensor.Float64))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	for i, x := range v {
		y := float64(want.Data[i])
		if math.IsNaN(x) && math.IsNaN(y) || x == y {
			continue
		}
		if !(math.Abs(x-y) <= tolerance*max(1, math.Abs(y))) {
			t.Errorf("%s: element %d is %v, PyTorch's %v", what, i, x, y)
			return
		}
		inexact[t.Name()+" "+what] = true
	}
}

// inexact lists the results that are not bit-equal.
var inexact = map[string]bool{}

// gradients compares the gradients of the weighted sum of out, as distributions.py weighs it, by same or drawn.
func gradients(t *testing.T, what string, out *tensor.Tensor, leaves map[string]*tensor.Tensor, want map[string]*array,
	compare func(t *testing.T, what string, got *tensor.Tensor, want *array)) {
	t.Helper()
	if len(want) == 0 || out.Err() != nil {
		return
	}
	var names []string
	var inputs []*tensor.Tensor
	for n := range want {
		names, inputs = append(names, n), append(inputs, leaves[n])
	}
	weight := tensor.Arange(1, out.Numel()+1, out.DType()).Reshape(out.Shape()...).Div(8)
	got, err := autograd.Grad([]*tensor.Tensor{out.Mul(weight).Sum()}, inputs, tensor.RetainGraph(true))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	for i, g := range got {
		compare(t, what+" with respect to "+names[i], g, want[names[i]])
	}
}

type params map[string]*tensor.Tensor

func makeParams(m map[string]*array) params {
	p := params{}
	for n, a := range m {
		p[n] = a.make().RequiresGrad_()
	}
	return p
}

type goldenCase struct {
	Params           map[string]*array
	Batch, Event     []int
	Str, Support     string
	Sample           *array
	RSample          *array
	RSampleGrads     map[string]*array `json:"rsample_grads"`
	LogProb          *array            `json:"log_prob"`
	LogProbGrads     map[string]*array `json:"log_prob_grads"`
	CDF, ICDF        *array
	CDFGrads         map[string]*array `json:"cdf_grads"`
	Entropy          *array
	EntropyGrads     map[string]*array `json:"entropy_grads"`
	Perplexity       *array
	Mean, Mode       *array
	Variance, Stddev *array
	EnumerateTrue    *array `json:"enumerate_true"`
	EnumerateFalse   *array `json:"enumerate_false"`
	Expanded         *array
	ExpandedLogProb  *array `json:"expanded_log_prob"`
}

// cases has the constructors of distributions.py.
var cases = map[string]func(p params) distributions.Distribution{
	"Bernoulli": func(p params) distributions.Distribution {
		return distributions.NewBernoulli(distributions.Probs(p["probs"]))
	},
	"BernoulliLogits": func(p params) distributions.Distribution {
		return distributions.NewBernoulli(distributions.Logits(p["logits"]))
	},
	"Beta": func(p params) distributions.Distribution {
		return distributions.NewBeta(p["concentration1"], p["concentration0"])
	},
	"Binomial": func(p params) distributions.Distribution {
		return distributions.NewBinomial(5, distributions.Probs(p["probs"]))
	},
	"BinomialLogits": func(p params) distributions.Distribution {
		return distributions.NewBinomial(p["total_count"], distributions.Logits(p["logits"]))
	},
	"Categorical": func(p params) distributions.Distribution {
		return distributions.NewCategorical(distributions.Probs(p["probs"]))
	},
	"CategoricalLogits": func(p params) distributions.Distribution {
		return distributions.NewCategorical(distributions.Logits(p["logits"]))
	},
	"Cauchy": func(p params) distributions.Distribution { return distributions.NewCauchy(p["loc"], p["scale"]) },
	"Chi2":   func(p params) distributions.Distribution { return distributions.NewChi2(p["df"]) },
	"ContinuousBernoulli": func(p params) distributions.Distribution {
		return distributions.NewContinuousBernoulli(distributions.Probs(p["probs"]))
	},
	"ContinuousBernoulliLogits": func(p params) distributions.Distribution {
		return distributions.NewContinuousBernoulli(distributions.Logits(p["logits"]))
	},
	"Dirichlet":      func(p params) distributions.Distribution { return distributions.NewDirichlet(p["concentration"]) },
	"Exponential":    func(p params) distributions.Distribution { return distributions.NewExponential(p["rate"]) },
	"FisherSnedecor": func(p params) distributions.Distribution { return distributions.NewFisherSnedecor(p["df1"], p["df2"]) },
	"Gamma": func(p params) distributions.Distribution {
		return distributions.NewGamma(p["concentration"], p["rate"])
	},
	"GeneralizedPareto": func(p params) distributions.Distribution {
		return distributions.NewGeneralizedPareto(p["loc"], p["scale"], p["concentration"])
	},
	"Geometric": func(p params) distributions.Distribution {
		return distributions.NewGeometric(distributions.Probs(p["probs"]))
	},
	"GeometricLogits": func(p params) distributions.Distribution {
		return distributions.NewGeometric(distributions.Logits(p["logits"]))
	},
	"Gumbel":      func(p params) distributions.Distribution { return distributions.NewGumbel(p["loc"], p["scale"]) },
	"HalfCauchy":  func(p params) distributions.Distribution { return distributions.NewHalfCauchy(p["scale"]) },
	"HalfNormal":  func(p params) distributions.Distribution { return distributions.NewHalfNormal(p["scale"]) },
	"Independent": func(p params) distributions.Distribution { return vectorNormal(p) },
	"InverseGamma": func(p params) distributions.Distribution {
		return distributions.NewInverseGamma(p["concentration"], p["rate"])
	},
	"Kumaraswamy": func(p params) distributions.Distribution {
		return distributions.NewKumaraswamy(p["concentration1"], p["concentration0"])
	},
	"LKJCholesky": func(p params) distributions.Distribution {
		return distributions.NewLKJCholesky(3, distributions.Concentration(p["concentration"]))
	},
	"Laplace":   func(p params) distributions.Distribution { return distributions.NewLaplace(p["loc"], p["scale"]) },
	"LogNormal": func(p params) distributions.Distribution { return distributions.NewLogNormal(p["loc"], p["scale"]) },
	"LogisticNormal": func(p params) distributions.Distribution {
		return distributions.NewLogisticNormal(p["loc"], p["scale"])
	},
	"LowRankMultivariateNormal": func(p params) distributions.Distribution {
		return distributions.NewLowRankMultivariateNormal(p["loc"], p["cov_factor"], p["cov_diag"])
	},
	"Mixture": func(p params) distributions.Distribution {
		return distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Probs(p["probs"])), distributions.NewNormal(p["loc"], p["scale"]))
	},
	"MixtureVector": func(p params) distributions.Distribution {
		return distributions.NewMixtureSameFamily(distributions.NewCategorical(distributions.Logits(p["logits"])), vectorNormal(p))
	},
	"Multinomial": func(p params) distributions.Distribution {
		return distributions.NewMultinomial(4, distributions.Probs(p["probs"]))
	},
	"MultinomialLogits": func(p params) distributions.Distribution {
		return distributions.NewMultinomial(3, distributions.Logits(p["logits"]))
	},
	"MultivariateNormal": func(p params) distributions.Distribution {
		return distributions.NewMultivariateNormal(p["loc"], distributions.ScaleTril(p["scale_tril"]))
	},
	"MultivariateNormalCovariance": func(p params) distributions.Distribution {
		return distributions.NewMultivariateNormal(p["loc"], distributions.CovarianceMatrix(p["covariance"]))
	},
	"MultivariateNormalPrecision": func(p params) distributions.Distribution {
		return distributions.NewMultivariateNormal(p["loc"], distributions.PrecisionMatrix(p["precision"]))
	},
	"NegativeBinomial": func(p params) distributions.Distribution {
		return distributions.NewNegativeBinomial(p["total_count"], distributions.Probs(p["probs"]))
	},
	"NegativeBinomialLogits": func(p params) distributions.Distribution {
		return distributions.NewNegativeBinomial(p["total_count"], distributions.Logits(p["logits"]))
	},
	"Normal":          func(p params) distributions.Distribution { return distributions.NewNormal(p["loc"], p["scale"]) },
	"NormalBroadcast": func(p params) distributions.Distribution { return distributions.NewNormal(p["loc"], p["scale"]) },
	"NormalFloat32":   func(p params) distributions.Distribution { return distributions.NewNormal(p["loc"], p["scale"]) },
	"NormalNumbers":   func(params) distributions.Distribution { return distributions.NewNormal(0.5, 2) },
	"OneHotCategorical": func(p params) distributions.Distribution {
		return distributions.NewOneHotCategorical(distributions.Probs(p["probs"]))
	},
	"OneHotCategoricalStraightThrough": func(p params) distributions.Distribution {
		return distributions.NewOneHotCategoricalStraightThrough(distributions.Logits(p["logits"]))
	},
	"Pareto":  func(p params) distributions.Distribution { return distributions.NewPareto(p["scale"], p["alpha"]) },
	"Poisson": func(p params) distributions.Distribution { return distributions.NewPoisson(p["rate"]) },
	"RelaxedBernoulli": func(p params) distributions.Distribution {
		return distributions.NewRelaxedBernoulli(p["temperature"], distributions.Probs(p["probs"]))
	},
	"LogitRelaxedBernoulli": func(p params) distributions.Distribution {
		return distributions.NewLogitRelaxedBernoulli(p["temperature"], distributions.Logits(p["logits"]))
	},
	"RelaxedOneHotCategorical": func(p params) distributions.Distribution {
		return distributions.NewRelaxedOneHotCategorical(p["temperature"], distributions.Probs(p["probs"]))
	},
	"ExpRelaxedCategorical": func(p params) distributions.Distribution {
		return distributions.NewExpRelaxedCategorical(p["temperature"], distributions.Logits(p["logits"]))
	},
	"StudentT": func(p params) distributions.Distribution {
		return distributions.NewStudentT(p["df"], distributions.Loc(p["loc"]), distributions.Scale(p["scale"]))
	},
	"TanhNormal": func(p params) distributions.Distribution {
		return distributions.NewTransformedDistribution(distributions.NewNormal(p["loc"], p["scale"]), []distributions.Transform{distributions.NewTanhTransform()})
	},
	"TransformedAffine": func(p params) distributions.Distribution {
		return distributions.NewTransformedDistribution(distributions.NewNormal(p["loc"], p["scale"]), []distributions.Transform{
			distributions.NewAffineTransform(p["shift"], p["factor"]), distributions.NewSigmoidTransform()})
	},
	"TransformedStick": func(p params) distributions.Distribution {
		return distributions.NewTransformedDistribution(vectorNormal(p), []distributions.Transform{distributions.NewStickBreakingTransform()})
	},
	"Uniform": func(p params) distributions.Distribution { return distributions.NewUniform(p["low"], p["high"]) },
	"VonMises": func(p params) distributions.Distribution {
		return distributions.NewVonMises(p["loc"], p["concentration"])
	},
	"Weibull": func(p params) distributions.Distribution {
		return distributions.NewWeibull(p["scale"], p["concentration"])
	},
	"Wishart": func(p params) distributions.Distribution {
		return distributions.NewWishart(p["df"], distributions.CovarianceMatrix(p["covariance"]))
	},
	"WishartTril": func(p params) distributions.Distribution {
		return distributions.NewWishart(p["df"], distributions.ScaleTril(p["scale_tril"]))
	},
}

func vectorNormal(p params) distributions.Independent {
	return distributions.NewIndependent(distributions.NewNormal(p["loc"], p["scale"]), 1)
}

type goldenData struct {
	Cases map[string]*goldenCase
	KL    map[string]struct {
		Value *array
		Grads map[string]*array
		Q     map[string]*array
	}
	Transforms map[string]struct {
		X, Y, Inverse    *array
		Grads            map[string]*array
		Bijective        bool
		Domain, Codomain string
		Sign             *array
		LogDet           *array            `json:"log_det"`
		LogDetGrads      map[string]*array `json:"log_det_grads"`
		ForwardShape     []int             `json:"forward_shape"`
		InverseShape     []int             `json:"inverse_shape"`
	}
	Constraints map[string]struct {
		Value, Check *array
		Str          string
		EventDim     int `json:"event_dim"`
		Discrete     bool
		BijectTo     *mapped `json:"biject_to"`
		TransformTo  *mapped `json:"transform_to"`
	}
	Affine []struct{ X, Y, Numbers *array }
	Empty  map[string]*array
	Texts  map[string]string
}

type mapped struct{ X, Y, Inverse *array }

func readGolden(t *testing.T) *goldenData {
	t.Helper()
	var data goldenData
	golden.Read(t, "distributions.json", &data)
	return &data
}

// TestGolden compares every distribution with PyTorch: shapes, draws with the same seed, log probabilities, the other
// methods, and the gradients of draws, log probabilities, entropies and distribution functions.
func TestGolden(t *testing.T) {
	leak.Check(t)
	data := readGolden(t)
	for name := range cases {
		if data.Cases[name] == nil {
			t.Errorf("distributions.json has no case %s", name)
		}
	}
	for name, want := range data.Cases {
		build := cases[name]
		if build == nil {
			t.Errorf("the case %s is not tested", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			if err := tensor.WithScope(func() error { testCase(t, want, build); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	for what := range inexact {
		t.Logf("within the tolerance, not equal: %s", what)
	}
}

func testCase(t *testing.T, want *goldenCase, build func(p params) distributions.Distribution) {
	p := makeParams(want.Params)
	d := build(p)
	if err := d.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.BatchShape(), want.Batch) || !slices.Equal(d.EventShape(), want.Event) {
		t.Fatalf("batch shape %v, event shape %v; PyTorch's %v, %v", d.BatchShape(), d.EventShape(), want.Batch, want.Event)
	}
	if d.BatchShape() == nil || d.EventShape() == nil {
		t.Errorf("the empty batch shape or event shape is nil: %#v, %#v", d.BatchShape(), d.EventShape())
	}
	seed := func(n uint64) {
		if err := tensor.ManualSeed(n); err != nil {
			t.Fatal(err)
		}
	}
	seed(7)
	value := d.Sample(2, 3)
	drawn(t, "Sample", value, want.Sample)
	if value.RequiresGrad() {
		t.Error("Sample records gradients")
	}
	if want.RSample != nil {
		seed(7)
		v := d.RSample(2, 3)
		drawn(t, "RSample", v, want.RSample)
		gradients(t, "the gradient of RSample", v, p, want.RSampleGrads, drawn)
		if !d.HasRSample() {
			t.Error("HasRSample is false")
		}
	}
	value = want.Sample.make()
	if value.DType().IsFloat() {
		value = value.RequiresGrad_()
	}
	p["value"] = value
	optional := func(what string, got *tensor.Tensor, want *array) bool {
		t.Helper()
		switch {
		case want != nil:
			same(t, what, got, want)
			return true
		case got.Err() == nil:
			t.Logf("PyTorch has no %s", what)
		}
		return false
	}
	if lp := d.LogProb(value); optional("LogProb", lp, want.LogProb) {
		gradients(t, "the gradient of LogProb", lp, p, want.LogProbGrads, same)
	}
	if cdf := d.CDF(value); optional("CDF", cdf, want.CDF) {
		gradients(t, "the gradient of CDF", cdf, p, want.CDFGrads, same)
	}
	optional("ICDF", d.ICDF(tensor.FromSlice([]float64{0.125, 0.5, 0.875}, nil)), want.ICDF)
	if e := d.Entropy(); optional("Entropy", e, want.Entropy) {
		gradients(t, "the gradient of Entropy", e, p, want.EntropyGrads, same)
	}
	optional("Perplexity", d.Perplexity(), want.Perplexity)
	optional("Mean", d.Mean(), want.Mean)
	optional("Mode", d.Mode(), want.Mode)
	optional("Variance", d.Variance(), want.Variance)
	optional("Stddev", d.Stddev(), want.Stddev)
	optional("EnumerateSupport(true)", d.EnumerateSupport(true), want.EnumerateTrue)
	optional("EnumerateSupport(false)", d.EnumerateSupport(false), want.EnumerateFalse)
	if want.Expanded != nil {
		e := d.Expand(append([]int{2}, d.BatchShape()...)...)
		if err := e.Err(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%T", e); got != fmt.Sprintf("%T", d) {
			t.Errorf("Expand returns a %s", got)
		}
		seed(3)
		v := e.Sample()
		drawn(t, "Sample after Expand", v, want.Expanded)
		if want.ExpandedLogProb != nil {
			same(t, "LogProb after Expand", e.LogProb(want.Expanded.make()), want.ExpandedLogProb)
		}
	}
	str := strings.ReplaceAll(want.Str, ", logits: torch.Size([3]))", ")") // PyTorch prints what it has computed meanwhile
	if strings.HasPrefix(want.Str, "Mixture") {
		want.Str = str
	}
	if got := d.String(); got != want.Str {
		t.Errorf("String is %q, PyTorch's %q", got, want.Str)
	}
}

// TestGoldenKL compares every divergence with PyTorch, with gradients.
func TestGoldenKL(t *testing.T) {
	leak.Check(t)
	data := readGolden(t)
	for pair, want := range data.KL {
		a, b, _ := strings.Cut(pair, "|")
		err := tensor.WithScope(func() error {
			pp, qp := makeParams(data.Cases[a].Params), makeParams(want.Q)
			kl := distributions.KLDivergence(cases[a](pp), cases[b](qp))
			same(t, pair, kl, want.Value)
			leaves := params{}
			for n, x := range pp {
				leaves["p."+n] = x
			}
			for n, x := range qp {
				leaves["q."+n] = x
			}
			gradients(t, "the gradient of "+pair, kl, leaves, want.Grads, same)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", pair, err)
		}
	}
}

// TestDivergencesBroadcast tests that divergences have the batch shape of both distributions, whichever has more
// dimensions.
func TestDivergencesBroadcast(t *testing.T) {
	leak.Check(t)
	data := readGolden(t)
	for pair, want := range data.KL {
		a, b, _ := strings.Cut(pair, "|")
		err := tensor.WithScope(func() error {
			p, q := cases[a](makeParams(data.Cases[a].Params)), cases[b](makeParams(want.Q))
			twice := &array{Shape: append([]int{2}, want.Value.Shape...), Data: slices.Repeat(want.Value.Data, 2), DType: want.Value.DType}
			same(t, pair+", more of the first", distributions.KLDivergence(p.Expand(twice.Shape...), q), twice)
			same(t, pair+", more of the second", distributions.KLDivergence(p, q.Expand(twice.Shape...)), twice)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", pair, err)
		}
	}
	err := tensor.WithScope(func() error {
		y := distributions.KLDivergence(distributions.NewNormal(tensor.Zeros([]int{2}), 1), distributions.NewBeta(tensor.Ones([]int{3}), 1))
		if err := y.Err(); !errors.Is(err, tensor.ErrArgument) || !strings.HasPrefix(err.Error(), "linstock: KLDivergence: ") {
			t.Errorf("batch shapes that do not fit: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// transforms has the constructors of distributions.py.
func transforms() map[string]distributions.Transform {
	a := tensor.FromSlice([]float64{-0.5, 0.25, 1.5}, nil)
	b := tensor.FromSlice([]float64{0.5, 1.25, 2.0}, nil)
	half, two := tensor.FromScalar(0.5, tensor.Float64), tensor.FromScalar(2.0, tensor.Float64)
	exp, tanh := distributions.NewExpTransform(), distributions.NewTanhTransform()
	return map[string]distributions.Transform{
		"Abs": distributions.NewAbsTransform(), "Affine": distributions.NewAffineTransform(0.5, -2.0),
		"AffineTensor": distributions.NewAffineTransform(a, b), "AffineEvent": distributions.NewAffineTransform(a, b, distributions.EventDim(1)),
		"Cat":          distributions.NewCatTransform([]distributions.Transform{exp, distributions.NewAffineTransform(1.0, 2.0), tanh}, distributions.Dim(-1), distributions.Lengths(1, 1, 1)),
		"Compose":      distributions.NewComposeTransform(distributions.NewAffineTransform(0.5, 2.0), distributions.NewSigmoidTransform(), distributions.NewPowerTransform(two)),
		"ComposeEvent": distributions.NewComposeTransform(distributions.NewAffineTransform(0.5, 2.0), distributions.NewStickBreakingTransform()),
		"CorrCholesky": distributions.NewCorrCholeskyTransform(), "Cumulative": distributions.NewCumulativeDistributionTransform(distributions.NewNormal(half, two)),
		"Exp": exp, "Identity": distributions.IdentityTransform, "Independent": distributions.NewIndependentTransform(exp, 1), "InverseExp": exp.Inv(),
		"LowerCholesky": distributions.NewLowerCholeskyTransform(), "PositiveDefinite": distributions.NewPositiveDefiniteTransform(),
		"Power": distributions.NewPowerTransform(b), "Reshape": distributions.NewReshapeTransform([]int{3}, []int{3, 1}), "Sigmoid": distributions.NewSigmoidTransform(),
		"Softmax": distributions.NewSoftmaxTransform(), "Softplus": distributions.NewSoftplusTransform(),
		"Stack":         distributions.NewStackTransform([]distributions.Transform{exp, tanh}, distributions.Dim(0)),
		"StickBreaking": distributions.NewStickBreakingTransform(), "Tanh": tanh,
	}
}

// TestGoldenTransforms compares every transform with PyTorch.
// TestWishartOfSingularDraws compares the draws and the generator's state after draws that PyTorch repeats, as its
// Wishart.rsample does. Rounding, which differs between processors, decides which are repeated, so they have no golden data.
func TestWishartOfSingularDraws(t *testing.T) {
	leak.Check(t)
	for i, c := range []struct {
		df    []float32
		batch []int
		shape []int
	}{
		{[]float32{2.5}, nil, []int{4}}, {[]float32{2.01}, nil, nil}, {[]float32{2.5, 2.01}, []int{2}, []int{3}},
		{[]float32{2.2}, []int{1}, []int{2, 2}}, {[]float32{2.2, 2.6}, []int{1, 2}, nil},
	} {
		err := tensor.WithScope(func() error {
			what := fmt.Sprintf("df %v, batch %v, shape %v", c.df, c.batch, c.shape)
			df := tensor.FromSlice(c.df, c.batch)
			d := distributions.NewWishart(df, distributions.CovarianceMatrix(tensor.Eye(3)))
			for seed := range 20 {
				if err := tensor.ManualSeed(uint64(20*i + seed)); err != nil {
					return err
				}
				want, err := wishartDraws(df, c.shape)
				if err != nil {
					return err
				}
				next := tensor.Rand([]int{3})
				for name, draw := range map[string]func(...int) *tensor.Tensor{"Sample": d.Sample, "RSample": d.RSample} {
					if err := tensor.ManualSeed(uint64(20*i + seed)); err != nil {
						return err
					}
					got := draw(c.shape...)
					if ok, err := tensor.Item[bool](got.Eq(want).All().LogicalAnd(tensor.Rand([]int{3}).Eq(next).All())); err != nil || !ok {
						t.Errorf("%s, seed %d: %s differs from PyTorch's procedure: %v", what, 20*i+seed, name, err)
					}
				}
			}
			df, cov := df.Clone().RequiresGrad_(), tensor.Eye(3).RequiresGrad_()
			s := distributions.NewWishart(df, distributions.CovarianceMatrix(cov)).RSample(c.shape...)
			if _, err := autograd.Grad([]*tensor.Tensor{s.Sum()}, []*tensor.Tensor{df, cov}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// wishartDraws draws 3 by 3 matrices of unit covariance as rsample in torch/distributions/wishart.py does: once more where
// the first draw is positive definite, and again, ten times at most, where the last one is not.
func wishartDraws(df *tensor.Tensor, shape []int) (*tensor.Tensor, error) {
	batch := df.Numel()
	// draw returns matrices, and for each sample whether any matrix of its batch is, or is not, positive definite.
	draw := func(shape []int, positive bool) (values []float32, again []bool, err error) {
		chi, err := tensor.Data[float32](distributions.NewChi2(df.Unsqueeze(-1).Sub(tensor.Arange(0, 3))).Sample(shape...).Sqrt().ClampMin(0x1p-23))
		if err != nil {
			return nil, nil, err
		}
		z, err := tensor.Data[float32](tensor.Randn(slices.Concat(shape, df.Shape(), []int{3})))
		if err != nil {
			return nil, nil, err
		}
		var l []float32
		for i := 0; i < len(z); i += 3 {
			l = append(l, chi[i], 0, 0, z[i], chi[i+1], 0, z[i+1], z[i+2], chi[i+2])
		}
		lower := tensor.FromSlice(l, slices.Concat(shape, df.Shape(), []int{3, 3}))
		w := lower.MatMul(lower.MT())
		if values, err = tensor.Data[float32](w); err != nil {
			return nil, nil, err
		}
		ok, err := tensor.Data[bool](constraints.PositiveDefinite.Check(w))
		for i := 0; i < len(ok); i += batch {
			again = append(again, slices.Contains(ok[i:i+batch], positive))
		}
		return values, again, err
	}
	out, again, err := draw(shape, true)
	for try := 0; try < 10 && err == nil; try++ {
		var which []int
		for i, a := range again {
			if a {
				which = append(which, i)
			}
		}
		if len(which) == 0 {
			break
		}
		var values []float32
		var singular []bool
		values, singular, err = draw([]int{len(which)}, false)
		for k, i := range which[:len(singular)] {
			copy(out[i*batch*9:(i+1)*batch*9], values[k*batch*9:])
			again[i] = singular[k]
		}
	}
	return tensor.FromSlice(out, slices.Concat(shape, df.Shape(), []int{3, 3})), err
}

// TestWishartOfTwoDTypes compares a Wishart distribution whose df has another dtype than the matrices with PyTorch's.
func TestWishartOfTwoDTypes(t *testing.T) {
	leak.Check(t)
	for _, df := range []tensor.DType{tensor.Float32, tensor.Int64, tensor.Float64} {
		err := tensor.WithScope(func() error {
			cov := tensor.FromSlice([]float64{2, 0.3, 0.3, 1}, []int{2, 2})
			d := distributions.NewWishart(tensor.FromScalar(5, df), distributions.CovarianceMatrix(cov))
			if err := tensor.ManualSeed(3); err != nil {
				return err
			}
			draws := []float64{12.118114726633646, 3.5022916678051907, 3.5022916678051907, 8.327595910079765, 11.376700122575292, 1.1648880271146342, 1.1648880271146342, 3.1097362383622578}
			unit := distributions.NewWishart(4, distributions.CovarianceMatrix(tensor.Eye(2, tensor.Float64)))
			for what, c := range map[string]struct {
				y    *tensor.Tensor
				want []float64
			}{
				"RSample":         {d.RSample(2), draws},
				"PrecisionMatrix": {d.PrecisionMatrix(), []float64{0.5235602094240837, -0.15706806282722513, -0.15706806282722513, 1.0471204188481678}},
				"LogProb":         {d.LogProb(cov), []float64{-6.293438562136925}},
				"Entropy":         {d.Entropy(), []float64{7.78120316288532}},
				"Mode":            {d.Mode(), []float64{4, 0.6, 0.6, 2}},
				"KLDivergence":    {distributions.KLDivergence(d, unit), []float64{1.363298979679905}},
			} {
				if c.y.DType() != tensor.Float64 {
					t.Errorf("df in %v: %s has dtype %v", df, what, c.y.DType())
				}
				golden.Near(t, fmt.Sprintf("df in %v: %s", df, what), c.y, c.want, 1e-6, 1e-6)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestAffineRounds compares AffineTransform of float16 and bfloat16 with tensors of shape () with PyTorch's.
func TestAffineRounds(t *testing.T) {
	leak.Check(t)
	for _, want := range readGolden(t).Affine {
		err := tensor.WithScope(func() error {
			x := want.X.make()
			same(t, want.X.DType, distributions.NewAffineTransform(tensor.FromScalar(0.1), tensor.FromScalar(0.337)).Forward(x), want.Y)
			same(t, want.X.DType+" with numbers", distributions.NewAffineTransform(0.1, 0.337).Forward(x), want.Numbers)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestGoldenTransforms(t *testing.T) {
	leak.Check(t)
	data := readGolden(t)
	err := tensor.WithScope(func() error {
		all := transforms()
		for name, want := range data.Transforms {
			f := all[name]
			if f == nil {
				t.Errorf("the transform %s is not tested", name)
				continue
			}
			x := want.X.make().RequiresGrad_()
			leaves := params{"x": x}
			y := f.Forward(x)
			same(t, name, y, want.Y)
			gradients(t, "the gradient of "+name, y, leaves, want.Grads, same)
			same(t, name+".Inverse", f.Inverse(y), want.Inverse)
			same(t, name+".Inv", f.Inv().Forward(y), want.Inverse)
			same(t, name+".Inv.Inv", f.Inv().Inv().Forward(x), want.Y)
			if f.Bijective() != want.Bijective {
				t.Errorf("%s.Bijective is %t", name, f.Bijective())
			}
			for _, c := range []struct{ got, want string }{{f.Domain().String(), want.Domain}, {f.Codomain().String(), want.Codomain}} {
				if c.got != c.want && c.want != "" && name != "Cumulative" {
					t.Errorf("%s: a region is %s, PyTorch's %s", name, c.got, c.want)
				}
			}
			for _, c := range []struct {
				of          func([]int) ([]int, error)
				shape, want []int
			}{{f.ForwardShape, want.X.Shape, want.ForwardShape}, {f.InverseShape, want.Y.Shape, want.InverseShape}} {
				if got, err := c.of(c.shape); err != nil || !slices.Equal(got, c.want) {
					t.Errorf("%s: shape %v becomes %v, %v; PyTorch's %v", name, c.shape, got, err, c.want)
				}
			}
			if want.LogDet != nil {
				j := f.LogAbsDetJacobian(x, y)
				same(t, name+".LogAbsDetJacobian", j, want.LogDet)
				gradients(t, "the gradient of "+name+".LogAbsDetJacobian", j, leaves, want.LogDetGrads, same)
			} else if j := f.LogAbsDetJacobian(x, y); j.Err() == nil {
				t.Errorf("%s has a Jacobian", name)
			}
			sign := f.Sign()
			if n, ok := sign.(int); ok {
				sign = tensor.FromScalar(float64(n), tensor.Float64)
			}
			if got, ok := sign.(*tensor.Tensor); ok && want.Sign != nil {
				same(t, name+".Sign", got, want.Sign)
			} else if want.Sign != nil {
				t.Errorf("%s has no sign", name)
			}
			if !f.Equal(f) || f.Inv().Equal(f) && name != "Identity" {
				t.Errorf("%s: Equal is wrong", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestGoldenConstraints compares every constraint, and the transforms to it, with PyTorch.
func TestGoldenConstraints(t *testing.T) {
	leak.Check(t)
	c := map[string]constraints.Constraint{
		"boolean": constraints.Boolean, "one_hot": constraints.OneHot, "integer_interval": constraints.IntegerInterval(1, 3), "nonnegative_integer": constraints.NonnegativeInteger,
		"positive_integer": constraints.PositiveInteger, "real": constraints.Real, "real_vector": constraints.RealVector, "positive": constraints.Positive,
		"nonnegative": constraints.Nonnegative, "greater_than": constraints.GreaterThan(1.5), "greater_than_eq": constraints.GreaterThanEq(1.5), "less_than": constraints.LessThan(1.5),
		"unit_interval": constraints.UnitInterval, "interval": constraints.Interval(-1.0, 2.0), "half_open_interval": constraints.HalfOpenInterval(-1.0, 2.0),
		"simplex": constraints.Simplex, "multinomial": constraints.Multinomial(3), "lower_triangular": constraints.LowerTriangular, "lower_cholesky": constraints.LowerCholesky,
		"corr_cholesky": constraints.CorrCholesky, "square": constraints.Square, "symmetric": constraints.Symmetric, "positive_semidefinite": constraints.PositiveSemidefinite,
		"positive_definite": constraints.PositiveDefinite, "independent": constraints.Independent(constraints.Positive, 1), "mixture": constraints.MixtureSameFamily(constraints.Positive),
		"cat":   constraints.Cat([]constraints.Constraint{constraints.Positive, constraints.Real, constraints.UnitInterval}, -1, []int{1, 1, 1}),
		"stack": constraints.Stack([]constraints.Constraint{constraints.Positive, constraints.Real}, 0),
	}
	for name, want := range readGolden(t).Constraints {
		c := c[name]
		if c == nil {
			t.Errorf("the constraint %s is not tested", name)
			continue
		}
		err := tensor.WithScope(func() error {
			same(t, name, c.Check(want.Value.make()), want.Check)
			if c.EventDim() != want.EventDim || c.IsDiscrete() != want.Discrete {
				t.Errorf("%s: %d event dimensions, discrete %t; PyTorch's %d, %t", name, c.EventDim(), c.IsDiscrete(), want.EventDim, want.Discrete)
			}
			if !strings.HasPrefix(want.Str, "<") && strings.ReplaceAll(c.String(), ".0", "") != strings.ReplaceAll(want.Str, ".0", "") {
				t.Errorf("%s prints as %s, PyTorch's as %s", name, c, want.Str)
			}
			for what, m := range map[string]struct {
				f    distributions.Transform
				want *mapped
			}{"BijectTo": {distributions.BijectTo(c), want.BijectTo}, "TransformTo": {distributions.TransformTo(c), want.TransformTo}} {
				if m.want == nil {
					continue
				}
				y := m.f.Forward(m.want.X.make())
				same(t, what+" of "+name, y, m.want.Y)
				same(t, what+" of "+name+", inverse", m.f.Inverse(y), m.want.Inverse)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestConstraintsOfAnEmptyBatch(t *testing.T) {
	leak.Check(t)
	c := map[string]constraints.Constraint{"symmetric": constraints.Symmetric, "positive_semidefinite": constraints.PositiveSemidefinite,
		"positive_definite": constraints.PositiveDefinite}
	err := tensor.WithScope(func() error {
		for name, want := range readGolden(t).Empty {
			same(t, name, c[name].Check(tensor.Zeros([]int{2, 0, 3, 3})), want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestConstraintTexts(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		f := func(v any) *tensor.Tensor { return tensor.FromScalar(v) }
		c := map[string]constraints.Constraint{
			"tensors": constraints.Interval(f(0.0), f(2.0)), "ints": constraints.Interval(f(0), f(3)), "infinities": constraints.Interval(math.Inf(-1), math.Inf(1)),
			"large": constraints.Interval(1e6, 1e16), "small": constraints.GreaterThan(1e-5), "nan": constraints.GreaterThan(math.NaN()),
			"numbers": constraints.HalfOpenInterval(1, 2.5),
		}
		for name, want := range readGolden(t).Texts {
			if c[name] == nil || c[name].String() != want {
				t.Errorf("%s: %v, PyTorch's %s", name, c[name], want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestConstraintTextsFollowBounds tests that a constraint reads its bounds when it is printed, not when it is made.
func TestConstraintTextsFollowBounds(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		low := tensor.FromScalar(0.0)
		made := map[string]constraints.Constraint{
			"GreaterThan(lower_bound=1.5)":                                       constraints.GreaterThan(low),
			"IntegerInterval(lower_bound=1.5, upper_bound=3)":                    constraints.IntegerInterval(low, 3),
			"IndependentConstraint(GreaterThanEq(lower_bound=1.5), 1)":           constraints.Independent(constraints.GreaterThanEq(low), 1),
			"MixtureSameFamilyConstraint(LessThan(upper_bound=1.5))":             constraints.MixtureSameFamily(constraints.LessThan(low)),
			"HalfOpenInterval(lower_bound=1.5, upper_bound=1.5)":                 constraints.HalfOpenInterval(low, low),
			"IndependentConstraint(Interval(lower_bound=1.5, upper_bound=2), 2)": constraints.Independent(constraints.Interval(low, 2), 2),
		}
		if err := low.Fill_(1.5).Err(); err != nil {
			return err
		}
		for want, c := range made {
			if c.String() != want {
				t.Errorf("%v, want %s", c, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

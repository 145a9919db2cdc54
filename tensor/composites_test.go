package tensor

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// tests/golden/composites.py writes the cases of these tests.
type composite struct {
	Call string
	Out  []struct {
		DType string
		Shape []int
		Data  []float64
	}
	Shapes [][]int
	Shape  []int // nil: they cannot be broadcast
}

var windowFunctions = map[string]func(m int, sym bool, opts ...Option) *Tensor{
	"Bartlett": SignalWindowsBartlett,
	"Blackman": SignalWindowsBlackman,
	"Cosine":   SignalWindowsCosine,
	"Exponential": func(m int, sym bool, opts ...Option) *Tensor {
		return SignalWindowsExponential(m, 1.5, sym, opts...)
	},
	"Gaussian": func(m int, sym bool, opts ...Option) *Tensor { return SignalWindowsGaussian(m, 0.9, sym, opts...) },
	"GeneralCosine": func(m int, sym bool, opts ...Option) *Tensor {
		return SignalWindowsGeneralCosine(m, []float64{0.46, 0.23, 0.31}, sym, opts...)
	},
	"GeneralHamming": func(m int, sym bool, opts ...Option) *Tensor {
		return SignalWindowsGeneralHamming(m, 0.6, sym, opts...)
	},
	"Hamming": SignalWindowsHamming,
	"Hann":    SignalWindowsHann,
	"Kaiser":  func(m int, sym bool, opts ...Option) *Tensor { return SignalWindowsKaiser(m, 8.6, sym, opts...) },
	"Nuttall": SignalWindowsNuttall,
}

// low returns a matrix of rank 2.
func low(m, n int) *Tensor {
	i, j := Arange(0, m, Float64).Unsqueeze(1), Arange(0, n, Float64)
	return i.Add(1).Sin().Mul(j.Cos()).Add(i.Sub(2).Mul(j.Add(1)).Div(10))
}

func (c *composite) run() ([]*Tensor, error) {
	words := strings.Fields(c.Call)
	number := func(i int) (n int) {
		_ = json.Unmarshal([]byte(words[i]), &n)
		return n
	}
	with := func(word string) bool { return slices.Contains(words, word) }
	product := func(u, s, v *Tensor) ([]*Tensor, error) {
		return []*Tensor{s, u.MatMul(s.DiagEmbed()).MatMul(v.Adjoint())}, nil
	}
	switch words[0] {
	case "UnravelIndex":
		var shape []int
		for i := range words[1:] {
			shape = append(shape, number(1+i))
		}
		numbers := []int{0, 5, 23, 13}
		if len(shape) == 1 {
			numbers = []int{0, 5, 3, 1}
		}
		return FromSlice(numbers, []int{2, 2}).UnravelIndex(shape...)
	case "SVDLowRank":
		x := low(number(1), number(2))
		switch {
		case with("mean"):
			return product(x.SVDLowRank(3, 1, x.Mean(Dim(-2), KeepDim())))
		case with("sparse"):
			return product(x.ToSparse().SVDLowRank(3, 2, nil))
		case with("batch"):
			x = Stack([]*Tensor{x, x.Mul(2)})
		}
		return product(x.SVDLowRank(3, 2, nil))
	case "PCALowRank":
		return product(low(number(1), number(2)).PCALowRank(3, !with("uncentered"), 2))
	}
	dtype, err := ParseDType(words[3])
	opts := []Option{dtype}
	if dtype == Float32 {
		opts = nil
	}
	return []*Tensor{windowFunctions[words[0]](number(1), with("true"), opts...)}, err
}

// TestComposites compares functions that PyTorch has in Python with PyTorch's results.
func TestComposites(t *testing.T) {
	begin(t)
	text, err := os.ReadFile("../tests/golden/composites.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []composite
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if c.Call == "BroadcastShapes" {
			shape, err := BroadcastShapes(c.Shapes...)
			if (err == nil) != (c.Shape != nil) || !slices.Equal(shape, c.Shape) || err != nil && !errors.Is(err, ErrArgument) {
				t.Errorf("BroadcastShapes(%v): %v, %v, want %v", c.Shapes, shape, err, c.Shape)
			}
			continue
		}
		err := WithScope(func() error {
			out, err := c.run()
			if err != nil || len(out) != len(c.Out) {
				t.Errorf("%s: %d results, %v, want %d", c.Call, len(out), err, len(c.Out))
				return nil
			}
			for k, want := range c.Out {
				got, err := Data[float64](out[k].To(Float64, Device{}))
				if err != nil {
					t.Errorf("%s: %v", c.Call, err)
					continue
				}
				limit := 1e-9
				if want.DType == "float32" {
					limit = 1e-5
				}
				far := func(a, b float64) bool { return !(math.Abs(a-b) <= limit) }
				if out[k].DType().String() != want.DType || !slices.Equal(shapeOf(out[k].Shape()), want.Shape) ||
					slices.CompareFunc(got, want.Data, func(a, b float64) int { return int(bit(far(a, b))) }) != 0 {
					t.Errorf("%s, result %d: %v%v %v, want %s%v %v", c.Call, k, out[k].DType(), out[k].Shape(), got, want.DType, want.Shape, want.Data)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", c.Call, err)
		}
	}
}

func TestCompositesRefuse(t *testing.T) {
	begin(t)
	err := WithScope(func() error {
		x := Ones([]int{3, 4})
		first := func(u, _, _ *Tensor) error { return u.Err() }
		_, indices := x.UnravelIndex(3)
		_, negative := FromSlice([]int{1}, nil).UnravelIndex(2, -1)
		_, none := FromSlice([]int{1}, nil).UnravelIndex(2, 0)
		_, many := FromSlice([]int{1}, nil).UnravelIndex(math.MaxInt, 2)
		_, size := BroadcastShapes([]int{-1})
		for what, err := range map[string]error{
			"a float as an index":     indices,
			"a negative size":         negative,
			"an element of none":      none,
			"too many elements":       many,
			"a negative shape":        size,
			"a vector":                first(Ones([]int{3}).SVDLowRank(2, 2, nil)),
			"a negative q":            first(x.SVDLowRank(-1, 2, nil)),
			"too many iterations":     first(x.SVDLowRank(2, 1<<40, nil)),
			"a q above the sides":     first(x.PCALowRank(4, true, 2)),
			"the mean of a sparse":    first(x.ToSparse().PCALowRank(2, true, 2)),
			"a negative length":       SignalWindowsHann(-1, true).Err(),
			"an integer window":       SignalWindowsHann(4, true, Int64).Err(),
			"a window's other option": SignalWindowsHann(4, true, KeepDim()).Err(),
			"no weights":              SignalWindowsGeneralCosine(4, nil, true).Err(),
			"no deviation":            SignalWindowsGaussian(4, 0, true).Err(),
			"a tau that is nan":       SignalWindowsExponential(4, math.NaN(), true).Err(),
			"a negative beta":         SignalWindowsKaiser(4, -1, true).Err(),
		} {
			wantErr(t, what, err, ErrArgument)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

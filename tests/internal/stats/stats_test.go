package stats

import (
	"math"
	"testing"

	"github.com/linstock-ml/linstock/internal/balance"
)

func TestQuantile(t *testing.T) {
	balance.Hold(t, func() {})
	v := []float64{4, 1, 3, 2}
	for q, want := range map[float64]float64{0: 1, 0.5: 2.5, 0.25: 1.75, 1: 4} {
		if got := Quantile(v, q); got != want {
			t.Errorf("quantile %v of %v: %v, want %v", q, v, got, want)
		}
	}
	if v[0] != 4 {
		t.Errorf("the samples were sorted: %v", v)
	}
	for _, v := range [][]float64{nil, {1, math.NaN()}} {
		if got := Median(v); !math.IsNaN(got) {
			t.Errorf("median of %v: %v, want NaN", v, got)
		}
	}
}

func TestMore(t *testing.T) {
	balance.Hold(t, func() {})
	steady, noisy := []float64{1, 1.01, 0.99, 1}, []float64{1, 1.5, 0.7, 1.1}
	for _, c := range []struct {
		v     []float64
		turns int
		want  bool
	}{
		{nil, 4, true}, {steady[:3], 4, true}, {steady, 4, false}, {noisy, 4, true}, {noisy, 1, false},
	} {
		if got := More(c.v, c.turns); got != c.want {
			t.Errorf("after %v of %d: %v, the median is known to %v", c.v, c.turns, got, MedianError(c.v))
		}
	}
	if e, want := MedianError([]float64{1, 2, 3}), 1.253/1.349/math.Sqrt(3); !(math.Abs(e-want) <= 1e-12) {
		t.Errorf("standard error %v, want %v", e, want)
	}
}

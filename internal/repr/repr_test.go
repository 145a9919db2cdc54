package repr

import (
	"math"
	"testing"
)

func TestFloat(t *testing.T) {
	for f, want := range map[float64]string{
		0: "0.0", 2: "2.0", 0.5: "0.5", 1e6: "1000000.0", 1e15: "1000000000000000.0", 1e16: "1e+16", 1.5e300: "1.5e+300",
		1e-4: "0.0001", 1.5e-5: "1.5e-05", -2.25: "-2.25", math.Inf(1): "inf", math.Inf(-1): "-inf",
	} {
		if got := Float(f); got != want {
			t.Errorf("%v is %s, want %s", f, got, want)
		}
	}
	if got := Float(math.Copysign(0, -1)); got != "-0.0" {
		t.Errorf("the negative zero is %s", got)
	}
	if got := Float(math.NaN()); got != "nan" {
		t.Errorf("NaN is %s", got)
	}
}

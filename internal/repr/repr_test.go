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

func TestComplex(t *testing.T) {
	for c, want := range map[complex128]string{
		complex(3, 0): "(3+0j)", complex(0, 3): "3j", 0: "0j", complex(-1.5, -2): "(-1.5-2j)", complex(1e16, 0.1): "(1e+16+0.1j)",
		complex(0, math.Inf(-1)): "-infj", complex(math.Inf(1), 1): "(inf+1j)",
	} {
		if got := Complex(c); got != want {
			t.Errorf("%v is %s, want %s", c, got, want)
		}
	}
	if got := Complex(complex(math.Copysign(0, -1), 2)); got != "(-0+2j)" {
		t.Errorf("with the negative zero: %s", got)
	}
	if got := Complex(complex(math.NaN(), math.NaN())); got != "(nan+nanj)" {
		t.Errorf("NaN is %s", got)
	}
}

package stats

import (
	"math"
	"testing"

	"github.com/linstock-ml/linstock/internal/balance"
)

func TestFormat(t *testing.T) {
	balance.Hold(t, func() {})
	for _, c := range []struct{ got, want string }{
		{Ratio([]float64{1, 2, 3}), "2.00 (1.50–2.50)"},
		{Ratio(nil), "-"},
		{Duration(math.NaN()), "-"},
		{Duration(9999), "9999 ns"},
		{Duration(12345), "12.3 µs"},
		{Duration(12345678), "12.35 ms"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

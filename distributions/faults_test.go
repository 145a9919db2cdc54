package distributions_test

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestFailingOperators makes and uses each distribution while one of its operators fails. Only errors may result.
func TestFailingOperators(t *testing.T) {
	leak.Check(t)
	for name, want := range readGolden(t).Cases {
		t.Run(name, func(t *testing.T) {
			_ = tensor.WithScope(func() error {
				p := makeParams(want.Params)
				calls := leak.FailEachCall(t, func() {
					d := cases[name](p)
					x := d.Sample(2)
					d.LogProb(x)
					d.CDF(x)
					d.ICDF(x)
					if d.HasRSample() {
						d.RSample(2)
					}
					d.Entropy()
					d.Perplexity()
					d.Mean()
					d.Mode()
					d.Variance()
					d.Stddev()
					if d.HasEnumerateSupport() {
						d.EnumerateSupport(true)
					}
					d.Expand(2, 3).Sample()
				})
				if calls == 0 {
					t.Error("no call was made")
				}
				return nil
			})
		})
	}
}

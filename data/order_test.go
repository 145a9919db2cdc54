package data

import (
	"math"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
)

func TestScatteredIsAPermutation(t *testing.T) {
	leak.Check(t)
	for _, n := range []int{1, 2, 3, 5, 64, 65, 1000, 4097, 100_003} {
		at := scattered(n, 42)
		seen := make([]bool, n)
		for i := range n {
			j := at(i)
			if j < 0 || j >= n || seen[j] {
				t.Fatalf("%d elements: %d is mapped to %d", n, i, j)
			}
			seen[j] = true
		}
	}
}

// TestScatteredLooksRandom tests that the first elements of a large permutation, which training uses, are spread
// evenly.
func TestScatteredLooksRandom(t *testing.T) {
	leak.Check(t)
	const n, draws, bins = 85_000_000, 64_000, 64
	for seed := range uint64(3) {
		at := order(n, true, seed, 0)
		var count [bins]float64
		var correlation, last float64
		for i := range draws {
			u := float64(at(i)) / n
			count[int(u*bins)]++
			correlation += (u - 0.5) * (last - 0.5)
			last = u
		}
		var chi2 float64
		for _, c := range count {
			chi2 += (c - draws/bins) * (c - draws/bins) / (draws / bins)
		}
		if chi2 > 120 { // 63 degrees of freedom: probability 10⁻⁵
			t.Errorf("seed %d: chi² %.0f", seed, chi2)
		}
		if r := correlation * 12 / draws; !(math.Abs(r) <= 0.02) {
			t.Errorf("seed %d: neighbours correlate by %.3f", seed, r)
		}
	}
	if order(n, true, 1, 0)(0) == order(n, true, 1, 1)(0) || order(n, true, 1, 0)(0) == order(n, true, 2, 0)(0) {
		t.Error("epochs or seeds share an order")
	}
}

package progress

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMean(t *testing.T) {
	var m Mean
	for _, v := range []float64{1, 2, 6} {
		m.Add(v)
	}
	if !(math.Abs(m.Value()-3) <= 1e-12) {
		t.Errorf("the mean of 1, 2 and 6 is %v", m.Value())
	}
	for range 1000 {
		m.Add(5)
	}
	if !(math.Abs(m.Value()-5) <= 1e-9) {
		t.Errorf("after many steps at 5 the mean is %v", m.Value())
	}
}

func TestPlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loss.svg")
	if err := Plot(path, "title", "loss", Curve{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a plot without values was written")
	}
	curves := []Curve{{Name: "a", Values: []float64{3, 2, math.NaN(), 1}}, {Name: "b", Values: []float64{math.Inf(1)}}, {}}
	if err := Plot(path, "title", "loss", curves...); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

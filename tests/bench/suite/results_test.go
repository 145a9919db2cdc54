package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
)

func TestResultsGoOnAfterAnInterruption(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "results.jsonl")
	add := func(key string, cells ...string) *results {
		t.Helper()
		r, err := openResults(path, key)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		for _, c := range cells {
			if err := r.add(c, record{Start: 1}); err != nil {
				t.Fatal(err)
			}
		}
		return r
	}
	add("a", "first", "second")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, whole[:len(whole)-3], 0o644); err != nil {
		t.Fatal(err)
	}
	add("a", "third")
	r := add("a")
	if !r.has("first") || r.has("second") || !r.has("third") || r.records["first"].Start != 1 {
		t.Errorf("after a cut line: %v, want first and third", r.records)
	}
	if r := add("b"); len(r.records) != 0 {
		t.Errorf("with another key: %v, want nothing", r.records)
	}
}

func TestDisagreements(t *testing.T) {
	leak.Check(t)
	w := []workload{{name: "w", train: true}}
	a := arms{"go": {}, "c++ here": {}, "python": {}}
	for _, c := range []struct {
		cpp, python []float64
		ok          bool
	}{
		{[]float64{1, 2}, []float64{1, 2}, true},
		{[]float64{1, 2.0000008}, []float64{1, 2.0001}, true},
		{[]float64{1, 2.000002}, []float64{1, 2}, false},
		{[]float64{1, 2}, []float64{1, 2.001}, false},
		{[]float64{1}, []float64{1, 2}, false},
	} {
		r := &results{records: map[string]record{
			once(w[0], columns[0]): {Losses: []float64{1, 2}},
			once(w[0], columns[1]): {Losses: c.cpp},
			once(w[0], columns[3]): {Losses: c.python},
		}}
		if err := disagreements(w, a, r); (err == nil) != c.ok {
			t.Errorf("%v and %v: %v", c.cpp, c.python, err)
		}
	}
}

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// Losses that differ leave docs/speed.md as it is; the tables have the days of their cells, not today's.
func TestFinish(t *testing.T) {
	leak.Check(t)
	t.Chdir(t.TempDir())
	if err := os.Mkdir("docs", 0o755); err != nil {
		t.Fatal(err)
	}
	const page, old = "docs/speed.md", "<!-- suite -->\nold\n<!-- end suite -->\n"
	if err := os.WriteFile(page, []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	write := func(day string, losses []float64) (string, error) {
		t.Helper()
		w := []workload{{name: "w", train: true}}
		r, err := openResults("results.jsonl", "key "+day)
		if err != nil {
			t.Fatal(err)
		}
		defer r.close()
		if err := errors.Join(r.add(once(w[0], columns[0]), record{Losses: []float64{1, 2}, Day: day}),
			r.add(once(w[0], columns[1]), record{Losses: losses, Day: "2026-01-31"})); err != nil {
			t.Fatal(err)
		}
		kept := &results{records: readResults("results.jsonl", "key "+day)}
		err = options{write: true}.finish(w, arms{"go": {}, "c++ here": {}}, kept, nil)
		text, e := os.ReadFile(page)
		if e != nil {
			t.Fatal(e)
		}
		return string(text), err
	}
	if text, err := write("2026-01-31", []float64{1, 3}); err == nil || text != old {
		t.Errorf("losses that differ: %v, %q", err, text)
	}
	if text, err := write("2026-01-31", []float64{1, 2}); err != nil || !strings.Contains(text, "Measured on 2026-01-31, ") {
		t.Errorf("a day: %v, %q", err, text)
	}
	if text, err := write("2026-01-30", []float64{1, 2}); err != nil || !strings.Contains(text, "Measured on 2026-01-30 to 2026-01-31, ") {
		t.Errorf("two days: %v, %q", err, text)
	}
}

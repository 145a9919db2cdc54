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

// -write takes no part of the measurements.
func TestWriteNeedsAll(t *testing.T) {
	leak.Check(t)
	all := arms{"go": {}, "c++ here": {}, "c++": {}, "python": {}}
	whole := full
	whole.write = true
	part := func(change func(o *options)) options {
		o := whole
		change(&o)
		return o
	}
	for _, c := range []struct {
		o    options
		list []workload
		a    arms
		ok   bool
	}{
		{whole, workloads, all, true},
		{part(func(o *options) { o.rounds = 9 }), workloads, all, true},
		{part(func(o *options) { o.write, o.rounds, o.parts = false, 1, "speed" }), workloads[:1], arms{}, true},
		{whole, workloads[:1], all, false},
		{whole, workloads, arms{"go": {}, "c++ here": {}, "c++": {}}, false},
		{part(func(o *options) { o.parts = "speed" }), workloads, all, false},
		{part(func(o *options) { o.rounds = 1 }), workloads, all, false},
		{part(func(o *options) { o.turns = 1 }), workloads, all, false},
		{part(func(o *options) { o.steps = 2 }), workloads, all, false},
		{part(func(o *options) { o.threads = []int{7} }), workloads, all, false},
	} {
		if err := c.o.fits(c.list, c.a); (err == nil) != c.ok {
			t.Errorf("%+v with %d workloads and %d arms: %v", c.o, len(c.list), len(c.a), err)
		}
	}
}

// An edit of a file that Python's arm imports starts the measurements over.
func TestKey(t *testing.T) {
	leak.Check(t)
	t.Chdir(t.TempDir())
	seen := map[string]bool{}
	for _, path := range []string{"tests/bench/suite/py/main.py", "tests/bench/arm.py"} {
		for _, text := range []string{"a", "b"} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
			key, err := full.key()
			if err != nil || seen[key] {
				t.Errorf("%s: the key is as before, %v", path, err)
			}
			seen[key] = true
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

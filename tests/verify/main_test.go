package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A single line that was run replaces its own line; the others and the text around the table do not change.
func TestUpdate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "reliability.md")
	if err := os.WriteFile(file, []byte("before\n<!-- scorecard -->\n<!-- end -->\nafter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := make([]result, len(rows))
	for i, r := range rows {
		all[i] = result{row: r, figures: "first " + r.name, ok: true, took: time.Second}
	}
	read := func() string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if err := update(file, all); err != nil {
		t.Fatal(err)
	}
	whole := read()
	if !strings.HasPrefix(whole, "before\n") || !strings.HasSuffix(whole, "\nafter\n") {
		t.Errorf("the text around the table is missing:\n%s", whole)
	}
	again := all[3]
	again.figures = "second"
	if err := update(file, []result{again}); err != nil {
		t.Fatal(err)
	}
	if got, want := read(), strings.Replace(whole, "first "+again.name, "second", 1); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	again.test = "another"
	if err := update(file, []result{again}); err == nil {
		t.Error("a line that is missing in the table gives no error")
	}
	if err := update(filepath.Join(t.TempDir(), "none"), all); err == nil {
		t.Error("a missing file gives no error")
	}
}

// A share of the counts does not get into the page.
func TestWriteNeedsFullCounts(t *testing.T) {
	for _, c := range []struct {
		share     float64
		write, ok bool
	}{{1, true, true}, {1, false, true}, {0.02, false, true}, {0.02, true, false}, {0, false, false}, {1.5, false, false}, {math.NaN(), false, false}} {
		if err := fits(c.share, c.write); (err == nil) != c.ok {
			t.Errorf("-share %v, -write %v: %v", c.share, c.write, err)
		}
	}
}

// The page has a line for each row, so that -write does not refuse it after an hour.
func TestPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if line := "\n| " + r.test + " | " + r.target + " |"; !strings.Contains(string(page), line) {
			t.Errorf("docs/reliability.md has no line for row %s:%s", r.name, line)
		}
	}
}

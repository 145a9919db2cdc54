package main

import (
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/flight"
)

// TestFlight tests the table and the words for a job in which a rank is late.
func TestFlight(t *testing.T) {
	isolated(t)
	dir := t.TempDir()
	for rank := range 2 {
		r, err := flight.Create(dir, flight.Header{Rank: rank, Size: 2, Records: 10})
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(2 - rank) {
			c := r.Begin(flight.Record{Group: "0", Rank: rank, Size: 2, Collective: n + 1, Call: "Barrier", Line: "main.go:7"})
			if n == 0 {
				r.End(c, nil)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out, err := command(t, "flight", dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{dir, "Last call", "started", "completed", "rank 1 is late in collective 2, Barrier, line main.go:7"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := command(t, "flight", t.TempDir()); err == nil {
		t.Error("an empty directory was read")
	}
}

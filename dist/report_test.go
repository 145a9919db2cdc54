package dist_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestReport tests what rank 0 learns of the others.
func TestReport(t *testing.T) {
	leak.Check(t)
	ranks(t, 3, func(g *dist.Group) error {
		for i := range 2 {
			if err := g.Barrier(ctx); err != nil {
				return err
			}
			r, err := g.Report(ctx, 100*i+g.Rank())
			if err != nil {
				return err
			}
			if g.Rank() != 0 {
				if r != nil {
					t.Errorf("rank %d has a report", g.Rank())
				}
				continue
			}
			for rank, p := range r.Ranks {
				if p.Rank != rank || p.Samples != 100*i+rank || p.Host == "" || p.Waiting <= 0 || p.Waiting > p.Time || p.Other < 0 {
					t.Errorf("got %+v", p)
				}
			}
		}
		return nil
	})
	if r, err := (*dist.Group)(nil).Report(ctx, 1); r != nil || !errors.Is(err, tensor.ErrNil) {
		t.Errorf("nil: %v, %v", r, err)
	}
}

// TestStragglers tests which ranks are slow.
func TestStragglers(t *testing.T) {
	leak.Check(t)
	of := func(rank int, waiting time.Duration) dist.RankProgress {
		return dist.RankProgress{Rank: rank, Host: "node", Samples: 50, Time: 10 * time.Second, Waiting: waiting, Memory: 1 << 20}
	}
	r := &dist.ProgressReport{Ranks: []dist.RankProgress{of(0, 5*time.Second), of(1, time.Second), of(2, 6*time.Second), of(3, 5*time.Second)}}
	if s := r.Stragglers(); len(s) != 1 || s[0] != 1 {
		t.Errorf("stragglers %v", s)
	}
	text := r.String()
	for _, want := range []string{"slow", "5.0", "20.0", "50 %", "1.0 MiB"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if r := (*dist.ProgressReport)(nil); r.Stragglers() != nil || r.String() != "<nil>" {
		t.Error("a nil report")
	}
}

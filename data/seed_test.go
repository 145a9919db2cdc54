package data_test

import (
	"context"
	"maps"
	"testing"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
)

// TestSampleSeed tests that the seeds of samples depend on the loader's seed, the epoch and the sample, and on nothing else.
func TestSampleSeed(t *testing.T) {
	leak.Check(t)
	const n = 20
	items, err := data.NewItems(n, func(ctx context.Context, i int) ([2]int64, error) {
		return [2]int64{int64(i), int64(data.SampleSeed(ctx, i) >> 1)}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// seeds returns the seeds of an epoch from a batch on, by sample.
	seeds := func(epoch, batch int, opts ...data.Option) map[int64]int64 {
		l, err := data.NewLoader(items, append(opts, data.BatchSize(3), data.Shuffle(true))...)
		if err != nil {
			t.Fatal(err)
		}
		s := l.State()
		s.Epoch, s.Batch = epoch, batch
		if err := l.SetState(s); err != nil {
			t.Fatal(err)
		}
		all := map[int64]int64{}
		for b, err := range l.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			values := mustInts(t, b.Inputs)
			for k := 0; k < len(values); k += 2 {
				all[values[k]] = values[k+1]
			}
		}
		return all
	}
	want := seeds(0, 0)
	if len(want) != n {
		t.Fatalf("%d samples", len(want))
	}
	distinct := map[int64]bool{}
	for _, s := range want {
		distinct[s] = true
	}
	if len(distinct) != n {
		t.Errorf("%d samples have %d seeds", n, len(distinct))
	}
	if got := seeds(0, 0, data.Workers(3)); !maps.Equal(got, want) {
		t.Errorf("with workers: %v, want %v", got, want)
	}
	for sample, s := range seeds(0, 4) {
		if want[sample] != s {
			t.Errorf("continued: sample %v has the seed %d, want %d", sample, s, want[sample])
		}
	}
	for what, other := range map[string]map[int64]int64{"epoch": seeds(1, 0), "seed": seeds(0, 0, data.Seed(5))} {
		for sample, s := range other {
			if want[sample] == s {
				t.Errorf("sample %v has the same seed with another %s", sample, what)
			}
		}
	}
	var none context.Context
	if data.SampleSeed(none, 3) != data.SampleSeed(t.Context(), 3) || data.SampleSeed(none, 3) == data.SampleSeed(none, 4) {
		t.Error("without a loader the seed does not depend on the sample alone")
	}
}

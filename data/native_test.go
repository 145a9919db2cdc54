package data_test

import (
	"context"
	"fmt"
	"runtime/debug"
	"testing"

	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// TestFreedWithoutTheGarbageCollector tests that leaving a loop frees all that it made, without a garbage collection.
func TestFreedWithoutTheGarbageCollector(t *testing.T) {
	leak.Check(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, workers := range []int{0, 3} {
		l := newLoader(t, squares(t, 400, nil), data.BatchSize(4), data.Workers(workers))
		for _, stop := range []int{1, 10, 1000} {
			before := allocated(t)
			inBody := int64(0)
			for batch, err := range l.Batches(context.Background()) {
				if err != nil {
					t.Fatal(err)
				}
				_ = tensor.Zeros([]int{1000}).Add(batch.Inputs.Sum())
				inBody = max(inBody, allocated(t)-before)
				if stop--; stop == 0 {
					break
				}
			}
			if after := allocated(t); after != before {
				t.Errorf("%d workers: %d bytes before the loop, %d after", workers, before, after)
			}
			if limit := int64(16<<10 + workers*4*256); inBody > limit {
				t.Errorf("%d workers: %d bytes in the body, want %d at most: earlier bodies' tensors live", workers, inBody, limit)
			}
		}
	}
}

func allocated(t testing.TB) int64 {
	t.Helper()
	s, err := vram.Stats(tensor.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return s.Allocated
}

func BenchmarkLoader(b *testing.B) {
	text := make([]byte, 1<<20)
	for _, workers := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("windows/%d workers", workers), func(b *testing.B) {
			w, err := data.NewWindows(text, 64, 1)
			if err != nil {
				b.Fatal(err)
			}
			l, err := data.NewLoader(w, data.BatchSize(16), data.Shuffle(true), data.Workers(workers))
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			b.ResetTimer()
			for _, err := range l.Batches(b.Context()) {
				if err != nil {
					b.Fatal(err)
				}
				if n++; n >= b.N {
					break
				}
			}
		})
	}
}

package data

import (
	"context"
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
)

// wandering is a context whose Err lets the calling goroutine move to another thread.
type wandering struct{ context.Context }

func (w wandering) Err() error {
	for range 20 {
		elsewhere.Thread()
	}
	return nil
}

// TestLoopStaysOnItsThread tests that all iterations of a loop run on one thread.
func TestLoopStaysOnItsThread(t *testing.T) {
	leak.Check(t)
	l := loader(t, 20)
	threads := map[int]bool{}
	for _, err := range l.Batches(wandering{context.Background()}) {
		if err != nil {
			t.Fatal(err)
		}
		threads[syscall.Gettid()] = true
	}
	if len(threads) != 1 {
		t.Errorf("the loop was on %d threads", len(threads))
	}
}

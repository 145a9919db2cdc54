package data

import (
	"context"
	"runtime"
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// wandering lets a goroutine that asks it go on on another thread.
type wandering struct{ context.Context }

func (w wandering) Err() error {
	for range 20 {
		woken := make(chan struct{})
		go func() {
			runtime.LockOSThread() // ends with its goroutine: whom it wakes goes on elsewhere
			woken <- struct{}{}
		}()
		<-woken
	}
	return nil
}

// All bodies of a loop run on one thread.
func TestTheLoopStaysOnItsThread(t *testing.T) {
	leak.Check(t)
	x := tensor.Zeros([]int{20, 1})
	defer x.Release()
	d, err := NewTensorDataset(x)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d)
	if err != nil {
		t.Fatal(err)
	}
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

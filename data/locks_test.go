package data

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
	"github.com/linstock-ml/linstock/tensor"
)

// Each method holds the lock of what it reads and writes: the race detector compares it with one that does.
func TestLocks(t *testing.T) {
	leak.Check(t)
	x := tensor.Zeros([]int{4, 1})
	defer x.Release()
	d, err := NewTensorDataset(x)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(){
		func() { l.State() },
		func() { _ = l.SetState(State{}) },
		func() { _ = l.begin() },
		l.end,
		l.advance,
	} {
		unordered.Go(f, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			state, running := l.state, l.running
			l.state, l.running = state, running
		})
	}
}

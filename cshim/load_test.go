package cshim_test

import (
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
)

// The first calls of a program may come from many goroutines. The figures can be read after them only.
func TestLoadOnManyGoroutines(t *testing.T) {
	loadOnManyGoroutines(t)
	leak.Check(t)
	loadOnManyGoroutines(t)
}

func loadOnManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := cshim.Load(); err != nil {
				t.Error(err)
			}
			if cshim.Path() == "" {
				t.Error("loaded, but from nowhere")
			}
		})
	}
	wg.Wait()
}

// Of many who load at once one does. In a process that has loaded nothing yet.
func TestOneLoads(t *testing.T) {
	if elsewhere.Process(t) {
		if n := cshim.LoadAtOnce(); n != 1 {
			t.Errorf("%d have loaded", n)
		}
	}
	leak.Check(t)
}

// Who has waited while another loaded does not load again.
func TestLoadOnce(t *testing.T) {
	leak.Check(t)
	if ran, err := cshim.LoadAgain(); err != nil || ran {
		t.Errorf("loaded again: %v, %v", ran, err)
	}
}

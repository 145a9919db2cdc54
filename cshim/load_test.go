package cshim_test

import (
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
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

// Who has waited while another loaded does not load again.
func TestLoadOnce(t *testing.T) {
	leak.Check(t)
	if ran, err := cshim.LoadAgain(); err != nil || ran {
		t.Errorf("loaded again: %v, %v", ran, err)
	}
}

package cshim

import (
	"sync"
	"testing"
)

// The first calls of a program may come from many goroutines.
func TestLoadOnManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := Load(); err != nil {
				t.Error(err)
			}
			if Path() == "" {
				t.Error("loaded, but from nowhere")
			}
		})
	}
	wg.Wait()
}

package cshim_test

import (
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/leak"
)

// A goroutine that is alone in a call keeps its thread. Two keep none for a while. None does if operators have
// a single thread.
func TestKeeps(t *testing.T) {
	leak.Check(t)
	if err := cshim.Load(); err != nil {
		t.Fatal(err)
	}
	threads := cshim.NumThreads()
	defer func() {
		if err := cshim.SetNumThreads(threads); err != nil {
			t.Error(err)
		}
	}()
	keeps := func(n int, want ...bool) {
		t.Helper()
		if got := cshim.Inside(n, func() {}); !slices.Equal(got, want) {
			t.Errorf("%d at once: they keep their threads: %v, want %v", n, got, want)
		}
		if n := cshim.Calls(); n != 0 {
			t.Errorf("%d are in a call after all have left", n)
		}
	}
	if err := cshim.SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
	keeps(1, false)
	keeps(2, false, false)
	if err := cshim.SetNumThreads(2); err != nil {
		t.Fatal(err)
	}
	keeps(1, true)
	keeps(2, true, false)
	for range cshim.CrowdedFor {
		keeps(1, false)
	}
	keeps(1, true)
	keeps(1, true)
	// The count is right after operators have had several threads, one, and several again.
	cshim.Inside(1, func() {
		if err := cshim.SetNumThreads(1); err != nil {
			t.Error(err)
		}
	})
	if n := cshim.Calls(); n != 0 {
		t.Errorf("%d are in a call", n)
	}
}

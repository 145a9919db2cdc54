package main

import (
	"runtime"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
	"github.com/linstock-ml/linstock/vram"
)

// TestThreadsKeepLittleMemory tests that a thread that has computed keeps little memory of its own: a goroutine that
// moves from thread to thread, and goroutines that compute concurrently, do not make the process grow. ideep's cache
// alone was 24 MB for each thread.
func TestThreadsKeepLittleMemory(t *testing.T) {
	leak.Check(t)
	threads := tensor.NumThreads()
	// Do not start a team of OpenMP threads for each.
	if err := tensor.SetNumThreads(1); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tensor.SetNumThreads(threads) }()
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	// The threads stay alive; otherwise their own memory would be freed with them.
	onThread := func(seed uint64) error {
		failed := make(chan error)
		wg.Go(func() {
			runtime.LockOSThread()
			s, err := newStepper(seed), error(nil)
			for i := 0; i < 1200 && err == nil; i++ {
				err = s.convolve()
			}
			s = nil
			failed <- err
			<-done
		})
		return <-failed
	}
	var rss []int64
	for seed := range uint64(4) {
		if err := onThread(seed); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		if err := vram.EmptyCache(tensor.CPU); err != nil { // as the pacer does every two seconds
			t.Fatal(err)
		}
		n, err := proc.Status("self", "VmRSS")
		if err != nil {
			t.Fatal(err)
		}
		rss = append(rss, n>>10)
	}
	t.Logf("resident KiB: %d", rss)
	// The first thread also fills what the process has once.
	if each := (rss[3] - rss[0]) / 3; each > 12<<10 {
		t.Errorf("each further thread that computes keeps %d KiB; resident KiB: %d", each, rss)
	}
}

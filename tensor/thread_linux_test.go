package tensor

import (
	"runtime"
	"sync"
	"testing"
)

// A goroutine may end with its scope open whatever thread it was on, the main one too: with as many at once as there
// are threads, one of them would be.
func TestGoexitOnTheMainThread(t *testing.T) {
	begin(t)
	before := held.Load()
	for range 5 {
		var opened, ended sync.WaitGroup
		opened.Add(64)
		for range 64 {
			ended.Go(func() {
				if _, err := NewScope(); err != nil {
					t.Error(err)
				}
				Ones([]int{10})
				if onMainThread() {
					t.Error("a scope is on the main thread")
				}
				opened.Done()
				opened.Wait()
				runtime.Goexit()
			})
		}
		ended.Wait()
	}
	settle(t)
	equal(t, "goroutines that hold scopes", held.Load(), before)
}

package tensor

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/elsewhere"
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
				_ = Ones([]int{10})
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

// mainThreadRuns says whether goroutines are still put on the main thread: of as many at once as hold a thread each, one
// would be. Each calls f.
func mainThreadRuns(f func()) (runs bool) {
	var held, ended sync.WaitGroup
	threads, _ := os.ReadDir("/proc/self/task")
	n := len(threads) + 8
	held.Add(n)
	var mu sync.Mutex
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			mu.Lock()
			runs = runs || onMainThread()
			mu.Unlock()
			held.Done()
			held.Wait()
			runtime.UnlockOSThread()
			f()
		})
	}
	ended.Wait()
	return runs
}

// A main thread that is said to be retired runs no goroutine any more. In a process of its own, whose main thread no
// other test has retired.
func TestTheMainThreadRetires(t *testing.T) {
	if !elsewhere.Process(t) {
		return
	}
	// Before libtorch is loaded, whose pacer holds a thread, this one perhaps.
	for range 100 { // the main thread is not always among those that run
		mainThreadRuns(retireMainThread)
		if mainRetired.Load() {
			break
		}
	}
	if !mainRetired.Load() {
		t.Fatal("no goroutine was on the main thread")
	}
	begin(t)
	for range 20 {
		if mainThreadRuns(func() {}) {
			t.Fatal("the main thread runs goroutines after it has been retired")
		}
	}
}

// A goroutine that computes alone comes back from an operator on the thread that it called it on, though another one has
// the only processor by then; where several compute, none is held up for that.
func TestAloneKeepsItsThread(t *testing.T) {
	begin(t)
	twoThreads(t)
	x := Rand([]int{1 << 24}) // the runtime looks every 10 ms whether a processor lies idle in C
	defer x.Release()
	for range 2000 {
		x.T().Release() // nobody else computes now
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var done atomic.Bool
	var busy sync.WaitGroup
	busy.Go(func() {
		for !done.Load() {
		}
	})
	moved := 0
	const n = 60
	for range n {
		before := syscall.Gettid()
		x.Erf().Release()
		if syscall.Gettid() != before {
			moved++
		}
	}
	done.Store(true)
	busy.Wait()
	// Between the operators it may move.
	if moved > n/20 {
		t.Errorf("after %d of %d operators the goroutine was on another thread", moved, n)
	}
}

// Package unordered shows the race detector that a lock is missing, each time and at once, where many goroutines beside
// one another would do so by chance. Under the detector a call into C orders goroutines as a lock does, so one of two
// functions must not make any.
package unordered

import (
	"runtime"
	"sync"
)

// Go runs f and then g on two goroutines, and then g and f on two others. Nothing that the race detector knows of orders
// the two but the locks that both take.
func Go(f, g func()) {
	for range 2 {
		var done bool
		var wg sync.WaitGroup
		wg.Go(func() {
			defer tell(&done)
			f()
		})
		wg.Go(func() {
			for !told(&done) {
				runtime.Gosched()
			}
			g()
		})
		wg.Wait()
		f, g = g, f
	}
}

//go:norace
//go:noinline
func tell(done *bool) { *done = true }

//go:norace
//go:noinline
func told(done *bool) bool { return *done }

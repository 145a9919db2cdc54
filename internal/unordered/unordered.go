// Package unordered helps the race detector to find a missing lock reliably and fast. With many concurrent goroutines
// it would be found only by chance. Under the detector a call into C orders goroutines like a lock, so one of the two
// functions must not make any.
package unordered

import (
	"runtime"
	"sync"
)

// Go runs f and then g on two goroutines, and then g and f on two others. For the race detector, only locks that both
// take order the two.
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

// Package unordered helps the race detector to find a missing lock reliably and fast. With many concurrent goroutines
// it would be found only by chance. Under the detector a call into C orders goroutines like a lock, so one of the two
// functions must not make any.
package unordered

import (
	"runtime"
	"sync"
	"sync/atomic"
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

// AtOnce calls f(i, 0) and f(i, 1) on two goroutines at the same time, for each i below n. It finds, by repetition, what the
// race detector cannot: two atomic operations that should be one.
func AtOnce(n int, f func(i, who int)) {
	var arrived atomic.Int64
	var all sync.WaitGroup
	for who := range 2 {
		all.Go(func() {
			for i := range n {
				arrived.Add(1)
				for spins := 0; arrived.Load() < int64(2*i+2); spins++ {
					if spins > 10000 {
						runtime.Gosched()
					}
				}
				f(i, who)
			}
		})
	}
	all.Wait()
}

//go:norace
//go:noinline
func tell(done *bool) { *done = true }

//go:norace
//go:noinline
func told(done *bool) bool { return *done }

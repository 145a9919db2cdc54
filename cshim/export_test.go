package cshim

import (
	"sync"
	"sync/atomic"
)

// LoadAgain is Load without its fast path. It reports whether the functions that run once after loading have
// run.
func LoadAgain() (ran bool, err error) {
	before := onLoad
	defer func() { onLoad = before }()
	onLoad = func() { ran = true }
	err = load()
	return ran, err
}

// LoadAtOnce calls LoadAgain on many goroutines and returns how often those functions have run.
func LoadAtOnce() int {
	before := onLoad
	defer func() { onLoad = before }()
	var ran atomic.Int32
	onLoad = func() {
		if ran.Add(1) == 1 {
			before()
		}
	}
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			<-begin
			_ = load()
		})
	}
	close(begin)
	wg.Wait()
	return int(ran.Load())
}

// Inside runs f in n nested calls and returns which of them keep their thread.
func Inside(n int, f func()) (keeps []bool) {
	if n == 0 {
		f()
		return nil
	}
	c := enter()
	defer c.leave(0)
	return append([]bool{c == kept}, Inside(n-1, f)...)
}

// Calls returns the number of goroutines in a call.
func Calls() int { return int(calls.inside.Load()) }

// CrowdedFor returns the number of calls that keep no thread after several goroutines were in calls at once.
const CrowdedFor = crowdedFor

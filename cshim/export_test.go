package cshim

import (
	"sync"
	"sync/atomic"
)

// LoadAgain is Load without its first look, and says whether what runs once after loading has run.
func LoadAgain() (ran bool, err error) {
	before := onLoad
	defer func() { onLoad = before }()
	onLoad = func() { ran = true }
	err = load()
	return ran, err
}

// LoadAtOnce is LoadAgain on many goroutines; it says how often it has run.
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

// Inside runs f in n calls, one inside another, and says which of them keep their thread.
func Inside(n int, f func()) (keeps []bool) {
	if n == 0 {
		f()
		return nil
	}
	c := enter()
	defer c.leave(0)
	return append([]bool{c == kept}, Inside(n-1, f)...)
}

// Calls are the goroutines in a call.
func Calls() int { return int(calls.inside.Load()) }

// CrowdedFor is how many calls keep no thread after several at once.
const CrowdedFor = crowdedFor

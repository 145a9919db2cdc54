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

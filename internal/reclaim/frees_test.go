package reclaim

import (
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/balance"
)

// AwaitFrees waits for frees that are under way when it is called, and not for those that begin later.
func TestAwaitFrees(t *testing.T) {
	balance.Hold(t, func() {})
	for range 3 { // each phase
		early := FreesBegin()
		if AwaitFrees(5 * time.Millisecond) {
			t.Error("it has not waited for a free under way")
		}
		if AwaitFrees(5 * time.Millisecond) {
			t.Error("the second call has forgotten a free that the first one waited for")
		}
		late := FreesBegin()
		FreesEnd(early)
		if late == early {
			t.Error("a free that begins later counts with those under way")
		}
		FreesEnd(late)
		if !AwaitFrees(time.Second) {
			t.Error("it waits although no free is under way")
		}
		done := make(chan bool)
		phase := FreesBegin()
		go func() { done <- AwaitFrees(10 * time.Second) }()
		time.Sleep(time.Millisecond)
		FreesEnd(phase)
		if !<-done {
			t.Error("it waits although the free has ended")
		}
	}
}

package vram

import (
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/balance"
)

// A timer is always pending, with a short period while anything waits for memory.
func TestKeepaliveTimers(t *testing.T) {
	balance.Hold(t, func() {})
	k := newKeepalive()
	first, second := k.first, k.second
	t.Cleanup(func() {
		k.setShort(false)
		for first.Stop() || second.Stop() {
		}
	})
	// The first timer that runs resets both.
	runs := func(within time.Duration) bool {
		second.Stop()
		for start := time.Now(); time.Since(start) < within; time.Sleep(time.Millisecond) {
			if second.Reset(time.Hour) {
				return true
			}
			second.Stop()
		}
		return false
	}
	if runs(50 * time.Millisecond) {
		t.Error("a timer has run soon although nothing waits")
	}
	k.setShort(true)
	for range 5 {
		if !runs(10 * time.Second) {
			t.Fatal("no timer runs although something waits")
		}
	}
	k.setShort(false)
	runs(10 * time.Second) // the one that was set last
	if runs(50 * time.Millisecond) {
		t.Error("a timer has run soon although nothing waits any more")
	}
	if first.Stop() != true {
		t.Error("the timer has stopped by itself")
	}
}

package vram

import (
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/balance"
)

// A timer is always due, and soon where somebody waits for memory.
func TestBeat(t *testing.T) {
	balance.Hold(t, func() {})
	b := newBeat()
	first, second := b.first.Load(), b.second.Load()
	t.Cleanup(func() {
		b.hurry(false)
		for first.Stop() || second.Stop() {
		}
	})
	// The first to come sets both again.
	comes := func(within time.Duration) bool {
		second.Stop()
		for start := time.Now(); time.Since(start) < within; time.Sleep(time.Millisecond) {
			if second.Reset(time.Hour) {
				return true
			}
			second.Stop()
		}
		return false
	}
	if comes(50 * time.Millisecond) {
		t.Error("nobody waits, but it is in a hurry")
	}
	b.hurry(true)
	for range 5 {
		if !comes(10 * time.Second) {
			t.Fatal("somebody waits, but no timer comes")
		}
	}
	b.hurry(false)
	comes(10 * time.Second) // the last one that was set before
	if comes(50 * time.Millisecond) {
		t.Error("nobody waits any more, but it is in a hurry")
	}
	if first.Stop() != true {
		t.Error("it has stopped by itself")
	}
}

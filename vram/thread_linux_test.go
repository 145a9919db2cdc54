package vram_test

import (
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// A reclaimer runs on one OS thread, because the shim knows by the thread what a sweep allocates.
func TestReclaimersRunOnOneThread(t *testing.T) {
	leak.Check(t)
	calls := 0
	defer vram.Register(vram.Reclaimer{Name: "test", Reclaim: func(int64) {
		calls++
		thread := syscall.Gettid()
		for range 10 {
			elsewhere.Thread()
		}
		if now := syscall.Gettid(); now != thread {
			t.Errorf("a reclaimer began on thread %d and continued on thread %d", thread, now)
		}
	}})()
	limit(t, 16*mib)
	var held []*tensor.Tensor
	for calls == 0 && len(held) < 100 {
		held = append(held, tensor.Empty([]int{mib})) // 4 MiB
	}
	for _, x := range held {
		x.Release()
	}
	if calls == 0 {
		t.Error("400 MiB under a limit of 16 MiB call no reclaimer")
	}
}

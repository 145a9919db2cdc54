//go:build linstock_device

// Package testdevice lets tests that were written for the CPU run on a GPU. With the build tag linstock_device,
// constructors that are given no device make their tensors and parameters on the device that
// LINSTOCK_TEST_DEVICE names, as after PyTorch's torch.set_default_device. The kit of `make gpu-kit` builds its
// tests this way (docs/gpu-kit.md).
package testdevice

import (
	"os"
	"sync/atomic"
)

// On reports whether the program was built with the tag.
const On = true

var onCPU atomic.Bool

// Name is the device's name, "cpu" if none was chosen.
func Name() string {
	if name := os.Getenv("LINSTOCK_TEST_DEVICE"); name != "" && !onCPU.Load() {
		return name
	}
	return "cpu"
}

// OnCPU runs f with constructors on the CPU, whose random numbers differ from a GPU's. Nothing else may run
// meanwhile.
func OnCPU(f func()) {
	before := onCPU.Swap(true)
	defer onCPU.Store(before)
	f()
}

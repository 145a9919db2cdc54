//go:build !linux

package vram

// kernelMemory is not known on this system.
func kernelMemory() int64 { return 0 }

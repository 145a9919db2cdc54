//go:build !linstock_device

// Package testdevice lets tests that were written for the CPU run on a GPU: see on.go.
package testdevice

// On reports whether the program was built with the tag linstock_device.
const On = false

// Workspace is the size of cuBLAS's workspaces in bytes in the kit: see on.go.
const Workspace = 1000 << 10

// Name is the device's name.
func Name() string { return "cpu" }

// OnCPU runs f.
func OnCPU(f func()) { f() }

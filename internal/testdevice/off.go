//go:build !linstock_device

// Package testdevice lets tests that were written for the CPU run on a GPU: see on.go.
package testdevice

// On reports whether the program was built with the tag linstock_device.
const On = false

// Name is the device's name.
func Name() string { return "cpu" }

// OnCPU runs f.
func OnCPU(f func()) { f() }

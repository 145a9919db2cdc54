//go:build !linstock_gc

package cshim

// reading is called whenever a handle is passed to C. With the build tag linstock_gc package tensor runs a
// garbage collection there.
func reading() {}

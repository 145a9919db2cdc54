//go:build !linstock_gc

package cshim

// reading is called wherever a handle goes to C; the build tag linstock_gc has package tensor collect there.
func reading() {}

// Package reclaim joins package vram, which decides when native memory is freed, to package tensor, which owns it.
// Package tensor sets the functions before any other code runs. None of them waits for code of the program's.
package reclaim

var (
	// Drain frees the tensors that wait in the queue and those outside scopes that the last collection found unreachable.
	Drain = func() {}
	// Weaken makes the entries of every open scope weak pointers, before the Go collector runs.
	Weaken = func() {}
	// Collect frees the entries that have become unreachable and makes the others strong again.
	Collect = func() {}
)

// Package cshim stands in for Linstock's.
package cshim

type Handle uintptr

type Value struct {
	Tag  uint32
	Bits uint64
}

func Neg(h Handle) Handle               { return h }
func Add(a, b Handle) Handle            { return a + b }
func Backward(roots []Handle) error     { return nil }
func Call(args []Value)                 {}
func EventRecord(e uintptr, stream int) {}
func EventDestroy(e uintptr)            {}

// Package optim stands in for Linstock's.
package optim

type Optimizer struct{}

func (o *Optimizer) ZeroGrad()   {}
func (o *Optimizer) Step() error { return nil }

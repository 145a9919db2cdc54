// Package autograd stands in for Linstock's.
package autograd

type Context struct{}

func NoGrad(f func() error) error { return f() }

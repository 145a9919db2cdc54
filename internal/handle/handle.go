// Package handle lets the library's upper packages read what a tensor's Go handle knows, without a call into libtorch
// and without a public method for it. Package tensor sets the functions when it is initialized.
package handle

// Usable reports whether t, a *tensor.Tensor, was made by an operator that succeeded and has not been released.
var Usable func(t any) bool

// Failed reports whether t, a *tensor.Tensor, carries an error. It does not count as having looked at it.
var Failed func(t any) bool

// Decided reports whether RequiresGrad_ was ever called on t, a *tensor.Tensor, with true or false.
var Decided func(t any) bool

//go:build !cgo

package cshim

// The name is what the compiler prints. Without it the first error would be about something else.
var _ = linstock_needs_cgo_and_a_C_compiler_on_Linux

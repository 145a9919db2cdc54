//go:build !cgo

package main

import "io/fs"

// shimSources cannot be had: they are embedded in a package that uses cgo. Go
// turns cgo off where it finds no C compiler, and this command, built all the
// same, can then say so (see paths).
var shimSources fs.FS

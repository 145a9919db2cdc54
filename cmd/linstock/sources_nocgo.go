//go:build !cgo

package main

import "io/fs"

// shimSources returns an error: the sources are embedded in a package that uses cgo. Go disables cgo if it
// finds no C compiler; this command still builds then, and can report the reason (see paths).
var shimSources fs.FS

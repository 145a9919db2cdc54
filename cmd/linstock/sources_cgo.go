//go:build cgo

package main

import (
	"io/fs"

	"github.com/linstock-ml/linstock/cshim"
)

// shimSources returns the sources that setup compiles.
var shimSources fs.FS = cshim.Sources

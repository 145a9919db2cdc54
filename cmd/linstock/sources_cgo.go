//go:build cgo

package main

import (
	"io/fs"

	"github.com/linstock-ml/linstock/cshim"
)

// shimSources is what setup compiles.
var shimSources fs.FS = cshim.Sources

//go:build linstock_never

package locate

// No build has this tag, but `go get`, `go mod tidy` and `go mod vendor` read every file whatever its tags. So a module
// that uses only package tensor gets the checksums of all that the commands and the other packages need into its go.sum,
// and them into its vendor directory. `go run github.com/linstock-ml/linstock/cmd/linstock setup` works in it, and so do
// imports of the other packages, without another `go get`.
import (
	_ "github.com/linstock-ml/linstock/checkpoint"
	_ "github.com/linstock-ml/linstock/cmd/linstock"
	_ "github.com/linstock-ml/linstock/cmd/linstockvet"
	_ "github.com/linstock-ml/linstock/dist/dcp"
	_ "github.com/linstock-ml/linstock/profiler"
)

//go:build linstock_never

package locate

// No build has this tag, but `go get`, `go mod tidy` and `go mod vendor` read every file whatever its tags. So a module
// that uses only package tensor gets the checksums of all that the commands need into its go.sum, and the commands into
// its vendor directory, and `go run github.com/linstock-ml/linstock/cmd/linstock setup` works in it without another `go
// get`.
import (
	_ "github.com/linstock-ml/linstock/cmd/linstock"
	_ "github.com/linstock-ml/linstock/cmd/linstockvet"
)

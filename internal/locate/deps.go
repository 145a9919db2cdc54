//go:build linstock_never

package locate

// Packages that cmd/linstock needs. No build has this tag, but `go get` and `go mod tidy` read every file
// whatever its tags. So a program that uses only package tensor gets their checksums into its go.sum, and `go
// run github.com/linstock-ml/linstock/cmd/linstock setup` works in it without another `go get`.
import (
	_ "github.com/gofrs/flock"
	_ "github.com/jedib0t/go-pretty/v6/table"
	_ "github.com/schollz/progressbar/v3"
	_ "github.com/spf13/cobra"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/term"
	_ "golang.org/x/tools/go/cfg"
	_ "golang.org/x/tools/go/packages"
)

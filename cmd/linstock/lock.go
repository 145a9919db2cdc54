package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

// newLock is for maintainers: it writes internal/libtorch/lock.json.
func newLock() *cobra.Command {
	var out string
	var have, versions []string
	var again bool
	cmd := &cobra.Command{
		Use:    "lock",
		Hidden: true,
		Short:  "Write the lock file of wheels that setup verifies against",
		Long: `Lock asks pip which wheels belong to each version of torch and writes their names,
hashes and sizes. Versions that the lock file of this module has are kept; --again
asks for them too. Sizes of wheels that are not in a directory of --have are found
by downloading them, several GB in all.`,
		Example: `  go generate ./internal/libtorch
  linstock lock --again --torch 2.15.0 --have /tmp/wheels --out internal/libtorch/lock.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			old, err := libtorch.EmbeddedLock()
			if err != nil {
				return err
			}
			if again {
				kept := *old
				kept.Releases = nil
				old = &kept
			}
			lock, err := libtorch.MakeLock(cmd.Context(), old, versions, have, newProgress(os.Stderr))
			if err != nil {
				return err
			}
			return lock.Write(out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "lock.json", "file to write")
	f.StringSliceVar(&versions, "torch", locate.Versions, "versions to write")
	f.StringArrayVar(&have, "have", nil, "directory of wheels that were downloaded before; may be repeated")
	f.BoolVar(&again, "again", false, "also ask pip about versions that are locked already")
	return cmd
}

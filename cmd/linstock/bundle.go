package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

func newBundle() *cobra.Command {
	var cuda bool
	cmd := &cobra.Command{
		Use:   "bundle DIR",
		Short: "Copy libtorch next to a program, to ship both",
		Long: `Bundle copies the shim and the libraries that it needs into DIR. A program built
with package tensor and put into DIR runs from there on a machine of the same
platform that has no libtorch, no Python and no cache: in a container image, on a
server. Only the C and C++ run-time libraries are taken from the system.

DIR/linstock.json holds the sizes and hashes of the libraries. The program compares
them before it opens the libraries, so ship it too. The licences of what is copied
are in DIR/licenses/linstock and belong with the program.`,
		Example: `  go build -o dist/server ./cmd/server
  linstock bundle dist
  dist/server`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return errors.New("bundle: the name of the directory is empty")
			}
			cache, hash, err := paths()
			if err != nil {
				return err
			}
			shim, err := shimToBundle(hash)
			if err != nil {
				return err
			}
			source, err := libtorch.SourceOf(cache, shim)
			if err != nil {
				return err
			}
			if err := libtorch.Bundle(cmd.Context(), shim, source, args[0], cuda, newProgress(os.Stderr)); err != nil {
				return fmt.Errorf("bundle: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s holds libtorch %s; put the program there\n", args[0], source.Version)
			return nil
		},
	}
	cmd.Flags().BoolVar(&cuda, "cuda", false, "also copy the libraries that a GPU needs")
	return cmd
}

// shimToBundle returns the shim that programs with these sources open. It fails if they would not open its copy.
func shimToBundle(hash string) (string, error) {
	shim, err := locate.Find(hash)
	if err != nil {
		return "", err
	}
	var m intact.Manifest
	if intact.Read(filepath.Dir(shim), &m) != nil {
		return shim, nil // libtorch.SourceOf reports it
	}
	switch {
	case m.Root == "." && os.Getenv(locate.EnvLib) == "":
		return "", fmt.Errorf("bundle: linstock lies beside the bundle of %s and finds only that: move linstock to another directory", shim)
	case m.Root == ".":
		return "", fmt.Errorf("bundle: %s is part of a bundle; unset %s", shim, locate.EnvLib)
	case m.Sources != "" && m.Sources != hash:
		err := fmt.Errorf("%s was built from other sources than this linstock", shim)
		return "", fmt.Errorf("bundle: %w", &locate.Fault{Err: err, Remedy: locate.Remedy(shim, shim)})
	}
	return shim, nil
}

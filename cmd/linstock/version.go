package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

const modulePath = "github.com/linstock-ml/linstock"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this module and of the libtorch that programs open",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			hash, torch := "unknown", defaultTorch()
			if shimSources != nil {
				var err error
				if hash, err = locate.SourceHash(shimSources); err != nil {
					return err
				}
				torch = usedTorch(hash)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "linstock %s (shim %s, %s, %s)\nlibtorch %s; installs %s\n", moduleVersion(), hash,
				runtime.Version(), libtorch.Platform(), torch, strings.Join(locate.Versions, ", "))
			return nil
		},
	}
}

// moduleVersion returns the version of this module, as the main module or as a dependency.
func moduleVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	for _, dep := range info.Deps {
		if dep.Path == modulePath {
			if dep.Replace != nil {
				return dep.Version + " (replaced)"
			}
			return dep.Version
		}
	}
	if info.Main.Path == modulePath && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

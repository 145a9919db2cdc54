package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

func newSetup() *cobra.Command {
	var cfg libtorch.Config
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install libtorch and compile the library over it",
		Long: `Setup finds or downloads libtorch and compiles Linstock's shim for it. Run it
once on each machine, and again after an update of the Go module. If everything
is installed, it changes nothing.

Setup detects damaged parts and installs them again: a missing library, one whose
size has changed, and any change of the shim. --verify also compares the content
of libtorch's libraries, half a gigabyte. What was installed with --cuda is installed
again with the libraries that a GPU needs.

Setup uses the first libtorch of these:

  LIBTORCH=DIR             one that is installed already: DIR holds lib and
                           include, or is a site-packages directory with torch
  LIBTORCH_USE_PYTORCH=1   the PyTorch that python3 has; it is not imported
  otherwise                the wheel of PyTorch --torch VERSION (` + "`" + locate.Versions[0] + "` to `" + locate.DefaultTorch + "`" + `),
                           downloaded by pip with your own settings for it (index,
                           mirror, proxy; not constraints) and verified against the
                           hashes in this module, with LLVM's OpenMP runtime. Only
                           libtorch is extracted; Python is not needed afterwards.

It needs a C++ compiler, CMake and ninja (or make), pip to download, and about
1.2 GB of disk space while it works (half of that remains in use); pip may keep the
download in its own cache, too. It reports a missing tool or too little disk space
before the download.`,
		Example: `  linstock setup
  linstock setup --torch 2.11.0
  linstock setup --cuda                         # with the libraries that a GPU needs, gigabytes
  linstock setup --verify                       # hash all libraries, and install again if one has changed
  LIBTORCH_USE_PYTORCH=1 linstock setup         # use the PyTorch of python3
  LIBTORCH=/opt/libtorch linstock setup

  # a machine without a network
  linstock fetch wheels                         # on one that has it
  linstock setup --wheel wheels`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if cfg.Cache, cfg.Hash, err = paths(); err != nil {
				return err
			}
			if cmd.Flags().Changed("torch") {
				if _, err := resolveGiven(cmd.Context(), cfg.Cache, cfg.Torch); err != nil && !errors.Is(err, libtorch.ErrNotInstalled) {
					return err
				}
			}
			if len(cfg.Wheels) > 0 && !cmd.Flags().Changed("torch") {
				if v := libtorch.TorchOfWheels(cfg.Wheels); v != "" {
					cfg.Torch = v
				}
			}
			cfg.Sources = shimSources
			cfg.Progress = newProgress(os.Stderr)
			result, err := libtorch.Setup(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), ready(result))
			if cfg.Verify && result.Verified == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s was not installed by setup, so there are no hashes to verify its libraries against\n", result.Source.Root)
			}
			return nil
		},
	}
	f := cmd.Flags()
	torchFlag(cmd, &cfg.Torch)
	f.BoolVar(&cfg.CUDA, "cuda", false, "also install the libraries that a GPU needs")
	f.StringArrayVar(&cfg.Wheels, "wheel", nil, "use the wheels of this file or directory; may be repeated")
	f.BoolVar(&cfg.Unpinned, "unpinned", false, "accept wheels that are not in the lock file")
	f.BoolVar(&cfg.Verify, "verify", false, "compare the hashes of the installed libraries, and install libtorch again if one has changed")
	f.BoolVar(&cfg.Force, "force", false, "always install and compile again")
	f.BoolVar(&cfg.NoBuild, "no-build", false, "install libtorch without compiling the shim")
	f.IntVarP(&cfg.Jobs, "jobs", "j", 0, "number of parallel compilers (default: as many as cores and memory allow)")
	return cmd
}

// ready returns the last line that setup prints.
func ready(r libtorch.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "libtorch %s", r.Source.Version)
	if r.CUDA {
		b.WriteString(" with CUDA")
	}
	if r.Shim == "" {
		return b.String() + " is in " + r.Source.Root
	}
	if !r.Changed {
		b.WriteString(" was set up before")
	} else {
		b.WriteString(" is ready")
	}
	if r.Verified > 0 {
		fmt.Fprintf(&b, ", %d MB of libraries verified", r.Verified/1e6)
	}
	return b.String() + ": " + r.Shim
}

func newFetch() *cobra.Command {
	var cfg libtorch.Config
	cmd := &cobra.Command{
		Use:   "fetch DIR",
		Short: "Download libtorch for a machine without a network",
		Long: `Fetch downloads the wheels that setup needs into DIR and verifies them. Copy the
directory to the machine without a network and pass it to setup there.`,
		Example: `  linstock fetch wheels
  linstock fetch --cuda wheels
  # on the other machine
  linstock setup --wheel wheels`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Progress = newProgress(os.Stderr)
			files, err := libtorch.Fetch(cmd.Context(), cfg, args[0])
			for _, f := range files {
				fmt.Fprintln(cmd.OutOrStdout(), f)
			}
			return err
		},
	}
	torchFlag(cmd, &cfg.Torch)
	cmd.Flags().BoolVar(&cfg.CUDA, "cuda", false, "include the libraries that a GPU needs")
	return cmd
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/linstock-ml/linstock/internal/libtorch"
	"github.com/linstock-ml/linstock/internal/locate"
)

// environment holds what `env` prints. An empty field stands for a part that is not set up.
type environment struct {
	Cache    string `json:"LINSTOCK_CACHE"`
	Torch    string `json:"LINSTOCK_TORCH"`
	Lib      string `json:"LINSTOCK_LIB"`
	Libtorch string `json:"LIBTORCH"`
	Sources  string `json:"LINSTOCK_SHIM_HASH"`
}

func newEnv() *cobra.Command {
	var asJSON bool
	var version string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print where everything is, as shell assignments",
		Long: `Env prints the directories and files that setup made, or would use, as assignments
that a POSIX shell reads. A part that is not set up is a comment.`,
		Example: `  linstock env
  eval "$(linstock env)" && ls "$LIBTORCH/torch/include"
  linstock env --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, hash, err := paths()
			if err != nil {
				return err
			}
			given := cmd.Flags().Changed("torch") // the shim of another version would not fit
			var source libtorch.Source
			if given {
				source, err = resolveGiven(cmd.Context(), cache, version)
			} else {
				source, err = inUse(cmd.Context(), cache, hash)
			}
			e := environment{Cache: cache, Sources: hash}
			switch {
			case err == nil:
				e.Libtorch, e.Torch = source.Root, source.Version
			case errors.Is(err, libtorch.ErrNotInstalled):
				e.Torch = source.Version
			default:
				return err
			}
			if err == nil && libtorch.ShimBuilt(cache, hash, source) && (given || os.Getenv(locate.EnvLib) == "") {
				e.Lib = libtorch.ShimPath(cache, hash, source)
			} else if path, err := locate.Find(hash); err == nil && !given {
				e.Lib = path
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(e)
			}
			setup := locate.SetupCommand
			if source.Key == source.Version && source.Version != locate.DefaultTorch { // not a libtorch from elsewhere
				setup += " --torch " + source.Version
			}
			assign(cmd.OutOrStdout(), locate.EnvCache, e.Cache, setup)
			assign(cmd.OutOrStdout(), locate.EnvTorch, e.Torch, setup)
			assign(cmd.OutOrStdout(), locate.EnvLibtorch, e.Libtorch, setup)
			assign(cmd.OutOrStdout(), locate.EnvLib, e.Lib, setup)
			return nil
		},
	}
	torchFlag(cmd, &version)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func assign(w io.Writer, name, value, setup string) {
	if value == "" {
		fmt.Fprintf(w, "# %s: not set up; run: %s\n", name, setup)
		return
	}
	fmt.Fprintf(w, "export %s=%s\n", name, quote(value))
}

// quote returns s as a single word of a POSIX shell.
func quote(s string) string {
	plain := strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("/._-+:@%,", r))
	}) < 0
	if plain && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
